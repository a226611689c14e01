//! What the attacks share: a probe is one Python text that runs outside, where it must succeed,
//! and inside, where it must not.
// The tests' one place that reads the environment.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// An ordinary user that no host has.
const ORDINARY: u32 = 12345;

const PRELUDE: &str = include_str!("prelude.py");
const PYTHON: &str = "/usr/bin/python3";

/// Says in which namespace pods are made.
const NAMESPACE: &str = "RINGFENCE_KUBERNETES_NAMESPACE";

/// Where an attack is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A native sandbox that root starts.
    Root,
    /// A native sandbox that an ordinary user starts.
    User,
    /// A container of the engine that `DOCKER_HOST` names.
    Docker,
    /// A pod of the test cluster.
    Kubernetes,
}

/// What `ringfence` needs of the environment to reach an engine.
pub type Environment = Vec<(&'static str, OsString)>;

impl Place {
    pub fn is_native(self) -> bool {
        matches!(self, Self::Root | Self::User)
    }

    /// What `ringfence run` and `serve` need to know.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Root | Self::User => &[],
            Self::Docker => &["--backend", "docker", "--image", "ringfence-test/python"],
            Self::Kubernetes => &[
                "--backend",
                "kubernetes",
                "--image",
                "ringfence-test/python-guest",
            ],
        }
    }
}

/// Where the engine of the tests is.
pub fn docker() -> Environment {
    let host = std::env::var_os("DOCKER_HOST");
    let host = host.expect("DOCKER_HOST is not set: export $(tests/engines/docker-up)");
    vec![("DOCKER_HOST", host)]
}

/// An attack of the list.
pub struct Attack {
    pub name: &'static str,
    pub run: fn(Host),
    /// Why it can't be made on a container.
    pub native_only: &'static [&'static str],
    /// Why it can't be made on a pod.
    pub not_on_pods: &'static [&'static str],
}

impl Attack {
    fn reason(&self, place: Place) -> Option<&'static str> {
        let pods = self
            .not_on_pods
            .iter()
            .filter(|_| place == Place::Kubernetes);
        self.native_only.iter().chain(pods).next().copied()
    }
}

/// Makes tests of a list of attacks: each on a native sandbox of root and on one of an ordinary
/// user, all of them together on containers, and on pods. What says `native_only` or `not_on_pods`
/// says why.
#[macro_export]
macro_rules! attacks {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($host:ident) $(native_only $why:literal)? $(not_on_pods $pods:literal)? $body:block
    )*) => {
        $(
            $(#[$doc])*
            mod $name {
                #[allow(unused_imports)]
                use super::*;

                pub(super) fn attack($host: ringfence_tests::Host) $body

                #[test]
                fn root() {
                    attack(ringfence_tests::Host::new(ringfence_tests::Place::Root));
                }

                #[test]
                fn user() {
                    attack(ringfence_tests::Host::new(ringfence_tests::Place::User));
                }
            }
        )*

        const ATTACKS: &[ringfence_tests::Attack] = &[$(ringfence_tests::Attack {
            name: stringify!($name),
            run: $name::attack,
            native_only: &[$($why)?],
            not_on_pods: &[$($pods)?],
        }),*];

        #[test]
        fn docker() {
            let place = ringfence_tests::Place::Docker;
            ringfence_tests::on_containers(place, ringfence_tests::docker(), ATTACKS);
        }

        #[test]
        fn kubernetes() {
            let namespace = ringfence_kubernetes_tests::cluster::Namespace::new("attacks").unwrap();
            let place = ringfence_tests::Place::Kubernetes;
            ringfence_tests::on_containers(place, namespace.environment().unwrap(), ATTACKS);
        }
    };
}

