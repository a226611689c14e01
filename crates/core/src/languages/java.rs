//! Which class of a Java file is run: the file must have the name of its public class.

/// The class that has a `main`, with its package and what it is nested in, and the file that it
/// must be in. Only a guess at hostile text: a wrong one is a message of the compiler.
pub fn main_class(code: &str) -> MainClass {
    let found = Found::of(&tokens(code));
    // Of several, that of the public class, which gives the file its name; else the outermost.
    let in_public = |path: &[String]| path.first() == found.public.as_ref();
    let main = found
        .mains
        .iter()
        .min_by_key(|path| (!in_public(path), path.len()));
    let fallback = || "Main".to_owned();
    let top = main.and_then(|path| path.first().cloned());
    let first = found.public.or(top).or(found.first);
    let class = match main {
        Some(path) if !path.is_empty() => path.join("$"),
        // Its methods are those of a class without a name, which has the file's.
        Some(_) => fallback(),
        None => first.clone().unwrap_or_else(fallback),
    };
    let file = match main {
        Some(path) if path.is_empty() => fallback(),
        _ => first.unwrap_or_else(fallback),
    };
    let class = match found.package {
        Some(package) => format!("{package}.{class}"),
        None => class,
    };
    MainClass { file, class }
}

/// The name of the file without its end, and the class to run.
#[derive(Debug, PartialEq, Eq)]
pub struct MainClass {
    pub file: String,
    pub class: String,
}

/// What of a file decides that.
#[derive(Debug, Default)]
struct Found {
    package: Option<String>,
    /// The public class that is in no other.
    public: Option<String>,
    /// The first of all that are in no other.
    first: Option<String>,
    /// The classes with a `main`, each with those it is in, from the outside.
    mains: Vec<Vec<String>>,
}

impl Found {
    fn of(tokens: &[&str]) -> Self {
        let mut found = Self::default();
        // Of each brace that is open, the class that it is the body of.
        let mut open: Vec<Option<String>> = Vec::new();
        let mut parentheses = 0_usize;
        let (mut public, mut pending) = (false, None);
        for (at, token) in tokens.iter().enumerate() {
            let next = |by: usize| tokens.get(at + by).copied().unwrap_or_default();
            match *token {
                "(" => parentheses += 1,
                ")" => parentheses = parentheses.saturating_sub(1),
                // In parentheses they are those of an annotation, or of a method within a method.
                "{" if parentheses > 0 => open.push(None),
                "{" => {
                    open.push(pending.take());
                    public = false;
                }
                "}" => {
                    open.pop();
                    public &= parentheses > 0;
                }
                ";" => public = false,
                "public" => public = true,
                "package" if open.is_empty() && found.package.is_none() => {
                    let name = tokens[at + 1..].iter().take_while(|word| **word != ";");
                    let name: String = name.copied().take(64).collect();
                    found.package = name.split('.').all(is_name).then_some(name);
                }
                "class" | "interface" | "enum" | "record" if is_name(next(1)) => {
                    // The last of these is a name too.
                    if at
                        .checked_sub(1)
                        .is_some_and(|before| tokens[before] == ".")
                        || (*token == "record" && !matches!(next(2), "(" | "<"))
                    {
                        continue;
                    }
                    let name = next(1).to_owned();
                    if open.is_empty() {
                        found.first.get_or_insert_with(|| name.clone());
                        if public {
                            found.public.get_or_insert_with(|| name.clone());
                        }
                    }
                    pending = Some(name);
                }
                "void" if next(1) == "main" && next(2) == "(" => {
                    // In a body of a method there is a brace without a class.
                    found
                        .mains
                        .extend(open.iter().cloned().collect::<Option<Vec<_>>>());
                }
                _ => {}
            }
        }
        found
    }
}

