//! `ringfence man`: manual pages, made from the command line itself.

use clap::Args;
use ringfence_core::Failure;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  ringfence man | man -l -
  ringfence man --out ~/.local/share/man/man1";

/// Writes the manual: the main page, or with --out a page for each verb
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Man {
    /// A folder for the pages, made if it is not there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Man {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        let command = super::command().disable_help_subcommand(true);
        let Some(folder) = &self.out else {
            let mut page = Vec::new();
            clap_mangen::Man::new(command)
                .render(&mut page)
                .map_err(|e| Failure::io("cannot make the manual", &e))?;
            super::pass(&page);
            return Ok(ExitCode::SUCCESS);
        };
        fs::create_dir_all(folder)
            .map_err(|e| Failure::io(format!("cannot make the folder {}", folder.display()), &e))?;
        clap_mangen::generate_to(command, folder)
            .map_err(|e| Failure::io(format!("cannot write pages to {}", folder.display()), &e))?;
        super::say(format_args!("wrote the manual to {}", folder.display()));
        Ok(ExitCode::SUCCESS)
    }
}
