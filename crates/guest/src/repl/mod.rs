//! Kernels: persistent interpreters with a name, and the calls that run in them.

mod alarm;
mod bytecode;
mod call;
mod certificate;
mod channel;
mod output;
mod process;

use crate::checks;
use crate::http::{self, Answer, Request};
use crate::jobs::{self, Job, NewJob, Tie};
use crate::server::Guest;
use ::http::Method;
pub(crate) use bytecode::compile;
use certificate::Stop;
use process::{NotStarted, Process};
use ringfence_proto::{Code, Failure, KernelInfo, KernelRequest, ProcessLimits, RunRequest};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{oneshot, watch};

/// Most kernels of one sandbox.
const KERNELS: usize = 32;

/// The kernels of a sandbox, by name.
#[derive(Default)]
pub(crate) struct Kernels {
    all: Mutex<BTreeMap<String, Arc<Kernel>>>,
}

/// A persistent interpreter: its settings, and its process while there is one.
struct Kernel {
    name: String,
    /// Held by the call that runs; waiting calls get it in the order they came.
    process: tokio::sync::Mutex<Option<Process>>,
    state: Mutex<State>,
    /// Calls that run or start a process: one or none.
    busy: AtomicU32,
    /// Counts what callers asked for; a call sees those that come while it runs.
    interrupts: watch::Sender<u64>,
    closing: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    request: KernelRequest,
    generation: u32,
    python: String,
    version: String,
}

/// Counts a call as running until it is dropped.
struct Busy<'a>(&'a AtomicU32);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kernel {
    fn busy(&self) -> Busy<'_> {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(&self.busy)
    }

    fn limits(&self) -> ProcessLimits {
        locked(&self.state).request.limits.clone()
    }

    /// Starts a process for it, unless `stop` comes first or the kernel is removed meanwhile.
    async fn start(
        &self,
        guest: &Guest,
        stop: impl Future<Output = Stop>,
    ) -> Result<Process, NotStarted> {
        let removed = || {
            let message = format!("kernel {} was removed", self.name);
            NotStarted::Failed(Failure::new(Code::NotFound, message))
        };
        let mut closing = self.closing.subscribe();
        if *closing.borrow() {
            return Err(removed());
        }
        let stop = async {
            tokio::select! {
                stop = stop => stop,
                _ = closing.wait_for(|closing| *closing) => Stop::Closing,
            }
        };
        let request = locked(&self.state).request.clone();
        let process = match Box::pin(Process::start(guest, &request, stop)).await {
            Err(NotStarted::Stopped(Stop::Closing)) => return Err(removed()),
            started => started?,
        };
        let mut state = locked(&self.state);
        state.generation += 1;
        state.python.clone_from(&process.python);
        state.version.clone_from(&process.version);
        Ok(process)
    }

    fn info(&self) -> KernelInfo {
        let state = locked(&self.state);
        KernelInfo {
            name: self.name.clone(),
            generation: state.generation,
            python: state.python.clone(),
            version: state.version.clone(),
            busy: self.busy.load(Ordering::Relaxed) > 0,
        }
    }
}

impl Kernels {
    pub(crate) fn count(&self) -> u32 {
        locked(&self.all).len() as u32
    }

    fn get(&self, name: &str) -> Result<Arc<Kernel>, Failure> {
        checks::name("a kernel's name", name)?;
        locked(&self.all)
            .get(name)
            .cloned()
            .ok_or_else(|| Failure::new(Code::NotFound, format!("no such kernel: {name}")))
    }

    /// The kernel of this name, made with `request` when absent.
    fn get_or_make(&self, name: &str, request: KernelRequest) -> Result<Arc<Kernel>, Failure> {
        checks::name("a kernel's name", name)?;
        let mut all = locked(&self.all);
        if let Some(kernel) = all.get(name) {
            return Ok(Arc::clone(kernel));
        }
        if all.len() >= KERNELS {
            return Err(Failure::new(
                Code::TooMany,
                format!("there are {KERNELS} kernels already"),
            )
            .hint("remove one that is no longer needed"));
        }
        let kernel = Arc::new(Kernel {
            name: name.to_owned(),
            process: tokio::sync::Mutex::new(None),
            state: Mutex::new(State {
                request,
                ..State::default()
            }),
            busy: AtomicU32::new(0),
            interrupts: watch::channel(0).0,
            closing: watch::channel(false).0,
        });
        all.insert(name.to_owned(), Arc::clone(&kernel));
        Ok(kernel)
    }

    /// Takes it off the list, unless another one has its name by now.
    fn forget(&self, kernel: &Arc<Kernel>) {
        let mut all = locked(&self.all);
        if all
            .get(&kernel.name)
            .is_some_and(|known| Arc::ptr_eq(known, kernel))
        {
            all.remove(&kernel.name);
        }
    }
}

