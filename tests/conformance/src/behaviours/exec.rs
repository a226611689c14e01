use crate::{Outcome, Subject, Wrong, holds, same};
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::Method;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use ringfence_core::guest::{Body, full, with_query};
use ringfence_core::proto::{
    Blob, Cause, Command, Event, ExecRequest, Exit, JobInfo, JobState, OnDisconnect, PtySize,
    ReadQuery, SignalRequest, Stdin,
};
use ringfence_core::{Code, GuestClient};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn shell(text: &str) -> ExecRequest {
    ExecRequest::new(Command::Shell(text.to_owned()))
}

pub(super) async fn runs_argv_and_shell(s: &Subject) -> Outcome {
    let done = s.exec(&["echo", "a  b", "$HOME"]).await?;
    same!(done.stdout.data.text(), "a  b $HOME\n");
    same!(done.end.exit, Exit::Code(0));
    let done = s
        .shell("for i in 1 2; do echo $((i * 2)); done; echo oops >&2")
        .await?;
    same!(done.stdout.data.text(), "2\n4\n");
    same!(done.stderr.data.text(), "oops\n");
    holds!(done.end.shell.is_some_and(|s| s.ends_with("sh")));
    holds!(done.end.peak_memory > 0);
    Ok(())
}

pub(super) async fn env_and_cwd(s: &Subject) -> Outcome {
    let mut request = shell("echo $A-$B; pwd");
    request.env.insert("A".into(), "one".into());
    request.env.insert("B".into(), "zwei ü".into());
    request.cwd = Some("/tmp".into());
    same!(
        s.guest.exec(&request).await?.stdout.data.text(),
        "one-zwei ü\n/tmp\n"
    );
    let started = s.exec(&["pwd"]).await?.stdout.data.text().into_owned();
    holds!(
        s.exec(&["test", "-w", started.trim()]).await?.end.exit == Exit::Code(0),
        started
    );
    request.cwd = Some("/no/such/folder".into());
    let failure = s.guest.exec(&request).await.err();
    holds!(failure.is_some_and(|f| f.message.contains("/no/such/folder")));
    Ok(())
}

pub(super) async fn standard_input(s: &Subject) -> Outcome {
    let mut request = ExecRequest::new(Command::Argv(vec!["cat".into()]));
    same!(s.guest.exec(&request).await?.stdout.total, 0);
    request.stdin = Stdin::Bytes(Blob(vec![0, 255, 10, 7]));
    same!(
        s.guest.exec(&request).await?.stdout.data.0,
        vec![0, 255, 10, 7]
    );
    // More than a pipe holds, both ways.
    let much = vec![b'x'; 1 << 20];
    request.stdin = Stdin::Bytes(Blob(much.clone()));
    request.output_limit = Some(2 << 20);
    same!(
        s.guest.exec(&request).await?.stdout.data.0.len(),
        much.len()
    );
    // A command that does not read its input is no failure.
    let mut request = shell("exit 3");
    request.stdin = Stdin::Bytes(Blob(much));
    same!(s.guest.exec(&request).await?.end.exit, Exit::Code(3));
    Ok(())
}

pub(super) async fn streamed_input(s: &Subject) -> Outcome {
    let mut request = shell("read a; echo got $a; cat");
    request.stdin = Stdin::Stream;
    let job = s.guest.start(&request).await?;
    let path = format!("/jobs/{}/stdin", job.id);
    s.guest
        .stream(Method::POST, &path, full(Bytes::from_static(b"one\ntwo\n")))
        .await?;
    ended(&s.guest, &job.id).await?;
    let result: ringfence_core::proto::ExecResult = s
        .guest
        .get(&format!("/jobs/{}/result", job.id), &())
        .await?;
    same!(result.stdout.data.text(), "got one\ntwo\n");
    Ok(())
}

/// How many at a time: far more than the windows of a connection once held.
const MANY: usize = 64;

/// 8 MB in pieces; the counter says how many of them were taken.
fn counted(taken: &Arc<AtomicUsize>) -> Body {
    let taken = Arc::clone(taken);
    let piece = Bytes::from(vec![b'x'; 64 << 10]);
    let pieces = futures_util::stream::iter(0..128).map(move |_| {
        taken.fetch_add(1, Ordering::Relaxed);
        Ok(hyper::body::Frame::data(piece.clone()))
    });
    UnsyncBoxBody::new(StreamBody::new(pieces))
}

