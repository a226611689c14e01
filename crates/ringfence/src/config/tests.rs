//! What holds for every setting, asked of the whole table.

use super::*;
use clap::Parser as _;
use std::collections::BTreeSet;
use std::path::Path;

/// Texts of which each setting takes at least two.
const TEXTS: [&str; 23] = [
    "20",
    "21",
    "22",
    "40",
    "41",
    "20k",
    "30k",
    "20m",
    "30m",
    "true",
    "false",
    "/a",
    "/b",
    "10.0.0.1:1",
    "unix:/c",
    "keys",
    "off",
    "auto",
    "native",
    "disk",
    "json",
    "text",
    "http://localhost:1/",
];

const MORE: [&str; 17] = [
    "http://h:2/x",
    "debug",
    "warn",
    "data",
    "web",
    "10.0.0.1",
    "::1",
    "1000-2000",
    "python=one",
    "python=two",
    "privileged",
    "devices",
    "pods",
    "agent-sandbox",
    "exec",
    "0.25",
    "0.75",
];

fn load(flags: &[(&Setting, &str)], env: &[(&str, &str)], file: &str) -> Result<Loaded, Failure> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, file).unwrap();
    let words = flags
        .iter()
        .map(|(setting, value)| format!("--{}={value}", setting.flag));
    let words = [format!("--config={}", path.display())]
        .into_iter()
        .chain(words);
    typed(words).load_in(&env.iter().copied().collect())
}

#[derive(clap::Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(flatten)]
    config: ConfigArgs,
}

/// Flags as somebody types them.
fn typed(words: impl IntoIterator<Item = String>) -> ConfigArgs {
    Line::try_parse_from(words).unwrap().config
}

fn setting(key: &str) -> &'static Setting {
    SETTINGS.iter().find(|s| s.key == key).unwrap()
}

fn shown<'a>(loaded: &'a Loaded, setting: &Setting) -> &'a Shown {
    let mut all = loaded.shown.iter();
    all.find(|shown| shown.setting.key == setting.key).unwrap()
}

fn line(setting: &Setting, value: &str) -> String {
    format!("{} = {value}\n", setting.key)
}

