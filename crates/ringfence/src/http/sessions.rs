//! `/sessions`: make, look at, change, list, end.

use super::events;
use super::extract::{Body, Path, Query};
use super::making::{self, MakingEvent};
use super::problem::{Answer, Problem, ProblemBody};
use super::state::{App, Caller, Scope, session_id};
use axum::extract::{Extension, State};
use axum::response::IntoResponse;
use axum::{Json, response::Response};
use http::{HeaderMap, StatusCode};
use ringfence_core::proto::KernelRequest;
use ringfence_core::sessions::{Found, NewSession, OnIdle, Terms};
use ringfence_core::spec::{SandboxSpec, Workspace};
use ringfence_core::{Code, Enforced, Failure, Session, SessionId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// A session to be made. What a contract's client sends besides is ignored.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct Create {
    /// Seconds without any use until it ends.
    #[schema(minimum = 1, maximum = 7200)]
    idle_timeout_seconds: Option<f64>,
    /// Seconds until it ends in any case.
    #[schema(minimum = 1, maximum = 7200)]
    max_lifetime_seconds: Option<f64>,
    /// The caller's own name for it, such as a conversation's id: the session that has it is
    /// answered with, and made if there is none.
    #[schema(min_length = 1, max_length = 256)]
    key: Option<String>,
    /// `destroy`, or `suspend` to keep its files when nobody uses it.
    on_idle: Option<OnIdle>,
    /// Words of the caller's own, to find it by.
    labels: BTreeMap<String, String>,
    /// How its sandbox is made; whatever is absent gets the server's default.
    spec: Option<SandboxSpec>,
}

/// What a session is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionObject {
    session_id: String,
    /// Seconds since the epoch.
    created_at: f64,
    last_activity_at: f64,
    idle_timeout_seconds: f64,
    max_lifetime_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    on_idle: OnIdle,
    labels: BTreeMap<String, String>,
    /// What its sandbox is really held by.
    enforced: Vec<Enforced>,
    /// Opens only this session; given when it is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_key: Option<String>,
}

impl SessionObject {
    async fn of(session: &Arc<Session>) -> Self {
        let terms = session.terms();
        Self {
            session_id: session.id.to_string(),
            created_at: session.created.wall,
            last_activity_at: session.last_activity().await,
            idle_timeout_seconds: terms.idle_timeout,
            max_lifetime_seconds: terms.max_lifetime,
            key: session.key.clone(),
            on_idle: terms.on_idle,
            labels: session.plan.labels.clone(),
            enforced: session.plan.enforced.clone(),
            session_key: None,
        }
    }
}

fn seconds(app: &App, name: &str, asked: Option<f64>, default: f64) -> Answer<f64> {
    let most = app.config.sessions.longest_timeout.as_secs_f64();
    match asked {
        None => Ok(default),
        Some(value) if (1.0..=most).contains(&value) => Ok(value),
        Some(_) => {
            let message = format!("must be between 1 and {most} seconds");
            Err(Problem::at(&["body", name], message, "value_error"))
        }
    }
}

impl Create {
    /// With all defaults.
    pub(crate) fn with_key(key: &str) -> Self {
        Self {
            key: Some(key.to_owned()),
            ..Self::default()
        }
    }

    /// The same in a sandbox that is made so.
    pub(crate) fn with_spec(key: &str, spec: SandboxSpec) -> Self {
        Self {
            spec: Some(spec),
            ..Self::with_key(key)
        }
    }

    pub(crate) fn resolve(self, app: &App, caller: &Caller) -> Answer<NewSession> {
        let defaults = &app.config.sessions;
        let idle = defaults.idle_timeout.as_secs_f64();
        let life = defaults.max_lifetime.as_secs_f64();
        let terms = Terms {
            idle_timeout: seconds(app, "idle_timeout_seconds", self.idle_timeout_seconds, idle)?,
            max_lifetime: seconds(app, "max_lifetime_seconds", self.max_lifetime_seconds, life)?,
            on_idle: self.on_idle.unwrap_or_default(),
        };
        let mut spec = app.spec(self.spec.unwrap_or_default())?;
        spec.labels.extend(self.labels);
        Ok(NewSession {
            owner: caller.owner.clone(),
            key: self.key,
            spec,
            limits: app.config.limits.of_sandboxes(),
            terms,
            kernel: Some(KernelRequest::default()),
        })
    }
}

