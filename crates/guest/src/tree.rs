//! Trees of processes: who is below whom, and killing all of them.

use ringfence_proto::Failure;
use rustix::process::{Pid, Signal, WaitOptions};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How long a kill goes on before it gives up on processes that the kernel can't end.
const KILL_DEADLINE: Duration = Duration::from_secs(10);

/// The supervisors of this guest that have not been reaped.
pub(crate) struct Supervisors {
    live: Mutex<HashMap<i32, watch::Sender<bool>>>,
    /// Whether this process is the init or a subreaper, and all below it belongs to it.
    init: bool,
    reaper: OnceLock<()>,
}

/// One supervisor: the handle of everything that one command started.
pub(crate) struct Supervisor {
    pid: i32,
    gone: watch::Receiver<bool>,
    all: Arc<Supervisors>,
}

impl Supervisors {
    pub(crate) fn new(init: bool) -> Arc<Self> {
        Arc::new(Self {
            live: Mutex::default(),
            init,
            reaper: OnceLock::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, watch::Sender<bool>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a supervisor with `fork`, so that no other thread sees it as a stranger meanwhile.
    pub(crate) fn register(
        self: &Arc<Self>,
        fork: impl FnOnce() -> io::Result<i32>,
    ) -> io::Result<Arc<Supervisor>> {
        self.start_reaper();
        let mut live = self.lock();
        let pid = fork()?;
        let (sender, gone) = watch::channel(false);
        live.insert(pid, sender);
        Ok(Arc::new(Supervisor {
            pid,
            gone,
            all: Arc::clone(self),
        }))
    }

    /// Collects ended children from now on. Needs a runtime.
    pub(crate) fn start_reaper(self: &Arc<Self>) {
        self.reaper.get_or_init(|| {
            let Ok(mut children) = signal(SignalKind::child()) else {
                return;
            };
            let weak = Arc::downgrade(self);
            tokio::spawn(async move {
                while children.recv().await.is_some() {
                    let Some(all) = weak.upgrade() else { break };
                    all.reap();
                }
            });
        });
    }

    /// Collects every ended child of ours. Under the lock, so that nobody signals a process id
    /// between its being freed here and its being forgotten.
    fn reap(&self) {
        let mut live = self.lock();
        let mut gone = Vec::new();
        if self.init {
            while let Ok(Some((pid, _))) = rustix::process::wait(WaitOptions::NOHANG) {
                gone.push(pid.as_raw_nonzero().get());
            }
        } else {
            for pid in live.keys() {
                let Some(id) = Pid::from_raw(*pid) else {
                    continue;
                };
                match rustix::process::waitpid(Some(id), WaitOptions::NOHANG) {
                    Ok(None) => {}
                    Ok(Some(_)) | Err(_) => gone.push(*pid),
                }
            }
        }
        for pid in gone {
            if let Some(sender) = live.remove(&pid) {
                sender.send_replace(true);
            }
        }
    }

    /// Kills what is below this process and below no living supervisor: the orphans of a
    /// supervisor that was killed by what it supervised.
    async fn kill_strangers(&self) {
        if self.init {
            self.kill_below(|| self.lock().keys().copied().collect())
                .await;
        }
    }

    /// Kills everything below this process.
    pub(crate) async fn kill_everything(&self) {
        self.kill_below(HashSet::new).await;
    }

    /// Kills what is below this process, but for what is `spared` with all below it.
    async fn kill_below(&self, spared: impl Fn() -> HashSet<i32>) {
        let deadline = Instant::now() + KILL_DEADLINE;
        let own = std::process::id() as i32;
        let mut quiet = 0;
        while quiet < 2 && Instant::now() < deadline {
            let table = Table::read();
            // After the scan: whatever it saw being forked is registered by now.
            let spared = spared();
            let found = table.below(own, |pid| spared.contains(&pid));
            if found.is_empty() {
                quiet += 1;
                continue;
            }
            quiet = 0;
            stop_and_kill(&found);
            self.reap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Supervisor {
    /// Signals the supervisor itself, unless it is gone.
    fn signal(&self, signal: Signal) {
        let live = self.all.lock();
        if live.contains_key(&self.pid) {
            send(self.pid, signal);
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        *self.gone.borrow()
    }

    /// Waits until the supervisor, and so everything below it, has ended.
    pub(crate) async fn gone(&self) {
        let mut gone = self.gone.clone();
        // The sender only goes away together with the guest.
        let _ = gone.wait_for(|gone| *gone).await;
    }

    /// The living processes below the supervisor.
    pub(crate) fn descendants(&self) -> Vec<i32> {
        if self.is_gone() {
            return Vec::new();
        }
        Table::read().below(self.pid, |_| false)
    }

    /// Processor time of all that is and was below it, as far as it was waited for or lives.
    pub(crate) fn cpu(&self) -> Duration {
        let all = self.descendants().into_iter().chain([self.pid]);
        let stats = all.filter_map(|pid| std::fs::read(format!("/proc/{pid}/stat")).ok());
        stats.filter_map(|stat| cpu_of(&stat)).sum()
    }

    /// Sends a signal to every process below the supervisor; answers with how many there were.
    pub(crate) fn signal_all(&self, signal: Signal) -> usize {
        let all = self.descendants();
        for pid in &all {
            send(*pid, signal);
        }
        all.len()
    }

    /// Kills everything below the supervisor, and ends it; comes back when all of it is gone.
    pub(crate) async fn kill_tree(&self) {
        let deadline = Instant::now() + KILL_DEADLINE;
        let mut empty = 0;
        while !self.is_gone() && Instant::now() < deadline {
            let tree = self.descendants();
            if tree.is_empty() {
                // It ends by itself when nothing is below it, unless it was stopped.
                empty += 1;
                self.signal(if empty < 10 {
                    Signal::CONT
                } else {
                    Signal::KILL
                });
            } else {
                empty = 0;
                stop_and_kill(&tree);
            }
            let _ = tokio::time::timeout(Duration::from_millis(5), self.gone()).await;
        }
        if !self.is_gone() {
            self.signal(Signal::KILL);
        }
    }

    /// Kills everything that a supervisor started which has not kept it together to the end. Its
    /// children are orphans, and can be told from others, only when it is gone.
    pub(crate) async fn kill_orphans(&self) {
        self.kill_tree().await;
        self.all.kill_strangers().await;
    }
}

/// Stops them all first, so that none can start another while the others are being killed.
fn stop_and_kill(pids: &[i32]) {
    for signal in [Signal::STOP, Signal::KILL] {
        for pid in pids {
            send(*pid, signal);
        }
    }
}

fn send(pid: i32, signal: Signal) {
    // What has ended meanwhile needs no signal.
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Sends a signal to one process.
pub(crate) fn kill(pid: i32, signal: Signal) -> Result<(), Failure> {
    let Some(id) = Pid::from_raw(pid) else {
        return Ok(());
    };
    rustix::process::kill_process(id, signal)
        .map_err(|e| Failure::io(format!("cannot signal process {pid}"), &e.into()))
}

/// Who is whose parent, of all living processes that can be seen.
struct Table {
    children: HashMap<i32, Vec<(i32, bool)>>,
}

impl Table {
    fn read() -> Self {
        let mut children: HashMap<i32, Vec<(i32, bool)>> = HashMap::new();
        let Ok(entries) = std::fs::read_dir("/proc") else {
            return Self { children };
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|n| n.parse::<i32>().ok()) else {
                continue;
            };
            let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else {
                continue;
            };
            if let Some((parent, alive)) = parse_stat(&stat) {
                children.entry(parent).or_default().push((pid, alive));
            }
        }
        Self { children }
    }

    /// All living processes below `root`, without those that `except` names and what is below
    /// them. The dead that nobody has collected are passed through, not listed.
    fn below(&self, root: i32, except: impl Fn(i32) -> bool) -> Vec<i32> {
        let mut found = Vec::new();
        let mut seen = HashSet::from([root]);
        let mut next = vec![root];
        while let Some(parent) = next.pop() {
            for (pid, alive) in self.children.get(&parent).into_iter().flatten() {
                if except(*pid) || !seen.insert(*pid) {
                    continue;
                }
                if *alive {
                    found.push(*pid);
                }
                next.push(*pid);
            }
        }
        found
    }
}

/// Processor time of a process, with the children that it waited for, of its `/proc/PID/stat`.
pub(crate) fn cpu_of(stat: &[u8]) -> Option<Duration> {
    let ticks: u64 = fields(stat)?
        .skip(11)
        .take(4)
        .filter_map(|t| t.parse::<u64>().ok())
        .sum();
    let second = rustix::param::clock_ticks_per_second() as f64;
    Some(Duration::from_secs_f64(ticks as f64 / second))
}

/// What comes after the second field of `/proc/PID/stat`, which may hold anything.
fn fields(stat: &[u8]) -> Option<impl Iterator<Item = &str>> {
    let end = stat.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    Some(rest.split_ascii_whitespace())
}

/// Parent and whether it lives, of `/proc/PID/stat`.
fn parse_stat(stat: &[u8]) -> Option<(i32, bool)> {
    let mut fields = fields(stat)?;
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    Some((parent, !matches!(state, "Z" | "X" | "x")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_can_be_called_anything() {
        assert_eq!(parse_stat(b"12 (a) Z 1 (x)) S 7 1 1"), Some((7, true)));
        assert_eq!(parse_stat(b"12 (\xff) Z 7 1 1"), Some((7, false)));
        assert_eq!(parse_stat(b"12 (x"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn exceptions_hide_what_is_below_them() {
        let mut children = HashMap::new();
        children.insert(1, vec![(2, true), (3, true)]);
        children.insert(2, vec![(4, true)]);
        children.insert(3, vec![(5, true), (6, false)]);
        children.insert(6, vec![(7, true)]);
        let table = Table { children };
        let mut below = table.below(1, |pid| pid == 2);
        below.sort_unstable();
        assert_eq!(below, [3, 5, 7]);
    }
}
