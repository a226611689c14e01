//! Commands: what they get, what comes back.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]
mod support;

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use ringfence_proto::{Cause, Code, Ended, Event, Exit};
use serde_json::{Value, json};
use std::time::Duration;
use support::{Guest, full};

#[tokio::test]
async fn a_program_gets_its_arguments_as_they_are() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let result = client
        .exec(json!({"command": {"argv": ["printf", "%s|", "a b", "", "$HOME", "é\n"]}}))
        .await;
    assert_eq!(result.stdout.data.text(), "a b||$HOME|é\n|");
    assert_eq!(result.stdout.total, 13 + 2);
    assert_eq!(result.end.exit, Exit::Code(0));
    assert_eq!(result.end.certificate, None);
    assert_eq!(result.end.cwd, None);
    assert!(result.end.peak_memory > 0);
}

#[tokio::test]
async fn environment_is_the_guests_and_the_requests() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let result = client
        .exec(json!({"command": {"argv": ["env"]}, "env": {"A": "1=2", "B": ""}}))
        .await;
    let text = result.stdout.data.text().into_owned();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(lines[..2], ["A=1=2", "B="]);
    assert!(lines[2].starts_with("PATH="));
    // The request's search path counts, also for finding the program.
    let failure = client
        .refused(json!({"command": {"argv": ["env"]}, "env": {"PATH": "/nowhere"}}))
        .await;
    assert_eq!(failure.code, Code::Missing);
}

#[tokio::test]
async fn nothing_is_inherited_but_standard_streams() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    // `ls` itself opens one more for the folder it lists.
    let result = client
        .exec(json!({"command": {"argv": ["ls", "/proc/self/fd"]}}))
        .await;
    assert_eq!(result.stdout.data.text(), "0\n1\n2\n3\n");
    let result = client
        .exec(json!({"command": {"argv": ["grep", "-E", "^(SigBlk|SigIgn)", "/proc/self/status"]}}))
        .await;
    for line in result.stdout.data.text().lines() {
        assert!(line.ends_with("0000000000000000"), "{line}");
    }
    // As soon as it runs.
    let wait = "until grep -qx 500 /proc/$$/oom_score_adj; do sleep 0.01; done; echo raised";
    let result = client
        .exec(json!({"command": {"sh": wait}, "timeout_ms": 60_000}))
        .await;
    assert_eq!(result.stdout.data.text(), "raised\n");
}

#[tokio::test]
async fn standard_input() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let result = client.exec(json!({"command": {"argv": ["cat"]}})).await;
    assert_eq!((result.end.exit, result.stdout.total), (Exit::Code(0), 0));
    let result = client
        .exec(json!({"command": {"argv": ["cat"]}, "stdin": {"bytes": {"base64": "/wD+"}}}))
        .await;
    assert_eq!(result.stdout.data.0, [0xff, 0, 0xfe]);
    // More than a pipe holds, both ways at once.
    let long = "0123456789abcde\n".repeat(100_000);
    let result = client
        .exec(json!({"command": {"argv": ["cat"]}, "stdin": {"bytes": long}, "output_limit": 4_000_000}))
        .await;
    assert!(result.stdout.data.text() == long);
    // A command that does not read is no failure.
    let result = client
        .exec(json!({"command": {"argv": ["true"]}, "stdin": {"bytes": long}}))
        .await;
    assert_eq!(result.end.exit, Exit::Code(0));
}

#[tokio::test]
async fn streamed_input_is_passed_on_as_it_comes() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let mut events = client
        .exec_events(json!({"command": {"argv": ["cat"]}, "stdin": "stream", "id": "cat"}))
        .await;
    assert_eq!(
        events.next().await,
        Some(Event::Started {
            id: "cat".into(),
            detached: false
        })
    );
    let (sender, body) = support::channel();
    let sending = client.send(Method::POST, "/jobs/cat/stdin", None, body);
    let talk = async {
        for (offset, word) in [(0, "one"), (3, "two")] {
            sender.send(Bytes::from(word)).await.unwrap();
            assert_eq!(
                events.next().await,
                Some(Event::Stdout {
                    offset,
                    data: word.into()
                })
            );
        }
        // A second writer is refused while the first is there.
        let failure = client
            .try_post("/jobs/cat/stdin", json!("x"))
            .await
            .unwrap_err();
        assert_eq!(failure.code, Code::Conflict);
        drop(sender);
        assert!(matches!(events.next().await, Some(Event::End(end)) if end.exit == Exit::Code(0)));
        assert_eq!(events.next().await, None);
    };
    let (response, ()) = tokio::join!(sending, talk);
    assert_eq!(response.status(), 204);
}

