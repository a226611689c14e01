//! Failures as clients see them: `{"detail": …}`, with a code and a hint beside it.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use ringfence_core::proto::Certificate;
use ringfence_core::{Code, Failure};
use serde::Serialize;
use utoipa::ToSchema;

/// Where a request is wrong, and how.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Fault {
    /// The way to the wrong value, such as `["body", "timeout_seconds"]`.
    pub loc: Vec<String>,
    pub msg: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
}

/// What a failure says: a sentence, or for a bad request where it is wrong.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Detail {
    Text(String),
    Faults(Vec<Fault>),
}

/// The body of every answer that is a failure.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ProblemBody {
    pub detail: Detail,
    /// The kind of failure, such as `not_found`.
    pub code: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Why the sandbox ended, where that is the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
}

/// A failure on its way to a client.
#[derive(Debug)]
pub(crate) struct Problem {
    failure: Failure,
    detail: Option<Box<Detail>>,
    status: Option<StatusCode>,
    certificate: Option<Box<Certificate>>,
}

pub(crate) type Answer<T> = Result<T, Problem>;

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            detail: None,
            status: None,
            certificate: None,
        }
    }
}

impl Problem {
    /// A value of the request that is wrong.
    pub(crate) fn at(loc: &[&str], msg: impl Into<String>, kind: &'static str) -> Self {
        let msg = msg.into();
        let loc = loc.iter().map(|part| (*part).to_owned()).collect();
        Self {
            failure: Failure::invalid(msg.clone()),
            detail: Some(Box::new(Detail::Faults(vec![Fault { loc, msg, kind }]))),
            status: None,
            certificate: None,
        }
    }

    /// A sentence as detail, where a list is the rule.
    pub(crate) fn sentence(failure: Failure) -> Self {
        let detail = Some(Box::new(Detail::Text(failure.message.clone())));
        Self {
            failure,
            detail,
            status: None,
            certificate: None,
        }
    }

    /// The engine ended the sandbox, and says why.
    pub(crate) fn ended(failure: Failure, certificate: Certificate) -> Self {
        let failure = match failure.code {
            Code::Unavailable => Failure::new(failure.code, certificate.message.clone())
                .hint(certificate.next.clone())
                .detail(failure.detail.unwrap_or(failure.message)),
            _ => failure,
        };
        Self {
            certificate: Some(Box::new(certificate)),
            ..failure.into()
        }
    }

    /// With another status than the code's own, where a contract asks for it.
    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = Some(status);
        self
    }

    pub(crate) fn failure(&self) -> &Failure {
        &self.failure
    }
}

impl Problem {
    /// What a client gets to see of it, here or in a stream that has begun already.
    pub(crate) fn into_parts(self) -> (StatusCode, ProblemBody) {
        let Failure {
            code,
            message,
            hint,
            detail,
        } = self.failure;
        let status = self.status.unwrap_or_else(|| {
            StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
        });
        if status.is_server_error() {
            tracing::error!(code = code.name(), detail, "{message}");
        }
        let detail = self.detail.map(|detail| *detail);
        let detail = detail.unwrap_or_else(|| match code {
            Code::InvalidInput => Detail::Faults(vec![Fault {
                loc: vec!["body".to_owned()],
                msg: message,
                kind: "value_error",
            }]),
            _ => Detail::Text(message),
        });
        let body = ProblemBody {
            detail,
            code: code.name().to_owned(),
            hint,
            certificate: self.certificate.map(|certificate| *certificate),
        };
        (status, body)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let code = self.failure.code;
        let (status, body) = self.into_parts();
        let mut answer = (status, Json(body)).into_response();
        // For those who count.
        answer.extensions_mut().insert(code);
        answer
    }
}
