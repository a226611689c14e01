//! What a person types and sees, with the real program and real sandboxes.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Folders of its own for each test.
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

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
        self.settle(&mut command);
        command.args(args).stdin(Stdio::null());
        command
    }

    fn settle(&self, command: &mut Command) {
        command
            .env("RINGFENCE_STATE_DIR", self.path("state"))
            .env("RINGFENCE_CACHE_DIR", self.path("cache"))
            .env("RINGFENCE_DATA_DIR", self.path("data"))
            .current_dir(self.folder.path());
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Names of the sandboxes that the state folder knows.
    fn sandboxes(&self) -> Vec<String> {
        fs::read_dir(self.path("state"))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            // What is made once and used again is no sandbox.
            .filter(|name| !name.starts_with('.'))
            .collect()
    }

    /// Waits until the janitor has removed everything: nobody else has to.
    fn until_nothing_is_left(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.sandboxes().is_empty() {
            assert!(Instant::now() < deadline, "left: {:?}", self.sandboxes());
            std::thread::yield_now();
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn said(output: &Output) -> (i32, String, String) {
    let code = output.status.code().unwrap();
    (code, text(&output.stdout), text(&output.stderr))
}

fn ok(output: &Output) -> String {
    let (code, stdout, stderr) = said(output);
    assert_eq!(code, 0, "{stdout}{stderr}");
    stdout
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

#[test]
fn the_forms_of_run() {
    let place = Place::new();
    let show = "import sys; print(sys.argv[1:])";
    fs::write(place.path("script.py"), show).unwrap();
    fs::write(place.path("script.sh"), "echo \"$@\"\n").unwrap();
    fs::write(
        place.path("tool"),
        "#!/usr/bin/env -S sh\necho tool \"$@\"\n",
    )
    .unwrap();
    for (words, want) in [
        (&["script.py", "a", "b"][..], "['a', 'b']\n"),
        // What follows the script is the script's, also where it looks like ours.
        (&["script.py", "--json", "-x"], "['--json', '-x']\n"),
        (&["script.py", "--", "x"], "['--', 'x']\n"),
        (&["script.sh", "a", "-b"], "a -b\n"),
        (&["./tool", "x"], "tool x\n"),
        (&["-c", show, "a", "b"], "['a', 'b']\n"),
        (&["-c", show, "--", "-a"], "['-a']\n"),
        (&["--", "printf", "%s", "-a"], "-a"),
        (&["--timeout", "30", "--", "pwd"], "/workspace\n"),
        (&["--", "sh", "-c", "echo \"$@\"", "sh", "--"], "--\n"),
    ] {
        let args = [&["run"], words].concat();
        assert_eq!(ok(&place.run(&args)), want, "{words:?}");
    }
}

#[test]
fn a_script_on_standard_input() {
    let place = Place::new();
    let mut child = place
        .command(&["run", "-", "one", "two"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let script = b"import sys\nprint(sys.argv)\n";
    child.stdin.take().unwrap().write_all(script).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(ok(&output), "['-', 'one', 'two']\n");
}

#[test]
fn mistakes_get_a_hint() {
    let place = Place::new();
    fs::write(place.path("plain"), "no script\n").unwrap();
    let mut all = String::new();
    for args in [
        &["run"][..],
        &["run", "ls"],
        &["run", "missing.py"],
        &["run", "plain"],
        &["run", "--tty", "--", "sh"],
        &["run", "--mount", "/tmp", "--", "true"],
        &["run", "--env-name", "none", "--", "true"],
        &["run", "--env-name", "../x", "--", "true"],
        &["env", "add", "web"],
        &["env", "rm", "none"],
    ] {
        let (code, stdout, stderr) = said(&place.run(args));
        assert_eq!(stdout, "");
        all += &format!("$ ringfence {}\n{stderr}exit {code}\n\n", args.join(" "));
    }
    insta::assert_snapshot!("mistakes", all);
    assert_eq!(place.sandboxes(), Vec::<String>::new());
}

#[test]
fn help() {
    let place = Place::new();
    insta::assert_snapshot!("help", ok(&place.run(&["--help"])));
    insta::assert_snapshot!("help_run", ok(&place.run(&["run", "--help"])));
    assert_eq!(place.run(&["run", "--bogus"]).status.code(), Some(64));
    assert_eq!(place.run(&["--version"]).status.code(), Some(0));
}

#[test]
fn doctor_proves_the_default_sandbox() {
    let place = Place::new();
    let output = place
        .command(&["doctor", "--json"])
        .env("RINGFENCE_TEST_MARK", "1")
        .output()
        .unwrap();
    let answer = json(&output);
    assert_eq!(answer["sound"], true, "{answer:#}");
    assert_eq!(output.status.code(), Some(0));
    let state = |name: &str| {
        let checks = answer["checks"].as_array().unwrap();
        let check = checks.iter().find(|c| c["name"] == name);
        check.unwrap_or_else(|| panic!("no check {name}"))["state"].clone()
    };
    for name in [
        "kernel",
        "namespaces",
        "processes",
        "files",
        "network",
        "environment",
        "privileges",
        "system calls",
        "user",
        "processes limit",
        "workspace size",
    ] {
        assert_eq!(state(name), "held", "{name}: {answer:#}");
    }
    // Weaker where there are no cgroups, and not to be proved where the machine is busy.
    for name in ["memory", "cpus"] {
        assert_ne!(state(name), "missing", "{answer:#}");
    }
    assert_eq!(place.sandboxes(), Vec::<String>::new());
    let plain = ok(&place.run(&["doctor"]));
    assert!(plain.contains("The default sandbox is sound."), "{plain}");
    assert!(!plain.contains('\x1b'), "colours only on a terminal");
}

/// Starts a run and waits until its code says that it is there.
fn started(place: &Place, script: &str) -> Child {
    let mut child = place
        .command(&["run", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0u8; 6];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    assert_eq!(&first, b"ready\n");
    child
}

/// Process ids of guests of this place's sandbox.
fn guests(id: &str) -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap();
    all.filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|pid| pid.parse::<i32>().is_ok())
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            text(&line).contains(&format!("--id\0{id}\0"))
        })
        .collect()
}

#[test]
fn signals_end_the_sandbox_and_leave_nothing() {
    let place = Place::new();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut child = started(&place, "echo ready; trap '' INT TERM; sleep 100");
        let sandboxes = place.sandboxes();
        assert_eq!(sandboxes.len(), 1);
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        place.until_nothing_is_left();
        assert_eq!(guests(&sandboxes[0]), Vec::<String>::new());
    }
}

#[test]
fn a_reader_that_stands_still_does_not_keep_it_from_a_signal() {
    let place = Place::new();
    let mut child = started(&place, "echo ready; exec yes");
    // Nobody reads from here on: wait until the pipe is full.
    let pipe = child.stdout.as_ref().unwrap();
    let size = rustix::pipe::fcntl_getpipe_size(pipe).unwrap() as u64;
    let deadline = Instant::now() + Duration::from_secs(20);
    while rustix::io::ioctl_fionread(pipe).unwrap() + 4096 < size {
        assert!(Instant::now() < deadline, "the pipe does not fill");
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    place.until_nothing_is_left();
}

#[test]
fn a_killed_run_leaves_nothing() {
    let place = Place::new();
    let mut child = started(&place, "echo ready; sleep 100");
    let sandboxes = place.sandboxes();
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    place.until_nothing_is_left();
    assert_eq!(guests(&sandboxes[0]), Vec::<String>::new());
}

/// The child of a run that cleans up after it: the one that is not the launcher.
fn janitor(run: &std::process::Child) -> Pid {
    let id = run.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let other = children.split_whitespace().find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        !text(&line).starts_with("ringfence-launcher")
    });
    Pid::from_raw(other.unwrap().parse().unwrap()).unwrap()
}

#[test]
fn gc_removes_what_is_left_when_the_janitor_is_killed_too() {
    let place = Place::new();
    let mut child = started(&place, "echo ready; sleep 100");
    let sandboxes = place.sandboxes();
    kill_process(janitor(&child), Signal::KILL).unwrap();
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    let old = place.path("cache/guest-0123456789abcdef");
    fs::write(&old, b"old").unwrap();
    fs::write(place.path("cache/other"), b"not ours").unwrap();
    fs::create_dir_all(place.path("data/envs/half")).unwrap();
    let removed = json(&place.run(&["gc", "--json"]));
    assert_eq!(removed["sandboxes"], serde_json::json!(sandboxes));
    assert_eq!(removed["environments"], serde_json::json!(["half"]));
    assert_eq!(removed["guests"], serde_json::json!([old]));
    assert_eq!(place.sandboxes(), Vec::<String>::new());
    assert_eq!(guests(&sandboxes[0]), Vec::<String>::new());
    assert!(place.path("cache/other").exists());
    let again = ok(&place.run(&["gc"]));
    assert_eq!(again, "nothing was left behind\n");
    // The guest in use was kept.
    ok(&place.run(&["run", "--", "true"]));
}

/// A package without code that needs no network to be installed.
fn wheel(at: &Path) -> String {
    let file = at.join("tiny-1.0-py3-none-any.whl");
    let script = "import sys, zipfile
z = zipfile.ZipFile(sys.argv[1], 'w')
z.writestr('tiny.py', 'answer = 42\\n')
z.writestr('tiny-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n')
z.writestr('tiny-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
z.writestr('tiny-1.0.dist-info/RECORD', 'tiny.py,,\\ntiny-1.0.dist-info/METADATA,,\\ntiny-1.0.dist-info/WHEEL,,\\ntiny-1.0.dist-info/RECORD,,\\n')
z.close()";
    let status = Command::new("python3")
        .args(["-c", script])
        .arg(&file)
        .status()
        .unwrap();
    assert!(status.success());
    format!("tiny @ file://{}", file.display())
}

#[test]
fn environments_from_making_to_removal() {
    let place = Place::new();
    let package = wheel(place.folder.path());
    // What was cut off is no environment, and in nobody's way.
    fs::create_dir_all(place.path("data/envs/small/bin")).unwrap();
    assert_eq!(
        json(&place.run(&["env", "ls", "--json"])),
        serde_json::json!([])
    );
    let missing = place.run(&["run", "--env-name", "small", "--", "true"]);
    assert_eq!(missing.status.code(), Some(66));

    let added = place.run(&["env", "add", "small", "--packages", &package]);
    assert!(ok(&added).contains("environment `small` is ready"));
    let lines = text(&added.stderr);
    assert!(
        lines.contains("installing 1 packages"),
        "plain lines: {lines}"
    );
    let code = "import tiny; print(tiny.answer, bool(tiny.__cached__))";
    let out = ok(&place.run(&["run", "--env-name", "small", "-c", code]));
    assert_eq!(out, "42 True\n");
    let write = "import tiny; open(tiny.__file__, 'a')";
    let out = place.run(&["run", "--env-name", "small", "-c", write]);
    // Read-only for everyone, and for sandboxes of root another user's besides.
    assert!(text(&out.stderr).contains("Error: [Errno "), "{out:?}");

    let again = place.run(&["env", "add", "small", "--packages", &package]);
    assert_eq!(again.status.code(), Some(73));
    let all = json(&place.run(&["env", "ls", "--json"]));
    assert_eq!(all[0]["name"], "small");
    let shown = ok(&place.run(&["env", "show", "small"]));
    assert!(shown.contains("tiny==1.0"), "{shown}");
    ok(&place.run(&["env", "rm", "small"]));
    assert!(!place.path("data/envs/small").exists());

    let failed = place.run(&[
        "env",
        "add",
        "bad",
        "--packages",
        "tiny @ file:///no/such.whl",
    ]);
    assert_eq!(failed.status.code(), Some(69));
    assert!(
        !place.path("data/envs/bad").exists(),
        "nothing is left of it"
    );
}

#[test]
fn completions_and_manual() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = ok(&place.run(&["completions", shell]));
        assert!(script.contains("doctor"), "{shell}");
    }
    assert!(ok(&place.run(&["man"])).contains(".TH ringfence"));
    let folder = place.path("man1");
    ok(&place.run(&["man", "--out", folder.to_str().unwrap()]));
    for verb in [
        "",
        "-run",
        "-doctor",
        "-env",
        "-env-add",
        "-gc",
        "-completions",
        "-man",
    ] {
        let page = folder.join(format!("ringfence{verb}.1"));
        assert!(page.is_file(), "{}", page.display());
    }
}

