//! What is asked for is what the pod has: looked at through the cluster's own eyes.

use ringfence_kubernetes_tests::cluster::{GUEST, Namespace, Outcome, kubectl, kubectl_ok, until};
use serde_json::{Value, json};
use std::path::Path;

/// The pod of the only session.
fn pod(namespace: &Namespace) -> Outcome<Value> {
    let all = namespace.get("pods")?;
    match all["items"].as_array().map(Vec::as_slice) {
        Some([one]) => Ok(one.clone()),
        _ => Err(format!("not one pod: {all}").into()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn defaults_are_tight() -> Outcome {
    let namespace = Namespace::new("tight")?;
    let server = namespace.serve(&["--kube-reach", "exec"])?;
    let (status, made) = server.post("/sessions", &json!({})).await?;
    assert_eq!(status, 201, "{made}");
    let id = made["session_id"].as_str().ok_or("no id")?;
    let pod = pod(&namespace)?;
    let spec = &pod["spec"];
    for (path, value) in [
        ("/automountServiceAccountToken", json!(false)),
        ("/enableServiceLinks", json!(false)),
        ("/restartPolicy", json!("Never")),
        (
            "/securityContext/seccompProfile/type",
            json!("RuntimeDefault"),
        ),
        ("/securityContext/fsGroup", json!(1000)),
        (
            "/containers/0/securityContext/allowPrivilegeEscalation",
            json!(false),
        ),
        (
            "/containers/0/securityContext/readOnlyRootFilesystem",
            json!(true),
        ),
        ("/containers/0/securityContext/runAsNonRoot", json!(true)),
        ("/containers/0/securityContext/runAsUser", json!(1000)),
        (
            "/containers/0/securityContext/capabilities/drop/0",
            json!("ALL"),
        ),
    ] {
        assert_eq!(spec.pointer(path), Some(&value), "{path}");
    }
    assert!(spec["hostNetwork"].is_null());
    assert!(
        spec["activeDeadlineSeconds"]
            .as_i64()
            .is_some_and(|s| s > 3600)
    );
    let limits = &spec["containers"][0]["resources"]["limits"];
    assert!(limits["ephemeral-storage"].is_string() && limits["memory"].is_string());
    // What a cluster does not enforce is in the answer.
    let pids = made["enforced"]
        .as_array()
        .and_then(|all| all.iter().find(|row| row["control"] == "pids"));
    assert_eq!(
        pids.map(|row| row["hold"].clone()),
        Some(json!("none")),
        "{made}"
    );
    // Nobody inside gets a socket, and nothing of the cluster is there to be read.
    let probe = "import socket, os\nfor f in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):\n    try: socket.socket(f, socket.SOCK_RAW if f == socket.AF_NETLINK else socket.SOCK_STREAM); print('open')\n    except OSError as e: print(e.errno)\nsocket.socket(socket.AF_UNIX); print('unix')\nprint(os.path.exists('/var/run/secrets/kubernetes.io'), [n for n in os.environ if 'KUBERNETES' in n])";
    let done = server.code(id, probe).await?;
    assert_eq!(done["stdout"], "97\n97\n97\nunix\nFalse []", "{done}");
    // The control: who asks for a network, and may, gets sockets.
    let open = namespace.serve(&["--allow", "network"])?;
    let body = json!({"spec": {"container": {"network": "bridge"}}});
    let other = open.session_with(&body).await?;
    let done = open
        .code(&other, "import socket; socket.socket(); print('open')")
        .await?;
    assert_eq!(done["stdout"], "open", "{done}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn options_reach_the_pod_where_they_are_allowed() -> Outcome {
    let namespace = Namespace::new("options")?;
    namespace.kubectl(&["create", "serviceaccount", "reader"])?;
    let node =
        namespace.get("nodes")?["items"][0]["metadata"]["labels"]["kubernetes.io/hostname"].clone();
    let asked = json!({"spec": {
        "env": {"WORD": "$(HOME) $$ costs"},
        "limits": {"cpus": 0.5, "memory": "256m"},
        "container": {
            "user": "1234:1235",
            "cap_add": ["CHOWN"],
            "read_only": false,
            "shm_size": "8m",
            "tmpfs": {"/scratch": "size=16m"},
            "extra_hosts": {"db.internal": "10.1.2.3"},
            "dns": ["10.9.9.9"],
            "kubernetes": {
                "node_selector": {"kubernetes.io/hostname": node},
                "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
                "service_account": "reader",
                "pull_secrets": ["registry"],
                "fs_group": 4321,
            },
        },
    }});
    let closed = namespace.serve(&[])?;
    let refused = closed
        .session_with(&asked)
        .await
        .err()
        .ok_or("it was made")?;
    assert!(refused.to_string().contains("not allowed"), "{refused}");
    let server = namespace.serve(&["--allow", "cluster"])?;
    let id = server.session_with(&asked).await?;
    let pod = pod(&namespace)?;
    let spec = &pod["spec"];
    for (path, value) in [
        ("/nodeSelector/kubernetes.io~1hostname", node),
        ("/serviceAccountName", json!("reader")),
        ("/automountServiceAccountToken", json!(true)),
        ("/imagePullSecrets/0/name", json!("registry")),
        ("/securityContext/fsGroup", json!(4321)),
        ("/containers/0/securityContext/runAsUser", json!(1234)),
        ("/containers/0/securityContext/runAsGroup", json!(1235)),
        (
            "/containers/0/securityContext/capabilities/add/0",
            json!("CHOWN"),
        ),
        ("/containers/0/resources/limits/cpu", json!("500m")),
        ("/dnsConfig/nameservers/0", json!("10.9.9.9")),
        ("/hostAliases/0/ip", json!("10.1.2.3")),
    ] {
        assert_eq!(spec.pointer(path), Some(&value), "{path}");
    }
    let tolerations = spec["tolerations"].to_string();
    assert!(tolerations.contains("gpu"), "{tolerations}");
    let probe = "id -u; id -g; echo \"$WORD\"; touch /scratch/x && echo scratch; grep -c db.internal /etc/hosts";
    let done = server.bash(&id, probe).await?;
    assert_eq!(
        done["stdout"], "1234\n1235\n$(HOME) $$ costs\nscratch\n1\n",
        "{done}"
    );
    Ok(())
}

/// Something of the whole cluster, removed in any case.
struct Applied(tempfile::NamedTempFile);

impl Applied {
    fn new(object: &Value) -> Outcome<Self> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(&file, object.to_string())?;
        let path = file.path().to_str().ok_or("a strange path")?;
        kubectl_ok(&["create", "-f", path])?;
        Ok(Self(file))
    }
}

impl Drop for Applied {
    fn drop(&mut self) {
        let path = self.0.path().display().to_string();
        let _ = kubectl(&["delete", "--wait=false", "-f", &path]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_class_is_the_pods() -> Outcome {
    let namespace = Namespace::new("runtime")?;
    let server = namespace.serve(&[])?;
    // One that the cluster does not have: it says so itself.
    let asked = json!({"spec": {"container": {"runtime": "rf-nowhere"}}});
    let refused = server
        .session_with(&asked)
        .await
        .err()
        .ok_or("it was made")?;
    assert!(refused.to_string().contains("rf-nowhere"), "{refused}");
    namespace.await_nothing()?;
    // One that it has, with the guest in the image and brought into it.
    let class = json!({
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": namespace.0},
        "handler": "runc",
    });
    let _class = Applied::new(&class)?;
    let brought = namespace.serve(&["--guest-image", GUEST])?;
    for server in [&server, &brought] {
        let asked = json!({"spec": {"container": {"runtime": namespace.0}}});
        let id = server.session_with(&asked).await?;
        let pod = pod(&namespace)?;
        assert_eq!(pod["spec"]["runtimeClassName"], namespace.0.as_str());
        let done = server.code(&id, "print(6 * 7)").await?;
        assert_eq!(done["stdout"], "42", "{done}");
        let (status, _) = server
            .ask("DELETE", &format!("/sessions/{id}"), None)
            .await?;
        assert_eq!(status, 204);
    }
    Ok(())
}

/// A volume of a folder of the node, and a claim of it; it need not be there.
async fn volume(namespace: &Namespace, folder: &Path) -> Outcome<[Applied; 2]> {
    let common = json!({
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
    });
    let mut volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": namespace.0},
        "spec": common,
    });
    volume["spec"]["capacity"] = json!({"storage": "16Mi"});
    volume["spec"]["hostPath"] = json!({"path": folder, "type": "Directory"});
    volume["spec"]["claimRef"] = json!({"namespace": namespace.0, "name": "mine"});
    let mut claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "mine", "namespace": namespace.0},
        "spec": common,
    });
    claim["spec"]["volumeName"] = json!(namespace.0);
    claim["spec"]["resources"] = json!({"requests": {"storage": "16Mi"}});
    let applied = [Applied::new(&volume)?, Applied::new(&claim)?];
    until(async || {
        let claim = namespace.get("persistentvolumeclaim/mine")?;
        Ok((claim["status"]["phase"] == "Bound").then_some(()))
    })
    .await?;
    Ok(applied)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_can_not_be_mounted_is_told_in_the_clusters_words() -> Outcome {
    let namespace = Namespace::new("mount")?;
    let folder = tempfile::tempdir()?;
    let _applied = volume(&namespace, &folder.path().join("nowhere")).await?;
    let allowed = ["--allow", "cluster", "--allow", "volumes"];
    let server = namespace.serve(&[&allowed[..], &["--kube-scheduling", "1s"]].concat())?;
    let asked = json!({"spec": {"container": {"kubernetes": {"claim": "mine"}}}});
    let refused = server.session_with(&asked).await.err();
    let refused = refused.ok_or("it was made")?.to_string();
    assert!(refused.contains("FailedMount"), "{refused}");
    assert!(refused.contains("nowhere"), "{refused}");
    namespace.await_none("pods")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_the_callers_own_is_the_workspace_and_stays() -> Outcome {
    let namespace = Namespace::new("claim")?;
    let folder = tempfile::tempdir()?;
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(), everybody)?;
    let _applied = volume(&namespace, folder.path()).await?;
    let asked = json!({"spec": {"container": {"kubernetes": {"claim": "mine"}}}});
    let closed = namespace.serve(&[])?;
    let refused = closed.session_with(&asked).await.err();
    let refused = refused.ok_or("it was made")?.to_string();
    assert!(refused.contains("not allowed"), "{refused}");
    let server = namespace.serve(&["--allow", "cluster", "--allow", "volumes"])?;
    for (command, said) in [
        ("echo kept > file; cat file", "kept\n"),
        ("cat file", "kept\n"),
    ] {
        let id = server.session_with(&asked).await?;
        let done = server.bash(&id, command).await?;
        assert_eq!(done["stdout"], said, "{done}");
        let (status, _) = server
            .ask("DELETE", &format!("/sessions/{id}"), None)
            .await?;
        assert_eq!(status, 204);
    }
    assert_eq!(namespace.names("persistentvolumeclaims")?.len(), 1);
    assert_eq!(std::fs::read(folder.path().join("file"))?, b"kept\n");
    Ok(())
}
