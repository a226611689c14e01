//! A launcher that serves many: one single-threaded process, asked over a socket pair.
//!
//! A server with threads can't clone itself safely, so it starts this once and asks it for each
//! sandbox. Its end is the end of the sandboxes that are bound to their launcher, and leaves the
//! others running.

use crate::{Jail, LastWords, Launched, Stage, launch};
use serde::{Deserialize, Serialize};
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;

/// Longest description that a launcher reads.
const LONGEST: u32 = 16 << 20;

#[derive(Serialize, Deserialize)]
enum Reply {
    Launched { pid: i32 },
    Failed(LastWords),
}

/// Serves requests from `stream` until it ends.
pub fn serve(mut stream: UnixStream) -> io::Result<()> {
    // Sandboxes that end are reaped by the kernel.
    crate::sys::ignore_children();
    let mut bound: Vec<Launched> = Vec::new();
    while let Some(bytes) = receive(&mut stream)? {
        bound.retain(|launched| !crate::launch::has_ended(&launched.pidfd));
        let reply = match serde_json::from_slice::<Jail>(&bytes) {
            Ok(jail) => match launch(&jail) {
                Ok(launched) => {
                    let pid = launched.pid;
                    bound.extend(launched.lifeline.is_some().then_some(launched));
                    Reply::Launched { pid }
                }
                Err(words) => Reply::Failed(words),
            },
            Err(error) => Reply::Failed(LastWords {
                stage: Stage::Prepare,
                object: format!("bad description: {error}"),
                errno: 0,
            }),
        };
        send(&mut stream, &serde_json::to_vec(&reply)?)?;
    }
    Ok(())
}

/// The asking side; one request at a time.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
}

impl Client {
    pub fn new(stream: UnixStream) -> Self {
        Self { stream }
    }

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
        send(&mut self.stream, &description)?;
        let bytes = receive(&mut self.stream)?
            .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
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

fn receive(stream: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0u8; 4];
    match stream.read_exact(&mut length) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}
