//! Servers before one cluster: one is killed and another goes on; many sessions leave nothing behind.

use ringfence_kubernetes_tests::cluster::{Namespace, Outcome, Server};
use std::sync::Arc;
use tokio::task::JoinSet;

/// Small, so that many fit on one node.
const SMALL: [&str; 4] = ["--memory", "96m", "--cpus", "0.08"];

async fn printed(server: &Server, session: &str, code: &str) -> Outcome<String> {
    let done = server.code(session, code).await?;
    match done["stdout"].as_str() {
        Some(text) if done["return_code"] == 0 => Ok(text.trim_end().to_owned()),
        _ => Err(format!("{session}: {done}").into()),
    }
}

/// Does the same for each number, a few at a time.
async fn each<T: Send + 'static, F>(count: usize, work: impl Fn(usize) -> F) -> Outcome<Vec<T>>
where
    F: Future<Output = Outcome<T>> + Send + 'static,
{
    let (mut tasks, mut done) = (JoinSet::new(), Vec::new());
    for number in 0..count {
        if tasks.len() >= 10
            && let Some(one) = tasks.join_next().await
        {
            done.push(one??);
        }
        tasks.spawn(work(number));
    }
    while let Some(one) = tasks.join_next().await {
        done.push(one??);
    }
    Ok(done)
}

#[tokio::test(flavor = "multi_thread")]
async fn another_server_takes_over_all_sessions_of_one_that_was_killed() -> Outcome {
    let namespace = Namespace::new("takeover")?;
    let first = Arc::new(namespace.serve(&SMALL)?);
    let sessions = each(20, |number| {
        let server = Arc::clone(&first);
        async move {
            let id = server.session().await?;
            let code = format!("x = {number}; open('kept', 'w').write('file {number}')");
            printed(&server, &id, &code).await?;
            Ok((number, id))
        }
    })
    .await?;
    let mut first = Arc::into_inner(first).ok_or("somebody still uses the server")?;
    first.kill()?;
    let second = Arc::new(namespace.serve(&SMALL)?);
    let (_, listed) = second.get("/sessions").await?;
    let text = listed.to_string();
    for (_, id) in &sessions {
        assert!(text.contains(id.as_str()), "{id} is not known: {listed}");
    }
    let sessions = Arc::new(sessions);
    each(sessions.len(), |at| {
        let (server, sessions) = (Arc::clone(&second), Arc::clone(&sessions));
        async move {
            let (number, id) = &sessions[at];
            let said = printed(&server, id, "print(x, open('kept').read())").await?;
            assert_eq!(said, format!("{number} file {number}"));
            let (status, _) = server
                .ask("DELETE", &format!("/sessions/{id}"), None)
                .await?;
            assert_eq!(status, 204);
            Ok(())
        }
    })
    .await?;
    namespace.await_nothing()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_sessions_come_and_go_and_nothing_is_left() -> Outcome {
    let namespace = Namespace::new("hundred")?;
    let server = Arc::new(namespace.serve(&SMALL)?);
    each(100, |number| {
        let server = Arc::clone(&server);
        async move {
            let id = server.session().await?;
            let said = printed(&server, &id, &format!("print({number} + 1)")).await?;
            assert_eq!(said, (number + 1).to_string());
            let (status, _) = server
                .ask("DELETE", &format!("/sessions/{id}"), None)
                .await?;
            assert_eq!(status, 204);
            Ok(())
        }
    })
    .await?;
    namespace.await_nothing()
}
