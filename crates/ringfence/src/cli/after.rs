//! What is done after this process, however it ends.

use ringfence_core::Failure;
use ringfence_jail::{Janitor, Parting, janitor};

/// Does `work` when this process has ended without having dismissed the answer, be it by SIGKILL.
/// Only for a process with one thread.
pub(super) fn after_this<W>(work: impl FnOnce() -> W) -> Result<Janitor, Failure>
where
    W: Future<Output = Result<(), Failure>>,
{
    let started = janitor(|gone| {
        if gone.wait() == Parting::Silent {
            // There is nobody to tell.
            let _ = super::block_on(work());
        }
    });
    started.map_err(|e| Failure::io("cannot start a janitor", &e))
}