/// Makes these attacks one after the other; those that do no harm share one container.
pub fn on_containers(place: Place, environment: Environment, attacks: &[Attack]) {
    let shared = Arc::new(Shared::start(place, &environment));
    let mut failed = Vec::new();
    for attack in attacks {
        let say = |text: &str| {
            let _ = writeln!(std::io::stderr(), "{}: {text}", attack.name);
        };
        if let Some(why) = attack.reason(place) {
            say(&format!("not here: {why}"));
            continue;
        }
        let mut host = Host::new(place);
        host.environment.clone_from(&environment);
        host.shared = Some(Arc::clone(&shared));
        let begun = Instant::now();
        let made = std::panic::catch_unwind(AssertUnwindSafe(|| (attack.run)(host)));
        say(&format!("{:?}", begun.elapsed()));
        if made.is_err() {
            failed.push(attack.name);
        }
    }
    assert!(failed.is_empty(), "{failed:?} failed, see above");
}

/// A server that ends with the attack, for those that need more than one command of a sandbox.
pub struct Server(Arc<Shared>);

impl Server {
    pub fn kill(&self) {
        kill(self.0.server.id() as i32);
    }
}

/// The name of the session that harmless attacks share.
const SHARED: &str = "shared";

/// A server with one session, whose sandbox harmless attacks share.
struct Shared {
    server: Child,
    url: String,
    _folder: Option<TempDir>,
}

impl Shared {
    fn start(place: Place, environment: &Environment) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(ringfence());
        command.envs(environment.iter().cloned());
        Self::start_by(
            &mut command,
            place,
            &folder.path().join("state"),
            Some(folder),
        )
    }

    fn start_by(
        command: &mut Command,
        place: Place,
        state: &Path,
        folder: Option<TempDir>,
    ) -> Self {
        let mut server = command
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--no-auth",
                "--state-dir",
            ])
            .arg(state)
            .args(place.options())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start a server");
        let mut lines = BufReader::new(server.stderr.take().expect("its words")).lines();
        let url = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                let (_, rest) = line.split_once("listening on ")?;
                Some(rest.split(' ').next()?.to_owned())
            })
            .expect("the server ended at once");
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            server,
            url,
            _folder: folder,
        }
    }
}

impl Drop for Shared {
    /// The last server that stops ends its sessions; in a cluster they go with their namespace.
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.server);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.server.wait();
    }
}

/// The program under test: `RINGFENCE_BIN`, or the one beside this test, built if it is missing.
pub fn ringfence() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        if let Some(path) = std::env::var_os("RINGFENCE_BIN") {
            return path.into();
        }
        let test = std::env::current_exe().expect("the path of this test");
        let folder = test.ancestors().nth(2).expect("a target folder");
        let path = folder.join("ringfence");
        if !path.exists() {
            let status = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
                .args(["build", "--package", "ringfence"])
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .status()
                .expect("run cargo");
            assert!(status.success(), "cannot build ringfence");
        }
        path
    })
    .clone()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A place of its own on the host, from which sandboxes are started.
pub struct Host {
    pub place: Place,
    folder: TempDir,
    program: PathBuf,
    environment: Environment,
    shared: Option<Arc<Shared>>,
}

