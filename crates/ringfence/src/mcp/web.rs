//! `/mcp`: the protocol over HTTP, behind the same keys as everything else.

use super::{Server, Side};
use crate::http::App;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use std::sync::Arc;

/// What answers at `/mcp`. `?family=` is for those who want other tools than the default ones,
/// `?session=` for those who want a sandbox of their own without a key.
pub(crate) fn service(app: &App) -> StreamableHttpService<Server, LocalSessionManager> {
    let config = StreamableHttpServerConfig::default();
    let hosts = &app.config.mcp.allowed_hosts;
    // Requests without a key are held to this machine's own names before they get here, and who
    // has a key may know the server by any.
    let mut config = match hosts.is_empty() {
        true => config.disable_allowed_hosts(),
        false => config.with_allowed_hosts(hosts.iter().cloned()),
    };
    config.max_request_body_bytes = app.max_body();
    let app = app.clone();
    let make = move || Ok(Server::new(app.clone(), Side::Request));
    StreamableHttpService::new(make, Arc::new(LocalSessionManager::default()), config)
}
