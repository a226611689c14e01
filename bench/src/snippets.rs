//! Snippets over HTTP against the same programs without a sandbox.
//!
//! `cargo run --release -p ringfence-bench --bin bench-snippets [ROUNDS [BATCH]]`: all take turns,
//! round by round; then so many Python snippets (200 when absent) run as one batch, against a shell
//! loop with two jobs. What is not installed has no row.

mod client;

use client::{Client, PYTHON, Result, Server, quantile};
use serde_json::{Value, json};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const NODE: &str = "/usr/bin/node";
const DOCKER: &str = "docker";
const IMAGE: &str = "ringfence-test/python";

/// Something that is measured in every round; absent where it can't be done here.
struct Row {
    name: &'static str,
    work: Box<dyn FnMut() -> Result<()>>,
    /// The row that it is held against, and how.
    against: &'static str,
    wanted: &'static str,
    samples: Vec<Duration>,
}

fn row(
    name: &'static str,
    against: &'static str,
    wanted: &'static str,
    work: impl FnMut() -> Result<()> + 'static,
) -> Row {
    Row {
        name,
        work: Box::new(work),
        against,
        wanted,
        samples: Vec::new(),
    }
}

fn bare(program: &str, args: &[&str]) -> Result<()> {
    let mut command = Command::new(program);
    if program != DOCKER {
        // What the caller's environment adds to a start is not the program's.
        command.env_clear();
    }
    let status = command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{program} failed").into()),
    }
}

fn snippet(client: &mut Client, body: &Value) -> Result<()> {
    let (status, done) = client.ask("POST", "/run", &body.to_string())?;
    match status == 200 && done["stdout"] == "1\n" {
        true => Ok(()),
        false => Err(format!("run: {status} {done}").into()),
    }
}

fn over_http(
    server: &Server,
    language: &str,
    code: &str,
) -> Result<impl FnMut() -> Result<()> + use<>> {
    let mut client = Client::new(server)?;
    let body = json!({"language": language, "code": code});
    Ok(move || snippet(&mut client, &body))
}

/// Whether the engine is there, with an image to run.
fn has_docker() -> bool {
    bare(DOCKER, &["image", "inspect", IMAGE]).is_ok()
}

fn rows(server: &Server) -> Result<Vec<Row>> {
    const SCRIPT: &str = "const n = 1; console.log(n)";
    let mut rows = vec![
        row("python3 -c, bare", "", "", || {
            bare(PYTHON, &["-c", "print(1)"])
        }),
        row(
            "python",
            "python3 -c, bare",
            "at most 1.4",
            over_http(server, "python", "print(1)")?,
        ),
    ];
    if Path::new(NODE).exists() {
        rows.push(row("node -e, bare", "", "", || bare(NODE, &["-e", SCRIPT])));
        let run = over_http(server, "javascript", SCRIPT)?;
        rows.push(row("javascript", "node -e, bare", "at most 1.3", run));
        let typed = "const n: number = 1; console.log(n)";
        let run = over_http(server, "typescript", typed)?;
        rows.push(row("typescript", "javascript", "at most 3 ms more", run));
    }
    if has_docker() {
        let run = [
            "run",
            "--rm",
            "--network",
            "none",
            IMAGE,
            "python3",
            "-c",
            "print(1)",
        ];
        rows.push(row(
            "docker run --rm, python",
            "python",
            "at least 10",
            move || bare(DOCKER, &run),
        ));
    }
    Ok(rows)
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let rounds: usize = args.next().map_or(Ok(50), |text| text.parse())?;
    let batch: usize = args.next().map_or(Ok(200), |text| text.parse())?;
    let home = std::env::temp_dir().join(format!("ringfence-snippets-{}", std::process::id()));
    std::fs::create_dir_all(&home)?;
    let measured = measure(&home, rounds, batch);
    std::fs::remove_dir_all(&home)?;
    measured
}

fn measure(home: &Path, rounds: usize, batch: usize) -> Result<()> {
    let server = Server::start(&home.join("state"), 64)?;
    let mut rows = rows(&server)?;
    // The first rounds fill the caches of all of them.
    for round in 0..rounds + 3 {
        for row in &mut rows {
            let start = Instant::now();
            (row.work)()?;
            if round >= 3 {
                row.samples.push(start.elapsed());
            }
        }
    }
    let mut out = anstream::stdout();
    writeln!(
        out,
        "| snippet | p50 ms | p99 ms | ratio | difference ms | against | wanted |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|")?;
    for row in &rows {
        let (p50, p99) = (quantile(&row.samples, 0.5), quantile(&row.samples, 0.99));
        let base = rows.iter().find(|other| other.name == row.against);
        let (ratio, more) = match base.map(|base| quantile(&base.samples, 0.5)) {
            Some(base) => (format!("{:.2}", p50 / base), format!("{:+.2}", p50 - base)),
            None => (String::new(), String::new()),
        };
        let Row {
            name,
            against,
            wanted,
            ..
        } = row;
        writeln!(
            out,
            "| {name} | {p50:.2} | {p99:.2} | {ratio} | {more} | {against} | {wanted} |"
        )?;
    }
    let alone = shell_loop(batch)?;
    let ours = judged(&server, batch)?;
    writeln!(
        out,
        "\n{batch} python snippets in a batch: {ours:.1} per second, {:.2} of a shell loop with 2 \
         jobs ({alone:.1}); at least 0.55",
        ours / alone
    )?;
    Ok(())
}

/// Bare Python in a shell loop with two jobs, per second.
fn shell_loop(times: usize) -> Result<f64> {
    let line = format!("seq {times} | xargs -P 2 -I N {PYTHON} -c 'print(N)'");
    let start = Instant::now();
    bare("/bin/sh", &["-c", &line])?;
    Ok(times as f64 / start.elapsed().as_secs_f64())
}

/// As one batch, with as many jobs as there are processors.
fn judged(server: &Server, times: usize) -> Result<f64> {
    let one = |n: usize| json!({"language": "python", "code": format!("print({n})")});
    let snippets: Vec<Value> = (0..times).map(one).collect();
    let body = json!({ "snippets": snippets }).to_string();
    let mut client = Client::new(server)?;
    let start = Instant::now();
    let (status, answer) = client.ask("POST", "/run/batch", &body)?;
    let took = start.elapsed().as_secs_f64();
    match status == 200 && answer["verdicts"]["accepted"] == times {
        true => Ok(times as f64 / took),
        false => Err(format!("batch: {status} {}", answer["verdicts"]).into()),
    }
}
