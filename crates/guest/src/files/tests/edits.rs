use super::*;
use crate::files::edit;
use crate::files::history::History;
use proptest::prelude::*;
use ringfence_proto::{Code, Edit, EditRequest, EditResult};
use std::sync::Mutex;

struct Editor {
    world: World,
    history: Mutex<History>,
}

impl Editor {
    fn new(resolver: Resolver) -> Self {
        Self {
            world: World::new(resolver),
            history: Mutex::default(),
        }
    }

    fn edit(&self, path: &str, edit: Edit) -> Result<EditResult, Failure> {
        let request = EditRequest {
            root: WORKSPACE.to_owned(),
            path: path.to_owned(),
            edit,
            mode: None,
        };
        edit::edit(&self.history, &self.world.root, &request)
    }

    fn refused(&self, path: &str, edit: Edit) -> (Code, String) {
        let failure = self.edit(path, edit).unwrap_err();
        (failure.code, failure.message)
    }
}

fn replace(old: &str, new: &str) -> Edit {
    Edit::StrReplace {
        old: old.to_owned(),
        new: new.to_owned(),
        all: false,
    }
}

fn insert(after: u64, text: &str) -> Edit {
    Edit::Insert {
        after,
        text: text.to_owned(),
    }
}

fn lines(from: u64, to: u64, text: &str) -> Edit {
    Edit::ReplaceLines {
        from,
        to,
        text: text.to_owned(),
    }
}

fn patch(diff: &str) -> Edit {
    Edit::Patch {
        diff: diff.to_owned(),
    }
}

fn create(text: &str) -> Edit {
    Edit::Create {
        text: text.to_owned(),
    }
}

#[test]
fn each_edit_does_what_it_says() {
    for resolver in BOTH {
        let editor = Editor::new(resolver);
        let made = editor.edit("a/file", create("one\ntwo\nthree\n")).unwrap();
        assert_eq!(
            (made.path.as_str(), made.existed, made.size),
            ("a/file", false, 14)
        );
        assert_eq!(made.total_lines, 3);

        let hunk = editor
            .edit("a/file", replace("two", "2\n2b"))
            .unwrap()
            .hunk
            .unwrap();
        assert_eq!(hunk.lines, ["-two", "+2", "+2b"]);
        assert_eq!(
            (
                hunk.old_start,
                hunk.old_lines,
                hunk.new_start,
                hunk.new_lines
            ),
            (2, 1, 2, 2)
        );
        let hunk = editor
            .edit("./a/file", insert(0, "zero"))
            .unwrap()
            .hunk
            .unwrap();
        assert_eq!((hunk.old_start, hunk.old_lines, hunk.new_start), (0, 0, 1));
        assert_eq!(editor.world.text("a/file"), "zero\none\n2\n2b\nthree\n");
        editor.edit("a/file", lines(3, 4, "two")).unwrap();
        editor.edit("a/file", lines(5, 4, "four")).unwrap();
        editor.edit("a/file", lines(1, 1, "")).unwrap();
        assert_eq!(editor.world.text("a/file"), "one\ntwo\nthree\nfour\n");
        let diff = "--- a/file\n+++ b/file\n@@ -2,2 +2,2 @@\n two\n-three\n+THREE";
        editor.edit("a/file", patch(diff)).unwrap();
        assert_eq!(editor.world.text("a/file"), "one\ntwo\nTHREE\nfour\n");
        let all = Edit::StrReplace {
            old: "o".into(),
            new: "0".into(),
            all: true,
        };
        editor.edit("a/file", all).unwrap();
        assert_eq!(editor.world.text("a/file"), "0ne\ntw0\nTHREE\nf0ur\n");

        let mut undone = 0;
        while editor.edit("a/../a/file", Edit::Undo).is_ok() {
            undone += 1;
        }
        assert_eq!(undone, 8);
        assert_eq!(editor.world.names(), ["a"]);
        let new = "--- /dev/null\n+++ b/new\n@@ -0,0 +1,2 @@\n+a\n+b\n";
        editor.edit("new", patch(new)).unwrap();
        assert_eq!(editor.world.text("new"), "a\nb\n");
    }
}

