use super::Bench;
use ringfence_http_tests::Outcome;
use serde_json::json;

#[tokio::test]
async fn shell() -> Outcome {
    let axio = Bench::new("axio").await?;
    assert_eq!(
        axio.text("shell", json!({"command": "echo hi"})).await?,
        "hi"
    );
    assert_eq!(
        axio.text("shell", json!({"command": "true"})).await?,
        "(no output)"
    );
    assert_eq!(
        axio.text(
            "shell",
            json!({"command": "echo out; echo err >&2; exit 3"})
        )
        .await?,
        "out\n\n[stderr]\nerr\n\n[exit code: 3]"
    );
    assert_eq!(
        axio.text(
            "shell",
            json!({"command": "cat; pwd", "stdin": "in\n", "cwd": "/tmp"})
        )
        .await?,
        "in\n/tmp"
    );
    assert_eq!(
        axio.text("shell", json!({"command": "kill -9 $$"})).await?,
        "[exit code: 137]"
    );
    assert_eq!(
        axio.text("shell", json!({"command": "pwd", "cwd": "a'b", "more": 1}))
            .await?,
        "[stderr]\n/bin/sh: 1: cd: can't cd to /workspace/a'b\n\n[exit code: 2]"
    );
    assert_eq!(
        axio.text(
            "shell",
            json!({"command": "echo x; sleep 60", "timeout": 0.5})
        )
        .await?,
        "[timeout after 0.5s]"
    );
    let long = axio
        .text(
            "shell",
            json!({"command": "yes | head -c 3000000", "timeout": 60}),
        )
        .await?;
    assert!(
        long.contains(
            "\n[1941424 bytes left out: write long output to a file and read parts of it]\n"
        ),
        "{}",
        long.len()
    );
    let missing = "is missing: it must be a string";
    axio.refused("shell", json!({}), "command", missing).await?;
    axio.refused(
        "shell",
        json!({"command": "true", "timeout": "x"}),
        "timeout",
        "must be a number of seconds above 0 and up to 86400, not \"x\"",
    )
    .await?;
    axio.refused(
        "shell",
        json!({"command": "echo \u{0}"}),
        "command",
        "must have no null bytes",
    )
    .await
}

#[tokio::test]
async fn run_python() -> Outcome {
    let axio = Bench::new("axio").await?;
    assert_eq!(
        axio.text(
            "run_python",
            json!({"code": "import os\nprint(input(), os.getcwd())", "stdin": "hello", "cwd": "/tmp"})
        )
        .await?,
        "hello /tmp"
    );
    let failed = axio.text("run_python", json!({"code": "1/0"})).await?;
    assert!(
        failed.starts_with("[stderr]\nTraceback (most recent call last):\n  File \"/tmp/.axio_"),
        "{failed}"
    );
    assert!(
        failed.ends_with("ZeroDivisionError: division by zero\n\n[exit code: 1]"),
        "{failed}"
    );
    assert_eq!(
        axio.text(
            "run_python",
            json!({"code": "while True: pass", "timeout": 1})
        )
        .await?,
        "[timeout after 1s]"
    );
    // What was written for the run is gone.
    assert_eq!(
        axio.text(
            "shell",
            json!({"command": "ls -A /tmp | grep -v axio_.*py || true"})
        )
        .await?,
        "(no output)"
    );
    axio.refused(
        "run_python",
        json!({"code": ["x"]}),
        "code",
        "must be a string, not a list",
    )
    .await
}

