//! What the API says about itself holds: schemathesis, which we did not write, reads
//! `/openapi.json` and tries every operation with what is allowed and what is not.

use ringfence_http_tests::{Outcome, Server, python};
use std::path::Path;
use std::process::Stdio;
use tokio::process::Command;

/// Made-up requests of each operation, besides those at the edges of what is allowed.
const EXAMPLES: &str = "20";

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_is_as_described() -> Outcome {
    // Small, so that nothing that is made up can take long or much.
    let (server, key) = Server::start_with_key(&[
        "--max-sessions",
        "20",
        "--timeout",
        "2s",
        "--cpu-time",
        "2",
        "--memory",
        "256m",
        "--prefer",
        "--hastekit",
        "--log-level",
        "warn",
    ])?;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let reports = tempfile::tempdir()?;
    let run = Command::new(python()?)
        .args([
            "-c",
            "from schemathesis.cli import schemathesis; schemathesis()",
        ])
        .arg("--config-file")
        .arg(here.join("schemathesis.toml"))
        .args(["run", &format!("{}/openapi.json", server.url)])
        .args(["--header", &format!("Authorization: Bearer {key}")])
        .args(["--max-examples", EXAMPLES, "--no-color"])
        .current_dir(reports.path())
        .env("PYTHONPATH", here)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("RINGFENCE_URL", &server.url)
        .env("RINGFENCE_KEY", &key)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let said = String::from_utf8_lossy(&run.stdout);
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}\n{errors}");
    // Nothing was left out, and what is there could be reached.
    let line = |name: &str| said.lines().find(|line| line.trim().starts_with(name));
    let all = line("Selected:").and_then(|line| line.split('/').nth(1));
    let tested = line("Tested:").and_then(|line| line.split(' ').next_back());
    assert!(all.is_some() && all == tested, "{said}");
    Ok(())
}

#[tokio::test]
async fn the_description_and_its_page_need_no_key() -> Outcome {
    let (server, _key) = Server::start_with_key(&[])?;
    let anybody = reqwest::Client::new();
    for path in ["/openapi.json", "/v1/openapi.json"] {
        let answer = anybody.get(format!("{}{path}", server.url)).send().await?;
        assert_eq!(answer.status(), 200, "{path}");
        let api: serde_json::Value = answer.json().await?;
        assert_eq!(api["openapi"], "3.1.0");
    }
    for path in ["/docs", "/v1/docs"] {
        let answer = anybody.get(format!("{}{path}", server.url)).send().await?;
        assert_eq!(answer.status(), 200, "{path}");
        let headers = answer.headers();
        assert_eq!(headers["content-type"], "text/html; charset=utf-8");
        let policy = headers["content-security-policy"].to_str()?;
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        assert!(answer.text().await?.contains("<script>"));
    }
    let answer = anybody
        .get(format!("{}/sessions", server.url))
        .send()
        .await?;
    assert_eq!(answer.status(), 401);
    Ok(())
}

#[tokio::test]
async fn what_is_not_there_is_a_problem_too() -> Outcome {
    let server = Server::start(&[])?;
    for (method, path, status) in [
        ("GET", "/nothing", 404),
        ("GET", "/v1/", 404),
        ("PUT", "/sessions", 405),
        ("PATCH", "/v1/health", 405),
        ("GET", "/sessions/%ff", 400),
        ("GET", "/sessions?limit=%ff", 422),
        ("POST", "/sessions?", 422),
    ] {
        let body = (method == "POST").then(|| serde_json::json!([1, 2]));
        let (got, problem) = server.ask(method, path, body.as_ref()).await?;
        assert_eq!(got, status, "{method} {path}: {problem}");
        assert!(problem["code"].is_string(), "{method} {path}: {problem}");
        assert!(!problem["detail"].is_null(), "{method} {path}: {problem}");
    }
    let url = format!("{}/sessions", server.url);
    let answer = server.http.put(url).send().await?;
    assert_eq!(answer.headers()["allow"], "POST,GET,HEAD");
    Ok(())
}
