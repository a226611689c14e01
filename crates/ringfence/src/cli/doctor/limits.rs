//! The limits of a sandbox, each run into from inside and passed outside.

use super::probe::{Folder, Outcome, Probe, Reach, Sandbox};
use super::{Check, State};
use crate::settings;
use ringfence_core::backend::native::Native;
use ringfence_core::proto::Cause;
use ringfence_core::{
    Access, Control, Failure, Hold, LimitsSpec, MountSpec, SandboxSpec, Size, Workspace,
};
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const CGROUP_FIX: &str = "\
run as root, or start a user session with delegated cgroups: \
`systemd-run --user --scope -p Delegate=yes ringfence …` (cgroup v2)";

/// Small limits, to be run into quickly.
fn small() -> SandboxSpec {
    SandboxSpec {
        prefer: true,
        limits: LimitsSpec {
            memory: Some(Size(32 << 20)),
            cpus: Some(0.25),
            pids: Some(24),
            workspace: Some(Size(1 << 20)),
            ..LimitsSpec::default()
        },
        ..SandboxSpec::default()
    }
}

pub(super) async fn examine(native: &Native) -> Result<Vec<Check>, Failure> {
    let sandbox = Sandbox::make(native, small()).await?;
    let seen = examine_small(&sandbox).await;
    sandbox.remove().await?;
    let mut checks = seen?;
    checks.push(image(native).await?);
    checks.push(owners(native).await?);
    Ok(checks)
}

/// What may end the guest comes last.
async fn examine_small(sandbox: &Sandbox<'_>) -> Result<Vec<Check>, Failure> {
    let workspace = size(sandbox, "workspace size").await?;
    let cpus = cpus(sandbox).await?;
    let memory = memory(sandbox).await?;
    // Last, as what it starts stays for a moment and leaves no room for others.
    let pids = pids(sandbox).await?;
    Ok(vec![memory, cpus, pids, workspace])
}

fn by(sandbox: &Sandbox<'_>, control: Control) -> (Hold, String) {
    sandbox
        .enforced(control)
        .map_or((Hold::None, String::new()), |row| {
            (row.hold, row.by.clone())
        })
}

/// A limit that was run into inside and passed outside.
fn judge(
    name: &'static str,
    hold: Hold,
    by: &str,
    proof: &str,
    out: Reach,
    inside: Reach,
) -> Check {
    match (out, inside, hold) {
        (_, Reach::There, _) => Check::new(name, State::Missing, "there is no limit")
            .proof(format!("{proof}: passed inside"))
            .fix("this is a defect of Ringfence: please report it with `ringfence doctor --json`"),
        (Reach::There, Reach::HeldBack, Hold::Sandbox) => Check::new(name, State::Held, by)
            .proof(format!("{proof}: passed outside, stopped inside")),
        (Reach::There, Reach::HeldBack, _) => Check::new(
            name,
            State::Weak,
            format!("for each process by itself: {by}"),
        )
        .proof(format!("{proof}: passed outside, stopped inside"))
        .fix(CGROUP_FIX),
        _ => Check::new(name, State::Weak, format!("{by}, not proved")).proof(format!(
            "{proof}: {} outside, {} inside",
            out.words(),
            inside.words()
        )),
    }
}

async fn memory(sandbox: &Sandbox<'_>) -> Result<Check, Failure> {
    let (hold, by) = by(sandbox, Control::Memory);
    // One buffer of 96 MiB, filled.
    let probe = Probe {
        script: "exec dd if=/dev/zero of=/dev/null bs=96M count=1 2>/dev/null",
        args: &[],
    };
    let outside = probe.outside().reach();
    let inside = match probe.inside(sandbox).await {
        Ok(Outcome {
            cause: Some(Cause::Memory),
            ..
        }) => Reach::HeldBack,
        Ok(Outcome {
            status: Some(0), ..
        }) => Reach::There,
        // Under a limit of each process it is told that there is no memory, and leaves.
        Ok(Outcome {
            status: Some(1), ..
        }) if hold == Hold::Process => Reach::HeldBack,
        // Also when the guest is lost: what ended it is not known then.
        _ => Reach::Broken,
    };
    let proof = "96 MiB where 32 MiB are allowed";
    Ok(judge("memory", hold, &by, proof, outside, inside))
}

