//! `ringfence serve`: many sessions behind one HTTP API.

use crate::config::{BackendChoice, Config, ConfigArgs, LogFormat, LogLevel};
use crate::http::{self, App, Listener, Presence};
use crate::{embedded, settings};
use clap::Args;
use ringfence_core::backend::native::{self, Launcher, Native};
use ringfence_core::sessions::Quotas;
use ringfence_core::{Backend, Code, Failure, Sessions};
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;
use tracing::Level;

const EXAMPLES: &str = "\
Examples:
  ringfence serve
  ringfence serve --listen 127.0.0.1:9000 --state-dir /srv/ringfence
  ringfence serve --env-name data --idle-timeout 30m --max-sessions 500
  ringfence key add gateway && ringfence serve --listen 0.0.0.0:8080

Then:
  curl -X POST localhost:8080/sessions
  curl localhost:8080/sessions/ID/exec -d '{\"tool\":\"code_execution\",\"input\":{\"code\":\"print(2 + 2)\"}}'

Each flag is a setting: docs/config.md lists them with their names in the environment and in the
file, and `ringfence config show` says where each value comes from.";

/// Serves sessions over HTTP
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    #[command(flatten)]
    config: ConfigArgs,
}

impl Serve {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        let loaded = self.config.load()?;
        start_log(&loaded.config);
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let config = loaded.config;
        // The launcher has one thread, and is started while we have one.
        let backend = backend(&config)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|e| Failure::io("cannot start", &e))?;
        runtime.block_on(serve(config, backend))?;
        runtime.shutdown_background();
        Ok(ExitCode::SUCCESS)
    }
}

fn start_log(config: &Config) {
    let log = tracing_subscriber::fmt()
        .with_max_level(match config.log.level {
            LogLevel::Error => Level::ERROR,
            LogLevel::Warn => Level::WARN,
            LogLevel::Info => Level::INFO,
            LogLevel::Debug => Level::DEBUG,
            LogLevel::Trace => Level::TRACE,
        })
        .with_writer(std::io::stderr)
        .with_target(false);
    // Only a second start in one process could fail.
    let _ = match config.log.format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().try_init(),
    };
}

fn backend(config: &Config) -> Result<Arc<dyn Backend>, Failure> {
    match config.backend {
        BackendChoice::Auto | BackendChoice::Native => {
            let program =
                std::env::current_exe().map_err(|e| Failure::io("cannot find this program", &e))?;
            let native = Native::new(
                native::Config {
                    state: config.state_dir.clone(),
                    guest: embedded::guest()?,
                    environments: settings::environments(),
                    interpreter: settings::search().find(),
                },
                Launcher::start(&program)?,
            )?;
            native.sweep(std::time::Duration::ZERO)?;
            Ok(Arc::new(native))
        }
    }
}

async fn serve(config: Config, backend: Arc<dyn Backend>) -> Result<(), Failure> {
    let listener = Listener::bind(&config.listen).await?;
    let presence = Presence::announce(&config.state_dir)?;
    let quotas = Quotas {
        sessions: config.sessions.max as usize,
        per_owner: config.sessions.max_per_key.map(|n| n as usize),
        memory: config.sessions.max_memory,
    };
    let sessions = Sessions::new(backend, quotas);
    // Those that live are found, those that are over go, before anybody asks.
    sessions.reap().await?;
    let app = App::new(Arc::clone(&sessions), config);
    let reaper = tokio::spawn(reap(app.clone()));
    let _ = writeln!(
        anstream::stderr().lock(),
        "ringfence is listening on {} with {} sessions",
        listener.address(),
        sessions.count()
    );
    let stop = stop_signal()?;
    http::serve(&app, listener, http::router(app.clone()), stop).await;
    reaper.abort();
    if !app.config.keep && presence.is_last() {
        end_all(&sessions).await?;
    }
    Ok(())
}

fn stop_signal() -> Result<impl Future<Output = ()>, Failure> {
    let on = |kind| signal(kind).map_err(|e| Failure::io("cannot listen for signals", &e));
    let mut interrupt = on(SignalKind::interrupt())?;
    let mut terminate = on(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        tracing::info!("stopping: requests that run come to their end first");
    })
}

async fn reap(app: App) {
    let mut ticks = tokio::time::interval(app.config.sessions.gc_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match app.sessions.reap().await {
            Ok(reaped) => {
                for (id, why) in reaped {
                    tracing::info!(session = %id, why = why.name(), "session ended");
                }
            }
            Err(failure) => {
                tracing::error!(
                    detail = failure.detail,
                    "cannot look for sessions that are over: {failure}"
                );
            }
        }
    }
}

async fn end_all(sessions: &Arc<Sessions>) -> Result<(), Failure> {
    let all = sessions.list().await?;
    let mut left = 0;
    for session in &all {
        if let Err(failure) = sessions.remove(&session.id).await {
            tracing::error!(session = %session.id, detail = failure.detail, "{failure}");
            left += 1;
        }
    }
    if left == 0 {
        return Ok(());
    }
    let message = format!("{left} sessions could not be ended");
    Err(Failure::new(Code::Unavailable, message).hint("`ringfence gc` tries again"))
}
