//! Sandboxes as objects of kubernetes-sigs/agent-sandbox, on a real cluster: its resources are
//! applied, and a stand-in plays its controller.

use futures_util::future::join_all;
use ringfence_kubernetes_tests::agent::Controller;
use ringfence_kubernetes_tests::cluster::{
    Namespace, Outcome, Server, kubectl_ok, ringfence, until,
};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

const OBJECTS: &str = "pods,leases,sandboxes.agents.x-k8s.io,sandboxclaims,sandboxwarmpools,\
                       sandboxtemplates";
const AGENT: [&str; 4] = [
    "--kube-sandboxes",
    "agent-sandbox",
    "--kube-reach",
    "address",
];

fn items(namespace: &Namespace, what: &str) -> Outcome<Vec<Value>> {
    let all = namespace.get(what)?;
    Ok(all["items"].as_array().cloned().unwrap_or_default())
}

fn name(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str();
    name.unwrap_or_default().to_owned()
}

async fn printed(server: &Server, id: &str, code: &str) -> Outcome<String> {
    let done = server.code(id, code).await?;
    let text = done["stdout"].as_str().ok_or_else(|| done.to_string())?;
    Ok(text.trim_end().to_owned())
}

async fn delete(server: &Server, id: &str) -> Outcome {
    let (status, answer) = server
        .ask("DELETE", &format!("/sessions/{id}"), None)
        .await?;
    assert_eq!(status, 204, "{answer}");
    Ok(())
}

/// Waits until the pool has one that is ready and belongs to nobody, and names its pod.
async fn parked(namespace: &Namespace) -> Outcome<String> {
    until(async || {
        let sandboxes = items(namespace, "sandboxes.agents.x-k8s.io")?;
        let ready = sandboxes.iter().find(|one| {
            one["metadata"]["ownerReferences"][0]["kind"] == "SandboxWarmPool"
                && one["status"]["conditions"][0]["status"] == "True"
        });
        Ok(ready.map(name))
    })
    .await
}

