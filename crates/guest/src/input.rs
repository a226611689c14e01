//! The input of commands: pipes and terminals, and what clients send to them.

use crate::http::{self, Answer, Request};
use crate::jobs::{self, Job};
use crate::launch;
use http_body_util::BodyExt as _;
use ringfence_proto::{Code, Failure, OutputQuery, PtySize, Stdin, StdinQuery};
use rustix::io::Errno;
use rustix::termios::Winsize;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use tokio::io::unix::AsyncFd;

/// One end of a pipe or a terminal, never blocking.
pub(crate) type Channel = AsyncFd<OwnedFd>;

/// Where a command's input goes.
pub(crate) enum Input {
    Pipe(Channel),
    Terminal(Arc<Channel>),
}

impl Input {
    fn channel(&self) -> &Channel {
        match self {
            Self::Pipe(channel) => channel,
            Self::Terminal(channel) => channel,
        }
    }
}

/// The command's standard input, and our end of it where there is one.
pub(crate) fn open_stdin(stdin: &Stdin) -> std::io::Result<(OwnedFd, Option<OwnedFd>)> {
    // A null device where there is one: some programs read a pipe that is at its end as if it
    // were data. Opened once.
    static NULL: OnceLock<Option<File>> = OnceLock::new();
    if *stdin == Stdin::Empty
        && let Some(null) = NULL.get_or_init(|| File::open("/dev/null").ok())
    {
        return Ok((null.try_clone()?.into(), None));
    }
    let (reader, writer) = launch::close_on_exec_pipe()?;
    Ok((reader, (*stdin != Stdin::Empty).then_some(writer)))
}

pub(crate) fn open_terminal(size: PtySize) -> Result<(OwnedFd, OwnedFd), Failure> {
    use rustix::pty::OpenptFlags;
    let size = winsize(size)?;
    let missing = |e: Errno| {
        Failure::new(
            Code::Missing,
            "cannot open a terminal: this sandbox has no /dev/pts",
        )
        .detail(e)
    };
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = rustix::pty::openpt(flags).map_err(missing)?;
    rustix::pty::grantpt(&ours).map_err(missing)?;
    rustix::pty::unlockpt(&ours).map_err(missing)?;
    let theirs = match rustix::pty::ioctl_tiocgptpeer(&ours, flags) {
        Ok(theirs) => theirs,
        Err(_) => {
            let path = rustix::pty::ptsname(&ours, Vec::new()).map_err(missing)?;
            let flags =
                rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
            rustix::fs::open(path, flags, rustix::fs::Mode::empty()).map_err(missing)?
        }
    };
    rustix::termios::tcsetwinsize(&ours, size)
        .map_err(|e| Failure::io("cannot size the terminal", &e.into()))?;
    Ok((ours, theirs))
}

fn winsize(size: PtySize) -> Result<Winsize, Failure> {
    if size.rows == 0 || size.cols == 0 {
        return Err(Failure::invalid(
            "a terminal has at least one row and one column",
        ));
    }
    Ok(Winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    })
}

/// Tells the terminal its new size, and with that what runs in it.
pub(crate) fn resize(terminal: &Channel, size: PtySize) -> Result<(), Failure> {
    rustix::termios::tcsetwinsize(terminal.get_ref(), winsize(size)?)
        .map_err(|e| Failure::io("cannot resize the terminal", &e.into()))
}

pub(crate) fn set_input(job: &Job, input: Input) {
    // Nobody else knows the job yet.
    if let Ok(mut slot) = job.input.try_lock() {
        *slot = Some(input);
    }
}

/// Writes all of it, as fast as the command reads.
pub(crate) async fn write_all(channel: &Channel, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let mut ready = channel.writable().await?;
        let closed = ready.ready().is_write_closed();
        match ready.try_io(|fd| Ok(rustix::io::write(fd, bytes)?)) {
            Ok(Err(e)) if e.kind() == ErrorKind::Interrupted => {}
            Ok(count) => bytes = &bytes[count?..],
            // A terminal that its last user has left takes no more, and is ready for ever.
            Err(_) if closed => return Err(ErrorKind::BrokenPipe.into()),
            Err(_) => {}
        }
    }
    Ok(())
}

/// `POST /jobs/{id}/stdin`: the body goes to the command, and its end is the input's end.
pub(crate) async fn stdin(job: &Arc<Job>, request: Request) -> Answer {
    let query: StdinQuery = http::query(&request)?;
    copy_input(job, request, query).await?;
    http::empty()
}

/// Sends a request's body to the command, as fast as it reads. The end of the body closes a
/// pipe; a body that breaks off does not, so that another can go on. At a terminal several may
/// type: one whose connection hangs keeps nobody out.
async fn copy_input(job: &Job, request: Request, query: StdinQuery) -> Result<(), Failure> {
    let conflict = |what: &str| Failure::new(Code::Conflict, format!("job {} {what}", job.id));
    let Ok(mut slot) = job.input.try_lock() else {
        return Err(conflict("has a writer already"));
    };
    let Some(input) = slot.as_ref() else {
        return Err(conflict("takes no input")
            .hint("start it with stdin `stream`, and write before it has ended"));
    };
    let terminal = match input {
        Input::Terminal(channel) => Some(Arc::clone(channel)),
        Input::Pipe(_) => None,
    };
    if let Some(terminal) = terminal {
        drop(slot);
        return copy(job, &terminal, request).await;
    }
    let result = copy(job, input.channel(), request).await;
    if job.has_ended() || (result.is_ok() && query.end) {
        *slot = None;
    }
    result
}

/// Sends a request's body to the command until the body or the command ends.
async fn copy(job: &Job, channel: &Channel, request: Request) -> Result<(), Failure> {
    let conflict = |what: &str| Failure::new(Code::Conflict, format!("job {} {what}", job.id));
    let copy = async {
        let mut body = request.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| Failure::invalid("the input ended early").detail(e))?;
            if let Ok(bytes) = frame.into_data() {
                write_all(channel, &bytes)
                    .await
                    .map_err(|e| conflict("reads no more input").detail(e))?;
            }
        }
        Ok(())
    };
    tokio::select! {
        result = copy => result,
        () = job.ended() => Err(conflict("has ended")),
    }
}

/// Stops a task when its owner goes away.
struct Abort(tokio::task::AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// `POST /jobs/{id}/attach`: the body goes in, what comes out is the answer's body.
pub(crate) fn attach(job: Arc<Job>, request: Request) -> Answer {
    let query: OutputQuery = http::query(&request)?;
    let writer = Arc::clone(&job);
    let task = tokio::spawn(async move {
        // The end of the answer tells the client all it needs.
        let _ = copy_input(&writer, request, StdinQuery::default()).await;
    });
    let held = Abort(task.abort_handle());
    let output = jobs::raw_output(job, query.stdout, held);
    Ok(http::with_type("application/octet-stream", output))
}
