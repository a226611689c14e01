//! The verbs for people: `new`, `ls`, `exec`, `shell`, `cp`, `logs`, `rm`, with a server and
//! without one.

use ringfence_http_tests::{Outcome, Server, key, ringfence};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where a verb finds its sandboxes.
struct Place {
    /// Before the folder: it ends its sandboxes by what is written there.
    server: Option<Server>,
    key: Option<String>,
    folder: tempfile::TempDir,
}

impl Place {
    /// Inside the command itself.
    fn local() -> Outcome<Self> {
        Ok(Self {
            folder: tempfile::tempdir()?,
            server: None,
            key: None,
        })
    }

    /// A server that asks for a key.
    fn remote() -> Outcome<Self> {
        let folder = tempfile::tempdir()?;
        let state = folder.path().join("state");
        let key = key(&state, "person", &[])?;
        let server = Server::start_on(&state, &[], &[])?;
        Ok(Self {
            folder,
            server: Some(server),
            key: Some(key),
        })
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn with(&self, command: &mut Command) {
        command
            .env_remove("RINGFENCE_URL")
            .env_remove("RINGFENCE_API_KEY");
        command.env("RINGFENCE_STATE_DIR", self.state());
        if let (Some(server), Some(key)) = (&self.server, &self.key) {
            command.env("RINGFENCE_URL", &server.url);
            command.env("RINGFENCE_API_KEY", key);
        }
    }

    fn run(&self, args: &[&str], input: &[u8]) -> Outcome<Output> {
        let mut command = Command::new(ringfence());
        command.args(args);
        self.spawn(command, input)
    }

    fn spawn(&self, mut command: Command, input: &[u8]) -> Outcome<Output> {
        self.with(&mut command);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stdin = child.stdin.take().ok_or("no stdin")?;
        let input = input.to_vec();
        let fed = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output()?;
        let _ = fed.join();
        Ok(output)
    }

    /// What a verb that succeeds prints.
    fn ok(&self, args: &[&str]) -> Outcome<String> {
        let done = self.run(args, b"")?;
        assert!(done.status.success(), "{args:?}: {}", shown(&done.stderr));
        Ok(shown(&done.stdout).trim_end().to_owned())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.server.is_none() {
            let _ = self.run(&["rm", "--all"], b"");
        }
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn both(test: impl Fn(&Place) -> Outcome) -> Outcome {
    test(&Place::local()?)?;
    test(&Place::remote()?)
}

#[test]
fn a_sandbox_is_made_found_used_and_ended() -> Outcome {
    both(|place| {
        let id = place.ok(&["new", "work", "--label", "team=a"])?;
        assert!(id.starts_with("sbx_"), "{id}");
        assert_eq!(place.ok(&["new", "work"])?, id);
        let list = place.ok(&["ls"])?;
        assert!(
            list.contains(&id) && list.contains("work") && list.contains("team=a"),
            "{list}"
        );
        let list: Value = serde_json::from_str(&place.ok(&["ls", "--json", "--label", "team=b"])?)?;
        assert_eq!(list["sessions"].as_array().map(Vec::len), Some(0));
        // Variables and files stay from one command to the next.
        place.ok(&["exec", "work", "-c", "x = 41"])?;
        assert_eq!(place.ok(&["exec", "work", "-c", "print(x + 1)"])?, "42");
        place.ok(&["exec", &id, "--", "sh", "-c", "echo hello > a.txt"])?;
        assert_eq!(place.ok(&["exec", "work", "--", "cat", "a.txt"])?, "hello");
        assert_eq!(place.ok(&["rm", "work"])?, "work");
        assert_eq!(place.ok(&["ls"])?, "");
        let gone = place.run(&["rm", "work"], b"")?;
        assert_eq!(gone.status.code(), Some(66), "{}", shown(&gone.stderr));
        assert!(shown(&gone.stderr).contains("`ringfence ls` shows those there are"));
        place.ok(&["rm", "work", "--force"])?;
        Ok(())
    })
}

#[test]
fn exec_is_the_command() -> Outcome {
    both(|place| {
        let done = place.run(
            &["exec", "e", "--", "sh", "-c", "cat; echo err >&2; exit 3"],
            b"typed",
        )?;
        assert_eq!(
            (done.status.code(), shown(&done.stdout), shown(&done.stderr)),
            (Some(3), "typed".to_owned(), "err\n".to_owned())
        );
        let late = place.run(&["exec", "e", "--timeout", "1", "--", "sleep", "60"], b"")?;
        assert_eq!(late.status.code(), Some(124));
        assert!(
            shown(&late.stderr).starts_with("ended: "),
            "{}",
            shown(&late.stderr)
        );
        let killed = place.run(&["exec", "e", "--", "sh", "-c", "kill -9 $$"], b"")?;
        assert_eq!(killed.status.code(), Some(137));
        let result: Value =
            serde_json::from_str(&place.ok(&["exec", "e", "--json", "--", "echo", "hi"])?)?;
        assert_eq!(result["stdout"]["text"], "hi\n");
        assert_eq!(result["return_code"], 0);
        let none = place.run(&["exec", "e"], b"")?;
        assert_eq!(none.status.code(), Some(64));
        Ok(())
    })
}

#[test]
fn jobs_leave_logs() -> Outcome {
    both(|place| {
        let job = place.ok(&[
            "exec",
            "l",
            "--detach",
            "--",
            "sh",
            "-c",
            "echo one; echo two >&2",
        ])?;
        let followed = place.run(&["logs", "l", &job, "--follow"], b"")?;
        assert_eq!(shown(&followed.stdout), "one\n");
        assert_eq!(shown(&followed.stderr), "two\n");
        let table = place.ok(&["logs", "l"])?;
        assert!(table.contains(&job) && table.contains("ended"), "{table}");
        let none = place.run(&["logs", "l", "job_nope"], b"")?;
        assert_eq!(none.status.code(), Some(66));
        Ok(())
    })
}

fn write(path: &Path, bytes: &[u8]) -> Outcome {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    Ok(std::fs::write(path, bytes)?)
}

#[test]
fn files_are_copied_both_ways_with_progress() -> Outcome {
    both(|place| {
        let here = tempfile::tempdir()?;
        let path = |name: &str| here.path().join(name).to_string_lossy().into_owned();
        let big: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
        write(&here.path().join("big.bin"), &big)?;
        write(&here.path().join("tree/a/b.txt"), b"deep")?;
        let sent = place.run(&["cp", &path("big.bin"), "c:"], b"")?;
        assert!(sent.status.success(), "{}", shown(&sent.stderr));
        // Where there is no terminal, progress is a line for each tenth.
        let lines: Vec<String> = shown(&sent.stderr).lines().map(str::to_owned).collect();
        assert_eq!(
            lines.first().map(String::as_str),
            Some("to . 10%"),
            "{lines:?}"
        );
        assert_eq!(
            lines.last().map(String::as_str),
            Some("to . 100%"),
            "{lines:?}"
        );
        assert_eq!(
            place.ok(&["exec", "c", "--", "stat", "-c", "%s", "big.bin"])?,
            "3000000"
        );
        place.ok(&["cp", &path("tree"), "c:new"])?;
        assert_eq!(
            place.ok(&["exec", "c", "--", "cat", "new/a/b.txt"])?,
            "deep"
        );
        // Into a folder that is there.
        place.ok(&["cp", &path("tree"), "c:new"])?;
        assert_eq!(
            place.ok(&["exec", "c", "--", "cat", "new/tree/a/b.txt"])?,
            "deep"
        );
        place.ok(&["cp", "c:big.bin", &path("back.bin")])?;
        assert!(std::fs::read(here.path().join("back.bin"))? == big);
        place.ok(&["cp", "c:new", &path("out")])?;
        assert_eq!(std::fs::read(here.path().join("out/a/b.txt"))?, b"deep");
        let none = place.run(&["cp", "c:nope", &path("x")], b"")?;
        assert_eq!(none.status.code(), Some(66), "{}", shown(&none.stderr));
        let odd = place.run(&["cp", "a", "b"], b"")?;
        assert_eq!(odd.status.code(), Some(64));
        Ok(())
    })
}

#[test]
fn a_shell_is_a_terminal() -> Outcome {
    both(|place| {
        // `script` is a terminal for a program.
        let mut command = Command::new("script");
        let shell = format!("{} shell s", ringfence().display());
        command
            .args(["-qec", &shell, "/dev/null"])
            .env("TERM", "dumb");
        let typed = b"test -t 0 && echo is-a-$((40+2))-terminal; exit 3\n";
        let done = place.spawn(command, typed)?;
        let text = shown(&done.stdout);
        assert!(text.contains("is-a-42-terminal"), "{text}");
        assert_eq!(done.status.code(), Some(3), "{text}");
        // Without a terminal there is none to join.
        let none = place.run(&["shell", "s"], b"")?;
        assert_eq!(none.status.code(), Some(64));
        Ok(())
    })
}

#[test]
fn the_table_stays_up_to_date() -> Outcome {
    let place = Place::remote()?;
    place.ok(&["new", "first"])?;
    let mut command = Command::new(ringfence());
    command.args(["ls", "--watch"]);
    place.with(&mut command);
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(
        child.stdout.take().ok_or("no stdout")?,
    ));
    let mut until = |name: &str| -> Outcome {
        for line in lines.by_ref() {
            if line?.contains(name) {
                return Ok(());
            }
        }
        Err("the table ended".into())
    };
    until("first")?;
    place.ok(&["new", "second"])?;
    until("second")?;
    child.kill()?;
    child.wait()?;
    Ok(())
}

#[test]
fn a_server_that_is_not_there_is_named() -> Outcome {
    let done = Command::new(ringfence())
        .args(["ls", "--url", "http://127.0.0.1:9"])
        .output()?;
    assert_eq!(done.status.code(), Some(69));
    let said = shown(&done.stderr);
    assert!(said.contains("cannot reach http://127.0.0.1:9"), "{said}");
    assert!(said.contains("`ringfence serve` starts one"), "{said}");
    Ok(())
}

#[test]
fn a_key_that_is_missing_is_asked_for() -> Outcome {
    let place = Place::remote()?;
    let url = &place.server.as_ref().ok_or("no server")?.url;
    let done = Command::new(ringfence())
        .args(["ls", "--url", url])
        .env_remove("RINGFENCE_API_KEY")
        .output()?;
    assert_eq!(done.status.code(), Some(77));
    assert!(
        shown(&done.stderr).contains("RINGFENCE_API_KEY"),
        "{}",
        shown(&done.stderr)
    );
    Ok(())
}

#[test]
fn clients_are_told_of_ringfence() -> Outcome {
    let home = tempfile::tempdir()?;
    let run = |args: &[&str]| {
        Command::new(ringfence())
            .args(["mcp", "install"])
            .args(args)
            .env("HOME", home.path())
            .env_remove("XDG_CONFIG_HOME")
            .env("RINGFENCE_API_KEY", "rf_secret")
            .output()
    };
    let file = home
        .path()
        .join(".config/Claude/claude_desktop_config.json");
    write(
        &file,
        br#"{"theme":"dark","mcpServers":{"other":{"command":"x"}}}"#,
    )?;
    let before = std::fs::read(&file)?;
    // What would be done is shown, and not done.
    let dry = run(&["claude-desktop", "--dry-run"])?;
    assert!(dry.status.success() && shown(&dry.stdout).contains("\"ringfence\""));
    assert_eq!(std::fs::read(&file)?, before);
    let done = run(&["claude-desktop", "--arg=--session=work"])?;
    assert!(done.status.success(), "{}", shown(&done.stderr));
    let now: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    assert_eq!(now["theme"], "dark");
    assert_eq!(now["mcpServers"]["other"]["command"], "x");
    let ours = &now["mcpServers"]["ringfence"];
    assert_eq!(ours["args"], serde_json::json!(["mcp", "--session=work"]));
    assert!(
        ours["command"]
            .as_str()
            .is_some_and(|path| Path::new(path).is_absolute())
    );
    let backup = file.with_file_name("claude_desktop_config.json.before-ringfence");
    assert_eq!(std::fs::read(&backup)?, before);
    // Again changes nothing, and keeps the first copy.
    let again = run(&["claude-desktop", "--arg=--session=work"])?;
    assert!(shown(&again.stdout).contains("is as it should be"));
    assert_eq!(std::fs::read(&backup)?, before);
    // All that are here, and a server of one's own, with its key.
    std::fs::create_dir_all(home.path().join(".cursor"))?;
    let all = run(&["--all", "--url", "https://sandboxes.example", "--json"])?;
    let all: Value = serde_json::from_slice(&all.stdout)?;
    let names: Vec<_> = all
        .as_array()
        .ok_or("no list")?
        .iter()
        .map(|one| &one["client"])
        .collect();
    assert_eq!(names, ["claude-desktop", "cursor"]);
    let cursor = std::fs::read(home.path().join(".cursor/mcp.json"))?;
    let cursor: Value = serde_json::from_slice(&cursor)?;
    assert_eq!(
        cursor["mcpServers"]["ringfence"],
        serde_json::json!({"url": "https://sandboxes.example/mcp",
            "headers": {"Authorization": "Bearer rf_secret"}})
    );
    // A file that can't be read is left alone.
    write(
        &home.path().join(".config/zed/settings.json"),
        b"{ // mine\n}",
    )?;
    let odd = run(&["zed"])?;
    assert_eq!(odd.status.code(), Some(75), "{}", shown(&odd.stderr));
    assert_eq!(
        std::fs::read(home.path().join(".config/zed/settings.json"))?,
        b"{ // mine\n}"
    );
    assert_eq!(run(&["emacs"])?.status.code(), Some(64));
    Ok(())
}

/// Says so, and goes on when there is a file `go`.
const UNTIL_GO: &str = "echo begun; until [ -e go ]; do sleep 0.02; done; echo over";

/// A way to a server on which the first answer that holds `word` breaks off behind it.
fn cutting(server: &Server, word: &'static [u8]) -> Outcome<(String, Arc<AtomicBool>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    let to = server.address().to_owned();
    let cut = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&cut);
    let pass = move |mut from: TcpStream, mut to: TcpStream, cut: Option<Arc<AtomicBool>>| {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let part = &bytes[..count];
            let holds = part.windows(word.len()).any(|window| window == word);
            if to.write_all(part).is_err() {
                break;
            }
            if holds
                && cut
                    .as_ref()
                    .is_some_and(|cut| !cut.swap(true, Ordering::AcqRel))
            {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    };
    // It ends with the test's process.
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(&to) else {
                continue;
            };
            if let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) {
                let cut = Some(Arc::clone(&seen));
                std::thread::spawn(move || pass(near_too, far_too, None));
                std::thread::spawn(move || pass(far, near, cut));
            }
        }
    });
    Ok((url, cut))
}

