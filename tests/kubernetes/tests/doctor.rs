//! `ringfence doctor` on a real cluster: what it says is so, also where something is missing.

use ringfence_kubernetes_tests::cluster::{IMAGE, Namespace, Outcome, kubeconfig, ringfence};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Its answer, and its exit status.
fn doctor(config: &Path, namespace: &str, env: &[(&str, &str)]) -> Outcome<(Value, Option<i32>)> {
    let state = tempfile::tempdir()?;
    let done = Command::new(ringfence())
        .args(["doctor", "--backend", "kubernetes", "--json"])
        .env("KUBECONFIG", config)
        .env("RINGFENCE_STATE_DIR", state.path())
        .env("RINGFENCE_KUBERNETES_NAMESPACE", namespace)
        .env("RINGFENCE_DOCKER_IMAGE", IMAGE)
        .envs(env.iter().copied())
        .output()?;
    let stderr = String::from_utf8_lossy(&done.stderr);
    let answer = serde_json::from_slice(&done.stdout).map_err(|e| format!("{e}: {stderr}"))?;
    Ok((answer, done.status.code()))
}

fn check<'a>(answer: &'a Value, name: &str) -> Outcome<&'a Value> {
    let checks = answer["checks"].as_array();
    let found = checks.and_then(|all| all.iter().find(|check| check["name"] == name));
    found.ok_or_else(|| format!("no {name}: {answer:#}").into())
}

#[test]
fn a_cluster_is_tried_and_told() -> Outcome {
    let namespace = Namespace::new("doctor")?;
    let (answer, status) = doctor(&kubeconfig()?, &namespace.0, &[])?;
    assert_eq!(status, Some(0), "{answer:#}");
    for name in [
        "cluster",
        "namespace",
        "rights",
        "pod",
        "reach",
        "privileges",
        "memory",
        "network",
    ] {
        assert_eq!(check(&answer, name)?["state"], "held", "{answer:#}");
    }
    // Who may do everything may do too much.
    let more = check(&answer, "no more rights")?;
    assert_eq!(more["state"], "weak", "{more}");
    assert!(more["means"].to_string().contains("get secrets"), "{more}");
    let pids = check(&answer, "processes limit")?;
    assert!(pids["fix"].to_string().contains("podPidsLimit"), "{pids}");
    namespace.await_nothing()?;

    // A policy that this cluster does not enforce is not believed.
    let env = [("RINGFENCE_KUBERNETES_NETWORK_POLICY", "true")];
    let (answer, status) = doctor(&kubeconfig()?, &namespace.0, &env)?;
    let network = check(&answer, "network")?;
    assert_eq!(network["state"], "missing", "{answer:#}");
    assert!(
        network["fix"].to_string().contains("network_policy"),
        "{network}"
    );
    assert_eq!(status, Some(78));
    namespace.await_nothing()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_named_with_its_fix() -> Outcome {
    let (answer, status) = doctor(&kubeconfig()?, "rf-nowhere", &[])?;
    assert_eq!(status, Some(78), "{answer:#}");
    let namespace = check(&answer, "namespace")?;
    assert_eq!(namespace["state"], "missing");
    assert_eq!(namespace["fix"], "kubectl create namespace rf-nowhere");
    assert_eq!(check(&answer, "pod")?["state"], "missing", "{answer:#}");

    let namespace = Namespace::new("rights")?;
    let folder = tempfile::tempdir()?;
    let config = namespace.config_of("default", folder.path()).await?;
    let (answer, status) = doctor(&config, &namespace.0, &[])?;
    assert_eq!(status, Some(78), "{answer:#}");
    let rights = check(&answer, "rights")?;
    assert!(
        rights["means"].to_string().contains("create pods"),
        "{rights}"
    );
    assert!(rights["fix"].to_string().contains("rbac.yaml"), "{rights}");
    // What it may not do is not done, and what it may not see is not asked for.
    assert_eq!(check(&answer, "pod")?["state"], "missing", "{answer:#}");
    assert_eq!(check(&answer, "no more rights")?["state"], "held");
    Ok(())
}
