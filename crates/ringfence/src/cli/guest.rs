//! `ringfence guest`: the guest that this program carries, as a file, for images.

use crate::embedded;
use clap::Args;
use ringfence_core::Failure;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Writes the guest to a file, for an image that brings it into pods.
#[derive(Args)]
#[command(hide = true)]
pub(crate) struct Guest {
    /// The file, which everybody may execute
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Guest {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        let failed = |e| Failure::io(format!("cannot write {}", self.file.display()), &e);
        let mode = fs::Permissions::from_mode(0o555);
        let new = self.file.with_extension("new");
        fs::write(&new, embedded::bytes())
            .and_then(|()| fs::set_permissions(&new, mode))
            .and_then(|()| fs::rename(&new, &self.file))
            .map_err(failed)?;
        Ok(ExitCode::SUCCESS)
    }
}
