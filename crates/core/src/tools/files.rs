//! Paths and words that the file tools of several families share.

use ringfence_proto::{Entry, Failure, FileKind, WORKSPACE};

/// A path anywhere in the sandbox; a relative one begins in the workspace.
pub(super) fn absolute(path: &str) -> String {
    match path {
        "" | "." => WORKSPACE.to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("{WORKSPACE}/{path}"),
    }
}

/// A failure about an absolute path names it as one; the guest names it from its root on.
pub(super) fn at(path: &str, mut failure: Failure) -> Failure {
    if let Some(inner) = path.strip_prefix('/') {
        let (from, to) = (format!(" {inner}"), format!(" {path}"));
        failure.message = failure.message.replacen(&from, &to, 1);
    }
    failure
}

/// An argument as a POSIX shell reads it back.
pub(super) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./-_".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r#"'"'"'"#))
}

/// The last part of a path.
pub(super) fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Permissions as `ls -l` shows them.
pub(super) fn permissions(entry: &Entry) -> String {
    let kind = match entry.kind {
        FileKind::Folder => 'd',
        FileKind::Symlink => 'l',
        FileKind::File | FileKind::Other => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = entry.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (entry.mode & special != 0, bits & 1 != 0) {
            (false, true) => 'x',
            (false, false) => '-',
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_as_pythons_shlex_does() {
        assert_eq!(quoted("/a/b.txt"), "/a/b.txt");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("don't"), r#"'don'"'"'t'"#);
    }

    #[test]
    fn permissions_have_ten_letters() {
        let entry = |kind, mode| Entry {
            path: "a".to_owned(),
            kind,
            size: 0,
            mode,
            modified: 0.0,
            uid: 0,
            gid: 0,
            target: None,
        };
        assert_eq!(permissions(&entry(FileKind::Folder, 0o1777)), "drwxrwxrwt");
        assert_eq!(permissions(&entry(FileKind::File, 0o4644)), "-rwSr--r--");
        assert_eq!(permissions(&entry(FileKind::Symlink, 0o777)), "lrwxrwxrwx");
    }
}
