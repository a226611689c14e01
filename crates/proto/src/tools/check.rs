//! What can be a tool.

use super::{TOOLS, Tool, ToolsRequest};
use crate::Failure;
use std::collections::HashSet;

/// How long a call may wait for its reply.
const TIMEOUT_MS: std::ops::RangeInclusive<u64> = 1000..=3_600_000;
/// Most bytes of a name.
const NAME_LIMIT: usize = 256;
/// Most bytes of all names and documentation: it stays below what a guest reads, however it is
/// escaped.
const TEXT_LIMIT: usize = 512 << 10;

/// The words that Python takes for itself.
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import",
    "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while",
    "with", "yield",
];

impl ToolsRequest {
    /// Whether these can be tools; both sides ask.
    pub fn check(&self) -> Result<(), Failure> {
        if !TIMEOUT_MS.contains(&self.timeout_ms) {
            return Err(Failure::invalid(format!(
                "timeout_ms is not in {} to {}",
                TIMEOUT_MS.start(),
                TIMEOUT_MS.end()
            )));
        }
        check(&self.tools)
    }
}

fn check(tools: &[Tool]) -> Result<(), Failure> {
    if tools.len() > TOOLS {
        return Err(Failure::invalid(format!(
            "there are {} tools: at most {TOOLS} can be installed",
            tools.len()
        )));
    }
    let size = tools.iter().map(|tool| tool.name.len() + tool.doc.len());
    if size.sum::<usize>() > TEXT_LIMIT {
        return Err(Failure::invalid(format!(
            "the names and the documentation of the tools are over {TEXT_LIMIT} bytes"
        )));
    }
    let mut seen = HashSet::new();
    for Tool { name, .. } in tools {
        let wrong = |what: &str| {
            let shown: String = name.chars().take(64).collect();
            Err(Failure::invalid(format!("the tool name {shown:?} {what}")))
        };
        if !is_identifier(name) {
            return wrong("is not a Python identifier");
        }
        if KEYWORDS.contains(&name.as_str()) {
            return wrong("is a Python keyword");
        }
        if name == "ToolError" || (name.starts_with("__") && name.ends_with("__")) {
            return wrong("is taken by the module itself");
        }
        if !seen.insert(name) {
            return wrong("is there twice");
        }
    }
    Ok(())
}

fn is_identifier(name: &str) -> bool {
    let start = |c: char| c == '_' || unicode_ident::is_xid_start(c);
    name.len() <= NAME_LIMIT
        && name.starts_with(start)
        && name.chars().all(unicode_ident::is_xid_continue)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str]) -> Result<(), Failure> {
        let tool = |name: &&str| Tool {
            name: (*name).to_owned(),
            doc: String::new(),
        };
        super::check(&names.iter().map(tool).collect::<Vec<_>>())
    }

    #[test]
    fn names_are_python_identifiers() {
        check(&[]).unwrap();
        check(&["f", "_x1", "größe", "数2", "json", "match", "_", "__x"]).unwrap();
        for (bad, why) in [
            ("", "identifier"),
            ("1a", "identifier"),
            ("a b", "identifier"),
            ("a-b", "identifier"),
            ("a\nb", "identifier"),
            ("a.b", "identifier"),
            ("x²", "identifier"),
            ("Ⓐ", "identifier"),
            ("def", "keyword"),
            ("None", "keyword"),
            ("ToolError", "taken"),
            ("__name__", "taken"),
        ] {
            let failure = check(&["good", bad]).unwrap_err();
            assert!(failure.message.contains(why), "{bad}: {}", failure.message);
        }
        assert!(
            check(&["a", "b", "a"])
                .unwrap_err()
                .message
                .contains("twice")
        );
        assert!(check(&[&"x".repeat(257)]).is_err());
        assert!(check(&vec!["a"; 257]).unwrap_err().message.contains("256"));
    }

    #[test]
    fn a_timeout_is_a_second_to_an_hour() {
        for (timeout_ms, good) in [
            (999, false),
            (1000, true),
            (3_600_000, true),
            (3_600_001, false),
        ] {
            let request = ToolsRequest {
                tools: Vec::new(),
                timeout_ms,
            };
            assert_eq!(request.check().is_ok(), good, "{timeout_ms}");
        }
    }
}
