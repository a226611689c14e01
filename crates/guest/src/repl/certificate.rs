//! Certificates of calls and kernels.

use crate::certificates::{bytes, seconds};
use crate::launch;
use ringfence_proto::{Cause, Certificate, Ended, Failure, ProcessLimits, Survived, signal_name};
use std::time::Duration;

/// Why the guest put an end to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Timeout(Duration),
    Cpu(u64),
    /// Its caller went away or took it back.
    Cancelled,
    /// The kernel is being removed.
    Closing,
}

/// What a kernel did on its control channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrong {
    Nonsense,
    /// Far more rich results than the most of one call, which is this.
    Flood(u32),
}

const FRESH: &str = "the next call starts a fresh interpreter: run imports and definitions again";

/// An interrupted call, whose kernel lives on.
pub(super) fn interrupted(stop: Option<Stop>, elapsed: Duration) -> Certificate {
    let kept = "was interrupted; the variables are kept";
    let next = "the next call goes on with the same variables";
    let base = |cause, message: String, next: &str| {
        Certificate::new(cause, Ended::Call, message, true, next)
    };
    match stop {
        Some(Stop::Timeout(limit)) => Certificate {
            limit: Some(seconds(limit)),
            reached: Some(seconds(elapsed)),
            ..base(
                Cause::WallClock,
                format!("the call timed out after {} and {kept}", short(limit)),
                "split the work or give it a longer timeout; the variables are as it left them",
            )
        },
        Some(Stop::Cpu(limit)) => Certificate {
            limit: Some(format!("{limit} s")),
            ..base(
                Cause::Cpu,
                format!("the call used its {limit} s of processor time and {kept}"),
                "make it cheaper or split the work; the variables are as it left them",
            )
        },
        Some(Stop::Cancelled | Stop::Closing) => base(
            Cause::Cancelled,
            format!("the call was cancelled: it {kept}"),
            next,
        ),
        None => base(Cause::Cancelled, format!("the call {kept}"), next),
    }
}

/// A call that was cancelled before its turn came.
pub(super) fn never_ran() -> Certificate {
    Certificate {
        message: "the call was cancelled before it ran".to_owned(),
        ..interrupted(Some(Stop::Cancelled), Duration::ZERO)
    }
}

/// A call whose interpreter can't be started.
pub(super) fn no_kernel(failure: &Failure) -> Certificate {
    let next = failure.hint.as_deref().unwrap_or("see that it can start");
    Certificate::new(
        Cause::Exited,
        Ended::Kernel,
        format!("the call has not run: {failure}"),
        false,
        next,
    )
}

/// A call that was stopped before its interpreter was ready.
pub(super) fn not_ready(stop: Stop, elapsed: Duration) -> Certificate {
    let killed = "while its interpreter started: that was killed, and nothing of the call has run";
    let base = of_kernel(&Facts {
        stop: Some(stop),
        wrong: None,
        ended: None,
        elapsed,
        out_of_memory: false,
        memory_limit: None,
        limits: &ProcessLimits::default(),
    });
    let message = match stop {
        Stop::Timeout(limit) => format!("the call timed out after {} {killed}", short(limit)),
        _ => format!("the call was cancelled {killed}"),
    };
    Certificate { message, ..base }
}

/// What is known of the end of a kernel.
pub(super) struct Facts<'a> {
    pub(super) stop: Option<Stop>,
    pub(super) wrong: Option<Wrong>,
    pub(super) ended: Option<launch::Ended>,
    pub(super) elapsed: Duration,
    pub(super) out_of_memory: bool,
    pub(super) memory_limit: Option<u64>,
    pub(super) limits: &'a ProcessLimits,
}

