//! The description of all routes, made from the routes themselves: `/openapi.json`, and `/docs`
//! for people.

use super::problem::ProblemBody;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, header};
use ringfence_core::Code;
use sha2::{Digest as _, Sha256};
use std::sync::LazyLock;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, Parameter, ParameterIn, PathItem};
use utoipa::openapi::schema::SchemaType;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    Components, Content, ContentBuilder, InfoBuilder, KnownFormat, LicenseBuilder, Object,
    ObjectBuilder, OpenApi, Ref, RefOr, Response as Described, ResponseBuilder, Schema,
    SchemaFormat, ServerBuilder, Tag, Type,
};
use utoipa::{PartialSchema as _, ToSchema as _};

/// What is answered without a key: it says nothing about anybody.
pub(crate) const OPEN: [&str; 4] = ["/health", "/ready", "/openapi.json", "/docs"];

const ABOUT: &str = "\
Sandboxes for agents: each session is a computer of its own, with a workspace, a persistent Python \
REPL, commands, files and background jobs, and it can't reach anything outside.

All routes are served at `/` and under `/v1`. A session is named by its id, or by `key:NAME`: the \
caller's own session with that key, which is made when it is first used.

Every answer that is a failure is a `ProblemBody`: `detail` is a sentence, or for status 422 a list \
of what is wrong where. Every answer carries `x-request-id`, which the server's log has too; one \
that the request brings is kept.

A server on loopback needs no key until there is one; `ringfence key add NAME` makes them.";

const TAGS: [(&str, &str); 8] = [
    ("sessions", "Make, find, change, suspend and end sessions."),
    (
        "exec",
        "One tool call, answered with a result block that clients of the hosted code execution \
         tool can parse.",
    ),
    (
        "snippets",
        "Code in many languages, each run in a sandbox of its own that is gone afterwards.",
    ),
    (
        "jobs",
        "Code and commands that run in the foreground, as a stream of events, in the background, \
         or in a terminal.",
    ),
    (
        "kernels",
        "Python interpreters with variables of their own.",
    ),
    (
        "files",
        "Files of a session: upload, download, list, search, edit, and whole folders as tar. Paths \
         are below the workspace.",
    ),
    (
        "tools",
        "Tools for models, in families; and functions of the caller's own that code in a session can \
         call.",
    ),
    ("server", "Health, metrics and this description."),
];

/// Parts of paths, which are the same everywhere.
const PARTS: [(&str, &str, Option<&str>); 5] = [
    (
        "session",
        "The session's id, or `key:NAME` for the caller's own session with that key.",
        None,
    ),
    ("job", "The job's id.", Some(NAME)),
    ("kernel", "The kernel's name.", Some(NAME)),
    ("file_id", "An id from the result of a call.", None),
    ("tool", "The tool's name.", Some(NAME)),
];
const NAME: &str = "^[A-Za-z0-9_-]{1,64}$";

/// The failures that a status stands for, besides those of the table in [`Code`].
const STATUSES: [(u16, &str, &str); 19] = [
    (
        400,
        "BadRequest",
        "the path or the request is not one that can be read",
    ),
    (
        401,
        "Unauthenticated",
        "a key is needed, and none that is known was shown",
    ),
    (
        403,
        "Forbidden",
        "the key or the server's policy does not allow this, or a path leaves its root",
    ),
    (
        404,
        "NotFound",
        "there is no such thing, or it is somebody else's",
    ),
    (408, "BodyTimeout", "the body stood still for too long"),
    (
        409,
        "Conflict",
        "it is in a state that does not allow this, or exists already",
    ),
    (413, "TooLarge", "the body is over its limit"),
    (
        414,
        "UrlTooLong",
        "the URL is too long; the answer has no body",
    ),
    (
        416,
        "RangeNotSatisfiable",
        "the range is outside of the file",
    ),
    (
        422,
        "InvalidInput",
        "a value of the request is wrong: `detail` says which",
    ),
    (
        424,
        "Missing",
        "what is needed is not installed, such as an interpreter",
    ),
    (426, "UpgradeRequired", "a WebSocket is needed"),
    (
        429,
        "TooMany",
        "over the quota or the request rate of the key",
    ),
    (
        431,
        "HeadersTooLarge",
        "the headers or the URL are too large; there may be no body",
    ),
    (500, "Internal", "a defect of the server"),
    (
        501,
        "Unenforceable",
        "this host can't enforce what was asked",
    ),
    (
        503,
        "Unavailable",
        "there is no room for another session, or the sandbox did not answer",
    ),
    (504, "DeadlineExceeded", "it took longer than allowed"),
    (507, "NoSpace", "no space is left"),
];

