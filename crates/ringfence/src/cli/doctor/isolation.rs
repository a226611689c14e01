//! The walls of the default sandbox, each tried from inside with a control from outside.

use super::probe::{Folder, Probe, Reach, Sandbox, random};
use super::{Check, State};
use crate::settings;
use ringfence_core::interpreter::Interpreter;
use ringfence_core::{Control, Failure, Hold};
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What every sandbox has in its environment, and so proves nothing.
const OWN: [&str; 11] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "MPLBACKEND",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "TERM",
    "SHELL",
];

const KINDS: [&str; 7] = ["user", "mnt", "pid", "ipc", "uts", "net", "cgroup"];

pub(super) async fn examine(
    sandbox: &Sandbox<'_>,
    interpreter: Option<&Interpreter>,
) -> Result<Vec<Check>, Failure> {
    Ok(vec![
        namespaces(sandbox).await?,
        processes(sandbox).await?,
        files(sandbox).await?,
        network(sandbox).await?,
        environment(sandbox).await?,
        privileges(sandbox).await?,
        system_calls(sandbox).await?,
        user(sandbox),
        landlock(sandbox),
        python(sandbox, interpreter).await?,
    ])
}

/// A wall that a probe must not get past inside, and must get past outside.
async fn wall(
    sandbox: &Sandbox<'_>,
    name: &'static str,
    means: &str,
    object: &str,
    probe: Probe<'_>,
) -> Result<Check, Failure> {
    let outside = probe.outside().reach();
    let inside = probe.inside(sandbox).await?.reach();
    Ok(judge(name, means, object, outside, inside))
}

pub(super) fn judge(
    name: &'static str,
    means: &str,
    object: &str,
    outside: Reach,
    inside: Reach,
) -> Check {
    match (outside, inside) {
        (Reach::There, Reach::HeldBack) => Check::new(name, State::Held, means)
            .proof(format!("{object}: reached outside, not inside")),
        (_, Reach::There) => Check::new(name, State::Missing, "there is no wall")
            .proof(format!("{object}: reached inside"))
            .fix("this is a defect of Ringfence: please report it with `ringfence doctor --json`"),
        _ => Check::new(name, State::Weak, format!("{means}, not proved"))
            .proof(format!(
                "{object}: the probe failed (outside {outside:?}, inside {inside:?})"
            ))
            .fix("the probes need /bin/sh and the usual small programs (coreutils, grep)"),
    }
}

async fn namespaces(sandbox: &Sandbox<'_>) -> Result<Check, Failure> {
    let script = "for k in user mnt pid ipc uts net cgroup; do \
                  echo \"$k $(readlink /proc/self/ns/$k)\"; done";
    let probe = Probe { script, args: &[] };
    let outside = probe.outside();
    let inside = probe.inside(sandbox).await?;
    let name = "namespaces";
    let mut shared = Vec::new();
    for kind in KINDS {
        match (outside.field(kind), inside.field(kind)) {
            (Some(out), Some(own)) if out.contains('[') && own.contains('[') => {
                if out == own {
                    shared.push(kind);
                }
            }
            _ => {
                return Ok(judge(
                    name,
                    "",
                    "/proc/self/ns",
                    Reach::Broken,
                    Reach::Broken,
                ));
            }
        }
    }
    Ok(match shared.as_slice() {
        [] => Check::new(name, State::Held, KINDS.join(", "))
            .proof("each one differs inside from the one outside"),
        // The cgroup namespace hides names only; the limits hold without it.
        ["cgroup"] => Check::new(name, State::Weak, "the cgroup namespace is the host's"),
        _ => Check::new(
            name,
            State::Missing,
            format!("shared: {}", shared.join(", ")),
        ),
    })
}

/// A process with a word in its command line, that ends with this.
struct Decoy(Child);

impl Decoy {
    fn start(word: &str) -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        // It waits for the end of its input, which comes when we drop our end.
        command
            .args(["-c", "read line; exit 0", word])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().map(Self)
    }
}

