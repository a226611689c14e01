//! `ringfence languages`: what `run --language` knows, and what of it is here.

use clap::Args;
use comfy_table::{Table, presets};
use ringfence_core::Failure;
use ringfence_core::languages::{LANGUAGES, Language, SEARCH};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use utoipa::ToSchema;

const EXAMPLES: &str = "\
Examples:
  ringfence languages
  ringfence languages --json
  ringfence run --language ruby -c 'puts 1'";

/// Lists the languages that code can be run in, and what of them is here
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Languages {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// A language, and whether it is here.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Known {
    name: &'static str,
    aliases: &'static [&'static str],
    /// It is compiled before it runs.
    compiled: bool,
    /// What a native sandbox runs or compiles it with; absent where that is missing.
    #[schema(value_type = Option<String>)]
    native: Option<PathBuf>,
    /// The image that it runs in, on an engine that has images.
    image: String,
    /// How to get what is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    get: Option<String>,
}

/// All languages, as they are on this host.
pub(crate) fn known() -> Vec<Known> {
    let search = SEARCH.map(Path::new);
    let one = |language: &Language| {
        let native = language.on_host(&search);
        let missing = native.is_none();
        Known {
            name: language.name,
            aliases: language.aliases,
            compiled: language.compile.is_some(),
            native,
            image: language.image.to_owned(),
            get: missing.then(|| format!("apt-get install {}", language.package)),
        }
    };
    LANGUAGES.iter().map(one).collect()
}

impl Languages {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        let known = known();
        if self.json {
            super::say_json(&known)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["LANGUAGE", "ALIASES", "NATIVE", "IMAGE"]);
        for language in &known {
            let native = match (&language.native, &language.get) {
                (Some(path), _) => path.display().to_string(),
                (None, Some(get)) => format!("missing: {get}"),
                (None, None) => "missing".to_owned(),
            };
            let aliases = language.aliases.join(", ");
            table.add_row([language.name, &aliases, &native, &language.image]);
        }
        super::say(table.trim_fmt());
        Ok(ExitCode::SUCCESS)
    }
}
