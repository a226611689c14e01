//! `/skills` and `/sessions/{session}/skills`: folders of instructions in sandboxes, and what to tell
//! a model about them.

use super::extract::Path;
use super::problem::{Answer, ProblemBody};
use super::state::{App, Caller, Scope};
use axum::Json;
use axum::extract::{Extension, State};
use ringfence_core::skills::{self, Skill};
use serde::Serialize;
use utoipa::ToSchema;

/// A skill, as it is in a sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SkillObject {
    /// The name of its folder.
    name: String,
    /// What it calls itself.
    title: String,
    /// When to use it, as it says itself.
    description: String,
    /// Its file of instructions, inside.
    path: String,
}

/// Skills, and a text about them.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SkillList {
    skills: Vec<SkillObject>,
    /// For the instructions of a model; empty where there are no skills.
    prompt: String,
}

impl SkillList {
    pub(crate) fn of(found: &[Skill]) -> Self {
        let one = |skill: &Skill| SkillObject {
            name: skill.name.clone(),
            title: skill.title.clone(),
            description: skill.description.clone(),
            path: skill.inside().join(skills::FILE).display().to_string(),
        };
        Self {
            skills: found.iter().map(one).collect(),
            prompt: skills::prompt(found),
        }
    }
}

/// The skills that every session of this server gets.
#[utoipa::path(
    get,
    path = "/skills",
    tag = "tools",
    responses((status = 200, body = SkillList), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn all(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Answer<Json<SkillList>> {
    caller.may(Scope::Read)?;
    let found = skills::of_folders(&app.config.sandbox.skills)?;
    Ok(Json(SkillList::of(&found)))
}

/// The skills of a session, as they are now.
#[utoipa::path(
    get,
    path = "/sessions/{session}/skills",
    tag = "tools",
    params(("session" = String, Path)),
    responses((status = 200, body = SkillList), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn of_session(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<Json<SkillList>> {
    let session = app.session(&caller, &id, Scope::Read).await?;
    let found = skills::mounted(&session.plan.mounts);
    Ok(Json(SkillList::of(&found)))
}