pub(crate) async fn route(guest: &Arc<Guest>, request: Request, rest: &[&str]) -> Answer {
    match (request.method(), rest) {
        (&Method::GET, []) => {
            let all: Vec<_> = locked(&guest.kernels.all)
                .values()
                .map(|k| k.info())
                .collect();
            http::json(&all)
        }
        (&Method::PUT, [name]) => put(guest, name, http::body(request).await?).await,
        (&Method::GET, [name]) => http::json(&guest.kernels.get(name)?.info()),
        (&Method::DELETE, [name]) => {
            let kernel = guest.kernels.get(name)?;
            whole(remove(Arc::clone(guest), kernel)).await?;
            http::empty()
        }
        (&Method::POST, [name, "run"]) => {
            let streamed = jobs::wants_events(&request);
            run(guest, name, http::body(request).await?, streamed).await
        }
        (&Method::POST, [name, "jobs"]) => start_job(guest, name, http::body(request).await?).await,
        (&Method::POST, [name, "interrupt"]) => {
            guest
                .kernels
                .get(name)?
                .interrupts
                .send_modify(|count| *count = count.wrapping_add(1));
            http::empty()
        }
        _ => {
            let path = rest.join("/");
            Err(Failure::new(
                Code::NotFound,
                format!("no such route: /kernels/{path}"),
            ))
        }
    }
}

/// Does all of it, also when whoever asked goes away meanwhile and drops this.
async fn whole<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, Failure> {
    tokio::spawn(work)
        .await
        .map_err(|e| Failure::new(Code::Internal, "a kernel's start or end broke off").detail(e))
}

/// Starts a kernel, or answers with the one that is there.
async fn put(guest: &Arc<Guest>, name: &str, request: KernelRequest) -> Answer {
    let kernel = guest.kernels.get_or_make(name, request.clone())?;
    let (_here, gone) = oneshot::channel();
    let work = ensure(Arc::clone(guest), Arc::clone(&kernel), request, gone);
    whole(work).await??;
    http::json(&kernel.info())
}

/// Sees to it that a kernel has a process. `gone` ends when nobody waits for it any more: then a
/// process that isn't ready is killed.
async fn ensure(
    guest: Arc<Guest>,
    kernel: Arc<Kernel>,
    request: KernelRequest,
    gone: oneshot::Receiver<()>,
) -> Result<(), Failure> {
    // A call that runs is a sign of life, and is not waited for.
    let Ok(mut slot) = kernel.process.try_lock() else {
        return Ok(());
    };
    if slot.as_ref().is_some_and(Process::is_idle) {
        return Ok(());
    }
    let _busy = kernel.busy();
    if let Some(process) = slot.take() {
        process.kill().await;
    }
    let before = std::mem::replace(&mut locked(&kernel.state).request, request);
    let gone = async {
        let _ = gone.await;
        Stop::Cancelled
    };
    let failure = match kernel.start(&guest, gone).await {
        Ok(process) => {
            *slot = Some(process);
            return Ok(());
        }
        Err(NotStarted::Failed(failure)) => failure,
        Err(NotStarted::Stopped(_)) => {
            Failure::new(Code::Unavailable, "whoever asked for the kernel went away")
        }
    };
    let never = {
        let mut state = locked(&kernel.state);
        state.request = before;
        state.generation == 0
    };
    if never {
        guest.kernels.forget(&kernel);
    }
    Err(failure)
}

/// Ends a kernel and a call that runs in it; nothing of it is left afterwards.
async fn remove(guest: Arc<Guest>, kernel: Arc<Kernel>) {
    guest.kernels.forget(&kernel);
    kernel.closing.send_replace(true);
    if let Some(process) = kernel.process.lock().await.take() {
        process.close().await;
    }
}

/// Runs a call; the answer is its result, or its events as they come.
async fn run(guest: &Arc<Guest>, name: &str, request: RunRequest, streamed: bool) -> Answer {
    let (on_disconnect, chosen) = (request.on_disconnect, request.id.is_some());
    let transient = request.transient;
    let (_, job, started) = begin(guest, name, request)?;
    let tie = Tie::new(guest, &job, on_disconnect, chosen, transient);
    has_started(started).await?;
    jobs::follow(job, tie, streamed).await
}

/// Starts a call and answers when it runs, or at once where it has to wait for others.
async fn start_job(guest: &Arc<Guest>, name: &str, request: RunRequest) -> Answer {
    let (waits, job, started) = begin(guest, name, request)?;
    if !waits {
        has_started(started).await?;
    }
    http::json(&job.info())
}

/// Tells whether the interpreter of a call runs.
type Started = oneshot::Receiver<Result<(), Failure>>;

async fn has_started(started: Started) -> Result<(), Failure> {
    let lost = |e| Failure::new(Code::Internal, "cannot run the call").detail(e);
    started.await.map_err(lost)?
}

/// Puts a call into the line of its kernel, and says whether that is busy.
fn begin(
    guest: &Arc<Guest>,
    name: &str,
    request: RunRequest,
) -> Result<(bool, Arc<Job>, Started), Failure> {
    let output_limit = checks::limits(request.output_limit, request.timeout_ms)?;
    if request.cpu_seconds == Some(0) {
        return Err(Failure::invalid("cpu_seconds is 0"));
    }
    let kernel = guest.kernels.get_or_make(name, KernelRequest::default())?;
    let job = guest.jobs.add(NewJob {
        id: request.id.as_deref(),
        command: &request.code,
        kernel: Some(name),
        output_limit,
        detached: request.detached,
        pty: false,
    })?;
    let waits = kernel.process.try_lock().is_err();
    let (sender, started) = oneshot::channel();
    let task = call::run(Arc::clone(guest), kernel, Arc::clone(&job), request, sender);
    tokio::spawn(task);
    Ok((waits, job, started))
}