impl Host {
    pub fn new(place: Place) -> Self {
        assert!(
            place == Place::User || is_root(),
            "this attacks a sandbox of root: run the tests as root (attacks on those of an \
             ordinary user run as anybody)"
        );
        // Not /tmp: that is often a file system of its own, and some attacks need links to work.
        let folder = tempfile::Builder::new()
            .prefix("rf-attack-")
            .tempdir_in("/var/tmp")
            .expect("a folder");
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.path(), open.clone()).expect("open the folder");
        // The target folder may lie where an ordinary user can't go.
        let program = folder.path().join("ringfence");
        if fs::hard_link(ringfence(), &program).is_err() {
            fs::copy(ringfence(), &program).expect("copy ringfence");
        }
        fs::set_permissions(&program, open).expect("open the program");
        let host = Self {
            place,
            folder,
            program,
            environment: Vec::new(),
            shared: None,
        };
        for name in ["home", "state", "cache"] {
            host.owned_folder(name);
        }
        host
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A folder of whoever starts the sandbox; for containers, of an ordinary user.
    pub fn owned_folder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).expect("make a folder");
        if self.place != Place::Root && is_root() {
            chown(&path, Some(ORDINARY), Some(ORDINARY)).expect("give a folder away");
        }
        path
    }

    /// A file that anybody on the host can read, and what it holds.
    pub fn secret(&self) -> (PathBuf, String) {
        let text = format!("secret-{}", unique());
        let path = self.path("secret");
        fs::write(&path, &text).expect("write the secret");
        (path, text)
    }

    /// Lets a command run as who starts the sandboxes here, with an environment of its own.
    pub fn own(&self, command: &mut Command) {
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", self.path("home"))
            .env("RINGFENCE_STATE_DIR", self.path("state"))
            .env("RINGFENCE_CACHE_DIR", self.path("cache"))
            .envs(self.environment.iter().cloned())
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        if self.place == Place::User && is_root() {
            command.uid(ORDINARY).gid(ORDINARY);
        }
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    /// `ringfence run` with these options and this code: a sandbox of its own.
    pub fn sandbox(&self, options: &[&str], code: &str, args: &[&str]) -> Command {
        self.sandbox_by(&[], options, code, args)
    }

    /// The same, started by another program.
    fn sandbox_by(&self, starter: &[&str], options: &[&str], code: &str, args: &[&str]) -> Command {
        let mut words: Vec<OsString> = starter.iter().map(OsString::from).collect();
        words.push(self.program.clone().into());
        let mut command = Command::new(&words[0]);
        self.own(&mut command);
        let code = format!("{}{code}", given(args));
        command
            .args(&words[1..])
            .arg("run")
            .args(self.place.options())
            .args(options)
            .args(["-c", &code]);
        command
    }

    /// Runs code inside and waits for the end.
    pub fn run(&self, options: &[&str], code: &str, args: &[&str]) -> Output {
        finish(&mut self.sandbox(options, code, args))
    }

    /// Runs a probe inside. Without options it must do no harm: others may share the sandbox.
    pub fn inside(&self, options: &[&str], probe: &str, args: &[&str]) -> Answer {
        if let Some(shared) = self.shared.as_deref().filter(|_| options.is_empty()) {
            let mut command = Command::new(&self.program);
            self.own(&mut command);
            let code = whole(probe, args);
            command.args(["exec", SHARED, "--url", &shared.url, "--"]);
            command.args(["python3", "-c", &code]);
            return Answer::of(&finish(&mut command));
        }
        Answer::of(&self.run(options, &script(probe), args))
    }

    /// A server on the state of this host, or the one that attacks share.
    pub fn server(&self) -> Server {
        let start = || {
            let mut command = Command::new(&self.program);
            self.own(&mut command);
            Arc::new(Shared::start_by(
                &mut command,
                self.place,
                &self.path("state"),
                None,
            ))
        };
        Server(self.shared.clone().unwrap_or_else(start))
    }

    /// A command in a session of a server.
    pub fn exec(&self, server: &Server, session: &str, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        self.own(&mut command);
        command
            .args(["exec", session, "--url", &server.0.url, "--"])
            .args(words);
        command
    }

    /// Runs a probe in a sandbox that another program starts.
    pub fn inside_by(&self, starter: &[&str], probe: &str, args: &[&str]) -> Answer {
        Answer::of(&finish(&mut self.sandbox_by(
            starter,
            &[],
            &script(probe),
            args,
        )))
    }

    /// The control: the same probe on the host, as the one who runs the tests.
    pub fn outside(&self, probe: &str, args: &[&str]) -> Answer {
        self.outside_by(&[], probe, args)
    }

    /// The control, started by another program such as `unshare`.
    pub fn outside_by(&self, starter: &[&str], probe: &str, args: &[&str]) -> Answer {
        let mut words: Vec<&str> = starter.to_vec();
        let code = whole(probe, args);
        words.extend([PYTHON, "-c", &code]);
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        Answer::of(&finish(&mut command))
    }

    /// Ids of sandboxes that are there now, without the one that attacks share.
    pub fn sandboxes(&self) -> Vec<String> {
        let mut engine = match self.place {
            Place::Root | Place::User => {
                let entries = fs::read_dir(self.path("state")).expect("read the state folder");
                let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
                // Servers keep things of their own here, and their names have dots.
                return names.filter(|name| !name.contains('.')).collect();
            }
            Place::Docker => {
                let name = fs::read_to_string(self.path("state/.docker/.name")).unwrap_or_default();
                let filter = format!("label=ringfence.state={name}");
                let format = "{{.Label \"ringfence\"}}";
                let mut docker = Command::new("docker");
                docker.args(["ps", "-a", "--filter", &filter, "--format", format]);
                docker
            }
            Place::Kubernetes => {
                let namespace = self.environment.iter().find(|(name, _)| *name == NAMESPACE);
                let (_, namespace) = namespace.expect("a namespace");
                let ids = "jsonpath={range .items[*]}{.metadata.labels.ringfence\\.sandbox}{\"\\n\"}{end}";
                let mut kubectl = Command::new("kubectl");
                kubectl
                    .args(["get", "pods", "--output", ids, "--namespace"])
                    .arg(namespace);
                kubectl
            }
        };
        let output = finish(engine.envs(self.environment.iter().cloned()));
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        // Sessions begin so; what `run` makes does not.
        let own = text.lines().filter(|id| !id.starts_with("sbx-"));
        own.map(str::to_owned).collect()
    }
}

