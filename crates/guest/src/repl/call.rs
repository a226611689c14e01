//! One call: from its turn to its end.

use super::Kernel;
use super::certificate::{self, Facts, Stop, Wrong};
use super::channel::{self, Done, Frame};
use super::process::{NotStarted, Process};
use crate::exec::sleep_until;
use crate::files::Before;
use crate::jobs::{Job, Stream};
use crate::server::Guest;
use crate::spawn::Turns;
use ringfence_proto::{Certificate, Exit, Failure, JobEnd, Rich, RunRequest};
use rustix::process::Signal;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long an interrupted call may take to end before its kernel is killed.
const GRACE: Duration = Duration::from_secs(1);
/// When it is interrupted again: C's `system` eats the first interrupt, and so do some handlers.
const AGAIN: Duration = Duration::from_millis(500);
/// When a call is taken for a long one, and how often its processor time is looked at.
const TICK: Duration = Duration::from_millis(100);
/// Most rich results of one call, and most bytes of them.
const RESULTS: u32 = 256;
const RESULTS_BYTES: u64 = 64 << 20;
/// What an entry of a result takes besides its text, about.
const ENTRY_BYTES: usize = 64;
/// Most of them that are left out before the call is taken for a flood.
const LEFT_OUT: u32 = 10_000;

/// How the talk with the kernel about one call ended.
enum Fate {
    Done(Done),
    /// The channel ended.
    Ended,
    /// The kernel said what it never says.
    Broken,
    /// It showed more results than anybody could want.
    Flooded,
    /// It has to be killed.
    Kill,
}

/// Waits for its turn and runs the call to its end.
pub(super) async fn run(
    guest: Arc<Guest>,
    kernel: Arc<Kernel>,
    job: Arc<Job>,
    request: RunRequest,
    started: oneshot::Sender<Result<(), Failure>>,
) {
    let mut slot = tokio::select! {
        biased;
        slot = kernel.process.lock() => slot,
        () = job.cancelled() => {
            let _ = started.send(Ok(()));
            job.finish(end(Exit::Lost, Duration::ZERO, 0, 0, Some(certificate::never_ran())));
            return;
        }
    };
    let _busy = kernel.busy();
    let (mut before, mut started) = (None, Some(started));
    // From here on its time runs, which is also that of an interpreter's start.
    let begun = Instant::now();
    for _ in 0..2 {
        if let Some(process) = slot.take_if(|process| !process.is_idle()) {
            before = Some(lost_between(&guest, &kernel, process).await);
        }
        if slot.is_none() {
            match kernel.start(&guest, given_up(&job, &request, begun)).await {
                Ok(process) => *slot = Some(process),
                Err(NotStarted::Failed(failure)) => {
                    let elapsed = begun.elapsed();
                    let certificate = certificate::no_kernel(&failure);
                    let told = started.take().map(|started| started.send(Err(failure)));
                    if matches!(told, Some(Ok(()))) {
                        guest.jobs.forget(&job);
                    }
                    // Whoever did not wait for the start reads it in the end.
                    job.finish(end(Exit::Lost, elapsed, 0, 0, Some(certificate)));
                    return;
                }
                Err(NotStarted::Stopped(stop)) => {
                    let elapsed = begun.elapsed();
                    let certificate = certificate::not_ready(stop, elapsed);
                    job.finish(end(Exit::Lost, elapsed, 0, 0, Some(certificate)));
                    if let Some(started) = started.take() {
                        let _ = started.send(Ok(()));
                    }
                    return;
                }
            }
        }
        let Some(process) = slot.as_mut() else { break };
        if let Some(started) = started.take() {
            let _ = started.send(Ok(()));
        }
        let files = match request.report_files {
            true => Some(Before::look(&guest.config.workspace).await),
            false => None,
        };
        let tools = guest.tools.news(&mut process.tools);
        let mut talk = Talk::new(&kernel, process, &job, &request, begun);
        talk.tools = tools;
        talk.room = guest.config.share(RESULTS_BYTES);
        let fate = talk.run().await;
        let (stop, asked, has_started) = (talk.stop, talk.asked, talk.started);
        if let (Fate::Ended, None, false) = (&fate, stop, has_started) {
            // It died before the call reached it: nothing has run yet.
            if let Some(process) = slot.take() {
                before = Some(lost_between(&guest, &kernel, process).await);
            }
            continue;
        }
        let result = match fate {
            Fate::Done(done) => {
                let limit = kernel.limits().cpu_seconds.filter(|_| done.out_of_cpu);
                let stop = stop.or(limit.map(Stop::Cpu));
                living(process, &job, done, stop, asked, begun)
            }
            fate => match slot.take() {
                Some(process) => dead(&guest, &kernel, process, fate, stop, begun).await,
                None => break,
            },
        };
        let (changed, changed_truncated) = match files {
            Some(files) => files.changed().await,
            None => (Vec::new(), false),
        };
        job.finish(JobEnd {
            certificate: result.certificate.or(before),
            changed,
            changed_truncated,
            ..result
        });
        return;
    }
    // Two fresh kernels died before the call reached them.
    job.finish(end(Exit::Lost, Duration::ZERO, 0, 0, before));
}