impl App {
    /// What was asked, within the server's policy, with the server's defaults.
    pub(super) fn spec(&self, mut spec: SandboxSpec) -> Answer<SandboxSpec> {
        use crate::config::WorkspaceChoice;
        let skills = &self.config.sandbox.skills;
        super::policy::apply(&self.config.policy, skills, &mut spec)?;
        spec.skills.extend(skills.iter().cloned());
        spec.prefer |= self.config.limits.prefer;
        if spec.workspace == Workspace::Fresh {
            spec.workspace = match self.config.sandbox.workspace {
                WorkspaceChoice::Auto => Workspace::Fresh,
                WorkspaceChoice::Disk => Workspace::Disk,
                WorkspaceChoice::Memory => Workspace::Memory,
            };
        }
        if spec.python.is_none() && spec.environment.is_none() && spec.rootfs.is_none() {
            spec.python.clone_from(&self.config.sandbox.python);
            spec.environment.clone_from(&self.config.sandbox.env_name);
        }
        Ok(spec)
    }

    /// Has sessions with all defaults made ready, where the backend can.
    pub(crate) async fn prepare(&self) -> Answer<()> {
        let spec = self.spec(SandboxSpec::default())?;
        let limits = self.config.limits.of_sandboxes();
        Ok(self.sessions.prepare(spec, &limits).await?)
    }
}

/// Makes a session; its REPL is started when this answers. With `Accept: text/event-stream` the
/// answer is events: `progress` while an image is fetched, then `done` with the session.
#[utoipa::path(
    post,
    path = "/sessions",
    tag = "sessions",
    request_body = Option<Create>,
    responses(
        (status = 201, body = SessionObject),
        (
            status = 200,
            description = "the session that has this key already, or events until it is there",
            content((SessionObject = "application/json"), (MakingEvent = "text/event-stream")),
        ),
        (
            status = 404,
            body = ProblemBody,
            description = "no such image, environment or interpreter, or the session ended meanwhile",
        ),
        (status = "4XX", body = ProblemBody),
        (status = 503, body = ProblemBody, description = "too many sessions"),
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Body(body): Body<Create>,
) -> Answer<Response> {
    caller.may_beyond(Scope::Use)?;
    let new = body.resolve(&app, &caller)?;
    if events::wanted(&headers) {
        return Ok(making::followed(app, new));
    }
    let (object, found) = make(&app, new).await?;
    let status = match found {
        Found::Made => StatusCode::CREATED,
        Found::There => StatusCode::OK,
    };
    Ok((status, Json(object)).into_response())
}

/// Makes a session, or finds the one that has its key.
pub(super) async fn make(app: &App, new: NewSession) -> Answer<(SessionObject, Found)> {
    let begun = std::time::Instant::now();
    let made = app.sessions.create(new).await;
    super::seen::create(made.as_ref().map(|(_, found)| *found), begun.elapsed());
    let (session, found) = made?;
    super::act::about(&session.id);
    let _use = session.begin();
    let mut object = SessionObject::of(&session).await;
    object.session_key = Some(app.gate.session_key(&session.id));
    Ok((object, found))
}

