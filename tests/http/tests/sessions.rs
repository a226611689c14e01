//! Sessions as an otari client meets them.

use ringfence_http_tests::{Outcome, Server};
use serde_json::json;

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