/// A terminal that we hold the other end of.
struct Terminal {
    ours: OwnedFd,
    seen: String,
}

impl Terminal {
    fn open() -> (Self, OwnedFd) {
        use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let theirs = ioctl_tiocgptpeer(&ours, flags).unwrap();
        let seen = String::new();
        (Self { ours, seen }, theirs)
    }

    fn resize(&self, rows: u16, cols: u16) {
        let size = rustix::termios::Winsize {
            ws_row: rows,
            ws_col: cols,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        rustix::termios::tcsetwinsize(&self.ours, size).unwrap();
    }

    fn type_in(&self, keys: &str) {
        let written = rustix::io::write(&self.ours, keys.as_bytes()).unwrap();
        assert_eq!(written, keys.len());
    }

    /// Reads until this is seen, and forgets what came before and with it.
    fn until(&mut self, words: &str) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(at) = self.seen.find(words) {
                self.seen.drain(..at + words.len());
                return;
            }
            assert!(Instant::now() < deadline, "no {words:?} in {:?}", self.seen);
            let second = Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            let ready = poll(&mut [PollFd::new(&self.ours, PollFlags::IN)], Some(&second));
            if ready.unwrap() == 0 {
                continue;
            }
            let mut buffer = [0u8; 4096];
            let read = rustix::io::read(&self.ours, &mut buffer)
                .unwrap_or_else(|e| panic!("{e}: no {words:?} in {:?}", self.seen));
            self.seen.push_str(&text(&buffer[..read]));
        }
    }
}

