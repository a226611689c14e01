//! Certificates: why a command ended that did not end by itself.

use ringfence_proto::{Cause, Certificate, Ended, Exit, ProcessLimits, signal_name, signal_number};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Counts what the kernel killed for want of memory in this sandbox, where that can be seen.
pub(crate) struct OomCounter {
    given: Option<Arc<File>>,
    found: OnceLock<Option<File>>,
}

impl OomCounter {
    pub(crate) fn new(given: Option<Arc<File>>) -> Self {
        Self {
            given,
            found: OnceLock::new(),
        }
    }

    /// Kills so far; zero where nothing can be seen.
    pub(crate) fn kills(&self) -> u64 {
        let file = match &self.given {
            Some(file) => file.as_ref(),
            None => {
                let found = self.found.get_or_init(|| {
                    [
                        "/sys/fs/cgroup/memory.events",
                        "/sys/fs/cgroup/memory/memory.oom_control",
                    ]
                    .iter()
                    .find_map(|path| File::open(path).ok())
                });
                let Some(file) = found else { return 0 };
                file
            }
        };
        let mut bytes = [0; 512];
        let count = file.read_at(&mut bytes, 0).unwrap_or(0);
        parse_kills(&bytes[..count])
    }
}

fn parse_kills(bytes: &[u8]) -> u64 {
    String::from_utf8_lossy(bytes)
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
        .unwrap_or(0)
}

/// Why the guest itself put an end to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    Timeout(Duration),
    /// All that it started used more seconds of processor time than this.
    Cpu(u64),
    Cancelled,
    /// The supervisor was killed, by the command or by somebody else.
    SupervisorLost,
}

/// What is known of the end of a command.
pub(crate) struct Facts<'a> {
    pub(crate) exit: Exit,
    pub(crate) stopped: Option<Stopped>,
    pub(crate) elapsed: Duration,
    pub(crate) cpu: Duration,
    pub(crate) peak_memory: u64,
    /// Whether the kernel killed for want of memory since the start.
    pub(crate) out_of_memory: bool,
    pub(crate) memory_limit: Option<u64>,
    pub(crate) limits: &'a ProcessLimits,
    /// The last signal that a caller of ours asked for.
    pub(crate) asked: Option<i32>,
    /// Whether a shell stands between, which turns signals into exit codes.
    pub(crate) shell: bool,
    /// The larger of the two streams, and the limit of each.
    pub(crate) output: u64,
    pub(crate) output_limit: u64,
}

/// It, or one of its processes, used more seconds of processor time than it had.
fn out_of_cpu(facts: &Facts<'_>, limit: u64, signal: Option<i32>, message: String) -> Certificate {
    Certificate {
        limit: Some(seconds(Duration::from_secs(limit))),
        reached: Some(seconds(facts.cpu)),
        signal,
        ..command(
            Cause::Cpu,
            message,
            "make it cheaper, split the work, or ask for more processor time",
        )
    }
}

