//! What an edit makes of a text; no file is touched here.

use ringfence_proto::{Code, Edit, Failure, Hunk};

/// A file longer than this is not edited, and no edit makes one.
pub(crate) const TEXT_LIMIT: usize = 64 << 20;

/// Changed lines that a hunk carries; its counts are of all of them.
const HUNK_LINES: usize = 10_000;

/// The text after an edit; `old` is none where there is no file. `Undo` is not for here.
pub(crate) fn apply(shown: &str, edit: &Edit, old: Option<&str>) -> Result<String, Failure> {
    let new = match edit {
        Edit::Create { text } => match old {
            None => text.clone(),
            Some(_) => {
                let message = format!("cannot create {shown}: it already exists");
                return Err(Failure::new(Code::AlreadyExists, message));
            }
        },
        Edit::Write { text } => text.clone(),
        Edit::StrReplace {
            old: from,
            new: to,
            all,
        } => str_replace(shown, there(shown, old)?, from, to, *all)?,
        Edit::Insert { after, text } => insert(shown, there(shown, old)?, *after, text)?,
        Edit::ReplaceLines { from, to, text } => {
            replace_lines(shown, there(shown, old)?, *from, *to, text)?
        }
        Edit::Patch { diff } => patch(shown, old, diff)?,
        Edit::Undo => return Err(Failure::invalid("undo is no edit of a text")),
    };
    if new.len() > TEXT_LIMIT {
        return Err(too_large(shown, new.len()));
    }
    Ok(new)
}

fn there<'a>(shown: &str, old: Option<&'a str>) -> Result<&'a str, Failure> {
    old.ok_or_else(|| Failure::new(Code::NotFound, format!("cannot edit {shown}: not found")))
}

/// The refusal of a text that is over the limit.
pub(crate) fn too_large(shown: &str, size: usize) -> Failure {
    let message =
        format!("cannot edit {shown}: {size} bytes are over the limit of {TEXT_LIMIT} bytes");
    Failure::new(Code::TooLarge, message)
}

fn str_replace(
    shown: &str,
    text: &str,
    from: &str,
    to: &str,
    all: bool,
) -> Result<String, Failure> {
    if from.is_empty() {
        return Err(Failure::invalid(format!(
            "cannot edit {shown}: the old text is empty"
        )));
    }
    let Some(first) = text.find(from) else {
        let message = format!("cannot edit {shown}: the old text was not found (0 occurrences)");
        return Err(
            Failure::invalid(message).hint("it must match exactly, with its spaces and line ends")
        );
    };
    let mut count = text.matches(from).count();
    if all {
        // Checked first: a short text many times over could be more than there is memory.
        let size = (text.len() - count * from.len()).saturating_add(count.saturating_mul(to.len()));
        if size > TEXT_LIMIT {
            return Err(too_large(shown, size));
        }
        return Ok(text.replace(from, to));
    }
    // An occurrence may overlap the first one: which of the two was meant is not known either.
    let step = from.chars().next().map_or(1, char::len_utf8);
    if count == 1 && text[first + step..].contains(from) {
        count = 2;
    }
    if count > 1 {
        let message =
            format!("cannot edit {shown}: the old text occurs {count} times, and must be unique");
        return Err(Failure::invalid(message).hint("add lines around it, or replace all"));
    }
    Ok([&text[..first], to, &text[first + from.len()..]].concat())
}

/// The lines of a text, each with its end.
fn lines(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    text.split_inclusive('\n')
}

pub(crate) fn count_lines(text: &str) -> u64 {
    lines(text).count() as u64
}

fn out_of_range(shown: &str, what: &str, total: u64) -> Failure {
    let message = format!("cannot edit {shown}: {what} is out of range, it has {total} lines");
    Failure::invalid(message)
}

/// Where line `number + 1` starts; the text's end after the last.
fn line_start(text: &str, number: u64) -> usize {
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    lines(text).take(number).map(str::len).sum()
}

