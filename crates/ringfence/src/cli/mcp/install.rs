//! `ringfence mcp install`: writes the configuration of desktop and editor clients. What is there
//! stays, and a copy of the file is kept beside it.

use crate::settings;
use clap::Args;
use ringfence_core::{Code, Failure};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  ringfence mcp install claude-desktop
  ringfence mcp install cursor vscode --dry-run
  ringfence mcp install --all                      every client whose settings are here
  ringfence mcp install cursor --url https://sandboxes.example --name sandbox";

/// Adds Ringfence to desktop and editor clients
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Install {
    /// claude-desktop, claude-code, cursor, vscode, windsurf, zed, gemini or codex
    #[arg(value_name = "CLIENT", value_parser = client, required_unless_present = "all")]
    clients: Vec<&'static Client>,

    /// Every client whose folder of settings is there
    #[arg(long, conflicts_with = "clients")]
    all: bool,

    /// What the client calls it
    #[arg(long, value_name = "NAME", default_value = "ringfence", value_parser = name)]
    name: String,

    /// A server of yours in place of this program: its address, without /mcp
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// Arguments for `ringfence mcp`, such as --session=work
    #[arg(
        long = "arg",
        value_name = "ARG",
        allow_hyphen_values = true,
        conflicts_with = "url"
    )]
    arguments: Vec<String>,

    /// Shows what would be written, and writes nothing
    #[arg(long)]
    dry_run: bool,

    /// Prints JSON, for programs
    #[arg(long)]
    json: bool,
}

/// A client: where its settings are, and how an entry looks there.
#[derive(Debug)]
struct Client {
    name: &'static str,
    /// Below the home folder, or below that of configurations.
    place: Place,
    /// The key of the object that has an entry for each server.
    servers: &'static str,
    shape: Shape,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Home(&'static str),
    Config(&'static str),
}

#[derive(Debug, Clone, Copy)]
enum Shape {
    /// `command` and `args`, and nothing but commands: a server is reached by one of ours.
    Command,
    /// `command` and `args`; a server is a `url`.
    Plain,
    /// The same with a `type`.
    Typed,
    /// A server is a `serverUrl`.
    ServerUrl,
    /// A server is an `httpUrl`.
    HttpUrl,
    /// With `source` beside.
    Zed,
    /// TOML, with a table for each server.
    Toml,
}

static CLIENTS: &[Client] = &[
    Client {
        name: "claude-desktop",
        place: Place::Config("Claude/claude_desktop_config.json"),
        servers: "mcpServers",
        shape: Shape::Command,
    },
    Client {
        name: "claude-code",
        place: Place::Home(".claude.json"),
        servers: "mcpServers",
        shape: Shape::Typed,
    },
    Client {
        name: "cursor",
        place: Place::Home(".cursor/mcp.json"),
        servers: "mcpServers",
        shape: Shape::Plain,
    },
    Client {
        name: "vscode",
        place: Place::Config("Code/User/mcp.json"),
        servers: "servers",
        shape: Shape::Typed,
    },
    Client {
        name: "windsurf",
        place: Place::Home(".codeium/windsurf/mcp_config.json"),
        servers: "mcpServers",
        shape: Shape::ServerUrl,
    },
    Client {
        name: "zed",
        place: Place::Config("zed/settings.json"),
        servers: "context_servers",
        shape: Shape::Zed,
    },
    Client {
        name: "gemini",
        place: Place::Home(".gemini/settings.json"),
        servers: "mcpServers",
        shape: Shape::HttpUrl,
    },
    Client {
        name: "codex",
        place: Place::Home(".codex/config.toml"),
        servers: "mcp_servers",
        shape: Shape::Toml,
    },
];

fn client(text: &str) -> Result<&'static Client, String> {
    CLIENTS
        .iter()
        .find(|client| client.name == text)
        .ok_or_else(|| {
            let names: Vec<_> = CLIENTS.iter().map(|client| client.name).collect();
            format!("there are {}", names.join(", "))
        })
}

fn name(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match !text.is_empty() && text.len() <= 64 && text.chars().all(good) {
        true => Ok(text.to_owned()),
        false => Err("a name has 1 to 64 letters, digits, - and _".to_owned()),
    }
}

/// How a client reaches Ringfence.
enum Way {
    Command {
        program: String,
        arguments: Vec<String>,
    },
    Server {
        /// This program, for clients that know no servers.
        program: String,
        url: String,
        key: Option<String>,
    },
}

impl Client {
    fn file(&self) -> PathBuf {
        let (home, config) = settings::home_and_config();
        match self.place {
            Place::Home(path) => home.join(path),
            Place::Config(path) => config.join(path),
        }
    }

