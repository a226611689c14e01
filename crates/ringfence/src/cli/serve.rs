//! `ringfence serve`: many sessions behind one HTTP API.

use super::after::after_this;
use crate::config::{BackendChoice, Config, ConfigArgs, Loaded, LogFormat, LogLevel};
use crate::http::{self, App, Audit, Gate, Listener, Presence, Relays, Traces, Watched};
use crate::{backends, embedded, settings};
use clap::Args;
use ringfence_core::languages::translate::Translators;
use ringfence_core::sessions::Quotas;
use ringfence_core::snippet::{Runner, Terms};
use ringfence_core::spec::SandboxSpec;
use ringfence_core::{Backend, Code, Failure, Lifetime, Sessions, resolve};
use ringfence_jail::Janitor;
use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

const EXAMPLES: &str = "\
Examples:
  ringfence serve
  ringfence serve --listen 127.0.0.1:9000 --state-dir /srv/ringfence
  ringfence serve --env-name data --idle-timeout 30m --max-sessions 500
  ringfence key add gateway && ringfence serve --listen 0.0.0.0:8080

Then:
  curl -X POST localhost:8080/sessions
  curl localhost:8080/sessions/ID/exec -d '{\"tool\":\"code_execution\",\"input\":{\"code\":\"print(2 + 2)\"}}'

Each flag is a setting: `ringfence config example` prints them as in the file, `ringfence config
show` says where each value comes from. In the environment sessions.max is RINGFENCE_SESSIONS_MAX.";

/// Serves sessions over HTTP
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    #[command(flatten)]
    config: ConfigArgs,

    /// Stops when standard input ends, as if told to: for a program that starts a server of its
    /// own, which then can't outlive it; nor can its sessions, also where both are killed
    #[arg(long)]
    until_eof: bool,
}

impl Serve {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        let loaded = self.config.load()?;
        // While there is one thread.
        let janitor = match self.until_eof && !stays(&loaded.config) {
            true => Some(janitor(&loaded.config)?),
            false => None,
        };
        let done = self.serve(loaded);
        // What is left after an end that was told of is left to the person who is told.
        if let Some(janitor) = janitor {
            janitor.dismiss();
        }
        done
    }

    fn serve(self, loaded: Loaded) -> Result<ExitCode, Failure> {
        let traces = Traces::start(&loaded.config.otlp)?;
        start_log(&loaded.config, traces.as_ref());
        raise_descriptors();
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let mut config = loaded.config;
        let backend = backend(&config)?;
        // The other half of the processors is for the sandboxes that are served.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(processors.div_ceil(2))
            .enable_all()
            .build()
            .map_err(|e| Failure::io("cannot start", &e))?;
        let served = runtime.block_on(async {
            let backend = choose(&mut config, backend).await?;
            serve(config, backend, self.until_eof).await
        });
        if let Some(traces) = traces {
            traces.end();
        }
        served?;
        runtime.shutdown_background();
        Ok(ExitCode::SUCCESS)
    }
}

fn start_log(config: &Config, traces: Option<&Traces>) {
    let level = match config.log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let log = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    let log = match config.log.format {
        LogFormat::Text => log.boxed(),
        LogFormat::Json => log.json().flatten_event(true).with_span_list(false).boxed(),
    };
    // Known of each place in the code beforehand, those of libraries too: asking anew whenever one
    // is passed took a third of the time of a request.
    let log = log.with_filter(
        Targets::new()
            .with_default(level)
            .with_target(http::TRACE, LevelFilter::OFF),
    );
    let subscriber = tracing_subscriber::registry().with(log);
    #[cfg(feature = "otlp")]
    let subscriber = subscriber.with(traces.map(|traces| {
        tracing_opentelemetry::layer()
            .with_tracer(traces.tracer())
            .with_location(false)
            .with_threads(false)
            .with_filter(Targets::new().with_target(http::TRACE, LevelFilter::INFO))
    }));
    #[cfg(not(feature = "otlp"))]
    let _ = traces;
    // Only a second start in one process could fail.
    let _ = subscriber.try_init();
}

/// Each connection and each session takes descriptors; what is usual is for programs with few.
fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// With the limits that this process has now.
pub(crate) fn backend(config: &Config) -> Result<Arc<dyn Backend>, Failure> {
    match config.backend {
        BackendChoice::Docker => return docker(config),
        BackendChoice::Kubernetes => return Ok(backends::kubernetes(config)?),
        BackendChoice::Auto | BackendChoice::Native => {}
    }
    let interpreter = settings::search().find();
    let state = config.state_dir.clone();
    let native = backends::native(state, interpreter, embedded::launcher())?;
    Ok(Arc::new(native))
}

fn docker(config: &Config) -> Result<Arc<dyn Backend>, Failure> {
    let (state, docker) = (config.state_dir.clone(), &config.docker);
    let pool = docker.pool as usize;
    Ok(backends::docker(state, &docker.image, None, pool)?)
}

/// For `auto`: native where a sandbox can be made, else Docker.
async fn choose(
    config: &mut Config,
    backend: Arc<dyn Backend>,
) -> Result<Arc<dyn Backend>, Failure> {
    if config.backend != BackendChoice::Auto {
        return Ok(backend);
    }
    if let Err(failure) = try_out(&*backend).await
        && let Ok(docker) = docker(config)
        && docker.ready().await.is_ok()
    {
        tracing::warn!("native sandboxes can't be made here, so sessions run in Docker: {failure}");
        config.backend = BackendChoice::Docker;
        return Ok(docker);
    }
    config.backend = BackendChoice::Native;
    Ok(backend)
}

