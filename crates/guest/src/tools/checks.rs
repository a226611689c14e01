//! What can be a tool.

use ringfence_proto::{Failure, TOOLS, Tool, ToolsRequest};
use std::collections::HashSet;

/// How long a call may wait for its reply.
const TIMEOUT_MS: std::ops::RangeInclusive<u64> = 1000..=3_600_000;
/// Most bytes of a name.
const NAME_LIMIT: usize = 256;

/// The words that Python takes for itself.
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import",
    "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while",
    "with", "yield",
];

pub(super) fn tools(request: &ToolsRequest) -> Result<(), Failure> {
    if request.tools.len() > TOOLS {
        return Err(Failure::invalid(format!(
            "there are {} tools: at most {TOOLS} can be installed",
            request.tools.len()
        )));
    }
    if !TIMEOUT_MS.contains(&request.timeout_ms) {
        return Err(Failure::invalid(format!(
            "timeout_ms is not in {} to {}",
            TIMEOUT_MS.start(),
            TIMEOUT_MS.end()
        )));
    }
    let mut seen = HashSet::new();
    for Tool { name, .. } in &request.tools {
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
    let letter = |c: char| c == '_' || c.is_alphabetic();
    name.len() <= NAME_LIMIT
        && name.starts_with(letter)
        && name.chars().all(|c| letter(c) || c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str]) -> Result<(), Failure> {
        let tool = |name: &&str| Tool {
            name: (*name).to_owned(),
            doc: String::new(),
        };
        tools(&ToolsRequest {
            tools: names.iter().map(tool).collect(),
            timeout_ms: 1000,
        })
    }

    #[test]
    fn names_are_python_identifiers() {
        check(&[]).unwrap();
        check(&["f", "_x1", "größe", "json", "match", "_", "__x"]).unwrap();
        for (bad, why) in [
            ("", "identifier"),
            ("1a", "identifier"),
            ("a b", "identifier"),
            ("a-b", "identifier"),
            ("a\nb", "identifier"),
            ("a.b", "identifier"),
            ("x²", "identifier"),
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
            assert_eq!(tools(&request).is_ok(), good, "{timeout_ms}");
        }
    }
}