/// Waits until a call is cancelled or its time is over.
async fn given_up(job: &Job, request: &RunRequest, begun: Instant) -> Stop {
    let timeout = request.timeout_ms.map(Duration::from_millis);
    tokio::select! {
        () = job.cancelled() => Stop::Cancelled,
        () = sleep_until(timeout.map(|timeout| begun + timeout)) => {
            Stop::Timeout(timeout.unwrap_or_default())
        }
    }
}

fn end(
    exit: Exit,
    duration: Duration,
    cpu_us: u64,
    peak_memory: u64,
    certificate: Option<Certificate>,
) -> JobEnd {
    JobEnd {
        cpu_ms: cpu_us / 1000,
        peak_memory,
        certificate,
        ..JobEnd::new(exit, duration)
    }
}

/// The end of a call whose kernel lives on.
fn living(
    process: &mut Process,
    job: &Job,
    done: Done,
    stop: Option<Stop>,
    asked: bool,
    begun: Instant,
) -> JobEnd {
    process.outputs.end();
    process.spent_us = process.spent_us.saturating_add(done.cpu_us);
    let elapsed = begun.elapsed();
    let (exit, certificate) = if stop.is_some() || (asked && done.interrupted) {
        (Exit::Lost, Some(certificate::interrupted(stop, elapsed)))
    } else {
        let (stdout, stderr) = job.totals();
        let (output, limit) = (stdout.max(stderr), job.output_limit());
        let cut = (output > limit).then(|| certificate::cut(output, limit));
        (Exit::Code(done.status), cut)
    };
    let peak = process.peak_memory().unwrap_or(0);
    end(exit, elapsed, done.cpu_us, peak, certificate)
}

/// The end of a call that took its kernel with it.
async fn dead(
    guest: &Guest,
    kernel: &Kernel,
    process: Process,
    fate: Fate,
    stop: Option<Stop>,
    begun: Instant,
) -> JobEnd {
    let (spent_us, oom_kills) = (process.spent_us, process.oom_kills);
    let elapsed = begun.elapsed();
    let wrong = match fate {
        Fate::Broken => Some(Wrong::Nonsense),
        Fate::Flooded => Some(Wrong::Flood(RESULTS)),
        _ => None,
    };
    let ended = match fate {
        Fate::Ended => process.ended().await,
        _ => process.kill().await,
    };
    let limits = kernel.limits();
    let certificate = certificate::of_kernel(&Facts {
        stop,
        wrong,
        ended,
        elapsed,
        out_of_memory: guest.oom.kills() > oom_kills,
        memory_limit: guest.config.memory_limit,
        limits: &limits,
    });
    let (cpu, peak) = ended.map_or((0, 0), |ended| (ended.cpu_us, ended.peak_memory));
    end(
        Exit::Lost,
        elapsed,
        cpu.saturating_sub(spent_us),
        peak,
        Some(certificate),
    )
}

/// The certificate of a kernel that ended while no call ran.
async fn lost_between(guest: &Guest, kernel: &Kernel, process: Process) -> Certificate {
    let fate = if process.at_end() {
        Fate::Ended
    } else {
        Fate::Broken
    };
    let lost = dead(guest, kernel, process, fate, None, Instant::now()).await;
    certificate::between_calls(lost.certificate.unwrap_or_else(certificate::never_ran))
}

/// The talk with a kernel about one call.
struct Talk<'a> {
    kernel: &'a Kernel,
    process: &'a mut Process,
    job: &'a Arc<Job>,
    request: &'a RunRequest,
    begun: Instant,
    /// Where the tools are that the kernel has not heard of.
    tools: Option<String>,
    number: u32,
    stop: Option<Stop>,
    kill_at: Option<Instant>,
    again_at: Option<Instant>,
    /// A caller asked for an interrupt.
    asked: bool,
    /// The kernel has said that the call runs.
    started: bool,
    /// Most bytes of results.
    room: u64,
    results: (u32, u64),
    results_left_out: u32,
}

impl<'a> Talk<'a> {
    fn new(
        kernel: &'a Kernel,
        process: &'a mut Process,
        job: &'a Arc<Job>,
        request: &'a RunRequest,
        begun: Instant,
    ) -> Self {
        process.calls = process.calls.wrapping_add(1);
        process.outputs.begin(job);
        job.runs_in(process.pid);
        let number = process.calls;
        Self {
            kernel,
            process,
            job,
            request,
            begun,
            tools: None,
            number,
            stop: None,
            kill_at: None,
            again_at: None,
            asked: false,
            started: false,
            room: RESULTS_BYTES,
            results: (0, 0),
            results_left_out: 0,
        }
    }

