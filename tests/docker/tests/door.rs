//! The way to a guest for those who come later, attacked from inside its container.

use ringfence_docker_tests::{IMAGE, Outcome, Server, container, docker, docker_ok, engine, shell};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

const SERVE: [&str; 5] = ["--backend", "docker", "--image", IMAGE, "--no-auth"];

fn serve(state: &Path) -> Outcome<Server> {
    engine()?;
    Server::start_on(state, &SERVE, &[])
}

/// Tries to get at what every process holds that comes, and tells of those with this word.
const THIEF: &str = r#"
import os, sys
word, known = sys.argv[1], set(os.listdir("/proc"))
seen, stolen = set(), set()
def words(pid):
    return open("/proc/%s/cmdline" % pid).read().split("\0")
print("ready", flush=True)
while not os.path.exists("/tmp/enough"):
    for pid in os.listdir("/proc"):
        if pid in known or not pid.isdigit():
            continue
        for what in ("mem", "environ", "maps", "fd/0"):
            try:
                os.close(os.open("/proc/%s/%s" % (pid, what), os.O_RDONLY | os.O_NONBLOCK))
                if word in words(pid):
                    stolen.add(what)
            except OSError:
                pass
        try:
            if word in words(pid):
                seen.add(pid)
        except OSError:
            pass
os.remove("/tmp/enough")
print(len(seen), ",".join(sorted(stolen)))
"#;

/// A program that the engine starts in a container, as the user of that, until it is told that
/// this is enough.
struct Inside {
    container: String,
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Inside {
    /// Comes back when it says that it is ready.
    fn start(container: &str, code: &str, args: &[&str]) -> Outcome<Self> {
        let mut child = Command::new("docker")
            .args(["exec", container, "python3", "-c", code])
            .args(args)
            .env("DOCKER_HOST", engine()?)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        assert_eq!(line, "ready\n");
        Ok(Self {
            container: container.to_owned(),
            child,
            output,
        })
    }

    /// What it says at its end.
    fn end(mut self) -> Outcome<String> {
        docker_ok(&["exec", &self.container, "touch", "/tmp/enough"])?;
        let mut said = String::new();
        self.output.read_to_string(&mut said)?;
        self.child.wait()?;
        Ok(said.trim_end().to_owned())
    }
}

#[tokio::test]
async fn what_a_visitor_says_at_the_door_is_not_overheard() -> Outcome {
    let state = tempfile::tempdir()?;
    let mut server = serve(state.path())?;
    let id = server.session().await?;
    let own = container(&id)?;
    let thief = Inside::start(&own, THIEF, &["relay"])?;
    for _ in 0..3 {
        server.kill()?;
        server = serve(state.path())?;
        assert_eq!(shell(&server, &id, "echo reached").await?, "reached");
    }
    let said = thief.end()?;
    let (seen, stolen) = said.split_once(' ').unwrap_or((&said, ""));
    assert_ne!(seen, "0", "nobody came: this shows nothing");
    assert_eq!(stolen, "", "of {seen} who came");

    // The control: of another process of the same user, everything can be had.
    let thief = Inside::start(&own, THIEF, &["0.4321"])?;
    docker_ok(&["exec", &own, "sleep", "0.4321"])?;
    assert_eq!(thief.end()?, "1 environ,fd/0,maps,mem");
    Ok(())
}

/// Holds as many connections to the door as it gets, and says nothing.
const CROWD: &str = r#"
import os, socket, time
held = []
for _ in range(6):
    if os.fork() == 0:
        break
name = [l.split()[7] for l in open("/proc/net/unix") if "ringfence" in l][0]
while len(held) < 900:
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(1)
    try:
        stream.connect("\0" + name[1:])
        held.append(stream)
    except OSError:
        break
print("ready", flush=True)
while not os.path.exists("/tmp/enough"):
    time.sleep(0.01)
print(len(held), flush=True)
"#;

#[tokio::test]
async fn a_crowd_at_the_door_keeps_nobody_from_the_guest() -> Outcome {
    let state = tempfile::tempdir()?;
    let mut server = serve(state.path())?;
    let id = server.session().await?;
    server.code(&id, "x = 41").await?;
    let own = container(&id)?;
    let crowd = Inside::start(&own, CROWD, &[])?;
    for _ in 0..5 {
        let done = server.code(
            &id,
            "import subprocess; print(subprocess.getoutput('echo in'))",
        );
        assert_eq!(done.await?["stdout"], "in");
    }
    // Who knows the secret gets through all the same.
    server.kill()?;
    let server = serve(state.path())?;
    assert_eq!(server.code(&id, "print(x + 1)").await?["stdout"], "42");
    crowd.end()?;
    Ok(())
}

/// The name of the door, and one that is none.
const NAMES: &str = r#"
import socket
door = [l.split()[7] for l in open("/proc/net/unix") if "ringfence" in l][0]
for name in (door[1:], door[1:] + "x"):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        try:
            socket.socket(socket.AF_UNIX, kind).bind("\0" + name)
            print("taken")
        except OSError as e:
            print(e.errno)
"#;

#[tokio::test]
async fn the_door_cannot_be_imitated() -> Outcome {
    let state = tempfile::tempdir()?;
    let server = serve(state.path())?;
    let id = server.session().await?;
    let done = server.code(&id, NAMES).await?;
    // The kernel keeps names of each kind apart, and who comes later connects to a stream.
    assert_eq!(
        done["stdout"], "98\ntaken\ntaken\ntaken\ntaken\ntaken",
        "{done}"
    );
    let own = container(&id)?;
    // Nor is it opened by the secret of another, or by what can be read inside.
    let other = container(&server.session().await?)?;
    let format = "{{index .Config.Labels \"ringfence.secret\"}}";
    let theirs = docker_ok(&["inspect", "--format", format, &other])?;
    let ours = docker_ok(&["inspect", "--format", format, &own])?;
    let knock = |secret: &str| {
        let code = format!(
            r#"
import socket
name = [l.split()[7] for l in open("/proc/net/unix") if "ringfence" in l][0]
stream = socket.socket(socket.AF_UNIX)
stream.connect("\0" + name[1:])
stream.sendall(b"{secret}GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
try:
    print(stream.recv(15).decode())
except ConnectionResetError:
    print()
"#
        );
        docker_ok(&["exec", &own, "python3", "-c", &code])
    };
    assert_eq!(knock(&theirs)?, "");
    assert_eq!(knock(&ours)?, "HTTP/1.1 200 OK", "the control");
    // It is nowhere inside.
    let ours = format!("[{}]{}", &ours[..1], &ours[1..]);
    let look =
        format!("cat /proc/*/cmdline /proc/*/environ /.ringfence/* 2>/dev/null | grep -c {ours}");
    let found = docker(["exec", &own, "sh", "-c", &look])?;
    assert_eq!(String::from_utf8_lossy(&found.stdout).trim(), "0");
    Ok(())
}
