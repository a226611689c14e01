//! What only engines of containers know: as it is asked for, and as it will be.

use crate::plan::{Limits, absolute};
use crate::size::Size;
use crate::spec::{Access, Network};
use ringfence_proto::{Code, Failure, WORKSPACE};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Options of a container; whatever is absent gets the tightest default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ContainerSpec {
    /// Such as `python:3.13-slim`, or with `@sha256:…` exactly one.
    pub image: Option<String>,
    /// Such as `linux/arm64`; the engine's own when absent.
    pub platform: Option<String>,
    pub pull: Pull,
    /// The container's name. One that exists is started if it is stopped, and attached to: then
    /// it is never removed, and no other option takes effect but `user` and `workdir`.
    pub name: Option<String>,
    /// Leaves the container, stopped, when the sandbox ends.
    pub keep: bool,
    /// A user of the image, or a number, or both with a group: `app`, `1000`, `1000:1000`.
    pub user: Option<String>,
    pub defaults: Defaults,
    /// A network of the engine: `none`, `bridge`, `host`, `container:NAME`, or one by its name.
    pub network: Option<String>,
    /// Where commands start and the session's files live; `/workspace` when absent.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub workdir: Option<PathBuf>,
    pub volumes: Vec<VolumeSpec>,
    /// Removes the volumes with the container.
    pub remove_volumes: bool,
    /// Whether all but the work folder, `/tmp` and what is mounted can only be read.
    pub read_only: Option<bool>,
    /// Size of `/dev/shm`.
    pub shm_size: Option<Size>,
    pub cap_add: Vec<String>,
    pub cap_drop: Vec<String>,
    pub privileged: bool,
    pub ulimits: BTreeMap<String, Ulimit>,
    /// File systems in memory, by their path, with mount options such as `size=64m`.
    pub tmpfs: BTreeMap<String, String>,
    pub ports: Vec<PortSpec>,
    /// Addresses by name, for `/etc/hosts`.
    pub extra_hosts: BTreeMap<String, String>,
    /// `/dev/a`, `/dev/a:/dev/b` or `/dev/a:/dev/b:r`.
    pub devices: Vec<String>,
    /// Addresses of name servers.
    pub dns: Vec<String>,
    /// A runtime that the engine knows, such as `runsc`.
    pub runtime: Option<String>,
    /// A profile as JSON text, or `unconfined`; the engine's own when absent.
    pub seccomp: Option<String>,
    pub no_new_privileges: Option<bool>,
    /// `all`, or how many.
    pub gpus: Option<String>,
    /// Serves the daemon of HasteKit at the container's address too, without a token.
    pub daemon: bool,
    /// What only a cluster knows.
    pub kubernetes: Option<ClusterSpec>,
}

/// Options of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ClusterSpec {
    /// Labels that its node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that its node may have.
    pub tolerations: Vec<Toleration>,
    /// The service account whose token is mounted; none when absent.
    pub service_account: Option<String>,
    /// Secrets for private registries, by their names.
    pub pull_secrets: Vec<String>,
    /// A volume claim that is there, for the work folder.
    pub claim: Option<String>,
    /// The group that volumes belong to; that of the user when absent.
    pub fs_group: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Toleration {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `Equal` or `Exists`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// When an image is fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Pull {
    /// When the engine does not have it.
    #[default]
    Missing,
    Always,
    Never,
}

/// What holds where nothing is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Defaults {
    /// No capabilities, a root that can't be written to, and not the user root.
    #[default]
    Tight,
    /// What the engine and the image say; besides that only no new privileges and few processes.
    Engine,
}

/// A volume of the engine, seen inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct VolumeSpec {
    pub name: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub to: PathBuf,
    #[serde(default = "writable")]
    pub access: Access,
}

fn writable() -> Access {
    Access::ReadWrite
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Ulimit {
    /// -1 is no limit.
    pub soft: i64,
    pub hard: i64,
}

/// A port of the container that can be reached on the engine's host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PortSpec {
    pub container: u16,
    /// 0 is any that is free.
    #[serde(default)]
    pub host: u16,
    #[serde(default)]
    pub protocol: Protocol,
    /// The host's address; 127.0.0.1 when absent.
    #[serde(default)]
    pub address: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    #[default]
    Tcp,
    Udp,
}