pub(super) async fn unread_input_blocks_nobody(s: &Subject) -> Outcome {
    let mut sleep = ExecRequest::new(Command::Argv(vec!["sleep".into(), "1000".into()]));
    sleep.stdin = Stdin::Stream;
    let mut terminal = shell("stty raw; sleep 1000");
    terminal.pty = Some(PtySize { rows: 9, cols: 9 });
    let mut writers = Vec::new();
    for n in 0..MANY {
        let (request, route) = match n % 8 {
            0 => (&terminal, "attach"),
            _ => (&sleep, "stdin"),
        };
        let path = format!("/jobs/{}/{route}", s.guest.start(request).await?.id);
        let (guest, taken) = (s.guest.clone(), Arc::new(AtomicUsize::new(0)));
        let body = counted(&taken);
        let writer = async move {
            let answer = guest.stream(Method::POST, &path, body).await;
            // The answer of an attached terminal is held until the end.
            std::future::pending::<()>().await;
            drop(answer);
        };
        writers.push((tokio::spawn(writer), taken));
    }
    // Each of them has filled its pipe and then some.
    for _ in 0..1000 {
        let full = |(_, taken): &(_, Arc<AtomicUsize>)| taken.load(Ordering::Relaxed) >= 4;
        if writers.iter().all(full) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let counts = writers
        .iter()
        .map(|(_, taken)| taken.load(Ordering::Relaxed));
    let counts: Vec<usize> = counts.collect();
    holds!(counts.iter().all(|n| (4..100).contains(n)), counts);
    // On the same connection, with a body that is larger than any window.
    let mut cat = ExecRequest::new(Command::Argv(vec!["cat".into()]));
    cat.stdin = Stdin::Bytes(Blob(vec![b'x'; 4 << 20]));
    cat.timeout_ms = Some(20_000);
    same!(s.guest.exec(&cat).await?.stdout.total, 4 << 20);
    for (writer, _) in writers {
        writer.abort();
    }
    Ok(())
}

pub(super) async fn unread_output_blocks_nobody(s: &Subject) -> Outcome {
    s.shell("head -c 2000000 /dev/zero > file").await?;
    let file = with_query("/files/content", &ReadQuery::new("file"))?;
    let mut unread = Vec::new();
    for n in 0..MANY {
        if n % 8 == 0 {
            let text = "head -c 2000000 /dev/zero; sleep 1000";
            let events = s.guest.exec_events(&shell(text)).await?;
            unread.push((Some(events), None));
        } else {
            let answer = s.guest.stream(Method::GET, &file, full(Bytes::new()));
            unread.push((None, Some(answer.await?)));
        }
    }
    let mut request = shell("head -c 3000000 /dev/zero");
    request.output_limit = Some(4 << 20);
    request.timeout_ms = Some(20_000);
    same!(s.guest.exec(&request).await?.stdout.data.0.len(), 3_000_000);
    // What was not read is still there.
    for answer in unread.into_iter().filter_map(|(_, answer)| answer) {
        let bytes = answer.into_body().collect().await;
        let bytes = bytes.map_err(|e| Wrong(e.to_string()))?.to_bytes();
        same!(bytes.len(), 2_000_000);
    }
    Ok(())
}

pub(super) async fn exit_codes_and_signals(s: &Subject) -> Outcome {
    for code in [0, 1, 42, 255] {
        same!(
            s.shell(&format!("exit {code}")).await?.end.exit,
            Exit::Code(code)
        );
    }
    let done = s.shell("kill -TERM $$").await?;
    same!(done.end.exit, Exit::Signal(15));
    same!(done.end.certificate.map(|c| c.cause), Some(Cause::Killed));
    let done = s.shell("kill -SEGV $$").await?;
    same!(done.end.certificate.map(|c| c.cause), Some(Cause::Crashed));
    holds!(s.exec(&["true"]).await?.end.certificate.is_none());
    Ok(())
}

pub(super) async fn bytes_survive(s: &Subject) -> Outcome {
    let done = s.shell(r"printf '\377\000\001a'").await?;
    same!(done.stdout.data.0, vec![255, 0, 1, b'a']);
    Ok(())
}

pub(super) async fn output_is_cut_and_counted(s: &Subject) -> Outcome {
    let mut request = shell("head -c 5000000 /dev/zero; echo end >&2");
    request.output_limit = Some(1000);
    let done = s.guest.exec(&request).await?;
    same!(done.stdout.data.0.len(), 1000);
    same!(done.stdout.total, 5_000_000);
    same!(done.stderr.data.text(), "end\n");
    same!(done.end.exit, Exit::Code(0));
    same!(done.end.certificate.map(|c| c.cause), Some(Cause::Output));
    Ok(())
}

pub(super) async fn events_have_offsets(s: &Subject) -> Outcome {
    let mut events = s
        .guest
        .exec_events(&shell("echo abc; sleep 0.05; echo de; echo x >&2"))
        .await?;
    let (mut out, mut err, mut end) = (Vec::new(), Vec::new(), None);
    while let Some(event) = events.next().await {
        match event? {
            Event::Stdout { offset, data } => {
                same!(offset, out.len() as u64);
                out.extend(data.0);
            }
            Event::Stderr { offset, data } => {
                same!(offset, err.len() as u64);
                err.extend(data.0);
            }
            Event::End(job) => end = Some(job.exit),
            _ => {}
        }
    }
    same!(
        (out.as_slice(), err.as_slice()),
        (b"abc\nde\n".as_slice(), b"x\n".as_slice())
    );
    same!(end, Some(Exit::Code(0)));
    Ok(())
}

pub(super) async fn shell_says_where_it_ended(s: &Subject) -> Outcome {
    same!(
        s.shell("cd /usr; exit 4").await?.end.cwd,
        Some("/usr".to_owned())
    );
    same!(
        s.shell("cd /usr/bin && true").await?.end.cwd,
        Some("/usr/bin".to_owned())
    );
    same!(
        s.shell("cd /tmp # and a comment").await?.end.exit,
        Exit::Code(0)
    );
    Ok(())
}

pub(super) async fn missing_programs_are_named(s: &Subject) -> Outcome {
    let request = ExecRequest::new(Command::Argv(vec!["no-such-program".into()]));
    match s.guest.exec(&request).await {
        Err(f) => {
            same!(f.code, Code::Missing);
            holds!(f.message.contains("no-such-program"), f.message);
        }
        Ok(done) => return Err(Wrong(format!("it ran: {done:?}"))),
    }
    Ok(())
}

/// A tree with everything that is hard to kill, which says when it stands.
const TREE: &str = r#"
trap '' TERM HUP INT
(setsid sh -c 'trap "" TERM; sleep MARK' &)
sh -c '(sh -c "trap \"\" TERM; setsid sleep MARK" &) ' &
nohup sleep MARK >/dev/null 2>&1 &
echo stands
sleep MARK
"#;

/// How many processes have this number among their arguments. The search itself has another text.
async fn marked(s: &Subject, mark: u32) -> Result<usize, Wrong> {
    let text = mark.to_string();
    let pattern = format!("[{}]{}", &text[..1], &text[1..]);
    let count =
        format!("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cx '{pattern}'");
    let text = s.shell(&count).await?.stdout.data.text().trim().to_owned();
    text.parse()
        .map_err(|_| Wrong(format!("not a number: {text}")))
}

async fn until_marked(s: &Subject, mark: u32, wanted: usize) -> Outcome {
    // The last of the tree appear a moment after it says that it stands.
    for _ in 0..500 {
        if marked(s, mark).await? == wanted {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    Err(Wrong(format!(
        "{} processes are left, not {wanted}",
        marked(s, mark).await?
    )))
}

pub(super) async fn timeout_kills_the_whole_tree(s: &Subject) -> Outcome {
    let (mark, other) = (
        700_001 + std::process::id() % 1000,
        800_001 + std::process::id() % 1000,
    );
    let bystander = s.guest.start(&shell(&format!("sleep {other}"))).await?;
    let mut request = shell(&TREE.replace("MARK", &mark.to_string()));
    request.timeout_ms = Some(1500);
    let done = s.guest.exec(&request).await?;
    same!(done.stdout.data.text(), "stands\n");
    let certificate = done
        .end
        .certificate
        .ok_or_else(|| Wrong("no certificate".into()))?;
    same!(certificate.cause, Cause::WallClock);
    same!(certificate.limit.as_deref(), Some("1.5 s"));
    holds!(certificate.survived.files);
    same!(marked(s, mark).await?, 0);
    same!(marked(s, other).await?, 1);
    s.guest
        .tell(Method::DELETE, &format!("/jobs/{}", bystander.id), &())
        .await?;
    same!(marked(s, other).await?, 0);
    Ok(())
}

pub(super) async fn cancel_kills_the_whole_tree(s: &Subject) -> Outcome {
    let mark = 710_001 + std::process::id() % 1000;
    let request = shell(&TREE.replace("MARK", &mark.to_string()));
    // A connection of its own goes away in the middle.
    let own = GuestClient::connect(s.backend.dial(&s.plan.id).await?).await?;
    let mut events = own.exec_events(&request).await?;
    while let Some(event) = events.next().await {
        if let Event::Stdout { .. } = event? {
            break;
        }
    }
    until_marked(s, mark, 4).await?;
    drop((events, own));
    until_marked(s, mark, 0).await?;

    // One that is to be kept goes on.
    let mut request = shell("echo stands; sleep 0.2; echo done");
    request.on_disconnect = OnDisconnect::Keep;
    request.id = Some("kept".into());
    let own = GuestClient::connect(s.backend.dial(&s.plan.id).await?).await?;
    let mut events = own.exec_events(&request).await?;
    holds!(events.next().await.is_some());
    drop((events, own));
    ended(&s.guest, "kept").await?;
    let result: ringfence_core::proto::ExecResult = s.guest.get("/jobs/kept/result", &()).await?;
    same!(result.stdout.data.text(), "stands\ndone\n");
    Ok(())
}

async fn ended(guest: &GuestClient, id: &str) -> Result<JobInfo, Wrong> {
    let info: JobInfo = guest
        .get(&format!("/jobs/{id}/wait"), &[("timeout_ms", 30_000)])
        .await?;
    match info.state {
        JobState::Ended(_) => Ok(info),
        JobState::Running => Err(Wrong(format!("job {id} does not end"))),
    }
}

pub(super) async fn background_jobs(s: &Subject) -> Outcome {
    // Not by a shell, which may be anywhere between its commands when the signal comes.
    let sleep = ExecRequest::new(Command::Argv(vec!["sleep".into(), "30".into()]));
    let job = s.guest.start(&sleep).await?;
    let jobs: Vec<JobInfo> = s.guest.get("/jobs", &()).await?;
    same!(jobs.iter().filter(|j| j.id == job.id).count(), 1);
    let info: JobInfo = s.guest.get(&format!("/jobs/{}", job.id), &()).await?;
    same!(info.state, JobState::Running);
    let signal = SignalRequest {
        signal: "TERM".into(),
        all: true,
    };
    s.guest
        .tell(Method::POST, &format!("/jobs/{}/signal", job.id), &signal)
        .await?;
    ended(&s.guest, &job.id).await?;
    s.guest
        .tell(Method::DELETE, &format!("/jobs/{}", job.id), &())
        .await?;
    let gone = s
        .guest
        .get::<JobInfo>(&format!("/jobs/{}", job.id), &())
        .await
        .err();
    same!(gone.map(|f| f.code), Some(Code::NotFound));
    Ok(())
}

pub(super) async fn terminal(s: &Subject) -> Outcome {
    let mut request = shell("test -t 0 && test -t 1 && stty size && read a && echo got:$a");
    request.pty = Some(PtySize { rows: 31, cols: 77 });
    let job = s.guest.start(&request).await?;
    let path = format!("/jobs/{}/attach", job.id);
    let response = s
        .guest
        .stream(Method::POST, &path, full(Bytes::from_static(b"ab\n")))
        .await?;
    let output = http_body_util::BodyExt::collect(response.into_body())
        .await
        .map_err(|e| Wrong(e.to_string()))?
        .to_bytes();
    let text = String::from_utf8_lossy(&output).into_owned();
    holds!(text.contains("31 77") && text.contains("got:ab"), text);
    Ok(())
}

pub(super) async fn bad_requests(s: &Subject) -> Outcome {
    let bad = [
        json!({}),
        json!({"command": {"argv": []}}),
        json!({"command": {"argv": ["a\u{0}b"]}}),
        json!({"command": {"argv": "true"}}),
        json!({"command": {"shell": 3}}),
        json!({"command": {"argv": ["true"]}, "timeout_ms": 0}),
        json!({"command": {"argv": ["true"]}, "timeout_ms": -1}),
        json!({"command": {"argv": ["true"]}, "unknown": 1}),
        json!({"command": {"argv": ["true"]}, "env": {"A=B": "c"}}),
        json!({"command": {"argv": ["true"]}, "id": "../x"}),
        json!({"command": {"argv": ["x".repeat(3 << 20)]}}),
    ];
    for body in bad {
        let failure = s
            .guest
            .post::<serde_json::Value>("/exec", &body)
            .await
            .err();
        let shown = body.to_string().chars().take(80).collect::<String>();
        same!(
            (failure.map(|f| f.code), &shown),
            (Some(Code::InvalidInput), &shown)
        );
    }
    let lost = s
        .guest
        .get::<serde_json::Value>("/no/such/route", &())
        .await
        .err();
    same!(lost.map(|f| f.code), Some(Code::NotFound));
    same!(s.exec(&["true"]).await?.end.exit, Exit::Code(0));
    Ok(())
}
