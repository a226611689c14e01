//! What a cluster lets us do and what it holds, each tried in pods of our own.

use super::isolation::judge;
use super::probe::{Probe, Reach, Sandbox};
use super::{Check, State};
use crate::backends;
use crate::config::Config;
use ringfence_core::backend::kubernetes::{About, Kubernetes, PORT, Right};
use ringfence_core::{Backend as _, Control, Failure, Hold, SandboxSpec};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// How long a way to a sandbox may take that need not be there.
const OTHER_WAY: Duration = Duration::from_secs(5);
const CONNECTING: Duration = Duration::from_secs(3);

const ROLE: &str = "kubectl apply -f deploy/base/rbac.yaml, and what of deploy/options is used";

/// A socket of any kind but unix ones.
const SOCKET: &str = "command -v python3 >/dev/null || exit 3; python3 -c '
import socket, sys
try: socket.socket()
except OSError: sys.exit(10)'";

const CONNECT: &str = "command -v python3 >/dev/null || exit 3; python3 -c '
import socket, sys
try: socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)
except OSError: sys.exit(10)' \"$@\"";

fn missing(name: &'static str, failure: &Failure) -> Check {
    let check = Check::new(name, State::Missing, failure.message.clone());
    match &failure.hint {
        Some(hint) => check.fix(hint.to_string()),
        None => check,
    }
}

/// One line about a cluster that is only looked at.
pub(super) async fn note(config: &Config) -> String {
    let looked = async {
        let cluster = backends::kubernetes(config)?;
        let about = cluster.about().await?;
        let lacking = names(&cluster.rights().await?, false);
        Ok::<_, Failure>((about, lacking))
    };
    match looked.await {
        Ok((about, lacking)) if lacking.is_empty() => format!(
            "{}: `ringfence doctor --backend kubernetes` tries it",
            described(&about)
        ),
        Ok((about, lacking)) => format!("{}, where this is refused: {lacking}", described(&about)),
        Err(failure) => failure.message,
    }
}

fn described(about: &About) -> String {
    let (major, minor) = about.version;
    let (address, namespace) = (&about.address, &about.namespace);
    format!("Kubernetes {major}.{minor} at {address}, namespace {namespace}")
}

/// Those that are allowed, or those that are not.
fn names(rights: &[Right], allowed: bool) -> String {
    let some = rights.iter().filter(|right| right.allowed == allowed);
    let names: Vec<_> = some.map(|right| right.what.as_str()).collect();
    names.join(", ")
}

pub(super) async fn examine(config: &Config) -> Result<Vec<Check>, Failure> {
    let cluster = backends::kubernetes(config)?;
    let about = match cluster.about().await {
        Ok(about) => about,
        Err(failure) => return Ok(vec![missing("cluster", &failure)]),
    };
    let mut checks = vec![
        Check::new("cluster", State::Held, described(&about)),
        namespace(&cluster, &about).await?,
        rights(&cluster).await?,
        excess(&cluster).await?,
        runtimes(&cluster).await?,
    ];
    match Sandbox::make(&*cluster, SandboxSpec::default()).await {
        Ok(sandbox) => {
            let seen = look_around(&cluster, &about, config, &sandbox).await;
            sandbox.remove().await?;
            checks.extend(seen?);
        }
        Err(failure) => checks.push(missing("pod", &failure)),
    }
    Ok(checks)
}

async fn namespace(cluster: &Kubernetes, about: &About) -> Result<Check, Failure> {
    let name = &about.namespace;
    Ok(match cluster.has_namespace().await? {
        Some(true) => Check::new("namespace", State::Held, name.clone()),
        Some(false) => Check::new("namespace", State::Missing, format!("there is no {name}"))
            .fix(format!("kubectl create namespace {name}")),
        None => Check::new("namespace", State::Held, name.clone())
            .proof("we may not look at it; the pod tells"),
    })
}

async fn rights(cluster: &Kubernetes) -> Result<Check, Failure> {
    let rights = cluster.rights().await?;
    let lacking = names(&rights, false);
    Ok(match lacking.is_empty() {
        true => Check::new("rights", State::Held, names(&rights, true))
            .proof("asked of the API server, each"),
        false => Check::new("rights", State::Missing, format!("refused: {lacking}")).fix(ROLE),
    })
}

