//! `ringfence tools`: the registry of tools, for those who write agents.

use clap::Args;
use ringfence_core::Failure;
use ringfence_core::tools::{Family, Format};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  ringfence tools                                   names and what they do
  ringfence tools --format openai                   definitions for the OpenAI API
  ringfence tools --family axio --format anthropic";

/// Prints the tools that models can be given
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Tools {
    /// The family of tools: ringfence, axio, haiku, hastekit, anthropic or shipit
    #[arg(long, value_name = "NAME", default_value = "ringfence", value_parser = family)]
    family: Family,

    /// As JSON definitions: mcp, openai or anthropic
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    format: Option<Format>,
}

pub(super) fn family(text: &str) -> Result<Family, String> {
    Family::named(text).ok_or_else(|| {
        let names = Family::ALL.map(Family::name).join(", ");
        format!("there are {names}")
    })
}

fn format(text: &str) -> Result<Format, String> {
    Format::named(text).ok_or_else(|| {
        let names = Format::ALL.map(Format::name).join(", ");
        format!("there are {names}")
    })
}

impl Tools {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        if let Some(format) = self.format {
            super::say_json(&self.family.definitions(format))?;
            return Ok(ExitCode::SUCCESS);
        }
        for tool in self.family.tools() {
            let first = tool
                .about
                .split_inclusive(". ")
                .next()
                .unwrap_or(tool.about);
            super::say(format_args!(
                "\x1b[1m{}\x1b[0m  {}",
                tool.name,
                first.trim_end()
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}
