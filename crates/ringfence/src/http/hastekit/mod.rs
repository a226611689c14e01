//! `/api/sandbox`: the manager of the HasteKit contract. It hands out sandboxes by the ids of its
//! clients' sessions, and says where the daemon of each is reached.

mod relay;

pub(crate) use relay::Relays;

use super::extract::{Body, Path};
use super::problem::{Answer, Problem, ProblemBody};
use super::sessions::{Create, end};
use super::state::{App, Caller, Scope, session_id};
use crate::config::BackendChoice;
use axum::Json;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use ringfence_core::container::ContainerSpec;
use ringfence_core::sessions::NewSession;
use ringfence_core::spec::SandboxSpec;
use ringfence_core::{Code, Failure, Session, skills};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use utoipa::ToSchema;

/// Where files are in these sandboxes, and commands start.
const ROOT: &str = "/sandbox/workspace";

/// Where a daemon listens that is reached at its sandbox's own address.
const PORT: u16 = 8080;
const PORT_VARIABLE: &str = "SANDBOX_PORT";

/// What the key of a session of this face begins with: one that is made elsewhere is another one,
/// whatever its key.
const KEY: &str = "hastekit:";

/// Most bytes of a client's id, so that the key is one.
const LONGEST_ID: usize = 200;

/// A sandbox for a session of the client's. What is sent besides is ignored; an empty string is
/// the same as nothing.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Ask {
    /// The client's own id: the same one means the same sandbox, for as long as that lives.
    #[schema(min_length = 1, max_length = 200)]
    session_id: String,
    /// The image to run, where the backend runs images.
    #[serde(default)]
    image: Option<String>,
    /// Whose skills it gets: the folders below `SKILLS_ROOT/AGENT_NAME`.
    #[serde(default)]
    agent_name: Option<String>,
    /// Kept as a label.
    #[serde(default)]
    namespace: Option<String>,
    /// Environment of its commands.
    #[serde(default)]
    env: Option<BTreeMap<String, String>>,
}

/// Where the daemon of a sandbox is reached.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Handle {
    session_id: String,
    /// The sandbox.
    pod_name: String,
    /// The host to connect to, without a token.
    pod_ip: String,
    port: u16,
}

/// What every answer of this face that is no failure looks like.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Envelope {
    error: bool,
    message: &'static str,
    status: u16,
    data: Option<Handle>,
}

impl Envelope {
    fn new(message: &'static str, data: Option<Handle>) -> Json<Self> {
        Json(Self {
            error: false,
            message,
            status: StatusCode::OK.as_u16(),
            data,
        })
    }
}

/// A failure, in the words of the contract and in ours.
#[derive(Debug)]
pub(crate) struct Refused(Problem);

impl<T: Into<Problem>> From<T> for Refused {
    fn from(problem: T) -> Self {
        Self(problem.into())
    }
}

#[derive(Serialize)]
struct Refusal {
    error: bool,
    message: String,
    status: u16,
    data: Option<Handle>,
    #[serde(flatten)]
    problem: ProblemBody,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let failure = self.0.failure();
        let (code, message) = (failure.code, failure.message.clone());
        let (status, problem) = self.0.into_parts();
        let status = match status {
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            status => status,
        };
        let refusal = Refusal {
            error: true,
            message,
            status: status.as_u16(),
            data: None,
            problem,
        };
        let mut answer = (status, Json(refusal)).into_response();
        answer.extensions_mut().insert(code);
        answer
    }
}

fn check_enabled(app: &App) -> Answer<()> {
    match app.config.hastekit.enabled {
        true => Ok(()),
        false => Err(
            Failure::new(Code::Forbidden, "sandboxes are disabled on this server")
                .hint("start it with SANDBOX_ENABLED=true or --hastekit")
                .into(),
        ),
    }
}

/// The key of the session that a client's id means.
fn key(id: &str) -> Answer<String> {
    if (1..=LONGEST_ID).contains(&id.len()) && !id.chars().any(char::is_control) {
        return Ok(format!("{KEY}{id}"));
    }
    let message = format!("session_id has 1 to {LONGEST_ID} bytes and no control characters");
    Err(Problem::at(&["session_id"], message, "value_error"))
}

/// Whether a session was made here.
fn is_ours(session: &Session) -> bool {
    session
        .key
        .as_deref()
        .is_some_and(|key| key.starts_with(KEY))
}

fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