/// What reaches beyond the sandbox, and so needs somebody's leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Danger {
    Privileged,
    Network,
    HostNetwork,
    Devices,
    Capabilities,
    SystemCalls,
    NewPrivileges,
    Names,
    Volumes,
    Ports,
    Cluster,
}

/// Capabilities that reach nothing outside of a container.
const HARMLESS: [&str; 11] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
];

impl ClusterSpec {
    /// It names what belongs to the cluster: nodes, accounts or secrets.
    fn reaches_beyond(&self) -> bool {
        !self.node_selector.is_empty()
            || !self.tolerations.is_empty()
            || self.service_account.is_some()
            || !self.pull_secrets.is_empty()
            || self.fs_group.is_some()
    }
}

impl ContainerSpec {
    /// What of it needs leave.
    pub fn dangers(&self) -> Vec<Danger> {
        let network = self.network.as_deref().unwrap_or("none");
        let shared = network == "host" || network.starts_with("container:");
        let beyond = |name: &String| !HARMLESS.contains(&capability(name).as_str());
        let asked = [
            (Danger::Privileged, self.privileged),
            (Danger::Network, network != "none" && !shared),
            (Danger::HostNetwork, shared),
            (
                Danger::Devices,
                !self.devices.is_empty() || self.gpus.is_some(),
            ),
            (Danger::Capabilities, self.cap_add.iter().any(beyond)),
            (Danger::SystemCalls, self.seccomp.is_some()),
            (Danger::NewPrivileges, self.no_new_privileges == Some(false)),
            (Danger::Names, self.name.is_some()),
            (
                Danger::Volumes,
                !self.volumes.is_empty() || self.kubernetes.iter().any(|k| k.claim.is_some()),
            ),
            (Danger::Ports, !self.ports.is_empty() || self.daemon),
            (
                Danger::Cluster,
                self.kubernetes.iter().any(ClusterSpec::reaches_beyond),
            ),
        ];
        asked
            .into_iter()
            .filter_map(|(danger, asked)| asked.then_some(danger))
            .collect()
    }
}

/// A container to be made. Complete, but for what only the image says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerPlan {
    pub image: String,
    pub platform: Option<String>,
    pub pull: Pull,
    pub name: Option<String>,
    pub keep: bool,
    /// Absent: that of the image, or where `defaults` is tight and that is root, an ordinary one.
    pub user: Option<String>,
    pub defaults: Defaults,
    pub network: String,
    pub workdir: PathBuf,
    pub volumes: Vec<VolumeSpec>,
    pub remove_volumes: bool,
    pub read_only: bool,
    pub shm_size: Option<Size>,
    pub cap_add: Vec<String>,
    pub cap_drop: Vec<String>,
    pub privileged: bool,
    pub ulimits: BTreeMap<String, Ulimit>,
    pub tmpfs: BTreeMap<String, String>,
    pub ports: Vec<PortSpec>,
    pub extra_hosts: BTreeMap<String, String>,
    pub devices: Vec<Device>,
    pub dns: Vec<String>,
    pub runtime: Option<String>,
    pub seccomp: Option<String>,
    pub no_new_privileges: bool,
    pub gpus: Option<Gpus>,
    #[serde(default)]
    pub daemon: bool,
    #[serde(default)]
    pub kubernetes: Option<ClusterSpec>,
}

/// The guest's words for: under the filter of native sandboxes, and under their limits.
pub(crate) const FILTERED: &str = "filtered";
pub(crate) const LIMITED: &str = "limited";

