//! The Model Context Protocol: the registry's tools and the files of sandboxes, on stdio and over
//! HTTP. A sandbox belongs to the name that a caller gives it, or to the caller, and never to a
//! session of the protocol: whoever connects again finds it.

mod call;
mod resources;
mod web;

pub(crate) use web::service;

use crate::http::{Act, App, Caller, apart, named_family};
use call::Watch;
use http::request::Parts;
use ringfence_core::tools::{Answer, Content, Family, Refusal, Tool};
use ringfence_core::{Code, Failure, skills};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorCode,
    Implementation, JsonObject, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
    ServerConfig, Tool as Definition, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::{ErrorData, ServerHandler};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// The argument that every tool of a session has besides its own.
const SESSION: &str = "session";

/// What a caller calls its own sandbox.
const DEFAULT: &str = "default";

const INSTRUCTIONS: &str = "\
Each sandbox is a Linux computer of its own: files below /workspace stay, Python variables stay, \
and nothing outside can be reached. Leave out `session` to use your own sandbox; give it a name to \
use several, or to find the same one again later. Where `session` is required you have none of \
your own: choose a name that nobody else would, and keep to it.";

/// Serves one connection, or one request.
#[derive(Clone)]
pub(crate) struct Server {
    app: App,
    side: Side,
}

/// Who is on the other side.
#[derive(Clone)]
pub(crate) enum Side {
    /// Whoever the request's key says, with what its query says.
    Request,
    /// The client of this process; `own` is the key of the sandbox that it gets without asking.
    Process { family: Family, own: String },
}

/// What an address may say: `/mcp?family=axio&session=work`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Asked {
    family: Option<String>,
    /// The sandbox of calls that name none.
    session: Option<String>,
}

/// Whose tools are asked for, and which sandbox is theirs.
struct Client {
    caller: Caller,
    family: Family,
    /// What the HTTP API calls the sandbox of calls that name none. Those who share nothing with
    /// each other but that they have no key have none.
    own: Option<String>,
}

impl Server {
    pub(crate) fn new(app: App, side: Side) -> Self {
        Self { app, side }
    }

    fn client(&self, context: &RequestContext<RoleServer>) -> Result<Client, ErrorData> {
        if let Side::Process { family, own } = &self.side {
            return Ok(Client {
                caller: Caller::anybody(),
                family: *family,
                own: Some(format!("key:{own}")),
            });
        }
        let parts = context.extensions.get::<Parts>();
        let caller = parts.and_then(|parts| parts.extensions.get::<Caller>());
        let caller = caller
            .cloned()
            .ok_or_else(|| refused(Failure::new(Code::Unauthenticated, "who asks is not known")))?;
        let query = parts.and_then(|parts| parts.uri.query());
        let asked: Asked = serde_urlencoded::from_str(query.unwrap_or_default())
            .map_err(|e| refused(Failure::invalid("cannot read the query").detail(e)))?;
        let family = named_family(asked.family.as_deref())
            .map_err(|problem| refused(problem.failure().clone()))?;
        let own = match asked.session.filter(|name| !name.is_empty()) {
            Some(name) => Some(session_of(&name)),
            None => caller.owner.is_some().then(|| format!("key:{DEFAULT}")),
        };
        Ok(Client {
            caller,
            family,
            own,
        })
    }

    fn definition(client: &Client, tool: &Tool) -> Definition {
        let mut schema = tool.schema(client.family);
        if !tool.is_apart() {
            client.add_session(&mut schema);
        }
        let schema = match schema {
            Value::Object(schema) => schema,
            _ => JsonObject::new(),
        };
        let hints = ToolAnnotations::new()
            .read_only(tool.is_read_only())
            .open_world(false);
        Definition::new(tool.name, tool.about, schema).with_annotations(hints)
    }
}

impl Client {
    /// The argument that names the sandbox, in the schema of a tool.
    fn add_session(&self, schema: &mut Value) {
        let absent = match self.own {
            Some(_) => " Your own one when absent.",
            None => "",
        };
        schema["properties"][SESSION] = json!({
            "type": "string",
            "description": format!("The name of the sandbox; the same name is the same sandbox.{absent}"),
        });
        if self.own.is_none() {
            match &mut schema["required"] {
                Value::Array(names) => names.push(json!(SESSION)),
                none => *none = json!([SESSION]),
            }
        }
    }

    /// What the HTTP API calls the sandbox of this name; of the client's own one without a name.
    fn session(&self, name: Option<&str>) -> Result<String, Failure> {
        match name {
            None => self.own.clone().ok_or_else(|| {
                Failure::invalid("you have no sandbox of your own here: name one by `session`")
                    .hint("or put ?session=NAME into the address of the server, or use a key")
            }),
            Some(DEFAULT) if self.own.is_some() => self.session(None),
            Some(name) => Ok(session_of(name)),
        }
    }
}

