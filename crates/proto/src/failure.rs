use serde::{Deserialize, Serialize};
use std::fmt;

/// What kind of failure: one row of the table that every face of Ringfence uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The request is malformed or a value is out of range.
    InvalidInput,
    /// The named thing does not exist.
    NotFound,
    /// The named thing exists already.
    AlreadyExists,
    /// A path leaves its root, or policy forbids the request.
    Forbidden,
    /// Who asks is not known.
    Unauthenticated,
    /// It is in a state that does not allow this.
    Conflict,
    /// A body or a file is over its limit.
    TooLarge,
    /// Whoever asks is out of quota: sessions, requests, memory.
    TooMany,
    /// There is no room for another, whoever asks.
    Full,
    /// This host or engine can't enforce what was asked.
    Unenforceable,
    /// What is needed is not installed, such as an interpreter.
    Missing,
    /// No space, or no resources, left.
    NoSpace,
    /// The sandbox, the engine or the network did not answer.
    Unavailable,
    /// It took longer than allowed.
    DeadlineExceeded,
    /// A defect of ours.
    Internal,
}

impl Code {
    pub const ALL: [Self; 15] = [
        Self::InvalidInput,
        Self::NotFound,
        Self::AlreadyExists,
        Self::Forbidden,
        Self::Unauthenticated,
        Self::Conflict,
        Self::TooLarge,
        Self::TooMany,
        Self::Full,
        Self::Unenforceable,
        Self::Missing,
        Self::NoSpace,
        Self::Unavailable,
        Self::DeadlineExceeded,
        Self::Internal,
    ];

    /// The row: wire name, HTTP status, exit status of the CLI, JSON-RPC error code.
    pub fn row(self) -> (&'static str, u16, u8, i32) {
        match self {
            Self::InvalidInput => ("invalid_input", 422, 64, -32602),
            Self::NotFound => ("not_found", 404, 66, -32002),
            Self::AlreadyExists => ("already_exists", 409, 73, -32010),
            Self::Forbidden => ("forbidden", 403, 77, -32011),
            Self::Unauthenticated => ("unauthenticated", 401, 77, -32012),
            Self::Conflict => ("conflict", 409, 75, -32013),
            Self::TooLarge => ("too_large", 413, 65, -32014),
            Self::TooMany => ("too_many", 429, 75, -32015),
            Self::Full => ("full", 503, 75, -32021),
            Self::Unenforceable => ("unenforceable", 501, 78, -32016),
            Self::Missing => ("missing", 424, 69, -32017),
            Self::NoSpace => ("no_space", 507, 74, -32018),
            Self::Unavailable => ("unavailable", 503, 69, -32019),
            Self::DeadlineExceeded => ("deadline_exceeded", 504, 75, -32020),
            Self::Internal => ("internal", 500, 70, -32603),
        }
    }

    pub fn name(self) -> &'static str {
        self.row().0
    }

    pub fn http_status(self) -> u16 {
        self.row().1
    }

    pub fn exit_status(self) -> u8 {
        self.row().2
    }

    pub fn rpc_code(self) -> i32 {
        self.row().3
    }
}

/// A failure of Ringfence or of a request; code that exits 1 in a sandbox is a result, not this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Failure {
    pub code: Code,
    /// Names the operation and the object, lower case, no full stop.
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// For the log only: never sent to a client.
    #[serde(skip)]
    pub detail: Option<String>,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
            detail: None,
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub fn detail(mut self, detail: impl fmt::Display) -> Self {
        self.detail = Some(detail.to_string());
        self
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidInput, message)
    }

    /// A failed system call: `what` names the operation and the object.
    pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as K;
        let code = match error.kind() {
            K::NotFound => Code::NotFound,
            K::AlreadyExists => Code::AlreadyExists,
            K::PermissionDenied | K::ReadOnlyFilesystem => Code::Forbidden,
            K::StorageFull | K::QuotaExceeded | K::OutOfMemory => Code::NoSpace,
            K::FileTooLarge => Code::TooLarge,
            K::InvalidInput
            | K::InvalidFilename
            | K::NotADirectory
            | K::IsADirectory
            | K::DirectoryNotEmpty
            | K::CrossesDevices => Code::InvalidInput,
            _ => Code::Internal,
        };
        Self::new(code, format!("{what}: {}", plain(error)))
    }
}

/// The error's text in lower case and without Rust's `(os error N)` tail.
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = text.chars();
    chars
        .next()
        .map(|c| c.to_lowercase().chain(chars).collect())
        .unwrap_or_default()
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_names_are_the_names_of_the_table() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.name());
        }
    }

    #[test]
    fn io_errors_read_like_sentences() {
        let error = std::io::Error::from_raw_os_error(2);
        let failure = Failure::io("cannot read /a", &error);
        assert_eq!(failure.message, "cannot read /a: no such file or directory");
        assert_eq!(failure.code, Code::NotFound);
    }
}
