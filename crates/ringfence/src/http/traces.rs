//! Traces for a collector, over OTLP: one span for each request.

use axum::extract::Request;
use tracing::Span;

/// What the spans for a collector have as their target; the log leaves them out.
pub(crate) const TARGET: &str = "ringfence_trace";

#[cfg(not(feature = "otlp"))]
mod absent {
    use super::*;
    use crate::config::Otlp;
    use ringfence_core::{Code, Failure};

    pub(crate) struct Traces;

    impl Traces {
        pub(crate) fn start(config: &Otlp) -> Result<Option<Self>, Failure> {
            match &config.endpoint {
                None => Ok(None),
                Some(endpoint) => Err(Failure::new(
                    Code::Unenforceable,
                    format!(
                        "cannot send traces to {}: this build has no OTLP",
                        endpoint.0
                    ),
                )
                .hint("build it with the feature `otlp`")),
            }
        }

        pub(crate) fn end(&self) {}
    }

    pub(crate) fn span(_: &Request, _: &'static str, _: &str) -> Span {
        Span::none()
    }
}

#[cfg(not(feature = "otlp"))]
pub(crate) use absent::*;

#[cfg(feature = "otlp")]
pub(crate) use present::*;

#[cfg(feature = "otlp")]
mod present {
    use super::*;
    use crate::config::Otlp;
    use async_trait::async_trait;
    use axum::body::Bytes;
    use http::{Response, StatusCode};
    use opentelemetry::propagation::TextMapPropagator as _;
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry::{KeyValue, trace::TraceContextExt as _};
    use opentelemetry_http::{HeaderExtractor, HttpClient, HttpError};
    use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::propagation::TraceContextPropagator;
    use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
    use ringfence_core::{Code, Failure};
    use std::io::{Read as _, Write as _};
    use std::net::{TcpStream, ToSocketAddrs as _};
    use std::time::Duration;
    use tracing::field::Empty;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    /// How long the collector may take for each step.
    const PATIENCE: Duration = Duration::from_secs(5);
    /// Of its answer, which says little.
    const ANSWER: u64 = 64 << 10;

    /// What sends traces, until it is ended.
    pub(crate) struct Traces {
        provider: SdkTracerProvider,
    }

    impl Traces {
        /// Begins to send, if there is somewhere to send to.
        pub(crate) fn start(config: &Otlp) -> Result<Option<Self>, Failure> {
            let Some(endpoint) = &config.endpoint else {
                return Ok(None);
            };
            let what = format!("cannot send traces to {}", endpoint.0);
            if !endpoint.0.starts_with("http://") {
                return Err(
                    Failure::invalid(format!("{what}: only http is spoken here"))
                        .hint("name a collector on this machine, which can speak TLS to others"),
                );
            }
            let exporter = SpanExporter::builder()
                .with_http()
                .with_http_client(Plain)
                .with_protocol(Protocol::HttpBinary)
                .with_endpoint(format!("{}/v1/traces", endpoint.0.trim_end_matches('/')))
                .build()
                .map_err(|e| Failure::new(Code::Internal, what).detail(e))?;
            let resource = Resource::builder_empty()
                .with_attribute(KeyValue::new("service.name", "ringfence"))
                .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
                .build();
            let provider = SdkTracerProvider::builder()
                .with_batch_exporter(exporter)
                .with_resource(resource)
                .build();
            Ok(Some(Self { provider }))
        }

        pub(crate) fn tracer(&self) -> SdkTracer {
            self.provider.tracer("ringfence")
        }

        /// Sends what is left.
        pub(crate) fn end(&self) {
            if let Err(error) = self.provider.shutdown() {
                tracing::warn!(%error, "cannot send the last traces");
            }
        }
    }

    /// The span of a request, below that of whoever sent it.
    pub(crate) fn span(request: &Request, method: &'static str, route: &str) -> Span {
        let span = tracing::info_span!(
            target: TARGET,
            "request",
            otel.name = format!("{method} {route}"),
            otel.kind = "server",
            otel.status_code = Empty,
            http.request.method = method,
            http.route = route,
            http.response.status_code = Empty,
            session = Empty,
            kind = Empty,
        );
        if !span.is_disabled() {
            let parent = TraceContextPropagator::new().extract(&HeaderExtractor(request.headers()));
            if parent.span().span_context().is_valid() {
                let _ = span.set_parent(parent);
            }
        }
        span
    }

    /// Sends from the thread that gathers spans, which may block and has no runtime.
    #[derive(Debug)]
    struct Plain;

    #[async_trait]
    impl HttpClient for Plain {
        async fn send_bytes(
            &self,
            request: http::Request<Bytes>,
        ) -> Result<Response<Bytes>, HttpError> {
            let uri = request.uri();
            let authority = uri.authority().ok_or("no host")?;
            let port = authority.port_u16().unwrap_or(80);
            let host = authority.host().trim_matches(['[', ']']);
            let address = (host, port).to_socket_addrs()?.next().ok_or("no address")?;
            let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            let mut head = format!(
                "{} {path} HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\ncontent-length: {}\r\n",
                request.method(),
                request.body().len()
            )
            .into_bytes();
            for (name, value) in request.headers() {
                head.extend_from_slice(name.as_str().as_bytes());
                head.extend_from_slice(b": ");
                head.extend_from_slice(value.as_bytes());
                head.extend_from_slice(b"\r\n");
            }
            head.extend_from_slice(b"\r\n");
            head.extend_from_slice(request.body());
            stream.write_all(&head)?;
            let mut answer = Vec::new();
            stream.take(ANSWER).read_to_end(&mut answer)?;
            let line = answer
                .split(|byte| *byte == b'\r')
                .next()
                .unwrap_or_default();
            let line = std::str::from_utf8(line)?;
            let status = line.split(' ').nth(1).ok_or("no status")?;
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = StatusCode::from_bytes(status.as_bytes())?;
            Ok(response)
        }
    }
}
