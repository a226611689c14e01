use crate::{Outcome, Subject, Wrong, holds, same};
use futures_util::StreamExt as _;
use http::Method;
use ringfence_core::Code;
use ringfence_core::guest::{full, with_query};
use ringfence_core::proto::{
    Command, Edit, EditRequest, EditResult, Entry, Event, ExecRequest, FileKind, GlobResult,
    GrepResult, JobEnd, ListResult, PathQuery, ReadQuery, RunRequest, WriteQuery,
};
use serde_json::json;

async fn write(s: &Subject, path: &str, text: &str) -> Outcome {
    s.guest
        .write(&WriteQuery::new(path), text.as_bytes().to_vec())
        .await?;
    Ok(())
}

async fn read(s: &Subject, path: &str) -> Result<String, Wrong> {
    let bytes = s.guest.read(&ReadQuery::new(path)).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub(super) async fn round_trip_and_ranges(s: &Subject) -> Outcome {
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let query = WriteQuery {
        mode: Some(0o640),
        ..WriteQuery::new("deep/er/file.bin")
    };
    let entry = s.guest.write(&query, bytes.clone()).await?;
    same!((entry.size, entry.mode & 0o777), (3_000_000, 0o640));
    holds!(s.guest.read(&ReadQuery::new("deep/er/file.bin")).await? == bytes);
    let mut part = ReadQuery::new("deep/er/file.bin");
    (part.offset, part.length) = (2_999_990, Some(100));
    same!(s.guest.read(&part).await?.as_ref(), &bytes[2_999_990..]);
    write(s, "a.txt", "one\n").await?;
    let append = WriteQuery {
        append: true,
        ..WriteQuery::new("a.txt")
    };
    s.guest.write(&append, "two\n").await?;
    same!(read(s, "a.txt").await?, "one\ntwo\n");
    // What the file routes write, commands see, and the other way round.
    same!(
        s.shell("cat a.txt; echo three > b.txt")
            .await?
            .stdout
            .data
            .text(),
        "one\ntwo\n"
    );
    same!(read(s, "b.txt").await?, "three\n");
    let new = WriteQuery {
        create_new: true,
        ..WriteQuery::new("a.txt")
    };
    same!(
        s.guest.write(&new, "x").await.err().map(|f| f.code),
        Some(Code::AlreadyExists)
    );
    Ok(())
}

pub(super) async fn manage(s: &Subject) -> Outcome {
    write(s, "x/one", "1").await?;
    s.guest
        .post::<Entry>("/files/mkdir", &json!({"path": "y/z"}))
        .await?;
    s.guest
        .post::<Entry>("/files/copy", &json!({"from": "x", "to": "y/x"}))
        .await?;
    s.guest
        .post::<Entry>("/files/move", &json!({"from": "x/one", "to": "y/two"}))
        .await?;
    let stat: Entry = s.guest.get("/files/stat", &PathQuery::new("y/two")).await?;
    same!((stat.kind, stat.size), (FileKind::File, 1));
    let mut all = PathQuery::new(".");
    all.recursive = true;
    let list: ListResult = s.guest.get("/files/list", &all).await?;
    let paths: Vec<&str> = list.entries.iter().map(|e| e.path.as_str()).collect();
    same!(paths, ["x", "y", "y/two", "y/x", "y/x/one", "y/z"]);
    let delete = |path: &str, recursive| PathQuery {
        recursive,
        ..PathQuery::new(path)
    };
    let refused = s
        .guest
        .tell(
            Method::DELETE,
            &with_query("/files", &delete("y", false))?,
            &(),
        )
        .await;
    holds!(refused.is_err());
    s.guest
        .tell(
            Method::DELETE,
            &with_query("/files", &delete("y", true))?,
            &(),
        )
        .await?;
    let gone = s
        .guest
        .get::<Entry>("/files/stat", &PathQuery::new("y"))
        .await
        .err();
    same!(gone.map(|f| f.code), Some(Code::NotFound));
    Ok(())
}

pub(super) async fn tar_in_and_out(s: &Subject) -> Outcome {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, text) in [("in/a", "A"), ("in/b/c", "C")] {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append_data(&mut header, name, text.as_bytes())?;
    }
    let archive = builder.into_inner()?;
    let into = with_query("/files/tar", &[("path", "unpacked")])?;
    s.guest
        .stream(Method::PUT, &into, full(archive.into()))
        .await?;
    same!(read(s, "unpacked/in/b/c").await?, "C");
    let response = s
        .guest
        .stream(Method::GET, &into, full(bytes::Bytes::new()))
        .await?;
    let bytes = http_body_util::BodyExt::collect(response.into_body())
        .await
        .map_err(|e| Wrong(e.to_string()))?
        .to_bytes();
    let mut names: Vec<String> = Vec::new();
    for entry in tar::Archive::new(bytes.as_ref()).entries()? {
        let path = entry?.path()?.display().to_string();
        names.push(
            path.trim_start_matches("./")
                .trim_end_matches('/')
                .to_owned(),
        );
    }
    for name in ["in/a", "in/b/c"] {
        holds!(names.iter().any(|n| n == name), names);
    }
    Ok(())
}