#[test]
fn a_terminal_inside() {
    let place = Place::new();
    let (mut terminal, theirs) = Terminal::open();
    terminal.resize(30, 100);
    let before = rustix::termios::tcgetattr(&theirs).unwrap();
    // A session of its own, so that the terminal is its controlling one.
    let mut command = Command::new("setsid");
    place.settle(&mut command);
    command
        .args(["--ctty", env!("CARGO_BIN_EXE_ringfence")])
        .args(["run", "--tty", "--env", "PS1=here> ", "--", "sh"])
        .env("TERM", "vt220")
        .stdin(theirs.try_clone().unwrap())
        .stdout(theirs.try_clone().unwrap())
        .stderr(theirs.try_clone().unwrap());
    let mut child = command.spawn().unwrap();
    terminal.until("here> ");
    terminal.type_in("stty size; tty; echo \"kind $TERM\"\n");
    terminal.until("30 100");
    terminal.until("/dev/pts/0");
    terminal.until("kind vt220");
    terminal.resize(41, 123);
    // The new size takes its way to the inside by itself: ask until it is there.
    terminal.type_in("until [ \"$(stty size)\" = '41 123' ]; do :; done; echo re''sized\n");
    terminal.until("resized");
    // Ctrl-C goes to what runs inside, and not to us.
    // Not before that is in the foreground, which it is once it speaks.
    let waits = "trap 'echo caught; exit' INT; echo wa''its; while :; do sleep 0.1; done";
    terminal.type_in(&format!("sh -c \"{waits}\"\n"));
    terminal.until("waits");
    terminal.type_in("\x03");
    terminal.until("caught");
    terminal.until("here> ");
    terminal.type_in("exit 7\n");
    assert_eq!(child.wait().unwrap().code(), Some(7));
    let after = rustix::termios::tcgetattr(&theirs).unwrap();
    assert_eq!(after.local_modes, before.local_modes);
    assert_eq!(after.output_modes, before.output_modes);
    assert_eq!(place.sandboxes(), Vec::<String>::new());
}

