//! `deploy/` on a real cluster: applied as its README says, used over HTTP, and removed.

use ringfence_http_tests::{bearer, key};
use ringfence_kubernetes_tests::cluster::{
    Outcome, command, kubectl, kubectl_ok, ringfence, until,
};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SERVERS: &str = "ringfence";
const SANDBOXES: &str = "ringfence-sandboxes";
/// Where the overlay lets the server listen, on the node itself.
const URL: &str = "http://127.0.0.1:17080";
/// Who the server is.
const ACCOUNT: &str = "--as=system:serviceaccount:ringfence:ringfence";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn overlay() -> String {
    root().join("tests/engines/deploy").display().to_string()
}

/// Builds the server image with the program under test, and brings it into the cluster.
fn image() -> Outcome {
    let context = tempfile::tempdir()?;
    for name in ["Dockerfile", "seccomp.json"] {
        let from = root().join("images/server").join(name);
        fs::copy(from, context.path().join(name))?;
    }
    fs::copy(ringfence(), context.path().join("ringfence"))?;
    let built = Command::new("docker")
        .env("DOCKER_BUILDKIT", "0")
        .args([
            "build",
            "--quiet",
            "--build-arg",
            "BASE=ringfence-test/debian",
        ])
        .args(["--tag", "ringfence-test/server"])
        .arg(context.path())
        .output()?;
    if !built.status.success() {
        return Err(String::from_utf8_lossy(&built.stderr).into());
    }
    let imported = Command::new(root().join("tests/engines/cluster-up"))
        .arg("ringfence-test/server")
        .output()?;
    match imported.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&imported.stderr).into()),
    }
}

/// What was applied, removed in any case.
struct Applied;

impl Drop for Applied {
    fn drop(&mut self) {
        for namespace in [SERVERS, SANDBOXES] {
            let pods = [
                "delete",
                "pods",
                "--all",
                "--grace-period=0",
                "--force",
                "-n",
                namespace,
            ];
            let _ = kubectl(&pods);
            let _ = kubectl(&["delete", "namespace", namespace, "--ignore-not-found"]);
        }
    }
}

/// Whether the API server lets the server's account do this: in which namespace, and what.
fn may(namespace: &str, what: &[&str]) -> Outcome<bool> {
    let args = [&["auth", "can-i", ACCOUNT, "--namespace", namespace], what].concat();
    let said = kubectl(&args)?;
    match String::from_utf8_lossy(&said.stdout).trim() {
        "yes" => Ok(true),
        "no" => Ok(false),
        other => Err(format!(
            "{args:?}: {other} {}",
            String::from_utf8_lossy(&said.stderr)
        )
        .into()),
    }
}

/// The least that is needed, and each of these would be refused.
fn rights() -> Outcome {
    for what in [
        ["create", "pods"],
        ["watch", "pods"],
        ["patch", "pods"],
        ["delete", "pods"],
        ["list", "events"],
        ["create", "leases.coordination.k8s.io"],
        ["create", "persistentvolumeclaims"],
    ] {
        assert!(may(SANDBOXES, &what)?, "{what:?} is needed");
        // The same in its own namespace, where its keys are, and in another.
        assert!(!may(SERVERS, &what)?, "{what:?} among the servers");
        assert!(!may("kube-system", &what)?, "{what:?} elsewhere");
    }
    // `pods/exec` would be a pod of that name: parts of a resource are named by a flag.
    for what in [
        "get secrets",
        "list secrets",
        "create secrets",
        "get configmaps",
        "create pods --subresource=exec",
        "get pods --subresource=exec",
        "create pods --subresource=attach",
        "get pods --subresource=log",
        "patch pods --subresource=ephemeralcontainers",
        "patch pods --subresource=status",
        "create serviceaccounts --subresource=token",
        "create roles.rbac.authorization.k8s.io",
        "create rolebindings.rbac.authorization.k8s.io",
        "delete networkpolicies.networking.k8s.io",
        "patch networkpolicies.networking.k8s.io",
        "deletecollection pods",
        "get nodes",
        "list namespaces",
        "create deployments.apps",
    ] {
        let words: Vec<&str> = what.split(' ').collect();
        assert!(!may(SANDBOXES, &words)?, "{what} is allowed");
        assert!(
            !may(SERVERS, &words)?,
            "{what} is allowed among the servers"
        );
        // Who may do everything may do this: the question is asked well.
        let asked = ["auth", "can-i", "--namespace", SANDBOXES];
        assert_eq!(kubectl_ok(&[&asked[..], &words].concat())?, "yes", "{what}");
    }
    Ok(())
}

