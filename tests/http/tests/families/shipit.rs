use super::Bench;
use ringfence_http_tests::Outcome;
use serde_json::json;

#[tokio::test]
async fn run_code() -> Outcome {
    let shipit = Bench::new("shipit").await?;
    let answer = shipit
        .call(
            "run_code",
            json!({"language": "py", "code": "print(6 * 7)"}),
        )
        .await?;
    assert_eq!(
        answer["text"], "exit_code: 0\nstdout:\n42\nstderr:",
        "{answer}"
    );
    let about = &answer["structured"];
    assert_eq!(about["language"], "python");
    assert_eq!(
        (&about["exit_code"], &about["ok"]),
        (&json!(0), &json!(true))
    );
    assert_eq!(
        (&about["sandbox"], &about["sandbox_network"]),
        (&json!(false), &json!(false))
    );
    let failed = json!({"language": "bash", "code": "echo out; echo err >&2; exit 3"});
    assert_eq!(
        shipit.text("run_code", failed).await?,
        "exit_code: 3\nstdout:\nout\nstderr:\nerr"
    );
    let late = json!({"language": "sh", "code": "echo before; sleep 60", "timeout_seconds": 1});
    let late = shipit.call("run_code", late).await?;
    assert_eq!(
        late["text"], "exit_code: 124\nstdout:\nbefore\nstderr:",
        "{late}"
    );
    assert_eq!(late["structured"]["exit_code"], 124, "{late}");
    assert_eq!(late["structured"]["ok"], false);
    let unknown = shipit
        .error("run_code", json!({"language": "cobol", "code": "x"}))
        .await?;
    assert!(
        unknown.starts_with("Error: ") && unknown.contains("python"),
        "{unknown}"
    );
    shipit
        .refused(
            "run_code",
            json!({"code": "x"}),
            "language",
            "is missing: it must be a string",
        )
        .await?;
    shipit
        .refused(
            "run_code",
            json!({"language": "py", "code": "x", "network": "yes"}),
            "network",
            "must be true or false, not \"yes\"",
        )
        .await
}