fn insert(shown: &str, old: &str, after: u64, text: &str) -> Result<String, Failure> {
    let total = count_lines(old);
    if after > total {
        return Err(out_of_range(shown, &format!("line {after}"), total));
    }
    let (above, below) = old.split_at(line_start(old, after));
    let gap = if above.is_empty() || above.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    let end = if text.ends_with('\n') { "" } else { "\n" };
    Ok([above, gap, text, end, below].concat())
}

fn replace_lines(
    shown: &str,
    old: &str,
    from: u64,
    to: u64,
    text: &str,
) -> Result<String, Failure> {
    let total = count_lines(old);
    if from == 0 || from > total + 1 {
        return Err(out_of_range(shown, &format!("line {from}"), total));
    }
    if to > total || to < from - 1 {
        return Err(out_of_range(
            shown,
            &format!("the range {from} to {to}"),
            total,
        ));
    }
    let (above, rest) = old.split_at(line_start(old, from - 1));
    let (gone, below) = rest.split_at(line_start(rest, to + 1 - from));
    let gap = if above.is_empty() || above.ends_with('\n') || text.is_empty() {
        ""
    } else {
        "\n"
    };
    // The last line of a file may be without an end, and then stays so.
    let open = below.is_empty() && !gone.is_empty() && !gone.ends_with('\n');
    let end = if text.is_empty() || text.ends_with('\n') || open {
        ""
    } else {
        "\n"
    };
    Ok([above, gap, text, end, below].concat())
}

fn patch(shown: &str, old: Option<&str>, diff: &str) -> Result<String, Failure> {
    // The last line's end is often lost on the way here; a missing one is said by a marker.
    let mut diff = diff.to_owned();
    if !diff.ends_with('\n') {
        diff.push('\n');
    }
    let bad = |what: &str| Failure::invalid(format!("cannot edit {shown}: {what}"));
    let patch =
        diffy::Patch::from_str(&diff).map_err(|e| bad(&format!("the diff is malformed: {e}")))?;
    if patch.hunks().is_empty() {
        return Err(bad("the diff has no hunks"));
    }
    if patch.modified() == Some("/dev/null") {
        return Err(bad("the diff deletes the file").hint("delete it instead"));
    }
    let base = match (old, patch.original()) {
        (None, Some("/dev/null")) => "",
        (Some(_), Some("/dev/null")) => {
            let message = format!("cannot edit {shown}: the diff makes it, and it already exists");
            return Err(Failure::new(Code::AlreadyExists, message));
        }
        (old, _) => there(shown, old)?,
    };
    diffy::apply(base, &patch).map_err(|e| {
        let message = format!("cannot edit {shown}: the diff does not apply: {e}");
        Failure::new(Code::Conflict, message).hint("read the file again and make a new diff")
    })
}

/// The one hunk that spans every line in which two texts differ.
pub(crate) fn hunk(old: &str, new: &str) -> Option<Hunk> {
    if old == new {
        return None;
    }
    let head: Vec<usize> = lines(old)
        .zip(lines(new))
        .take_while(|(a, b)| a == b)
        .map(|(a, _)| a.len())
        .collect();
    let (above, start) = (head.len() as u64, head.iter().sum());
    let (old, new) = (&old[start..], &new[start..]);
    let tail: usize = lines(old)
        .rev()
        .zip(lines(new).rev())
        .take_while(|(a, b)| a == b)
        .map(|(a, _)| a.len())
        .sum();
    let (old, new) = (&old[..old.len() - tail], &new[..new.len() - tail]);
    let (old_lines, new_lines) = (count_lines(old), count_lines(new));
    // As in a unified diff: no lines start after the line before them.
    let start = |count| if count == 0 { above } else { above + 1 };
    let signed = |sign: &'static str| move |line: &str| format!("{sign}{}", plain(line));
    let lines = lines(old)
        .map(signed("-"))
        .chain(lines(new).map(signed("+")));
    Some(Hunk {
        old_start: start(old_lines),
        old_lines,
        new_start: start(new_lines),
        new_lines,
        lines: lines.take(HUNK_LINES).collect(),
    })
}

fn plain(line: &str) -> &str {
    line.strip_suffix('\n').unwrap_or(line)
}
