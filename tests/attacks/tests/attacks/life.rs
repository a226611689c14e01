//! Outliving the time limit, the sandbox, and whoever started it.

use ringfence_tests::{
    Host, Place, Running, attacks, cgroups_of, kill, processes, processes_with, script, unique,
    wait_until,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Leaves behind what is hard to find: in sessions of their own, deaf to signals, forking on.
const STAY: &str = r#"
def stay(depth):
    if os.fork() == 0:
        os.setsid()
        for number in (1, 2, 13, 15):
            signal.signal(number, signal.SIG_IGN)
        if depth:
            stay(depth - 1)
            os._exit(0)
        end = time.time() + 60
        while time.time() < end:
            if os.fork() == 0:
                time.sleep(0.05)
                os._exit(0)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass
            time.sleep(0.02)
        os._exit(0)
stay(0); stay(1); stay(2)
print("ready", flush=True)
"#;

fn staying(then: &str) -> String {
    script(&format!("{STAY}{then}\n"))
}

/// Nothing is left of any sandbox of this host after one more has run.
fn assert_clean(host: &Host, marks: &[String], ids: &[String]) {
    // A creation that was cut off before its record is told by its age alone.
    let native = host.place.is_native();
    for id in host.sandboxes().iter().filter(|_| native) {
        let folder = host.path("state").join(id);
        if !folder.join("sandbox.json").exists() {
            let touched = std::process::Command::new("touch")
                .args(["-d", "-10 minutes"])
                .arg(&folder)
                .status()
                .unwrap();
            assert!(touched.success());
        }
    }
    let output = host.run(&[], "print('clean')", &[]);
    assert_eq!(output.stdout, b"clean\n", "{output:?}");
    let gc: &[&str] = match host.place {
        Place::Root | Place::User => &[],
        // One that was made and not started waits for this, or for the next server.
        Place::Docker => &["gc"],
        // One whose maker was killed ends when it has been alone for a minute.
        Place::Kubernetes => &["gc", "--backend", "kubernetes"],
    };
    wait_until("no sandbox is left", || {
        if !gc.is_empty() {
            let mut sweep = std::process::Command::new(host.program());
            host.own(&mut sweep);
            let swept = ringfence_tests::finish(sweep.args(gc));
            assert!(swept.status.success(), "{swept:?}");
            // Looks at an engine are not for nothing.
            std::thread::sleep(Duration::from_millis(500));
        }
        host.sandboxes().is_empty()
    });
    wait_until("no cgroup is left", || cgroups_of(ids).is_empty());
    for mark in marks.iter().chain(ids) {
        ringfence_tests::wait_until_gone(mark);
    }
    let here = host.path("").display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let left: Vec<&str> = mounts
        .lines()
        .filter(|l| l.contains(here.trim_end_matches('/')))
        .collect();
    assert_eq!(left, Vec::<&str>::new(), "mounts are left");
    for device in std::fs::read_dir("/sys/block").unwrap() {
        let file = device.unwrap().path().join("loop/backing_file");
        let backing = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            !backing.contains(here.trim_end_matches('/')),
            "a loop device is left: {backing}"
        );
    }
}

/// What a run consists of, and a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Run,
    Guest,
    Launcher,
    Maker,
    Janitor,
    Server,
}

const KINDS: [Kind; 6] = [
    Kind::Run,
    Kind::Guest,
    Kind::Launcher,
    Kind::Maker,
    Kind::Janitor,
    Kind::Server,
];

