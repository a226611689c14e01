//! Jobs: what runs in the sandbox or has run, its output, and its end.

mod events;

use crate::activity::{Active, Activity};
use crate::checks;
use crate::exec;
use crate::http::{self, Answer, Request};
use crate::input;
use crate::log::Log;
use crate::server::{Config, Guest};
use crate::tree::{self, Supervisor};
use ::http::Method;
pub(crate) use events::raw_output;
use events::{Reading, events};
use ringfence_proto::{
    Code, ExecResult, Failure, JobEnd, JobInfo, JobState, OUTPUT_RING, OnDisconnect, Output,
    OutputQuery, PtySize, Rich, SignalRequest, WaitQuery, signal_number,
};
use rustix::process::Signal;
use serde::Deserialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Most jobs at a time, running and ended.
const JOBS: usize = 1000;
/// Most ended jobs that are kept, and most bytes of their output; the oldest go first.
const ENDED_JOBS: usize = 256;
const ENDED_BYTES: u64 = 64 << 20;
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// Which output of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// A job that is to be.
pub(crate) struct NewJob<'a> {
    /// Chosen by the caller.
    pub(crate) id: Option<&'a str>,
    pub(crate) command: &'a str,
    pub(crate) kernel: Option<&'a str>,
    pub(crate) output_limit: u64,
    pub(crate) detached: bool,
    pub(crate) pty: bool,
}

/// How much of the output of jobs is kept.
#[derive(Clone, Copy)]
struct Room {
    /// Bytes after the first ones, of each stream.
    ring: u64,
    /// Bytes of all ended ones.
    ended: u64,
}

/// An exec or a REPL call.
pub(crate) struct Job {
    pub(crate) id: String,
    command: String,
    kernel: Option<String>,
    detached: bool,
    pty: bool,
    pub(crate) started: Instant,
    state: Mutex<State>,
    /// Counts what has happened, for those who follow.
    changed: watch::Sender<u64>,
    cancelled: watch::Sender<bool>,
    /// Where what is sent to the command goes; one writer at a time.
    pub(crate) input: tokio::sync::Mutex<Option<input::Input>>,
}

struct State {
    pid: i32,
    supervisor: Option<Arc<Supervisor>>,
    terminal: Option<Arc<input::Channel>>,
    stdout: Log,
    stderr: Log,
    results: Vec<Rich>,
    end: Option<(JobEnd, Instant)>,
    readers: u32,
    /// When the last reader went.
    read: Instant,
    asked_signal: Option<i32>,
    /// Nobody can read it any more: output is only counted.
    forgotten: bool,
    /// Until its end.
    active: Option<Active>,
}

