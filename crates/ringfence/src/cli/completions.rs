//! `ringfence completions`: what a shell needs to complete our command line.

use clap::Args;
use clap_complete::Shell;
use ringfence_core::Failure;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  ringfence completions bash > ~/.local/share/bash-completion/completions/ringfence
  ringfence completions zsh > \"${fpath[1]}/_ringfence\"
  ringfence completions fish > ~/.config/fish/completions/ringfence.fish";

/// Prints a completion script for a shell
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Completions {
    /// The shell to complete in
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        // Into memory first: the generator panics on a closed pipe.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut super::command(), "ringfence", &mut script);
        super::pass(&script);
        Ok(ExitCode::SUCCESS)
    }
}
