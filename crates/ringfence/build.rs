//! Builds the static guest with the same cargo and embeds it, so that one file is a complete
//! installation. `RINGFENCE_GUEST` names a guest that was built before, and skips that.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "cargo speaks to build scripts through both"
)]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=RINGFENCE_GUEST");
    for path in ["guest", "jail", "launcher", "proto"] {
        println!("cargo::rerun-if-changed=../{path}");
    }
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    let guest = match env::var_os("RINGFENCE_GUEST") {
        Some(path) => PathBuf::from(path),
        None => build(),
    };
    assert!(
        guest.is_file(),
        "the guest was not built: {}",
        guest.display()
    );
    println!("cargo::rustc-env=RINGFENCE_GUEST_FILE={}", guest.display());
    println!(
        "cargo::rustc-env=RINGFENCE_GUEST_HASH={:016x}",
        hash(&guest)
    );
}

fn build() -> PathBuf {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("OUT_DIR"));
    let target = env::var("TARGET").expect("TARGET");
    // Read now: a script that was built before the folder was moved would build another guest.
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("CARGO_MANIFEST_DIR"));
    let debug = env::var("PROFILE").is_ok_and(|p| p == "debug");
    let profile = if debug { "guest-dev" } else { "guest" };
    // A target folder of its own: the outer cargo holds the lock of the usual one. It lies beside
    // the build folders, so that it is not built anew for every change of features.
    let folder = out.ancestors().nth(3).unwrap_or(&out).join("guest");
    let mut command = Command::new(env::var_os("CARGO").expect("CARGO"));
    command
        .args(["build", "--locked", "--package", "ringfence-launcher"])
        .args(["--profile", profile, "--target", &target])
        .arg("--target-dir")
        .arg(&folder)
        .current_dir(here.join("../.."));
    // What the outer build was told does not hold for a static program.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_CFG_")
            || text.starts_with("CARGO_FEATURE_")
            || text.starts_with("CARGO_PROFILE_")
            || text == "CARGO_ENCODED_RUSTFLAGS"
            || text == "RUSTC_WRAPPER"
            || text == "RUSTC_WORKSPACE_WRAPPER"
            || text == "CARGO_BUILD_TARGET"
        {
            command.env_remove(&name);
        }
    }
    // At a fixed address: relocating itself took a static guest 0.4 ms of each start, and made its
    // pages private. Code inside has the same rights as the guest, so it gains nothing from that.
    command.env(
        "RUSTFLAGS",
        "-C target-feature=+crt-static -C relocation-model=static",
    );
    let status = command.status().expect("run cargo for the guest");
    assert!(status.success(), "building the guest failed");
    folder
        .join(&target)
        .join(profile)
        .join("ringfence-launcher")
}

/// FNV-1a: names the file that the guest is unpacked to; it is no protection.
fn hash(path: &Path) -> u64 {
    let bytes = std::fs::read(path).expect("read the guest");
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
