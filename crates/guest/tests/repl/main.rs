//! The persistent Python: values, output, errors, interrupts, and every way to die.
#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod ends;
mod kernels;
#[path = "../support/mod.rs"]
mod support;
mod values;

use http::Method;
use ringfence_proto::{Cause, Ended, Event, ExecResult, Exit, Failure, KernelInfo};
use serde_json::{Value, json};
use support::{Client, Events, full};

async fn try_run(client: &Client, name: &str, request: Value) -> Result<ExecResult, Failure> {
    let bytes = client
        .try_post(&format!("/kernels/{name}/run"), request)
        .await?;
    Ok(serde_json::from_slice(&bytes).unwrap())
}

async fn run(client: &Client, code: &str) -> ExecResult {
    try_run(client, "main", json!({"code": code, "timeout_ms": 20_000}))
        .await
        .unwrap()
}

/// Runs code that has to end well; its output.
async fn good(client: &Client, code: &str) -> String {
    let result = run(client, code).await;
    assert_eq!(result.end.exit, Exit::Code(0), "{code}: {}", err(&result));
    out(&result)
}

async fn run_events(client: &Client, request: Value) -> Events {
    let body = full(request.to_string().into());
    let accept = Some("application/x-ndjson");
    let response = client
        .send(Method::POST, "/kernels/main/run", accept, body)
        .await;
    Events::new(response)
}

async fn put(client: &Client, name: &str, request: Value) -> Result<KernelInfo, Failure> {
    let (status, body) = client
        .call(Method::PUT, &format!("/kernels/{name}"), &request)
        .await;
    if status.is_success() {
        Ok(serde_json::from_slice(&body).unwrap())
    } else {
        Err(serde_json::from_slice(&body).unwrap())
    }
}

fn out(result: &ExecResult) -> String {
    result.stdout.data.text().into_owned()
}

fn err(result: &ExecResult) -> String {
    result.stderr.data.text().into_owned()
}

fn printed(event: &Event) -> String {
    match event {
        Event::Stdout { data, .. } => data.text().into_owned(),
        _ => String::new(),
    }
}

fn value(result: &ExecResult) -> Option<&str> {
    let rich = result.results.iter().find(|rich| rich.kind == "value")?;
    rich.data.get("text/plain").map(String::as_str)
}

/// The call ended with its kernel, for this cause, and the next one works without variables.
async fn died(client: &Client, code: &str, cause: Cause) -> ExecResult {
    good(client, "survivor = 1").await;
    let result = run(client, code).await;
    assert_lost(client, &result, cause).await;
    result
}

async fn assert_lost(client: &Client, result: &ExecResult, cause: Cause) {
    assert_eq!(result.end.exit, Exit::Lost, "{result:?}");
    let certificate = result.end.certificate.as_ref().unwrap();
    assert_eq!(
        (certificate.cause, certificate.ended),
        (cause, Ended::Kernel),
        "{certificate}"
    );
    assert!(certificate.survived.files && !certificate.survived.variables);
    assert!(
        certificate.next.contains("fresh interpreter"),
        "{certificate}"
    );
    assert_eq!(
        good(client, "print('survivor' in globals())").await,
        "False\n"
    );
}