    fn entry(&self, way: &Way) -> Value {
        match way {
            Way::Command { program, arguments } => {
                let entry = json!({"command": program, "args": arguments});
                match self.shape {
                    Shape::Typed => with(entry, "type", "stdio"),
                    Shape::Zed => with(entry, "source", "custom"),
                    _ => entry,
                }
            }
            Way::Server { program, url, key } if matches!(self.shape, Shape::Command) => {
                let mut entry = json!({"command": program, "args": ["mcp", "--url", url]});
                if let Some(key) = key {
                    entry["env"] = json!({"RINGFENCE_API_KEY": key});
                }
                entry
            }
            Way::Server { url, key, .. } => {
                let url = match key {
                    Some(_) => format!("{url}/mcp"),
                    // Without a key nothing else tells one client from the other.
                    None => format!("{url}/mcp?session={}", self.name),
                };
                let mut entry = match self.shape {
                    Shape::Typed => json!({"type": "http", "url": url}),
                    Shape::ServerUrl => json!({"serverUrl": url}),
                    Shape::HttpUrl => json!({"httpUrl": url}),
                    Shape::Zed => json!({"source": "custom", "url": url}),
                    Shape::Plain | Shape::Toml | Shape::Command => json!({"url": url}),
                };
                if let Some(key) = key {
                    let headers = match self.shape {
                        Shape::Toml => "http_headers",
                        _ => "headers",
                    };
                    entry[headers] = json!({"Authorization": format!("Bearer {key}")});
                }
                entry
            }
        }
    }

