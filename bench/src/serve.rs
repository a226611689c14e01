//! `ringfence serve` over HTTP on loopback, against bare `/usr/bin/python3 -c 'print(1)'`.
//!
//! `cargo run --release -p ringfence-bench --bin bench-serve [ROUNDS [SESSIONS]]`: the calls take
//! turns with bare Python, round by round; then eight clients create, exec and delete; then so many
//! sessions (500 when absent, 0 for none) live at once, with a call to each.

mod client;
mod session;

use client::{Client, Result, Server, quantile};
use serde_json::json;
use session::bare;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const CLIENTS: usize = 8;

/// Between two rounds.
const SETTLE: Duration = Duration::from_millis(50);

const IMAGE: &str = "ringfence-test/python";
const DOCKER: [&str; 4] = ["--backend", "docker", "--image", IMAGE];

fn has_image() -> bool {
    let mut inspect = Command::new("docker");
    inspect.args(["image", "inspect", IMAGE]);
    inspect.stdout(Stdio::null()).stderr(Stdio::null());
    inspect.status().is_ok_and(|status| status.success())
}

/// How often eight threads can do it in a second, each `times` times.
fn per_second(times: usize, work: impl Fn() -> Result<()> + Sync) -> Result<f64> {
    let failed = AtomicUsize::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                for _ in 0..times {
                    if let Err(error) = work() {
                        failed.fetch_add(1, Ordering::Relaxed);
                        let _ = writeln!(anstream::stderr(), "{error}");
                    }
                }
            });
        }
    });
    let took = start.elapsed().as_secs_f64();
    match failed.into_inner() {
        0 => Ok((CLIENTS * times) as f64 / took),
        failed => Err(format!("{failed} of {} failed", CLIENTS * times).into()),
    }
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let rounds: usize = args.next().map_or(Ok(100), |text| text.parse())?;
    let sessions: usize = args.next().map_or(Ok(500), |text| text.parse())?;
    let home = std::env::temp_dir().join(format!("ringfence-serve-{}", std::process::id()));
    std::fs::create_dir_all(&home)?;
    let measured = measure(&home, rounds, sessions);
    std::fs::remove_dir_all(&home)?;
    measured
}

fn measure(home: &Path, rounds: usize, sessions: usize) -> Result<()> {
    let server = Server::start(&home.join("state"), sessions + CLIENTS + 16)?;
    let mut client = Client::new(&server)?;
    // The same REPL in a container, where an engine with the image answers.
    let contained = match has_image() {
        true => Some(Server::start_with(&home.join("docker"), 1, &DOCKER, &[])?),
        false => None,
    };
    let mut contained = match &contained {
        Some(server) => {
            let mut client = Client::new(server)?;
            let id = client.create()?;
            Some((client, id))
        }
        None => None,
    };
    let code = json!({"tool": "code_execution", "input": {"code": "print(1)"}}).to_string();
    let bash = json!({"tool": "bash_code_execution", "input": {"command": "echo 1"}}).to_string();
    let live = client.create()?;
    let (mut base, mut first, mut call, mut shell) = (vec![], vec![], vec![], vec![]);
    let mut in_docker = vec![];
    for round in 0..rounds + 3 {
        let bare = bare()?;
        for _ in 0..10 {
            let start = Instant::now();
            client.exec(&live, &code, "1")?;
            call.push(start.elapsed());
        }
        for _ in 0..5 {
            let start = Instant::now();
            client.exec(&live, &bash, "1\n")?;
            shell.push(start.elapsed());
        }
        if let Some((client, id)) = &mut contained {
            for _ in 0..10 {
                let start = Instant::now();
                client.exec(id, &code, "1")?;
                in_docker.push(start.elapsed());
            }
        }
        let start = Instant::now();
        let id = client.create()?;
        client.exec(&id, &code, "1")?;
        let fresh = start.elapsed();
        client.delete(&id)?;
        // The system takes a sandbox apart in its own time, which is no row's.
        std::thread::sleep(SETTLE);
        // The first rounds fill the caches of all of them.
        if round < 3 {
            call.clear();
            shell.clear();
            in_docker.clear();
            continue;
        }
        base.push(bare);
        first.push(fresh);
    }
    client.delete(&live)?;
    let mut out = anstream::stdout();
    writeln!(
        out,
        "| over HTTP | p50 ms | p99 ms | ratio to bare | at most |"
    )?;
    writeln!(out, "|---|---|---|---|---|")?;
    let unit = quantile(&base, 0.5);
    for (name, samples, most) in [
        ("python3 -c 'print(1)', bare", &base, ""),
        ("create a session and get the first print(1)", &first, "1.6"),
        ("REPL call print(1)", &call, "0.04"),
        ("bash call echo 1", &shell, "0.30"),
        ("REPL call print(1) in Docker", &in_docker, "0.10"),
    ]
    .into_iter()
    .filter(|(_, samples, _)| !samples.is_empty())
    {
        let (p50, p99) = (quantile(samples, 0.5), quantile(samples, 0.99));
        let ratio = p50 / unit;
        writeln!(
            out,
            "| {name} | {p50:.3} | {p99:.3} | {ratio:.3} | {most} |"
        )?;
    }
    let times = rounds.clamp(1, 25);
    let alone = per_second(times, || bare().map(drop))?;
    let whole = per_second(times, || {
        let mut client = Client::new(&server)?;
        let id = client.create()?;
        client.exec(&id, &code, "1")?;
        client.delete(&id)
    })?;
    writeln!(
        out,
        "\ncreate, exec, delete with {CLIENTS} clients: {whole:.1} per second, {:.2} of bare \
         one-shots at the same time ({alone:.1}); at least 0.35",
        whole / alone
    )?;
    if sessions > 0 {
        hold(&server, sessions, &code)?;
    }
    Ok(())
}

/// So many sessions at once, with a call to each.
fn hold(server: &Server, sessions: usize, code: &str) -> Result<()> {
    let mut client = Client::new(server)?;
    let before = memory(server)?;
    let mut ids = Vec::new();
    for _ in 0..sessions {
        let id = client.create()?;
        client.exec(&id, code, "1")?;
        ids.push(id);
    }
    for id in &ids {
        client.exec(id, code, "1")?;
    }
    let after = memory(server)?;
    for id in &ids {
        client.delete(id)?;
    }
    let mut out = anstream::stdout();
    writeln!(
        out,
        "{sessions} live sessions, a call to each: the server itself has {:.1} MiB private \
         ({:.1} before); at most 60",
        after as f64 / 1024.0,
        before as f64 / 1024.0
    )?;
    Ok(())
}

/// Private memory of the server's own process, in KiB.
fn memory(server: &Server) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", server.child.id()))?;
    Ok(text
        .lines()
        .filter(|line| line.starts_with("Private_"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum())
}