/// More than is needed.
async fn excess(cluster: &Kubernetes) -> Result<Check, Failure> {
    let allowed = names(&cluster.excess().await?, true);
    Ok(match allowed.is_empty() {
        true => Check::new(
            "no more rights",
            State::Held,
            "secrets and roles are not ours",
        ),
        false => Check::new(
            "no more rights",
            State::Weak,
            format!("allowed and not needed: {allowed}"),
        )
        .fix("a service account with the role of deploy/base"),
    })
}

async fn runtimes(cluster: &Kubernetes) -> Result<Check, Failure> {
    let means = match cluster.runtime_classes().await? {
        None => "we may not look which there are".to_owned(),
        Some(all) if all.is_empty() => {
            "none: the node's kernel is all that is between a sandbox and the node".to_owned()
        }
        Some(all) => format!("{}: `runtime` of a spec names one", all.join(", ")),
    };
    Ok(Check::new("runtime classes", State::Note, means))
}

async fn look_around(
    cluster: &Arc<Kubernetes>,
    about: &About,
    config: &Config,
    sandbox: &Sandbox<'_>,
) -> Result<Vec<Check>, Failure> {
    let mut checks = vec![
        pod(cluster, sandbox).await?,
        reach(cluster, about, sandbox).await,
        privileges(sandbox).await?,
        memory(sandbox).await?,
        match config.kubernetes.network_policy {
            true => policy(cluster, sandbox).await?,
            false => sockets(cluster, sandbox).await?,
        },
    ];
    for (name, control, fix) in [
        (
            "processes limit",
            Control::Pids,
            "`podPidsLimit` of the kubelets",
        ),
        (
            "workspace size",
            Control::Workspace,
            "Kubernetes 1.22 or later",
        ),
    ] {
        let Some(held) = sandbox.enforced(control) else {
            continue;
        };
        let state = match held.hold {
            Hold::None => State::Weak,
            _ => State::Held,
        };
        let check = Check::new(name, state, held.by.clone());
        checks.push(match state {
            State::Weak => check.fix(fix),
            _ => check.proof("known of this version, not tried"),
        });
    }
    Ok(checks)
}

async fn pod(cluster: &Kubernetes, sandbox: &Sandbox<'_>) -> Result<Check, Failure> {
    let probe = Probe {
        script: "echo $((6 * 7))",
        args: &[],
    };
    let said = probe.inside(sandbox).await?;
    let place = cluster.place(&sandbox.plan.id).await?;
    let name = place.map_or_else(String::new, |place| place.name);
    let image = sandbox.plan.container.as_ref().map(|c| c.image.as_str());
    let image = image.unwrap_or_default();
    Ok(match said.stdout.trim() {
        "42" => Check::new("pod", State::Held, format!("of {image}"))
            .proof(format!("{name} was made, and its shell computed 42")),
        _ => Check::new("pod", State::Weak, format!("{image} has no shell to try"))
            .proof(format!("{name} was made, and its guest answers")),
    })
}

/// The way that is used, and whether there is the other one.
async fn reach(cluster: &Kubernetes, about: &About, sandbox: &Sandbox<'_>) -> Check {
    let way = |by_address: bool| match by_address {
        true => "by address",
        false => "through the API server",
    };
    let (used, other) = (way(about.by_address), way(!about.by_address));
    let id = &sandbox.plan.id;
    if let Err(failure) = cluster.try_reach(id, about.by_address).await {
        return missing("reach", &failure);
    }
    let tried = tokio::time::timeout(OTHER_WAY, cluster.try_reach(id, !about.by_address)).await;
    let also = match tried {
        Ok(Ok(())) => format!("{other} too"),
        _ => format!("not {other}"),
    };
    Check::new("reach", State::Held, used).proof(format!("the guest answered; {also}"))
}

const FIELDS: [&str; 6] = ["Uid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Token"];

fn is_tight(field: &str, value: &str) -> bool {
    match field {
        "Uid" => !value.starts_with('0'),
        "CapEff" | "CapBnd" => value.chars().all(|digit| digit == '0'),
        "NoNewPrivs" => value == "1",
        "Seccomp" => value == "2",
        _ => value == "none",
    }
}

