//! One table: p50 and p99 of each thing, and its ratio to bare `/usr/bin/python3 -c 'print(1)'`.
//!
//! The things take turns, round by round, so that a noisy moment falls on all of them alike, and
//! every ratio is between numbers of one run. `cargo run --release -p ringfence-bench [ROUNDS]`.

mod docker;

use ringfence_core::backend::native::{Config, Launcher, Native};
use ringfence_core::interpreter::Interpreter;
use ringfence_core::proto::{Command as Exec, ExecRequest, Exit, RunRequest};
use ringfence_core::spec::SandboxSpec;
use ringfence_core::{Backend as _, GuestClient, Lifetime, resolve};
use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PYTHON: &str = "/usr/bin/python3";
const IMAGE: &str = "ringfence-test/python";

/// One thing that is measured.
struct Row {
    name: &'static str,
    /// What its ratio is to: the name of another row.
    against: &'static str,
    at_most: Option<f64>,
    samples: Vec<Duration>,
}

impl Row {
    fn new(name: &'static str, against: &'static str, at_most: Option<f64>) -> Self {
        Self {
            name,
            against,
            at_most,
            samples: Vec::new(),
        }
    }

    fn quantile(&self, q: f64) -> Duration {
        let mut sorted = self.samples.clone();
        sorted.sort();
        let index = ((sorted.len() as f64 * q) as usize).min(sorted.len().saturating_sub(1));
        sorted.get(index).copied().unwrap_or_default()
    }
}

fn main() -> Result<()> {
    let rounds: usize = match std::env::args().nth(1) {
        Some(text) => text.parse()?,
        None => 100,
    };
    let home = private_home()?;
    let ringfence = std::env::current_exe()?.with_file_name("ringfence");
    if !ringfence.is_file() {
        return Err(format!("build it first: {} is missing", ringfence.display()).into());
    }
    let run = |program: &Path, args: &[&str]| timed(program, args, &home);
    let ours = ["run", "-c", "print(1)"];
    // Unpacks the guest, and fills the caches of the disk.
    for _ in 0..3 {
        run(&ringfence, &ours)?;
        run(Path::new(PYTHON), &["-c", "print(1)"])?;
    }

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let native = Native::new(
        Config {
            state: home.join("state"),
            guest: guest_in(&home.join("cache"))?,
            environments: home.join("envs"),
            interpreter: Interpreter::at(Path::new(PYTHON)).ok(),
        },
        Launcher::Inline,
    )?;

    let bwrap = find("bwrap");
    let docker = find("docker").filter(|d| has_image(d));
    let mut bare = Row::new("python3 -c 'print(1)', bare", "", None);
    let mut whole = Row::new("ringfence run -c 'print(1)'", bare.name, Some(1.5));
    let mut wrapped = Row::new("bwrap … python3 -c 'print(1)'", bare.name, None);
    let mut contained = Row::new("docker run --rm … python3 -c 'print(1)'", bare.name, None);
    let mut create = Row::new("create until the guest answers", bare.name, Some(0.5));
    let mut fork = Row::new("/bin/true, bare fork and exec", bare.name, None);
    let mut exec = Row::new("exec /bin/true in a live sandbox", fork.name, Some(2.0));
    let mut call = Row::new("REPL call 1+1 in a live sandbox", bare.name, Some(0.03));

    let mut memory = 0;
    let live = plan(&native)?;
    let result = runtime.block_on(async {
        native.create(&live).await?;
        let guest = GuestClient::connect(native.dial(&live.id).await?).await?;
        let health = guest.health().await?;
        // Pages of the guest's file count as private while only one process has them mapped, so a
        // second sandbox lives at that moment, as on any host that is in use.
        let second = plan(&native)?;
        native.create(&second).await?;
        GuestClient::connect(native.dial(&second.id).await?)
            .await?
            .health()
            .await?;
        memory = idle_memory(&live.id.to_string())?;
        native.destroy(&second.id).await?;
        let one = RunRequest {
            code: "1+1".into(),
            ..RunRequest::default()
        };
        let fine = guest.run("main", &one).await?;
        if fine.end.exit != Exit::Code(0) || health.pid != 1 {
            return Err::<(), Box<dyn Error>>("the REPL does not work".into());
        }
        for round in 0..rounds {
            bare.samples
                .push(run(Path::new(PYTHON), &["-c", "print(1)"])?);
            whole.samples.push(run(&ringfence, &ours)?);
            if let Some(bwrap) = &bwrap {
                wrapped.samples.push(run(bwrap, &BWRAP)?);
            }
            if let Some(docker) = docker.as_ref().filter(|_| round % 10 == 0) {
                contained.samples.push(run(docker, &DOCKER)?);
            }
            let fresh = plan(&native)?;
            let start = Instant::now();
            native.create(&fresh).await?;
            let new = GuestClient::connect(native.dial(&fresh.id).await?).await?;
            new.health().await?;
            create.samples.push(start.elapsed());
            native.destroy(&fresh.id).await?;
            // A burst of each, as a client makes them.
            for _ in 0..5 {
                fork.samples.push(run(Path::new("/bin/true"), &[])?);
            }
            for _ in 0..5 {
                let start = Instant::now();
                let request = ExecRequest::new(Exec::Argv(vec!["/bin/true".into()]));
                let done = guest.exec(&request).await?;
                exec.samples.push(start.elapsed());
                if done.end.exit != Exit::Code(0) {
                    return Err("/bin/true failed inside".into());
                }
            }
            for _ in 0..10 {
                let start = Instant::now();
                guest.run("main", &one).await?;
                call.samples.push(start.elapsed());
            }
        }
        Ok(())
    });
    runtime.block_on(native.destroy(&live.id))?;
    result?;

    let mut rows = vec![bare, whole, wrapped, contained, create, fork, exec, call];
    if let Some(docker) = &docker {
        let measured = docker::measure(rounds, &home, &ringfence, docker, run);
        rows.extend(runtime.block_on(measured)?);
    }
    std::fs::remove_dir_all(&home)?;
    print(&rows, memory)?;
    Ok(())
}

