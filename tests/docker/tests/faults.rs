//! What goes wrong around containers: each time a clear answer, a working next call, and nothing
//! left behind.

use ringfence_docker_tests::{
    IMAGE, Outcome, Removed, Server, container, docker_ok, engine, gc, label, ringfence, serve,
    session, shell, unique,
};
use serde_json::json;
use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Waits for a state of the engine, which must come.
async fn until(what: &str, mut holds: impl FnMut() -> Outcome<bool>) -> Outcome {
    let limit = Instant::now() + Duration::from_secs(60);
    while !holds()? {
        if Instant::now() > limit {
            return Err(format!("waited in vain: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

fn run(state: &std::path::Path, args: &[&str]) -> Command {
    let mut command = Command::new(ringfence());
    command
        .args(["run", "--image", IMAGE])
        .args(args)
        .env("RINGFENCE_STATE_DIR", state)
        .stdin(Stdio::null());
    command
}

#[tokio::test]
async fn a_run_that_is_killed_leaves_nothing() -> Outcome {
    engine()?;
    let state = tempfile::tempdir()?;
    let code = "import time; print('runs', flush=True); time.sleep(1000)";
    let mut child = run(state.path(), &["-e", "MARK=rf-killed", "-c", code])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    assert_eq!(line, "runs\n");
    let there = || -> Outcome<bool> {
        let all = docker_ok(&["ps", "-aq", "--filter", "label=ringfence"])?;
        let mut found = false;
        for id in all.lines() {
            let env = docker_ok(&["inspect", "--format", "{{json .Config.Env}}", id]);
            found |= env.is_ok_and(|env| env.contains("MARK=rf-killed"));
        }
        Ok(found)
    };
    // The control: it is there while it runs.
    assert!(there()?);
    child.kill()?;
    child.wait()?;
    until("the container goes", || Ok(!there()?)).await
}

#[tokio::test]
async fn the_next_server_finds_variables_of_one_that_was_killed() -> Outcome {
    let state = tempfile::tempdir()?;
    engine()?;
    let args = ["--backend", "docker", "--image", IMAGE, "--no-auth"];
    let mut first = Server::start_on(state.path(), &args, &[])?;
    let id = first.session().await?;
    first
        .code(&id, "x = 41; open('file', 'w').write('kept')")
        .await?;
    first.kill()?;
    let second = Server::start_on(state.path(), &args, &[])?;
    let done = second
        .code(&id, "print(x + 1, open('file').read())")
        .await?;
    assert_eq!(done["stdout"], "42 kept");
    drop(second);
    assert_eq!(docker_ok(&["ps", "-aq", "--filter", &label(&id)])?, "");
    assert_eq!(
        docker_ok(&["volume", "ls", "-q", "--filter", &label(&id)])?,
        ""
    );
    Ok(())
}

#[tokio::test]
async fn a_container_that_is_killed_comes_back_with_its_files() -> Outcome {
    let server = serve(&[])?;
    let id = session(&server, &json!({})).await?;
    server
        .code(&id, "x = 1; open('file', 'w').write('kept')")
        .await?;
    docker_ok(&["kill", &container(&id)?])?;
    let done = server.code(&id, "print(open('file').read()); x").await?;
    assert!(
        done["stdout"]
            .as_str()
            .is_some_and(|text| text.contains("kept")),
        "{done}"
    );
    assert!(done.to_string().contains("NameError"), "{done}");
    docker_ok(&["rm", "-f", "-v", &container(&id)?])?;
    let body = json!({"tool": "code_execution", "input": {"code": "print(1)"}});
    let (status, answer) = server.post(&format!("/sessions/{id}/exec"), &body).await?;
    assert_eq!(status, 404, "{answer}");
    let next = session(&server, &json!({})).await?;
    assert_eq!(shell(&server, &next, "echo works").await?, "works");
    Ok(())
}

#[tokio::test]
async fn a_suspended_session_keeps_its_files() -> Outcome {
    let server = serve(&[])?;
    let id = session(&server, &json!({})).await?;
    shell(&server, &id, "echo kept > file").await?;
    let (status, answer) = server
        .post(&format!("/sessions/{id}/suspend"), &json!({}))
        .await?;
    assert_eq!(status, 204, "{answer}");
    let running = || docker_ok(&["ps", "-q", "--filter", &label(&id)]);
    assert_eq!(running()?, "");
    assert_eq!(shell(&server, &id, "cat file").await?, "kept");
    assert_ne!(running()?, "");
    Ok(())
}

#[test]
fn an_engine_that_hangs_or_is_not_there_is_said() -> Outcome {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("engine.sock");
    let nobody = format!("unix://{}", socket.display());
    let done = run(folder.path(), &["-c", "1"])
        .env("DOCKER_HOST", &nobody)
        .output()?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(69), "{said}");
    assert!(
        said.contains(&nobody) && said.contains("DOCKER_HOST"),
        "{said}"
    );
    // It accepts, by the kernel's doing, and never answers.
    let _listener = UnixListener::bind(&socket)?;
    let done = run(folder.path(), &["-c", "1"])
        .env("DOCKER_HOST", &nobody)
        .output()?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(69), "{said}");
    assert!(said.contains("does not answer"), "{said}");
    Ok(())
}

#[tokio::test]
async fn a_hundred_sandboxes_that_are_made_and_killed_leave_nothing() -> Outcome {
    let mark = format!("rf-cycle-{}", std::process::id());
    let server = serve(&[])?;
    let body = json!({"labels": {"cycle": mark}});
    let mut ids = Vec::new();
    for round in 0..25 {
        let mut making = Vec::new();
        for _ in 0..4 {
            making.push(server.session_with(&body));
        }
        let made = futures_util::future::join_all(making).await;
        for (number, id) in made.into_iter().enumerate() {
            let id = id?;
            // Half of them die behind the server's back first.
            if (round + number) % 2 == 0 {
                docker_ok(&["kill", &container(&id)?])?;
            }
            let (status, answer) = server
                .ask("DELETE", &format!("/sessions/{id}"), None)
                .await?;
            assert_eq!(status, 204, "{answer}");
            ids.push(id);
        }
    }
    assert_eq!(ids.len(), 100);
    let filter = format!("label=cycle={mark}");
    assert_eq!(docker_ok(&["ps", "-aq", "--filter", &filter])?, "");
    for id in &ids {
        assert_eq!(
            docker_ok(&["volume", "ls", "-q", "--filter", &label(id)])?,
            ""
        );
    }
    let left: Vec<_> = std::fs::read_dir(server.state.join(".docker"))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

#[tokio::test]
async fn a_work_folder_whose_container_others_removed_goes() -> Outcome {
    let server = serve(&["--allow", "volumes"])?;
    let name = unique("rf-own-");
    let _volume = Removed("volume", name.clone());
    let id = session(
        &server,
        &json!({"volumes": [{"name": name, "to": "/data"}]}),
    )
    .await?;
    shell(&server, &id, "echo mine > file").await?;
    let work = |id: &str| {
        let own = ["--filter", &label(id), "--filter", "label=ringfence.work"];
        docker_ok(&[&["volume", "ls", "-q"][..], &own].concat())
    };
    let other = session(&server, &json!({})).await?;
    docker_ok(&["rm", "-f", &container(&id)?])?;
    // The control: it is left behind.
    assert_ne!(work(&id)?, "");
    gc(&server.state)?;
    assert_eq!(work(&id)?, "");
    // What has a name is somebody's, and what has a container is in use.
    assert_eq!(
        docker_ok(&["volume", "ls", "-q", "--filter", &format!("name={name}")])?,
        name
    );
    assert_ne!(work(&other)?, "");
    Ok(())
}