/// Processes of this kind that belong to a run, or of all that there are here.
fn of_kind(kind: Kind, run: i32, host: &Host) -> Vec<i32> {
    if kind == Kind::Run {
        return vec![run];
    }
    if kind == Kind::Guest {
        let ids = host.sandboxes();
        return ids.iter().flat_map(|id| processes_with(id)).collect();
    }
    let all = processes();
    let launches = |words: &str| words.starts_with("ringfence-launcher");
    let launcher = |pid: i32| {
        let mut own = all.iter().filter(|p| p.pid == pid);
        own.any(|p| p.parent == run && launches(&p.words))
    };
    let found = all.iter().filter(|p| match kind {
        Kind::Launcher => launcher(p.pid),
        // Copies of the launcher.
        Kind::Maker => launches(&p.words) && launcher(p.parent),
        // A copy of the run, in a session of its own.
        Kind::Janitor => p.parent == run && p.session == p.pid && !launches(&p.words),
        Kind::Run | Kind::Guest | Kind::Server => false,
    });
    found.map(|p| p.pid).collect()
}

/// Kills what is of this kind as soon as there is any, while the run lasts.
fn kill_one(kind: Kind, run: &mut Running, host: &Host) -> bool {
    while run.0.try_wait().unwrap().is_none() {
        let found = of_kind(kind, run.pid(), host);
        if !found.is_empty() {
            found.into_iter().for_each(kill);
            return true;
        }
        // Looks at an engine are not for nothing.
        std::thread::sleep(Duration::from_millis(if host.place.is_native() {
            1
        } else {
            100
        }));
    }
    false
}