#[test]
fn a_stream_that_is_cut_goes_on_where_it_was() -> Outcome {
    let place = Place::remote()?;
    place.ok(&["new", "work"])?;
    let server = place.server.as_ref().ok_or("no server")?;
    let (url, cut) = cutting(server, b"begun")?;
    std::thread::scope(|scope| {
        let args = ["exec", "work", "--url", &url, "--", "sh", "-c", UNTIL_GO];
        let place = &place;
        let running = scope.spawn(move || place.ok(&args));
        while !cut.load(Ordering::Acquire) && !running.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        place.ok(&["exec", "work", "--", "touch", "go"])?;
        let printed = running.join().map_err(|_| "it failed")??;
        assert!(cut.load(Ordering::Acquire));
        assert_eq!(printed, "begun\nover");
        Ok(())
    })
}

#[test]
fn a_server_that_stops_leaves_the_sessions_of_a_command_that_runs() -> Outcome {
    let place = Place::local()?;
    let mut server = Server::start_on(&place.state(), &[], &[])?;
    let mut command = Command::new(ringfence());
    command.args(["exec", "work", "--", "sh", "-c", UNTIL_GO]);
    place.with(&mut command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
    assert_eq!(lines.next().transpose()?.as_deref(), Some("begun"));
    assert!(server.stop()?.success());
    let going = place.run(&["exec", "work", "--", "touch", "go"], b"")?;
    let over = lines.next().transpose()?;
    let status = child.wait()?;
    assert!(going.status.success(), "{}", shown(&going.stderr));
    assert_eq!(over.as_deref(), Some("over"));
    assert!(status.success());
    Ok(())
}
