//! Which class of a Java file is run: the file must have the name of its public class.

/// The class, with its package, that has a `main`; the first public one, or `Main`, where none is
/// seen. Only a guess at hostile text: a wrong one is a message of the compiler.
pub fn main_class(code: &str) -> MainClass {
    let words = words(code);
    let package = after(&words, "package").map(str::to_owned);
    let classes: Vec<(usize, &str)> = words
        .windows(2)
        .enumerate()
        .filter(|(_, pair)| matches!(pair[0], "class" | "record" | "enum" | "interface"))
        .map(|(at, pair)| (at, pair[1]))
        .filter(|(_, name)| is_name(name))
        .collect();
    let main = words.windows(2).position(|pair| pair == ["void", "main"]);
    let public = classes.iter().find(|(at, _)| {
        let start = at.saturating_sub(3);
        words[start..*at].contains(&"public")
    });
    let with_main = main.and_then(|main| classes.iter().rev().find(|(at, _)| *at < main));
    let name = |found: Option<&(usize, &str)>| found.map(|(_, name)| (*name).to_owned());
    let fallback = || "Main".to_owned();
    let file = name(public.or(with_main)).unwrap_or_else(fallback);
    let class = name(with_main.or(public)).unwrap_or_else(fallback);
    let class = match package {
        Some(package) if package.split('.').all(is_name) => format!("{package}.{class}"),
        _ => class,
    };
    MainClass { file, class }
}

/// The name of the file without its end, and the class to run.
#[derive(Debug, PartialEq, Eq)]
pub struct MainClass {
    pub file: String,
    pub class: String,
}

fn after<'a>(words: &[&'a str], word: &str) -> Option<&'a str> {
    words.windows(2).find(|p| p[0] == word).map(|p| p[1])
}

/// The words of the code, without comments.
fn words(code: &str) -> Vec<&str> {
    code.lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .filter(|line| !line.trim_start().starts_with(['*', '/']))
        .flat_map(|line| line.split(|c: char| !(c.is_alphanumeric() || "_$.".contains(c))))
        .filter(|word| !word.is_empty())
        .collect()
}

fn is_name(word: &str) -> bool {
    let start = |c: char| c.is_alphabetic() || c == '_' || c == '$';
    word.len() <= 128 && word.starts_with(start) && !word.contains('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_with_main_is_found() {
        for (code, file, class) in [
            (
                "public class Hello { public static void main(String[] a) {} }",
                "Hello",
                "Hello",
            ),
            (
                "class A {}\nclass B { static void main(String[] a) {} }",
                "B",
                "B",
            ),
            (
                "package x.y;\npublic final class Q { public static void main() {} }",
                "Q",
                "x.y.Q",
            ),
            ("// class Not\npublic class Yes {}", "Yes", "Yes"),
            (
                "public record P(int a) { public static void main(String... a) {} }",
                "P",
                "P",
            ),
            ("", "Main", "Main"),
            ("class ../../etc", "Main", "Main"),
        ] {
            let found = main_class(code);
            assert_eq!(
                (found.file.as_str(), found.class.as_str()),
                (file, class),
                "{code}"
            );
        }
    }
}