attacks! {
    fn outlive_the_timeout(host) {
        let mark = unique();
        let code = staying("time.sleep(60)");
        let mut command = host.sandbox(&["--timeout", "2"], &code, &[&mark]);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut run = Running::start(&mut command);
        run.wait_for_line("ready");
        let start = Instant::now();
        // The control: while they live, they are seen from here (the launcher is one of them).
        wait_until("all of them", || processes_with(&mark).len() >= 4);
        let status = run.0.wait().unwrap();
        assert_eq!(status.code(), Some(124));
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
        ringfence_tests::wait_until_gone(&mark);
    }

    /// The command itself has ended; what it left behind goes with the sandbox.
    fn outlive_the_sandbox(host) {
        let mark = unique();
        let output = host.run(&[], &staying(""), &[&mark]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        ringfence_tests::wait_until_gone(&mark);
        wait_until("no state folder is left", || host.sandboxes().is_empty());
    }

    /// Nobody is left to end the sandbox.
    fn outlive_a_killed_launcher(host) {
        let mark = unique();
        // The guest is kept busy meanwhile, so that its own goodwill is not what is tested.
        let busy = "[os.fork() or [0 for _ in iter(int, 1)] for _ in range(20)]\ntime.sleep(60)";
        // A pod that is alone ends after a minute, which is long for others on this machine.
        let options: &[&str] = match host.place {
            Place::Kubernetes => &["--cpus", "0.2"],
            _ => &[],
        };
        let mut command = host.sandbox(options, &staying(busy), &[&mark]);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut run = Running::start(&mut command);
        run.wait_for_line("ready");
        wait_until("all of them", || processes_with(&mark).len() >= 4);
        let ids = host.sandboxes();
        assert_eq!(ids.len(), 1);
        // The control: while it lives, its cgroups are found.
        if host.place == Place::Root {
            assert_ne!(cgroups_of(&ids), Vec::<std::path::PathBuf>::new());
        }
        run.0.kill().unwrap();
        run.0.wait().unwrap();
        wait_until("the sandbox ends with its launcher", || {
            processes_with(&mark).is_empty() && processes_with(&ids[0]).is_empty()
        });
        assert_clean(&host, &[mark], &ids);
    }

    /// Somebody outside kills the guest under a run: which says so, and what it had printed is there.
    fn the_guest_is_killed(host) native_only "the engine's own processes are not ours to kill" {
        let code = "import time; print('ready', flush=True); time.sleep(60)";
        let mut command = host.sandbox(&[], code, &[]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut run = Running::start(&mut command);
        run.wait_for_line("ready");
        for id in host.sandboxes() {
            processes_with(&id).into_iter().for_each(kill);
        }
        let mut said = String::new();
        run.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(run.0.wait().unwrap().code(), Some(70), "{said}");
        assert!(said.contains("the guest was killed or crashed"), "{said}");
        wait_until("no state folder is left", || host.sandboxes().is_empty());
    }

    /// 200 creations, or 20 containers, or 12 pods; of most, something that takes part in them is
    /// killed at a random moment.
    fn killed_at_any_moment(host) {
        let (runs, whole_run) = match host.place {
            Place::Root | Place::User => (200, 60_000),
            Place::Docker => (20, 600_000),
            Place::Kubernetes => (12, 3_000_000),
        };
        let kinds = if host.place.is_native() { &KINDS[..] } else { &KINDS[..2] };
        let work = host.owned_folder("work");
        let folder = format!("{}:rw", work.display());
        let has_folders = host.place != Place::Kubernetes;
        let mark = unique();
        let seen: Mutex<BTreeSet<String>> = Mutex::default();
        let started = AtomicU32::new(0);
        let killed: Mutex<BTreeMap<Kind, u32>> = Mutex::default();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| loop {
                    let number = started.fetch_add(1, Ordering::Relaxed);
                    if number >= runs {
                        break;
                    }
                    let code = "import time; time.sleep(0.02)";
                    let kind = match number {
                        // One needs as long to start as many of the others.
                        _ if kinds.contains(&Kind::Server) && number % 25 == 24 => Kind::Server,
                        _ if kinds.contains(&Kind::Maker) && number % 2 == 1 => {
                            [Kind::Launcher, Kind::Maker, Kind::Janitor][number as usize / 2 % 3]
                        }
                        _ if number % 3 == 2 => Kind::Guest,
                        _ => Kind::Run,
                    };
                    let server = (kind == Kind::Server).then(|| host.server());
                    let mut command = match &server {
                        Some(server) => {
                            let session = format!("s{number}");
                            host.exec(server, &session, &["python3", "-c", code, &mark])
                        }
                        None => {
                            let shares = has_folders && number.is_multiple_of(4);
                            let options: &[&str] = if shares { &["--workspace", &folder] } else { &[] };
                            host.sandbox(options, code, &[&mark])
                        }
                    };
                    command.stdout(Stdio::null()).stderr(Stdio::null());
                    let mut run = Running::start(&mut command);
                    // Spread over the time that a whole run takes, by the number. A moment is what
                    // this is about, not a state.
                    std::thread::sleep(Duration::from_micros(
                        u64::from(number) * 7919 * whole_run / 60_000 % whole_run,
                    ));
                    seen.lock().unwrap().extend(host.sandboxes());
                    let hit = match &server {
                        Some(server) => {
                            server.kill();
                            true
                        }
                        None => kill_one(kind, &mut run, &host),
                    };
                    if hit {
                        *killed.lock().unwrap().entry(kind).or_default() += 1;
                    }
                    let end = Instant::now() + Duration::from_secs(30);
                    while run.0.try_wait().unwrap().is_none() {
                        assert!(Instant::now() < end, "a run whose {kind:?} was killed hangs");
                        std::thread::sleep(Duration::from_millis(2));
                    }
                });
            }
        });
        let killed = killed.into_inner().unwrap();
        assert_eq!(killed.keys().copied().collect::<Vec<_>>(), kinds, "{killed:?}");
        assert!(killed.values().sum::<u32>() > runs / 4, "too few were killed: {killed:?}");
        let ids: Vec<String> = seen.into_inner().unwrap().into_iter().collect();
        assert!(ids.len() > runs as usize / 4, "too few were made: {}", ids.len());
        if host.place.is_native() {
            // Sessions outlive a server that was killed. The last one that stops ends them.
            drop(host.server());
        }
        wait_until("all end", || processes_with(&mark).is_empty());
        assert_clean(&host, &[mark], &ids);
    }
}