/// What a session is; looking at it is no use of it.
#[utoipa::path(
    get,
    path = "/sessions/{session}",
    tag = "sessions",
    params(("session" = String, Path)),
    responses((status = 200, body = SessionObject), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn show(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<Json<SessionObject>> {
    let session = app.session(&caller, &id, Scope::Read).await?;
    Ok(Json(SessionObject::of(&session).await))
}

/// Ends a session; its processes, files and memory are gone when this answers.
#[utoipa::path(
    delete,
    path = "/sessions/{session}",
    tag = "sessions",
    params(("session" = String, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    caller.may(Scope::Use)?;
    end(&app, &caller, session_id(&caller, &id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends a session, if there is one that the caller sees.
pub(crate) async fn end(app: &App, caller: &Caller, id: Option<SessionId>) -> Answer<()> {
    let Some(id) = id else {
        super::act::found_nothing();
        return Ok(());
    };
    let session = match app.sessions.get(&id).await {
        Ok(session) => Some(session),
        // One that is on its way out is waited for.
        Err(failure) if failure.code == Code::NotFound => app.sessions.leaving(&id),
        Err(failure) => return Err(failure.into()),
    };
    // One of somebody else is not there for this caller.
    if !session.is_some_and(|session| caller.sees(&session)) {
        super::act::found_nothing();
        if !caller.sees_all() {
            return Ok(());
        }
    }
    // The caller may go away; the session goes all the same.
    let sessions = Arc::clone(&app.sessions);
    tokio::spawn(async move { sessions.remove(&id).await })
        .await
        .map_err(|e| Failure::new(Code::Internal, "the end broke off").detail(e))??;
    Ok(())
}

/// New terms for a session.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Change {
    #[schema(minimum = 1, maximum = 7200)]
    idle_timeout_seconds: Option<f64>,
    #[schema(minimum = 1, maximum = 7200)]
    max_lifetime_seconds: Option<f64>,
    on_idle: Option<OnIdle>,
}

/// Changes how long a session may last.
#[utoipa::path(
    patch,
    path = "/sessions/{session}",
    tag = "sessions",
    params(("session" = String, Path)),
    request_body = Option<Change>,
    responses((status = 200, body = SessionObject), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn change(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(body): Body<Change>,
) -> Answer<Json<SessionObject>> {
    let session = app.known(&caller, &id, Scope::Use).await?;
    let checked = |name, asked: Option<f64>| match asked {
        Some(_) => seconds(&app, name, asked, 0.0).map(Some),
        None => Ok(None),
    };
    let idle = checked("idle_timeout_seconds", body.idle_timeout_seconds)?;
    let life = checked("max_lifetime_seconds", body.max_lifetime_seconds)?;
    let change = |terms: &mut Terms| {
        terms.idle_timeout = idle.unwrap_or(terms.idle_timeout);
        terms.max_lifetime = life.unwrap_or(terms.max_lifetime);
        terms.on_idle = body.on_idle.unwrap_or(terms.on_idle);
    };
    session
        .change_terms(change)
        .await
        .map_err(|failure| app.lost(&session, failure))?;
    Ok(Json(SessionObject::of(&session).await))
}

/// Which sessions, and how many.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// At most so many, 1 to 1000; 100 when absent.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Those after this id: the `next` of the page before.
    after: Option<String>,
    /// `NAME` or `NAME=VALUE`: only sessions with this label. Several are separated by commas.
    label: Option<String>,
    /// Only the session with this key.
    key: Option<String>,
}

/// A page of sessions, sorted by id.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Page {
    sessions: Vec<SessionObject>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Lists the sessions that the caller may see.
#[utoipa::path(
    get,
    path = "/sessions",
    tag = "sessions",
    params(ListQuery),
    responses((status = 200, body = Page), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<ListQuery>,
) -> Answer<Json<Page>> {
    caller.may(Scope::Read)?;
    let limit = query.limit.unwrap_or(100);
    if !(1..=1000).contains(&limit) {
        let message = "must be between 1 and 1000";
        return Err(Problem::at(&["query", "limit"], message, "value_error"));
    }
    let wanted: Vec<(&str, Option<&str>)> = query
        .label
        .iter()
        .flat_map(|text| text.split(','))
        .map(|one| {
            one.split_once('=')
                .map_or((one, None), |(n, v)| (n, Some(v)))
        })
        .collect();
    let fits = |session: &Session| {
        let after = query.after.as_deref();
        let labels = &session.plan.labels;
        after.is_none_or(|after| session.id.as_str() > after)
            && (query.key.is_none() || query.key == session.key)
            && wanted.iter().all(|(name, value)| {
                labels
                    .get(*name)
                    .is_some_and(|has| value.is_none_or(|value| value == has))
            })
            && caller.sees(session)
    };
    let mut all = app.sessions.list().await?;
    all.retain(|session| fits(session));
    let next = (all.len() > limit).then(|| all[limit - 1].id.to_string());
    all.truncate(limit);
    let sessions = futures_util::future::join_all(all.iter().map(SessionObject::of)).await;
    Ok(Json(Page { sessions, next }))
}

/// Ends a session's processes and keeps its files; the next use starts it again.
#[utoipa::path(
    post,
    path = "/sessions/{session}/suspend",
    tag = "sessions",
    params(("session" = String, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn suspend(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    let session = app.known(&caller, &id, Scope::Use).await?;
    app.sessions.suspend(&session).await?;
    Ok(StatusCode::NO_CONTENT)
}
