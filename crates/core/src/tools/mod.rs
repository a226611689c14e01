//! Tools for models, as data: a name, what it takes, a description written for a model, and a
//! function over a session. Families are lists of tools over the same operations, each with the
//! names and answers that its users know; every face of Ringfence reads them here.

mod anthropic;
mod args;
mod axio;
mod files;
mod haiku;
mod hastekit;
mod ringfence;
mod shipit;
mod shown;

pub use args::{Args, BadArgument, Param, Unknown};

use crate::blocks::Tool as Block;
use crate::sessions::Session;
use crate::snippet::{Outcome, Snippet};
use crate::work::Work;
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use ringfence_proto::{Code, ExecResult, Failure, JobInfo};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// A tool of a family.
#[derive(Debug)]
pub struct Tool {
    pub name: &'static str,
    /// For a model: what it does, when to use it, its limits, an example.
    pub about: &'static str,
    params: &'static [Param],
    effect: Effect,
    run: Run,
}

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Reads,
    Changes,
    /// It runs something, for as long as its own timeout says.
    Runs,
}

/// How long a call may take that runs nothing. A sandbox that is stopped or taken over may never
/// answer, and a search may be too large.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a call does, and on what.
#[derive(Debug)]
enum Run {
    Inside(for<'a> fn(&'a dyn Runner, Args) -> BoxFuture<'a, Done>),
    /// In a sandbox that is made for it: there need not be a session.
    Apart(for<'a> fn(&'a dyn Snippets, Args) -> BoxFuture<'a, Done>),
}

type Done = Result<Answer, Refusal>;

/// One session, as a face of Ringfence runs things in it: with its limits, and with all that the
/// face does around a job, such as writing it down.
#[async_trait]
pub trait Runner: Snippets {
    fn session(&self) -> &Session;
    fn limits(&self) -> RunLimits;
    /// Runs something to its end.
    async fn run(&self, work: Work) -> Result<ExecResult, Failure>;
    /// Starts something that runs on by itself.
    async fn start(&self, work: Work) -> Result<JobInfo, Failure>;
}

/// What runs something in a sandbox of its own.
#[async_trait]
pub trait Snippets: Send + Sync {
    async fn snippet(&self, snippet: Snippet) -> Result<Outcome, Failure>;
}

/// What holds where a tool says nothing.
#[derive(Debug, Clone, Copy)]
pub struct RunLimits {
    /// Bytes of each output stream.
    pub output: u64,
    pub cpu_seconds: u64,
}

/// What a tool answers with. Code that failed has an answer like any other; `is_error` marks a
/// call that could not do what it was asked for, such as a file that is not there.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Answer {
    pub content: Vec<Content>,
    pub is_error: bool,
    /// The answer as data, where its family has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub structured: Option<Value>,
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Content {
    Text {
        text: String,
    },
    Image {
        media_type: String,
        /// In base64.
        data: String,
    },
}

impl Answer {
    fn text(text: impl Into<String>) -> Self {
        Self {
            content: vec![Content::Text { text: text.into() }],
            is_error: false,
            structured: None,
        }
    }

    fn error(text: impl Into<String>) -> Self {
        Self {
            is_error: true,
            ..Self::text(text)
        }
    }

    /// An object, and the same as text.
    fn data(value: Value) -> Self {
        Self {
            structured: Some(value.clone()),
            ..Self::text(value.to_string())
        }
    }

    fn and(mut self, more: impl IntoIterator<Item = Content>) -> Self {
        self.content.extend(more);
        self
    }

    /// All of its text.
    pub fn words(&self) -> String {
        let texts = self.content.iter().filter_map(|piece| match piece {
            Content::Text { text } => Some(text.as_str()),
            Content::Image { .. } => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }
}

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    Argument(BadArgument),
    Failure(Failure),
}

impl From<BadArgument> for Refusal {
    fn from(bad: BadArgument) -> Self {
        Self::Argument(bad)
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// A failure that the model can do something about, such as a path that is wrong, in words;
/// what is left is ours.
fn told(failure: Failure) -> Result<String, Failure> {
    match failure.code {
        Code::InvalidInput
        | Code::NotFound
        | Code::AlreadyExists
        | Code::Forbidden
        | Code::Conflict
        | Code::TooLarge
        | Code::NoSpace => Ok(match failure.hint {
            Some(hint) => format!("{}; {hint}", failure.message),
            None => failure.message,
        }),
        _ => Err(failure),
    }
}

/// The same as an answer that says `Error: …`.
fn refused(failure: Failure) -> Done {
    Ok(Answer::error(format!("Error: {}", told(failure)?)))
}

/// How a list of tools is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Mcp,
    Openai,
    Anthropic,
}

impl Format {
    pub const ALL: [Self; 3] = [Self::Mcp, Self::Openai, Self::Anthropic];

