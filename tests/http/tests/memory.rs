//! A guest's memory, read from outside by root: it holds nothing of another sandbox or of the
//! server.

use ringfence_http_tests::{Outcome, Server};
use serde_json::{Value, json};
use std::fs;
use std::io::{Seek as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

/// Most bytes of one piece of memory that are looked at.
const MOST: u64 = 256 << 20;

/// The memory of a process, in a file.
fn memory(pid: u32) -> Outcome<fs::File> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let memory = fs::File::open(format!("/proc/{pid}/mem"))?;
    let mut file = tempfile::tempfile()?;
    let mut seen = 0;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let (start, end) = range.split_once('-').ok_or("an odd line")?;
        let start = u64::from_str_radix(start, 16)?;
        let end = u64::from_str_radix(end, 16)?;
        if !rights.starts_with('r') || end - start > MOST || start > i64::MAX as u64 {
            continue;
        }
        let mut bytes = vec![0; (end - start) as usize];
        // Pages of the kernel's own can't be read.
        let Ok(count) = memory.read_at(&mut bytes, start) else {
            continue;
        };
        file.write_all(&bytes[..count])?;
        seen += count;
    }
    assert!(seen > 1 << 20, "only {seen} bytes of {pid} could be read");
    Ok(file)
}

/// Whether a process has these bytes anywhere in its memory.
fn holds(pid: u32, wanted: &str) -> Outcome<bool> {
    let mut memory = memory(pid)?;
    memory.rewind()?;
    let grep = Command::new("grep")
        .args(["-aqF", wanted])
        .env("LC_ALL", "C")
        .stdin(memory)
        .status()?;
    match grep.code() {
        Some(found @ (0 | 1)) => Ok(found == 0),
        odd => Err(format!("grep: {odd:?}").into()),
    }
}

fn guest(state: &Path, session: &str) -> Outcome<u32> {
    let file = state.join(session.replace('_', "-")).join("process.json");
    let process: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
    Ok(process["pid"].as_u64().ok_or("no pid")? as u32)
}

#[tokio::test]
async fn a_guest_knows_nothing_of_others() -> Outcome {
    let folder = tempfile::Builder::new().prefix("rf-memory-").tempdir()?;
    let state = folder.path().join("state");
    // Put together here, so that no request of this test holds more than one of them.
    let secret = |what: &str| format!("{what}-{:032x}", rand(&folder));
    let (of_server, of_env, of_file) = (secret("server"), secret("env"), secret("file"));
    let server = Server::start_on(&state, &[], &[("SECRET_OF_THE_SERVER", &of_server)])?;
    let before = server.session().await?;
    let spec = json!({"spec": {"env": {"SECRET": of_env}}});
    let with = server.session_with(&spec).await?;
    let write = format!("open('f', 'w').write('{of_file}'); kept = open('f').read()");
    server.code(&with, &write).await?;
    let read = server.bash(&with, "echo $SECRET; cat f").await?;
    assert_eq!(read["stdout"], format!("{of_env}\n{of_file}"));
    let after = server.session().await?;
    let beside = server.session().await?;
    // All have worked, and so have used their memory.
    for session in [&before, &after, &beside] {
        assert_eq!(server.code(session, "print(1)").await?["stdout"], "1");
    }
    // The controls: they are found where they are.
    assert!(holds(server.pid(), &of_server)?);
    assert!(holds(guest(&state, &with)?, &of_env)?);
    assert!(holds(guest(&state, &with)?, &of_file)?);
    for session in [&before, &after, &beside] {
        let pid = guest(&state, session)?;
        for wanted in [&of_server, &of_env, &of_file, &with] {
            assert!(
                !holds(pid, wanted)?,
                "{wanted} is in the guest of {session}"
            );
        }
    }
    assert!(!holds(guest(&state, &with)?, &of_server)?);
    Ok(())
}

/// Differs from call to call and from run to run.
fn rand(salt: &impl std::fmt::Debug) -> u128 {
    use std::hash::{BuildHasher as _, RandomState};
    let half = || u128::from(RandomState::new().hash_one(format!("{salt:?}")));
    (half() << 64) | half()
}
