//! Containers that are ready before anybody asks.

use ringfence_docker_tests::{
    IMAGE, Outcome, Server, container, docker_ok, engine, gc, serve, session,
};
use ringfence_http_tests::until;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;

/// Containers of this state folder that wait for somebody.
fn parked(state: &Path) -> Outcome<BTreeSet<String>> {
    let name = std::fs::read_to_string(state.join(".docker/.name"))?;
    let state = format!("label=ringfence.state={name}");
    let ids = docker_ok(&[
        "ps",
        "-q",
        "--no-trunc",
        "--filter",
        "label=ringfence=pool",
        "--filter",
        &state,
    ])?;
    let mut parked: BTreeSet<String> = ids.lines().map(str::to_owned).collect();
    // One that was handed out has the name of its session.
    for id in ids.lines() {
        let name = docker_ok(&["inspect", "--format", "{{.Name}}", id])?;
        if !name.contains("-pool-") {
            parked.remove(id);
        }
    }
    Ok(parked)
}

async fn full(server: &Server, size: usize) -> Outcome<BTreeSet<String>> {
    until(async || {
        let parked = parked(&server.state)?;
        Ok((parked.len() == size).then_some(parked))
    })
    .await
}

/// The container of a session that came from the pool.
fn claimed(server: &Server, session: &str) -> Outcome<String> {
    let name = std::fs::read_to_string(server.state.join(".docker/.name"))?;
    let name = format!("ringfence-{name}-{}", session.replace('_', "-"));
    docker_ok(&["inspect", "--format", "{{.Id}}", &name])
}

#[tokio::test]
async fn a_session_claims_one_and_another_is_parked_in_its_place() -> Outcome {
    let server = serve(&["--pool", "2"])?;
    let before = full(&server, 2).await?;
    let id = server.session().await?;
    let done = server.code(&id, "x = 41; print(x + 1)").await?;
    assert_eq!(done["stdout"], "42", "{done}");
    let own = claimed(&server, &id)?;
    assert!(before.contains(&own), "{own} is none of {before:?}");
    let after = full(&server, 2).await?;
    assert!(!after.contains(&own));
    // Those who want one at the same moment get one each, parked or not.
    let wanted = (0..6).map(|_| server.session());
    let mut seen = BTreeSet::from([own]);
    for (number, id) in futures_util::future::join_all(wanted)
        .await
        .into_iter()
        .enumerate()
    {
        let id = id?;
        let code = format!("open('mine', 'x').write('{number}'); print(open('mine').read())");
        let done = server.code(&id, &code).await?;
        assert_eq!(done["stdout"], number.to_string(), "{done}");
        let own = container(&id).or_else(|_| claimed(&server, &id))?;
        assert!(seen.insert(own), "two sessions share a container");
    }
    // One that died while it waited is nobody's.
    for id in full(&server, 2).await? {
        docker_ok(&["kill", &id])?;
    }
    let id = server.session().await?;
    assert_eq!(server.code(&id, "print(1)").await?["stdout"], "1");

    // Another shape is made when it is asked for.
    let other = session(&server, &json!({"read_only": false})).await?;
    container(&other)?;

    let name = std::fs::read_to_string(server.state.join(".docker/.name"))?;
    drop(server);
    let filter = format!("label=ringfence.state={name}");
    assert_eq!(docker_ok(&["ps", "-aq", "--filter", &filter])?, "");
    Ok(())
}

#[tokio::test]
async fn those_of_a_server_that_was_killed_go() -> Outcome {
    engine()?;
    let state = tempfile::tempdir()?;
    let args = [
        "--backend",
        "docker",
        "--image",
        IMAGE,
        "--no-auth",
        "--pool",
        "1",
    ];
    let mut server = Server::start_on(state.path(), &args, &[])?;
    full(&server, 1).await?;
    // A session that came from the pool is no less somebody's for that.
    let id = server.session().await?;
    server.code(&id, "x = 41").await?;
    full(&server, 1).await?;
    server.kill()?;
    assert_eq!(parked(state.path())?.len(), 1);
    gc(state.path())?;
    assert_eq!(parked(state.path())?.len(), 0);
    let server = Server::start_on(state.path(), &args, &[])?;
    assert_eq!(server.code(&id, "print(x + 1)").await?["stdout"], "42");
    Ok(())
}
