//! What goes wrong around pods: an API server that is away, pods that others hold, a node that is
//! lost. Each time a clear answer in bounded time, and what was asked for is done in the end.

use ringfence_kubernetes_tests::cluster::{
    Namespace, Outcome, Server, command, kubectl, kubectl_ok, ringfence, until,
};
use ringfence_kubernetes_tests::gate::{Gate, Way};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

async fn delete(server: &Server, session: &str) -> Outcome<(u16, Value)> {
    let path = format!("/sessions/{session}");
    server.ask("DELETE", &path, None).await
}

async fn assert_gone(server: &Server, session: &str) -> Outcome {
    let (status, answer) = server.get(&format!("/sessions/{session}")).await?;
    assert_eq!(status, 404, "{answer}");
    Ok(())
}

async fn api_server_away(way: Way) -> Outcome {
    let namespace = Namespace::new("away")?;
    let gate = Gate::new().await?;
    let server = namespace.serve_by(
        &gate.kubeconfig(),
        &[
            "--kube-reach",
            "address",
            "--kube-reserve",
            "1",
            "--kube-scheduling",
            "10m",
        ],
    )?;
    let small = json!({"spec": {"limits": {"memory": "96m", "cpus": 0.05}}});
    let kept = server.session_with(&small).await?;
    let unwanted = server.session_with(&small).await?;
    server.code(&kept, "x = 20").await?;
    // No node takes it, so it is being made for as long as it may.
    let waits = async {
        let huge = json!({"spec": {"limits": {"memory": "900g"}}});
        server.post("/sessions", &huge).await
    };
    let rest = async {
        until(async || Ok((namespace.names("pods")?.len() == 3).then_some(()))).await?;
        gate.set(way);
        let answers = tokio::join!(
            server.code(&kept, "print(x + 22)"),
            server.post("/sessions", &small),
            delete(&server, &unwanted),
        );
        // What is there goes on, over new connections too.
        assert_eq!(answers.0?["stdout"], "42");
        assert_eq!(server.bash(&kept, "echo on").await?["stdout"], "on\n");
        let (status, refused) = answers.1?;
        assert_eq!(status, 503, "{refused}");
        assert!(
            refused.to_string().contains("API server does not answer"),
            "{refused}"
        );
        let (status, told) = answers.2?;
        assert_eq!(status, 503, "{told}");
        assert!(told["hint"].to_string().contains("is removed"), "{told}");
        assert_gone(&server, &unwanted).await?;
        Ok(())
    };
    let (waited, done): (_, Outcome) = tokio::join!(waits, rest);
    done?;
    let (status, refused) = waited?;
    assert_eq!(status, 503, "{refused}");
    assert!(
        refused.to_string().contains("API server does not answer"),
        "{refused}"
    );
    // The control: the cluster knows nothing of it all.
    assert_eq!(namespace.names("pods")?.len(), 3);

    gate.set(Way::Open);
    // Nobody asks again.
    until(async || Ok((namespace.names("pods")?.len() == 1).then_some(()))).await?;
    assert_eq!(server.code(&kept, "print(x + 23)").await?["stdout"], "43");
    // The watch hears of new pods, and of ends.
    let new = until(async || Ok(server.session_with(&small).await.ok())).await?;
    let pod = namespace.pod_of(&kept)?;
    let call = server.bash(&kept, "sleep 600");
    let end = async {
        namespace.kubectl(&["delete", &pod, "--grace-period=0", "--force"])?;
        Ok(())
    };
    let (answer, ended): (_, Outcome) = tokio::join!(call, end);
    ended?;
    let answer = answer.map_or_else(|e| e.to_string(), |answer| answer.to_string());
    assert!(answer.contains("Deleted"), "{answer}");
    assert_eq!(delete(&server, &new).await?.0, 204);
    namespace.await_nothing()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_down_for_a_while() -> Outcome {
    api_server_away(Way::Shut).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_silent_for_a_while() -> Outcome {
    api_server_away(Way::Silent).await
}

/// A pod that is held by a finalizer, until this is dropped.
struct Held<'a> {
    namespace: &'a Namespace,
    pod: String,
}

impl<'a> Held<'a> {
    fn new(namespace: &'a Namespace, pod: String) -> Outcome<Self> {
        let held = Self { namespace, pod };
        held.set(r#"["example.com/hold"]"#)?;
        Ok(held)
    }

    fn set(&self, finalizers: &str) -> Outcome<String> {
        let patch = format!(r#"{{"metadata": {{"finalizers": {finalizers}}}}}"#);
        self.namespace
            .kubectl(&["patch", &self.pod, "--type=merge", "--patch", &patch])
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _ = self.set("null");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_others_hold_is_told_and_goes_when_they_let_go() -> Outcome {
    let namespace = Namespace::new("held")?;
    let (server, other) = (namespace.serve(&[])?, namespace.serve(&[])?);
    let id = server.session_with(&json!({"key": "held"})).await?;
    let held = Held::new(&namespace, namespace.pod_of(&id)?)?;
    let (status, told) = delete(&server, &id).await?;
    assert_eq!(status, 409, "{told}");
    assert!(told.to_string().contains("example.com/hold"), "{told}");
    // The control: the cluster still has it.
    assert_eq!(namespace.names("pods")?.len(), 1);
    // It is gone for callers of every server, and what ran in it has ended.
    for server in [&server, &other] {
        let (_, listed) = server.get("/sessions").await?;
        assert!(!listed.to_string().contains(&id), "{listed}");
        assert_gone(server, &id).await?;
    }
    until(async || {
        let pod = namespace.get(&held.pod)?;
        let state = &pod["status"]["containerStatuses"][0]["state"];
        Ok(state["running"].is_null().then_some(()))
    })
    .await?;
    drop(held);
    namespace.await_nothing()?;
    // Its key is free again.
    let again = until(async || Ok(server.session_with(&json!({"key": "held"})).await.ok())).await?;
    assert_eq!(server.bash(&again, "echo new").await?["stdout"], "new\n");
    assert_eq!(delete(&other, &again).await?.0, 204);
    namespace.await_nothing()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_fills_its_memory_is_told_by_the_clusters_reason() -> Outcome {
    let namespace = Namespace::new("filled")?;
    let server = namespace.serve(&["--kube-reach", "address"])?;
    let spec = json!({"spec": {"limits": {"memory": "64m"}}});
    let id = server.session_with(&spec).await?;
    // Files in memory stay when who wrote them is killed, so in the end there is no place for the
    // guest either.
    let command = "for f in /tmp/a /workspace/b; do head -c 200000000 /dev/zero > $f; done";
    let input = json!({"tool": "bash_code_execution", "input": {"command": command}});
    let path = format!("/sessions/{id}/exec");
    let certificate = until(async || {
        let mut events = server.events("POST", &path, Some(&input), None).await?;
        while let Some(event) = events.next().await? {
            if event.name == "certificate" && event.data["ended"] == "sandbox" {
                return Ok(Some(event.data));
            }
        }
        Ok(None)
    })
    .await?;
    assert_eq!(certificate["cause"], "memory", "{certificate}");
    assert_eq!(certificate["limit"], "64 MiB", "{certificate}");
    let message = certificate["message"].to_string();
    assert!(message.contains("OOMKilled"), "{certificate}");
    Ok(())
}

/// A label and a taint of nodes that are not there.
const NODE: &str = "ringfence.test/node";

/// A node that no kubelet serves: what it does, a test does.
struct FakeNode {
    name: String,
    /// The guest of its pod.
    guest: Option<Child>,
}

/// `kubectl` with an object to read.
fn give(args: &[&str], object: &Value) -> Outcome {
    let mut kubectl = command(args)?
        .arg("--filename=-")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let mut input = kubectl.stdin.take().ok_or("no input")?;
    input.write_all(object.to_string().as_bytes())?;
    drop(input);
    match kubectl.wait()?.success() {
        true => Ok(()),
        false => Err(format!("kubectl {}: {object}", args.join(" ")).into()),
    }
}

impl FakeNode {
    fn new(namespace: &Namespace) -> Outcome<Self> {
        let node = Self {
            name: namespace.0.clone(),
            guest: None,
        };
        // Nobody else's pods come here.
        let object = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node.name, "labels": {NODE: node.name}},
            "spec": {"taints": [{"key": NODE, "effect": "NoSchedule"}]},
        });
        give(&["create"], &object)?;
        node.say("True")?;
        Ok(node)
    }

    /// Whether it is ready.
    fn say(&self, ready: &str) -> Outcome {
        let text = kubectl_ok(&["get", "node", &self.name, "--output=json"])?;
        let mut node: Value = serde_json::from_str(&text)?;
        let much = json!({"cpu": "4", "memory": "8Gi", "pods": "10", "ephemeral-storage": "20Gi"});
        node["status"] = json!({
            "capacity": much,
            "allocatable": much,
            "conditions": [{"type": "Ready", "status": ready, "reason": "Test"}],
        });
        let path = format!("/api/v1/nodes/{}/status", self.name);
        give(&["replace", "--raw", &path], &node)
    }

    /// Runs a pod that was bound to it, as processes of this machine.
    fn run(&mut self, namespace: &Namespace, pod: &Value, folder: &Path) -> Outcome {
        let program = folder.join("guest");
        let mut write = Command::new(ringfence());
        assert!(write.arg("guest").arg(&program).status()?.success());
        let args = pod["spec"]["containers"][0]["args"].as_array();
        let args = args.ok_or("no arguments")?.iter().filter_map(Value::as_str);
        let own = ["--pid", "--fork", "--mount-proc", "--kill-child=KILL"];
        let mut guest = Command::new("unshare");
        guest
            .args(own)
            .arg(program)
            .args(args.map(|word| match word {
                "/workspace" => folder.as_os_str(),
                word => OsStr::new(word),
            }));
        self.guest = Some(guest.stdin(Stdio::null()).spawn()?);
        say_running(namespace, pod, "True")
    }

    /// It is silent, and the cluster has noticed that.
    fn lose(&self, namespace: &Namespace) -> Outcome {
        let pods = namespace.get("pods")?;
        say_running(namespace, &pods["items"][0], "False")?;
        self.say("Unknown")
    }
}

/// Says of a pod that it runs, and whether it is ready.
fn say_running(namespace: &Namespace, pod: &Value, ready: &str) -> Outcome {
    let mut pod = pod.clone();
    pod["status"] = json!({
        "phase": "Running",
        "podIP": "127.0.0.1",
        "podIPs": [{"ip": "127.0.0.1"}],
        "conditions": [{"type": "Ready", "status": ready}],
        "containerStatuses": [{
            "name": "sandbox", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {}},
        }],
    });
    let name = pod["metadata"]["name"].as_str().ok_or("no name")?;
    let path = format!("/api/v1/namespaces/{}/pods/{name}/status", namespace.0);
    give(&["replace", "--raw", &path], &pod)
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        if let Some(guest) = &mut self.guest {
            let _ = guest.kill();
            let _ = guest.wait();
        }
        let _ = kubectl(&["delete", "node", &self.name, "--wait=false"]);
    }
}

/// The pod that was bound to a node.
async fn bound(namespace: &Namespace) -> Outcome<Value> {
    until(async || {
        let all = namespace.get("pods")?;
        let pod = &all["items"][0];
        Ok(pod["spec"]["nodeName"].is_string().then(|| pod.clone()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_lost_ends_its_sandboxes_within_seconds() -> Outcome {
    let namespace = Namespace::new("lost")?;
    let mut node = FakeNode::new(&namespace)?;
    let server = namespace.serve(&["--kube-reach", "address", "--allow", "cluster"])?;
    let spec = json!({"spec": {"container": {"kubernetes": {
        "node_selector": {NODE: node.name},
        "tolerations": [{"key": NODE, "operator": "Exists"}],
    }}}});
    let folder = tempfile::tempdir()?;
    let starting = async {
        let pod = bound(&namespace).await?;
        node.run(&namespace, &pod, folder.path())
    };
    let (id, started) = tokio::join!(server.session_with(&spec), starting);
    started?;
    let id = id?;
    // The control: it works while its node is there.
    assert_eq!(server.bash(&id, "echo there").await?["stdout"], "there\n");

    let input = json!({"command": "echo begun; sleep 110"});
    let body = json!({"tool": "bash_code_execution", "input": input, "timeout_seconds": 120});
    let path = format!("/sessions/{id}/exec");
    let mut events = server.events("POST", &path, Some(&body), None).await?;
    events.until("stdout").await?;
    // The guest says nothing of it: only the cluster can tell.
    node.lose(&namespace)?;
    let ended = events.until("certificate").await?;
    let certificate = &ended.last().ok_or("no events")?.data;
    assert_eq!(certificate["cause"], "backend_lost", "{certificate}");
    assert_eq!(certificate["ended"], "sandbox", "{certificate}");
    let message = certificate["message"].to_string();
    assert!(message.contains("NodeNotReady"), "{certificate}");
    assert_gone(&server, &id).await?;
    // Nobody confirms the end of the pod; it goes all the same.
    namespace.await_nothing()
}
