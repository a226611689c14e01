//! `ringfence languages`: what `run --language` knows, and what of it is here.

use crate::{backends, settings};
use clap::Args;
use comfy_table::{Table, presets};
use ringfence_core::Failure;
use ringfence_core::languages::{LANGUAGES, Language, SEARCH};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use utoipa::ToSchema;

const EXAMPLES: &str = "\
Examples:
  ringfence languages
  ringfence languages --json
  ringfence run --language ruby -c 'puts 1'";

/// How long an engine may take to say which images it has.
const PATIENCE: Duration = Duration::from_secs(3);

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
    /// Whether the engine that answers here has that image; one that it lacks is fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    image_here: Option<bool>,
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
            image_here: None,
            get: missing.then(|| format!("apt-get install {}", language.package)),
        }
    };
    LANGUAGES.iter().map(one).collect()
}

/// Which of these images the engine has; none where none answers soon.
fn images_here(names: BTreeSet<String>) -> BTreeMap<String, bool> {
    let asked = async {
        let docker = backends::docker(settings::state(), backends::IMAGE, None, 0)?;
        let asked = tokio::time::timeout(PATIENCE, docker.images_here(names)).await;
        asked.unwrap_or_else(|_| Ok(BTreeMap::new()))
    };
    super::block_on(asked).unwrap_or_default()
}

impl Languages {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        let mut known = known();
        let here = images_here(
            known
                .iter()
                .map(|language| language.image.clone())
                .collect(),
        );
        for language in &mut known {
            language.image_here = here.get(&language.image).copied();
        }
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
            let image = match language.image_here {
                Some(true) => format!("{} (here)", language.image),
                Some(false) => format!("{} (to be fetched)", language.image),
                None => language.image.clone(),
            };
            table.add_row([language.name, &aliases, &native, &image]);
        }
        super::say(table.trim_fmt());
        Ok(ExitCode::SUCCESS)
    }
}