/// The description of everything that is served, the same for every server of this version.
fn document() -> OpenApi {
    let (_, mut api) = super::routes().split_for_parts();
    api.info = InfoBuilder::new()
        .title("Ringfence")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(ABOUT))
        .license(Some(
            LicenseBuilder::new()
                .name(env!("CARGO_PKG_LICENSE"))
                .identifier(Some(env!("CARGO_PKG_LICENSE")))
                .build(),
        ))
        .build();
    let server = |url: &str, about: &str| {
        let about = Some(about.to_owned());
        ServerBuilder::new().url(url).description(about).build()
    };
    api.servers = Some(vec![
        server("/", "this server"),
        server("/v1", "the same, where a client wants a version"),
    ]);
    let need = |name| SecurityRequirement::new(name, Vec::<String>::new());
    api.security = Some(vec![need("bearer"), need("apiKey")]);
    let components = api.components.get_or_insert_with(Components::new);
    shared(components);
    let mut used = Vec::new();
    for (path, item) in &mut api.paths.paths {
        for (method, operation) in operations(item) {
            used.extend(operation.tags.iter().flatten().cloned());
            complete(path, method, operation);
        }
    }
    api.tags = Some(
        TAGS.into_iter()
            .filter(|(name, _)| used.iter().any(|used| used == name))
            .map(|(name, about)| tag(name, about))
            .collect(),
    );
    api
}

fn tag(name: &str, about: &str) -> Tag {
    let about = Some(about.to_owned());
    TagBuilder::new().name(name).description(about).build()
}

/// What many operations refer to.
fn shared(components: &mut Components) {
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("`Authorization: Bearer KEY`"));
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer.build()));
    let api_key =
        ApiKeyValue::with_description("x-api-key", "The same keys, as some clients send them.");
    components.add_security_scheme("apiKey", SecurityScheme::ApiKey(ApiKey::Header(api_key)));
    let mut schemas: Vec<(String, RefOr<Schema>)> = Vec::new();
    ProblemBody::schemas(&mut schemas);
    components.schemas.extend(schemas);
    let name = ProblemBody::name().into_owned();
    components.schemas.insert(name, ProblemBody::schema());
    for (status, name, about) in STATUSES {
        components
            .responses
            .insert(name.to_owned(), RefOr::T(failure(status, about)));
    }
}