/// The words and signs of the code, without comments and what is in quotes.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(inner) = rest.strip_prefix("/*") {
            inner.find("*/").map_or(rest.len(), |end| end + 4)
        } else if rest.starts_with("\"\"\"") {
            quoted(rest, "\"\"\"")
        } else if rest.starts_with('"') {
            quoted(rest, "\"")
        } else if rest.starts_with('\'') {
            quoted(rest, "'")
        } else if in_word(first) {
            let length = rest.find(|c| !in_word(c)).unwrap_or(rest.len());
            tokens.push(&rest[..length]);
            length
        } else {
            if !first.is_whitespace() {
                tokens.push(&rest[..first.len_utf8()]);
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

/// How long the text is that begins and ends with these quotes.
fn quoted(text: &str, quotes: &str) -> usize {
    let mut at = quotes.len();
    while let Some(next) = text[at..].chars().next() {
        if text[at..].starts_with(quotes) {
            return at + quotes.len();
        }
        at += next.len_utf8();
        if next == '\\' {
            at += text[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    text.len()
}

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

fn is_name(word: &str) -> bool {
    word.len() <= 128
        && word.starts_with(|c: char| in_word(c) && !c.is_numeric())
        && word.chars().all(in_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_with_main_is_found() {
        const MAIN: &str = "public static void main(String[] a) {}";
        for (code, file, class) in [
            ("public class Hello { MAIN }", "Hello", "Hello"),
            (
                "class A {}\nclass B { static void main(String[] a) {} }",
                "B",
                "B",
            ),
            ("package x.y;\npublic final class Q { MAIN }", "Q", "x.y.Q"),
            ("// class Not\npublic class Yes {}", "Yes", "Yes"),
            ("public record P(int a) { MAIN }", "P", "P"),
            // Behind a nested class, before another, and in one.
            ("class A { static class In { void f() {} } MAIN }", "A", "A"),
            (
                "class A { MAIN static class In { void f() { if (x) {} } } }",
                "A",
                "A",
            ),
            ("class A { static class In { MAIN } }", "A", "A$In"),
            (
                "package p; class A { static class In { MAIN } }",
                "A",
                "p.A$In",
            ),
            // The public one gives the file its name, whoever has the main.
            ("class A { MAIN }\npublic class B {}", "B", "A"),
            ("class A { MAIN }\npublic class B { MAIN }", "B", "B"),
            (
                "class A { static class In { MAIN } }\nclass B { MAIN }",
                "B",
                "B",
            ),
            (
                "class A { public static class In {} }\nclass B { MAIN }",
                "B",
                "B",
            ),
            (
                "@Tag({\"x\"}) public @Other({1}) class C { MAIN }",
                "C",
                "C",
            ),
            ("interface I { static void main(String[] a) {} }", "I", "I"),
            ("enum E { X { void f() {} }; MAIN }", "E", "E"),
            // What only looks like one.
            (
                "class A { String s = \"class B { void main( }\"; MAIN }",
                "A",
                "A",
            ),
            ("class A { /* } class B { */ MAIN }", "A", "A"),
            (
                "class A { String s = \"\"\"\n } class B { \" \"\"\"; char c = '}'; MAIN }",
                "A",
                "A",
            ),
            (
                "class A { Object o = B.class; int record = 1; MAIN } class B {}",
                "A",
                "A",
            ),
            (
                "class A { Runnable r = () -> { class L {} }; MAIN }",
                "A",
                "A",
            ),
            (
                "class A { static void f() { new T() { void main() {} }; } }\nclass B { MAIN }",
                "B",
                "B",
            ),
            // One without a class around it.
            ("void main() {}", "Main", "Main"),
            ("record P(int x) {}\nvoid main() {}", "Main", "Main"),
            ("", "Main", "Main"),
            ("class ../../etc", "Main", "Main"),
            ("package ../x; class A { MAIN }", "A", "A"),
        ] {
            let code = code.replace("MAIN", MAIN);
            let found = main_class(&code);
            assert_eq!(
                (found.file.as_str(), found.class.as_str()),
                (file, class),
                "{code}"
            );
        }
    }
}
