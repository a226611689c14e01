//! Sessions as an otari client meets them.

use ringfence_http_tests::{Outcome, Server};
use serde_json::json;
use std::fs;

#[tokio::test]
async fn a_session_keeps_variables_and_files() -> Outcome {
    let server = Server::start(&[])?;
    let (status, made) = server.post("/sessions", &json!({})).await?;
    assert_eq!(status, 201, "{made}");
    assert_eq!(made["idle_timeout_seconds"], 900.0);
    let id = made["session_id"].as_str().ok_or("no id")?;
    assert!(id.starts_with("sbx_") && id.len() <= 64);
    let done = server.code(id, "x = 40\nprint(x)").await?;
    assert_eq!(
        (&done["stdout"], &done["stderr"], &done["return_code"]),
        (&json!("40"), &json!(""), &json!(0))
    );
    assert_eq!(server.code(id, "print(x + 2)").await?["stdout"], "42");
    let done = server.bash(id, "echo hi > f; cat f; exit 3").await?;
    assert_eq!(
        (&done["stdout"], &done["return_code"]),
        (&json!("hi\n"), &json!(3))
    );
    let (status, shown) = server.get(&format!("/v1/sessions/{id}")).await?;
    assert_eq!((status, &shown["session_id"]), (200, &made["session_id"]));
    let (status, _) = server
        .ask("DELETE", &format!("/sessions/{id}"), None)
        .await?;
    assert_eq!(status, 204);
    let (status, _) = server.get(&format!("/sessions/{id}")).await?;
    assert_eq!(status, 404);
    let (status, _) = server
        .ask("DELETE", &format!("/sessions/{id}"), None)
        .await?;
    assert_eq!(status, 204);
    Ok(())
}

/// Code that may write to a folder can put a link in the place of one that is mounted. At the next
/// start it must not lead anywhere else.
#[tokio::test]
async fn a_folder_that_became_a_link_is_not_mounted_again() -> Outcome {
    let folder = tempfile::Builder::new().tempdir_in("/var/tmp")?;
    let host = folder.path().canonicalize()?;
    let (allowed, outside) = (host.join("allowed"), host.join("outside"));
    fs::create_dir_all(allowed.join("given/data"))?;
    fs::create_dir_all(outside.join("data"))?;
    fs::write(outside.join("data/file"), "secret\n")?;
    let allow = format!("{}:rw", allowed.display());
    let server = Server::start(&["--allow-mount", &allow])?;
    let id = server
        .session_with(&json!({"spec": {"mounts": [
            {"from": allowed, "to": "/all", "access": "rw"},
            {"from": allowed.join("given/data"), "to": "/data", "access": "rw"},
        ]}}))
        .await?;
    let suspend = format!("/sessions/{id}/suspend");
    server.bash(&id, "echo mine > /data/file").await?;
    assert_eq!(server.post(&suspend, &json!({})).await?.0, 204);
    // The control: it is started again with what it was given.
    let read = "cat /data/file";
    assert_eq!(server.bash(&id, read).await?["stdout"], "mine\n");

    let swap = format!(
        "cd /all && mv given old && ln -s {} given",
        outside.display()
    );
    assert_eq!(server.bash(&id, &swap).await?["return_code"], 0);
    assert_eq!(fs::read_link(allowed.join("given"))?, outside);
    assert_eq!(server.post(&suspend, &json!({})).await?.0, 204);
    let body = json!({"tool": "bash_code_execution", "input": {"command": read}});
    let (status, answer) = server.post(&format!("/sessions/{id}/exec"), &body).await?;
    assert_eq!(status, 403, "{answer}");
    assert!(answer.to_string().contains("link"), "{answer}");

    fs::remove_file(allowed.join("given"))?;
    fs::rename(allowed.join("old"), allowed.join("given"))?;
    assert_eq!(server.bash(&id, read).await?["stdout"], "mine\n");
    Ok(())
}

/// Whoever lists sessions comes upon those that are being made and removed; they count once, and
/// only while they are there.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_come_and_go_count_once() -> Outcome {
    let server = Server::start(&["--max-sessions", "2"])?;
    let over = std::sync::atomic::AtomicBool::new(false);
    let come_and_go = async || -> Outcome {
        for _ in 0..40 {
            let (status, made) = server.post("/sessions", &json!({})).await?;
            assert_eq!(status, 201, "{made}");
            let id = made["session_id"].as_str().ok_or("no id")?;
            let path = format!("/sessions/{id}");
            assert_eq!(server.ask("DELETE", &path, None).await?.0, 204);
        }
        Ok(())
    };
    let watch = async || -> Outcome<usize> {
        let mut looks = 0;
        while !over.load(std::sync::atomic::Ordering::Acquire) {
            assert_eq!(server.get("/sessions").await?.0, 200);
            looks += 1;
        }
        Ok(looks)
    };
    let all = async {
        let both = futures_util::future::try_join(come_and_go(), come_and_go()).await;
        over.store(true, std::sync::atomic::Ordering::Release);
        both
    };
    let (both, looks) = futures_util::future::join(all, watch()).await;
    both?;
    assert!(looks? > 80, "it was looked at while they came and went");
    assert_eq!(server.session().await?.len(), 36, "there is room for one");
    let id = server.session().await?;
    let (status, refused) = server.post("/sessions", &json!({})).await?;
    assert_eq!((status, &refused["code"]), (503, &json!("full")), "{id}");
    Ok(())
}

#[tokio::test]
async fn changes_at_the_same_time_are_all_kept() -> Outcome {
    let one = Server::start(&[])?;
    let two = Server::start_on(&one.state, &[], &[])?;
    let id = one.session().await?;
    let path = format!("/sessions/{id}");
    assert_eq!(two.get(&path).await?.0, 200);
    // One server at once, then two that know nothing of each other.
    for (first, second, at_once) in [(&one, &one, true), (&one, &two, false)] {
        for n in 0..10 {
            let (idle, life) = (100 + n, 1000 + n);
            let (idle_body, life_body) = (
                json!({"idle_timeout_seconds": idle}),
                json!({"max_lifetime_seconds": life}),
            );
            let set_idle = first.ask("PATCH", &path, Some(&idle_body));
            let set_life = second.ask("PATCH", &path, Some(&life_body));
            let last = if at_once {
                tokio::try_join!(set_idle, set_life)?;
                first.get(&path).await?.1
            } else {
                set_idle.await?;
                set_life.await?.1
            };
            assert_eq!(
                (&last["idle_timeout_seconds"], &last["max_lifetime_seconds"]),
                (&json!(f64::from(idle)), &json!(f64::from(life)))
            );
        }
    }
    Ok(())
}