pub(super) async fn glob_and_grep(s: &Subject) -> Outcome {
    write(s, "src/main.rs", "fn main() {\n    answer();\n}\n").await?;
    write(s, "src/deep/lib.rs", "fn answer() -> u8 { 42 }\n").await?;
    write(s, "notes.md", "the Answer is 42\n").await?;
    let glob: GlobResult = s
        .guest
        .post("/files/glob", &json!({"pattern": "**/*.rs"}))
        .await?;
    let paths: Vec<&str> = glob.entries.iter().map(|e| e.path.as_str()).collect();
    same!(paths, ["src/deep/lib.rs", "src/main.rs"]);
    let grep: GrepResult = s
        .guest
        .post(
            "/files/grep",
            &json!({"pattern": "answer\\(", "glob": "**/*.rs"}),
        )
        .await?;
    let found: Vec<(&str, u64)> = grep
        .files
        .iter()
        .map(|f| (f.path.as_str(), f.lines[0].number))
        .collect();
    same!(found, [("src/deep/lib.rs", 1), ("src/main.rs", 2)]);
    let any: GrepResult = s
        .guest
        .post(
            "/files/grep",
            &json!({"pattern": "ANSWER", "ignore_case": true}),
        )
        .await?;
    same!(any.files.len(), 3);
    let bad = s
        .guest
        .post::<GrepResult>("/files/grep", &json!({"pattern": "("}))
        .await
        .err();
    same!(bad.map(|f| f.code), Some(Code::InvalidInput));
    Ok(())
}

pub(super) async fn edits_and_undo(s: &Subject) -> Outcome {
    let edit = |edit| EditRequest {
        root: "/workspace".into(),
        path: "t.txt".into(),
        edit,
        mode: None,
    };
    let call = async |change| -> Result<EditResult, Wrong> {
        Ok(s.guest.post("/files/edit", &edit(change)).await?)
    };
    call(Edit::Create {
        text: "a\nb\nc\n".into(),
    })
    .await?;
    let done = call(Edit::StrReplace {
        old: "b".into(),
        new: "B".into(),
        all: false,
    })
    .await?;
    let hunk = done.hunk.ok_or_else(|| Wrong("no hunk".into()))?;
    same!(
        (
            hunk.old_start,
            hunk.old_lines,
            hunk.new_start,
            hunk.new_lines
        ),
        (2, 1, 2, 1)
    );
    same!(hunk.lines, ["-b", "+B"]);
    call(Edit::Insert {
        after: 0,
        text: "top".into(),
    })
    .await?;
    call(Edit::ReplaceLines {
        from: 4,
        to: 4,
        text: "C".into(),
    })
    .await?;
    let diff = "--- t.txt\n+++ t.txt\n@@ -1,2 +1,2 @@\n-top\n+TOP\n a\n";
    call(Edit::Patch { diff: diff.into() }).await?;
    same!(read(s, "t.txt").await?, "TOP\na\nB\nC\n");
    for wanted in ["top\na\nB\nC\n", "top\na\nB\nc\n", "a\nB\nc\n", "a\nb\nc\n"] {
        call(Edit::Undo).await?;
        same!(read(s, "t.txt").await?, wanted);
    }
    call(Edit::Undo).await?;
    holds!(read(s, "t.txt").await.is_err());
    holds!(
        call(Edit::Undo)
            .await
            .err()
            .is_some_and(|w| w.0.contains("no edits to undo"))
    );
    write(s, "t.txt", "x x\n").await?;
    let twice = call(Edit::StrReplace {
        old: "x".into(),
        new: "y".into(),
        all: false,
    })
    .await;
    holds!(twice.err().is_some_and(|w| w.0.contains("must be unique")));
    Ok(())
}

