//! What an engine itself can go through: each time a clear answer, and a working next call. The
//! engine is one of this test's own, since others would miss it.

use ringfence_docker_tests::{Outcome, Server, docker_ok, engine, ringfence, session_of, shell};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Neither Python nor a shell but busybox: small enough for an engine whose disk is small.
const IMAGE: &str = "ringfence-test/busybox";
/// What runs natively or, where that can't be, in Docker has this image.
const USUAL: &str = "python:3.13-slim";

/// An engine whose files lie on a small file system. It is stopped with this.
struct Engine {
    folder: tempfile::TempDir,
    host: String,
}

impl Engine {
    fn start() -> Outcome<Self> {
        engine()?;
        let folder = tempfile::Builder::new().prefix("rf-engine-").tempdir()?;
        let docker = folder.path().join("engines/docker");
        let data = docker.join("data");
        std::fs::create_dir_all(&data)?;
        command(
            "mount",
            &["-t", "tmpfs", "-o", "size=48m", "rf-engine"],
            &[data.to_str().unwrap_or_default()],
        )?;
        let host = format!("unix://{}", docker.join("docker.sock").display());
        let engine = Self { folder, host };
        engine.up()?;
        let saved = Command::new("docker")
            .args(["save", IMAGE])
            .stdout(Stdio::piped())
            .spawn()?;
        let loaded = engine
            .docker()
            .arg("load")
            .stdin(saved.stdout.ok_or("no output")?)
            .output()?;
        assert!(loaded.status.success(), "{loaded:?}");
        Ok(engine)
    }

    fn script(&self, name: &str) -> Outcome {
        let script = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../engines")
            .join(name);
        let log = std::fs::File::create(self.folder.path().join("log"))?;
        let done = Command::new(&script)
            .env("CARGO_TARGET_DIR", self.folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .status()?;
        if !done.success() {
            let log = std::fs::read_to_string(self.folder.path().join("log"))?;
            return Err(format!("{name}: {log}").into());
        }
        Ok(())
    }

    fn up(&self) -> Outcome {
        self.script("docker-engine")
    }

    fn down(&self) -> Outcome {
        self.script("docker-down")
    }

    fn docker(&self) -> Command {
        let mut docker = Command::new("docker");
        docker.env("DOCKER_HOST", &self.host).stdin(Stdio::null());
        docker
    }

    fn signal(&self, signal: &str) -> Outcome {
        let pid = std::fs::read_to_string(self.data().join("../dockerd.pid"))?;
        command("kill", &[signal], &[pid.trim()])
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("engines/docker/data")
    }

    fn serve(&self) -> Outcome<Server> {
        let state = self.folder.path().join("state");
        let args = ["--backend", "docker", "--image", IMAGE, "--no-auth"];
        Server::start_on(&state, &args, &[("DOCKER_HOST", &self.host)])
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.signal("-CONT");
        let _ = self.down();
        let data = self.data();
        let _ = command(
            "umount",
            &["-R", "-l"],
            &[data.to_str().unwrap_or_default()],
        );
    }
}

fn command(program: &str, options: &[&str], words: &[&str]) -> Outcome {
    let done = Command::new(program).args(options).args(words).output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("{program}: {}", said(&done)).into()),
    }
}

fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn an_engine_restarts_hangs_and_is_full() -> Outcome {
    let engine = Engine::start()?;
    let server = engine.serve()?;
    let id = session_of(&server, &json!({})).await?;
    shell(&server, &id, "echo kept > file").await?;
    restarts(&engine, &server, &id).await?;
    hangs(&engine, &server, &id).await?;
    is_full(&engine, &server, &id).await?;
    native_is_not_there(&engine)?;
    drop(server);
    let left = engine.docker().args(["ps", "-aq"]).output()?;
    assert_eq!(said(&left), "");
    Ok(())
}

/// A call that can't work now: its answer says that, and why.
async fn in_vain(server: &Server, id: &str) -> Outcome {
    let done = server.bash(id, "cat file").await?;
    assert_eq!(done["error_code"], "unavailable", "{done}");
    let why = done["error_message"].as_str().unwrap_or_default();
    assert!(why.contains("engine") || why.contains("sandbox"), "{done}");
    Ok(())
}

/// What was there is there, and new ones can be made.
async fn works(server: &Server, id: &str) -> Outcome {
    assert_eq!(shell(server, id, "cat file").await?, "kept");
    let next = session_of(server, &json!({})).await?;
    assert_eq!(shell(server, &next, "echo works").await?, "works");
    let (status, answer) = server
        .ask("DELETE", &format!("/sessions/{next}"), None)
        .await?;
    assert_eq!(status, 204, "{answer}");
    Ok(())
}

async fn restarts(engine: &Engine, server: &Server, id: &str) -> Outcome {
    engine.down()?;
    in_vain(server, id).await?;
    let (status, answer) = server.post("/sessions", &json!({})).await?;
    assert_eq!(status, 503, "{answer}");
    engine.up()?;
    works(server, id).await
}

async fn hangs(engine: &Engine, server: &Server, id: &str) -> Outcome {
    engine.signal("-STOP")?;
    let body = json!({});
    let (called, made) = tokio::join!(in_vain(server, id), server.post("/sessions", &body));
    engine.signal("-CONT")?;
    called?;
    let (status, answer) = made?;
    assert_eq!(status, 503, "{answer}");
    assert!(answer.to_string().contains("does not answer"), "{answer}");
    works(server, id).await
}

async fn is_full(engine: &Engine, server: &Server, id: &str) -> Outcome {
    // The code fills it by itself: that is a result.
    let fill = "dd if=/dev/zero of=big bs=1M count=100";
    let done = server.bash(id, fill).await?;
    assert!(
        done.to_string().contains("No space left on device"),
        "{done}"
    );
    let (status, answer) = server.post("/sessions", &json!({})).await?;
    assert_eq!(status, 507, "{answer}");
    assert!(answer.to_string().contains("no space left"), "{answer}");
    // Nothing of the one that did not come about is there.
    let all = engine
        .docker()
        .args(["ps", "-aq", "--filter", "status=created"])
        .output()?;
    assert_eq!(said(&all), "");
    shell(server, id, "rm big").await?;
    works(server, id).await
}

/// In a container of the big engine, where namespaces are denied and the small one is reached.
fn native_is_not_there(engine: &Engine) -> Outcome {
    let done = engine.docker().args(["tag", IMAGE, USUAL]).output()?;
    assert!(done.status.success(), "{}", said(&done));
    let folder = engine.folder.path().join("engines/docker");
    let mount = format!("{}:/engine", folder.display());
    let program = format!("{}:/usr/bin/ringfence:ro", ringfence().display());
    let run = |backend: &str| {
        docker_ok(&[
            "run",
            "--rm",
            "--network",
            "none",
            "-v",
            &mount,
            "-v",
            &program,
            "-e",
            "DOCKER_HOST=unix:///engine/docker.sock",
            "ringfence-test/python",
            "/bin/sh",
            "-c",
            &format!("exec 2>&1; ringfence run --backend {backend} -- /bin/busybox echo inside"),
        ])
    };
    let native = run("native");
    assert!(native.is_err(), "the control: {native:?}");
    let text = run("auto")?;
    let said: Vec<&str> = text.lines().collect();
    assert_eq!(said.len(), 2, "{text}");
    assert!(
        said[0].contains("runs in Docker") && said[0].contains("doctor"),
        "{text}"
    );
    assert_eq!(said[1], "inside");
    Ok(())
}