#[tokio::test]
async fn files_are_written_read_and_patched() -> Outcome {
    let axio = Bench::new("axio").await?;
    let text = "one\ntwo\nthree\n";
    assert_eq!(
        axio.text(
            "write_file",
            json!({"file_path": "a/b.txt", "content": text})
        )
        .await?,
        "Wrote 14 bytes to /workspace/a/b.txt"
    );
    // The name of newer clients.
    assert_eq!(
        axio.text(
            "write_file",
            json!({"path": "/tmp/é", "content": "é", "mode": 0o600})
        )
        .await?,
        "Wrote 2 bytes to /tmp/é"
    );
    assert_eq!(
        axio.text("shell", json!({"command": "stat -c %a /tmp/é a/b.txt"}))
            .await?,
        "600\n644"
    );
    assert_eq!(
        axio.error("write_file", json!({"file_path": "a", "content": ""}))
            .await?,
        "Error: cannot write /workspace/a: it is a folder"
    );
    let read = |arguments| axio.text("read_file", arguments);
    assert_eq!(read(json!({"filename": "a/b.txt"})).await?, text);
    assert_eq!(
        read(json!({"path": "a/b.txt", "start_line": 2, "end_line": 3, "line_numbers": true}))
            .await?,
        "2\ttwo\n3\tthree\n"
    );
    assert_eq!(
        read(json!({"filename": "a/b.txt", "max_chars": 5})).await?,
        "one\nt\n...[truncated]"
    );
    assert_eq!(
        read(json!({"filename": "a/b.txt", "start_line": 9})).await?,
        ""
    );
    axio.text("shell", json!({"command": "printf '\\377\\001' > bin"}))
        .await?;
    assert_eq!(
        read(json!({"filename": "bin"})).await?,
        "Encoded binary data HEX: ff01"
    );
    assert_eq!(
        axio.error(
            "read_file",
            json!({"filename": "bin", "binary_as_hex": false})
        )
        .await?,
        "Error: /workspace/bin is not UTF-8 text"
    );
    assert_eq!(
        axio.error("read_file", json!({"filename": "nope"})).await?,
        "Error: cannot read /workspace/nope: not found"
    );
    let patch = |from: i64, to: i64, content: &str| {
        let patch =
            json!({"file_path": "a/b.txt", "from_line": from, "to_line": to, "content": content});
        axio.text("patch_file", patch)
    };
    assert_eq!(
        patch(2, 2, "2a\n2b").await?,
        "4 lines written to /workspace/a/b.txt"
    );
    assert_eq!(
        patch(1, 0, "top").await?,
        "5 lines written to /workspace/a/b.txt"
    );
    assert_eq!(
        read(json!({"filename": "a/b.txt"})).await?,
        "top\none\n2a\n2b\nthree\n"
    );
    assert_eq!(
        axio.error(
            "patch_file",
            json!({"file_path": "a/b.txt", "from_line": 9, "to_line": 9, "content": ""})
        )
        .await?,
        "Error: cannot edit /workspace/a/b.txt: line 9 is out of range, it has 5 lines"
    );
    axio.refused(
        "patch_file",
        json!({"file_path": "a/b.txt", "from_line": 3, "to_line": 1, "content": ""}),
        "to_line",
        "must be at least from_line - 1, which is 2",
    )
    .await?;
    axio.refused(
        "patch_file",
        json!({"file_path": "a/b.txt", "from_line": 0, "to_line": 1, "content": ""}),
        "from_line",
        "must be a whole number of at least 1, not 0",
    )
    .await?;
    axio.refused(
        "write_file",
        json!({"file_path": "x", "content": "", "mode": 4096}),
        "mode",
        "must be a whole number from 0 to 4095, not 4096",
    )
    .await?;
    axio.refused(
        "read_file",
        json!({"filename": "x", "line_numbers": "yes"}),
        "line_numbers",
        "must be true or false, not \"yes\"",
    )
    .await
}

#[tokio::test]
async fn list_files() -> Outcome {
    let axio = Bench::new("axio").await?;
    assert_eq!(
        axio.text("list_files", json!({})).await?,
        "(empty directory)"
    );
    let make = "mkdir -m 755 z && printf 12345 > a && chmod 640 a && ln -s a link \
        && TZ=UTC touch -h -d '2026-03-01 13:05:59' z a link";
    axio.text("shell", json!({"command": make})).await?;
    assert_eq!(
        axio.text("list_files", json!({"directory": "."})).await?,
        "drwxr-xr-x        0 Mar 01 13:05 z/\n\
         -rw-r-----        5 Mar 01 13:05 a\n\
         lrwxrwxrwx        0 Mar 01 13:05 link"
    );
    assert_eq!(
        axio.error("list_files", json!({"directory": "nope"}))
            .await?,
        "Error: cannot list /workspace/nope: not found"
    );
    axio.refused(
        "list_files",
        json!({"directory": 1}),
        "directory",
        "must be a string, not 1",
    )
    .await
}
