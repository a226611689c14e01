//! Sessions on Kubernetes against `kubectl run`, and what they cost the API server.
//!
//! `cargo run --release -p ringfence-bench --bin bench-kube [ROUNDS]`, with the cluster of
//! `tests/engines/cluster-up` (RINGFENCE_TEST_KUBECONFIG), the images of `cluster-guest`, and kubectl
//! on the search path. Servers run outside the cluster, on its node.

mod client;
mod kube_cost;
mod session;

use client::{Client, Result, Server, quantile};
use kube_cost::Audit;
use serde_json::json;
use session::bare;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const NAMESPACE: &str = "ringfence-bench";
const IMAGE: &str = "ringfence-test/python";
const WITH_GUEST: &str = "ringfence-test/python-guest";
const GUEST: &str = "ringfence-test/guest";
/// Longer than anything here takes on a machine that works.
const PATIENCE: Duration = Duration::from_secs(120);

/// The cluster, through its own command line.
struct Cluster {
    config: PathBuf,
}

impl Cluster {
    fn kubectl(&self, args: &[&str]) -> Result<String> {
        let done = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(&self.config)
            .args(["--namespace", NAMESPACE])
            .args(args)
            .stdin(Stdio::null())
            .output()?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            return Err(format!("kubectl {}: {said}", args.join(" ")).into());
        }
        Ok(String::from_utf8(done.stdout)?)
    }

    /// A pod as `kubectl run` makes it, until it is ready.
    fn run(&self, name: &str, image: &str) -> Result<Duration> {
        let start = Instant::now();
        let image = format!("--image={image}");
        let sleep = [
            "--image-pull-policy=IfNotPresent",
            "--restart=Never",
            "--",
            "sleep",
            "1000",
        ];
        self.kubectl(&[&["run", name, &image], &sleep[..]].concat())?;
        let pod = format!("pod/{name}");
        self.kubectl(&["wait", "--for=condition=Ready", &pod, "--timeout=60s"])?;
        let took = start.elapsed();
        self.kubectl(&["delete", &pod, "--grace-period=0", "--force"])?;
        Ok(took)
    }

    /// Waits until so many pods of the pool are ready.
    fn await_pool(&self, count: usize) -> Result<()> {
        let ready =
            "jsonpath={range .items[*]}{.status.conditions[?(@.type=='Ready')].status}{'\\n'}{end}";
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let states = self.kubectl(&["get", "pods", "-l", "ringfence=pool", "-o", ready])?;
            if states.lines().filter(|state| *state == "True").count() >= count {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err("the pool is not filled".into())
    }

    fn await_empty(&self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if self.kubectl(&["get", "pods", "-o", "name"])?.is_empty() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Err("pods are left".into())
    }
}

fn main() -> Result<()> {
    let rounds: usize = std::env::args()
        .nth(1)
        .map_or(Ok(10), |text| text.parse())?;
    let config = std::env::vars()
        .find(|(name, _)| name == "RINGFENCE_TEST_KUBECONFIG")
        .map(|(_, path)| PathBuf::from(path))
        .ok_or("RINGFENCE_TEST_KUBECONFIG is not set; see tests/engines/cluster-up")?;
    let home = std::env::temp_dir().join(format!("ringfence-kube-{}", std::process::id()));
    std::fs::create_dir_all(&home)?;
    let cluster = Cluster { config };
    let made = Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(&cluster.config)
        .args(["create", "namespace", NAMESPACE])
        .stdout(Stdio::null())
        .status()?;
    let measured = measure(&cluster, &home, rounds);
    if made.success() {
        cluster.kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"])?;
    }
    std::fs::remove_dir_all(&home)?;
    measured
}

/// A server before the cluster.
fn serve(cluster: &Cluster, state: &Path, args: &[&str]) -> Result<Server> {
    let own = [
        "--backend",
        "kubernetes",
        "--no-auth",
        "--kube-namespace",
        NAMESPACE,
    ];
    let env = [("KUBECONFIG", cluster.config.as_path())];
    Server::start_with(state, 256, &[&own, args].concat(), &env)
}

