//! The caller's terminal, joined to one inside a sandbox.

use super::output::pass_on;
use crate::settings;
use bytes::Bytes;
use http_body_util::{BodyExt as _, StreamBody};
use ringfence_core::proto::{ExecRequest, JobEnd, JobInfo, JobState, OutputQuery, PtySize};
use ringfence_core::{Code, Failure, GuestClient, guest};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, Read as _};
use tokio::signal::unix::{SignalKind, signal};

/// Bytes that the guest keeps of what the terminal showed, for a reader that is late.
const KEPT: u64 = 64 << 10;

/// Starts a command on a terminal inside and joins ours to it until the command ends.
pub(crate) async fn join(guest: &GuestClient, mut request: ExecRequest) -> Result<JobEnd, Failure> {
    request.pty = Some(size());
    request.output_limit = Some(KEPT);
    if let Some(kind) = settings::terminal() {
        request.env.insert("TERM".to_owned(), kind);
    }
    let mut resized = signal(SignalKind::window_change())
        .map_err(|e| Failure::io("cannot listen for signals", &e))?;
    let job: JobInfo = guest.start(&request).await?;
    let path = |verb: &str| format!("/jobs/{}/{verb}", job.id);
    let raw = Raw::enter()?;
    let attach = guest::with_query(&path("attach"), &OutputQuery::default())?;
    let answer = guest.stream(http::Method::POST, &attach, standard_input());
    let mut output = answer.await?.into_body();
    let mut stdout = tokio::io::stdout();
    loop {
        tokio::select! {
            frame = output.frame() => match frame {
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        // A terminal that is gone takes no output; what runs in it is told by its own.
                        let _ = pass_on(&mut stdout, &bytes).await;
                    }
                }
                Some(Err(error)) => {
                    let message = "the terminal of the sandbox went away";
                    return Err(Failure::new(Code::Unavailable, message).detail(error));
                }
                None => break,
            },
            Some(()) = resized.recv() => {
                // The command may have ended since; its end is what comes next then.
                let _ = guest.tell(http::Method::POST, &path("resize"), &size()).await;
            }
        }
    }
    drop(raw);
    let job: JobInfo = guest.get(&path("wait"), &()).await?;
    match job.state {
        JobState::Ended(end) => Ok(*end),
        JobState::Running => Err(Failure::new(
            Code::Internal,
            "the terminal has closed before its command",
        )),
    }
}

/// The size of our terminal; some say that they have no rows.
pub(crate) fn size() -> PtySize {
    match tcgetwinsize(rustix::stdio::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => PtySize {
            rows: size.ws_row,
            cols: size.ws_col,
        },
        _ => PtySize { rows: 24, cols: 80 },
    }
}

/// Our terminal handing on every key as it is; put back when dropped, however that comes about.
pub(crate) struct Raw {
    before: Termios,
}

impl Raw {
    pub(crate) fn enter() -> Result<Self, Failure> {
        let failed =
            |e: rustix::io::Errno| Failure::io("cannot switch the terminal to raw mode", &e.into());
        let stdin = rustix::stdio::stdin();
        let before = tcgetattr(stdin).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin, OptionalActions::Now, &raw).map_err(failed)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}

/// What is typed, read by a thread.
pub(crate) fn keys() -> tokio::sync::mpsc::Receiver<Bytes> {
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    let mut read = read_input();
    tokio::spawn(async move {
        while let Some(Ok(bytes)) = read.recv().await {
            if sender.send(bytes).await.is_err() {
                return;
            }
        }
    });
    receiver
}

fn read_input() -> tokio::sync::mpsc::Receiver<io::Result<Bytes>> {
    let (sender, receiver) = tokio::sync::mpsc::channel::<io::Result<Bytes>>(4);
    std::thread::spawn(move || {
        let mut buffer = vec![0u8; 64 << 10];
        let mut stdin = io::stdin().lock();
        loop {
            let read = match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => Ok(Bytes::copy_from_slice(&buffer[..read])),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => Err(e),
            };
            if sender.blocking_send(read).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Standard input as a body, read by a thread.
pub(crate) fn standard_input() -> guest::Body {
    let stream = futures_util::stream::unfold(read_input(), |mut receiver| async {
        let item = receiver.recv().await?;
        Some((item.map(hyper::body::Frame::data), receiver))
    });
    StreamBody::new(stream).boxed_unsync()
}