    /// The file as it will be.
    fn written(&self, before: Option<&str>, name: &str, way: &Way) -> Result<String, Failure> {
        let path = self.file();
        let odd = |why: &dyn std::fmt::Display| {
            let message = format!("cannot change {}: {why}", path.display());
            Failure::new(Code::Conflict, message)
                .hint("mend it, or add what `--dry-run` shows for another client by hand")
        };
        let text = before.unwrap_or("");
        if let Shape::Toml = self.shape {
            let mut all: toml::Table = text.parse().map_err(|e| odd(&e))?;
            let servers = all
                .entry(self.servers)
                .or_insert_with(|| toml::Table::new().into());
            let servers = servers
                .as_table_mut()
                .ok_or_else(|| odd(&format!("{} is no table", self.servers)))?;
            let entry = toml::Table::try_from(self.entry(way)).map_err(|e| odd(&e))?;
            servers.insert(name.to_owned(), entry.into());
            return toml::to_string_pretty(&all).map_err(|e| odd(&e));
        }
        let mut all: Map<String, Value> = match text.trim().is_empty() {
            true => Map::new(),
            false => serde_json::from_str(text).map_err(|e| odd(&e))?,
        };
        let servers = all.entry(self.servers).or_insert_with(|| json!({}));
        let servers = servers
            .as_object_mut()
            .ok_or_else(|| odd(&format!("{} is no object", self.servers)))?;
        servers.insert(name.to_owned(), self.entry(way));
        let text = serde_json::to_string_pretty(&all).map_err(|e| odd(&e))?;
        Ok(text + "\n")
    }
}

fn with(mut entry: Value, key: &str, value: &str) -> Value {
    entry[key] = json!(value);
    entry
}

/// What was done for one client.
#[derive(Serialize)]
struct Done {
    client: &'static str,
    file: PathBuf,
    /// The copy of what was there.
    #[serde(skip_serializing_if = "Option::is_none")]
    backup: Option<PathBuf>,
    changed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

impl Install {
    pub(super) fn main(self) -> Result<ExitCode, Failure> {
        let way = self.way()?;
        let clients: Vec<&'static Client> = match self.all {
            true => CLIENTS.iter().filter(|client| is_here(client)).collect(),
            false => self.clients.clone(),
        };
        if clients.is_empty() {
            let message = "there are no settings of a client that is known";
            let hint = "name the client, such as `ringfence mcp install claude-desktop`";
            return Err(Failure::new(Code::NotFound, message).hint(hint));
        }
        let mut all = Vec::new();
        for client in clients {
            all.push(self.install(client, &way)?);
        }
        if self.json {
            crate::cli::say_json(&all)?;
            return Ok(ExitCode::SUCCESS);
        }
        for done in &all {
            let file = done.file.display();
            match (&done.text, done.changed) {
                (Some(text), _) => crate::cli::say(format_args!("{file} would be:\n{text}")),
                (None, false) => {
                    crate::cli::say(format_args!("{}: {file} is as it should be", done.client))
                }
                (None, true) => {
                    crate::cli::say(format_args!(
                        "{}: wrote {file}; start the client anew",
                        done.client
                    ));
                }
            }
            if let Some(backup) = &done.backup {
                crate::cli::say(format_args!("  what was there is in {}", backup.display()));
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn way(&self) -> Result<Way, Failure> {
        let program = crate::cli::this_program()?.to_string_lossy().into_owned();
        if let Some(url) = &self.url {
            crate::client::check_address(url)?;
            return Ok(Way::Server {
                program,
                url: url.trim_end_matches('/').to_owned(),
                key: settings::api_key(),
            });
        }
        let mut arguments = vec!["mcp".to_owned()];
        arguments.extend(self.arguments.iter().cloned());
        Ok(Way::Command { program, arguments })
    }

    fn install(&self, client: &'static Client, way: &Way) -> Result<Done, Failure> {
        let path = client.file();
        let failed =
            |e: &std::io::Error| Failure::io(format!("cannot write {}", path.display()), e);
        let before = match fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(Failure::io(format!("cannot read {}", path.display()), &e)),
        };
        let text = client.written(before.as_deref(), &self.name, way)?;
        let mut done = Done {
            client: client.name,
            changed: before.as_deref() != Some(&text),
            backup: None,
            text: None,
            file: path.clone(),
        };
        if self.dry_run {
            done.text = Some(text);
            return Ok(done);
        }
        if !done.changed {
            return Ok(done);
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|e| failed(&e))?;
        }
        if before.is_some() {
            let backup = beside(&path, "before-ringfence");
            fs::copy(&path, &backup).map_err(|e| failed(&e))?;
            done.backup = Some(backup);
        }
        write_whole(&path, &text).map_err(|e| failed(&e))?;
        Ok(done)
    }
}

/// Whether somebody uses this client here.
fn is_here(client: &Client) -> bool {
    let file = client.file();
    let (home, config) = settings::home_and_config();
    let folder = file.parent();
    file.exists()
        || folder.is_some_and(|folder| folder != home && folder != config && folder.exists())
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(ending);
    path.with_file_name(name)
}

/// Writes a file in one step, with the rights that it had; it may hold a key.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    // A link is followed: some keep their settings elsewhere.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let new = beside(&path, "new");
    let _ = fs::remove_file(&new);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(text.as_bytes())?;
    if let Ok(there) = fs::metadata(&path) {
        file.set_permissions(there.permissions())?;
    }
    fs::rename(&new, &path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Way {
        Way::Command {
            program: "/usr/bin/ringfence".to_owned(),
            arguments: vec!["mcp".to_owned()],
        }
    }

    #[test]
    fn what_is_there_stays() {
        let desktop = client("claude-desktop").unwrap();
        let before = r#"{"theme": "dark", "mcpServers": {"other": {"command": "x"}}}"#;
        let text = desktop
            .written(Some(before), "ringfence", &command())
            .unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            value,
            json!({"theme": "dark", "mcpServers": {"other": {"command": "x"},
                "ringfence": {"command": "/usr/bin/ringfence", "args": ["mcp"]}}})
        );
        // Again is no change.
        assert_eq!(
            desktop
                .written(Some(&text), "ringfence", &command())
                .unwrap(),
            text
        );
        // Comments and the like would be lost, so the file is left alone.
        assert!(
            desktop
                .written(Some("{ // mine\n}"), "ringfence", &command())
                .is_err()
        );
        assert!(
            desktop
                .written(Some("[]"), "ringfence", &command())
                .is_err()
        );
        assert!(
            desktop
                .written(Some(r#"{"mcpServers": 1}"#), "r", &command())
                .is_err()
        );
    }

    #[test]
    fn every_client_has_its_shape() {
        let server = |key: Option<&str>| Way::Server {
            program: "/usr/bin/ringfence".to_owned(),
            url: "https://x".to_owned(),
            key: key.map(str::to_owned),
        };
        let open = server(None);
        let server = server(Some("k"));
        let headers = json!({"Authorization": "Bearer k"});
        for (name, local, remote) in [
            (
                "claude-desktop",
                json!({}),
                json!({"command": "/usr/bin/ringfence", "args": ["mcp", "--url", "https://x"],
                    "env": {"RINGFENCE_API_KEY": "k"}}),
            ),
            (
                "cursor",
                json!({}),
                json!({"url": "https://x/mcp", "headers": headers}),
            ),
            (
                "claude-code",
                json!({"type": "stdio"}),
                json!({"type": "http", "url": "https://x/mcp", "headers": headers}),
            ),
            (
                "vscode",
                json!({"type": "stdio"}),
                json!({"type": "http", "url": "https://x/mcp", "headers": headers}),
            ),
            (
                "windsurf",
                json!({}),
                json!({"serverUrl": "https://x/mcp", "headers": headers}),
            ),
            (
                "zed",
                json!({"source": "custom"}),
                json!({"source": "custom", "url": "https://x/mcp", "headers": headers}),
            ),
            (
                "gemini",
                json!({}),
                json!({"httpUrl": "https://x/mcp", "headers": headers}),
            ),
        ] {
            let client = client(name).unwrap();
            let mut expected = json!({"command": "/usr/bin/ringfence", "args": ["mcp"]});
            for (key, value) in local.as_object().unwrap() {
                expected[key] = value.clone();
            }
            assert_eq!(client.entry(&command()), expected, "{name}");
            assert_eq!(client.entry(&server), remote, "{name}");
        }
        // Two that have no key have two sandboxes.
        for name in ["cursor", "gemini"] {
            let entry = client(name).unwrap().entry(&open).to_string();
            let address = format!("\"https://x/mcp?session={name}\"");
            assert!(entry.contains(&address), "{entry}");
        }
        let codex = client("codex").unwrap();
        let text = codex
            .written(Some("model = \"m\"\n"), "ringfence", &server)
            .unwrap();
        let value: toml::Table = text.parse().unwrap();
        assert_eq!(value["model"].as_str(), Some("m"));
        let entry = &value["mcp_servers"]["ringfence"];
        assert_eq!(entry["url"].as_str(), Some("https://x/mcp"));
        assert_eq!(
            entry["http_headers"]["Authorization"].as_str(),
            Some("Bearer k")
        );
    }
}
