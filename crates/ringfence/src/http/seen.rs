//! What can be seen from outside: a line for each request, and numbers for Prometheus.

use super::act::Act;
use super::problem::Problem;
use super::state::App;
use super::traces;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use http::{HeaderName, HeaderValue};
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use ringfence_core::proto::{Certificate, Ended};
use ringfence_core::sessions::Found;
use ringfence_core::{Code, Failure, random_hex};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument as _;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const SESSIONS: &str = "ringfence_sessions";
const CREATES: &str = "ringfence_session_creates_total";
const CREATE_SECONDS: &str = "ringfence_session_create_seconds";
const EXECS: &str = "ringfence_execs_total";
const EXEC_SECONDS: &str = "ringfence_exec_seconds";
const REQUESTS: &str = "ringfence_http_requests_total";
const REQUEST_SECONDS: &str = "ringfence_http_request_seconds";
const DEATHS: &str = "ringfence_deaths_total";
const BACKEND_ERRORS: &str = "ringfence_backend_errors_total";
const BACKEND_SECONDS: &str = "ringfence_backend_seconds";
const CONNECTIONS: &str = "ringfence_connections";
const AUDIT_ERRORS: &str = "ringfence_audit_errors_total";
const TOOL_CALLS: &str = "ringfence_tool_calls_total";
const BUILD: &str = "ringfence_build_info";

/// Seconds, from a REPL call to the longest exec.
const BUCKETS: [f64; 15] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0,
];

/// Begins to count; once in a process.
pub(crate) fn start() -> Result<PrometheusHandle, Failure> {
    let failed = |e: &dyn std::error::Error| Failure::new(Code::Internal, "cannot count").detail(e);
    let recorder = PrometheusBuilder::new()
        .set_buckets(&BUCKETS)
        .map_err(|e| failed(&e))?
        .build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|e| failed(&e))?;
    describe_gauge!(SESSIONS, "sessions that this server knows, by backend");
    describe_counter!(CREATES, "sessions asked for, by outcome");
    describe_histogram!(
        CREATE_SECONDS,
        "seconds that the creation of a session took"
    );
    describe_counter!(EXECS, "commands and calls that ended, by kind and outcome");
    describe_histogram!(EXEC_SECONDS, "seconds from the request to the end, by kind");
    describe_counter!(REQUESTS, "requests, by route, method and status");
    describe_histogram!(REQUEST_SECONDS, "seconds until an answer began, by route");
    describe_counter!(
        DEATHS,
        "ends that were not their own, by what ended and why"
    );
    describe_counter!(
        BACKEND_ERRORS,
        "failures of the backend, by operation and code"
    );
    describe_histogram!(
        BACKEND_SECONDS,
        "seconds that the backend took, by operation"
    );
    describe_gauge!(CONNECTIONS, "connections of clients");
    describe_counter!(
        AUDIT_ERRORS,
        "lines of the audit file that could not be written"
    );
    describe_counter!(
        TOOL_CALLS,
        "calls of tools that this server carried out, by outcome"
    );
    describe_gauge!(BUILD, "always 1; the version is a label");
    gauge!(BUILD, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    gauge!(CONNECTIONS).set(0.0);
    counter!(AUDIT_ERRORS).absolute(0);
    Ok(handle)
}

pub(super) fn sessions(backend: &'static str, count: usize) {
    gauge!(SESSIONS, "backend" => backend).set(count as f64);
}

pub(super) fn connections(change: f64) {
    gauge!(CONNECTIONS).increment(change);
}

pub(super) fn exec(kind: &'static str, outcome: &'static str, took: Duration) {
    counter!(EXECS, "kind" => kind, "outcome" => outcome).increment(1);
    histogram!(EXEC_SECONDS, "kind" => kind).record(took);
}

pub(super) fn death(certificate: &Certificate) {
    let what = match certificate.ended {
        // Nothing ended.
        Ended::Output => return,
        Ended::Call => "call",
        Ended::Command => "command",
        Ended::Kernel => "kernel",
        Ended::Sandbox => "sandbox",
    };
    counter!(DEATHS, "what" => what, "cause" => certificate.cause.name()).increment(1);
}

