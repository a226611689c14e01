//! The launcher: a process with one thread that makes sandboxes for one that may have many.
//!
//! Guests are copies of it, so it learns nothing that one of them must not know: it is started
//! with an empty environment and reads no request. That is done by a *maker*, a copy that waits
//! for one request with what it can have ready by then, makes one sandbox and ends. A sandbox
//! that is bound to whoever asked for it keeps its maker, and ends with it.

use crate::launch::{Launched, Spares, launch, out_of_the_way, pipe};
use crate::line::Line;
use crate::{Cgroup, Guest, Jail, LastWords, Stage, sys};
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Longest description that a maker reads.
const LONGEST: u32 = 16 << 20;
/// How long a launcher waits before it gets the next maker ready: longer than a sandbox takes
/// until it runs.
const REST: Duration = Duration::from_millis(10);
/// The same after the first sandbox, which is the only one for most who run something.
const FIRST_REST: Duration = Duration::from_millis(500);
/// Room in the command line for what guests call themselves.
const ROOM: usize = 128;

#[derive(Serialize, Deserialize)]
enum Reply {
    Launched { pid: i32 },
    Failed(LastWords),
}

/// Serves the process that started this one, on standard input, until that goes away.
pub fn serve(guest: Guest) -> io::Result<()> {
    let control = out_of_the_way(io::stdin().as_fd().try_clone_to_owned()?)?;
    sys::find_command_line()?;
    sys::find_thread_id();
    // Sandboxes outlive their makers, and come here then; the kernel reaps those that end.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    sys::reap_children_unseen(true);
    let control = Line::from(control);
    let mut rest = FIRST_REST;
    loop {
        let (taken, take) = pipe()?;
        if sys::fork()? {
            drop(taken);
            // A panic must not go on in a copy of the launcher.
            let work = std::panic::AssertUnwindSafe(|| make(control, take, guest));
            let made = std::panic::catch_unwind(work).is_ok_and(|made| made.is_ok());
            sys::exit_now(i32::from(!made));
        }
        drop(take);
        let has_taken = rustix::io::read(&taken, &mut [0u8; 1]) == Ok(1);
        if has_taken {
            // Getting the next one ready would take a processor from the sandbox that is being
            // made. Who asks meanwhile does not wait.
            control.wait(std::mem::replace(&mut rest, REST));
        } else {
            // It was killed. That the next one is too must not keep a processor busy.
            std::thread::sleep(Duration::from_millis(5));
        }
        if control.has_ended() {
            return Ok(());
        }
    }
}

/// Waits for one request and carries it out.
fn make(control: Line, take: OwnedFd, guest: Guest) -> io::Result<()> {
    sys::reap_children_unseen(false);
    let mut spares = Spares::make();
    let Ok(Some(request)) = control.receive() else {
        return Ok(());
    };
    rustix::io::write(&take, &[1])?;
    // When no launcher is left to take it, a request must not wait in the line for ever.
    drop((control, take));
    let mut request = UnixStream::from(request);
    let bytes = receive(&mut request)?;
    let launched = match serde_json::from_slice::<Jail>(&bytes) {
        Ok(jail) => launch(&jail, guest, &mut spares),
        Err(error) => Err(LastWords {
            stage: Stage::Prepare,
            object: format!("bad description: {error}"),
            errno: 0,
        }),
    };
    drop(spares);
    let (reply, launched) = match launched {
        Ok(launched) => (Reply::Launched { pid: launched.pid }, Some(launched)),
        Err(words) => (Reply::Failed(words), None),
    };
    send(&mut request, &serde_json::to_vec(&reply)?)?;
    match launched {
        Some(Launched {
            pidfd,
            lifeline: Some(_held),
            ..
        }) => until_either_ends(&request, &pidfd),
        _ => Ok(()),
    }
}

fn until_either_ends(request: &UnixStream, sandbox: &OwnedFd) -> io::Result<()> {
    let mut both = [
        PollFd::new(request, PollFlags::RDHUP),
        PollFd::new(sandbox, PollFlags::IN),
    ];
    while let Err(error) = poll(&mut both, None) {
        if error != rustix::io::Errno::INTR {
            return Err(error.into());
        }
    }
    Ok(())
}

/// A launcher that was started, and goes when this does.
#[derive(Debug)]
pub struct Launcher {
    control: Line,
    process: Child,
}

impl Launcher {
    /// Starts `program`, which must call [`serve`] when its first argument is `launcher`.
    pub fn start(program: &Path) -> io::Result<Self> {
        let (control, theirs) = Line::pair()?;
        let process = Command::new(program)
            .arg0("ringfence-launcher")
            .args(["launcher", &"-".repeat(ROOM)])
            .env_clear()
            // What a terminal sends is for those who use it.
            .process_group(0)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { control, process })
    }

    /// A line to a maker.
    pub fn request(&self) -> io::Result<Request> {
        let (ours, theirs) = UnixStream::pair()?;
        self.control.send(Some(theirs.as_fd()))?;
        Ok(Request { stream: ours })
    }

    /// Ends it, and waits for that. Sandboxes stay.
    pub fn end(mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Asks for one sandbox. One that is bound to whoever asked for it lives as long as this.
#[derive(Debug)]
pub struct Request {
    stream: UnixStream,
}

impl Request {
    /// The process id of the new sandbox's guest, or what went wrong in making it.
    pub fn launch(&mut self, jail: &Jail) -> io::Result<Result<i32, LastWords>> {
        let description = serde_json::to_vec(jail)?;
        if description.len() > LONGEST as usize {
            return Ok(Err(LastWords {
                stage: Stage::Prepare,
                object: format!("its description is over {LONGEST} bytes"),
                errno: libc::E2BIG,
            }));
        }
        // Here, because a maker may still be getting ready.
        let made = jail.cgroup.as_ref().map_or(Ok(()), Cgroup::make);
        let launched = match made {
            Ok(()) => self.ask(&description),
            Err(words) => Ok(Err(words)),
        };
        if let (Some(cgroup), Err(_) | Ok(Err(_))) = (&jail.cgroup, &launched) {
            let _ = cgroup.remove();
        }
        launched
    }

    fn ask(&mut self, description: &[u8]) -> io::Result<Result<i32, LastWords>> {
        send(&mut self.stream, description)?;
        let bytes = receive(&mut self.stream)?;
        Ok(match serde_json::from_slice(&bytes)? {
            Reply::Launched { pid } => Ok(pid),
            Reply::Failed(words) => Err(words),
        })
    }
}

fn send(stream: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend_from_slice(bytes);
    stream.write_all(&frame)
}

fn receive(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut length = [0u8; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
