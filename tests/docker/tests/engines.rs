//! Engines that are reached in another way, or are not Docker's: the same command works on each.

use ringfence_docker_tests::{IMAGE, Outcome, docker_ok, engine, ringfence};
use ringfence_http_tests::until;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// The folder in which `tests/engines` keeps its engines.
fn engines() -> Outcome<PathBuf> {
    let host = engine()?;
    host.strip_prefix("unix://")
        .and_then(|socket| socket.strip_suffix("/docker/docker.sock"))
        .map(PathBuf::from)
        .ok_or_else(|| format!("{host} was not started by tests/engines/docker-up").into())
}

fn run(environment: &[(&str, &str)], args: &[&str]) -> Outcome<Output> {
    let state = tempfile::tempdir()?;
    let run = ["run", "--backend", "docker", "--image", IMAGE];
    Ok(Command::new(ringfence())
        .args(run)
        .args(args)
        .env_remove("DOCKER_HOST")
        .envs(environment.iter().copied())
        .env("RINGFENCE_STATE_DIR", state.path())
        .stdin(Stdio::null())
        .output()?)
}

fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn an_engine_behind_tls_serves_who_has_a_certificate() -> Outcome {
    let tls = engines()?.join("docker/tls");
    let host = std::fs::read_to_string(tls.join("host"))?;
    let host = ("DOCKER_HOST", host.trim());
    let folder = tls.to_string_lossy();
    let shown = [
        host,
        ("DOCKER_TLS_VERIFY", "1"),
        ("DOCKER_CERT_PATH", &folder),
    ];
    let done = run(&shown, &["-c", "print(6 * 7)"])?;
    assert_eq!(said(&done), "42\n");

    // Another authority's certificates: neither side believes the other.
    let strangers = tempfile::tempdir()?;
    let make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=stranger \
                -keyout key.pem -out cert.pem && cp cert.pem ca.pem";
    let made = Command::new("sh")
        .args(["-c", make])
        .current_dir(strangers.path())
        .output()?;
    assert!(made.status.success(), "{}", said(&made));
    let folder = strangers.path().to_string_lossy();
    let strange = [
        host,
        ("DOCKER_TLS_VERIFY", "1"),
        ("DOCKER_CERT_PATH", &folder),
    ];
    for (refused, why) in [(&strange[..], "TLS failed"), (&[host], "it wants TLS")] {
        let done = run(refused, &["-c", "print(6 * 7)"])?;
        assert!(!done.status.success());
        let said = said(&done);
        let place = format!("cannot reach the Docker engine at {}: {why}", host.1);
        assert!(said.contains(&place), "{said}");
        assert!(said.contains("DOCKER_CERT_PATH"), "{said}");
    }
    Ok(())
}

#[test]
fn a_context_of_dockers_own_making_leads_to_its_engine() -> Outcome {
    let config = tempfile::tempdir()?;
    let folder = config.path().to_string_lossy().into_owned();
    let host = format!("host={}", engine()?);
    for words in [
        &["context", "create", "near", "--docker", &host][..],
        &[
            "context",
            "create",
            "nowhere",
            "--docker",
            "host=unix:///no/engine.sock",
        ],
        &["context", "use", "near"],
    ] {
        let done = Command::new("docker")
            .args(words)
            .env_remove("DOCKER_HOST")
            .env("DOCKER_CONFIG", &folder)
            .output()?;
        assert!(done.status.success(), "{}", said(&done));
    }
    let own = ("DOCKER_CONFIG", folder.as_str());
    let done = run(&[own], &["-c", "print(6 * 7)"])?;
    assert_eq!(said(&done), "42\n");
    // A name goes before what is in use.
    let done = run(&[own, ("DOCKER_CONTEXT", "nowhere")], &["-c", "1"])?;
    assert!(
        said(&done).contains("unix:///no/engine.sock"),
        "{}",
        said(&done)
    );
    Ok(())
}

#[tokio::test]
async fn podman_is_an_engine_too() -> Outcome {
    let socket = engines()?.join("podman/podman.sock");
    if !socket.exists() {
        return Err("Podman does not listen; start it: tests/engines/podman-up".into());
    }
    let socket = format!("unix://{}", socket.display());
    let podman = [("DOCKER_HOST", socket.as_str())];
    let code = "import os, socket; open('f', 'w').write('x'); print(os.getuid(), os.getcwd(), socket.if_nameindex())";
    let done = run(&podman, &["-c", code])?;
    assert_eq!(said(&done), "1000 /workspace [(1, 'lo')]\n");
    assert!(done.status.success());

    let full = "open('/tmp/f', 'wb').write(bytes(4 << 20))";
    let done = run(&podman, &["--tmp-size", "1m", "-c", full])?;
    assert!(
        said(&done).contains("No space left on device"),
        "{}",
        said(&done)
    );

    // Podman removes what has ended a moment later.
    let ours = [
        "--host",
        &socket,
        "ps",
        "-aq",
        "--filter",
        "label=ringfence",
    ];
    until(async || Ok(docker_ok(&ours)?.is_empty().then_some(()))).await
}