impl Drop for Decoy {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

async fn processes(sandbox: &Sandbox<'_>) -> Result<Check, Failure> {
    let word = random()?;
    let _decoy =
        Decoy::start(&word).map_err(|e| Failure::io("cannot start a process to look for", &e))?;
    // In two halves, and compared by the shell itself, so that the probe finds no process of its
    // own that has the whole word in its command line.
    let (first, second) = word.split_at(8);
    let script = "all=$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'); \
                  case \"$all\" in *\"$1$2\"*) exit 0;; ?*) exit 10;; esac; exit 11";
    let probe = Probe {
        script,
        args: &[first, second],
    };
    let means = "a /proc with the sandbox's own processes only";
    wall(sandbox, "processes", means, "a process of the host", probe).await
}

async fn files(sandbox: &Sandbox<'_>) -> Result<Check, Failure> {
    let folder = Folder::make(Path::new("/tmp"))?;
    let secret = folder.path.join("secret");
    std::fs::write(&secret, b"secret\n")
        .map_err(|e| Failure::io(format!("cannot write {}", secret.display()), &e))?;
    let secret = secret.display().to_string();
    let probe = Probe {
        script: "cat \"$1\" >/dev/null 2>&1 && exit 0; exit 10",
        args: &[&secret],
    };
    let means = "a root of its own; the host's /usr read-only, nothing else";
    wall(
        sandbox,
        "files",
        means,
        "a file in /tmp that everyone may read",
        probe,
    )
    .await
}

async fn network(sandbox: &Sandbox<'_>) -> Result<Check, Failure> {
    let failed = |e: &io::Error| Failure::io("cannot listen on 127.0.0.1", e);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| failed(&e))?;
    let port = listener.local_addr().map_err(|e| failed(&e))?.port();
    let (decimal, hex) = (port.to_string(), format!("{port:04X}"));
    // Where there is no bash to connect with, at least look for the listener.
    let script = "if [ -x /bin/bash ]; then \
                  /bin/bash -c 'exec 3<>/dev/tcp/127.0.0.1/$0' \"$1\" 2>/dev/null && exit 0; \
                  exit 10; fi; \
                  grep -q \":$2 00000000:0000 0A\" /proc/net/tcp && exit 0; exit 10";
    let probe = Probe {
        script,
        args: &[&decimal, &hex],
    };
    let means = "a network of its own with nothing but loopback";
    wall(
        sandbox,
        "network",
        means,
        "a server on the host's loopback",
        probe,
    )
    .await
}

async fn environment(sandbox: &Sandbox<'_>) -> Result<Check, Failure> {
    let probe = Probe {
        script: "tr '\\0' '\\n' </proc/self/environ",
        args: &[],
    };
    let name = "environment";
    let means = "made from nothing";
    let (outside, inside) = (probe.outside(), probe.inside(sandbox).await?);
    let has = |text: &str, name: &String| {
        text.lines()
            .any(|line| line.split_once('=').is_some_and(|(n, _)| n == name))
    };
    let mut names = settings::names();
    names.retain(|name| !OWN.contains(&name.as_str()));
    let seen = names.iter().filter(|n| has(&outside.stdout, n)).count();
    let leaked: Vec<_> = names.iter().filter(|n| has(&inside.stdout, n)).collect();
    Ok(if !leaked.is_empty() {
        judge(
            name,
            means,
            "a variable of the host",
            Reach::There,
            Reach::There,
        )
    } else if inside.status != Some(0) || outside.status != Some(0) {
        judge(
            name,
            means,
            "/proc/self/environ",
            Reach::Broken,
            Reach::Broken,
        )
    } else if seen == 0 {
        Check::new(name, State::Held, means).proof("there is nothing in the host's to be seen")
    } else {
        Check::new(name, State::Held, means).proof(format!(
            "{seen} variables of the host: seen outside, none of them inside"
        ))
    })
}

const STATUS: Probe<'static> = Probe {
    script: "cat /proc/self/status",
    args: &[],
};

async fn privileges(sandbox: &Sandbox<'_>) -> Result<Check, Failure> {
    let (outside, inside) = (STATUS.outside(), STATUS.inside(sandbox).await?);
    let zero = |value: Option<&str>| value.is_some_and(|v| v.bytes().all(|b| b == b'0'));
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    let none = sets.iter().all(|set| zero(inside.field(set)));
    let name = "privileges";
    let means = "no capabilities, no new privileges";
    Ok(if none && inside.field("NoNewPrivs") == Some("1") {
        let control = match zero(outside.field("CapBnd")) {
            true => "none to be had outside either",
            false => "some to be had outside, none inside",
        };
        Check::new(name, State::Held, means).proof(format!("capabilities: {control}"))
    } else if inside.field("NoNewPrivs").is_none() {
        judge(
            name,
            means,
            "/proc/self/status",
            Reach::Broken,
            Reach::Broken,
        )
    } else {
        judge(name, means, "a capability", Reach::There, Reach::There)
    })
}