/// A way to the cluster as an account that may do what `deploy/` says, and make no pod itself.
async fn least(namespace: &Namespace, folder: &Path) -> Outcome<PathBuf> {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let own = format!("namespace: {}\n", namespace.0);
    for file in ["base/rbac.yaml", "options/agent-sandbox.yaml"] {
        let text = fs::read_to_string(deploy.join(file))?
            .replace("namespace: ringfence-sandboxes\n", &own)
            .replace("namespace: ringfence\n", &own)
            .replace("[pods]\n  verbs: [create, ", "[pods]\n  verbs: [");
        let path = folder.join("rights.yaml");
        fs::write(&path, text)?;
        kubectl_ok(&["apply", "-f", path.to_str().ok_or("a strange path")?])?;
    }
    let account = format!("--as=system:serviceaccount:{}:ringfence", namespace.0);
    let may = namespace.kubectl(&["auth", "can-i", &account, "create", "pods"]);
    assert!(may.is_err(), "{may:?}");
    namespace.config_of("ringfence", folder).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_a_sandbox_or_a_claim_and_goes_with_it() -> Outcome {
    let namespace = Namespace::new("agent")?;
    let _controller = Controller::start(&namespace).await?;
    let folder = tempfile::tempdir()?;
    let config = least(&namespace, folder.path()).await?;
    let serve = |more: &[&str]| namespace.serve_by(&config, &[&AGENT, more].concat());

    let cold = serve(&[])?;
    let id = cold.session().await?;
    assert_eq!(printed(&cold, &id, "print(6 * 7)").await?, "42");
    let sandboxes = items(&namespace, "sandboxes.agents.x-k8s.io")?;
    assert_eq!(sandboxes.len(), 1, "{sandboxes:?}");
    let pod = namespace.get(&format!("pod/{}", name(&sandboxes[0])))?;
    let owner = &pod["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], sandboxes[0]["metadata"]["uid"], "{pod}");
    // It is as tight as a pod of our own.
    let spec = &pod["spec"];
    assert_eq!(spec["automountServiceAccountToken"], false);
    let security = &spec["containers"][0]["securityContext"];
    assert_eq!(security["capabilities"]["drop"][0], "ALL", "{security}");
    delete(&cold, &id).await?;
    namespace.await_none(OBJECTS)?;

    // One that is ready is claimed, by an object of the session's name; another takes its place.
    let warm = serve(&["--pool", "1"])?;
    let ready = parked(&namespace).await?;
    let id = warm.session().await?;
    assert_eq!(printed(&warm, &id, "x = 5; print(x)").await?, "5");
    let claims = items(&namespace, "sandboxclaims")?;
    assert_eq!(claims.len(), 1, "{claims:?}");
    assert_eq!(claims[0]["status"]["sandbox"]["name"], ready, "{claims:?}");
    assert_ne!(parked(&namespace).await?, ready);
    // A server that did not make it, and has no pool, serves it and ends it.
    assert_eq!(printed(&cold, &id, "print(x + 1)").await?, "6");
    delete(&cold, &id).await?;
    let left = items(&namespace, "sandboxclaims")?;
    assert!(left.is_empty(), "{left:?}");
    // What a server keeps ready goes when it stops.
    drop(warm);
    namespace.await_none(OBJECTS)
}

#[tokio::test(flavor = "multi_thread")]
async fn another_server_adopts_and_a_key_means_one_sandbox() -> Outcome {
    let namespace = Namespace::new("agents")?;
    let _controller = Controller::start(&namespace).await?;
    let pooled = [&AGENT[..], &["--pool", "1"]].concat();
    let mut first = namespace.serve(&pooled)?;
    parked(&namespace).await?;
    let claimed = first.session().await?;
    // A spec with a label of the caller's own gets a sandbox of its own.
    let labelled = json!({"spec": {"labels": {"mine": "x"}}});
    let cold = first.session_with(&labelled).await?;
    let kinds: Vec<_> = items(&namespace, "sandboxclaims")?
        .iter()
        .map(name)
        .collect();
    assert_eq!(kinds.len(), 1, "{kinds:?}");
    for (id, value) in [(&claimed, 1), (&cold, 2)] {
        printed(&first, id, &format!("x = {value}")).await?;
    }
    first.kill()?;

    let (second, third) = (namespace.serve(&pooled)?, namespace.serve(&pooled)?);
    for server in [&second, &third] {
        assert_eq!(printed(server, &claimed, "print(x)").await?, "1");
        assert_eq!(printed(server, &cold, "print(x)").await?, "2");
    }
    let mut made = vec![claimed, cold];
    for spec in [json!({}), json!({"labels": {"mine": "x"}})] {
        let body = json!({"key": spec.to_string(), "spec": spec});
        let servers = [&second, &third, &second, &third];
        let asked = servers.map(|server| server.session_with(&body));
        let ids: Vec<String> = join_all(asked).await.into_iter().collect::<Outcome<_>>()?;
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        made.extend(ids.into_iter().take(1));
    }
    let belong = |pod: &&Value| pod["metadata"]["annotations"]["ringfence.plan"].is_string();
    let pods = items(&namespace, "pods")?;
    assert_eq!(pods.iter().filter(belong).count(), made.len(), "{pods:?}");
    for id in &made {
        delete(&third, id).await?;
    }
    drop((second, third));
    // The pool of the one that was killed stays, as pods would.
    namespace.await_none("sandboxclaims")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_others_delete_does_not_come_back_empty() -> Outcome {
    let namespace = Namespace::new("agentless")?;
    let _controller = Controller::start(&namespace).await?;
    let server = namespace.serve(&AGENT)?;
    let id = server.session().await?;
    printed(&server, &id, "x = 1").await?;
    let pod = namespace.names("pods")?.remove(0);
    namespace.kubectl(&["delete", &pod, "--grace-period=0", "--force"])?;
    namespace.await_none(OBJECTS)?;
    let body = json!({"tool": "bash_code_execution", "input": {"command": "true"}});
    let (status, later) = server.post(&format!("/sessions/{id}/exec"), &body).await?;
    assert_eq!(status, 404, "{later}");
    // What the controller can't do is told in its words.
    namespace.kubectl(&["create", "quota", "none", "--hard=pods=0"])?;
    until(async || {
        let quota = namespace.get("quota/none")?;
        Ok((quota["status"]["hard"]["pods"] == "0").then_some(()))
    })
    .await?;
    let refused = server.session().await.err().ok_or("it was made")?;
    assert!(refused.to_string().contains("exceeded quota"), "{refused}");
    namespace.await_none(OBJECTS)
}

/// An API server of a cluster without agent-sandbox: it says its version, and knows nothing else.
fn bare() -> Outcome<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap_or_default();
            let version = request[..length].starts_with(b"GET /version ");
            let (status, body) = match version {
                true => (
                    "200 OK",
                    r#"{"major":"1","minor":"30","gitVersion":"v1.30.0","gitCommit":"","gitTreeState":"","buildDate":"","goVersion":"","compiler":"","platform":""}"#,
                ),
                false => (
                    "404 Not Found",
                    r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","message":"not found","code":404}"#,
                ),
            };
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
        }
    });
    Ok(address)
}

#[test]
fn a_cluster_without_it_is_told_at_the_start() -> Outcome {
    let folder = tempfile::tempdir()?;
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bare", "cluster": {"server": bare()?}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "bare", "context": {"cluster": "bare", "user": "me"}}],
        "current-context": "bare",
    });
    let path = folder.path().join("config");
    fs::write(&path, config.to_string())?;
    let done = Command::new(ringfence())
        .args([
            "serve",
            "--backend",
            "kubernetes",
            "--no-auth",
            "--listen",
            "127.0.0.1:0",
        ])
        .args(AGENT)
        .env("KUBECONFIG", &path)
        .env("RINGFENCE_STATE_DIR", folder.path())
        .output()?;
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success(), "{said}");
    assert!(
        said.contains("has no sandboxes of agents.x-k8s.io/v1beta1"),
        "{said}"
    );
    assert!(
        said.contains("install kubernetes-sigs/agent-sandbox"),
        "{said}"
    );
    Ok(())
}