/// The end of a kernel.
pub(super) fn of_kernel(facts: &Facts<'_>) -> Certificate {
    let status = facts.ended.map(|ended| ended.status);
    let signal = status
        .filter(|s| libc::WIFSIGNALED(*s))
        .map(|s| libc::WTERMSIG(s));
    let base =
        |cause, message: String| Certificate::new(cause, Ended::Kernel, message, false, FRESH);
    let replaced = "could not be interrupted, so its interpreter was killed and the variables \
                    are lost";
    match facts.stop {
        Some(Stop::Timeout(limit)) => {
            return Certificate {
                limit: Some(seconds(limit)),
                reached: Some(seconds(facts.elapsed)),
                ..base(
                    Cause::WallClock,
                    format!("the call timed out after {} and {replaced}", short(limit)),
                )
            };
        }
        Some(Stop::Cpu(limit)) => {
            return Certificate {
                limit: Some(format!("{limit} s")),
                ..base(
                    Cause::Cpu,
                    format!("the call used its {limit} s of processor time and {replaced}"),
                )
            };
        }
        Some(Stop::Cancelled) => {
            return base(
                Cause::Cancelled,
                format!("the call was cancelled; it {replaced}"),
            );
        }
        Some(Stop::Closing) => {
            return base(
                Cause::Cancelled,
                "the interpreter was removed during the call".to_owned(),
            );
        }
        None => {}
    }
    match facts.wrong {
        Some(Wrong::Nonsense) => {
            return base(
                Cause::Exited,
                "the interpreter wrote nonsense to its control channel and was killed".to_owned(),
            );
        }
        Some(Wrong::Flood(most)) => {
            return Certificate {
                limit: Some(format!("{most} rich results")),
                next: format!("show fewer results in one call; {FRESH}"),
                ..base(
                    Cause::Output,
                    "the call flooded its control channel with rich results, so its interpreter \
                     was killed and the variables are lost"
                        .to_owned(),
                )
            };
        }
        None => {}
    }
    let lost = "the variables are lost";
    let Some(signal) = signal else {
        let how = match status
            .filter(|s| libc::WIFEXITED(*s))
            .map(|s| libc::WEXITSTATUS(s))
        {
            Some(code) => format!("exited unexpectedly with status {code}"),
            None => "exited unexpectedly".to_owned(),
        };
        return base(Cause::Exited, format!("the interpreter {how}: {lost}"));
    };
    let certificate = if signal == libc::SIGKILL && facts.out_of_memory {
        let limit = facts.memory_limit.map(bytes);
        let of = limit
            .as_ref()
            .map(|limit| format!(" of {limit}"))
            .unwrap_or_default();
        Certificate {
            limit,
            reached: facts.ended.map(|ended| bytes(ended.peak_memory)),
            next: format!("use less memory at once, or ask for a larger limit; {FRESH}"),
            ..base(
                Cause::Memory,
                format!("the sandbox ran out of memory{of} and the interpreter was killed: {lost}"),
            )
        }
    } else if signal == libc::SIGXCPU || (signal == libc::SIGKILL && over_cpu(facts)) {
        Certificate {
            limit: facts.limits.cpu_seconds.map(|limit| format!("{limit} s")),
            ..base(
                Cause::Cpu,
                format!("the interpreter used up its processor time and was killed: {lost}"),
            )
        }
    } else if signal == libc::SIGXFSZ {
        base(
            Cause::FileSize,
            format!("a file grew past its size limit and the interpreter was killed: {lost}"),
        )
    } else if [
        libc::SIGSEGV,
        libc::SIGABRT,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGSYS,
    ]
    .contains(&signal)
    {
        let name = signal_name(signal);
        base(
            Cause::Crashed,
            format!("the interpreter crashed with {name}: {lost}"),
        )
    } else {
        let name = signal_name(signal);
        base(
            Cause::Killed,
            format!("the interpreter was killed by {name}: {lost}"),
        )
    };
    Certificate {
        signal: Some(signal),
        ..certificate
    }
}

fn over_cpu(facts: &Facts<'_>) -> bool {
    let used = facts.ended.map_or(0, |ended| ended.cpu_us);
    facts
        .limits
        .cpu_seconds
        .is_some_and(|limit| used >= limit.saturating_mul(1_000_000))
}

/// A kernel that ended while no call ran, told with the call that got a fresh one.
pub(super) fn between_calls(certificate: Certificate) -> Certificate {
    Certificate {
        message: format!("between two calls {}", certificate.message),
        next: "this call ran in a fresh interpreter: run imports and definitions again".to_owned(),
        ..certificate
    }
}

/// Output past its limit.
pub(super) fn cut(output: u64, limit: u64) -> Certificate {
    Certificate {
        cause: Cause::Output,
        ended: Ended::Output,
        message: format!(
            "the output is longer than {} and was cut; the call itself went on",
            bytes(limit)
        ),
        limit: Some(bytes(limit)),
        reached: Some(bytes(output)),
        signal: None,
        survived: Survived {
            files: true,
            variables: true,
        },
        next: "print less, or write to a file and read the part that matters".to_owned(),
    }
}

/// A limit as in the words of the contract: `2s`.
fn short(limit: Duration) -> String {
    seconds(limit).replace(' ', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_of_a_kernel_has_its_cause() {
        let limits = ProcessLimits {
            cpu_seconds: Some(2),
            ..ProcessLimits::default()
        };
        let of = |status, out_of_memory, stop| {
            let ended = launch::Ended {
                status,
                left: false,
                cpu_us: 1_000_000,
                peak_memory: 300 << 20,
            };
            of_kernel(&Facts {
                stop,
                wrong: None,
                ended: Some(ended),
                elapsed: Duration::from_secs(3),
                out_of_memory,
                memory_limit: Some(256 << 20),
                limits: &limits,
            })
        };
        let memory = of(9, true, None);
        assert_eq!((memory.cause, memory.signal), (Cause::Memory, Some(9)));
        assert_eq!(memory.limit.as_deref(), Some("256 MiB"));
        assert_eq!(of(9, false, None).cause, Cause::Killed);
        assert_eq!(of(11, true, None).cause, Cause::Crashed);
        assert_eq!(of(24, false, None).cause, Cause::Cpu);
        assert_eq!(of(25, false, None).cause, Cause::FileSize);
        assert_eq!(of(3 << 8, false, None).cause, Cause::Exited);
        let timeout = of(9, true, Some(Stop::Timeout(Duration::from_secs(2))));
        assert_eq!(timeout.cause, Cause::WallClock);
        assert!(timeout.message.contains("timed out after 2s"), "{timeout}");
        assert!(!timeout.survived.variables && timeout.survived.files);
    }
}