async fn system_calls(sandbox: &Sandbox<'_>) -> Result<Check, Failure> {
    let status = STATUS.inside(sandbox).await?;
    let name = "system calls";
    let means = "seccomp: what is not allowed by name is denied";
    if status.field("Seccomp") != Some("2") {
        return Ok(
            Check::new(name, State::Missing, "no seccomp filter is in force")
                .fix("use a kernel with CONFIG_SECCOMP_FILTER"),
        );
    }
    let probe = Probe {
        script: "command -v unshare >/dev/null || exit 11; \
                 unshare -U true 2>/dev/null && exit 0; exit 10",
        args: &[],
    };
    let (outside, inside) = (
        probe.outside().reach(),
        probe.inside(sandbox).await?.reach(),
    );
    let object = "a new user namespace";
    Ok(match (outside, inside) {
        (_, Reach::There) | (Reach::There, Reach::HeldBack) => {
            judge(name, means, object, outside, inside)
        }
        _ => Check::new(name, State::Weak, means)
            .proof("not proved: the kernel says that a filter is in force; no denied call could be compared"),
    })
}

/// Looks from outside at who the guest really is.
fn user(sandbox: &Sandbox<'_>) -> Check {
    let name = "user";
    let status = sandbox
        .pid()
        .and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/status")).ok());
    let uids: Option<Vec<u32>> = status.as_deref().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        line.split_whitespace()
            .map(|uid| uid.parse().ok())
            .collect()
    });
    match uids {
        Some(uids) if uids.contains(&0) => Check::new(name, State::Missing, "root on the host")
            .fix("this is a defect of Ringfence: please report it"),
        Some(uids) if !uids.is_empty() => {
            let whose = match settings::is_root() {
                true => "a user of its own, which nobody else is",
                false => "you, without any of your files in sight",
            };
            Check::new(name, State::Held, format!("1000 inside is {whose}"))
                .proof(format!("seen from outside it is {}", uids[0]))
        }
        _ => Check::new(name, State::Weak, "not proved")
            .proof("the guest is not to be found in /proc")
            .fix("mount /proc without hidepid"),
    }
}

fn landlock(sandbox: &Sandbox<'_>) -> Check {
    let name = "landlock";
    match sandbox.enforced(Control::Landlock) {
        Some(row) if row.hold != Hold::None => Check::new(
            name,
            State::Note,
            format!("{}, a second wall around files", row.by),
        )
        .proof("the kernel took the rules; behind the mounts there is nothing to try them on"),
        _ => Check::new(
            name,
            State::Weak,
            "this kernel has none; it is a second wall only",
        )
        .fix(
            "use Linux 5.13 or later with `landlock` in the boot option lsm= \
             (see /sys/kernel/security/lsm)",
        ),
    }
}

async fn python(
    sandbox: &Sandbox<'_>,
    interpreter: Option<&Interpreter>,
) -> Result<Check, Failure> {
    let name = "python";
    let Some(interpreter) = interpreter else {
        return Ok(Check::new(
            name,
            State::Weak,
            "none on the search path; commands still run",
        )
        .fix("install python3, or name one with `run --python FILE`"));
    };
    let path = interpreter.executable.display().to_string();
    let probe = Probe {
        script: "\"$1\" -c 'import platform; print(platform.python_version())'",
        args: &[&path],
    };
    let (outside, inside) = (probe.outside(), probe.inside(sandbox).await?);
    let version = inside.stdout.trim();
    Ok(
        if inside.status == Some(0) && inside.stdout == outside.stdout {
            Check::new(name, State::Held, format!("{version}, {path}"))
                .proof("says the same version inside as outside")
        } else {
            Check::new(name, State::Weak, format!("{path} does not run inside"))
                .fix("name another one with `run --python FILE`, such as /usr/bin/python3")
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_probe_does_not_look_like_a_wall() {
        use Reach::{Broken, HeldBack, There};
        let state = |outside, inside| judge("x", "", "", outside, inside).state;
        assert_eq!(state(There, HeldBack), State::Held);
        assert_eq!(state(There, There), State::Missing);
        assert_eq!(state(HeldBack, There), State::Missing);
        for (outside, inside) in [
            (HeldBack, HeldBack),
            (Broken, HeldBack),
            (Broken, Broken),
            (There, Broken),
        ] {
            assert_eq!(
                state(outside, inside),
                State::Weak,
                "{outside:?} {inside:?}"
            );
        }
    }
}
