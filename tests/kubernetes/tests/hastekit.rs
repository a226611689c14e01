//! The manager of HasteKit names real pods, and a client reaches the daemon there.

use ringfence_kubernetes_tests::cluster::{Namespace, Outcome};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_client_reaches_the_daemon_at_the_address_of_its_pod() -> Outcome {
    let namespace = Namespace::new("hastekit")?;
    let direct = namespace.serve(&["--hastekit", "--hastekit-pod-address"])?;
    let body = json!({"session_id": "one"});
    let (status, answer) = direct.post("/api/sandbox", &body).await?;
    assert_eq!(status, 200, "{answer}");
    let handle = &answer["data"];
    let name = handle["pod_name"].as_str().ok_or("no name")?;
    let pod = namespace.get(&format!("pod/{name}"))?;
    assert_eq!(pod["status"]["podIP"], handle["pod_ip"]);
    let url = format!(
        "http://{}:{}/exec/bash",
        handle["pod_ip"].as_str().unwrap_or_default(),
        handle["port"]
    );
    let done = direct
        .http
        .post(url)
        .json(&json!({"script": "echo $((6 * 7)); pwd"}))
        .send()
        .await?;
    let done: serde_json::Value = done.json().await?;
    assert_eq!(done["stdout"], "42\n/sandbox/workspace\n", "{done}");
    // Without asking for it, the server relays, and no port of the pod is open.
    let relaying = namespace.serve(&["--hastekit"])?;
    let body = json!({"session_id": "two"});
    let (status, answer) = relaying.post("/api/sandbox", &body).await?;
    assert_eq!(status, 200, "{answer}");
    let handle = &answer["data"];
    assert_eq!(handle["pod_ip"], "127.0.0.1");
    let name = handle["pod_name"].as_str().ok_or("no name")?;
    let pod = namespace.get(&format!("pod/{name}"))?;
    let ip = pod["status"]["podIP"]
        .as_str()
        .ok_or("no address")?
        .to_owned();
    assert!(
        tokio::net::TcpStream::connect((ip.as_str(), 8080))
            .await
            .is_err()
    );
    let url = format!("http://127.0.0.1:{}/exec/bash", handle["port"]);
    let done = relaying
        .http
        .post(url)
        .json(&json!({"script": "echo here"}))
        .send()
        .await?;
    assert!(done.text().await?.contains("here"));
    Ok(())
}
