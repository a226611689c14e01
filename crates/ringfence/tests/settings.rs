//! What a person types and sees of settings and keys, with the real program.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// An environment of our own, so that nothing of the machine's is seen.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
        command
            .env_clear()
            .env("RINGFENCE_STATE_DIR", self.path("state"))
            .env("RINGFENCE_CONFIG", self.path("config.toml"))
            .current_dir(self.folder.path())
            .args(args)
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// What is on the screen, whatever folder the test has.
    fn screen(&self, output: &Output) -> String {
        let text = [&output.stdout[..], &output.stderr].concat();
        let folder = self.folder.path().to_str().unwrap();
        let text = String::from_utf8(text).unwrap().replace(folder, "/place");
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        format!(
            "{}\nexit {}\n",
            lines.join("\n"),
            output.status.code().unwrap()
        )
    }
}

fn ok(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_str(&ok(output)).unwrap()
}

#[test]
fn show_says_where_each_value_came_from() {
    let place = Place::new();
    fs::write(
        place.path("config.toml"),
        "listen = \"unix:/run/ringfence.sock\"\n\n[limits]\nmemory = \"2g\"\npids = 64\n",
    )
    .unwrap();
    let settle = |args: &[&str]| {
        let mut command = place.command(args);
        command
            .env("RINGFENCE_LIMITS_PIDS", "128")
            .env("SANDBOX_RUNNER_FSIZE_MB", "10")
            .env("SANDBOX_SOMETHING", "x")
            .env("RINGFENCE_LIMIT_PIDS", "1")
            .env("RINGFENCE_STATE_DIR", "/state");
        command.output().unwrap()
    };
    let flags = [
        "--no-auth",
        "--idle-timeout",
        "5m",
        "--keep",
        "--allow-mount",
        "/data:rw",
    ];
    let shown = settle(&[&["config", "show"], &flags[..]].concat());
    insta::assert_snapshot!("show", place.screen(&shown));
    let shown = json(&settle(
        &[&["config", "show", "--json"], &flags[..]].concat(),
    ));
    let find = |key: &str| {
        let all = shown["settings"].as_array().unwrap();
        all.iter().find(|row| row["key"] == key).unwrap().clone()
    };
    insta::assert_snapshot!(
        "show_json",
        [
            "auth",
            "sessions.idle_timeout",
            "limits.memory",
            "limits.file_size",
            "limits.pids",
            "audit.file"
        ]
        .map(|key| find(key).to_string())
        .join("\n")
        .replace(place.folder.path().to_str().unwrap(), "/place")
    );
    assert_eq!(shown["warnings"].as_array().unwrap().len(), 1);
}

#[test]
fn mistakes_in_settings_get_a_hint() {
    let place = Place::new();
    let mut all = String::new();
    let mut show = |said: &str, output: &Output| {
        all += &format!("$ {said}\n{}\n", place.screen(output));
    };
    show("no file", &place.run(&["config", "show"]));
    for file in [
        "[sesions]\nmax = 1",
        "[sessions]\nmax = \"many\"",
        "max = [1",
    ] {
        fs::write(place.path("config.toml"), file).unwrap();
        show(&format!("{file:?}"), &place.run(&["config", "show"]));
    }
    fs::write(place.path("config.toml"), "").unwrap();
    for args in [
        &["config", "show", "--gc-interval", "1h"][..],
        &["config", "show", "--auth", "keys", "--no-auth"],
        &["config", "show", "--keep=perhaps"],
        &["key", "add", "a b"],
        &["key", "add", "a", "--expires", "0"],
        &["key", "add", "a", "--scope", "all"],
        &["key", "rm", "none"],
    ] {
        show(&args.join(" "), &place.run(args));
    }
    insta::assert_snapshot!("mistakes_in_settings", all);
    assert!(!place.path("state/keys.json").exists());
}

#[test]
fn help_of_settings() {
    let place = Place::new();
    insta::assert_snapshot!(
        "help_config_show",
        ok(&place.run(&["config", "show", "-h"]))
    );
    insta::assert_snapshot!("help_key_add", ok(&place.run(&["key", "add", "--help"])));
    let long = ok(&place.run(&["config", "show", "--help"]));
    assert!(long.contains("--otlp-endpoint <URL>"), "{long}");
}