pub(super) async fn paths_stay_below_their_root(s: &Subject) -> Outcome {
    s.shell("ln -s /etc/passwd link; ln -s / all; ln -s /proc/self/root proc")
        .await?;
    for path in [
        "../etc/passwd",
        "link",
        "all/etc/passwd",
        "proc/etc/passwd",
        "/etc/passwd",
    ] {
        let failure = s.guest.read(&ReadQuery::new(path)).await.err();
        same!(
            (path, failure.map(|f| f.code)),
            (path, Some(Code::Forbidden))
        );
        let failure = s.guest.write(&WriteQuery::new(path), "x").await.err();
        same!(
            (path, failure.map(|f| f.code)),
            (path, Some(Code::Forbidden))
        );
    }
    // The control: a caller that chose the whole sandbox as its root reads it.
    let whole = ReadQuery {
        root: "/".into(),
        ..ReadQuery::new("/etc/passwd")
    };
    holds!(!s.guest.read(&whole).await?.is_empty());
    for bad in ["", "a\0b", &"x".repeat(5000)] {
        let failure = s.guest.read(&ReadQuery::new(bad)).await.err();
        holds!(
            failure.is_some_and(|f| f.code == Code::InvalidInput),
            bad.len()
        );
    }
    Ok(())
}

pub(super) async fn jobs_say_what_they_changed(s: &Subject) -> Outcome {
    let names = |end: &JobEnd| -> Vec<String> {
        let sized = end.changed.iter().map(|e| format!("{} {}", e.path, e.size));
        sized.collect()
    };
    s.shell("echo old > old; echo same > same; mkdir folder")
        .await?;
    let mut request = ExecRequest::new(Command::Shell(
        "echo more >> old; echo new > new; echo x > .hidden; echo x > folder/file; ln -s old link"
            .into(),
    ));
    same!(s.guest.exec(&request).await?.end.changed.len(), 0);
    request.report_files = true;
    same!(
        names(&s.guest.exec(&request).await?.end),
        ["new 4", "old 14"]
    );
    // One write after another, as fast as calls go.
    for text in ["1", "2", "3", "4"] {
        let request = RunRequest {
            code: format!("n = open('out.txt', 'w').write('{text}')"),
            report_files: true,
            ..RunRequest::default()
        };
        same!(
            (text, names(&s.guest.run("main", &request).await?.end)),
            (text, vec!["out.txt 1".to_owned()])
        );
    }
    // The event that ends a stream says it too, also after a timeout.
    let request = RunRequest {
        code: "open('late', 'w').close()\nwhile True: pass".into(),
        timeout_ms: Some(500),
        report_files: true,
        ..RunRequest::default()
    };
    let mut events = s.guest.run_events("main", &request).await?;
    let mut changed = Vec::new();
    while let Some(event) = events.next().await {
        if let Event::End(end) = event? {
            changed = names(&end);
        }
    }
    same!(changed, ["late 0"]);
    Ok(())
}
