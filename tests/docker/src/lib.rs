//! A real Docker engine, seen through its own command line: the tests' second opinion.

pub use ringfence_http_tests::{Outcome, Server, ringfence};

use std::ffi::OsStr;
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