#[tokio::test]
async fn output_that_is_not_text_survives() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let result = client
        .exec(json!({"command": {"argv": ["printf", "\\377\\000\\303"]}}))
        .await;
    assert_eq!(result.stdout.data.0, [0xff, 0, 0xc3]);
    let events = client
        .exec_events(json!({"command": {"shell": "printf '\\303'; sleep 0.05; printf '\\251\\n'"}}))
        .await;
    let texts: Vec<_> = events
        .all()
        .await
        .into_iter()
        .filter_map(|event| match event {
            Event::Stdout { data, offset } => Some((offset, data)),
            _ => None,
        })
        .collect();
    assert_eq!(texts, [(0, "é\n".into())], "a character is not torn apart");
}

#[tokio::test]
async fn shell_strings_behave_as_in_the_shell() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let work = guest.workspace().canonicalize().unwrap();
    let work = work.to_str().unwrap();
    std::fs::create_dir(guest.workspace().join("sub")).unwrap();
    let sub = format!("{work}/sub");
    for (text, code, stdout, cwd) in [
        ("exit 3", 3, "", work),
        ("cd sub; exit 4", 4, "", sub.as_str()),
        ("cd sub && false", 1, "", sub.as_str()),
        ("echo hi # x", 0, "hi\n", work),
        ("cat <<E\na\nb\nE", 0, "a\nb\n", work),
        ("cat <<E\na\nE\ncd sub\n", 0, "a\n", sub.as_str()),
        ("exec sh -c 'exit 5'", 5, "", work),
        ("", 0, "", work),
        ("  \n ", 0, "", work),
        ("# only a comment", 0, "", work),
        ("(cd sub; exit 6)", 6, "", work),
        ("if", 2, "", work),
        ("echo 'open", 2, "", work),
        ("nosuchprogram-x", 127, "", work),
        ("set -e; false; echo no", 1, "", work),
        (
            "n=7; [ -z \"$BASH\" ] || n=198; eval \"exec $n>&-\"; echo quiet",
            0,
            "quiet\n",
            work,
        ),
        ("trap 'echo mine' EXIT; exit 7", 7, "mine\n", work),
        ("cd sub; rmdir ../sub; mkdir ../sub; exit 8", 8, "", work),
        ("kill -9 $$", -9, "", work),
        ("echo $0 $#", 0, "$0 0\n", work),
    ] {
        // Also as a text that is too long for an argument.
        let long = format!("{text}\n#{}", "x".repeat(200_000));
        let both = [("shell", "/bin/bash"), ("sh", "/bin/sh")];
        for ((kind, shell), run) in both.iter().flat_map(|kind| [(kind, text), (kind, &long)]) {
            let result = client.exec(json!({"command": {*kind: run}})).await;
            let exit = if code < 0 {
                Exit::Signal(-code)
            } else {
                Exit::Code(code)
            };
            assert_eq!(result.end.exit, exit, "{shell}: {text}");
            let expected = stdout.replace("$0", shell);
            assert_eq!(result.stdout.data.text(), expected, "{shell}: {text}");
            assert_eq!(result.end.shell.as_deref(), Some(*shell));
            if !text.contains("rmdir") {
                assert_eq!(result.end.cwd.as_deref(), Some(cwd), "{shell}: {text}");
            }
            if stdout == "quiet\n" {
                assert_eq!(result.stderr.data.text(), "", "{shell}");
            }
        }
    }
    let long = "#".repeat(200_000);
    for end in ["", &long] {
        let result = client.shell(&format!("x=1\nnosuchprogram-x {end}")).await;
        let words = result.stderr.data.text();
        assert!(words.contains("line 2:"), "{words}");
    }
    // Nothing of how it came there is passed on.
    for kind in ["shell", "sh"] {
        let text = format!("ls /proc/self/fd #{long}");
        let result = client.exec(json!({"command": {kind: text}})).await;
        let open = result.stdout.data.text();
        assert!(!open.lines().any(|fd| fd == "199" || fd == "8"), "{open}");
    }
}

