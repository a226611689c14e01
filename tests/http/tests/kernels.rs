//! Kernels: variables of their own, and the interrupt.

use ringfence_http_tests::{Outcome, Server};
use serde_json::{Value, json};

#[tokio::test]
async fn kernels_have_variables_of_their_own() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let (jobs, kernels) = (
        format!("/sessions/{id}/jobs"),
        format!("/sessions/{id}/kernels"),
    );
    let body = json!({"env": {"WHO": "b"}, "cwd": "/tmp"});
    let (status, b) = server
        .ask("PUT", &format!("{kernels}/b"), Some(&body))
        .await?;
    assert_eq!(
        (status, &b["name"], &b["generation"]),
        (200, &json!("b"), &json!(1))
    );
    assert!(b["version"].is_string() && b["busy"] == false);
    let run = async |kernel: &str, code: &str| -> Outcome<Value> {
        let body = json!({"code": code, "kernel": kernel});
        Ok(server.post(&jobs, &body).await?.1["stdout"]["text"].clone())
    };
    run("main", "x = 'main'").await?;
    run("b", "x = 'b'").await?;
    assert_eq!(run("main", "print(x)").await?, "main\n");
    let code = "import os; print(x, os.environ['WHO'], os.getcwd())";
    assert_eq!(run("b", code).await?, "b b /tmp\n");
    // One that nobody started is started by its first call.
    assert_eq!(run("c", "print('x' in globals())").await?, "False\n");
    let (_, list) = server.get(&kernels).await?;
    let names: Vec<_> = list["kernels"]
        .as_array()
        .ok_or("no list")?
        .iter()
        .collect();
    let names: Vec<_> = names.iter().map(|kernel| kernel["name"].as_str()).collect();
    assert_eq!(names, [Some("b"), Some("c"), Some("main")]);
    let (status, _) = server.ask("DELETE", &format!("{kernels}/b"), None).await?;
    assert_eq!(status, 204);
    assert_eq!(server.get(&format!("{kernels}/b")).await?.0, 404);
    assert_eq!(run("b", "print('x' in globals())").await?, "False\n");
    for bad in ["a%2Fb", "a.b", "%C3%A9"] {
        assert_eq!(
            server.get(&format!("{kernels}/{bad}")).await?.0,
            422,
            "{bad}"
        );
    }
    let (status, _) = server
        .ask("PUT", &format!("{kernels}/d"), Some(&json!({"x": 1})))
        .await?;
    assert_eq!(status, 422);
    let body = json!({"python": "/no/such/python"});
    let (status, answer) = server
        .ask("PUT", &format!("{kernels}/d"), Some(&body))
        .await?;
    assert!((400..500).contains(&status), "{status} {answer}");
    Ok(())
}

#[tokio::test]
async fn an_interrupt_keeps_variables() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let jobs = format!("/sessions/{id}/jobs");
    for (kernel, path) in [
        ("main", format!("/sessions/{id}/interrupt")),
        ("other", format!("/sessions/{id}/kernels/other/interrupt")),
    ] {
        let code = "x = 42\nprint('runs', flush=True)\nwhile True: pass";
        let body = json!({"code": code, "kernel": kernel});
        let mut events = server.events("POST", &jobs, Some(&body), None).await?;
        events.until("stdout").await?;
        let (_, busy) = server
            .get(&format!("/sessions/{id}/kernels/{kernel}"))
            .await?;
        assert_eq!(busy["busy"], true);
        assert_eq!(server.ask("POST", &path, None).await?.0, 204);
        let all = events.until("done").await?;
        let certificate = all
            .iter()
            .find(|got| got.name == "certificate")
            .ok_or("none")?;
        assert_eq!(certificate.data["cause"], "cancelled");
        assert_eq!(certificate.data["survived"]["variables"], true);
        let body = json!({"code": "print(x)", "kernel": kernel});
        assert_eq!(server.post(&jobs, &body).await?.1["stdout"]["text"], "42\n");
        // With nothing to interrupt it does nothing.
        assert_eq!(server.ask("POST", &path, None).await?.0, 204);
        assert_eq!(server.post(&jobs, &body).await?.1["stdout"]["text"], "42\n");
    }
    let unknown = format!("/sessions/{id}/kernels/none/interrupt");
    assert_eq!(server.ask("POST", &unknown, None).await?.0, 404);
    Ok(())
}

/// Compiling the kernel takes longer than all else that Python does not need for itself.
#[tokio::test]
async fn the_kernel_is_compiled_once_for_all_sessions() -> Outcome {
    for args in [&[][..], &["--python", "/usr/bin/python3"]] {
        let server = Server::start(args)?;
        let code = "print(open('/proc/self/cmdline').read().split('\\0')[-2])";
        let mut compiled = 0;
        // The first ones may come before it is.
        for _ in 0..100 {
            let id = server.session().await?;
            let said = server.code(&id, code).await?;
            compiled = said["stdout"].as_str().ok_or("no text")?.parse::<usize>()?;
            if compiled > 0 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        assert!(compiled > 1000, "{compiled} bytes with {args:?}");
    }
    Ok(())
}