const BWRAP: [&str; 19] = [
    "--unshare-all",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--proc",
    "/proc",
    "--die-with-parent",
    PYTHON,
    "-c",
    "print(1)",
];

const DOCKER: [&str; 8] = [
    "run",
    "--rm",
    "--network=none",
    "--cap-drop=ALL",
    IMAGE,
    "python3",
    "-c",
    "print(1)",
];

fn plan(native: &Native) -> Result<ringfence_core::Plan> {
    Ok(resolve(
        SandboxSpec::default(),
        Lifetime::Disposable,
        &native.offers(),
    )?)
}

fn timed(program: &Path, args: &[&str], home: &Path) -> Result<Duration> {
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        // Which engine: the one that was asked for the image.
        .envs(
            std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"DOCKER_")),
        )
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", home)
        .env("RINGFENCE_STATE_DIR", home.join("state"))
        .env("RINGFENCE_CACHE_DIR", home.join("cache"))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let start = Instant::now();
    let status = command.status()?;
    let took = start.elapsed();
    if status.success() {
        Ok(took)
    } else {
        Err(format!("{program:?} {args:?}: {status}").into())
    }
}

fn private_home() -> Result<PathBuf> {
    let home = std::env::temp_dir().join(format!("ringfence-bench-{}", std::process::id()));
    std::fs::create_dir_all(&home)?;
    Ok(home)
}

fn guest_in(cache: &Path) -> Result<PathBuf> {
    for entry in std::fs::read_dir(cache)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("guest-") {
            return Ok(entry.path());
        }
    }
    Err("no guest was unpacked".into())
}

fn find(name: &str) -> Option<PathBuf> {
    ["/usr/local/bin", "/usr/bin", "/bin"]
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.is_file())
}

fn has_image(docker: &Path) -> bool {
    let mut inspect = Command::new(docker);
    inspect
        .args(["image", "inspect", IMAGE])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    inspect.status().is_ok_and(|s| s.success())
}

/// Private memory of the sandbox's guest, in KiB.
fn idle_memory(id: &str) -> Result<u64> {
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        if line.starts_with("ringfence-guest") && line.contains(id) {
            let text = std::fs::read_to_string(path.join("smaps_rollup"))?;
            return Ok(text
                .lines()
                .filter(|l| l.starts_with("Private_"))
                .filter_map(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok())
                .sum());
        }
    }
    Err("the guest's process was not found".into())
}

fn print(rows: &[Row], memory: u64) -> Result<()> {
    let mut out = anstream::stdout();
    writeln!(out, "| | p50 ms | p99 ms | ratio | to | at most |")?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    for row in rows {
        if row.samples.is_empty() {
            writeln!(out, "| {} | not installed here | | | | |", row.name)?;
            continue;
        }
        let (p50, p99) = (row.quantile(0.5), row.quantile(0.99));
        let base = rows
            .iter()
            .find(|r| r.name == row.against)
            .map(|r| r.quantile(0.5));
        let ratio = base.map(|base| p50.as_secs_f64() / base.as_secs_f64());
        let ratio = ratio.map_or(String::new(), |r| format!("{r:.3}"));
        let at_most = row.at_most.map_or(String::new(), |m| m.to_string());
        let ms = |d: Duration| d.as_secs_f64() * 1000.0;
        writeln!(
            out,
            "| {} | {:.3} | {:.3} | {ratio} | {} | {at_most} |",
            row.name,
            ms(p50),
            ms(p99),
            row.against,
        )?;
    }
    writeln!(
        out,
        "\nidle guest, private memory: {memory} KiB (at most 4096)"
    )?;
    Ok(())
}
