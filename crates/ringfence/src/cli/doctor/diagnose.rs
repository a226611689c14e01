//! What this machine is, and why it lets no sandbox be made.

use super::{Check, State};
use crate::config::Config;
use crate::settings;
use ringfence_core::Failure;
use ringfence_core::backend::docker::Endpoint;
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs;
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// What decides whether namespaces can be made.
#[derive(Debug, Clone, Default)]
struct Facts {
    root: bool,
    /// Root with the capability to mount: many containers have root without it.
    admin: bool,
    /// Root of a user namespace, as in rootless containers, and not of the host.
    nested: bool,
    container: bool,
    /// A filter keeps us from namespaces.
    filtered: bool,
    /// Parts of /proc are covered: then the kernel lets no other user namespace mount it.
    masked: bool,
    max_user_namespaces: Option<u64>,
    unprivileged_userns_clone: Option<u64>,
    apparmor_restrict: Option<u64>,
}

impl Facts {
    fn read() -> Self {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            status.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key == name).then(|| value.trim().to_owned())
            })
        };
        const SYS_ADMIN: u64 = 1 << 21;
        let capabilities = field("CapEff").and_then(|text| u64::from_str_radix(&text, 16).ok());
        Self {
            root: settings::is_root(),
            admin: capabilities.is_some_and(|set| set & SYS_ADMIN != 0),
            nested: fs::read_to_string("/proc/self/uid_map")
                .is_ok_and(|map| !map.split_ascii_whitespace().eq(["0", "0", "4294967295"])),
            container: in_container(),
            filtered: field("Seccomp").as_deref() == Some("2") && namespaces_are_denied(),
            masked: fs::read_to_string("/proc/self/mountinfo").is_ok_and(|mounts| {
                let place = |line: &str| {
                    line.split(' ')
                        .nth(4)
                        .is_some_and(|p| p.starts_with("/proc/"))
                };
                mounts.lines().any(place)
            }),
            max_user_namespaces: number("/proc/sys/user/max_user_namespaces"),
            unprivileged_userns_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_restrict: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        }
    }

    /// Each reason, with what removes it.
    fn reasons(&self) -> Vec<(&'static str, &'static str)> {
        let mut reasons = Vec::new();
        if self.max_user_namespaces == Some(0) {
            reasons.push((
                "user namespaces are switched off: user.max_user_namespaces is 0",
                "sudo sysctl -w user.max_user_namespaces=15000 \
                 (and a line in /etc/sysctl.d/ to keep it)",
            ));
        }
        if !self.root && self.unprivileged_userns_clone == Some(0) {
            reasons.push((
                "only root may make user namespaces: kernel.unprivileged_userns_clone is 0",
                "sudo sysctl -w kernel.unprivileged_userns_clone=1 \
                 (and a line in /etc/sysctl.d/ to keep it), or run as root",
            ));
        }
        if !self.root && self.apparmor_restrict == Some(1) {
            reasons.push((
                "AppArmor keeps ordinary users from user namespaces: \
                 kernel.apparmor_restrict_unprivileged_userns is 1",
                "an AppArmor profile for ringfence with `userns,` in it, \
                 or sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or run as root",
            ));
        }
        if self.root && self.nested {
            reasons.push((
                "this is the root of a user namespace, which may not do what the host's may",
                "run as an ordinary user, inside or outside of that namespace",
            ));
        }
        if self.container && self.root && !self.admin {
            reasons.push((
                "this is a container whose root may not mount (no CAP_SYS_ADMIN)",
                "run as an ordinary user of the container (docker run --user 1000)",
            ));
        }
        if self.container && self.filtered {
            reasons.push((
                "the container's seccomp profile denies namespaces",
                "docker run --security-opt seccomp=seccomp.json, with images/server/seccomp.json \
                 of Ringfence's source (on Kubernetes: a Localhost profile)",
            ));
        }
        if self.container && self.masked {
            reasons.push((
                "parts of the container's /proc are masked, so no other /proc can be mounted",
                "docker run --security-opt systempaths=unconfined \
                 (on Kubernetes: procMount: Unmasked)",
            ));
        }
        reasons
    }
}

/// Whether a filter denies what namespaces take. Entering the user namespace that one is in is an
/// invalid argument to the kernel; only a filter calls it forbidden.
fn namespaces_are_denied() -> bool {
    let Ok(own) = fs::File::open("/proc/self/ns/user") else {
        return false;
    };
    let entered = move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::User));
    matches!(entered, Err(Errno::PERM | Errno::NOSYS))
}

