//! Tools: functions of the host that code in a sandbox can call.

mod check;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Most tools of a sandbox.
pub const TOOLS: usize = 256;

/// Most calls of tools at a time.
pub const TOOL_CALLS: usize = 64;

/// Most bytes of the input of one call, and of its reply.
pub const TOOL_INPUT_LIMIT: usize = 1 << 20;
pub const TOOL_REPLY_LIMIT: usize = 16 << 20;

fn five_minutes() -> u64 {
    300_000
}

/// `PUT /tools`: installs the Python module `_platform_tools` with these functions, in place of
/// those of before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolsRequest {
    pub tools: Vec<Tool>,
    /// How long a call waits for its reply: 1 s to an hour.
    #[serde(default = "five_minutes")]
    pub timeout_ms: u64,
}

/// A function of the host that code in the sandbox can call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// A Python identifier.
    pub name: String,
    #[serde(default)]
    pub doc: String,
}

/// Answer of `PUT /tools`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolsInfo {
    /// The module's file, inside the sandbox.
    pub stub_path: String,
    pub tool_count: u32,
}

/// A call of a tool. Code that nobody has read wrote it.
#[derive(Debug, Clone)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// An object, as it was written: numbers of any length, and not parsed before it is needed.
    pub input: Box<RawValue>,
}

/// One line of `GET /tools/calls` (`application/x-ndjson`), which has no end.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "Line", into = "Line")]
pub enum ToolEvent {
    /// It is for this reader only, unless the connection goes before the reply.
    Call(ToolCall),
    /// Nobody waits for the reply to this call any more.
    Cancelled(String),
}

/// Every event in one shape: raw values can't be read through an untagged enum.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    input: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cancelled: Option<String>,
}

impl From<ToolEvent> for Line {
    fn from(event: ToolEvent) -> Self {
        match event {
            ToolEvent::Call(call) => Self {
                id: Some(call.id),
                name: Some(call.name),
                input: Some(call.input),
                cancelled: None,
            },
            ToolEvent::Cancelled(id) => Self {
                id: None,
                name: None,
                input: None,
                cancelled: Some(id),
            },
        }
    }
}

impl TryFrom<Line> for ToolEvent {
    type Error = &'static str;

    fn try_from(line: Line) -> Result<Self, &'static str> {
        // It becomes part of a path, so it must not be able to name another.
        let good = |id: &str| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
            (1..=64).contains(&id.len()) && id.bytes().all(plain)
        };
        let event = match line {
            Line {
                id: Some(id),
                name: Some(name),
                input: Some(input),
                cancelled: None,
            } => Self::Call(ToolCall { id, name, input }),
            Line {
                id: None,
                name: None,
                input: None,
                cancelled: Some(id),
            } => Self::Cancelled(id),
            _ => return Err("neither a call nor a cancellation"),
        };
        let (Self::Call(ToolCall { id, .. }) | Self::Cancelled(id)) = &event;
        if good(id) {
            Ok(event)
        } else {
            Err("a call's id has 1 to 64 letters, digits, _ and -")
        }
    }
}

/// `POST /tools/calls/{id}`: what the call returns, or with `is_error` raises.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolReply {
    pub content: Box<RawValue>,
    #[serde(default)]
    pub is_error: bool,
}

impl ToolReply {
    /// Fails where the value is no JSON, such as a map with keys that are no text.
    pub fn new(content: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self {
            content: serde_json::value::to_raw_value(content)?,
            is_error: false,
        })
    }

    /// Raises `ToolError` with this message.
    pub fn error(message: &str) -> Self {
        let content = serde_json::value::to_raw_value(message);
        Self {
            content: content.unwrap_or_else(|_| RawValue::NULL.to_owned()),
            is_error: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_flat_lines() {
        let call = r#"{"id":"a_1","name":"f","input":{"n":123456789012345678901234567890}}"#;
        let cancelled = r#"{"cancelled":"a_1"}"#;
        for line in [call, cancelled] {
            let event: ToolEvent = serde_json::from_str(line).unwrap();
            assert_eq!(serde_json::to_string(&event).unwrap(), line);
        }
        for bad in [
            "{}",
            r#"{"id":"a","name":"f"}"#,
            r#"{"id":"a","name":"f","input":{},"cancelled":"a"}"#,
            r#"{"id":"../a","name":"f","input":{}}"#,
            r#"{"cancelled":""}"#,
            r#"{"cancelled":"a","more":1}"#,
        ] {
            assert!(serde_json::from_str::<ToolEvent>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn replies_carry_any_json() {
        let reply: ToolReply = serde_json::from_str(r#"{"content":null}"#).unwrap();
        assert_eq!((reply.content.get(), reply.is_error), ("null", false));
        let reply = ToolReply::error("a \"word\"\n");
        assert_eq!(reply.content.get(), r#""a \"word\"\n""#);
    }
}