async fn privileges(sandbox: &Sandbox<'_>) -> Result<Check, Failure> {
    let script = "grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; \
                  test -e /var/run/secrets/kubernetes.io || echo 'Token: none'";
    let seen = Probe { script, args: &[] }.inside(sandbox).await?;
    let name = "privileges";
    let means = "no root, no capabilities, no new ones, a seccomp filter, no service account";
    if seen.field("CapEff").is_none() {
        return Ok(
            Check::new(name, State::Weak, format!("{means}, not proved"))
                .fix("the probes need /bin/sh and the usual small programs (coreutils, grep)"),
        );
    }
    let mut wrong = FIELDS.to_vec();
    wrong.retain(|field| {
        !seen
            .field(field)
            .is_some_and(|value| is_tight(field, value))
    });
    Ok(match wrong.is_empty() {
        true => Check::new(name, State::Held, means).proof("read in /proc/self/status, inside"),
        false => Check::new(name, State::Missing, wrong.join(", "))
            .proof(seen.stdout.trim().replace('\n', ", "))
            .fix("something in the cluster changes pods that are made: look at its webhooks"),
    })
}

async fn memory(sandbox: &Sandbox<'_>) -> Result<Check, Failure> {
    let script = "cat /sys/fs/cgroup/memory.max 2>/dev/null || \
                  cat /sys/fs/cgroup/memory/memory.limit_in_bytes";
    let seen = Probe { script, args: &[] }.inside(sandbox).await?;
    let limit = sandbox.plan.limits.memory;
    let (name, said) = ("memory", seen.stdout.trim());
    Ok(match said.parse::<u64>() {
        Ok(bytes) if bytes == limit.0 => Check::new(
            name,
            State::Held,
            format!("{limit} by the container's cgroup"),
        )
        .proof("read in the cgroup, inside"),
        Ok(bytes) => Check::new(name, State::Missing, format!("{bytes} bytes, not {limit}"))
            .fix("something in the cluster changes pods that are made: look at its limit ranges"),
        Err(_) => Check::new(name, State::Weak, format!("{limit}, not proved")),
    })
}

/// Without a policy the guest's filter has to hold: no socket here, and one where it is not used.
async fn sockets(cluster: &Arc<Kubernetes>, sandbox: &Sandbox<'_>) -> Result<Check, Failure> {
    let probe = Probe {
        script: SOCKET,
        args: &[],
    };
    let inside = probe.inside(sandbox).await?.reach();
    let mut open = SandboxSpec::default();
    let container = open.container.get_or_insert_default();
    container.network = Some("bridge".to_owned());
    let control = match Sandbox::make(&**cluster, open).await {
        Ok(other) => {
            let reached = probe.inside(&other).await;
            other.remove().await?;
            reached?.reach()
        }
        Err(_) => Reach::Broken,
    };
    let means = "none: the guest's seccomp filter denies sockets";
    let object = "a socket, and as the control one in a pod with a network";
    Ok(judge("network", means, object, control, inside))
}

/// A policy holds where a sandbox does not reach us, whom others reach at that address.
async fn policy(cluster: &Kubernetes, sandbox: &Sandbox<'_>) -> Result<Check, Failure> {
    let place = cluster.place(&sandbox.plan.id).await?;
    let address = place.and_then(|place| place.address?.parse::<IpAddr>().ok());
    let (outside, inside) = match address.and_then(|address| listen_before(address).ok()) {
        Some((_listener, own)) => {
            let (address, port) = (own.ip().to_string(), own.port().to_string());
            let probe = Probe {
                script: CONNECT,
                args: &[&address, &port],
            };
            (Reach::There, probe.inside(sandbox).await?.reach())
        }
        None => (Reach::Broken, Reach::Broken),
    };
    let means = "the cluster's network policy";
    let object = "a port of ours";
    let check = judge("network", means, object, outside, inside);
    Ok(match check.state {
        State::Missing => check.fix(
            "apply deploy/base/network.yaml where the network enforces it; where it does not, \
             leave the setting `kubernetes.network_policy` at false",
        ),
        State::Weak => {
            check.fix("run it where pods can be reached by address, and with python3 in the image")
        }
        _ => check,
    })
}

/// A port at the address that we have for a pod, which was tried.
fn listen_before(pod: IpAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let way = TcpStream::connect_timeout(&SocketAddr::new(pod, PORT), CONNECTING)?;
    let listener = TcpListener::bind((way.local_addr()?.ip(), 0))?;
    let own = listener.local_addr()?;
    TcpStream::connect_timeout(&own, CONNECTING)?;
    Ok((listener, own))
}
