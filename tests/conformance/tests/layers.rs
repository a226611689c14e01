//! Who may name whom, and where unsafe code lives.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The crates of ours that a manifest names, tests aside.
fn named_by(krate: &str) -> BTreeSet<String> {
    let path = root().join("crates").join(krate).join("Cargo.toml");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let manifest: toml::Table = text.parse().expect("a manifest");
    ["dependencies", "build-dependencies"]
        .iter()
        .filter_map(|section| manifest.get(*section)?.as_table())
        .flat_map(|table| table.keys())
        .filter_map(|name| name.strip_prefix("ringfence-").map(str::to_owned))
        .collect()
}

#[test]
fn crates_name_only_what_lies_below_them() {
    let allowed: [(&str, &[&str]); 6] = [
        ("proto", &[]),
        ("jail", &[]),
        ("guest", &["proto"]),
        ("launcher", &["guest", "jail"]),
        ("core", &["jail", "proto"]),
        ("ringfence", &["core", "jail"]),
    ];
    for (krate, names) in allowed {
        let names: BTreeSet<String> = names.iter().map(|n| (*n).to_owned()).collect();
        assert_eq!(named_by(krate), names, "{krate}");
    }
    let known: BTreeSet<String> = allowed
        .iter()
        .map(|(krate, _)| (*krate).to_owned())
        .collect();
    let there: BTreeSet<String> = fs::read_dir(root().join("crates"))
        .expect("crates")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    assert_eq!(there, known, "a new crate needs a row here");
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn unsafe_code_is_allowed_in_two_files() {
    let mut found = Vec::new();
    sources(&root().join("crates"), &mut found);
    let allowed: BTreeSet<String> = found
        .iter()
        .filter(|path| {
            fs::read_to_string(path)
                .expect("a source")
                .contains("allow(unsafe_code)")
        })
        .map(|path| {
            path.strip_prefix(root())
                .expect("below the root")
                .display()
                .to_string()
        })
        .collect();
    let two = ["crates/guest/src/spawn.rs", "crates/jail/src/sys.rs"];
    assert_eq!(allowed, two.map(str::to_owned).into());
}
