//! The Model Context Protocol: the registry's tools and the files of sandboxes, on stdio and over
//! HTTP. A sandbox belongs to the name that a caller gives it, or to the caller, and never to a
//! session of the protocol: whoever connects again finds it.

mod call;
mod resources;
mod web;

pub(crate) use web::service;

use crate::http::{App, Caller, FamilyQuery};
use call::Watch;
use http::request::Parts;
use ringfence_core::tools::{Answer, Content, Family, Refusal, Tool};
use ringfence_core::{Code, Failure};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorCode,
    Implementation, JsonObject, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
    ServerConfig, Tool as Definition, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::{ErrorData, ServerHandler};
use serde_json::{Value, json};

/// The argument that every tool has besides its own.
const SESSION: &str = "session";

/// The sandbox of callers that name none.
const DEFAULT: &str = "default";

const INSTRUCTIONS: &str = "\
Each sandbox is a Linux computer of its own: files below /workspace stay, Python variables stay, \
and nothing outside can be reached. Leave out `session` to use your own sandbox; give it a name to \
use several, or to find the same one again later.";

/// Serves one connection, or one request.
#[derive(Clone)]
pub(crate) struct Server {
    app: App,
    side: Side,
}

/// Who is on the other side.
#[derive(Clone)]
pub(crate) enum Side {
    /// Whoever the request's key says, with the family that its query names.
    Request,
    /// The client of this process; `own` is the key of the sandbox that it gets without asking.
    Process { family: Family, own: String },
}

impl Server {
    pub(crate) fn new(app: App, side: Side) -> Self {
        Self { app, side }
    }

    fn caller(&self, context: &RequestContext<RoleServer>) -> Result<Caller, ErrorData> {
        match &self.side {
            Side::Process { .. } => Ok(Caller::anybody()),
            Side::Request => {
                let parts = context.extensions.get::<Parts>();
                let caller = parts.and_then(|parts| parts.extensions.get::<Caller>());
                caller.cloned().ok_or_else(|| {
                    refused(Failure::new(Code::Unauthenticated, "who asks is not known"))
                })
            }
        }
    }

    fn family(&self, context: &RequestContext<RoleServer>) -> Result<Family, ErrorData> {
        if let Side::Process { family, .. } = &self.side {
            return Ok(*family);
        }
        let query = context
            .extensions
            .get::<Parts>()
            .and_then(|parts| parts.uri.query());
        let asked: FamilyQuery = serde_urlencoded::from_str(query.unwrap_or_default())
            .map_err(|e| refused(Failure::invalid("cannot read the query").detail(e)))?;
        asked
            .family()
            .map_err(|problem| refused(problem.failure().clone()))
    }

    /// What the HTTP API calls the session of this name. An id is as good as a name.
    fn session(&self, name: &str) -> String {
        match (name, &self.side) {
            (DEFAULT, Side::Process { own, .. }) => format!("key:{own}"),
            (id, _) if ringfence_core::SessionId::try_from(id.to_owned()).is_ok() => id.to_owned(),
            (name, _) => format!("key:{name}"),
        }
    }

    fn definition(family: Family, tool: &Tool) -> Definition {
        let mut schema = tool.schema(family);
        schema["properties"][SESSION] = json!({
            "type": "string",
            "description": "The name of the sandbox; the same name is the same sandbox. Your own \
                one when absent.",
        });
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
        ServerConfig::new(capabilities)
            .with_server_info(about)
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let family = self.family(&context)?;
        let tools = family.tools().iter();
        let tools = tools.map(|tool| Self::definition(family, tool)).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let family = self.family(&context)?;
        let tool = family.tool(&request.name).ok_or_else(|| {
            let failure = crate::http::unknown_tool(family, &request.name);
            refused(Failure {
                code: Code::InvalidInput,
                ..failure
            })
        })?;
        let caller = self.caller(&context)?;
        let mut arguments = request.arguments.unwrap_or_default();
        let name = match arguments.remove(SESSION) {
            None | Some(Value::Null) => DEFAULT.to_owned(),
            Some(Value::String(name)) => name,
            Some(_) => {
                let text = format!("Error: the argument {SESSION} must be a string");
                return Ok(CallToolResult::error(vec![ContentBlock::text(text)]).into());
            }
        };
        let watch = Watch::of(&context);
        let called = self.call(&caller, &name, (family, tool), arguments, watch);
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
        let caller = self.caller(&context)?;
        let files = self.files(&caller).await.map_err(refused)?;
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
        let caller = self.caller(&context)?;
        let read = self.read(&caller, &request.uri).await.map_err(refused)?;
        Ok(read.into())
    }
}
