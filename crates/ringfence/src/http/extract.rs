//! Bodies and queries, with the place of what is wrong in them.

use super::problem::Problem;
use super::state::App;
use super::strict::Strict;
use axum::extract::{FromRequest, FromRequestParts, Request};
use http::request::Parts;
use ringfence_core::{Code, Failure};
use serde::de::DeserializeOwned;

/// A JSON body; an empty one reads as `{}`.
pub(crate) struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let bytes = axum::body::to_bytes(request.into_body(), app.max_body())
            .await
            .map_err(|error| unread(&error, app.max_body()))?;
        let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let strict = Strict::new(&mut reader);
        let value = serde_path_to_error::deserialize(strict).map_err(|error| {
            let mut loc = vec!["body".to_owned()];
            loc.extend(segments(error.path()));
            fault(loc, error.inner())
        })?;
        reader
            .end()
            .map_err(|error| fault(vec!["body".to_owned()], &error))?;
        Ok(Self(value))
    }
}

/// A body that could not be read: too large, or its sender went away or stood still.
pub(super) fn unread(error: &axum::Error, limit: usize) -> Problem {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(cause) = source {
        if cause.is::<http_body_util::LengthLimitError>() {
            let message = format!("the body is over {limit} bytes");
            return Failure::new(Code::TooLarge, message).into();
        }
        source = cause.source();
    }
    Failure::invalid("the body ended early")
        .detail(error)
        .into()
}

fn segments(path: &serde_path_to_error::Path) -> Vec<String> {
    use serde_path_to_error::Segment;
    path.iter()
        .filter_map(|segment| match segment {
            Segment::Seq { index } => Some(index.to_string()),
            Segment::Map { key } => Some(key.clone()),
            Segment::Enum { variant } => Some(variant.clone()),
            Segment::Unknown => None,
        })
        .collect()
}

fn fault(mut loc: Vec<String>, error: &serde_json::Error) -> Problem {
    let text = error.to_string();
    let message = text.split(" at line ").next().unwrap_or(&text).to_owned();
    let missing = message
        .strip_prefix("missing field `")
        .and_then(|rest| rest.strip_suffix('`'));
    let kind = match (missing, error.is_data()) {
        (Some(name), _) => {
            loc.push(name.to_owned());
            "missing"
        }
        (None, true) => "value_error",
        (None, false) => "json_invalid",
    };
    let loc: Vec<&str> = loc.iter().map(String::as_str).collect();
    Problem::at(&loc, message, kind)
}

/// The parts of the path that a route leaves open.
pub(crate) struct Path<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        match axum::extract::Path::from_request_parts(parts, app).await {
            Ok(axum::extract::Path(value)) => Ok(Self(value)),
            Err(rejection) => {
                let failure = Failure::invalid("the path can't be read: it is not UTF-8");
                let problem = Problem::sentence(failure.detail(&rejection));
                Err(problem.with_status(rejection.status()))
            }
        }
    }
}

/// The query string; keys that nobody knows are refused by types that say so.
pub(crate) struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let text = parts.uri.query().unwrap_or("");
        serde_urlencoded::from_str(text)
            .map(Self)
            .map_err(|error| Problem::at(&["query"], error.to_string(), "value_error"))
    }
}
