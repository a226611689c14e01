//! A workspace on disk with a size limit: an ext4 file system in a sparse file.

use crate::size::Size;
use ringfence_proto::{Code, Failure};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const IMAGE: &str = "workspace.img";

/// How the size of a private workspace is limited here.
pub(super) fn means() -> &'static str {
    if can_loop() {
        "a file system in memory, or a loop image on disk"
    } else {
        "a file system in memory"
    }
}

/// Loop devices are root's.
pub(super) fn can_loop() -> bool {
    rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists()
}

pub(super) fn image(folder: &Path) -> std::path::PathBuf {
    folder.join(IMAGE)
}

/// Makes the image unless it is there from before a suspension.
pub(super) fn make_image(folder: &Path, size: Size, uid: u32, gid: u32) -> Result<(), Failure> {
    let path = image(folder);
    if path.exists() {
        return Ok(());
    }
    if !can_loop() {
        return Err(Failure::new(
            Code::Unenforceable,
            "a private workspace on disk needs loop devices, and those need root",
        )
        .hint("use a workspace in memory, or a folder of your own"));
    }
    let what = || format!("cannot make {}", path.display());
    let file = fs::File::create_new(&path).map_err(|e| Failure::io(what(), &e))?;
    // ext4 has overhead of its own; the caller gets at least what was asked for.
    let bytes = (size.0 + size.0 / 16 + (1 << 20)).next_multiple_of(4096);
    file.set_len(bytes).map_err(|e| Failure::io(what(), &e))?;
    let options = format!("root_owner={uid}:{gid},lazy_itable_init=1,nodiscard");
    let output = Command::new("mkfs.ext4")
        .args([
            "-q",
            "-F",
            "-m",
            "0",
            // Small file systems get blocks of 1 KiB, which loop devices with larger sectors refuse.
            "-b",
            "4096",
            "-O",
            "^has_journal,^resize_inode",
            "-E",
            &options,
        ])
        .arg(&path)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| {
            Failure::io("cannot run mkfs.ext4", &e).hint("install the package e2fsprogs")
        })?;
    if output.status.success() {
        return Ok(());
    }
    let _ = fs::remove_file(&path);
    Err(Failure::new(Code::Internal, what()).detail(String::from_utf8_lossy(&output.stderr)))
}