#[test]
fn last_lines_without_an_end() {
    let editor = Editor::new(Resolver::Walk);
    let check = |edit: Edit, expected: &str| {
        editor.world.file("f", "a\nb");
        editor.edit("f", edit).unwrap();
        assert_eq!(editor.world.text("f"), expected);
    };
    check(insert(2, "c"), "a\nb\nc\n");
    check(insert(1, ""), "a\n\nb");
    check(lines(2, 2, "c"), "a\nc");
    check(lines(1, 1, "c"), "c\nb");
    check(lines(3, 2, "c"), "a\nb\nc\n");
    check(lines(3, 2, ""), "a\nb");
    check(lines(1, 2, ""), "");
}

#[test]
fn refusals_say_why_and_change_nothing() {
    for resolver in BOTH {
        let editor = Editor::new(resolver);
        editor.world.file("f", "aaa\nb\n");
        let expect = |path: &str, edit: Edit, code: Code, words: &str| {
            let (got, message) = editor.refused(path, edit);
            assert_eq!(got, code, "{message}");
            assert!(message.contains(words), "{message:?} lacks {words:?}");
        };
        expect("f", create(""), Code::AlreadyExists, "already exists");
        expect("none", replace("a", "b"), Code::NotFound, "not found");
        expect("no/ne", replace("a", "b"), Code::NotFound, "not found");
        expect("f", replace("xyz", "b"), Code::InvalidInput, "not found");
        expect(
            "f",
            replace("xyz", "b"),
            Code::InvalidInput,
            "0 occurrences",
        );
        expect(
            "f",
            replace("a", "b"),
            Code::InvalidInput,
            "3 times, and must be unique",
        );
        expect(
            "f",
            replace("aa", "b"),
            Code::InvalidInput,
            "must be unique",
        );
        expect("f", replace("", "b"), Code::InvalidInput, "empty");
        expect("f", insert(3, "x"), Code::InvalidInput, "out of range");
        expect(
            "f",
            insert(u64::MAX, "x"),
            Code::InvalidInput,
            "out of range",
        );
        for (from, to) in [
            (0, 1),
            (1, 3),
            (4, 3),
            (2, 0),
            (u64::MAX, u64::MAX),
            (1, u64::MAX),
        ] {
            expect(
                "f",
                lines(from, to, "x"),
                Code::InvalidInput,
                "out of range",
            );
        }
        expect("f", Edit::Undo, Code::Conflict, "no edits to undo");
        expect("none", Edit::Undo, Code::Conflict, "no edits to undo");
        expect("../f", create(""), Code::Forbidden, "escapes workspace");
        expect(
            "/etc/passwd",
            create(""),
            Code::Forbidden,
            "escapes workspace",
        );
        expect("f", patch("hello"), Code::InvalidInput, "no hunks");
        expect(
            "f",
            patch("@@ -1 +1 @@\n-x\n+y\n"),
            Code::Conflict,
            "does not apply",
        );
        expect(
            "f",
            patch("@@ -1,9 +1 @@\n-x\n"),
            Code::InvalidInput,
            "malformed",
        );
        expect(".", create(""), Code::InvalidInput, "root itself");
        editor
            .world
            .link("out", editor.world.outside.join("secret"));
        expect(
            "out",
            replace("o", "x"),
            Code::Forbidden,
            "escapes workspace",
        );
        expect("out", create(""), Code::AlreadyExists, "already exists");
        editor.world.file("binary", [0xff, 0xfe]);
        expect("binary", insert(0, ""), Code::InvalidInput, "not UTF-8");
        let big = fs::File::create(editor.world.inside.join("big")).unwrap();
        big.set_len((64 << 20) + 1).unwrap();
        expect("big", insert(0, ""), Code::TooLarge, "over the limit");
        let blow = Edit::StrReplace {
            old: "a".into(),
            new: "x".repeat(32 << 20),
            all: true,
        };
        expect("f", blow, Code::TooLarge, "over the limit");
        assert_eq!(editor.world.text("f"), "aaa\nb\n");
        editor.world.assert_outside_untouched();
    }
}

