//! `ringfence mcp`: tools for a desktop agent, on standard input and output.

mod install;
mod relay;

use super::after::after_this;
use crate::client::{Client, Local};
use crate::http::App;
use crate::mcp::{Server, Side};
use clap::{Args, Subcommand};
use ringfence_core::tools::Family;
use ringfence_core::{Code, Failure, SessionId, random_hex};
use rmcp::ServiceExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::SignalKind;
use tokio::time::MissedTickBehavior;

const EXAMPLES: &str = "\
Examples:
  ringfence mcp install claude-desktop      adds Ringfence to Claude Desktop
  ringfence mcp install --all --dry-run     shows what would be written for every client that is here
  ringfence mcp --session research          the same sandbox every time
  ringfence mcp --env-name data             with the packages of `ringfence env add data`
  ringfence mcp --skills ./skills           with skills, which the client is told of
  ringfence mcp --url https://sandboxes.example    sandboxes of a server, for clients that only
                                            know standard input and output

A client starts `ringfence mcp` and talks to it on standard input and output. Over HTTP the same
tools are at /mcp of `ringfence serve`.";

/// Gives an agent tools for a sandbox, by the Model Context Protocol
#[derive(Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Mcp {
    #[command(subcommand)]
    action: Option<Action>,

    /// The family of tools: ringfence, axio, haiku, hastekit, anthropic or shipit
    #[arg(long, value_name = "NAME", default_value = "ringfence", value_parser = super::tools::family)]
    family: Family,

    /// The sandbox of calls that name none, kept for the next time; without it each process has
    /// one of its own, which ends with it
    #[arg(long, value_name = "NAME")]
    session: Option<String>,

    /// A packages environment made by `ringfence env add`, for every sandbox
    #[arg(long, value_name = "NAME", conflicts_with = "url")]
    env_name: Option<String>,

    /// A folder that is a skill (with a SKILL.md) or has skills in it, for every sandbox
    #[arg(long, value_name = "FOLDER", conflicts_with = "url")]
    skills: Vec<PathBuf>,

    /// A running server that has the sandboxes, http://HOST:PORT, https://… or unix:PATH
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// A key of that server; RINGFENCE_API_KEY is better, as a command line is for all to see
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
}

#[derive(Subcommand)]
enum Action {
    Install(install::Install),
}

impl Mcp {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        if let Some(Action::Install(install)) = self.action {
            return install.main();
        }
        let named = self.url.or_else(crate::settings::server_url);
        let server = match &named {
            Some(url) => {
                let key = self.api_key.or_else(crate::settings::api_key);
                Some(Client::at(url, key)?)
            }
            None => None,
        };
        let own = own(self.session.as_deref())?;
        // A client may kill us, and the process's own sandbox goes all the same. That, and what
        // makes sandboxes, is started while there is one thread.
        let janitor = match self.session.is_none() && server.is_none() {
            true => Some(after_this(async || {
                remove(&Local::prepare()?.app().await?, &own).await
            })?),
            false => None,
        };
        let local = match &server {
            Some(_) => None,
            None => Some(Local::prepare_with(self.skills, self.env_name)?),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|e| Failure::io("cannot start", &e))?;
        let served = runtime.block_on(async {
            match (server, local) {
                (Some(server), _) => relay::relay(server, self.family, self.session).await,
                (None, Some(local)) => {
                    let app = local.app().await?;
                    let served = serve(&app, self.family, &own).await;
                    if let Some(janitor) = janitor {
                        remove(&app, &own).await?;
                        janitor.dismiss();
                    }
                    served
                }
                (None, None) => Err(Failure::new(Code::Internal, "there is no server")),
            }
        });
        // A thread that still reads standard input must not keep us.
        runtime.shutdown_background();
        served.map(|()| ExitCode::SUCCESS)
    }
}

async fn serve(app: &App, family: Family, own: &str) -> Result<(), Failure> {
    let mut terminate = super::serve::on(SignalKind::terminate())?;
    let mut interrupt = super::serve::on(SignalKind::interrupt())?;
    let sessions = app.sessions.clone();
    let every = app.config.sessions.gc_interval;
    let reaper = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Tried again at the next tick.
            let _ = sessions.reap().await;
        }
    });
    let side = Side::Process {
        family,
        own: own.to_owned(),
    };
    let talk = async {
        let running = Server::new(app.clone(), side)
            .serve(rmcp::transport::stdio())
            .await
            .map_err(|e| broken().detail(e))?;
        running.waiting().await.map_err(|e| broken().detail(e))
    };
    let served = tokio::select! {
        served = talk => served.map(drop),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    reaper.abort();
    served
}

/// Ends the sandbox of this key.
async fn remove(app: &App, own: &str) -> Result<(), Failure> {
    app.sessions.remove(&SessionId::of_key(None, own)).await
}

/// The key of the sandbox of calls that name none.
fn own(session: Option<&str>) -> Result<String, Failure> {
    match session {
        Some(name) => Ok(name.to_owned()),
        None => Ok(format!("mcp-{}", random_hex::<8>()?)),
    }
}

fn broken() -> Failure {
    Failure::new(Code::Unavailable, "the client did not speak the protocol")
        .hint("this is for programs: `ringfence mcp install` tells yours to start it")
}
