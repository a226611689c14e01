//! Every end that a cluster puts to a sandbox is told with the cluster's own reason.

use ringfence_kubernetes_tests::cluster::{Namespace, Outcome, Server, until};
use serde_json::{Value, json};

async fn session(server: &Server, spec: Value) -> Outcome<String> {
    server.session_with(&json!({"spec": spec})).await
}

/// What is answered to a call whose sandbox ends under it.
async fn broken_call(server: &Server, id: &str, end: impl FnOnce() -> Outcome) -> Outcome<String> {
    let call = server.bash(id, "echo begun > /workspace/begun; sleep 600");
    let ender = async {
        // It runs before anything ends it.
        loop {
            let there = server.bash(id, "cat /workspace/begun").await?;
            if there["stdout"] == "begun\n" {
                return end();
            }
        }
    };
    let (answer, ended) = tokio::join!(call, ender);
    ended?;
    Ok(answer.map_or_else(|e| e.to_string(), |answer| answer.to_string()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_deleted_ends_its_session_at_once() -> Outcome {
    let namespace = Namespace::new("deleted")?;
    for reach in ["address", "exec"] {
        let server = namespace.serve(&["--kube-reach", reach])?;
        let id = session(&server, json!({})).await?;
        let name = namespace.names("pods")?.remove(0);
        let answer = broken_call(&server, &id, || {
            namespace.kubectl(&["delete", &name, "--grace-period=0", "--force"])?;
            Ok(())
        })
        .await?;
        assert!(answer.contains("Deleted"), "{reach}: {answer}");
        // And it is gone for who comes later, with the reason.
        let body = json!({"tool": "bash_code_execution", "input": {"command": "true"}});
        let (status, later) = server.post(&format!("/sessions/{id}/exec"), &body).await?;
        assert_eq!(status, 404, "{later}");
    }
    namespace.await_nothing()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_a_certificate() -> Outcome {
    let namespace = Namespace::new("stream")?;
    let server = namespace.serve(&[])?;
    let bash =
        json!({"tool": "bash_code_execution", "input": {"command": "echo begun; sleep 600"}});
    let code = "import time\nprint('begun', flush=True)\ntime.sleep(600)";
    let code = json!({"tool": "code_execution", "input": {"code": code}});
    for call in [bash, code] {
        let id = session(&server, json!({})).await?;
        let path = format!("/sessions/{id}/exec");
        let mut events = server.events("POST", &path, Some(&call), None).await?;
        events.until("stdout").await?;
        let pod = namespace.pod_of(&id)?;
        namespace.kubectl(&["delete", &pod, "--grace-period=0", "--force"])?;
        let rest = events.until("failure").await?;
        // The rest of the output may come first.
        let [.., certificate, failure] = rest.as_slice() else {
            return Err(format!("{rest:?}").into());
        };
        assert_eq!(certificate.name, "certificate");
        assert_eq!(certificate.data["ended"], "sandbox");
        assert!(certificate.data["message"].to_string().contains("Deleted"));
        assert_eq!(failure.data["certificate"], certificate.data);
    }
    namespace.await_nothing()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fills_its_memory_with_files_is_evicted_and_told_so() -> Outcome {
    let namespace = Namespace::new("evicted")?;
    let server = namespace.serve(&["--kube-reach", "address"])?;
    let spec = json!({"limits": {"memory": "1g"}});
    let id = session(&server, spec).await?;
    // More than the volume's limit and less than the memory's; newer clusters refuse the write.
    let mut command = "head -c 200000000 /dev/zero > /tmp/big && sleep 300";
    let told = |answer: &str| answer.contains("Evicted") || answer.contains("No space left");
    let mut answer = String::new();
    // The kubelet looks now and then; a call has its own time limit, so there may be several.
    for _ in 0..10 {
        let done = server.bash(&id, command).await;
        answer = done.map_or_else(|e| e.to_string(), |answer| answer.to_string());
        if !answer.contains("wall_clock") {
            break;
        }
        command = "sleep 300";
    }
    assert!(told(&answer), "{answer}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_start_is_refused_with_the_clusters_reason() -> Outcome {
    let namespace = Namespace::new("refused")?;
    let server = namespace.serve(&["--kube-reserve", "1"])?;
    for (spec, words) in [
        (
            json!({"container": {"image": "ringfence-test/nowhere"}}),
            "Image",
        ),
        (json!({"limits": {"memory": "900g"}}), "Unschedulable"),
    ] {
        let refused = session(&server, spec).await.err().ok_or("it was made")?;
        assert!(refused.to_string().contains(words), "{refused}");
    }
    // An image that is to bring the guest and has none.
    let empty = namespace.serve(&["--guest-image", "ringfence-test/busybox"])?;
    let refused = session(&empty, json!({}))
        .await
        .err()
        .ok_or("it was made")?;
    let words = refused.to_string();
    assert!(words.contains("the init container `guest`"), "{refused}");
    namespace.await_nothing()?;
    let server = namespace.serve(&[])?;
    namespace.kubectl(&["create", "quota", "few", "--hard=pods=1"])?;
    // It holds as soon as the cluster has looked at it.
    until(async || {
        let quota = namespace.get("quota/few")?;
        Ok((quota["status"]["hard"]["pods"] == "1").then_some(()))
    })
    .await?;
    session(&server, json!({})).await?;
    let refused = session(&server, json!({}))
        .await
        .err()
        .ok_or("it was made")?;
    assert!(refused.to_string().contains("exceeded quota"), "{refused}");
    assert_eq!(namespace.names("pods")?.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_killed_for_memory_dies_alone() -> Outcome {
    let namespace = Namespace::new("oom")?;
    let server = namespace.serve(&["--kube-reach", "address"])?;
    let id = session(&server, json!({"limits": {"memory": "64m"}})).await?;
    let done = server
        .bash(&id, "python3 -c 'x = bytearray(300 << 20)'; echo $?")
        .await?;
    assert_eq!(done["stdout"], "137\n", "{done}");
    let done = server.bash(&id, "echo alive").await?;
    assert_eq!(done["stdout"], "alive\n", "{done}");
    Ok(())
}