/// Two values of a setting: what the environment says, and how that looks in the file.
fn two_values(setting: &Setting) -> [(&'static str, Shown); 2] {
    let mut found: Vec<(&str, Shown)> = Vec::new();
    for text in TEXTS.into_iter().chain(MORE) {
        if let Ok(loaded) = load(&[], &[(&setting.env(), text)], "") {
            let shown = shown(&loaded, setting).clone();
            if found.iter().all(|(_, other)| other.json != shown.json) {
                found.push((text, shown));
            }
        }
    }
    assert!(found.len() >= 2, "{}: {found:?}", setting.key);
    found.truncate(2);
    found.try_into().unwrap()
}

#[test]
fn flags_go_before_the_environment_and_that_before_the_file() {
    for setting in SETTINGS {
        let [(one, one_shown), (two, two_shown)] = two_values(setting);
        let env = setting.env();
        let file = line(setting, &one_shown.toml);
        let check = |loaded: &Loaded, json: &serde_json::Value, source: &str| {
            let shown = shown(loaded, setting);
            assert_eq!(&shown.json, json, "{}", setting.key);
            assert!(
                shown.source.to_string().ends_with(source),
                "{}: {} is not from {source}",
                setting.key,
                shown.source
            );
            assert_eq!(loaded.config.is_set(setting.key), source != "default");
        };
        let flag = format!("--{}", setting.flag);
        let all = load(&[(setting, one)], &[(&env, two)], &file).unwrap();
        check(&all, &one_shown.json, &flag);
        let no_flag = load(&[], &[(&env, two)], &file).unwrap();
        check(&no_flag, &two_shown.json, &env);
        let only_file = load(&[], &[(&env, "")], &file).unwrap();
        check(&only_file, &one_shown.json, "config.toml:1");
        let nothing = load(&[], &[], "").unwrap();
        let default = defaults()
            .into_iter()
            .find(|s| s.setting.key == setting.key);
        check(&nothing, &default.unwrap().json, "default");
    }
}

/// The names and units of the contract, and that ours go before them.
#[test]
fn names_of_the_contract() {
    let mib = 1 << 20;
    let mut seen = BTreeSet::new();
    for (name, text, key, json) in [
        (
            "SANDBOX_SESSION_IDLE_TIMEOUT",
            "60",
            "sessions.idle_timeout",
            60.0.into(),
        ),
        (
            "SANDBOX_SESSION_MAX_LIFETIME",
            "61",
            "sessions.max_lifetime",
            61.0.into(),
        ),
        (
            "SANDBOX_SESSION_GC_INTERVAL",
            "5",
            "sessions.gc_interval",
            5.0.into(),
        ),
        ("SANDBOX_SESSIONS_ROOT", "/srv", "state_dir", "/srv".into()),
        (
            "SANDBOX_RUNNER_MEMORY_MB",
            "100",
            "limits.memory",
            serde_json::json!(100 * mib),
        ),
        (
            "SANDBOX_RUNNER_CPU_SECONDS",
            "7",
            "limits.cpu_seconds",
            7.into(),
        ),
        (
            "SANDBOX_RUNNER_FSIZE_MB",
            "3",
            "limits.file_size",
            serde_json::json!(3 * mib),
        ),
        (
            "SANDBOX_RUNNER_NOFILE",
            "99",
            "limits.open_files",
            99.into(),
        ),
        (
            "SANDBOX_RUNNER_MAX_OUTPUT_BYTES",
            "5000",
            "limits.output",
            5000.into(),
        ),
        (
            "SANDBOX_RUNNER_WALL_CLOCK_SECONDS",
            "9",
            "limits.wall_clock",
            9.0.into(),
        ),
        ("SANDBOX_ENABLED", "true", "hastekit.enabled", true.into()),
        (
            "SANDBOX_DEFAULT_IMAGE",
            "img",
            "hastekit.image",
            "img".into(),
        ),
        ("SKILLS_ROOT", "/srv", "hastekit.skills_root", "/srv".into()),
    ] {
        let setting = setting(key);
        let loaded = load(&[], &[(name, text)], "").unwrap();
        let value = shown(&loaded, setting);
        assert_eq!(value.json, json, "{name}");
        assert_eq!(value.source.to_string(), name);
        let [(ours, ours_shown), _] = two_values(setting);
        let both = load(&[], &[(name, text), (&setting.env(), ours)], "").unwrap();
        assert_eq!(shown(&both, setting).json, ours_shown.json, "{name}");
        // Any text is a path if it starts right, and any word an image.
        let bad = if key == "hastekit.image" { "x y" } else { "x" };
        let failure = load(&[], &[(name, bad)], "").err();
        assert!(failure.unwrap().message.contains(name));
        seen.insert(name);
    }
    let aliases = SETTINGS.iter().filter_map(|s| s.alias.as_ref());
    assert_eq!(
        aliases.map(|alias| alias.name).collect::<BTreeSet<_>>(),
        seen
    );
    let loaded = load(&[], &[("SANDBOX_OTHER", "x")], "").unwrap();
    assert!(loaded.warnings.is_empty(), "not ours to judge");
}

/// What is shown can be read again, from every source.
#[test]
fn values_survive_being_shown() {
    for setting in SETTINGS {
        for (_, value) in two_values(setting) {
            let text = value.text.as_str();
            for loaded in [
                load(&[(setting, text)], &[], "").unwrap(),
                load(&[], &[(&setting.env(), text)], "").unwrap(),
                load(&[], &[], &line(setting, &value.toml)).unwrap(),
            ] {
                assert_eq!(shown(&loaded, setting).json, value.json, "{}", setting.key);
            }
        }
    }
}

#[test]
fn names_are_unique_and_defaults_are_allowed() {
    let flags = SETTINGS.iter().map(|s| s.flag);
    assert_eq!(flags.collect::<BTreeSet<_>>().len(), SETTINGS.len());
    let names = SETTINGS.iter().map(Setting::env);
    assert_eq!(names.collect::<BTreeSet<_>>().len(), SETTINGS.len());
    assert_eq!(defaults().len(), SETTINGS.len());
    for (shown, setting) in defaults().iter().zip(SETTINGS) {
        assert!(std::ptr::eq(shown.setting, setting), "{}", setting.key);
    }
}

/// Each line is a value one step outside of its range, or of another kind.
#[test]
fn values_that_are_refused() {
    let mut said = String::new();
    for (key, value) in [
        ("listen", "8080"),
        ("listen", "unix:relative"),
        ("listen", "example.com:80"),
        ("state_dir", "relative"),
        ("backend", "vm"),
        ("auth", "on"),
        ("keep", "maybe"),
        ("sessions.max", "0"),
        ("sessions.max", "100001"),
        ("sessions.max", "1.5"),
        ("sessions.max_per_key", "0"),
        ("sessions.max_memory", "15m"),
        ("sessions.idle_timeout", "0.5"),
        ("sessions.idle_timeout", "5 weeks"),
        ("sessions.gc_interval", "31"),
        ("limits.memory", "15m"),
        ("limits.memory", "lots"),
        ("limits.cpus", "inf"),
        ("limits.cpus", "0"),
        ("limits.open_files", "31"),
        ("sandbox.env_name", "../x"),
        ("hastekit.address", "localhost"),
        ("hastekit.ports", "0-10"),
        ("hastekit.ports", "20-10"),
        ("hastekit.advertise", "http://host"),
        ("policy.mounts", "/a,b"),
        ("policy.callbacks", "10.0.0.0/33"),
        ("policy.callbacks", "10.0.0"),
        ("policy.callbacks", "ftp://x"),
        ("policy.callbacks", "*"),
        ("http.requests_per_second", "-1"),
        ("http.burst", "0"),
        ("log.level", "loud"),
        ("otlp.endpoint", "http://user:password@host"),
    ] {
        let setting = setting(key);
        let failure = load(&[], &[(&setting.env(), value)], "").err();
        said += &format!("{}\n", failure.unwrap().message);
    }
    insta::assert_snapshot!(said);
}

/// What a person reads who made a mistake in the file.
#[test]
fn files_that_are_refused() {
    let mut said = String::new();
    for file in [
        "lisen = \"127.0.0.1:1\"",
        "\n\n[sessions]\nmax = 3\nidle_timout = 3",
        "[session]\nmax = 3",
        "[limits]\nmax = 3",
        "idle_timeout = 3",
        "max_sessions = 3",
        "[sessions]\nlisten = \"127.0.0.1:1\"",
        "sessions = 3",
        "[limits.memory]\nmax = 1",
        "[[limits]]\nmemory = 1",
        "frobnicate = 1",
        "sessions.max = \"12\"",
        "sessions.max = -1",
        "sessions.max = 1.0",
        "sessions.max = 99999999999999999999",
        "sessions.idle_timeout = 1979-05-27",
        "sessions.idle_timeout = -5",
        "limits.memory = true",
        "keep = \"yes\"",
        "keep = 1",
        "listen = 8080",
        "audit.file = \"relative.log\"",
        "policy.mounts = \"/a\"",
        "policy.mounts = [\"/a\", 3]",
        "keep = true\nkeep = false",
        "keep = ",
        "[sessions\n",
    ] {
        let folder = Path::new("/etc/ringfence/config.toml");
        let failure = file::File::parse(folder, file).and_then(|file| {
            let mut sources = sources::Sources {
                flags: &args::Flags::new(),
                environment: &Environment::default(),
                file: Some(&file),
                shown: Vec::new(),
            };
            Config::fill(&mut sources)
        });
        let failure = failure.err().unwrap();
        said += &format!("{file:?}\n  {}\n", failure.message);
        if let Some(hint) = failure.hint {
            said += &format!("  hint: {hint}\n");
        }
    }
    insta::assert_snapshot!(said);
}

#[test]
fn forms_of_values_in_the_file() {
    let loaded = load(
        &[],
        &[],
        r#"
        listen = "unix:/run/rf.sock"
        policy = { mounts = ["/data", "/out:rw"], callbacks = ["Example.com", "*.a.b", "10.0.0.0/8", "::1", "https://x.y"] }
        [sessions]
        idle_timeout = 1.5
        max_lifetime = "1.5h"
        max = 0x10
        max_memory = 17179869184
        max_per_key = "none"
        [limits]
        memory = "2g"
        cpus = 2
        "#,
    );
    let config = loaded.unwrap().config;
    assert_eq!(config.listen, Listen::Unix("/run/rf.sock".into()));
    assert_eq!(config.sessions.idle_timeout.as_millis(), 1500);
    assert_eq!(config.sessions.max_lifetime.as_secs(), 5400);
    assert_eq!(config.sessions.max, 16);
    assert_eq!(config.sessions.max_memory.unwrap().0, 16 << 30);
    assert_eq!(config.sessions.max_per_key, None);
    assert_eq!(config.limits.memory.0, 2 << 30);
    assert_eq!(config.limits.cpus, 2.0);
    let mounts: Vec<String> = config
        .policy
        .mounts
        .iter()
        .map(value::Value::text)
        .collect();
    assert_eq!(mounts, ["/data:ro", "/out:rw"]);
    let callbacks = config.policy.callbacks.iter().map(value::Value::text);
    let want = [
        "example.com",
        "*.a.b",
        "10.0.0.0/8",
        "::1/128",
        "https://x.y/",
    ];
    assert_eq!(callbacks.collect::<Vec<_>>(), want);
}

#[test]
fn what_a_flag_takes_back() {
    let file = "policy.mounts = [\"/a\"]\nsessions.max_per_key = 3\nkeep = true";
    let flags = [
        (setting("policy.mounts"), "none"),
        (setting("sessions.max_per_key"), "none"),
        (setting("keep"), "false"),
    ];
    let config = load(&flags, &[], file).unwrap().config;
    assert_eq!(config.policy.mounts, []);
    assert_eq!(config.sessions.max_per_key, None);
    assert!(!config.keep);
}

#[test]
fn unknown_names_of_ours_are_told() {
    let env = [
        ("RINGFENCE_SESSION_MAX", "1"),
        ("RINGFENCE_ELSE", "1"),
        ("RINGFENCE_CACHE_DIR", "/x"),
        ("SANDBOX_RUNNER_MEMORY", "1"),
        ("SANDBOX_RUNNER_NOFILE", "64"),
        ("SANDBOX_OF_SOMEBODY_ELSE", "1"),
        ("PATH", "/bin"),
    ];
    let warnings = load(&[], &env, "").unwrap().warnings;
    assert_eq!(
        warnings,
        [
            "the environment variable RINGFENCE_ELSE means nothing",
            "the environment variable RINGFENCE_SESSION_MAX means nothing: did you mean \
             RINGFENCE_SESSIONS_MAX?",
            "the environment variable SANDBOX_RUNNER_MEMORY means nothing: did you mean \
             SANDBOX_RUNNER_MEMORY_MB?",
        ]
    );
}

#[test]
fn a_file_that_is_named_must_be_there() {
    let args = ConfigArgs {
        file: Some("/nonexistent/x.toml".into()),
        ..ConfigArgs::default()
    };
    let failure = args.load_in(&Environment::default()).unwrap_err();
    assert_eq!(
        failure.message,
        "cannot read the settings in /nonexistent/x.toml: no such file or directory"
    );
    let env = [("RINGFENCE_CONFIG", "/nonexistent/y.toml")];
    let failure = ConfigArgs::default()
        .load_in(&env.into_iter().collect())
        .unwrap_err();
    assert!(failure.message.contains("/nonexistent/y.toml"));
}

#[test]
fn forms_of_flags() {
    let config = |words: &[&str]| {
        let words = words.iter().map(|word| (*word).to_owned());
        let loaded = typed(words).load_in(&Environment::default());
        loaded.unwrap().config
    };
    assert_eq!(config(&["--no-auth"]).auth, Auth::Off);
    assert_eq!(config(&["--auth", "keys"]).auth, Auth::Keys);
    assert!(config(&["--keep"]).keep);
    assert!(
        !config(&["--keep", "--keep=false"]).keep,
        "the last one counts"
    );
    assert_eq!(
        config(&["--max-sessions", "1", "--max-sessions", "2"])
            .sessions
            .max,
        2
    );
    let here = std::env::current_dir().unwrap();
    let mounts = config(&["--allow-mount", "a,b:rw", "--allow-mount", "/c"])
        .policy
        .mounts;
    assert_eq!(
        mounts[0].path,
        here.join("a,b"),
        "relative, and its comma is its own"
    );
    assert_eq!(mounts[1].path, Path::new("/c"));
    assert_eq!(
        config(&["--listen", "unix:x"]).listen,
        Listen::Unix(here.join("x"))
    );
    assert_eq!(config(&["--state-dir", "x"]).state_dir, here.join("x"));
}
