//! What limits 10,000 and 100,000 live sessions on Kubernetes: a simulation of claims and refills,
//! and the sums around it. Nothing here talks to a cluster; docs/scale.md says where the constants
//! come from, and what follows.
//!
//! `cargo run --release -p ringfence-bench --bin bench-scale`

mod scale_model;

use scale_model::{Load, Outcome, simulate};
use std::io::Write as _;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Writes to the API server in the life of a session, measured by bench-kube and the audit log of
/// the test cluster: ours, and those of scheduler, kubelet and controllers, events included.
const OURS_COLD: f64 = 2.0;
const OURS_POOLED: f64 = 5.0;
const THEIRS: f64 = 13.0;
/// Messages of one watch in the life of a session, and the size of each.
const MESSAGES: f64 = 6.0;
const OBJECT: f64 = 9_300.0;
/// Private memory of a server: of itself, for each session that it knows, and for each one that it
/// has a connection to.
const SERVER: f64 = 10e6;
const KNOWN: f64 = 46_000.0;
const CONNECTED: f64 = 37_000.0;

fn main() -> Result<()> {
    let mut out = anstream::stdout();
    writeln!(out, "## Sums\n")?;
    writeln!(
        out,
        "| live | mean life | servers | creates/s | our writes/s, cold | pooled | the cluster's own | \
         watch messages/s | watch MB/s | MB of a server, no connections | all connected |"
    )?;
    writeln!(out, "|{}", "---|".repeat(11))?;
    for (live, servers) in [(10_000.0, 3.0), (100_000.0, 3.0), (100_000.0, 10.0)] {
        for life in [600.0, 3600.0] {
            let rate = live / life;
            let messages = rate * MESSAGES * servers;
            writeln!(
                out,
                "| {live} | {life} s | {servers} | {rate:.0} | {:.0} | {:.0} | {:.0} | {messages:.0} | {:.1} | {:.0} | {:.0} |",
                rate * OURS_COLD,
                rate * OURS_POOLED,
                rate * THEIRS,
                messages * OBJECT / 1e6,
                (SERVER + live * KNOWN) / 1e6,
                (SERVER + live * (KNOWN + CONNECTED)) / 1e6,
            )?;
        }
    }
    writeln!(out, "\n## Steady arrivals: how large a pool\n")?;
    header(&mut out)?;
    let usual = Load::default();
    for (rate, pools) in [
        (17.0, [0, 10, 20, 40, 60]),
        (50.0, [0, 60, 90, 120, 180]),
        (167.0, [0, 200, 300, 400, 600]),
    ] {
        for pool in pools {
            let load = Load {
                rate,
                pool,
                starts: f64::max(100.0, rate * 1.5),
                ..usual
            };
            row(&mut out, &load)?;
        }
    }
    writeln!(
        out,
        "\n## The same, where the cluster starts fewer pods than are asked for\n"
    )?;
    header(&mut out)?;
    for pool in [200, 600] {
        row(
            &mut out,
            &Load {
                rate: 167.0,
                pool,
                starts: 100.0,
                ..usual
            },
        )?;
    }
    writeln!(
        out,
        "\n## Servers that claim at once, a random pod or the first in the list, as often as it takes\n"
    )?;
    header(&mut out)?;
    for servers in [2, 10, 30] {
        for first in [false, true] {
            row(
                &mut out,
                &Load {
                    rate: 167.0,
                    pool: 400,
                    starts: 250.0,
                    servers,
                    first,
                    tries: usize::MAX,
                    ..usual
                },
            )?;
        }
    }
    writeln!(
        out,
        "\n## A burst of 1,000 in one second on top of 17 each second\n"
    )?;
    header(&mut out)?;
    for pool in [60, 250, 1000] {
        for tries in [3, usize::MAX] {
            let load = Load {
                rate: 17.0,
                pool,
                burst: 1000,
                tries,
                ..usual
            };
            row(&mut out, &load)?;
        }
    }
    Ok(())
}

fn header(out: &mut impl std::io::Write) -> std::io::Result<()> {
    writeln!(
        out,
        "| creates/s | servers | choice | tries | pool | pod starts/s | from the pool | refused claims each | \
         first result p50 s | p99 s | our writes/s, mean | most |"
    )?;
    writeln!(out, "|{}", "---|".repeat(12))
}

fn row(out: &mut impl std::io::Write, load: &Load) -> std::io::Result<()> {
    let Outcome {
        pooled,
        refused,
        p50,
        p99,
        writes,
        most,
    } = simulate(load);
    writeln!(
        out,
        "| {} | {} | {} | {} | {} | {} | {:.1} % | {refused:.3} | {p50:.2} | {p99:.2} | {writes:.0} | {most} |",
        load.rate,
        load.servers,
        if load.first { "first" } else { "random" },
        match load.tries {
            usize::MAX => "all".to_owned(),
            tries => tries.to_string(),
        },
        load.pool,
        load.starts,
        pooled * 100.0,
    )
}