/// The arguments, as the first line of a text in Python.
fn given(args: &[&str]) -> String {
    format!("ARGS = {}\n", serde_json::Value::from(args))
}

impl Drop for Host {
    /// Janitors need the state folder to find what they have to remove.
    fn drop(&mut self) {
        if !self.place.is_native() {
            return;
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.sandboxes().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A probe with its arguments and what it needs, for a Python of the host.
pub fn whole(probe: &str, args: &[&str]) -> String {
    format!("{}{}", given(args), script(probe))
}

/// A probe with what it needs.
pub fn script(probe: &str) -> String {
    format!("{PRELUDE}{probe}")
}

/// Runs a command to its end, which must come soon.
pub fn finish(command: &mut Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("start a command");
    let pid = rustix::process::Pid::from_child(&child);
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(90))
            == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    });
    let output = child.wait_with_output().expect("wait for a command");
    let _ = done.send(());
    watch.join().expect("the watch");
    output
}

/// What one attempt of a probe came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Reached(String),
    /// The errno's name, or a word of the probe's own.
    Denied(String),
}

impl Verdict {
    fn parse(text: &str) -> Option<Self> {
        if let Some(what) = text.strip_prefix("REACHED") {
            return Some(Self::Reached(what.trim().to_owned()));
        }
        let rest = text.strip_prefix("DENIED ")?;
        Some(Self::Denied(rest.split(' ').next()?.to_owned()))
    }
}

/// What a probe said.
#[derive(Debug)]
pub struct Answer {
    pub verdict: Option<Verdict>,
    pub rows: BTreeMap<String, Verdict>,
    pub whole: String,
}

impl Answer {
    pub fn of(output: &Output) -> Self {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut answer = Self {
            verdict: None,
            rows: BTreeMap::new(),
            whole: format!(
                "{text}\n{}\n{}",
                String::from_utf8_lossy(&output.stderr),
                output.status
            ),
        };
        for line in text.lines() {
            let line = line.trim_end_matches('\r');
            if let Some(rest) = line.strip_prefix("VERDICT ") {
                answer.verdict = Verdict::parse(rest);
            } else if let Some((name, rest)) =
                line.strip_prefix("ROW ").and_then(|r| r.split_once(' '))
                && let Some(verdict) = Verdict::parse(rest)
            {
                answer.rows.insert(name.to_owned(), verdict);
            }
        }
        answer
    }

    #[track_caller]
    pub fn reached(&self) -> &Self {
        assert!(
            matches!(self.verdict, Some(Verdict::Reached(_))),
            "the control does not work, so a denial would prove nothing:\n{}",
            self.whole
        );
        self
    }

    #[track_caller]
    pub fn denied(&self, errors: &[&str]) -> &Self {
        match &self.verdict {
            Some(Verdict::Denied(error)) if errors.contains(&error.as_str()) => self,
            Some(Verdict::Reached(what)) => panic!("the attack worked: {what}\n{}", self.whole),
            other => panic!(
                "{other:?} is not one of {errors:?}, so the probe is broken:\n{}",
                self.whole
            ),
        }
    }