#[tokio::test]
async fn a_folder_can_be_chosen() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    std::fs::create_dir(guest.workspace().join("a b")).unwrap();
    let pwd = json!({"argv": ["pwd"]});
    let result = client.exec(json!({"command": pwd, "cwd": "a b"})).await;
    assert!(result.stdout.data.text().ends_with("/work/a b\n"));
    let result = client.exec(json!({"command": pwd, "cwd": "/"})).await;
    assert_eq!(result.stdout.data.text(), "/\n");
    let failure = client.refused(json!({"command": pwd, "cwd": "none"})).await;
    assert_eq!(failure.code, Code::NotFound);
    assert!(failure.message.contains("none"), "{failure}");
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    std::fs::write(guest.workspace().join("plain"), "x").unwrap();
    let huge = "x".repeat(3 << 20);
    let long = "x".repeat(200_000);
    for (command, code) in [
        (json!({"argv": ["nosuchprogram-x"]}), Code::Missing),
        (json!({"argv": ["/none/x"]}), Code::Missing),
        (json!({"argv": ["./plain"]}), Code::Forbidden),
        (json!({"argv": ["/etc"]}), Code::Forbidden),
        (json!({"argv": []}), Code::InvalidInput),
        (json!({"argv": [""]}), Code::InvalidInput),
        (json!({"argv": ["echo", "a\0b"]}), Code::InvalidInput),
        (json!({"argv": ["echo", huge]}), Code::InvalidInput),
        (json!({"argv": ["echo", long]}), Code::InvalidInput),
        (json!({"shell": "echo a\0b"}), Code::InvalidInput),
        (
            json!({"shell": format!("echo a\0{long}")}),
            Code::InvalidInput,
        ),
        (json!({"argv": "echo"}), Code::InvalidInput),
        (json!({"python": "1"}), Code::InvalidInput),
        (json!(null), Code::InvalidInput),
    ] {
        let failure = client.refused(json!({"command": command})).await;
        assert_eq!(failure.code, code, "{failure}");
    }
    let good = json!({"argv": ["true"]});
    for extra in [
        json!({"env": {"": "x"}}),
        json!({"env": {"A=B": "x"}}),
        json!({"env": {"A\0": "x"}}),
        json!({"env": {"A": "x\0"}}),
        json!({"cwd": ""}),
        json!({"cwd": "a\0"}),
        json!({"timeout_ms": 0}),
        json!({"timeout_ms": 86_400_001}),
        json!({"timeout_ms": -1}),
        json!({"output_limit": 67_108_865}),
        json!({"id": ""}),
        json!({"id": "a/b"}),
        json!({"id": "x".repeat(65)}),
        json!({"limits": {"cpu_seconds": 0}}),
        json!({"limits": {"open_files": 1}}),
        json!({"pty": {"rows": 0, "cols": 1}}),
        json!({"pty": {"rows": 70_000, "cols": 1}}),
        json!({"unknown": 1}),
    ] {
        let mut request = extra.clone();
        request["command"] = good.clone();
        let failure = client.refused(request).await;
        assert_eq!(failure.code, Code::InvalidInput, "{extra}: {failure}");
    }
    for body in ["", "{", "[]", "\u{0}", "null"] {
        let response = client
            .send(Method::POST, "/exec", None, full(body.to_owned().into()))
            .await;
        assert_eq!(response.status(), 422, "{body:?}");
    }
    let response = client
        .send(
            Method::POST,
            "/exec",
            None,
            full(vec![b' '; 33 << 20].into()),
        )
        .await;
    assert_eq!(response.status(), 413);
    let jobs: Vec<Value> = client.get("/jobs").await;
    assert!(jobs.is_empty(), "what did not start is not kept: {jobs:?}");
}