    pub fn name(self) -> &'static str {
        match self {
            Self::Mcp => "mcp",
            Self::Openai => "openai",
            Self::Anthropic => "anthropic",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}

/// A list of tools that belong together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Family {
    #[default]
    Ringfence,
    Axio,
    Haiku,
    Hastekit,
    Anthropic,
    Shipit,
}

impl Family {
    pub const ALL: [Self; 6] = [
        Self::Ringfence,
        Self::Axio,
        Self::Haiku,
        Self::Hastekit,
        Self::Anthropic,
        Self::Shipit,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ringfence => "ringfence",
            Self::Axio => "axio",
            Self::Haiku => "haiku",
            Self::Hastekit => "hastekit",
            Self::Anthropic => "anthropic",
            Self::Shipit => "shipit",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }

    pub fn tools(self) -> &'static [Tool] {
        match self {
            Self::Ringfence => ringfence::TOOLS,
            Self::Axio => axio::TOOLS,
            Self::Haiku => haiku::TOOLS,
            Self::Hastekit => hastekit::TOOLS,
            Self::Anthropic => anthropic::TOOLS,
            Self::Shipit => shipit::TOOLS,
        }
    }

    pub fn tool(self, name: &str) -> Option<&'static Tool> {
        self.tools().iter().find(|tool| tool.name == name)
    }

    fn unknown(self) -> Unknown {
        match self {
            Self::Ringfence => Unknown::Refuse,
            _ => Unknown::Ignore,
        }
    }

    /// The definitions of all of its tools.
    pub fn definitions(self, format: Format) -> Vec<Value> {
        let tools = self.tools().iter();
        tools.map(|tool| tool.definition(self, format)).collect()
    }

    /// Calls a tool of this family.
    pub async fn call(self, tool: &Tool, on: &dyn Runner, given: Map<String, Value>) -> Done {
        let args = Args::check(tool.params, self.unknown(), given)?;
        let done = match tool.run {
            Run::Inside(run) => run(on, args),
            Run::Apart(run) => return run(on, args).await,
        };
        if tool.effect == Effect::Runs {
            return done.await;
        }
        match tokio::time::timeout(PATIENCE, done).await {
            Ok(Err(Refusal::Failure(failure))) if failure.code == Code::DeadlineExceeded => {
                Ok(self.late(tool))
            }
            Ok(done) => done,
            Err(_) => Ok(self.late(tool)),
        }
    }

    /// Calls a tool that needs no session.
    pub async fn call_apart(
        self,
        tool: &Tool,
        on: &dyn Snippets,
        given: Map<String, Value>,
    ) -> Done {
        let args = Args::check(tool.params, self.unknown(), given)?;
        match tool.run {
            Run::Apart(run) => run(on, args).await,
            Run::Inside(_) => {
                let message = format!("{} needs a session", tool.name);
                Err(Failure::new(Code::Internal, message).into())
            }
        }
    }

    /// The answer of a call that was given up.
    fn late(self, tool: &Tool) -> Answer {
        let message = format!(
            "{} was given up: the sandbox did not answer in time; ask for less at once, or try again",
            tool.name
        );
        match self {
            Self::Anthropic => Answer {
                is_error: true,
                ..Answer::data(Block::TextEditor.error("execution_time_exceeded", &message))
            },
            _ => Answer::error(format!("Error: {message}")),
        }
    }
}

impl Tool {
    /// The JSON schema of its arguments.
    pub fn schema(&self, family: Family) -> Value {
        args::schema(self.params, family.unknown())
    }

    /// Whether it needs no session.
    pub fn is_apart(&self) -> bool {
        matches!(self.run, Run::Apart(_))
    }

    pub fn is_read_only(&self) -> bool {
        self.effect == Effect::Reads
    }

    /// As clients of this kind are told of it.
    pub fn definition(&self, family: Family, format: Format) -> Value {
        let (name, description, schema) = (self.name, self.about, self.schema(family));
        match format {
            Format::Mcp => json!({
                "name": name,
                "description": description,
                "inputSchema": schema,
                "annotations": {"readOnlyHint": self.is_read_only(), "openWorldHint": false},
            }),
            Format::Openai => json!({
                "type": "function",
                "function": {"name": name, "description": description, "parameters": schema},
            }),
            Format::Anthropic => json!({
                "name": name,
                "description": description,
                "input_schema": schema,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_told_of_well() {
        for family in Family::ALL {
            let mut names: Vec<_> = family.tools().iter().map(|tool| tool.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), family.tools().len(), "{}", family.name());
            for tool in family.tools() {
                let words = tool.about.split_whitespace().count();
                assert!(words >= 20, "{}: {}", tool.name, tool.about);
                assert!(tool.about.contains("Example: "), "{}", tool.name);
                let schema = tool.schema(family);
                for (name, property) in schema["properties"].as_object().unwrap() {
                    let about = property["description"].as_str().unwrap();
                    assert!(about.len() > 5, "{}.{name}", tool.name);
                }
            }
        }
    }
}