/// The certificate of a command, unless it ended by itself and whole.
pub(crate) fn of_command(facts: &Facts<'_>) -> Option<Certificate> {
    let signal = match facts.exit {
        Exit::Signal(signal) => Some(signal),
        _ => None,
    };
    match facts.stopped {
        Some(Stopped::Timeout(limit)) => {
            return Some(Certificate {
                limit: Some(seconds(limit)),
                reached: Some(seconds(facts.elapsed)),
                signal,
                ..command(
                    Cause::WallClock,
                    format!(
                        "the command ran into its time limit of {} and was killed with everything \
                         it had started",
                        seconds(limit)
                    ),
                    "give it a longer timeout, split the work, or run it in the background",
                )
            });
        }
        Some(Stopped::Cpu(limit)) => {
            let message = format!(
                "the command used its {limit} s of processor time and was killed with everything \
                 it had started"
            );
            return Some(out_of_cpu(facts, limit, signal, message));
        }
        Some(Stopped::Cancelled) => {
            return Some(Certificate {
                signal,
                ..command(
                    Cause::Cancelled,
                    "the command was cancelled and killed with everything it had started",
                    "run it again when its result is wanted",
                )
            });
        }
        Some(Stopped::SupervisorLost) => {
            return Some(Certificate {
                signal,
                ..command(
                    Cause::Killed,
                    "the command's supervisor was killed, so the command was killed with \
                     everything it had started",
                    "do not signal processes that the command has not started, such as with \
                     kill -9 -1",
                )
            });
        }
        None => {}
    }

    // A shell that outlives what it ran says 128 and the signal's number.
    let effective = match facts.exit {
        Exit::Signal(signal) => signal,
        Exit::Code(code @ 129..=159) if facts.shell || code == 137 => code - 128,
        _ => 0,
    };
    let number = |name| signal_number(name).unwrap_or(-1);
    if effective == number("KILL") && facts.out_of_memory {
        return Some(Certificate {
            limit: facts.memory_limit.map(bytes),
            reached: Some(bytes(facts.peak_memory)),
            signal,
            ..command(
                Cause::Memory,
                match facts.memory_limit {
                    Some(limit) => format!(
                        "the sandbox ran out of its {} of memory and the kernel killed the command",
                        bytes(limit)
                    ),
                    None => {
                        "the sandbox ran out of memory and the kernel killed the command".to_owned()
                    }
                },
                "use less memory at once (smaller batches, streaming), or ask for a larger limit",
            )
        });
    }
    if let Some(limit) = facts.limits.cpu_seconds
        && (effective == number("XCPU")
            || (effective == number("KILL") && facts.cpu >= Duration::from_secs(limit)))
    {
        let message = format!("a process used its {limit} s of processor time");
        return Some(out_of_cpu(facts, limit, signal, message));
    }
    if let Some(limit) = facts.limits.file_size
        && effective == number("XFSZ")
    {
        return Some(Certificate {
            limit: Some(bytes(limit)),
            signal,
            ..command(
                Cause::FileSize,
                format!("a file grew past its limit of {}", bytes(limit)),
                "write less, or into several files",
            )
        });
    }
    if ["SEGV", "ABRT", "BUS", "ILL", "FPE", "SYS"]
        .iter()
        .any(|name| effective == number(name))
    {
        return Some(Certificate {
            signal: Some(effective),
            ..command(
                Cause::Crashed,
                format!("the command crashed with {}", signal_name(effective)),
                "look at its output for the cause; running it again as it is will crash again",
            )
        });
    }
    if let Some(signal) = signal {
        let (cause, message, next) = match signal {
            _ if facts.asked == Some(signal) => (
                Cause::Cancelled,
                format!("the command was ended by {}, as asked", signal_name(signal)),
                "run it again when its result is wanted",
            ),
            _ if signal == number("XCPU") => (
                Cause::Cpu,
                "the command used up its processor time".to_owned(),
                "make it cheaper or split the work",
            ),
            _ if signal == number("XFSZ") => (
                Cause::FileSize,
                "a file grew past the limit on its size".to_owned(),
                "write less, or into several files",
            ),
            _ => (
                Cause::Killed,
                format!("the command was killed by {}", signal_name(signal)),
                "look for what sent the signal: the command itself or another of this sandbox",
            ),
        };
        return Some(Certificate {
            signal: Some(signal),
            ..command(cause, message, next)
        });
    }
    if facts.output > facts.output_limit {
        return Some(Certificate {
            limit: Some(bytes(facts.output_limit)),
            reached: Some(bytes(facts.output)),
            ended: Ended::Output,
            ..command(
                Cause::Output,
                format!(
                    "the output is longer than {} and was cut; the command itself went on",
                    bytes(facts.output_limit)
                ),
                "write the output to a file and read the part that matters",
            )
        });
    }
    None
}

fn command(cause: Cause, message: impl Into<String>, next: &str) -> Certificate {
    // Kernels are processes of their own, and their variables live on.
    Certificate::new(cause, Ended::Command, message, true, next)
}