fn in_container() -> bool {
    let marks = ["/.dockerenv", "/run/.containerenv"];
    let group = fs::read_to_string("/proc/1/cgroup").unwrap_or_default();
    marks.iter().any(|mark| Path::new(mark).exists())
        || ["docker", "kubepods", "containerd", "libpod"]
            .iter()
            .any(|word| group.contains(word))
        || Path::new("/var/run/secrets/kubernetes.io").exists()
}

pub(super) fn kernel() -> Check {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let container = if in_container() {
        ", in a container"
    } else {
        ""
    };
    let means = format!(
        "Linux {release} on {}{container}",
        name.machine().to_string_lossy()
    );
    if version < (5, 12) {
        return Check::new("kernel", State::Missing, means).fix("use Linux 5.12 or later");
    }
    Check::new("kernel", State::Held, means)
}

/// Why no sandbox could be made.
pub(super) fn no_sandbox(failure: &Failure) -> Vec<Check> {
    explain(failure, &Facts::read())
}

fn explain(failure: &Failure, facts: &Facts) -> Vec<Check> {
    let mut first = Check::new("sandbox", State::Missing, failure.message.clone());
    let reasons = facts.reasons();
    if reasons.is_empty() {
        first = first
            .fix("nothing that usually is in the way was found; look at `dmesg`, and try as root");
    }
    let mut checks = vec![first];
    checks.extend(
        reasons
            .into_iter()
            .map(|(why, fix)| Check::new("reason", State::Weak, why).fix(fix)),
    );
    checks
}

/// What there is of other engines.
pub(super) async fn other_backends(config: &Config) -> Vec<Check> {
    let docker = match Endpoint::find(&settings::docker()) {
        Ok(endpoint) if listens(&endpoint) => {
            format!("an engine listens at {endpoint}: `--backend docker` uses it")
        }
        Ok(endpoint) => format!("no engine listens at {endpoint}"),
        Err(failure) => failure.message,
    };
    let cluster = match settings::cluster() {
        #[cfg(feature = "kubernetes")]
        Some(_) => super::cluster::note(config).await,
        #[cfg(not(feature = "kubernetes"))]
        Some(_) => match crate::backends::kubernetes(config) {
            Ok(_) => String::new(),
            Err(failure) => failure.message,
        },
        None => "no configuration of a cluster".to_owned(),
    };
    vec![
        Check::new("docker", State::Note, docker),
        Check::new("kubernetes", State::Note, cluster),
    ]
}

fn listens(endpoint: &Endpoint) -> bool {
    match endpoint {
        Endpoint::Unix(path) => UnixStream::connect(path).is_ok(),
        Endpoint::Tcp { address, .. } => TcpStream::connect(address.as_str()).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_core::Code;

    fn fixes(facts: &Facts) -> Vec<String> {
        let failure = Failure::new(Code::Unenforceable, "cannot make namespaces: clone3");
        let checks = explain(&failure, facts);
        assert_eq!(checks[0].state, State::Missing);
        checks.into_iter().filter_map(|c| c.fix).collect()
    }

    #[test]
    fn each_reason_has_a_fix_of_its_own() {
        let user = Facts::default();
        let cases = [
            (
                Facts {
                    max_user_namespaces: Some(0),
                    ..user.clone()
                },
                "max_user_namespaces=15000",
            ),
            (
                Facts {
                    unprivileged_userns_clone: Some(0),
                    ..user.clone()
                },
                "unprivileged_userns_clone=1",
            ),
            (
                Facts {
                    apparmor_restrict: Some(1),
                    ..user.clone()
                },
                "apparmor_restrict_unprivileged_userns=0",
            ),
            (
                Facts {
                    container: true,
                    filtered: true,
                    ..user.clone()
                },
                "seccomp=",
            ),
            (
                Facts {
                    container: true,
                    masked: true,
                    ..user.clone()
                },
                "systempaths=",
            ),
            (user.clone(), "dmesg"),
        ];
        for (facts, word) in cases {
            let fixes = fixes(&facts);
            assert_eq!(fixes.len(), 1, "{facts:?}");
            assert!(fixes[0].contains(word), "{fixes:?}");
        }
        // What holds ordinary users only does not hold root.
        let root = Facts {
            root: true,
            admin: true,
            unprivileged_userns_clone: Some(0),
            apparmor_restrict: Some(1),
            ..user
        };
        assert!(fixes(&root)[0].contains("dmesg"));
        let docker = Facts {
            root: true,
            container: true,
            filtered: true,
            masked: true,
            ..Facts::default()
        };
        assert_eq!(fixes(&docker).len(), 3);
        let rootless = Facts {
            root: true,
            admin: true,
            nested: true,
            ..Facts::default()
        };
        assert!(fixes(&rootless)[0].contains("ordinary user"));
    }
}
