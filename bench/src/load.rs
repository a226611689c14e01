//! `ringfence serve` with many clients at once, each of which does what comes into its mind.
//!
//! `cargo run --release -p ringfence-bench --bin bench-load [CLIENTS [SECONDS]]` (64 and 60 when
//! absent): creates, calls, commands, timeouts, interrupts, lost connections and deletes. Every
//! answer is checked; afterwards nothing may be left. The last line says by how much the slowest
//! calls are slower than the usual ones.

mod client;
mod session;

use client::{Client, Result, Server, quantile};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most sessions of one client at a time.
const HELD: usize = 2;

type Samples = Mutex<BTreeMap<&'static str, Vec<Duration>>>;

/// A small generator, so that a run can be told from the next by its seed alone.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

fn exec(tool: &str, input: serde_json::Value, seconds: u32) -> String {
    json!({"tool": tool, "input": input, "timeout_seconds": seconds}).to_string()
}

/// One client until its time is over: what it asked for and did not get.
fn behave(server: &Server, seed: u64, until: Instant, samples: &Samples) -> Vec<String> {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut held, mut wrong) = (Vec::new(), Vec::new());
    let mut client = None;
    while Instant::now() < until {
        let done = Client::again(&mut client, server).and_then(|client| {
            let begun = Instant::now();
            let what = step(server, client, &mut dice, &mut held)?;
            let mut all = samples.lock().unwrap_or_else(PoisonError::into_inner);
            all.entry(what).or_default().push(begun.elapsed());
            Ok(())
        });
        if let Err(error) = done {
            wrong.push(error.to_string());
            client = None;
        }
    }
    for id in held {
        let gone = Client::again(&mut client, server).and_then(|client| client.delete(&id));
        wrong.extend(gone.err().map(|error| error.to_string()));
    }
    wrong
}

fn step(
    server: &Server,
    client: &mut Client,
    dice: &mut Dice,
    held: &mut Vec<String>,
) -> Result<&'static str> {
    let roll = dice.below(100);
    if held.is_empty() || (roll < 10 && held.len() < HELD) {
        held.push(client.create()?);
        return Ok("create");
    }
    let index = dice.below(held.len() as u64) as usize;
    let id = held[index].clone();
    let number = dice.below(1000);
    match roll {
        10..20 => {
            held.swap_remove(index);
            client.delete(&id)?;
            Ok("delete")
        }
        20..25 => {
            let body = exec("code_execution", json!({"code": "while True: pass"}), 1);
            client.exec_ending(&id, &body, "timed out after 1s")?;
            Ok("timeout of code")
        }
        25..30 => {
            let input = json!({"command": "sleep 100 & sleep 100"});
            let body = exec("bash_code_execution", input, 1);
            client.exec_ending(&id, &body, "timed out after 1s")?;
            Ok("timeout of a command")
        }
        30..35 => {
            let code = "import time\ntime.sleep(100)";
            let body = exec("code_execution", json!({"code": code}), 100);
            let path = format!("/sessions/{id}/interrupt");
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let interrupts = scope.spawn(|| -> Result<()> {
                    let mut other = Client::new(server)?;
                    // One that comes before the call runs is for nobody.
                    while !over.load(Ordering::Acquire) {
                        std::thread::sleep(Duration::from_millis(100));
                        other.ask("POST", &path, "")?;
                    }
                    Ok(())
                });
                let cut = client.exec_ending(&id, &body, "nterrupt");
                over.store(true, Ordering::Release);
                interrupts
                    .join()
                    .unwrap_or_else(|_| Err("panicked".into()))?;
                cut
            })?;
            Ok("interrupt")
        }
        35..38 => {
            let body = exec("bash_code_execution", json!({"command": "sleep 1"}), 10);
            Client::new(server)?.send("POST", &format!("/sessions/{id}/exec"), &body)?;
            Ok("a lost connection")
        }
        38..60 => {
            let body = exec(
                "bash_code_execution",
                json!({"command": format!("echo {number}")}),
                60,
            );
            client.exec(&id, &body, &format!("{number}\n"))?;
            Ok("bash call")
        }
        _ => {
            let code = format!("print({number})");
            let body = exec("code_execution", json!({"code": code}), 60);
            client.exec(&id, &body, &number.to_string())?;
            Ok("REPL call")
        }
    }
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let clients: u64 = args.next().map_or(Ok(64), |text| text.parse())?;
    let seconds: u64 = args.next().map_or(Ok(60), |text| text.parse())?;
    let home = std::env::temp_dir().join(format!("ringfence-load-{}", std::process::id()));
    std::fs::create_dir_all(&home)?;
    let measured = measure(&home, clients, Duration::from_secs(seconds));
    std::fs::remove_dir_all(&home)?;
    measured
}

fn measure(home: &Path, clients: u64, time: Duration) -> Result<()> {
    let state = home.join("state");
    let server = Server::start(&state, clients as usize * HELD)?;
    let samples = Samples::default();
    let until = Instant::now() + time;
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let (server, samples) = (&server, &samples);
        let all: Vec<_> = (1..=clients)
            .map(|seed| scope.spawn(move || behave(server, seed, until, samples)))
            .collect();
        all.into_iter()
            .flat_map(|one| {
                one.join()
                    .unwrap_or_else(|_| vec!["a client panicked".into()])
            })
            .collect()
    });
    let mut out = anstream::stdout();
    writeln!(out, "| {clients} clients | times | p50 ms | p99 ms |")?;
    writeln!(out, "|---|---|---|---|")?;
    let samples = samples.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (name, times) in &samples {
        let (p50, p99) = (quantile(times, 0.5), quantile(times, 0.99));
        writeln!(out, "| {name} | {} | {p50:.1} | {p99:.1} |", times.len())?;
    }
    for error in wrong.iter().take(10) {
        writeln!(anstream::stderr(), "{error}")?;
    }
    let (_, listed) = Client::new(&server)?.ask("GET", "/sessions", "")?;
    let left = std::fs::read_dir(&state)?
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .count();
    let listed = listed["sessions"].as_array().map_or(usize::MAX, Vec::len);
    writeln!(
        out,
        "\nunasked errors: {}; sessions left: {listed}; folders left: {left}",
        wrong.len()
    )?;
    for name in ["REPL call", "bash call"] {
        if let Some(times) = samples.get(name) {
            let ratio = quantile(times, 0.99) / quantile(times, 0.5);
            writeln!(out, "{name}: p99 is {ratio:.1} × p50; at most 20")?;
        }
    }
    match wrong.is_empty() && listed == 0 && left == 0 {
        true => Ok(()),
        false => Err("something went wrong, or something is left".into()),
    }
}