fn failure(status: u16, about: &str) -> Described {
    let codes: Vec<String> = Code::ALL
        .into_iter()
        .filter(|code| code.http_status() == status)
        .map(|code| format!("`{}`", code.name()))
        .collect();
    let about = match codes.is_empty() {
        true => about.to_owned(),
        false => format!("{about} ({})", codes.join(", ")),
    };
    if [414, 431].contains(&status) {
        return ResponseBuilder::new().description(about).build();
    }
    let schema = Ref::from_schema_name(ProblemBody::name());
    let content = ContentBuilder::new().schema(Some(schema)).build();
    let mut answer = ResponseBuilder::new()
        .description(about)
        .content("application/json", content)
        .build();
    let (name, about) = match status {
        401 => ("www-authenticate", "how to show a key"),
        429 => (
            "retry-after",
            "seconds to wait; where the rate was the reason",
        ),
        _ => return answer,
    };
    let header = HeaderBuilder::new().description(Some(about)).build();
    answer.headers.insert(name.to_owned(), header.into());
    answer
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    [
        ("get", &mut item.get),
        ("post", &mut item.post),
        ("put", &mut item.put),
        ("patch", &mut item.patch),
        ("delete", &mut item.delete),
    ]
    .into_iter()
    .filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

/// Adds what the routes need not say one by one.
fn complete(path: &str, method: &str, operation: &mut Operation) {
    let tag = operation.tags.iter().flatten().next();
    let tag = tag.cloned().unwrap_or_default();
    if let Some(name) = &mut operation.operation_id {
        *name = format!("{tag}_{name}");
    }
    if OPEN.contains(&path) {
        operation.security = Some(Vec::new());
    }
    headline(operation);
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else {
            continue;
        };
        if let Some(RefOr::T(Schema::Object(schema))) = &mut parameter.schema {
            sendable(schema);
        }
        if parameter.parameter_in != ParameterIn::Path {
            continue;
        }
        let part = PARTS.iter().find(|(name, ..)| *name == parameter.name);
        let Some((_, about, pattern)) = part else {
            continue;
        };
        parameter.description.get_or_insert((*about).to_owned());
        if let (Some(RefOr::T(Schema::Object(schema))), Some(pattern)) =
            (&mut parameter.schema, pattern)
        {
            schema.pattern.get_or_insert((*pattern).to_owned());
        }
    }
    if let Some(RefOr::T(body)) = &mut operation.request_body {
        bytes(&mut body.content);
        body.content.values_mut().for_each(present);
    }
    for answer in operation.responses.responses.values_mut() {
        if let RefOr::T(answer) = answer {
            bytes(&mut answer.content);
        }
    }
    let statuses = failures(path, method, operation);
    let answers = &mut operation.responses.responses;
    answers.remove("4XX");
    for status in statuses {
        let Some((_, name, _)) = STATUSES.iter().find(|(known, ..)| *known == status) else {
            continue;
        };
        let answer = Ref::from_response_name(*name);
        answers
            .entry(status.to_string())
            .or_insert(RefOr::Ref(answer));
    }
}

/// What is absent from a query or the headers is not there; nobody can send a null.
fn sendable(schema: &mut Object) {
    let SchemaType::Array(types) = &mut schema.schema_type else {
        return;
    };
    types.retain(|one| *one != Type::Null);
    if let [one] = types.as_slice() {
        schema.schema_type = SchemaType::Type(one.clone());
    }
}

/// A body that may be absent is then no body at all; it is never `null`.
fn present(content: &mut RefOr<Content>) {
    let RefOr::T(Content {
        schema: Some(schema),
        ..
    }) = content
    else {
        return;
    };
    if let RefOr::T(Schema::OneOf(several)) = schema
        && let Some(one) = several
            .items
            .iter()
            .find(|one| matches!(one, RefOr::Ref(_)))
    {
        *schema = one.clone();
    }
}

/// Bytes are bytes, not lists of numbers.
fn bytes<'a>(contents: impl IntoIterator<Item = (&'a String, &'a mut RefOr<Content>)>) {
    for (media, content) in contents {
        let texts = ["application/json", "multipart/form-data"];
        if texts.contains(&media.as_str()) || media.starts_with("text/") {
            continue;
        }
        if let RefOr::T(content) = content {
            // Of any type there is nothing to say, not even that it is no JSON.
            content.schema = (media != "*/*").then(|| RefOr::T(binary().into()));
        }
    }
}

fn binary() -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)))
        .build()
}

/// The first sentence is the title, what follows the text.
fn headline(operation: &mut Operation) {
    let Some(first) = operation.summary.take() else {
        return;
    };
    let first = first.replace('\n', " ");
    let (title, rest) = match first.split_once(". ") {
        Some((title, rest)) => (title.to_owned(), rest.to_owned()),
        None => (first.trim_end_matches('.').to_owned(), String::new()),
    };
    operation.summary = Some(title);
    let more = operation.description.take().unwrap_or_default();
    let text = [rest, more.replace('\n', " ")].join("\n\n");
    let text = text.trim();
    operation.description = (!text.is_empty()).then(|| text.to_owned());
}

