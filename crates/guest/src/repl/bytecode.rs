//! The kernel as an interpreter has compiled it: what that takes is most of what a kernel's start
//! takes besides Python's own. It is made outside, before any code of a sandbox runs, and an
//! interpreter that finds it made by another kind of Python compiles the source instead.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

/// Most bytes of it: with the sources it fits the buffer of a socket.
const LIMIT: u64 = 32 << 10;

const COMPILE: &str = "import sys,marshal,importlib.util as u;\
s=compile(sys.stdin.buffer.read(),'<kernel>','exec',0,True);\
sys.stdout.buffer.write(u.MAGIC_NUMBER+marshal.dumps(s))";

/// Lets an interpreter compile the kernel into a file, which is there whole or not at all.
pub(crate) fn compile(python: &Path, to: &Path) -> io::Result<()> {
    let mut child = Command::new(python)
        .args(["-I", "-S", "-c", COMPILE])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(super::process::SOURCES[0].as_bytes())?;
    }
    let mut bytes = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(LIMIT + 1).read_to_end(&mut bytes)?;
    }
    if !child.wait()?.success() || bytes.len() <= 4 || bytes.len() as u64 > LIMIT {
        let message = format!("{} did not compile it", python.display());
        return Err(io::Error::other(message));
    }
    let new = to.with_added_extension(std::process::id().to_string());
    std::fs::write(&new, bytes)?;
    std::fs::rename(&new, to)
}

/// What was compiled before; nothing where that is not to be had.
pub(super) fn read(path: Option<&Path>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = path
        .map(|path| File::open(path).and_then(|file| file.take(LIMIT + 1).read_to_end(&mut bytes)));
    match read {
        Some(Ok(count)) if count as u64 <= LIMIT => bytes,
        _ => Vec::new(),
    }
}