#[tokio::test]
async fn the_manifests_make_a_server_with_the_least_rights() -> Outcome {
    image()?;
    let applied = Applied;
    // As the README says: keys first, then the manifests.
    let keys = tempfile::tempdir()?;
    let state = keys.path().join("keys");
    let secret = key(&state, "gateway", &[])?;
    fs::write(state.join("session.secret"), [7; 32])?;
    kubectl_ok(&["create", "namespace", SERVERS])?;
    let file = |name: &str| format!("--from-file={}", state.join(name).display());
    let make = [
        "create",
        "secret",
        "generic",
        "ringfence-keys",
        "-n",
        SERVERS,
    ];
    kubectl_ok(&[&make[..], &[&file("keys.json"), &file("session.secret")]].concat())?;
    kubectl_ok(&["apply", "-k", &overlay()])?;
    let rolled = [
        "rollout",
        "status",
        "deployment/ringfence",
        "--timeout=150s",
        "-n",
        SERVERS,
    ];
    if let Err(failure) = kubectl_ok(&rolled) {
        let pods = kubectl_ok(&["describe", "pods", "-n", SERVERS])?;
        let logs = kubectl(&["logs", "deployment/ringfence", "-n", SERVERS])?;
        let logs = String::from_utf8_lossy(&logs.stdout);
        return Err(format!("{failure}\n{pods}\n{logs}").into());
    }
    rights()?;

    // A stranger is refused, and the key of the Secret opens.
    let sessions = format!("{URL}/sessions");
    let refused = bearer("rf_none")?
        .post(&sessions)
        .json(&json!({}))
        .send()
        .await?;
    assert_eq!(refused.status(), 401);
    let http = bearer(&secret)?;
    let made = http.post(&sessions).json(&json!({})).send().await?;
    let made: Value = made.error_for_status()?.json().await?;
    let id = made["session_id"].as_str().ok_or("no session")?.to_owned();
    let call = json!({"tool": "code_execution", "input": {"code": "print(6 * 7)"}});
    let done = http
        .post(format!("{sessions}/{id}/exec"))
        .json(&call)
        .send()
        .await?;
    let done: Value = done.error_for_status()?.json().await?;
    assert_eq!(done["result_block"]["content"]["stdout"], "42", "{done}");

    // It is a pod there, and what is said of it is so.
    let text = kubectl_ok(&["get", "pods", "-n", SANDBOXES, "-o", "json"])?;
    let pods: Value = serde_json::from_str(&text)?;
    let pod = &pods["items"][0];
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(1), "{pods}");
    assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
    http.delete(format!("{sessions}/{id}"))
        .send()
        .await?
        .error_for_status()?;
    until(async || {
        let left = kubectl_ok(&["get", "pods", "-n", SANDBOXES, "-o", "name"])?;
        Ok(left.is_empty().then_some(()))
    })
    .await?;

    // Removed as the README says, with nothing left.
    let mut gone = command(["delete", "-k", &overlay(), "--timeout=100s"])?;
    let gone = gone.output()?;
    assert!(
        gone.status.success(),
        "{}",
        String::from_utf8_lossy(&gone.stderr)
    );
    let left = kubectl_ok(&["get", "namespaces", "-o", "name"])?;
    assert!(!left.contains("namespace/ringfence"), "{left}");
    drop(applied);
    Ok(())
}
