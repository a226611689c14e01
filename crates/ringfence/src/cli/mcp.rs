//! `ringfence mcp`: tools for a desktop agent, on standard input and output.

mod install;

use crate::client::Local;
use crate::mcp::{Server, Side};
use clap::{Args, Subcommand};
use ringfence_core::plan::random_hex;
use ringfence_core::tools::Family;
use ringfence_core::{Code, Failure, SessionId};
use rmcp::ServiceExt as _;
use std::process::ExitCode;
use tokio::signal::unix::SignalKind;
use tokio::time::MissedTickBehavior;

const EXAMPLES: &str = "\
Examples:
  ringfence mcp install claude-desktop      adds Ringfence to Claude Desktop
  ringfence mcp install --all --dry-run     shows what would be written for every client that is here
  ringfence mcp --session research          the same sandbox every time

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
        // What makes sandboxes is started while there is one thread.
        let local = Local::prepare()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|e| Failure::io("cannot start", &e))?;
        let served = runtime.block_on(serve(local, self.family, self.session));
        // A thread that still reads standard input must not keep us.
        runtime.shutdown_background();
        served.map(|()| ExitCode::SUCCESS)
    }
}

async fn serve(local: Local, family: Family, session: Option<String>) -> Result<(), Failure> {
    let app = local.app().await?;
    let own = match &session {
        Some(name) => name.clone(),
        None => format!("mcp-{}", random_hex::<8>()?),
    };
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
        own: own.clone(),
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
    if session.is_none() {
        app.sessions.remove(&SessionId::of_key(None, &own)).await?;
    }
    served
}

fn broken() -> Failure {
    Failure::new(Code::Unavailable, "the client did not speak the protocol")
        .hint("this is for programs: `ringfence mcp install` tells yours to start it")
}
