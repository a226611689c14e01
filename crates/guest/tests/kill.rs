//! Killing: all of a command and nothing else.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]
mod support;

use ringfence_proto::{Cause, Event, Exit, JobInfo, JobState};
use serde_json::{Value, json};
use std::os::fd::AsRawFd as _;
use std::process::Command;
use support::{Client, Guest, marker, until, with_argument};
use tokio::io::AsyncWriteExt as _;

/// Starts a job that must survive whatever the test does to others.
async fn bystander(client: &Client) -> JobInfo {
    client
        .job(json!({"command": {"argv": ["cat"]}, "stdin": "stream", "id": "bystander"}))
        .await
}

async fn assert_alive(client: &Client) {
    let info: JobInfo = client.get("/jobs/bystander").await;
    assert_eq!(info.state, JobState::Running);
    client
        .send(
            http::Method::POST,
            "/jobs/bystander/stdin",
            None,
            support::full("ok".into()),
        )
        .await;
    assert_eq!(client.result("bystander").await.stdout.data.text(), "ok");
}

/// A shell string whose processes try everything to outlive it; each sleeps with the marker.
fn stubborn(mark: &str) -> String {
    format!(
        "trap '' TERM HUP INT
        sleep {mark} &
        setsid sleep {mark} &
        (setsid sh -c '(trap \"\" TERM; sleep {mark}; sleep {mark}) & exit 0' &)
        nohup setsid nohup sleep {mark} >/dev/null 2>&1 &
        python3 -c 'import os, signal
for s in range(1, 32):
    try: signal.signal(s, signal.SIG_IGN)
    except OSError: pass
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.execvp(\"sleep\", [\"sleep\", \"{mark}\"])'
        touch ready-{mark}
        sleep {mark}"
    )
}

#[tokio::test]
async fn a_timeout_kills_all_that_the_command_started() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    bystander(&client).await;
    let mark = marker();
    // The clock is long enough for all of them to be there; see the control below.
    let mut events = client
        .exec_events(json!({"command": {"shell": stubborn(&mark)}, "timeout_ms": 1500}))
        .await;
    let ready = guest.workspace().join(format!("ready-{mark}"));
    until("all of them run", || {
        ready.exists() && with_argument(&mark).len() == 6
    })
    .await;
    let end = loop {
        match events.next().await.unwrap() {
            Event::End(end) => break end,
            _ => continue,
        }
    };
    assert_eq!(
        with_argument(&mark),
        [] as [i32; 0],
        "gone when the answer comes"
    );
    assert_eq!(end.exit, Exit::Signal(9));
    let certificate = end.certificate.unwrap();
    assert_eq!(certificate.cause, Cause::WallClock);
    assert_eq!(certificate.limit.as_deref(), Some("1.5 s"));
    assert_alive(&client).await;
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_command() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    bystander(&client).await;
    for streamed in [false, true] {
        let mark = marker();
        let other = guest.connect().await;
        let request = json!({"command": {"shell": stubborn(&mark)}});
        let running = async {
            if streamed {
                other.exec_events(request).await.all().await;
            } else {
                other.exec(request).await;
            }
        };
        tokio::select! {
            () = running => panic!("it ended by itself"),
            () = until("all of them run", || with_argument(&mark).len() == 6) => {}
        }
        other.hang_up();
        until("all are gone", || with_argument(&mark).is_empty()).await;
    }
    // The same in plain HTTP, whose connection carries nothing else.
    let mark = marker();
    let mut plain = tokio::net::UnixStream::connect(guest.socket())
        .await
        .unwrap();
    let body = json!({"command": {"argv": ["sleep", &mark]}}).to_string();
    let head = format!(
        "POST /exec HTTP/1.1\r\nhost: g\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    plain
        .write_all(format!("{head}{body}").as_bytes())
        .await
        .unwrap();
    until("it runs", || with_argument(&mark).len() == 1).await;
    drop(plain);
    until("it is gone", || with_argument(&mark).is_empty()).await;

    // One stream of a connection that lives on.
    let mark = marker();
    let mut events = client
        .exec_events(json!({"command": {"argv": ["sleep", &mark]}}))
        .await;
    events.next().await.unwrap();
    until("it runs", || with_argument(&mark).len() == 1).await;
    drop(events);
    until("it is gone", || with_argument(&mark).is_empty()).await;
    assert_alive(&client).await;
}

#[tokio::test]
async fn a_command_can_outlive_its_client() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let mark = marker();
    let other = guest.connect().await;
    let request = json!({
        "command": {"shell": format!("while [ ! -e go ]; do sleep 0.01; done; echo {mark}")},
        "id": "kept",
        "on_disconnect": "keep",
    });
    let mut events = other.exec_events(request).await;
    events.next().await.unwrap();
    drop(events);
    other.hang_up();
    std::fs::write(guest.workspace().join("go"), "").unwrap();
    let result = client.result("kept").await;
    assert_eq!(result.stdout.data.text(), format!("{mark}\n"));
    // And an answer that was sent can be fetched again.
    let request =
        json!({"command": {"shell": "echo again"}, "id": "again", "on_disconnect": "keep"});
    client.exec(request).await;
    assert_eq!(client.result("again").await.stdout.data.text(), "again\n");
}