/// What the HTTP API calls the session of this name. An id is as good as a name.
fn session_of(name: &str) -> String {
    match ringfence_core::SessionId::try_from(name.to_owned()) {
        Ok(_) => name.to_owned(),
        Err(_) => format!("key:{name}"),
    }
}

/// A failure of ours: its code in the protocol, and what to do about it.
fn refused(failure: Failure) -> ErrorData {
    if let Some(detail) = &failure.detail {
        tracing::warn!(detail, "{failure}");
    }
    let data = json!({"code": failure.code.name(), "hint": failure.hint});
    let message = match failure.hint {
        Some(hint) => format!("{}; {hint}", failure.message),
        None => failure.message,
    };
    ErrorData::new(ErrorCode(failure.code.rpc_code()), message, Some(data))
}

/// The request over HTTP that something came with.
fn act(context: &RequestContext<RoleServer>) -> Option<&Arc<Act>> {
    context.extensions.get::<Parts>()?.extensions.get()
}

/// How a call ended, for those who watch.
fn word(done: &Result<Answer, Refusal>) -> &'static str {
    match done {
        Ok(answer) if answer.is_error => "failed",
        Ok(_) => "ok",
        Err(Refusal::Argument(_)) => Code::InvalidInput.name(),
        Err(Refusal::Failure(failure)) => failure.code.name(),
    }
}

fn result(answer: Answer) -> CallToolResult {
    let content = answer.content.into_iter().map(|piece| match piece {
        Content::Text { text } => ContentBlock::text(text),
        Content::Image { media_type, data } => ContentBlock::image(data, media_type),
    });
    let mut result = CallToolResult::success(content.collect());
    result.is_error = Some(answer.is_error);
    result.structured_content = answer.structured;
    result
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .build();
        let about = Implementation::new("ringfence", env!("CARGO_PKG_VERSION"));
        // What can't be read is told by whoever makes the sandbox.
        let found = skills::of_folders(&self.app.config.sandbox.skills).unwrap_or_default();
        let instructions = match skills::prompt(&found) {
            none if none.is_empty() => INSTRUCTIONS.to_owned(),
            list => format!("{INSTRUCTIONS}\n\n{list}"),
        };
        ServerConfig::new(capabilities)
            .with_server_info(about)
            .with_instructions(instructions)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let client = self.client(&context)?;
        let tools = client.family.tools().iter();
        let tools = tools.map(|tool| Self::definition(&client, tool)).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let client = self.client(&context)?;
        let family = client.family;
        let tool = family.tool(&request.name).ok_or_else(|| {
            let failure = crate::http::unknown_tool(family, &request.name);
            refused(Failure {
                code: Code::InvalidInput,
                ..failure
            })
        })?;
        let mut arguments = request.arguments.unwrap_or_default();
        let session = match arguments.remove(SESSION) {
            _ if tool.is_apart() => Ok(None),
            None | Some(Value::Null) => client.session(None).map(Some),
            Some(Value::String(name)) => client.session(Some(&name)).map(Some),
            Some(_) => Err(Failure::invalid(format!(
                "the argument {SESSION} must be a string"
            ))),
        };
        let session = match session {
            Ok(session) => session,
            // A model can mend that.
            Err(failure) => {
                let hint = failure.hint.map(|hint| format!("; {hint}"));
                let text = format!("Error: {}{}", failure.message, hint.unwrap_or_default());
                return Ok(CallToolResult::error(vec![ContentBlock::text(text)]).into());
            }
        };
        let watch = Watch::of(&context);
        let (caller, session) = (&client.caller, session.as_deref());
        let called = self.call(caller, session, (family, tool), arguments, watch);
        let called = Box::pin(called);
        let called = apart(&self.app, act(&context), (caller, "tool"), called, word);
        let answer = tokio::select! {
            answer = called => answer,
            // What runs is ended by dropping the call.
            () = context.ct.cancelled() => {
                return Err(refused(Failure::new(Code::Conflict, "the call was cancelled")));
            }
        };
        match answer {
            Ok(answer) => Ok(result(answer).into()),
            // A model can mend that.
            Err(Refusal::Argument(bad)) => {
                let text = ContentBlock::text(format!("Error: {bad}"));
                Ok(CallToolResult::error(vec![text]).into())
            }
            Err(Refusal::Failure(failure)) => Err(refused(failure)),
        }
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let client = self.client(&context)?;
        let files = self.files(&client).await.map_err(refused)?;
        Ok(ListResourcesResult::with_all_items(files))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![
            resources::template(),
        ]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let client = self.client(&context)?;
        let read = Box::pin(self.read(&client, &request.uri));
        let what = (&client.caller, "download");
        let read = apart(&self.app, act(&context), what, read, |read| match read {
            Ok(_) => "ok",
            Err(failure) => failure.code.name(),
        });
        Ok(read.await.map_err(refused)?.into())
    }
}
