//! The kernel as the host's interpreter compiles it, kept beside the guest. An interpreter that has
//! not compiled it yet does so while the first sandbox runs, which does without.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Whether nobody but root could have put it there, and so no code of a sandbox.
fn is_systems(program: &Path) -> bool {
    let is_roots = |path: &Path| {
        fs::symlink_metadata(path)
            .is_ok_and(|m| m.uid() == 0 && m.mode() & 0o022 == 0 && !m.is_symlink())
    };
    program.starts_with("/usr/bin") && program.ancestors().all(is_roots)
}

/// The interpreters that were asked to compile it; those that compile it now.
#[derive(Default)]
pub(super) struct Bytecode(Mutex<BTreeMap<PathBuf, Option<Child>>>);

impl Bytecode {
    /// The file that this interpreter has compiled the kernel of this guest into, if it has. Of
    /// those that were `named` only the system's are run outside of a sandbox.
    pub(super) fn of(&self, guest: &Path, python: &Path, named: bool) -> Option<PathBuf> {
        let me = rustix::process::geteuid().as_raw();
        let program = fs::metadata(python).ok()?;
        // Another program at this path is another interpreter.
        let path = guest.with_added_extension(format!(
            "kernel-{:x}-{:x}-{:x}-{:x}",
            program.dev(),
            program.ino(),
            program.mtime(),
            program.mtime_nsec()
        ));
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(child) = asked.get_mut(&path)
            && child
                .as_mut()
                .is_some_and(|c| matches!(c.try_wait(), Ok(Some(_))))
        {
            *child = None;
        }
        if fs::symlink_metadata(&path).is_ok_and(|m| m.is_file() && m.uid() == me) {
            return Some(path);
        }
        if asked.contains_key(&path) {
            return None;
        }
        // What others could have written is not run here.
        let python = fs::canonicalize(python).ok()?;
        let is_ours = match named {
            true => is_systems(&python),
            false => program.uid() == 0 || program.uid() == me,
        };
        if is_ours {
            let child = Command::new(guest)
                .arg("compile")
                .args([&python, &path])
                .env_clear()
                .current_dir("/")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            asked.insert(path, child.ok());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::{Duration, Instant};

    #[test]
    fn what_others_can_write_is_not_the_systems() {
        let system = fs::canonicalize("/usr/bin/env").unwrap();
        assert!(is_systems(&system), "{}", system.display());
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("python3");
        fs::copy(&system, &copy).unwrap();
        assert!(!is_systems(&copy));
        assert!(!is_systems(Path::new("/usr/bin/not-there")));
        assert!(!is_systems(Path::new("/usr/bin/../../tmp")));
    }

    #[test]
    fn an_interpreter_that_was_named_is_run_if_it_is_the_systems() {
        let folder = tempfile::tempdir().unwrap();
        let guest = folder.path().join("guest");
        fs::write(&guest, "#!/bin/sh\necho compiled >\"$3\"\n").unwrap();
        fs::set_permissions(&guest, fs::Permissions::from_mode(0o755)).unwrap();
        let other = folder.path().join("python3");
        fs::copy("/usr/bin/env", &other).unwrap();
        for (python, named, compiles) in [
            (Path::new("/usr/bin/env"), true, true),
            (&other, true, false),
            (&other, false, true),
        ] {
            let bytecode = Bytecode::default();
            let until = Instant::now() + Duration::from_secs(if compiles { 30 } else { 1 });
            let mut made = None;
            while made.is_none() && Instant::now() < until {
                made = bytecode.of(&guest, python, named);
                std::thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(made.is_some(), compiles, "{} {named}", python.display());
        }
    }
}