/// Makes a sandbox and removes it.
async fn try_out(backend: &dyn Backend) -> Result<(), Failure> {
    let guarantees = backend.guarantees().await?;
    let plan = resolve(SandboxSpec::default(), Lifetime::Disposable, &guarantees)?;
    backend.create(&plan).await?;
    backend.destroy(&plan.id).await
}

async fn serve(config: Config, backend: Arc<dyn Backend>, until_eof: bool) -> Result<(), Failure> {
    let gate = Gate::new(&config)?;
    Relays::check(&config.hastekit)?;
    let audit = Audit::open(&config.audit)?.map(Arc::new);
    let metrics = http::start_metrics()?;
    let listener = Listener::bind(&config.listen).await?;
    let presence = Presence::announce(&config.state_dir)?;
    let sessions = Sessions::new(Arc::new(Watched(backend)), quotas(&config));
    // Those that live are found, those that are over go, before anybody asks.
    sessions.reap().await?;
    if let Some(audit) = &audit {
        tokio::spawn(reopen(Arc::clone(audit), on(SignalKind::hangup())?));
    }
    tokio::spawn(http::fold(metrics.clone()));
    let runner = runner(&config, &sessions)?;
    let (all, port) = (Arc::clone(&sessions), listener.port());
    let app = App::new(all, runner, config, gate, audit, metrics, port);
    if app.config.docker.pool > 0
        && let Err(problem) = app.prepare().await
    {
        tracing::warn!("cannot make sessions ready: {}", problem.failure());
    }
    app.relays.reopen(&app);
    let reaper = tokio::spawn(reap(app.clone()));
    // Whoever reads the line may end us at once.
    let stop = stop_signal(until_eof)?;
    let _ = writeln!(
        anstream::stderr().lock(),
        "ringfence is listening on {} with {} sessions",
        listener.address(),
        sessions.count()
    );
    let http = &app.config.http;
    http::serve(http, listener, http::router(app.clone()), stop).await;
    reaper.abort();
    app.relays.close().await;
    app.runner.finish().await;
    if !stays(&app.config) && presence.is_last() {
        end_all(&sessions).await?;
    }
    sessions.backend().close().await
}

fn quotas(config: &Config) -> Quotas {
    Quotas {
        sessions: config.sessions.max as usize,
        per_owner: config.sessions.max_per_key.map(|n| n as usize),
        memory: config.sessions.max_memory,
    }
}

/// Whether sessions outlive the last server. In a cluster nobody knows which one that is.
fn stays(config: &Config) -> bool {
    config.keep || config.backend == BackendChoice::Kubernetes
}

/// Ends the sessions that a killed server leaves, once its standard input has ended too: until
/// then whoever started it may start the next one, which has them.
fn janitor(config: &Config) -> Result<Janitor, Failure> {
    let cannot = |e: io::Error| Failure::io("cannot watch standard input", &e);
    let input = io::stdin().as_fd().try_clone_to_owned().map_err(cannot)?;
    let config = config.clone();
    after_this(async move || {
        let _ = io::copy(&mut File::from(input), &mut io::sink());
        end_left(config).await
    })
}

async fn end_left(mut config: Config) -> Result<(), Failure> {
    // A folder that is gone must not come back.
    if !config.state_dir.exists() {
        return Ok(());
    }
    let presence = Presence::announce(&config.state_dir)?;
    if !presence.is_last() {
        return Ok(());
    }
    let backend = backend(&config)?;
    let backend = choose(&mut config, backend).await?;
    let sessions = Sessions::new(backend, quotas(&config));
    sessions.reap().await?;
    end_all(&sessions).await?;
    sessions.backend().close().await
}

/// What runs snippets, each in a sandbox that nobody keeps.
pub(crate) fn runner(config: &Config, sessions: &Sessions) -> Result<Runner, Failure> {
    let terms = Terms {
        translators: Translators::new(super::this_program()?, true),
        backend: config.backend.name().to_owned(),
        images: config.languages.images(),
        limits: config.limits.of_sandboxes(),
        output: config.limits.output.0,
        cpu_seconds: Some(config.limits.cpu_seconds),
    };
    Ok(Runner::new(Arc::clone(sessions.backend()), terms))
}

pub(super) fn on(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|e| Failure::io("cannot listen for signals", &e))
}

/// Whoever moves the audit file away says so by a hangup. It is noticed without, too; but a
/// hangup that nobody listens for would end the server.
async fn reopen(audit: Arc<Audit>, mut hangup: Signal) {
    while hangup.recv().await.is_some() {
        audit.reopen();
    }
}

fn stop_signal(until_eof: bool) -> Result<impl Future<Output = ()>, Failure> {
    let mut interrupt = on(SignalKind::interrupt())?;
    let mut terminate = on(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = end_of_input(), if until_eof => {}
        }
        tracing::info!("stopping: requests that run come to their end first");
    })
}

/// What is said before the end, and how it ends, does not matter.
async fn end_of_input() {
    let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await;
}

async fn reap(app: App) {
    let mut ticks = tokio::time::interval(app.config.sessions.gc_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    http::attend_all(&app);
    loop {
        ticks.tick().await;
        match app.sessions.reap().await {
            Ok(reaped) => {
                for (id, why) in reaped {
                    http::reaped(why.name());
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
        // Those that were found, or for which another server registered tools.
        http::attend_all(&app);
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