#[tokio::test]
async fn output_over_the_limit_is_cut_and_counted() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let result = client
        .exec(json!({"command": {"shell": "printf 0123456789; printf abc >&2"}, "output_limit": 4}))
        .await;
    assert_eq!(result.stdout.data.text(), "0123");
    assert_eq!((result.stdout.total, result.end.stdout_bytes), (10, 10));
    assert_eq!(result.stderr.data.text(), "abc");
    let certificate = result.end.certificate.unwrap();
    assert_eq!(
        (certificate.cause, certificate.ended),
        (Cause::Output, Ended::Output)
    );
    assert_eq!(certificate.limit.as_deref(), Some("4 bytes"));
    assert_eq!(result.end.exit, Exit::Code(0));
}

#[tokio::test]
async fn a_flood_is_counted_and_takes_no_memory() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    client.shell("true").await;
    let before = support::private_memory(guest.pid());
    let result = client
        .exec(json!({"command": {"shell": "head -c 200000000 /dev/zero; printf x >&2"}, "output_limit": 100}))
        .await;
    assert_eq!(result.stdout.total, 200_000_000);
    assert_eq!(result.stdout.data.0, [0; 100]);
    assert_eq!(result.end.exit, Exit::Code(0));
    let grown = support::private_memory(guest.pid()).saturating_sub(before);
    assert!(grown < 4 << 20, "{grown} bytes");
}

#[tokio::test]
async fn a_reader_that_does_not_read_slows_nothing() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let mut events = client
        .exec_events(json!({"command": {"shell": "head -c 50000000 /dev/zero | tr '\\0' x; echo; echo done >&2"}, "id": "slow"}))
        .await;
    events.next().await.unwrap();
    let info = client.wait("slow").await;
    assert_eq!(info.stdout_bytes, 50_000_001);
    let (mut at, mut skipped) = (0, 0);
    while let Some(event) = events.next().await {
        match event {
            Event::Stdout { offset, data } => {
                assert_eq!(offset, at);
                at += data.len() as u64;
            }
            Event::Skipped { stream, from, to } => {
                assert_eq!((stream.as_str(), from), ("stdout", at));
                skipped += to - from;
                at = to;
            }
            _ => {}
        }
    }
    assert_eq!(at, 50_000_001);
    assert!(skipped > 0);
}

#[tokio::test]
async fn signals_and_limits_have_certificates() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    for (text, limits, cause, exit) in [
        ("kill -SEGV $$", json!({}), Cause::Crashed, Exit::Signal(11)),
        (
            "sh -c 'kill -ABRT $$'",
            json!({}),
            Cause::Crashed,
            Exit::Code(134),
        ),
        ("kill -TERM $$", json!({}), Cause::Killed, Exit::Signal(15)),
        (
            "exec head -c 100000 /dev/zero > big",
            json!({"file_size": 4096}),
            Cause::FileSize,
            Exit::Signal(25),
        ),
        (
            "while :; do :; done",
            json!({"cpu_seconds": 1}),
            Cause::Cpu,
            Exit::Signal(24),
        ),
        // Each of them stays below it, all together don't.
        (
            "while :; do timeout 0.6 sh -c 'while :; do :; done'; done",
            json!({"cpu_seconds": 1}),
            Cause::Cpu,
            Exit::Signal(9),
        ),
    ] {
        let result = client
            .exec(json!({"command": {"shell": text}, "limits": limits}))
            .await;
        assert_eq!(result.end.exit, exit, "{text}");
        let certificate = result.end.certificate.unwrap();
        assert_eq!(
            (certificate.cause, certificate.ended),
            (cause, Ended::Command),
            "{text}"
        );
        assert!(certificate.survived.files && !certificate.next.is_empty());
    }
    let result = client
        .exec(json!({"command": {"shell": "ulimit -n; ulimit -c"}, "limits": {"open_files": 64}}))
        .await;
    assert_eq!(result.stdout.data.text(), "64\n0\n");
}