/// Bytes in words, such as `256 MiB` or `1.5 KiB`.
pub(crate) fn bytes(count: u64) -> String {
    for (unit, name) in [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if count >= unit {
            return format!("{} {name}", one_decimal(count as f64 / unit as f64));
        }
    }
    format!("{count} bytes")
}

/// A duration in words, such as `2 s` or `1.5 s`.
pub(crate) fn seconds(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        return format!("{} ms", duration.as_millis());
    }
    format!("{} s", one_decimal(duration.as_secs_f64()))
}

fn one_decimal(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(exit: Exit, limits: &ProcessLimits) -> Facts<'_> {
        Facts {
            exit,
            stopped: None,
            elapsed: Duration::from_secs(3),
            cpu: Duration::from_secs(2),
            peak_memory: 300 << 20,
            out_of_memory: false,
            memory_limit: Some(256 << 20),
            limits,
            asked: None,
            shell: false,
            output: 0,
            output_limit: 1 << 20,
        }
    }

    #[test]
    fn own_ends_need_none() {
        let limits = ProcessLimits::default();
        for code in [0, 1, 127, 137, 255] {
            assert_eq!(
                of_command(&facts(Exit::Code(code), &limits)),
                None,
                "{code}"
            );
        }
        let shell = Facts {
            shell: true,
            ..facts(Exit::Code(143), &limits)
        };
        assert_eq!(of_command(&shell), None);
    }

    #[test]
    fn each_cause_has_its_words() {
        let limits = ProcessLimits {
            cpu_seconds: Some(2),
            file_size: Some(1024),
            ..ProcessLimits::default()
        };
        let cause = |facts: Facts<'_>| of_command(&facts).map(|c| (c.cause, c.limit));
        let some = |text: &str| Some(text.to_owned());
        let of = |signal| facts(Exit::Signal(signal), &limits);
        assert_eq!(
            cause(Facts {
                stopped: Some(Stopped::Timeout(Duration::from_secs(2))),
                ..of(9)
            }),
            Some((Cause::WallClock, some("2 s")))
        );
        assert_eq!(
            cause(Facts {
                out_of_memory: true,
                ..of(9)
            }),
            Some((Cause::Memory, some("256 MiB")))
        );
        assert_eq!(
            cause(Facts {
                out_of_memory: true,
                ..facts(Exit::Code(137), &limits)
            }),
            Some((Cause::Memory, some("256 MiB")))
        );
        assert_eq!(cause(of(24)), Some((Cause::Cpu, some("2 s"))));
        assert_eq!(cause(of(25)), Some((Cause::FileSize, some("1 KiB"))));
        assert_eq!(cause(of(11)), Some((Cause::Crashed, None)));
        assert_eq!(cause(of(15)), Some((Cause::Killed, None)));
        assert_eq!(
            cause(Facts {
                asked: Some(15),
                ..of(15)
            }),
            Some((Cause::Cancelled, None))
        );
        assert_eq!(
            cause(Facts {
                shell: true,
                ..facts(Exit::Code(139), &limits)
            }),
            Some((Cause::Crashed, None))
        );
        let long = Facts {
            output: 3 << 20,
            ..facts(Exit::Code(0), &limits)
        };
        assert_eq!(cause(long), Some((Cause::Output, some("1 MiB"))));
    }

    #[test]
    fn both_cgroup_versions_are_read() {
        assert_eq!(
            parse_kills(b"low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 1\n"),
            3
        );
        assert_eq!(
            parse_kills(b"oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
            2
        );
        assert_eq!(parse_kills(b"\xff"), 0);
    }

    #[test]
    fn amounts_in_words() {
        assert_eq!(bytes(256 << 20), "256 MiB");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(7), "7 bytes");
        assert_eq!(seconds(Duration::from_millis(2000)), "2 s");
        assert_eq!(seconds(Duration::from_millis(150)), "150 ms");
    }
}