impl ContainerPlan {
    /// Whether the guest puts itself and all it starts under the filter of native sandboxes. Who
    /// asks for rights that go with system calls gets what the engine allows.
    pub(crate) fn is_filtered(&self) -> bool {
        self.defaults == Defaults::Tight
            && self.cap_add.is_empty()
            && self.seccomp.is_none()
            && self.no_new_privileges
            && !self.privileged
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub from: String,
    pub to: String,
    /// Of `r`, `w` and `m`.
    pub rights: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gpus {
    All,
    Count(u32),
}

/// Turns what was asked into what will be done.
pub(crate) fn resolve(
    spec: ContainerSpec,
    network: Network,
    limits: &Limits,
    default_image: &str,
) -> Result<ContainerPlan, Failure> {
    let tight = spec.defaults == Defaults::Tight;
    let image = spec.image.unwrap_or_else(|| default_image.to_owned());
    check_image(&image)?;
    if let Some(name) = &spec.name {
        check_name(name, "a container")?;
    }
    if spec.keep && spec.name.is_none() {
        return Err(Failure::invalid("a container that is kept needs a name"));
    }
    if let Some(platform) = &spec.platform {
        let good = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        word(platform, "a platform", good, "linux/amd64")?;
    }
    if let Some(user) = &spec.user {
        let good = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
        word(user, "a user", good, "app, 1000 or 1000:1000")?;
    }
    if let Some(runtime) = &spec.runtime {
        let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        word(runtime, "a runtime", good, "runsc")?;
    }
    let network = match (spec.network, network) {
        (Some(mode), Network::None) => {
            let good = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
            word(&mode, "a network", good, "bridge")?;
            mode
        }
        (Some(_), Network::Host) => {
            return Err(Failure::invalid(
                "name the host's network or one of the engine, not both",
            ));
        }
        (None, Network::None) => "none".to_owned(),
        (None, Network::Host) => "host".to_owned(),
    };
    let workdir = spec.workdir.unwrap_or_else(|| WORKSPACE.into());
    absolute(&workdir, "the work folder")?;
    for volume in &spec.volumes {
        check_name(&volume.name, "a volume")?;
        check_target(&volume.to, "a volume's target")?;
    }
    for (path, options) in &spec.tmpfs {
        check_target(Path::new(path), "a file system in memory")?;
        if options.len() > 256 || options.chars().any(char::is_control) {
            return Err(Failure::invalid(format!(
                "`{options}` are not mount options for {path}"
            )));
        }
    }
    for (name, address) in &spec.extra_hosts {
        let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        word(name, "a host's name", good, "db.internal")?;
        // Docker's own word for the host's address.
        if address != "host-gateway" {
            check_address(address)?;
        }
    }
    for address in spec
        .dns
        .iter()
        .chain(spec.ports.iter().filter_map(|port| port.address.as_ref()))
    {
        check_address(address)?;
    }
    if let Some(port) = spec.ports.iter().find(|port| port.container == 0) {
        return Err(Failure::invalid(format!(
            "port {} of a container is none: 1 to 65535",
            port.container
        )));
    }
    if !spec.ports.is_empty() && matches!(network.as_str(), "none" | "host") {
        return Err(Failure::invalid(format!(
            "no port can be published on the network `{network}`"
        ))
        .hint("name the network `bridge`"));
    }
    for (name, limit) in &spec.ulimits {
        let known = ULIMITS.contains(&name.as_str());
        let range = limit.soft >= -1 && limit.hard >= -1;
        if !known || !range || (limit.hard != -1 && limit.soft > limit.hard) {
            return Err(Failure::invalid(format!(
                "`{name}` with soft {} and hard {} is not a limit",
                limit.soft, limit.hard
            ))
            .hint(format!("one of {}", ULIMITS.join(", "))));
        }
    }
    let capabilities = |names: &[String]| -> Result<Vec<String>, Failure> {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
        names
            .iter()
            .map(|name| word(name, "a capability", good, "NET_ADMIN").map(|()| capability(name)))
            .collect()
    };
    let mut cap_drop = capabilities(&spec.cap_drop)?;
    if tight && !spec.privileged {
        cap_drop = vec!["ALL".to_owned()];
    }
    if let Some(seccomp) = &spec.seccomp
        && seccomp != "unconfined"
        && serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(seccomp).is_err()
    {
        return Err(Failure::invalid("the seccomp profile is not a JSON object")
            .hint("give the text of a profile, or `unconfined`"));
    }
    let gpus = match spec.gpus.as_deref() {
        None => None,
        Some("all") => Some(Gpus::All),
        Some(text) => Some(Gpus::Count(
            text.parse()
                .ok()
                .filter(|count| (1..=64).contains(count))
                .ok_or_else(|| {
                    Failure::invalid(format!("`{text}` is not a number of GPUs"))
                        .hint("`all`, or 1 to 64")
                })?,
        )),
    };
    Ok(ContainerPlan {
        image,
        platform: spec.platform,
        pull: spec.pull,
        name: spec.name,
        keep: spec.keep,
        user: spec.user,
        defaults: spec.defaults,
        network,
        workdir,
        volumes: spec.volumes,
        remove_volumes: spec.remove_volumes,
        read_only: spec.read_only.unwrap_or(tight),
        shm_size: spec.shm_size.or(tight.then_some(limits.tmp)),
        cap_add: capabilities(&spec.cap_add)?,
        cap_drop,
        privileged: spec.privileged,
        ulimits: spec.ulimits,
        tmpfs: spec.tmpfs,
        ports: spec.ports,
        extra_hosts: spec.extra_hosts,
        devices: spec
            .devices
            .iter()
            .map(|text| device(text))
            .collect::<Result<_, _>>()?,
        dns: spec.dns,
        runtime: spec.runtime,
        seccomp: spec.seccomp,
        no_new_privileges: spec.no_new_privileges.unwrap_or(!spec.privileged),
        gpus,
        daemon: spec.daemon,
        kubernetes: spec.kubernetes,
    })
}

/// Limits of each process that an engine can set.
const ULIMITS: [&str; 15] = [
    "core",
    "cpu",
    "data",
    "fsize",
    "locks",
    "memlock",
    "msgqueue",
    "nice",
    "nofile",
    "nproc",
    "rss",
    "rtprio",
    "rttime",
    "sigpending",
    "stack",
];

/// The name of a capability as the kernel writes it, without its prefix.
fn capability(name: &str) -> String {
    let name = name.to_ascii_uppercase();
    name.strip_prefix("CAP_").unwrap_or(&name).to_owned()
}

fn word(text: &str, what: &str, good: impl Fn(char) -> bool, example: &str) -> Result<(), Failure> {
    if (1..=128).contains(&text.len()) && text.chars().all(good) && !text.starts_with('-') {
        return Ok(());
    }
    Err(Failure::invalid(format!("`{text}` is not {what}")).hint(format!("such as {example}")))
}

fn check_name(name: &str, what: &str) -> Result<(), Failure> {
    let good = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let named = name.len() >= 2 && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !named {
        return Err(
            Failure::invalid(format!("`{name}` is not the name of {what}"))
                .hint("at least 2 letters, digits, `_`, `.` and `-`, the first a letter or digit"),
        );
    }
    word(name, &format!("the name of {what}"), good, "data-1")
}

/// Names with a registry, a tag and a digest; what each part may be, the engine says.
fn check_image(image: &str) -> Result<(), Failure> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-/:@[]".contains(c);
    let named = image.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[');
    if (1..=512).contains(&image.len()) && named && image.chars().all(good) {
        return Ok(());
    }
    Err(
        Failure::invalid(format!("`{image}` is not the name of an image"))
            .hint("such as python:3.13-slim or registry.example/team/image@sha256:…"),
    )
}

fn check_address(address: &str) -> Result<(), Failure> {
    if address.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    Err(Failure::invalid(format!("`{address}` is not an address")).hint("such as 10.0.0.1"))
}

/// Where something may be mounted in a container: not on what the engine itself puts there.
pub(crate) fn check_target(path: &Path, what: &str) -> Result<(), Failure> {
    absolute(path, what)?;
    let ours = ["/proc", "/sys", crate::backend::docker::GUEST_FOLDER];
    if path == Path::new("/") || ours.iter().any(|taken| path.starts_with(taken)) {
        return Err(Failure::new(
            Code::InvalidInput,
            format!("nothing can be mounted at {}", path.display()),
        )
        .hint("choose a folder such as /data"));
    }
    Ok(())
}

fn device(text: &str) -> Result<Device, Failure> {
    let parts: Vec<&str> = text.split(':').collect();
    let (from, to, rights) = match parts.as_slice() {
        [from] => (from, from, "rwm"),
        [from, to] if to.starts_with('/') => (from, to, "rwm"),
        [from, rights] => (from, from, *rights),
        [from, to, rights] => (from, to, *rights),
        _ => (&"", &"", ""),
    };
    let good = from.starts_with("/dev/")
        && to.starts_with('/')
        && !rights.is_empty()
        && rights.chars().all(|c| "rwm".contains(c));
    if !good {
        return Err(Failure::invalid(format!("`{text}` is not a device"))
            .hint("/dev/a, /dev/a:/dev/b or /dev/a:/dev/b:r"));
    }
    Ok(Device {
        from: (*from).to_owned(),
        to: (*to).to_owned(),
        rights: rights.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str) -> Result<ContainerPlan, Failure> {
        let spec: ContainerSpec = serde_json::from_str(text).unwrap();
        resolve(spec, Network::None, &Limits::default(), "python:3")
    }

    #[test]
    fn defaults_are_tight_or_those_of_the_engine() {
        let tight = resolved("{}").unwrap();
        assert_eq!(tight.cap_drop, ["ALL"]);
        assert!(tight.read_only && tight.no_new_privileges);
        assert_eq!(
            (tight.network.as_str(), tight.image.as_str()),
            ("none", "python:3")
        );
        let engine = resolved(r#"{"defaults": "engine", "cap_drop": ["cap_net_raw"]}"#).unwrap();
        assert_eq!(engine.cap_drop, ["NET_RAW"]);
        assert!(!engine.read_only && engine.no_new_privileges);
    }

    #[test]
    fn devices_are_read_in_three_forms() {
        for (text, from, to, rights) in [
            ("/dev/a", "/dev/a", "/dev/a", "rwm"),
            ("/dev/a:/dev/b", "/dev/a", "/dev/b", "rwm"),
            ("/dev/a:/dev/b:r", "/dev/a", "/dev/b", "r"),
        ] {
            let device = device(text).unwrap();
            assert_eq!(
                (
                    device.from.as_str(),
                    device.to.as_str(),
                    device.rights.as_str()
                ),
                (from, to, rights)
            );
        }
    }

    #[test]
    fn bad_values_are_refused() {
        for text in [
            r#"{"image": "a b"}"#,
            r#"{"image": ""}"#,
            r#"{"name": "../x"}"#,
            r#"{"keep": true}"#,
            r#"{"user": "a b"}"#,
            r#"{"network": "a b"}"#,
            r#"{"workdir": "work"}"#,
            r#"{"volumes": [{"name": "/etc", "to": "/x"}]}"#,
            r#"{"volumes": [{"name": "data", "to": "/proc"}]}"#,
            r#"{"tmpfs": {"/.ringfence": ""}}"#,
            r#"{"ports": [{"container": 0}], "network": "bridge"}"#,
            r#"{"ports": [{"container": 80}]}"#,
            r#"{"ulimits": {"files": {"soft": 1, "hard": 1}}}"#,
            r#"{"ulimits": {"nofile": {"soft": 2, "hard": 1}}}"#,
            r#"{"cap_add": ["NET ADMIN"]}"#,
            r#"{"devices": ["/etc/passwd"]}"#,
            r#"{"devices": ["/dev/a:/dev/b:x"]}"#,
            r#"{"dns": ["example"]}"#,
            r#"{"extra_hosts": {"a": "b"}}"#,
            r#"{"seccomp": "{"}"#,
            r#"{"gpus": "0"}"#,
        ] {
            let refused = resolved(text).map(drop).map_err(|failure| failure.code);
            assert_eq!(refused, Err(Code::InvalidInput), "{text}");
        }
    }

    #[test]
    fn what_reaches_beyond_the_sandbox_is_named() {
        let dangers = |text: &str| {
            let spec: ContainerSpec = serde_json::from_str(text).unwrap();
            spec.dangers()
        };
        assert_eq!(dangers(r#"{"image": "a", "cap_add": ["chown"]}"#), []);
        for (text, danger) in [
            (r#"{"privileged": true}"#, Danger::Privileged),
            (r#"{"network": "bridge"}"#, Danger::Network),
            (r#"{"network": "host"}"#, Danger::HostNetwork),
            (r#"{"network": "container:x"}"#, Danger::HostNetwork),
            (r#"{"devices": ["/dev/kvm"]}"#, Danger::Devices),
            (r#"{"gpus": "all"}"#, Danger::Devices),
            (r#"{"cap_add": ["SYS_ADMIN"]}"#, Danger::Capabilities),
            (r#"{"seccomp": "unconfined"}"#, Danger::SystemCalls),
            (r#"{"no_new_privileges": false}"#, Danger::NewPrivileges),
            (r#"{"name": "db"}"#, Danger::Names),
            (
                r#"{"volumes": [{"name": "db", "to": "/x"}]}"#,
                Danger::Volumes,
            ),
            (r#"{"ports": [{"container": 80}]}"#, Danger::Ports),
            (r#"{"daemon": true}"#, Danger::Ports),
            (r#"{"kubernetes": {"claim": "db"}}"#, Danger::Volumes),
            (
                r#"{"kubernetes": {"service_account": "admin"}}"#,
                Danger::Cluster,
            ),
        ] {
            assert_eq!(dangers(text), [danger], "{text}");
        }
    }
}