async fn pids(sandbox: &Sandbox<'_>) -> Result<Check, Failure> {
    let (hold, by) = by(sandbox, Control::Pids);
    let script = "i=0; while [ $i -lt 48 ]; do sleep 3 >/dev/null 2>&1 & i=$((i+1)); done; \
                  echo all";
    let argv = ["/bin/sh", "-c", script];
    let outside = Command::new(argv[0])
        .args(&argv[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .and_then(|child| {
            let group = Pid::from_child(&child);
            let output = child.wait_with_output();
            let _ = kill_process_group(group, Signal::KILL);
            output
        });
    let outside = match outside {
        Ok(output) if output.stdout == b"all\n" => Reach::There,
        _ => Reach::Broken,
    };
    let inside = sandbox.run(argv.map(str::to_owned).to_vec(), 3000).await?;
    let inside = match (inside.stdout.as_str(), inside.status) {
        ("all\n", _) => Reach::There,
        // What can't be started ends the shell; without one there is no answer at all.
        (_, Some(status)) if status != 127 => Reach::HeldBack,
        _ => Reach::Broken,
    };
    let proof = "48 processes where 24 are allowed";
    Ok(judge("processes limit", hold, &by, proof, outside, inside))
}

async fn cpus(sandbox: &Sandbox<'_>) -> Result<Check, Failure> {
    const LOOP: &str = "while :; do :; done";
    let name = "cpus";
    let (hold, by) = by(sandbox, Control::Cpus);
    if hold == Hold::None {
        return Ok(Check::new(name, State::Weak, format!("not limited: {by}")).fix(CGROUP_FIX));
    }
    let argv = ["/bin/sh", "-c", LOOP].map(str::to_owned).to_vec();
    let inside = sandbox.run(argv, 400).await?;
    let share = inside.cpu_ms as f64 / inside.duration_ms.max(1) as f64;
    let outside = share_outside(LOOP, Duration::from_millis(120)).unwrap_or(0.0);
    let proof = format!(
        "an endless loop got {:.0} % of a processor where 25 % are allowed, and {:.0} % outside",
        share * 100.0,
        outside * 100.0
    );
    // A period that has just begun when the loop ends counts in full.
    Ok(
        if inside.cpu_ms == 0 || (share < 0.5 && outside < share * 1.3) {
            Check::new(name, State::Weak, format!("{by}, not proved"))
                .proof(proof)
                .fix("try again when the machine is less busy")
        } else if share < 0.5 {
            Check::new(name, State::Held, by).proof(proof)
        } else {
            Check::new(name, State::Missing, "there is no limit").proof(proof)
        },
    )
}

/// The share of a processor that a script gets out here.
fn share_outside(script: &str, time: Duration) -> Option<f64> {
    let started = Instant::now();
    let mut child = Command::new("/bin/sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .ok()?;
    // What is measured is time itself.
    std::thread::sleep(time);
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id()));
    let elapsed = started.elapsed().as_secs_f64();
    let _ = child.kill();
    let _ = child.wait();
    let stat = stat.ok()?;
    // The name in parentheses may hold anything, so count from its end: fields 14 and 15.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let ticks: f64 = fields.next()?.parse::<f64>().ok()? + fields.next()?.parse::<f64>().ok()?;
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    Some(ticks / per_second / elapsed)
}

/// A script that writes 8 MiB to a file, and whether it came to the end.
fn fill(folder: &Path) -> (String, &'static str) {
    let file = folder.join("fill").display().to_string();
    let script = "dd if=/dev/zero of=\"$1\" bs=65536 count=128 2>/dev/null && exit 0; \
                  [ -e \"$1\" ] && exit 10; exit 11";
    (file, script)
}

async fn size(sandbox: &Sandbox<'_>, name: &'static str) -> Result<Check, Failure> {
    let (hold, by) = by(sandbox, Control::Workspace);
    let folder = Folder::make(Path::new("/tmp"))?;
    let reach = |at: &Path| fill(at);
    let (file, script) = reach(&folder.path);
    let outside = Probe {
        script,
        args: &[&file],
    }
    .outside()
    .reach();
    let (file, script) = reach(Path::new(ringfence_core::proto::WORKSPACE));
    let probe = Probe {
        script,
        args: &[&file],
    };
    let inside = probe.inside(sandbox).await?.reach();
    let proof = format!(
        "8 MiB of files where {} are allowed",
        sandbox.plan.limits.workspace
    );
    Ok(judge(name, hold, &by, &proof, outside, inside))
}

/// Workspaces on disk, for sandboxes that are kept.
async fn image(native: &Native) -> Result<Check, Failure> {
    let name = "workspace on disk";
    if !settings::is_root() {
        return Ok(Check::new(
            name,
            State::Note,
            "loop images are root's; private workspaces are in memory",
        ));
    }
    let spec = SandboxSpec {
        workspace: Workspace::Disk,
        limits: LimitsSpec {
            workspace: Some(Size(4 << 20)),
            ..LimitsSpec::default()
        },
        ..SandboxSpec::default()
    };
    let sandbox = match Sandbox::make(native, spec).await {
        Ok(sandbox) => sandbox,
        Err(failure) => return Ok(refused(name, &failure, "modprobe loop; install e2fsprogs")),
    };
    let check = size(&sandbox, name).await;
    sandbox.remove().await?;
    let mut check = check?;
    if check.state == State::Held {
        check.means = "an ext4 file system in a loop image".to_owned();
    }
    Ok(check)
}

/// Host folders that root mounts are seen as the sandbox's own.
async fn owners(native: &Native) -> Result<Check, Failure> {
    let name = "mapped owners";
    if !settings::is_root() {
        return Ok(Check::new(
            name,
            State::Note,
            "not needed: host folders are yours, inside as outside",
        ));
    }
    let folder = Folder::make(&settings::cache())?;
    let mount = MountSpec {
        from: folder.path.canonicalize().unwrap_or_default(),
        to: "/data".into(),
        access: Access::ReadWrite,
    };
    let spec = SandboxSpec {
        mounts: vec![mount],
        ..SandboxSpec::default()
    };
    let fix = "use Linux 5.12 or later and a file system such as ext4, xfs or btrfs";
    let sandbox = match Sandbox::make(native, spec).await {
        Ok(sandbox) => sandbox,
        Err(failure) => return Ok(refused(name, &failure, fix)),
    };
    let probe = Probe {
        script: "echo text >/data/written",
        args: &[],
    };
    let inside = probe.inside(&sandbox).await;
    sandbox.remove().await?;
    let owner = std::fs::metadata(folder.path.join("written")).map(|m| m.uid());
    Ok(match (inside?.reach(), owner) {
        (Reach::There, Ok(0)) => Check::new(name, State::Held, "idmapped mounts")
            .proof("a file written inside by user 1000 belongs to the folder's owner outside"),
        _ => Check::new(name, State::Weak, "host folders can't be written inside").fix(fix),
    })
}

fn refused(name: &'static str, failure: &Failure, fix: &str) -> Check {
    Check::new(name, State::Weak, failure.message.clone()).fix(fix)
}