#[tokio::test]
async fn the_kernels_oom_kill_is_told_from_others() {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    let events = tempfile::NamedTempFile::new().unwrap();
    writeln!(events.as_file(), "oom_kill 0").unwrap();
    let inherited = std::fs::File::open(events.path()).unwrap();
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
    let number = inherited.as_raw_fd().to_string();
    let guest = Guest::start_with(&["--oom-fd", &number, "--memory-limit", "268435456"]).await;
    let client = guest.connect().await;
    let result = client.shell("kill -9 $$").await;
    assert_eq!(result.end.certificate.unwrap().cause, Cause::Killed);
    let path = events.path().display();
    for text in [
        format!("printf 'oom_kill 1\\n' > {path}; kill -9 $$"),
        format!("printf 'oom_kill 2\\n' > {path}; sh -c 'kill -9 $$'; exit $?"),
    ] {
        let certificate = client.shell(&text).await.end.certificate.unwrap();
        assert_eq!(certificate.cause, Cause::Memory);
        assert_eq!(certificate.limit.as_deref(), Some("256 MiB"));
    }
}

#[tokio::test]
async fn usage_is_measured() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let result = client
        .shell("python3 -c 'x = bytearray(60_000_000)\nimport time\nt = time.process_time()\nwhile time.process_time() < t + 0.2: pass'")
        .await;
    assert_eq!(result.end.exit, Exit::Code(0), "{:?}", result.stderr);
    assert!(result.end.peak_memory > 60_000_000, "{:?}", result.end);
    assert!(
        result.end.cpu_ms >= 200 && result.end.duration_ms >= 200,
        "{:?}",
        result.end
    );
}

#[tokio::test]
async fn many_at_once() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let all = (0..100).map(|n| {
        let client = &client;
        async move {
            let result = client.shell(&format!("echo {n}; exit {n}")).await;
            assert_eq!(result.stdout.data.text(), format!("{n}\n"));
            assert_eq!(result.end.exit, Exit::Code(n));
        }
    });
    futures_util::future::join_all(all).await;
}

#[tokio::test]
async fn plain_http_and_standard_streams_work_too() {
    let guest = Guest::start().await;
    let stream = tokio::net::UnixStream::connect(guest.socket())
        .await
        .unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = http::Request::post("/exec")
        .header("host", "guest")
        .body(full(
            json!({"command": {"shell": "echo one"}}).to_string().into(),
        ))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("one\\n"));

    let work = tempfile::tempdir().unwrap();
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_ringfence-guest"))
        .args(["--stdio", "--workspace"])
        .arg(work.path())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let io = tokio::io::join(child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let (mut sender, connection) = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(io),
    )
    .await
    .unwrap();
    let task = tokio::spawn(connection);
    let request = http::Request::post("http://guest/exec")
        .body(full(
            json!({"command": {"shell": "echo two; sleep 987 &"}})
                .to_string()
                .into(),
        ))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("two\\n"));
    task.abort();
    drop(sender);
    let status = tokio::time::timeout(Duration::from_secs(20), child.wait())
        .await
        .unwrap();
    assert!(
        status.unwrap().success(),
        "the end of the stream is the end of the guest"
    );
}

#[tokio::test]
async fn a_listening_socket_is_inherited_and_not_passed_on() {
    use std::os::fd::AsRawFd as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outside");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    // One more that the guest does not know of.
    let stray = std::fs::File::open("/dev/null").unwrap();
    rustix::io::fcntl_setfd(&stray, rustix::io::FdFlags::empty()).unwrap();
    let number = listener.as_raw_fd().to_string();
    let guest = Guest::start_with(&["--listen-fd", &number, "--tcp", "127.0.0.1:0"]).await;
    let own = std::fs::read_dir(format!("/proc/{}/fd", guest.pid())).unwrap();
    let stray = stray.as_raw_fd().to_string();
    for fd in own
        .flatten()
        .filter(|fd| fd.file_name().to_str() == Some(&stray))
    {
        let what = std::fs::read_link(fd.path()).unwrap();
        assert_ne!(what.to_str(), Some("/dev/null"));
    }
    let stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(stream),
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    let request = http::Request::post("http://guest/exec")
        .body(full(
            json!({"command": {"argv": ["ls", "/proc/self/fd"]}})
                .to_string()
                .into(),
        ))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let result: ringfence_proto::ExecResult = serde_json::from_slice(&body).unwrap();
    assert_eq!(result.stdout.data.text(), "0\n1\n2\n3\n");
}
