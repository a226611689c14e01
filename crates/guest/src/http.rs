//! What every route needs: bodies in, bodies out, failures as JSON.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited, combinators::UnsyncBoxBody};
use ringfence_proto::{BODY_LIMIT, Code, Failure};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) type Request = ::http::Request<hyper::body::Incoming>;
pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;
pub(crate) type Response = ::http::Response<Body>;
pub(crate) type Answer = Result<Response, Failure>;

/// A whole body that is at hand.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// 200 with a JSON body.
pub(crate) fn json(value: &impl Serialize) -> Answer {
    let bytes = serde_json::to_vec(value)
        .map_err(|e| Failure::new(Code::Internal, "cannot write the answer").detail(e))?;
    Ok(with_type("application/json", full(bytes)))
}

/// 200 with a body of this media type.
pub(crate) fn with_type(media: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(
        ::http::header::CONTENT_TYPE,
        ::http::HeaderValue::from_static(media),
    );
    response
}

/// 204.
pub(crate) fn empty() -> Answer {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = ::http::StatusCode::NO_CONTENT;
    Ok(response)
}

/// The failure as its status and a JSON body.
pub(crate) fn failed(failure: &Failure) -> Response {
    let status = ::http::StatusCode::from_u16(failure.code.http_status())
        .unwrap_or(::http::StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = with_type(
        "application/json",
        full(serde_json::to_vec(failure).unwrap_or_default()),
    );
    *response.status_mut() = status;
    response
}

/// The query string as a typed value; unknown keys are refused.
pub(crate) fn query<T: DeserializeOwned>(request: &Request) -> Result<T, Failure> {
    serde_urlencoded::from_str(request.uri().query().unwrap_or(""))
        .map_err(|e| Failure::invalid(format!("bad query: {e}")))
}

/// The body as JSON, at most [`BODY_LIMIT`] bytes; an empty body reads as `{}`.
pub(crate) async fn body<T: DeserializeOwned>(request: Request) -> Result<T, Failure> {
    parse(&bytes(request, BODY_LIMIT).await?)
}

/// The body as it is, at most `limit` bytes.
pub(crate) async fn bytes(request: Request, limit: usize) -> Result<Bytes, Failure> {
    let collected = Limited::new(request.into_body(), limit)
        .collect()
        .await
        .map_err(|e| {
            if e.is::<http_body_util::LengthLimitError>() {
                Failure::new(Code::TooLarge, format!("the body is over {limit} bytes"))
            } else {
                Failure::invalid("the body ended early").detail(e)
            }
        })?;
    Ok(collected.to_bytes())
}

/// Bytes as JSON; none read as `{}`.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|e| Failure::invalid(format!("bad body: {e}")))
}