impl Job {
    fn new(id: String, new: NewJob<'_>, ring: u64, active: Active) -> Arc<Self> {
        Arc::new(Self {
            id,
            command: shortened(new.command),
            kernel: new.kernel.map(str::to_owned),
            detached: new.detached,
            pty: new.pty,
            started: Instant::now(),
            state: Mutex::new(State {
                pid: 0,
                supervisor: None,
                terminal: None,
                stdout: Log::new(new.output_limit, ring),
                stderr: Log::new(new.output_limit, ring),
                results: Vec::new(),
                end: None,
                readers: 0,
                read: Instant::now(),
                asked_signal: None,
                forgotten: false,
                active: Some(active),
            }),
            changed: watch::channel(0).0,
            cancelled: watch::channel(false).0,
            input: tokio::sync::Mutex::new(None),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        self.changed
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Appends output.
    pub(crate) fn push(&self, stream: Stream, bytes: &[u8]) {
        let mut state = self.lock();
        if !state.forgotten {
            match stream {
                Stream::Stdout => state.stdout.push(bytes),
                Stream::Stderr => state.stderr.push(bytes),
            }
            drop(state);
            self.tell();
        }
    }

    /// Appends a rich result.
    pub(crate) fn push_rich(&self, rich: Rich) {
        self.lock().results.push(rich);
        self.tell();
    }

    /// Says that the command runs.
    pub(crate) fn running(
        &self,
        pid: i32,
        supervisor: Arc<Supervisor>,
        terminal: Option<Arc<input::Channel>>,
    ) {
        let mut state = self.lock();
        state.pid = pid;
        state.supervisor = Some(supervisor);
        state.terminal = terminal;
    }

    /// Says which process runs it; that process is not the job's own.
    pub(crate) fn runs_in(&self, pid: i32) {
        self.lock().pid = pid;
    }

    /// Ends the job; the byte counts are filled in here. The first end counts.
    pub(crate) fn finish(&self, mut end: JobEnd) {
        let mut state = self.lock();
        if state.end.is_none() {
            end.stdout_bytes = state.stdout.total();
            end.stderr_bytes = state.stderr.total();
            state.end = Some((end, Instant::now()));
            state.terminal = None;
            state.active = None;
        }
        drop(state);
        self.tell();
    }

    /// Bytes of each stream so far.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let state = self.lock();
        (state.stdout.total(), state.stderr.total())
    }

    pub(crate) fn output_limit(&self) -> u64 {
        self.lock().stdout.limit()
    }

    pub(crate) fn asked_signal(&self) -> Option<i32> {
        self.lock().asked_signal
    }

    /// Asks for the end of the job; whoever drives it sees to that.
    pub(crate) fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    /// Waits until somebody asks for the end of the job.
    pub(crate) async fn cancelled(&self) {
        let mut cancelled = self.cancelled.subscribe();
        // The sender lives as long as the job.
        let _ = cancelled.wait_for(|cancelled| *cancelled).await;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().end.is_some()
    }

    /// Waits for the end.
    pub(crate) async fn ended(&self) {
        let mut changed = self.changed.subscribe();
        while !self.has_ended() {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    pub(crate) fn info(&self) -> JobInfo {
        let state = self.lock();
        JobInfo {
            id: self.id.clone(),
            command: self.command.clone(),
            kernel: self.kernel.clone(),
            pid: state.pid,
            started_ms_ago: self.started.elapsed().as_millis() as u64,
            detached: self.detached,
            pty: self.pty,
            state: match &state.end {
                Some((end, _)) => JobState::Ended(Box::new(end.clone())),
                None => JobState::Running,
            },
            stdout_bytes: state.stdout.total(),
            stderr_bytes: state.stderr.total(),
            readers: state.readers,
            unread_ms: match state.readers {
                0 => state.read.elapsed().as_millis() as u64,
                _ => 0,
            },
        }
    }

    /// Whether a result can't hold all of its output.
    fn is_cut(&self) -> bool {
        let state = self.lock();
        [&state.stdout, &state.stderr]
            .into_iter()
            .any(|log| log.total() > log.head().len() as u64)
    }

    /// The whole result of an ended job.
    pub(crate) fn result(&self, output_limit: Option<u64>) -> Result<ExecResult, Failure> {
        let state = self.lock();
        let Some((end, _)) = &state.end else {
            return Err(
                Failure::new(Code::Conflict, format!("job {} is still running", self.id))
                    .hint("wait for its end, or read its events"),
            );
        };
        let limit = usize::try_from(output_limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let output = |log: &Log| Output {
            data: log.head()[..log.head().len().min(limit)].to_vec().into(),
            total: log.total(),
        };
        Ok(ExecResult {
            id: self.id.clone(),
            stdout: output(&state.stdout),
            stderr: output(&state.stderr),
            results: state.results.clone(),
            end: end.clone(),
        })
    }

    fn forget(&self) {
        let mut state = self.lock();
        state.forgotten = true;
        // Frees the memory; what still writes is drained and dropped.
        if state.end.is_some() {
            state.stdout.clear();
            state.stderr.clear();
            state.results = Vec::new();
        }
    }
}

/// All jobs that are known, in the order of their start.
pub(crate) struct Jobs {
    state: Mutex<List>,
    room: Room,
    activity: Arc<Activity>,
}

#[derive(Default)]
struct List {
    jobs: Vec<Arc<Job>>,
    made: u64,
}

impl Jobs {
    pub(crate) fn new(activity: Arc<Activity>, config: &Config) -> Self {
        Self {
            state: Mutex::default(),
            room: Room {
                ring: config.share(4 * OUTPUT_RING) / 4,
                ended: config.share(ENDED_BYTES),
            },
            activity,
        }
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a job with this id or a new one, and drops the oldest ended ones over the limits.
    pub(crate) fn add(&self, new: NewJob<'_>) -> Result<Arc<Job>, Failure> {
        if let Some(id) = new.id {
            checks::name("a job's id", id)?;
        }
        let mut list = self.lock();
        let list = &mut *list;
        let taken = |jobs: &[Arc<Job>], id: &str| jobs.iter().any(|job| job.id == id);
        let id = match new.id {
            Some(id) if taken(&list.jobs, id) => {
                return Err(Failure::new(
                    Code::AlreadyExists,
                    format!("job {id} exists already"),
                ));
            }
            Some(id) => id.to_owned(),
            None => loop {
                list.made += 1;
                let id = format!("j{}", list.made);
                if !taken(&list.jobs, &id) {
                    break id;
                }
            },
        };
        list.prune(self.room.ended);
        if list.jobs.len() >= JOBS {
            return Err(
                Failure::new(Code::TooMany, format!("there are {JOBS} jobs already"))
                    .hint("end or remove some"),
            );
        }
        let active = self.activity.begin();
        let job = Job::new(id, new, self.room.ring, active);
        list.jobs.push(Arc::clone(&job));
        Ok(job)
    }

    pub(crate) fn get(&self, id: &str) -> Result<Arc<Job>, Failure> {
        let list = self.lock();
        match list.jobs.iter().find(|job| job.id == id) {
            Some(job) => Ok(Arc::clone(job)),
            None => Err(Failure::new(
                Code::NotFound,
                format!("no such job: {}", shortened(id)),
            )),
        }
    }

    /// Removes a job from the list; what it runs is not touched.
    pub(crate) fn forget(&self, job: &Arc<Job>) {
        self.lock().jobs.retain(|known| !Arc::ptr_eq(known, job));
        job.forget();
    }

    /// How many jobs run.
    pub(crate) fn running(&self) -> u32 {
        self.lock()
            .jobs
            .iter()
            .filter(|job| !job.has_ended())
            .count() as u32
    }
}

impl List {
    fn prune(&mut self, most: u64) {
        let mut ended: Vec<(Instant, u64, Arc<Job>)> = self
            .jobs
            .iter()
            .filter_map(|job| {
                let state = job.lock();
                let at = state.end.as_ref()?.1;
                let rich = state.results.iter().flat_map(|rich| rich.data.values());
                let rich: u64 = rich.map(|data| data.len() as u64).sum();
                Some((
                    at,
                    state.stdout.kept() + state.stderr.kept() + rich,
                    Arc::clone(job),
                ))
            })
            .collect();
        let mut bytes: u64 = ended.iter().map(|(_, bytes, _)| bytes).sum();
        let mut count = ended.len();
        if count <= ENDED_JOBS && bytes <= most {
            return;
        }
        ended.sort_by_key(|(at, _, _)| *at);
        for (_, kept, job) in ended {
            if count <= ENDED_JOBS && bytes <= most {
                break;
            }
            count -= 1;
            bytes -= kept;
            self.jobs.retain(|known| !Arc::ptr_eq(known, &job));
            job.forget();
        }
    }
}

/// The first words of a command, for lists.
pub(crate) fn shortened(text: &str) -> String {
    const LENGTH: usize = 200;
    match text.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Ties a job to the request that started it: dropped when the answer was sent or its reader
/// went away, whichever comes first.
pub(crate) struct Tie {
    guest: Arc<Guest>,
    job: Arc<Job>,
    on_disconnect: OnDisconnect,
    /// The caller chose the id and may come back for the result.
    keep: bool,
    /// There is nothing to come back for when the result was whole.
    transient: bool,
}

impl Tie {
    pub(crate) fn new(
        guest: &Arc<Guest>,
        job: &Arc<Job>,
        on_disconnect: OnDisconnect,
        chosen: bool,
        transient: bool,
    ) -> Self {
        Self {
            guest: Arc::clone(guest),
            job: Arc::clone(job),
            on_disconnect,
            keep: chosen && on_disconnect == OnDisconnect::Keep,
            transient,
        }
    }
}

impl Drop for Tie {
    fn drop(&mut self) {
        let ended = self.job.has_ended();
        if !ended && self.on_disconnect == OnDisconnect::Keep {
            return;
        }
        if !ended {
            self.job.cancel();
        }
        if !self.keep || (ended && self.transient && !self.job.is_cut()) {
            self.guest.jobs.forget(&self.job);
        }
    }
}

/// Follows a job that was just started: events as they come, or the whole result at its end.
pub(crate) async fn follow(job: Arc<Job>, tie: Tie, streamed: bool) -> Answer {
    if streamed {
        let query = OutputQuery {
            follow: true,
            ..OutputQuery::default()
        };
        return Ok(events(job, query, Some(tie)));
    }
    job.ended().await;
    let answer = http::json(&job.result(None)?);
    drop(tie);
    answer
}

/// Whether the request asks for events.
pub(crate) fn wants_events(request: &Request) -> bool {
    request
        .headers()
        .get(::http::header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.contains(NDJSON))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ResultQuery {
    output_limit: Option<u64>,
}

pub(crate) async fn route(guest: &Arc<Guest>, request: Request, rest: &[&str]) -> Answer {
    let jobs = &guest.jobs;
    match (request.method(), rest) {
        (&Method::GET, []) => {
            let all: Vec<JobInfo> = jobs.lock().jobs.iter().map(|job| job.info()).collect();
            http::json(&all)
        }
        (&Method::POST, []) => exec::start_job(guest, request).await,
        (&Method::GET, [id]) => http::json(&jobs.get(id)?.info()),
        (&Method::DELETE, [id]) => {
            let job = jobs.get(id)?;
            remove(guest, &job).await;
            http::empty()
        }
        (&Method::GET, [id, "events"]) => Ok(events(jobs.get(id)?, http::query(&request)?, None)),
        (&Method::GET, [id, "wait"]) => {
            let job = jobs.get(id)?;
            let query: WaitQuery = http::query(&request)?;
            let reading = Reading::begin(&job);
            match query.timeout_ms {
                Some(ms) => {
                    let timeout = Duration::from_millis(ms.min(checks::TIMEOUT_MS_MAX));
                    let _ = tokio::time::timeout(timeout, job.ended()).await;
                }
                None => job.ended().await,
            }
            drop(reading);
            http::json(&job.info())
        }
        (&Method::GET, [id, "result"]) => {
            let query: ResultQuery = http::query(&request)?;
            http::json(&jobs.get(id)?.result(query.output_limit)?)
        }
        (&Method::POST, [id, "cancel"]) => {
            // Its end says so; what it left behind is not touched.
            jobs.get(id)?.cancel();
            http::empty()
        }
        (&Method::POST, [id, "signal"]) => {
            let job = jobs.get(id)?;
            send_signal(&job, &http::body(request).await?)?;
            http::empty()
        }
        (&Method::POST, [id, "stdin"]) => input::stdin(&jobs.get(id)?, request).await,
        (&Method::POST, [id, "attach"]) => input::attach(jobs.get(id)?, request),
        (&Method::POST, [id, "resize"]) => {
            let job = jobs.get(id)?;
            let size: PtySize = http::body(request).await?;
            let terminal = job.lock().terminal.clone();
            let Some(terminal) = terminal else {
                return Err(Failure::new(
                    Code::Conflict,
                    format!("job {id} has no terminal"),
                ));
            };
            input::resize(&terminal, size)?;
            http::empty()
        }
        _ => Err(Failure::new(
            Code::NotFound,
            format!("no such route: /jobs/{}", rest.join("/")),
        )),
    }
}

/// Kills what runs of a job, also what it left behind, and forgets it.
async fn remove(guest: &Arc<Guest>, job: &Arc<Job>) {
    job.cancel();
    job.ended().await;
    let supervisor = job.lock().supervisor.clone();
    if let Some(supervisor) = supervisor {
        supervisor.kill_tree().await;
    }
    guest.jobs.forget(job);
}

fn send_signal(job: &Job, request: &SignalRequest) -> Result<(), Failure> {
    let named = signal_number(&request.signal)
        .and_then(|number| Some((number, Signal::from_named_raw(number)?)));
    let Some((number, signal)) = named else {
        return Err(Failure::invalid(format!(
            "no such signal: {}",
            shortened(&request.signal)
        )));
    };
    let (pid, supervisor) = {
        let mut state = job.lock();
        let Some(supervisor) = state.supervisor.clone() else {
            return Err(Failure::new(
                Code::Conflict,
                format!("job {} takes no signals", job.id),
            ));
        };
        if state.end.is_none() {
            state.asked_signal = Some(number);
        }
        (state.pid, supervisor)
    };
    let over = || Failure::new(Code::Conflict, format!("job {} has ended", job.id));
    if request.all {
        return if supervisor.signal_all(signal) == 0 {
            Err(over())
        } else {
            Ok(())
        };
    }
    // Only while it is there: its process id may belong to somebody else by now.
    if job.has_ended() || !supervisor.descendants().contains(&pid) {
        return Err(over());
    }
    tree::kill(pid, signal)
}