    async fn run(&mut self) -> Fate {
        let timeout = self.request.timeout_ms.map(Duration::from_millis);
        let deadline = timeout.map(|timeout| self.begun + timeout);
        let cpu_limit = self.request.cpu_seconds;
        let mut cpu_end = None;
        let mut next_tick = Some(Instant::now() + TICK);
        let mut turns = Turns::Short;
        let mut interrupts = self.kernel.interrupts.subscribe();
        let mut closing = self.kernel.closing.subscribe();

        let mut frame = channel::run(self.number, &self.request.code);
        if let Some(folder) = &self.tools {
            frame = [channel::adopt(folder), frame].concat();
        }
        let mut rest = &frame[..];
        let mut alarm = std::mem::take(&mut self.process.alarm);
        let fate = loop {
            let limits = [deadline.filter(|_| self.stop.is_none()), next_tick];
            let wake = limits
                .into_iter()
                .chain([self.kill_at, self.again_at])
                .flatten()
                .min();
            tokio::select! {
                // The kernel comes last: user code can see to it that there is always a frame.
                biased;
                _ = closing.wait_for(|closing| *closing) => {
                    self.stop = Some(Stop::Closing);
                    break Fate::Kill;
                }
                () = self.job.cancelled(), if self.stop.is_none() => self.end(Stop::Cancelled),
                // The sender lives as long as the kernel.
                _ = interrupts.changed() => {
                    self.asked = true;
                    self.signal();
                }
                () = alarm.at(wake), if wake.is_some() => {
                    let now = Instant::now();
                    if self.kill_at.is_some_and(|at| at <= now) {
                        break Fate::Kill;
                    }
                    if self.again_at.is_some_and(|at| at <= now) {
                        self.again_at = None;
                        self.signal();
                    }
                    if let (Some(timeout), None) = (timeout, self.stop)
                        && deadline.is_some_and(|at| at <= now)
                    {
                        self.end(Stop::Timeout(timeout));
                    }
                    if next_tick.is_some_and(|at| at <= now) {
                        if turns == Turns::Short {
                            turns = Turns::Usual;
                            self.process.set_turns(turns);
                        }
                        next_tick = None;
                        if let (Some(limit), None) = (cpu_limit, self.stop) {
                            next_tick = Some(now + TICK);
                            if let Some(used) = self.process.cpu() {
                                // Most calls are over before anybody asks what they have used;
                                // one that isn't is taken to have been busy so far.
                                let before = used.saturating_sub(TICK);
                                let end = || before + Duration::from_secs(limit);
                                if used >= *cpu_end.get_or_insert_with(end) {
                                    self.end(Stop::Cpu(limit));
                                }
                            }
                        }
                    }
                }
                frame = self.process.exchange(&mut rest) => match frame {
                    Ok(Some(Frame::Started(call))) if call == self.number && !self.started => {
                        self.started = true;
                        if self.stop.is_some() || self.asked {
                            self.signal();
                        }
                    }
                    Ok(Some(Frame::Rich(rich))) if self.started => {
                        self.result(rich);
                        if self.results_left_out > LEFT_OUT {
                            break Fate::Flooded;
                        }
                    }
                    Ok(Some(Frame::Done(done))) if self.started && done.call == self.number => {
                        break Fate::Done(done);
                    }
                    Ok(None) => break Fate::Ended,
                    Ok(Some(_)) | Err(_) => break Fate::Broken,
                },
            }
        };
        self.process.alarm = alarm;
        if turns == Turns::Usual && matches!(fate, Fate::Done(_)) {
            self.process.set_turns(Turns::Short);
        }
        if self.results_left_out > 0 {
            let note = format!(
                "[{} rich results left out: too many]\n",
                self.results_left_out
            );
            self.job.push(Stream::Stderr, note.as_bytes());
        }
        fate
    }

    /// Interrupts the call, and sees to it that it ends.
    fn end(&mut self, stop: Stop) {
        let now = Instant::now();
        self.stop = Some(stop);
        self.kill_at = Some(now + GRACE);
        self.again_at = Some(now + AGAIN);
        self.signal();
    }

    fn signal(&self) {
        // Before its start is known an interrupt would be taken for the last call's.
        if self.started {
            self.process.signal(match self.stop {
                Some(Stop::Cpu(_)) => Signal::XCPU,
                _ => Signal::INT,
            });
        }
    }

    fn result(&mut self, rich: Rich) {
        // An entry costs something even where it is empty.
        let entry = |(mime, data): (&String, &String)| mime.len() + data.len() + ENTRY_BYTES;
        let size = rich.data.iter().map(entry).sum::<usize>() as u64;
        let (count, total) = (self.results.0 + 1, self.results.1.saturating_add(size));
        if count > RESULTS || total > self.room {
            self.results_left_out = self.results_left_out.saturating_add(1);
            return;
        }
        self.results = (count, total);
        self.job.push_rich(rich);
    }
}
