//! A real Docker engine, seen through its own command line: the tests' second opinion.

pub use ringfence_http_tests::{Outcome, Server, ringfence};

use serde_json::{Value, json};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Where the engine listens. A test without an engine fails: nothing here is skipped.
#[allow(clippy::disallowed_methods, reason = "tests have no settings")]
pub fn engine() -> Outcome<String> {
    std::env::var("DOCKER_HOST").map_err(|_| {
        "DOCKER_HOST is not set; start an engine: export $(tests/engines/docker-up)".into()
    })
}

/// Runs the command line of Docker.
pub fn docker(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Outcome<Output> {
    Ok(Command::new("docker")
        .args(args)
        .env("DOCKER_HOST", engine()?)
        // The classic builder is part of every engine; the other one is a plugin.
        .env("DOCKER_BUILDKIT", "0")
        .stdin(Stdio::null())
        .output()?)
}

/// Runs the command line of Docker, which must succeed, and gives what it prints.
pub fn docker_ok(args: &[&str]) -> Outcome<String> {
    let done = docker(args)?;
    if !done.status.success() {
        let stderr = String::from_utf8_lossy(&done.stderr);
        return Err(format!("docker {}: {stderr}", args.join(" ")).into());
    }
    Ok(String::from_utf8(done.stdout)?.trim_end().to_owned())
}

/// `ringfence gc` on the state of a server.
pub fn gc(state: &Path) -> Outcome {
    let done = Command::new(ringfence())
        .arg("gc")
        .env("RINGFENCE_STATE_DIR", state)
        .env("DOCKER_HOST", engine()?)
        .output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&done.stderr).into_owned().into()),
    }
}

/// The image of sessions that name none.
pub const IMAGE: &str = "ringfence-test/python";

/// A server whose sessions are containers of the engine.
pub fn serve(args: &[&str]) -> Outcome<Server> {
    engine()?;
    let own = ["--backend", "docker", "--image", IMAGE, "--no-auth"];
    Server::start(&[&own, args].concat())
}

/// A session with these options of a container.
pub async fn session(server: &Server, container: &Value) -> Outcome<String> {
    session_of(server, &json!({"container": container})).await
}

/// A session of this whole spec.
pub async fn session_of(server: &Server, spec: &Value) -> Outcome<String> {
    server.session_with(&json!({"spec": spec})).await
}

/// What a shell inside prints; it must succeed.
pub async fn shell(server: &Server, session: &str, command: &str) -> Outcome<String> {
    let done = server.bash(session, command).await?;
    if done["return_code"] != 0 {
        return Err(format!("{command}: {done}").into());
    }
    let text = done["stdout"].as_str().unwrap_or_default();
    Ok(text.trim_end().to_owned())
}

/// The engine's id of a session's container.
pub fn container(session: &str) -> Outcome<String> {
    let id = docker_ok(&["ps", "-aq", "--no-trunc", "--filter", &label(session)])?;
    match id.is_empty() {
        true => Err(format!("session {session} has no container").into()),
        false => Ok(id),
    }
}

/// What the engine says of a session's container, by a path such as `HostConfig.Memory`.
pub fn inspect(session: &str, path: &str) -> Outcome<Value> {
    let format = format!("{{{{json .{path}}}}}");
    let text = docker_ok(&["inspect", "--format", &format, &container(session)?])?;
    Ok(serde_json::from_str(&text)?)
}

/// Finds what belongs to a session.
pub fn label(session: &str) -> String {
    format!("label=ringfence={}", session.replace('_', "-"))
}

/// A name that nothing else on the engine has.
pub fn unique(what: &str) -> String {
    let folder = tempfile::Builder::new().prefix(what).tempdir();
    let path = folder
        .map(|folder| folder.path().to_owned())
        .unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.to_lowercase()
}

/// Something on the engine that is removed with this.
pub struct Removed(pub &'static str, pub String);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = docker([self.0, "rm", "-f", &self.1]);
    }
}