/// A session that the reaper ended.
pub(crate) fn reaped(why: &'static str) {
    counter!(DEATHS, "what" => "session", "cause" => why).increment(1);
}

/// A call of a tool that code in a session made.
pub(super) fn tool_call(outcome: &'static str) {
    counter!(TOOL_CALLS, "outcome" => outcome).increment(1);
}

pub(super) fn audit_error() {
    counter!(AUDIT_ERRORS).increment(1);
}

pub(super) fn backend(operation: &'static str, took: Duration, failed: Option<Code>) {
    histogram!(BACKEND_SECONDS, "operation" => operation).record(took);
    if let Some(code) = failed {
        counter!(BACKEND_ERRORS, "operation" => operation, "code" => code.name()).increment(1);
    }
}

/// The request's own id if it can be taken over, else a new one.
fn request_id(request: &Request) -> String {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let given = request.headers().get(REQUEST_ID);
    given
        .and_then(|value| value.to_str().ok())
        .filter(|id| (1..=128).contains(&id.len()) && id.chars().all(good))
        .map(str::to_owned)
        .unwrap_or_else(|| random_hex::<8>().unwrap_or_else(|_| "unknown".to_owned()))
}

/// Watches a request from its beginning to its answer.
pub(crate) async fn observe(
    State(app): State<App>,
    params: Result<RawPathParams, RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = request_id(&request);
    let matched = request.extensions().get::<MatchedPath>().cloned();
    // A template, never what somebody made up: there is one series for each.
    let route = matched.as_ref().map_or("none", MatchedPath::as_str);
    let route = match route.strip_prefix("/v1") {
        Some(rest) if rest.starts_with('/') => rest,
        _ => route,
    }
    .to_owned();
    let method = method(request.method());
    let trace = traces::span(&request, method, &route);
    let act = Act::new(id.clone(), trace.clone(), app.audit.clone());
    if let Some(session) = params.iter().flatten().find(|(name, _)| *name == "session")
        && let Ok(session) = ringfence_core::SessionId::try_from(session.1.to_owned())
    {
        act.names(&session);
    }
    request.extensions_mut().insert(Arc::clone(&act));
    // Of the highest level, so that the id is in every line, however few are wanted.
    let log = tracing::error_span!("request", id);
    let work = AssertUnwindSafe(next.run(request)).catch_unwind();
    let work = Arc::clone(&act).during(work.instrument(trace.clone()).instrument(log.clone()));
    let mut answer = work.await.unwrap_or_else(|_| {
        let _log = log.enter();
        Problem::from(Failure::new(Code::Internal, "the request broke off")).into_response()
    });
    if let Ok(value) = HeaderValue::try_from(&id) {
        answer.headers_mut().insert(REQUEST_ID, value);
    }
    let status = answer.status();
    let took = act.begun.elapsed();
    let outcome = match answer.extensions().get::<Code>() {
        Some(code) => code.name(),
        None if status.is_client_error() || status.is_server_error() => "failed",
        None => "ok",
    };
    act.answered(status.as_u16(), outcome);
    let said = act.said();
    let number = status.as_u16();
    trace.record("http.response.status_code", number);
    if status.is_server_error() {
        trace.record("otel.status_code", "ERROR");
    }
    counter!(REQUESTS, "route" => route.clone(), "method" => method, "status" => number.to_string()).increment(1);
    histogram!(REQUEST_SECONDS, "route" => route.clone(), "method" => method).record(took);
    let _log = log.enter();
    let ms = (took.as_secs_f64() * 1e6).round() / 1e3;
    tracing::info!(
        method,
        route,
        status = number,
        ms,
        key = said.who,
        session = said.session,
        "answered"
    );
    answer
}

/// A session was asked for.
pub(super) fn create(found: Result<Found, &Failure>, took: Duration) {
    let outcome = match found {
        Ok(Found::Made) => {
            histogram!(CREATE_SECONDS).record(took);
            "made"
        }
        Ok(Found::There) => "found",
        Err(failure) => failure.code.name(),
    };
    counter!(CREATES, "outcome" => outcome).increment(1);
}

/// Methods that somebody made up are one.
fn method(method: &http::Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        "CONNECT" => "CONNECT",
        _ => "other",
    }
}
