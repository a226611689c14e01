//! What asks us to end.

use ringfence_core::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    pub(super) fn listen() -> Result<Self, Failure> {
        let on = |kind| signal(kind).map_err(|e| Failure::io("cannot listen for signals", &e));
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    /// The number of the next one.
    pub(super) async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
            _ = self.hangup.recv() => 1,
        }
    }
}
