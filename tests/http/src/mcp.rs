//! The Model Context Protocol over HTTP, as far as one request goes.

use crate::{Outcome, Server, bearer};
use serde_json::{Value, json};

/// One request, without a session of the protocol.
pub async fn rpc(
    server: &Server,
    key: Option<&str>,
    path: &str,
    method: &str,
    mut params: Value,
) -> Outcome<Value> {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    params["_meta"] = meta;
    let name = params["name"].as_str().or(params["uri"].as_str());
    let name = name.map(str::to_owned);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let http = match key {
        Some(key) => bearer(key)?,
        None => reqwest::Client::new(),
    };
    let mut request = http
        .post(format!("{}{path}", server.url))
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", method);
    if let Some(name) = name {
        request = request.header("mcp-name", name);
    }
    let answer = request.json(&body).send().await?;
    let status = answer.status();
    let text = answer.text().await?;
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let data = data
        .filter_map(|data| serde_json::from_str::<Value>(data).ok())
        .next_back();
    let data = data.or_else(|| serde_json::from_str(&text).ok());
    data.ok_or_else(|| format!("{status} {text}").into())
}
