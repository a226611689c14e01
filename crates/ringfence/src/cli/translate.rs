//! `ringfence translate`: TypeScript to JavaScript, for the process that started it.

use clap::Args;
use ringfence_core::Failure;
use ringfence_core::languages::translate;
use std::process::ExitCode;

/// Translates the code that it is given on standard input.
#[derive(Args)]
#[command(hide = true)]
pub(crate) struct Translate {}

impl Translate {
    #[allow(clippy::unused_self)]
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        translate::serve(ringfence_jail::confine)
            .map_err(|e| Failure::io("cannot translate", &e))?;
        Ok(ExitCode::SUCCESS)
    }
}