#[tokio::test]
async fn removing_a_job_kills_it() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    bystander(&client).await;
    let mark = marker();
    client
        .job(json!({"command": {"shell": stubborn(&mark)}, "id": "gone"}))
        .await;
    until("all of them run", || with_argument(&mark).len() == 6).await;
    assert_eq!(client.delete("gone").await, 204);
    assert_eq!(with_argument(&mark), [] as [i32; 0]);
    assert_alive(&client).await;
}

#[tokio::test]
async fn a_tree_that_grows_while_it_is_killed_dies() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    bystander(&client).await;
    let mark = marker();
    // Each process starts its successor in a new session and ends; about fifty at a time.
    let script = format!(
        "import os, sys, time
for _ in range(50):
    if os.fork() == 0:
        while True:
            if os.fork():
                os._exit(0)
            os.setsid()
            time.sleep(0.05)
time.sleep(1000) # {mark}"
    );
    client
        .job(json!({"command": {"argv": ["python3", "-c", script, mark]}, "id": "bomb"}))
        .await;
    until("it grows", || with_argument(&mark).len() > 40).await;
    assert_eq!(client.delete("bomb").await, 204);
    assert_eq!(with_argument(&mark), [] as [i32; 0]);
    assert_alive(&client).await;
}

#[tokio::test]
async fn a_command_that_kills_its_supervisor_dies_with_all_it_started() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    bystander(&client).await;
    let mark = marker();
    let text = format!("setsid sleep {mark} & sleep {mark} & kill -9 $PPID; sleep {mark}");
    let result = client.shell(&text).await;
    assert_eq!(result.end.exit, Exit::Signal(9));
    assert_eq!(result.end.certificate.unwrap().cause, Cause::Killed);
    until("all are gone", || with_argument(&mark).is_empty()).await;

    // Also when it is so quick that it was never said to run.
    let mark = marker();
    let script = format!("kill -9 $PPID; exec sleep {mark}");
    for _ in 0..20 {
        let result = client.exec(json!({"command": {"sh": script}})).await;
        assert_eq!(result.end.certificate.unwrap().cause, Cause::Killed);
        until("it is gone", || with_argument(&mark).is_empty()).await;
    }

    // Also when the command itself has ended and left others behind.
    let mark = marker();
    let text = format!(
        "up=$PPID; (while [ ! -e go ]; do sleep 0.01; done; kill -9 $up; sleep {mark}) & sleep {mark} &"
    );
    client
        .job(json!({"command": {"shell": text}, "id": "late"}))
        .await;
    client.wait("late").await;
    std::fs::write(guest.workspace().join("go"), "").unwrap();
    until("all are gone", || with_argument(&mark).is_empty()).await;
    assert_alive(&client).await;
}

#[tokio::test]
async fn a_command_that_stops_its_supervisor_still_ends() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    bystander(&client).await;
    // Again and again, as the supervisor may or may not have said before that it runs.
    for _ in 0..10 {
        let mark = marker();
        let text = format!("kill -STOP $PPID; sleep {mark}");
        let result = client
            .exec(json!({"command": {"sh": text}, "timeout_ms": 100}))
            .await;
        assert_eq!(result.end.certificate.unwrap().cause, Cause::WallClock);
        assert!(with_argument(&mark).is_empty());
    }
    assert_alive(&client).await;
}

