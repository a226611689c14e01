//! Pods that are ready before anybody asks: claimed once, whoever claims.

use futures_util::future::join_all;
use ringfence_kubernetes_tests::cluster::{Namespace, Outcome, Server, until};
use serde_json::{Value, json};

fn pods(namespace: &Namespace) -> Outcome<Vec<Value>> {
    let all = namespace.get("pods")?;
    Ok(all["items"].as_array().cloned().unwrap_or_default())
}

fn is_ready(pod: &Value) -> bool {
    pod["metadata"]["labels"]["ringfence"] == "pool"
        && pod["status"]["containerStatuses"][0]["ready"] == true
}

async fn ready(namespace: &Namespace, count: usize) -> Outcome<Vec<String>> {
    until(async || {
        let all = pods(namespace)?;
        let ready = all.iter().filter(|pod| is_ready(pod));
        let names: Vec<String> = ready
            .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned))
            .collect();
        Ok((names.len() >= count).then_some(names))
    })
    .await
}

async fn keyed(server: &Server, key: &str) -> Outcome<String> {
    server.session_with(&json!({"key": key})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_gets_a_pod_that_was_ready_and_another_takes_its_place() -> Outcome {
    let namespace = Namespace::new("pool")?;
    let server = namespace.serve(&["--pool", "1"])?;
    let parked = ready(&namespace, 1).await?;
    let id = server.session().await?;
    let done = server.code(&id, "print(40 + 2)").await?;
    assert_eq!(done["stdout"], "42", "{done}");
    let taken = namespace.get(&format!("pod/{}", parked[0]))?;
    let labels = &taken["metadata"]["labels"];
    assert_eq!(labels["ringfence"], "sandbox", "{labels}");
    let others = ready(&namespace, 1).await?;
    assert!(!others.contains(&parked[0]));
    // A server that did not make it serves it, and ends it.
    let other = namespace.serve(&[])?;
    let done = other.bash(&id, "echo there").await?;
    assert_eq!(done["stdout"], "there\n", "{done}");
    let (status, answer) = other
        .ask("DELETE", &format!("/sessions/{id}"), None)
        .await?;
    assert!(status < 300, "{status} {answer}");
    // What a server has parked goes when it stops.
    drop(server);
    drop(other);
    namespace.await_nothing()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_means_one_sandbox_also_when_one_server_has_a_pool() -> Outcome {
    let namespace = Namespace::new("keys")?;
    let with = namespace.serve(&["--pool", "2"])?;
    let without = namespace.serve(&[])?;
    ready(&namespace, 1).await?;
    for round in ["a", "b"] {
        let asked = [&with, &without, &with, &without].map(|server| keyed(server, round));
        let ids: Vec<String> = join_all(asked).await.into_iter().collect::<Outcome<_>>()?;
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        let claimed = |pod: &&Value| pod["metadata"]["labels"]["ringfence"] == "sandbox";
        let count = pods(&namespace)?.iter().filter(claimed).count();
        assert_eq!(count, 1, "{round}");
        let (status, _) = with
            .ask("DELETE", &format!("/sessions/{}", ids[0]), None)
            .await?;
        assert!(status < 300);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_is_filled_at_once() -> Outcome {
    let namespace = Namespace::new("fill")?;
    // No node takes them, so the first is not ready before the last is asked for.
    let huge = ["--memory", "900g", "--kube-reserve", "1"];
    let patient = ["--kube-scheduling", "10m", "--pool", "4"];
    let server = namespace.serve(&[&huge[..], &patient].concat())?;
    until(async || Ok((pods(&namespace)?.len() == 4).then_some(()))).await?;
    // What is half made goes with its server, too.
    drop(server);
    namespace.await_nothing()
}
