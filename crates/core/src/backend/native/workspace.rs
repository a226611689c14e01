//! A workspace on disk with a size limit: an ext4 file system in a sparse file.

use crate::random_hex;
use crate::size::Size;
use ringfence_proto::{Code, Failure};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::Path;
use std::process::{Command, Stdio};

const IMAGE: &str = "workspace.img";
const BLOCK: u64 = 4096;

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

/// Makes the image unless it is there from before a suspension. `templates` holds an empty file
/// system of each size: to copy one takes a hundredth of the time that making one takes.
pub(super) fn make_image(
    folder: &Path,
    templates: &Path,
    size: Size,
    uid: u32,
    gid: u32,
) -> Result<(), Failure> {
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
    // ext4 has overhead of its own; the caller gets at least what was asked for.
    let bytes = (size.0 + size.0 / 16 + (1 << 20)).next_multiple_of(BLOCK);
    let template = templates.join(format!("{bytes}-empty.ext4"));
    if !template.exists() {
        make_template(templates, &template, bytes)?;
    }
    copy(&template, &path)
        .and_then(|copy| give_root(&copy, uid, gid))
        .map_err(|e| {
            let _ = fs::remove_file(&path);
            Failure::io(format!("cannot make {}", path.display()), &e)
        })
}

/// Makes an empty file system; of two that do so at once, the later one stays.
fn make_template(templates: &Path, template: &Path, bytes: u64) -> Result<(), Failure> {
    let what = || format!("cannot make {}", template.display());
    let new = templates.join(format!("{}.new", random_hex::<8>()?));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(templates)
        .and_then(|()| fs::File::create_new(&new)?.set_len(bytes))
        .map_err(|e| Failure::io(what(), &e))?;
    let tool = |name: &str| {
        let mut command = Command::new(name);
        command
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
            .stdin(Stdio::null());
        command
    };
    let output = tool("mkfs.ext4")
        .args(["-q", "-F", "-m", "0"])
        // Small file systems get blocks of 1 KiB, which loop devices with larger sectors refuse.
        .args(["-b", &BLOCK.to_string()])
        // Without checksums the owner of a copy can be set by writing it.
        .args(["-O", "^has_journal,^resize_inode,^metadata_csum"])
        .args(["-E", "lazy_itable_init=1,nodiscard"])
        .arg(&new)
        .output();
    let made = match output {
        Ok(output) if output.status.success() => {
            // A new workspace has nothing in it. Where this does not work, it has one folder.
            let _ = tool("debugfs")
                .args(["-w", "-R", "rmdir lost+found"])
                .arg(&new)
                .output();
            fs::rename(&new, template).map_err(|e| Failure::io(what(), &e))
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(Failure::new(Code::Internal, what()).detail(said))
        }
        Err(e) => {
            Err(Failure::io("cannot run mkfs.ext4", &e).hint("install the package e2fsprogs"))
        }
    };
    if made.is_err() {
        let _ = fs::remove_file(&new);
    }
    made
}

/// Copies what is in a sparse file, and none of its holes.
fn copy(from: &Path, to: &Path) -> io::Result<fs::File> {
    use rustix::fs::{SeekFrom, copy_file_range, seek};
    let from = fs::File::open(from)?;
    let to = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(to)?;
    to.set_len(from.metadata()?.len())?;
    let mut at = 0;
    // There is no data after the last: that is how it ends.
    while let Ok(mut start) = seek(&from, SeekFrom::Data(at)) {
        let end = seek(&from, SeekFrom::Hole(start))?;
        let mut target = start;
        while start < end {
            let part = (end - start) as usize;
            if copy_file_range(&from, Some(&mut start), &to, Some(&mut target), part)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        at = end;
    }
    Ok(to)
}

/// Makes this user the owner of the root of an ext4 file system: four numbers of inode 2.
fn give_root(file: &fs::File, uid: u32, gid: u32) -> io::Result<()> {
    let number = |at: u64, bytes: usize| {
        let mut le = [0u8; 4];
        file.read_exact_at(&mut le[..bytes], at)?;
        Ok::<u64, io::Error>(u32::from_le_bytes(le).into())
    };
    // The superblock is at 1024; s_inode_size is a word at 88 in it.
    let inode_size = number(1024 + 88, 2)?;
    // The descriptor of the first group is in the second block; bg_inode_table is at 8 in it.
    let table = number(BLOCK + 8, 4)?;
    let root = table * BLOCK + inode_size;
    let (uid, gid) = (uid.to_le_bytes(), gid.to_le_bytes());
    for (at, half) in [
        (2, &uid[..2]),
        (24, &gid[..2]),
        (120, &uid[2..]),
        (122, &gid[2..]),
    ] {
        file.write_all_at(half, root + at)?;
    }
    Ok(())
}
