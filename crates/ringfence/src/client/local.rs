//! A server inside this process: the same routes over the same state, for one command. What it
//! makes stays there for the next one.

use crate::config::{AllowedMount, Auth, Config, ConfigArgs};
use crate::http::{self, App, Gate, Presence};
use axum::Router;
use ringfence_core::sessions::Quotas;
use ringfence_core::spec::Access;
use ringfence_core::{Backend, Failure, Sessions, skills};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long a session lasts that nobody uses: a person comes back the next day.
const IDLE: Duration = Duration::from_secs(86_400);
const LIFETIME: Duration = Duration::from_secs(30 * 86_400);

/// A server that is yet to be started.
pub(crate) struct Local {
    config: Config,
    backend: Arc<dyn Backend>,
}

impl Local {
    /// To be called while there is one thread.
    pub(crate) fn prepare() -> Result<Self, Failure> {
        Self::prepare_with(Vec::new(), None)
    }

    /// With more skills for every sandbox than the settings name, and with other packages.
    pub(crate) fn prepare_with(
        skills: Vec<PathBuf>,
        environment: Option<String>,
    ) -> Result<Self, Failure> {
        let mut config = ConfigArgs::default().load()?.config;
        if environment.is_some() {
            config.sandbox.python = None;
            config.sandbox.env_name = environment;
        }
        config.sandbox.skills.extend(skills);
        skills::of_folders(&config.sandbox.skills)?;
        // Nobody else gets here, so there is nobody to keep out.
        config.auth = Auth::Off;
        config.keep = true;
        // Who types a command may give what they may read.
        config.policy.mounts.push(AllowedMount {
            path: "/".into(),
            access: Access::ReadOnly,
        });
        let sessions = &mut config.sessions;
        sessions.idle_timeout = sessions.idle_timeout.max(IDLE);
        sessions.max_lifetime = sessions.max_lifetime.max(LIFETIME);
        sessions.longest_timeout = sessions.longest_timeout.max(LIFETIME);
        let backend = crate::cli::serve_backend(&config)?;
        Ok(Self { config, backend })
    }

    /// The sessions that live are found, and those that are over go.
    pub(crate) async fn app(self) -> Result<App, Failure> {
        // As long as this process lives, a server that stops leaves it the sessions.
        std::mem::forget(Presence::announce(&self.config.state_dir)?);
        let gate = Gate::new(&self.config)?;
        let quotas = Quotas {
            sessions: self.config.sessions.max as usize,
            per_owner: None,
            memory: self.config.sessions.max_memory,
        };
        let sessions = Sessions::new(self.backend, quotas);
        sessions.reap().await?;
        let runner = crate::cli::serve_runner(&self.config, &sessions)?;
        let metrics = http::start_metrics()?;
        let app = App::new(sessions, runner, self.config, gate, None, metrics, None);
        Ok(app)
    }

    pub(super) async fn start(self) -> Result<Router, Failure> {
        Ok(http::router(self.app().await?))
    }
}
