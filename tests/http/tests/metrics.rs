//! What can be seen: numbers, readiness, request ids, the log.

use ringfence_http_tests::{Outcome, Server, bearer, until};
use serde_json::{Value, json};

/// The value of a series, by its whole name with labels in the order of the exposition.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    line.parse().ok()
}

async fn metrics(server: &Server) -> Outcome<String> {
    let answer = server
        .http
        .get(format!("{}/metrics", server.url))
        .send()
        .await?;
    assert_eq!(
        answer.headers()["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    Ok(answer.text().await?)
}

#[tokio::test]
async fn what_happens_is_counted() -> Outcome {
    let server = Server::start(&["--max-sessions", "1", "--gc-interval", "1"])?;
    let before = metrics(&server).await?;
    assert_eq!(
        value(&before, "ringfence_sessions{backend=\"native\"}"),
        Some(0.0),
        "{before}"
    );
    assert_eq!(
        value(&before, "ringfence_session_creates_total{outcome=\"made\"}"),
        None
    );
    let id = server.session_with(&json!({"key": "one"})).await?;
    assert_eq!(
        server.post("/sessions", &json!({"key": "one"})).await?.0,
        200
    );
    assert_eq!(server.post("/sessions", &json!({})).await?.0, 503);
    server.code(&id, "1 + 1").await?;
    server.code(&id, "1 / 0").await?;
    server.bash(&id, "true").await?;
    let slow = json!({"tool": "bash_code_execution", "input": {"command": "sleep 60"}, "timeout_seconds": 1});
    assert_eq!(
        server.post(&format!("/sessions/{id}/exec"), &slow).await?.0,
        200
    );
    assert_eq!(server.get("/nowhere/at/all").await?.0, 404);
    let text = metrics(&server).await?;
    for (series, expected) in [
        ("ringfence_sessions{backend=\"native\"}", 1.0),
        ("ringfence_session_creates_total{outcome=\"made\"}", 1.0),
        ("ringfence_session_creates_total{outcome=\"found\"}", 1.0),
        ("ringfence_session_creates_total{outcome=\"full\"}", 1.0),
        ("ringfence_session_create_seconds_count", 1.0),
        ("ringfence_execs_total{kind=\"code\",outcome=\"ok\"}", 1.0),
        (
            "ringfence_execs_total{kind=\"code\",outcome=\"failed\"}",
            1.0,
        ),
        ("ringfence_execs_total{kind=\"bash\",outcome=\"ok\"}", 1.0),
        (
            "ringfence_execs_total{kind=\"bash\",outcome=\"wall_clock\"}",
            1.0,
        ),
        ("ringfence_exec_seconds_count{kind=\"code\"}", 2.0),
        ("ringfence_exec_seconds_count{kind=\"bash\"}", 2.0),
        (
            "ringfence_deaths_total{what=\"command\",cause=\"wall_clock\"}",
            1.0,
        ),
        (
            "ringfence_http_requests_total{route=\"/sessions/{session}/exec\",method=\"POST\",status=\"200\"}",
            4.0,
        ),
        (
            "ringfence_http_requests_total{route=\"none\",method=\"GET\",status=\"404\"}",
            1.0,
        ),
        (
            "ringfence_http_request_seconds_count{route=\"/sessions\",method=\"POST\"}",
            3.0,
        ),
        ("ringfence_backend_seconds_count{operation=\"create\"}", 1.0),
        ("ringfence_audit_errors_total", 0.0),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series}\n{text}");
    }
    assert!(value(&text, "ringfence_connections") >= Some(1.0));
    assert!(text.contains("ringfence_build_info{version=\""));
    assert!(
        !text.contains("sbx_") && !text.contains("nowhere"),
        "ids are no labels: {text}"
    );
    // Idle ones that are ended count as deaths, too.
    let patched = json!({"idle_timeout_seconds": 1});
    assert_eq!(
        server
            .ask("PATCH", &format!("/sessions/{id}"), Some(&patched))
            .await?
            .0,
        200
    );
    until(async || {
        let text = metrics(&server).await?;
        let reaped = value(
            &text,
            "ringfence_deaths_total{what=\"session\",cause=\"idle\"}",
        );
        Ok((reaped == Some(1.0)).then_some(()))
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_server_that_can_do_nothing_is_not_ready() -> Outcome {
    let server = Server::start(&[])?;
    let (status, body) = server.get("/ready").await?;
    assert_eq!((status, &body["status"]), (200, &json!("ready")));
    let away = server.state.with_extension("away");
    std::fs::rename(&server.state, &away)?;
    let becomes = async |expected: u16| {
        until(async || {
            let (status, body) = server.get("/ready").await?;
            Ok((status == expected).then_some(body))
        })
        .await
    };
    let body = becomes(503).await?;
    assert!(
        body["detail"].as_str().is_some_and(|why| !why.is_empty()),
        "{body}"
    );
    assert_eq!(server.get("/health").await?.0, 200, "it lives all the same");
    let text = metrics(&server).await?;
    assert!(
        text.contains("ringfence_backend_errors_total{operation=\"ready\",code=\""),
        "{text}"
    );
    std::fs::rename(&away, &server.state)?;
    becomes(200).await?;
    Ok(())
}

#[tokio::test]
async fn requests_have_ids() -> Outcome {
    let server = Server::start(&[])?;
    let ask = async |path: &str, given: Option<&str>| -> Outcome<String> {
        let mut request = server.http.get(format!("{}{path}", server.url));
        if let Some(given) = given {
            request = request.header("x-request-id", given);
        }
        Ok(request.send().await?.headers()["x-request-id"]
            .to_str()?
            .to_owned())
    };
    let long = "a".repeat(128);
    for good in ["abc", "A-1._z", &long] {
        assert_eq!(ask("/health", Some(good)).await?, good);
    }
    let longer = "a".repeat(129);
    for bad in ["", "a b", "a\"b", "a/b", "ä", &longer] {
        let id = ask("/health", Some(bad)).await?;
        assert!(id != bad && id.len() == 16, "{bad}: {id}");
    }
    assert_ne!(ask("/health", None).await?, ask("/health", None).await?);
    // Also where nothing was found.
    assert_eq!(ask("/nowhere", Some("lost")).await?, "lost");
    server
        .log_line(|line| line.contains("id=\"lost\"") && line.contains("status=404"))
        .await?;
    Ok(())
}

#[tokio::test]
async fn the_log_has_a_line_for_each_request_and_no_secrets() -> Outcome {
    let (server, key) = Server::start_with_key(&["--log-format", "json"])?;
    let id = server.session().await?;
    let secret = "print('a secret of the caller')";
    let body = json!({"tool": "code_execution", "input": {"code": secret}});
    let answer = bearer(&key)?
        .post(format!("{}/v1/sessions/{id}/exec", server.url))
        .header("x-request-id", "one-call")
        .json(&body)
        .send()
        .await?;
    assert_eq!(answer.status(), 200);
    let line = server.log_line(|line| line.contains("one-call")).await?;
    let line: Value = serde_json::from_str(&line)?;
    assert_eq!(
        (
            &line["level"],
            &line["method"],
            &line["route"],
            &line["status"]
        ),
        (
            &json!("INFO"),
            &json!("POST"),
            &json!("/sessions/{session}/exec"),
            &json!(200)
        )
    );
    assert_eq!(
        (&line["key"], &line["session"]),
        (&json!("admin"), &json!(id))
    );
    assert_eq!(line["span"]["id"], "one-call");
    assert!(line["ms"].is_number(), "{line}");
    let all = server.log().join("\n");
    assert!(!all.contains("a secret of") && !all.contains(&key) && !all.contains("rfs_"));
    Ok(())
}