#[test]
fn bytes_that_are_no_text_come_back() {
    let editor = Editor::new(Resolver::Openat2);
    editor.world.file("f", [0xff, 0x00, 0xfe]);
    editor
        .edit(
            "f",
            Edit::Write {
                text: "text".into(),
            },
        )
        .unwrap();
    editor.edit("f", Edit::Undo).unwrap();
    assert_eq!(
        fs::read(editor.world.inside.join("f")).unwrap(),
        [0xff, 0x00, 0xfe]
    );
}

fn any_edit() -> impl Strategy<Value = Edit> {
    let text = "[ab\n\u{e9}]{0,6}";
    prop_oneof![
        text.prop_map(|text| Edit::Write { text }),
        text.prop_map(|text| Edit::Create { text }),
        ("[ab\n]{1,2}", text, any::<bool>()).prop_map(|(old, new, all)| Edit::StrReplace {
            old,
            new,
            all
        }),
        (0..6_u64, text).prop_map(|(after, text)| Edit::Insert { after, text }),
        (0..6_u64, 0..6_u64, text).prop_map(|(from, to, text)| Edit::ReplaceLines {
            from,
            to,
            text
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn undo_restores_every_byte(
        original in prop::option::of("[ab\n\u{e9}]{0,12}"),
        edits in prop::collection::vec(any_edit(), 1..20),
    ) {
        let editor = Editor::new(Resolver::Openat2);
        let path = editor.world.inside.join("f");
        if let Some(text) = &original {
            fs::write(&path, text).unwrap();
        }
        let mut states = Vec::new();
        for edit in edits {
            let before = fs::read(&path).ok();
            match editor.edit("f", edit) {
                Ok(result) => {
                    let after = fs::read_to_string(&path).unwrap();
                    prop_assert_eq!(result.size, after.len() as u64);
                    prop_assert_eq!(result.existed, before.is_some());
                    let old = String::from_utf8(before.clone().unwrap_or_default()).unwrap();
                    prop_assert_eq!(result.hunk.is_none(), old == after);
                    if let Some(hunk) = result.hunk {
                        prop_assert_eq!(rebuilt(&old, &hunk), after.lines().collect::<Vec<_>>());
                    }
                    states.push(before);
                }
                Err(_) => prop_assert_eq!(fs::read(&path).ok(), before),
            }
        }
        for state in states.into_iter().rev() {
            editor.edit("f", Edit::Undo).unwrap();
            prop_assert_eq!(fs::read(&path).ok(), state);
        }
        prop_assert!(editor.edit("f", Edit::Undo).is_err());
        prop_assert_eq!(fs::read(&path).ok(), original.map(String::into_bytes));
    }
}

/// The lines of a text after a hunk, as any reader of a unified diff would put them together.
fn rebuilt(old: &str, hunk: &ringfence_proto::Hunk) -> Vec<String> {
    let old: Vec<&str> = old.lines().collect();
    let start = (hunk.old_start - u64::from(hunk.old_lines > 0)) as usize;
    let end = start + hunk.old_lines as usize;
    let removed: Vec<_> = hunk
        .lines
        .iter()
        .filter_map(|l| l.strip_prefix('-'))
        .collect();
    assert_eq!(removed, old[start..end]);
    let added = hunk.lines.iter().filter_map(|l| l.strip_prefix('+'));
    let (above, below) = (&old[..start], &old[end..]);
    above
        .iter()
        .copied()
        .chain(added)
        .chain(below.iter().copied())
        .map(str::to_owned)
        .collect()
}
