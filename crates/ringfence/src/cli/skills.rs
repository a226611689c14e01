//! `ringfence skills`: folders of instructions for agents.

use crate::client::{self, ServerArgs};
use crate::config::ConfigArgs;
use crate::http::SkillList;
use clap::{Args, Subcommand};
use comfy_table::{ContentArrangement, Table, presets};
use ringfence_core::skills::{self, Skill};
use ringfence_core::{Code, Failure};
use serde_json::Value;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// The skill of Ringfence itself.
const OWN: &str = "ringfence";
const OWN_TEXT: &str = include_str!("../../../../skills/ringfence/SKILL.md");

const EXAMPLES: &str = "\
Examples:
  ringfence skills ls ./skills                what is in a folder
  ringfence skills ls --session work          what a sandbox was given
  ringfence skills ls ./skills --prompt       the text that tells a model of them
  ringfence skills show pdf ./skills          the SKILL.md of one
  ringfence skills show ringfence             teaches an agent to use the sandbox well
  ringfence new work --skills ./skills        gives them to a sandbox

A skill is a folder with a SKILL.md, which says what it is called and when to use it:

  ---
  name: pdf
  description: How to read and fill in PDF files. Use it when a task is about a PDF.
  ---

In a sandbox it is at /sandbox/skills/NAME, where NAME is that of its folder, and can't be changed.";

/// Lists and shows skills: folders of instructions for agents
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Skills {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Lists skills
    Ls(Ls),
    /// Prints the instructions of a skill
    Show(Show),
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
struct Ls {
    /// Folders that are skills or have skills in them; those of the settings when absent
    #[arg(value_name = "FOLDER", conflicts_with = "session")]
    folders: Vec<PathBuf>,

    /// The sandbox whose skills are listed
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,

    /// Prints the text that tells a model of them
    #[arg(long, conflicts_with = "json")]
    prompt: bool,

    /// Prints JSON, for programs
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
struct Show {
    /// The skill, by the name of its folder
    #[arg(value_name = "NAME")]
    name: String,

    /// Folders that are skills or have skills in them; those of the settings when absent
    #[arg(value_name = "FOLDER")]
    folders: Vec<PathBuf>,

    /// Prints JSON, for programs
    #[arg(long)]
    json: bool,
}

impl Skills {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        match self.action {
            Action::Ls(ls) => ls.main()?,
            Action::Show(show) => show.main()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Those in these folders, or in those that the settings name.
fn found(folders: Vec<PathBuf>) -> Result<Vec<Skill>, Failure> {
    let folders = match folders.is_empty() {
        true => ConfigArgs::default().load()?.config.sandbox.skills,
        false => folders,
    };
    skills::of_folders(&folders)
}

impl Ls {
    fn main(self) -> Result<(), Failure> {
        let list: Value = match &self.session {
            Some(session) => {
                let path = format!("{}/skills", client::session(session));
                self.server.with(async |client| client.get(&path).await)?
            }
            None => serde_json::to_value(SkillList::of(&found(self.folders)?))
                .map_err(|e| Failure::new(Code::Internal, "cannot write the skills").detail(e))?,
        };
        if self.json {
            return super::say_json(&list);
        }
        if self.prompt {
            super::pass(list["prompt"].as_str().unwrap_or_default().as_bytes());
            return Ok(());
        }
        let rows = list["skills"].as_array().map_or(&[][..], Vec::as_slice);
        if rows.is_empty() {
            let _ = writeln!(
                anstream::stderr().lock(),
                "there are no skills here; `ringfence skills ls FOLDER` looks elsewhere"
            );
            return Ok(());
        }
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_header(["SKILL", "DESCRIPTION"]);
        for row in rows {
            table.add_row(["name", "description"].map(|part| shown(&row[part])));
        }
        super::say(table.trim_fmt());
        Ok(())
    }
}

/// Somebody else's words, for a terminal.
fn shown(text: &Value) -> String {
    let text = text.as_str().unwrap_or_default();
    text.replace(|c: char| c.is_control(), " ")
}

impl Show {
    fn main(self) -> Result<(), Failure> {
        let asked = !self.folders.is_empty();
        let skills = found(self.folders)?;
        let one = skills.iter().find(|skill| skill.name == self.name);
        let text = match one {
            Some(skill) => skill.text()?,
            None if self.name == OWN && !asked => OWN_TEXT.to_owned(),
            None => {
                let mut names: Vec<&str> = skills.iter().map(|skill| &*skill.name).collect();
                if !asked {
                    names.push(OWN);
                }
                let message = format!("there is no skill {}", self.name);
                let hint = format!("there are {}", names.join(", "));
                return Err(Failure::new(Code::NotFound, message).hint(hint));
            }
        };
        if self.json {
            let name = &self.name;
            return super::say_json(&serde_json::json!({"name": name, "text": text}));
        }
        super::pass(text.as_bytes());
        Ok(())
    }
}