    /// Every row was reached: a control.
    #[track_caller]
    pub fn all_reached(&self) -> &Self {
        assert!(!self.rows.is_empty(), "no rows:\n{}", self.whole);
        for (name, verdict) in &self.rows {
            assert!(
                matches!(verdict, Verdict::Reached(_)),
                "control of {name}: {verdict:?}"
            );
        }
        self
    }

    /// Every row of the control was denied here.
    #[track_caller]
    pub fn all_denied(&self, control: &Self, errors: &[&str]) {
        for name in control.rows.keys() {
            match self.rows.get(name) {
                Some(Verdict::Denied(error)) if errors.contains(&error.as_str()) => {}
                Some(Verdict::Reached(what)) => panic!("the attack {name} worked: {what}"),
                other => panic!("{name}: {other:?} is not {errors:?}\n{}", self.whole),
            }
        }
    }

    /// Every row was denied by this error here, and outside ended in any other way: which shows
    /// that it is the sandbox's error, where a whole success outside can't be had.
    #[track_caller]
    pub fn denied_unlike(&self, control: &Self, error: &str) {
        assert!(!control.rows.is_empty(), "no rows:\n{}", control.whole);
        for (name, outside) in &control.rows {
            let here = Verdict::Denied(error.to_owned());
            assert_ne!(*outside, here, "the control of {name} shows nothing");
            assert_eq!(self.rows.get(name), Some(&here), "{name}\n{}", self.whole);
        }
    }
}

/// A text that nothing else on this machine holds.
pub fn unique() -> String {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).expect("random");
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Process ids on the host whose command line holds this text.
pub fn processes_with(text: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("read /proc");
    let own = std::process::id() as i32;
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.windows(text.len()).any(|w| w == text.as_bytes())
        })
        .collect()
}

/// Waits for the end of every process with this text: a launcher's janitor outlives it shortly.
#[track_caller]
pub fn wait_until_gone(text: &str) {
    wait_until("the end of every process", || {
        processes_with(text).is_empty()
    });
}

/// Waits for a state, and fails if it does not come.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    // Only so that a wait for ever is a failure; a pod that is alone ends after a minute.
    let deadline = Instant::now() + Duration::from_secs(150);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process on the host.
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub session: i32,
    /// Its command line, the words with a null after each.
    pub words: String,
}

/// All processes on the host.
pub fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").expect("read /proc");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(1);
        let mut number = || fields.next()?.parse().ok();
        let (parent, _group, session) = (number()?, number()?, number()?);
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some(Process {
            pid,
            parent,
            session,
            words: String::from_utf8_lossy(&words).into_owned(),
        })
    })
    .collect()
}

/// Kills a process; one that is gone by now is no failure.
pub fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// Folders of these sandboxes that are left in any cgroup hierarchy.
pub fn cgroups_of(ids: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut look = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = look.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|t| t.is_dir()) {
                continue;
            }
            let name = entry.file_name();
            // What follows the id tells state folders from each other.
            let name = name.to_string_lossy();
            if ids.iter().any(|id| name.starts_with(id.as_str())) {
                found.push(entry.path());
            }
            look.push(entry.path());
        }
    }
    found
}

/// A process that ends with the test.
pub struct Running(pub Child);

impl Running {
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("start a process"))
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// Reads lines from its output until one is this.
    pub fn wait_for_line(&mut self, line: &str) {
        let output = self.0.stdout.take().expect("its output");
        let mut reader = BufReader::new(output);
        let mut text = String::new();
        loop {
            text.clear();
            let read = reader.read_line(&mut text).expect("read its output");
            assert!(read > 0, "it ended before it said {line}");
            if text.trim() == line {
                break;
            }
        }
        self.0.stdout = Some(reader.into_inner());
    }

    pub fn say(&mut self, line: &str) {
        let input = self.0.stdin.as_mut().expect("its input");
        writeln!(input, "{line}").expect("write to it");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