impl Ask {
    fn resolve(self, app: &App, caller: &Caller) -> Answer<NewSession> {
        let image = given(self.image).or_else(|| app.config.hastekit.image.clone());
        let container = image.map(|image| ContainerSpec {
            image: Some(image),
            ..ContainerSpec::default()
        });
        let mut env = BTreeMap::from([
            ("SANDBOX_ROOT".to_owned(), ROOT.to_owned()),
            (PORT_VARIABLE.to_owned(), PORT.to_string()),
        ]);
        env.extend(self.env.unwrap_or_default());
        let agent = given(self.agent_name);
        let names = [
            ("agent_name", agent.clone()),
            ("namespace", given(self.namespace)),
        ];
        let labels = names
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect();
        let spec = SandboxSpec {
            workdir: Some(ROOT.into()),
            container,
            env,
            labels,
            ..SandboxSpec::default()
        };
        let mut new = Create::with_spec(&key(&self.session_id)?, spec).resolve(app, caller)?;
        // What the server's own settings ask for needs no leave.
        if app.config.hastekit.pod_address && app.config.backend != BackendChoice::Native {
            new.spec.container.get_or_insert_default().daemon = true;
        }
        // Commands are all that runs here.
        new.kernel = None;
        if let (Some(root), Some(agent)) = (&app.config.hastekit.skills_root, agent) {
            let skills = skills::of_agent(root, &agent)?;
            new.spec.mounts = skills.iter().map(skills::Skill::mount).collect();
        }
        Ok(new)
    }
}

/// Whether its daemon listens at the address of its pod or container.
fn serves_itself(session: &Session) -> bool {
    let container = session.plan.container.as_ref();
    container.is_some_and(|container| container.daemon)
}

async fn handle(app: &App, id: String, session: &Arc<Session>) -> Answer<Handle> {
    let place = session.place().await?;
    let pod_name = match &place {
        Some(place) => place.name.clone(),
        None => session.plan.id.to_string(),
    };
    let direct = place
        .and_then(|place| place.address)
        .filter(|_| serves_itself(session));
    if let Some(pod_ip) = direct {
        // Who answers has opened its ports before.
        session.guest().await?.health().await?;
        let port = session.plan.env.get(PORT_VARIABLE);
        return Ok(Handle {
            session_id: id,
            pod_name,
            pod_ip,
            port: port.and_then(|port| port.parse().ok()).unwrap_or(PORT),
        });
    }
    let address: SocketAddr = app.relays.open(app, session)?;
    let advertised = app.config.hastekit.advertise.clone();
    Ok(Handle {
        session_id: id,
        pod_name,
        pod_ip: advertised.unwrap_or_else(|| address.ip().to_string()),
        port: address.port(),
    })
}

/// Gives the sandbox of a session: the one that lives, or a new one.
#[utoipa::path(
    post,
    path = "/api/sandbox",
    tag = "hastekit",
    request_body = Ask,
    responses((status = 200, body = Envelope), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    body: Result<Body<Ask>, Problem>,
) -> Result<Json<Envelope>, Refused> {
    check_enabled(&app)?;
    caller.may_beyond(Scope::Use)?;
    let Body(ask) = body?;
    let id = ask.session_id.clone();
    let new = ask.resolve(&app, &caller)?;
    let begun = Instant::now();
    let made = app.sessions.create(new).await;
    super::seen::create(made.as_ref().map(|(_, found)| *found), begun.elapsed());
    let (session, _) = made?;
    super::act::about(&session.id);
    let _use = session.begin();
    let handle = handle(&app, id, &session).await?;
    Ok(Envelope::new("the sandbox is ready", Some(handle)))
}

/// Says where the sandbox of a session is reached.
#[utoipa::path(
    get,
    path = "/api/sandbox/{session_id}",
    tag = "hastekit",
    params(("session_id" = String, Path)),
    responses((status = 200, body = Envelope), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn show(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, Problem>,
) -> Result<Json<Envelope>, Refused> {
    check_enabled(&app)?;
    let Path(id) = id?;
    let unknown = || {
        let message = format!("there is no sandbox of session {id}");
        Refused::from(Failure::new(Code::NotFound, message))
    };
    // What it answers with lets anybody run code there.
    let name = format!("key:{}", key(&id)?);
    let known = app.known(&caller, &name, Scope::Use).await;
    let session = known.map_err(|problem| match problem.failure().code {
        Code::NotFound => unknown(),
        _ => problem.into(),
    })?;
    if let Err(failure) = session.guest().await {
        return Err(match session.is_closing() {
            true => {
                app.sessions.forget(&session);
                unknown()
            }
            false => failure.into(),
        });
    }
    let handle = handle(&app, id.clone(), &session).await?;
    Ok(Envelope::new("the sandbox is ready", Some(handle)))
}

/// Ends the sandbox of a session; its processes and files are gone when this answers.
#[utoipa::path(
    delete,
    path = "/api/sandbox/{session_id}",
    tag = "hastekit",
    params(("session_id" = String, Path)),
    responses((status = 200, body = Envelope), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, Problem>,
) -> Result<Json<Envelope>, Refused> {
    check_enabled(&app)?;
    caller.may_beyond(Scope::Use)?;
    let Path(id) = id?;
    let id = session_id(&caller, &format!("key:{}", key(&id)?));
    end(&app, &caller, id).await?;
    Ok(Envelope::new("the sandbox is gone", None))
}