#[test]
fn the_example_is_a_file_that_works() {
    let place = Place::new();
    fs::write(place.path("config.toml"), "").unwrap();
    let example = ok(&place.run(&["config", "example"]));
    // Where state is depends on who asks.
    let steady = example.lines().filter(|l| !l.starts_with("#state_dir"));
    insta::assert_snapshot!("example", steady.collect::<Vec<_>>().join("\n"));
    fs::write(place.path("config.toml"), example).unwrap();
    ok(&place.run(&["config", "show"]));
}

#[test]
fn keys_are_made_listed_and_removed() {
    let place = Place::new();
    fs::write(place.path("config.toml"), "").unwrap();
    let mut all = place.screen(&place.run(&["key", "ls"]));
    let made = place.run(&["key", "add", "ci"]);
    let key = ok(&made).trim().to_owned();
    assert!(key.starts_with("rf_") && key.len() == 67, "{key}");
    all += &place.screen(&made).replace(&key, "rf_KEY");
    let limits = [
        "key",
        "add",
        "agents",
        "--scope",
        "admin",
        "--max-sessions",
        "20",
        "--max-memory",
        "16g",
        "--rate",
        "2.5",
        "--expires",
        "90d",
        "--json",
    ];
    let made = json(&place.run(&limits));
    assert_eq!(made["scope"], "admin");
    assert_eq!(made["max_memory"], 16u64 << 30);
    assert_eq!(
        made["expires"],
        made["created"].as_u64().unwrap() + 90 * 86_400
    );
    assert!(made["key"].as_str().unwrap().starts_with("rf_"));
    let listed = place.screen(&place.run(&["key", "ls"]));
    let steady = |line: &str| {
        // Whatever the clock does meanwhile.
        let words: Vec<&str> = line
            .split("  ")
            .map(str::trim)
            .filter(|w| !w.is_empty())
            .collect();
        words
            .iter()
            .map(|word| match *word {
                word if word.starts_with("made ") => "made AGO",
                word if word.starts_with("for ") => "for DAYS",
                word => word,
            })
            .collect::<Vec<_>>()
            .join(" | ")
    };
    all += &(listed.lines().map(steady).collect::<Vec<_>>().join("\n") + "\n");
    let entries = json(&place.run(&["key", "ls", "--json"]));
    assert_eq!(entries.as_array().unwrap().len(), 2);
    assert!(!entries.to_string().contains("sha256") && !entries.to_string().contains("\"key\""));
    all += &place.screen(&place.run(&["key", "add", "ci"]));
    all += &place.screen(&place.run(&["key", "rm", "c1"]));
    all += &place.screen(&place.run(&["key", "rm", "ci"]));
    assert_eq!(
        json(&place.run(&["key", "ls", "--json"]))[0]["name"],
        "agents"
    );
    insta::assert_snapshot!("keys", all);
    for file in ["state/keys.json", "state/keys.lock"] {
        assert_eq!(
            fs::metadata(place.path(file)).unwrap().mode() & 0o777,
            0o600
        );
    }
}

/// A server and the maker of its keys must mean the same folder.
#[test]
fn keys_go_where_the_settings_say() {
    let place = Place::new();
    let config = format!("state_dir = {:?}\n", place.path("elsewhere"));
    fs::write(place.path("config.toml"), config).unwrap();
    let mut command = place.command(&["key", "add", "one"]);
    ok(&command.env_remove("RINGFENCE_STATE_DIR").output().unwrap());
    assert!(place.path("elsewhere/keys.json").exists());
    ok(&place.run(&["key", "add", "two", "--state-dir", "flag"]));
    assert!(place.path("flag/keys.json").exists());
    ok(&place.run(&["key", "add", "three"]));
    assert!(place.path("state/keys.json").exists());
}

#[test]
fn programs_that_make_keys_at_once_lose_none() {
    let place = Place::new();
    fs::write(place.path("config.toml"), "").unwrap();
    let makers: Vec<_> = (0..12)
        .map(|n| {
            let mut command = place.command(&["key", "add", &format!("key-{n}")]);
            command
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for maker in makers {
        ok(&maker.wait_with_output().unwrap());
    }
    let keys = json(&place.run(&["key", "ls", "--json"]));
    assert_eq!(keys.as_array().unwrap().len(), 12);
}

#[test]
fn a_spoilt_file_of_keys_is_told() {
    let place = Place::new();
    fs::write(place.path("config.toml"), "").unwrap();
    ok(&place.run(&["key", "add", "one"]));
    fs::write(place.path("state/keys.json"), "{\"keys\": [").unwrap();
    insta::assert_snapshot!("spoilt_keys", place.screen(&place.run(&["key", "ls"])));
    assert!(!place.run(&["key", "add", "two"]).status.success());
}
