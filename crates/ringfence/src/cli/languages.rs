//! `ringfence languages`: what `run --language` knows, and what of it is here.

use crate::{backends, settings};
use clap::Args;
use comfy_table::{Table, presets};
use ringfence_core::languages::{LANGUAGES, Language, SEARCH};
use ringfence_core::{Code, Failure};
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

/// All languages, as they are on this host; `images` are those in place of the usual ones.
pub(crate) fn known(images: &BTreeMap<String, String>) -> Vec<Known> {
    let search = SEARCH.map(Path::new);
    // Sandboxes get the interpreter of the search path, wherever it lies.
    let interpreter = settings::search().find().map(|found| found.executable);
    let one = |language: &Language| {
        let own = interpreter.clone().filter(|_| language.name == "python");
        let native = own.or_else(|| language.on_host(&search));
        let missing = native.is_none();
        Known {
            name: language.name,
            aliases: language.aliases,
            compiled: language.compile.is_some(),
            native,
            image: images
                .get(language.name)
                .map_or(language.image, String::as_str)
                .to_owned(),
            image_here: None,
            get: missing.then(|| format!("apt-get install {}", language.package)),
        }
    };
    LANGUAGES.iter().map(one).collect()
}

/// Which of these images the engine has, if one answers soon.
fn images_here(names: BTreeSet<String>) -> Result<BTreeMap<String, bool>, Failure> {
    super::block_on(async {
        let docker = backends::docker(settings::state(), backends::IMAGE, None, 0)?;
        let asked = tokio::time::timeout(PATIENCE, docker.images_here(names)).await;
        let late = |_| Failure::new(Code::Unavailable, "the Docker engine does not answer");
        asked.map_err(late)?
    })
}

impl Languages {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        let mut known = known(&BTreeMap::new());
        let asked = images_here(
            known
                .iter()
                .map(|language| language.image.clone())
                .collect(),
        );
        let (here, without) = match asked {
            Ok(here) => (here, None),
            Err(failure) => (BTreeMap::new(), Some(failure)),
        };
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
        if let Some(failure) = without {
            let hint = failure.hint.iter().map(|hint| format!("; {hint}"));
            let hint: String = hint.collect();
            super::say(format!("\nImages can't be used now: {failure}{hint}"));
        }
        Ok(ExitCode::SUCCESS)
    }
}