/// The statuses of failures that an operation can end in by what it is.
fn failures(path: &str, method: &str, operation: &Operation) -> Vec<u16> {
    let mut all = vec![403, 414, 431, 500];
    if !OPEN.contains(&path) {
        all.extend([401, 429]);
    }
    let outside = |one: &RefOr<Parameter>| match one {
        RefOr::T(one) => one.parameter_in != ParameterIn::Path,
        RefOr::Ref(_) => true,
    };
    if operation.parameters.iter().flatten().any(outside) {
        all.push(422);
    }
    if operation.request_body.is_some() {
        all.extend([408, 413, 422]);
    }
    if path.contains('{') {
        all.push(400);
        // What is not there is as gone as it is to be.
        if (path, method) != ("/sessions/{session}", "delete") {
            all.push(404);
        }
    }
    if path.starts_with("/sessions") || path.starts_with("/files") {
        all.push(503);
    }
    if operation.responses.responses.contains_key("206") {
        all.push(416);
    }
    if operation.responses.responses.contains_key("101") {
        all.push(426);
    }
    // What may have to make a sandbox, start it again, and ask it.
    let inside = path.contains("{session}/") || path.starts_with("/files");
    if inside || (path, method) == ("/sessions", "post") {
        all.extend([409, 422, 424, 501, 504, 507]);
    }
    all
}

/// As it is served, and kept in `docs`.
pub(crate) fn text() -> String {
    let mut text = document().to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

static TEXT: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(text()));

/// This description, as OpenAPI 3.1.
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "server",
    responses((status = 200, body = Object, content_type = "application/json"))
)]
pub(crate) async fn description() -> impl IntoResponse {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], TEXT.clone())
}

const STYLE: &str = include_str!("docs/page.css");
const SCRIPT: &str = include_str!("docs/page.js");
const PAGE: &str = include_str!("docs/page.html");

/// The page, and what it may do: run its own script, and ask this server.
static SHOWN: LazyLock<(Bytes, String)> = LazyLock::new(|| {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    let page = PAGE
        .replace("/*STYLE*/", STYLE)
        .replace("/*SCRIPT*/", SCRIPT);
    (Bytes::from(page), policy)
});

/// This description, for people. It loads nothing from elsewhere.
#[utoipa::path(
    get,
    path = "/docs",
    tag = "server",
    responses((status = 200, body = String, content_type = "text/html"))
)]
pub(crate) async fn page() -> Response {
    let (page, policy) = &*SHOWN;
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, page.clone()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_operation_has_a_name_of_its_own_and_says_what_it_does() {
        let mut api = document();
        let tags: BTreeSet<String> = api.tags.iter().flatten().map(|t| t.name.clone()).collect();
        let mut names = BTreeSet::new();
        for (path, item) in &mut api.paths.paths {
            for (method, operation) in operations(item) {
                let name = operation.operation_id.clone().unwrap_or_default();
                assert!(names.insert(name.clone()), "{name} is there twice");
                let used = operation.tags.clone().unwrap_or_default();
                assert_eq!(used.len(), 1, "{method} {path}");
                assert!(
                    tags.contains(&used[0]),
                    "{method} {path}: {} has no text",
                    used[0]
                );
                assert!(operation.summary.is_some(), "{method} {path}");
                for parameter in operation.parameters.iter().flatten() {
                    let RefOr::T(one) = parameter else {
                        panic!("{method} {path}");
                    };
                    assert!(one.description.is_some(), "{method} {path}: {}", one.name);
                }
            }
        }
        assert!(!names.is_empty());
    }

    #[test]
    fn every_status_of_the_failure_table_is_described() {
        for code in Code::ALL {
            let status = code.http_status();
            assert!(
                STATUSES.iter().any(|(known, ..)| *known == status),
                "{status}"
            );
        }
    }

    #[test]
    fn the_page_runs_nothing_but_its_own() {
        let (page, policy) = &*SHOWN;
        let page = std::str::from_utf8(page).unwrap();
        assert_eq!(page.matches("<script").count(), 1);
        assert!(!page.contains("http://") && !page.contains("https://"));
        assert!(!SCRIPT.contains("innerHTML") && !SCRIPT.contains("</script"));
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"));
    }
}