#[test]
fn a_reader_that_leaves_ends_the_run() {
    let place = Place::new();
    let mut child = started(
        &place,
        "echo ready; while true; do echo on; sleep 0.01; done",
    );
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(141));
    place.until_nothing_is_left();
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let place = Place::new();
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let status = place
        .command(&["run", "-c", "print(1)"])
        .stdout(full)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(74));
    for args in [
        &["completions", "bash"][..],
        &["man"],
        &["env", "ls", "--json"],
    ] {
        let full = fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let status = place.command(args).stdout(full).status().unwrap();
        assert_eq!(status.code(), Some(74), "{args:?}");
    }
}

#[test]
fn failures_are_json_too() {
    let place = Place::new();
    let output = place.run(&["run", "--json", "no-such-file.py"]);
    assert_eq!(output.status.code(), Some(66));
    let error = &json_of(&output)["error"];
    assert_eq!(error["code"], "not_found");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("no-such-file.py")
    );
}

fn json_of(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn mounts_that_make_no_sense_are_refused() {
    let place = Place::new();
    let file = place.path("file");
    fs::write(&file, "x").unwrap();
    let file = file.to_str().unwrap();
    for (args, code, words) in [
        (["--workspace", file], 64, "not a directory"),
        (["--workspace", ".:zz"], 64, "neither ro nor rw"),
        (["--workspace", "/proc"], 77, "the host itself"),
        (["--workspace", "/"], 77, "the host itself"),
        (["--mount", "/etc/hostname:/x:zz"], 64, "neither ro nor rw"),
        (["--mount", ":"], 66, "cannot use"),
        (["--mount", "a:b:c:d"], 64, "is not a mount"),
        (["--timeout", "-1"], 64, "0.001"),
        (["--cpus", "-1"], 64, "between"),
        (["--memory", "-1"], 64, "not a size"),
    ] {
        let output = place.run(&["run", args[0], args[1], "--", "true"]);
        let (status, _, err) = said(&output);
        assert_eq!((status, args), (code, args), "{err}");
        assert!(err.contains(words), "{args:?}: {err}");
    }
}

#[test]
fn a_single_file_can_be_given_to_be_written() {
    let place = Place::new();
    let file = place.path("file");
    fs::write(&file, "before\n").unwrap();
    let given = format!("{}:/data/file:rw", file.display());
    let code = "cat /data/file; echo after > /data/file";
    let output = place.run(&["run", "--mount", &given, "--", "sh", "-c", code]);
    assert_eq!(ok(&output), "before\n");
    assert_eq!(fs::read_to_string(&file).unwrap(), "after\n");
}

#[test]
fn an_interpreter_found_by_a_link_brings_no_more_than_itself() {
    let place = Place::new();
    let home = place.path("home");
    fs::create_dir_all(home.join("bin")).unwrap();
    fs::write(home.join("private"), "secret").unwrap();
    let real = Path::new("/usr/bin/python3").canonicalize().unwrap();
    std::os::unix::fs::symlink(&real, home.join("bin/python3")).unwrap();
    let code =
        "import os, sys; print(os.path.exists(sys.argv[1]), os.path.realpath(sys.executable))";
    let mut command = place.command(&["run", "-c", code, home.to_str().unwrap()]);
    command.env(
        "PATH",
        format!("{}:/usr/bin:/bin", home.join("bin").display()),
    );
    let said = ok(&command.output().unwrap());
    assert_eq!(said, format!("False {}\n", real.display()));
}

/// Copies a program with the libraries it needs into a root of its own.
fn root_with(place: &Place, program: &str) -> PathBuf {
    let root = place.path("root");
    let listed = Command::new("ldd").arg(program).output().unwrap();
    let text = text(&listed.stdout);
    let libraries = text.split_whitespace().filter(|word| word.starts_with('/'));
    for file in libraries.chain([program]) {
        let to = root.join(file.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(file, to).unwrap();
    }
    root
}

#[test]
fn a_link_in_a_root_folder_does_not_lead_to_the_host() {
    let place = Place::new();
    let root = root_with(&place, "/usr/bin/cat");
    fs::create_dir(root.join("inner")).unwrap();
    fs::write(root.join("inner/file"), "inner\n").unwrap();
    fs::create_dir(place.path("secret")).unwrap();
    fs::write(place.path("secret/file"), "secret\n").unwrap();
    std::os::unix::fs::symlink(place.path("secret"), root.join("out")).unwrap();
    std::os::unix::fs::symlink("inner", root.join("in")).unwrap();
    let root = root.to_str().unwrap();
    let cat = |file: &str| place.run(&["run", "--rootfs", root, "--", "/usr/bin/cat", file]);
    assert_eq!(ok(&cat("/in/file")), "inner\n");
    let output = cat("/out/file");
    assert!(!output.status.success());
    assert!(!text(&output.stdout).contains("secret"));
}