#[tokio::test]
async fn a_supervisor_ignores_what_can_be_ignored() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let result = client
        .shell("for s in HUP INT TERM USR1 ALRM CHLD PIPE; do kill -$s $PPID; done; exit 3")
        .await;
    assert_eq!(result.end.exit, Exit::Code(3));
}

#[tokio::test]
async fn no_zombies_are_left() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    for _ in 0..20 {
        client.shell("(setsid sh -c 'exit 0' &)").await;
    }
    let children = format!("/proc/{0}/task/{0}/children", guest.pid());
    until("no children are left", || {
        std::fs::read_to_string(&children)
            .unwrap()
            .trim()
            .is_empty()
    })
    .await;
}

#[tokio::test]
async fn the_guest_ends_with_its_lifeline_and_takes_all_along() {
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::io::fcntl_setfd(&reader, rustix::io::FdFlags::empty()).unwrap();
    let mut guest = Guest::start_with(&["--lifeline-fd", &reader.as_raw_fd().to_string()]).await;
    let client = guest.connect().await;
    let mark = marker();
    client
        .job(json!({"command": {"shell": stubborn(&mark)}}))
        .await;
    until("all of them run", || with_argument(&mark).len() == 6).await;
    drop(writer);
    let mut status = None;
    until("the guest has ended", || {
        status = guest.process.try_wait().unwrap();
        status.is_some()
    })
    .await;
    assert!(status.unwrap().success());
    assert!(with_argument(&mark).is_empty());
}

#[tokio::test]
async fn as_the_init_of_a_pid_namespace() {
    const UNSHARE: [&str; 4] = [
        "-Upf",
        "--mount-proc",
        "--map-user=1000",
        "--map-group=1000",
    ];
    let works = Command::new("unshare").args(UNSHARE).arg("true").status();
    if !works.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this machine allows no new namespaces");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let process = Command::new("unshare")
        .args(UNSHARE)
        .arg("--kill-child")
        .arg(env!("CARGO_BIN_EXE_ringfence-guest"))
        .arg("--listen")
        .arg(&socket)
        .arg("--workspace")
        .arg(folder.path())
        .spawn()
        .unwrap();
    let mut guest = Guest { process, folder };
    until("the guest listens", || {
        std::os::unix::net::UnixStream::connect(&socket).is_ok()
    })
    .await;
    let client = guest.connect().await;
    let health: Value = client.get("/health").await;
    assert_eq!(health["pid"], 1);
    bystander(&client).await;
    let mark = marker();
    let request = json!({"command": {"shell": stubborn(&mark)}, "timeout_ms": 1500});
    let result = client.exec(request).await;
    assert_eq!(result.end.certificate.unwrap().cause, Cause::WallClock);
    assert!(with_argument(&mark).is_empty());

    // What runs inside can't look into the init or a supervisor, but into itself it can.
    for (text, code) in [
        ("readlink /proc/1/fd/0", 1),
        ("readlink /proc/$PPID/cwd", 1),
        ("cat /proc/$PPID/environ", 1),
        ("readlink /proc/$$/fd/0", 0),
    ] {
        assert_eq!(
            client.shell(text).await.end.exit,
            Exit::Code(code),
            "{text}"
        );
    }
    let result = client
        .shell(
            "until grep -qx 500 /proc/$$/oom_score_adj; do sleep 0.01; done; \
             cat /proc/self/oom_score_adj /proc/$PPID/oom_score_adj",
        )
        .await;
    assert_eq!(result.stdout.data.text(), "500\n0\n");
    assert_alive(&client).await;

    // Killing everybody kills the other supervisors as well, but not the guest.
    let other = client
        .job(json!({"command": {"argv": ["sleep", mark]}, "id": "other"}))
        .await;
    assert_eq!(other.state, JobState::Running);
    client.shell("kill -9 -1").await;
    let certificate = client.result("other").await.end.certificate.unwrap();
    assert_eq!(certificate.cause, Cause::Killed);
    assert_eq!(client.shell("echo on").await.stdout.data.text(), "on\n");
    // `unshare` itself passes no other signal on.
    guest.process.kill().unwrap();
}
