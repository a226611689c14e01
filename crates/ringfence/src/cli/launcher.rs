//! `ringfence launcher`: makes native sandboxes for a host that has threads.

use clap::Args;
use ringfence_core::Failure;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

/// Makes sandboxes for the process that started it, asked on standard input.
#[derive(Args)]
#[command(hide = true)]
pub(crate) struct Launcher {}

impl Launcher {
    #[allow(clippy::unused_self)]
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        let socket = std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| Failure::io("cannot use standard input", &e))?;
        ringfence_jail::serve(UnixStream::from(socket))
            .map_err(|e| Failure::io("cannot serve as a launcher", &e))?;
        Ok(ExitCode::SUCCESS)
    }
}