fn measure(cluster: &Cluster, home: &Path, rounds: usize) -> Result<()> {
    let code = json!({"tool": "code_execution", "input": {"code": "print(1)"}}).to_string();
    let by_address = ["--kube-reach", "address"];
    let injected = ["--image", IMAGE, "--guest-image", GUEST];
    let inside = ["--image", WITH_GUEST];
    let injecting = serve(
        cluster,
        &home.join("injected"),
        &[&by_address[..], &injected].concat(),
    )?;
    let plain = serve(
        cluster,
        &home.join("plain"),
        &[&by_address[..], &inside].concat(),
    )?;
    let exec = serve(
        cluster,
        &home.join("exec"),
        &[&["--kube-reach", "exec"], &inside[..]].concat(),
    )?;
    let first = |client: &mut Client| -> Result<Duration> {
        let start = Instant::now();
        let id = client.create()?;
        client.exec(&id, &code, "1")?;
        let took = start.elapsed();
        client.delete(&id)?;
        Ok(took)
    };
    let mut clients = [Client::new(&injecting)?, Client::new(&plain)?];
    let mut exec_client = Client::new(&exec)?;
    let live = clients[1].create()?;
    let far = exec_client.create()?;
    let (mut base, mut theirs, mut theirs_guest) = (vec![], vec![], vec![]);
    let (mut with_init, mut with_guest) = (vec![], vec![]);
    let (mut call, mut through) = (vec![], vec![]);
    // A node looks at its pods once in a second, and what ends at such a look would begin the next
    // row right after it: each begins at another moment of that second.
    let mut waits = 0.0_f64;
    let mut wait = || {
        waits = (waits + 0.618_034).fract();
        std::thread::sleep(Duration::from_secs_f64(waits));
    };
    for round in 0..=rounds {
        wait();
        let plain = cluster.run(&format!("plain-{round}"), IMAGE)?;
        wait();
        let injected = first(&mut clients[0])?;
        wait();
        let guest = cluster.run(&format!("guest-{round}"), WITH_GUEST)?;
        wait();
        let inside = first(&mut clients[1])?;
        for _ in 0..10 {
            base.push(bare()?);
            let start = Instant::now();
            clients[1].exec(&live, &code, "1")?;
            call.push(start.elapsed());
            let start = Instant::now();
            exec_client.exec(&far, &code, "1")?;
            through.push(start.elapsed());
        }
        // The first round fills the caches of all of them.
        if round == 0 {
            for samples in [&mut base, &mut call, &mut through] {
                samples.clear();
            }
            continue;
        }
        theirs.push(plain);
        with_init.push(injected);
        theirs_guest.push(guest);
        with_guest.push(inside);
    }
    clients[1].delete(&live)?;
    exec_client.delete(&far)?;
    drop((exec, injecting));

    // What a session of a few calls writes, cold; then the same from a pool.
    let audit = Audit::beside(&cluster.config)?;
    let life = |client: &mut Client| -> Result<Duration> {
        let start = Instant::now();
        let id = client.create()?;
        client.exec(&id, &code, "1")?;
        let took = start.elapsed();
        client.exec(&id, &code, "1")?;
        client.exec(&id, &code, "1")?;
        client.delete(&id)?;
        Ok(took)
    };
    cluster.await_empty()?;
    let before = audit.count(NAMESPACE)?;
    for _ in 0..rounds {
        life(&mut clients[1])?;
    }
    cluster.await_empty()?;
    let cold = audit.count(NAMESPACE)?.since(&before, rounds);
    drop(plain);

    let before = audit.count(NAMESPACE)?;
    let size = 2;
    let pool = [&by_address[..], &inside, &["--pool", "2"]].concat();
    let pooling = serve(cluster, &home.join("pool"), &pool)?;
    let mut client = Client::new(&pooling)?;
    let mut claimed = vec![];
    for _ in 0..rounds {
        cluster.await_pool(size)?;
        claimed.push(life(&mut client)?);
    }
    drop((client, pooling));
    cluster.await_empty()?;
    // The pods of the pool that nobody claimed were made and removed, too.
    let pooled = audit.count(NAMESPACE)?.since(&before, rounds);

    let mut out = anstream::stdout();
    writeln!(
        out,
        "| on Kubernetes | p50 ms | p99 ms | ratio | to | at most |\n|---|---|---|---|---|---|"
    )?;
    let names = [
        "kubectl run until Ready",
        "the same image with the guest",
        "bare",
        "cold",
    ];
    for (name, samples, unit, to, most) in [
        (names[0], &theirs, &theirs, "", ""),
        (
            "session, first result, guest injected",
            &with_init,
            &theirs,
            names[0],
            "2.5",
        ),
        (names[1], &theirs_guest, &theirs_guest, "", ""),
        (
            "session, first result, guest in the image",
            &with_guest,
            &theirs_guest,
            names[1],
            "1.3",
        ),
        (
            "session from the pool, first result",
            &claimed,
            &with_guest,
            names[3],
            "0.15, 150 ms",
        ),
        ("python3 -c 'print(1)', bare", &base, &base, "", ""),
        ("REPL call by pod address", &call, &base, names[2], "0.08"),
        (
            "REPL call through pods/exec",
            &through,
            &base,
            names[2],
            "0.3",
        ),
    ] {
        let (p50, p99) = (quantile(samples, 0.5), quantile(samples, 0.99));
        let ratio = p50 / quantile(unit, 0.5);
        writeln!(
            out,
            "| {name} | {p50:.3} | {p99:.3} | {ratio:.3} | {to} | {most} |"
        )?;
    }
    writeln!(
        out,
        "\n| writes to the API server for each session | ours | at most | the cluster's own |\n|---|---|---|---|"
    )?;
    for (name, cost) in [("cold", cold), ("from the pool", pooled)] {
        writeln!(
            out,
            "| {name} | {:.1} | 6 | {:.1} |",
            cost.ours, cost.theirs
        )?;
    }
    Ok(())
}
