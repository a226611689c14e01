//! What is too long for a reader, without its middle.

/// Bytes that are shown of the beginning and of the end.
pub(crate) const HEAD: u64 = 20_000;
pub(crate) const TAIL: u64 = 10_000;

/// The text where it is short, else its ends, with a line between them about what is left out.
pub(crate) fn shortened(text: &str, note: impl Fn(usize) -> String) -> String {
    let (head, tail) = (HEAD as usize, TAIL as usize);
    if text.len() <= head + tail {
        return text.to_owned();
    }
    let start = &text[..text.floor_char_boundary(head)];
    let end = &text[text.ceil_char_boundary(text.len() - tail)..];
    let left_out = text.len() - start.len() - end.len();
    format!("{start}\n{}\n{end}", note(left_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_keeps_its_ends() {
        let text = format!("{}{}", "é".repeat(20_000), "z".repeat(20_000));
        let short = shortened(&text, |bytes| format!("[{bytes} left out]"));
        assert_eq!(
            short,
            format!(
                "{}\n[30000 left out]\n{}",
                "é".repeat(10_000),
                "z".repeat(10_000)
            )
        );
        assert_eq!(shortened("short", |_| String::new()), "short");
    }
}
