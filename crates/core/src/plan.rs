//! What will be done: complete, resolved once, the only thing that reaches a backend.

use crate::container::{self, ContainerPlan, Defaults};
use crate::random_hex;
use crate::size::Size;
use crate::skills;
use crate::spec::{Access, MountSpec, Network, SandboxSpec, Workspace};
use ringfence_proto::{Code, Failure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// Names a sandbox on every backend: lower case letters, digits and `-`, 1 to 48 of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

impl SandboxId {
    /// A new id that nobody can guess; disposable sandboxes are told apart by it.
    pub fn random(lifetime: Lifetime) -> Result<Self, Failure> {
        let prefix = match lifetime {
            Lifetime::Disposable => "run",
            Lifetime::Kept => "box",
        };
        Ok(Self(format!("{prefix}-{}", random_hex::<10>()?)))
    }

    /// One whose text is known to be good.
    pub(crate) fn named(text: String) -> Self {
        debug_assert!(Self::try_from(text.clone()).is_ok());
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for SandboxId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if (1..=48).contains(&text.len()) && text.chars().all(good) && !text.starts_with('-') {
            return Ok(Self(text));
        }
        Err(format!("`{text}` is not a sandbox id"))
    }
}

impl From<SandboxId> for String {
    fn from(id: SandboxId) -> Self {
        id.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifetime {
    /// Ends with the process that made it.
    Disposable,
    /// Outlives it, and is found again.
    Kept,
}

/// Something that a sandbox is held by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Control {
    Isolation,
    SystemCalls,
    Landlock,
    Network,
    Memory,
    Cpus,
    Pids,
    Workspace,
    Tmp,
    FileSize,
    OpenFiles,
}

impl Control {
    pub fn name(self) -> &'static str {
        match self {
            Self::Isolation => "isolation",
            Self::SystemCalls => "system calls",
            Self::Landlock => "landlock",
            Self::Network => "network",
            Self::Memory => "memory",
            Self::Cpus => "cpus",
            Self::Pids => "pids",
            Self::Workspace => "workspace size",
            Self::Tmp => "tmp size",
            Self::FileSize => "file size",
            Self::OpenFiles => "open files",
        }
    }
}

/// How well a control holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// For the sandbox as a whole.
    Sandbox,
    /// For each process by itself: the weaker form.
    Process,
    /// Not at all.
    None,
}

/// Whether a private workspace can be on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskWorkspace {
    No,
    /// Its size is held by the disk itself only.
    Unlimited,
    Limited,
}

/// What a backend can enforce on this host, and by what means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guarantees {
    pub backend: String,
    pub disk_workspace: DiskWorkspace,
    /// What a container is made from when nobody says; absent where there are no containers.
    pub image: Option<String>,
    pub controls: BTreeMap<Control, (Hold, String)>,
}

/// One line of what a sandbox is really held by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Enforced {
    pub control: Control,
    pub hold: Hold,
    /// The limit in words, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// The means, such as `cgroup v1`.
    pub by: String,
}

/// Limits, complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    pub memory: Size,
    pub cpus: f64,
    pub pids: u64,
    pub workspace: Size,
    pub tmp: Size,
    pub file_size: Size,
    pub open_files: u64,
}

impl Limits {
    /// The largest file of the guest, which keeps output in one; what it starts gets the plan's own
    /// limit.
    pub(crate) fn guest_file_size(&self) -> u64 {
        self.file_size.0.max(ringfence_proto::OUTPUT_RING)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: Size(1 << 30),
            cpus: 1.0,
            pids: 256,
            workspace: Size(512 << 20),
            tmp: Size(128 << 20),
            file_size: Size(256 << 20),
            open_files: 1024,
        }
    }
}

/// A sandbox to be made. Complete: a backend looks nowhere else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub id: SandboxId,
    pub lifetime: Lifetime,
    pub rootfs: Option<PathBuf>,
    pub python: Option<PathBuf>,
    pub environment: Option<String>,
    pub workspace: Workspace,
    /// Where the workspace is seen.
    #[serde(default = "usual_workspace")]
    pub workspace_at: PathBuf,
    pub mounts: Vec<MountSpec>,
    /// Names below the host's `/etc` that a native sandbox shows; the usual ones when absent.
    #[serde(default)]
    pub etc: Option<Vec<String>>,
    pub env: BTreeMap<String, String>,
    pub network: Network,
    pub limits: Limits,
    pub labels: BTreeMap<String, String>,
    pub enforced: Vec<Enforced>,
    /// For the backends that make one.
    #[serde(default)]
    pub container: Option<ContainerPlan>,
}

fn usual_workspace() -> PathBuf {
    ringfence_proto::WORKSPACE.into()
}

const MOST_MOUNTS: usize = 64;

/// Turns what was asked into what will be done, against what the backend can enforce.
pub fn resolve(
    spec: SandboxSpec,
    lifetime: Lifetime,
    guarantees: &Guarantees,
) -> Result<Plan, Failure> {
    resolve_with(spec, lifetime, guarantees, &Limits::default())
}

/// The same with other limits where none are asked for.
pub fn resolve_with(
    spec: SandboxSpec,
    lifetime: Lifetime,
    guarantees: &Guarantees,
    defaults: &Limits,
) -> Result<Plan, Failure> {
    let limits = limits(&spec, defaults)?;
    let mut mounts = spec.mounts;
    for skill in skills::of_folders(&spec.skills)? {
        let mount = skill.mount();
        // What was mounted there by name goes first.
        if !mounts.iter().any(|given| given.to == mount.to) {
            mounts.push(mount);
        }
    }
    if mounts.len() > MOST_MOUNTS {
        return Err(Failure::invalid(format!("more than {MOST_MOUNTS} mounts")));
    }
    for (at, mount) in mounts.iter().enumerate() {
        check_mount(mount, guarantees)?;
        if mounts[..at].iter().any(|other| other.to == mount.to) {
            let place = mount.to.display();
            return Err(Failure::invalid(format!(
                "two mounts have the place {place}"
            )));
        }
    }
    let workdir = spec.workdir.unwrap_or_else(usual_workspace);
    absolute(&workdir, "the work folder")?;
    check_target(&workdir)?;
    if workdir
        .to_string_lossy()
        .contains(|c: char| c == ':' || c.is_control())
    {
        return Err(Failure::invalid(
            "the work folder's name must not have colons or control characters",
        ));
    }
    check_env(&spec.env)?;
    check_labels(&spec.labels)?;
    if let Some(name) = &spec.environment {
        check_environment(name)?;
    }
    if let Workspace::Folder { path, .. } = &spec.workspace {
        absolute(path, "the workspace folder")?;
        check_source(path)?;
    }
    if let Some(rootfs) = &spec.rootfs {
        absolute(rootfs, "the root folder")?;
    }
    let container = match (&guarantees.image, spec.container) {
        (None, None) => None,
        (None, Some(_)) => {
            let backend = &guarantees.backend;
            return Err(Failure::invalid(format!(
                "options of a container mean nothing to the backend `{backend}`"
            ))
            .hint("use `--backend docker`"));
        }
        (Some(image), asked) => {
            for (what, given) in [
                ("a root folder", spec.rootfs.is_some()),
                ("an interpreter of the host", spec.python.is_some()),
                ("a packages environment", spec.environment.is_some()),
            ] {
                if given {
                    let message = format!("{what} can't be used in a container");
                    return Err(Failure::invalid(message).hint("name an image that has it"));
                }
            }
            let mut asked = asked.unwrap_or_default();
            asked.workdir.get_or_insert_with(|| workdir.clone());
            Some(container::resolve(asked, spec.network, &limits, image)?)
        }
    };
    let sized = spec.limits.workspace.is_some();
    let workspace = match (spec.workspace, lifetime, guarantees.disk_workspace) {
        (Workspace::Fresh, Lifetime::Disposable, _) => Workspace::Memory,
        (Workspace::Fresh, Lifetime::Kept, DiskWorkspace::Limited) => Workspace::Disk,
        (Workspace::Fresh, Lifetime::Kept, DiskWorkspace::Unlimited) if !sized => Workspace::Disk,
        (Workspace::Fresh, Lifetime::Kept, _) => Workspace::Memory,
        (other, ..) => other,
    };
    let unlimited =
        workspace == Workspace::Disk && guarantees.disk_workspace == DiskWorkspace::Unlimited;
    let in_folder = matches!(workspace, Workspace::Folder { .. });
    if in_folder && spec.limits.workspace.is_some() {
        return Err(Failure::invalid(
            "a workspace size can't be set for a folder of the host",
        ));
    }
    let mut enforced = Vec::new();
    let given = &spec.limits;
    let network = match (&container, spec.network) {
        (Some(container), _) => container.network.as_str(),
        (None, Network::None) => "none",
        (None, Network::Host) => "host",
    };
    let engines_own = container
        .as_ref()
        .is_some_and(|c| c.defaults == Defaults::Engine);
    let privileged = container.as_ref().is_some_and(|c| c.privileged);
    let rows = [
        (Control::Isolation, None, true),
        (Control::SystemCalls, None, true),
        (Control::Landlock, None, false),
        (Control::Network, Some(network.to_owned()), true),
        (
            Control::Memory,
            Some(limits.memory.to_string()),
            given.memory.is_some(),
        ),
        (
            Control::Cpus,
            Some(limits.cpus.to_string()),
            given.cpus.is_some(),
        ),
        (
            Control::Pids,
            Some(limits.pids.to_string()),
            given.pids.is_some(),
        ),
        (
            Control::Workspace,
            Some(limits.workspace.to_string()),
            given.workspace.is_some(),
        ),
        (
            Control::Tmp,
            Some(limits.tmp.to_string()),
            given.tmp.is_some(),
        ),
        // These are limits of each process by their nature.
        (Control::FileSize, Some(limits.file_size.to_string()), false),
        (
            Control::OpenFiles,
            Some(limits.open_files.to_string()),
            false,
        ),
    ];
    for (control, limit, demanded) in rows {
        // What the caller has given up by what it asked for.
        let waived = match control {
            Control::Network if network != "none" => Some("asked for"),
            Control::Isolation | Control::SystemCalls if privileged => Some("asked for"),
            Control::Tmp | Control::FileSize | Control::OpenFiles if engines_own => {
                Some("the engine's defaults were asked for")
            }
            Control::Workspace if in_folder => Some("a folder of the host"),
            Control::Workspace if workspace == Workspace::Empty => Some("read-only"),
            _ => None,
        };
        if let Some(why) = waived {
            let limit = limit.filter(|_| control == Control::Network);
            enforced.push(Enforced {
                control,
                hold: Hold::None,
                limit,
                by: why.to_owned(),
            });
            continue;
        }
        let offered = guarantees.controls.get(&control).cloned();
        let (hold, by) = match (control, offered) {
            (Control::Workspace, _) if unlimited => {
                (Hold::None, "on disk, which has no limit here".to_owned())
            }
            (_, Some(offered)) => offered,
            (_, None) => (Hold::None, "not offered by this backend".to_owned()),
        };
        let unmet = demanded && hold != Hold::Sandbox;
        if unmet && !spec.prefer {
            let name = control.name();
            let message = match hold {
                Hold::Process => {
                    format!(
                        "{name} can be limited here for each process only, not as a whole: {by}"
                    )
                }
                _ => format!("{name} can't be enforced here: {by}"),
            };
            return Err(Failure::new(Code::Unenforceable, message)
                .hint("`ringfence doctor` says how to change that; `--prefer` takes the nearest"));
        }
        enforced.push(Enforced {
            control,
            hold,
            limit,
            by,
        });
    }
    Ok(Plan {
        id: SandboxId::random(lifetime)?,
        lifetime,
        rootfs: spec.rootfs,
        python: spec.python,
        environment: spec.environment,
        workspace,
        workspace_at: workdir,
        mounts,
        etc: None,
        env: spec.env,
        network: spec.network,
        limits,
        labels: spec.labels,
        enforced,
        container,
    })
}

fn limits(spec: &SandboxSpec, default: &Limits) -> Result<Limits, Failure> {
    let asked = &spec.limits;
    let size = |name: &str, value: Option<Size>, default: Size, least: u64| {
        let value = value.unwrap_or(default);
        let range = Size(least)..=Size(1 << 44);
        if range.contains(&value) {
            return Ok(value);
        }
        Err(Failure::invalid(format!(
            "{name} is {value}: it must be between {} and {}",
            range.start(),
            range.end()
        )))
    };
    let number = |name: &str, value: Option<u64>, default: u64, least: u64, most: u64| {
        let value = value.unwrap_or(default);
        if (least..=most).contains(&value) {
            return Ok(value);
        }
        Err(Failure::invalid(format!(
            "{name} is {value}: it must be between {least} and {most}"
        )))
    };
    let cpus = asked.cpus.unwrap_or(default.cpus);
    if !(0.01..=1024.0).contains(&cpus) {
        return Err(Failure::invalid(format!(
            "cpus is {cpus}: it must be between 0.01 and 1024"
        )));
    }
    Ok(Limits {
        memory: size("memory", asked.memory, default.memory, 16 << 20)?,
        cpus,
        pids: number("pids", asked.pids, default.pids, 4, 1 << 20)?,
        workspace: size(
            "workspace size",
            asked.workspace,
            default.workspace,
            1 << 20,
        )?,
        tmp: size("tmp size", asked.tmp, default.tmp, 64 << 10)?,
        file_size: size("file size", asked.file_size, default.file_size, 4 << 10)?,
        open_files: number(
            "open files",
            asked.open_files,
            default.open_files,
            32,
            1 << 20,
        )?,
    })
}

pub(crate) fn absolute(path: &Path, what: &str) -> Result<(), Failure> {
    let clean = path.is_absolute()
        && path
            .components()
            .all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    if clean && path.to_str().is_some_and(|p| !p.contains('\0')) {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "{what} must be an absolute path: {}",
        path.display()
    )))
}

/// Places of the host that hold no files of a person, but the machine itself.
fn check_source(from: &Path) -> Result<(), Failure> {
    let machine = ["/proc", "/sys", "/dev"]
        .iter()
        .any(|m| from.starts_with(m));
    if from == Path::new("/") || machine {
        return Err(Failure::new(
            Code::Forbidden,
            format!(
                "cannot give {} to a sandbox: it is the host itself",
                from.display()
            ),
        ));
    }
    Ok(())
}

fn check_mount(mount: &MountSpec, guarantees: &Guarantees) -> Result<(), Failure> {
    absolute(&mount.from, "a mount's source")?;
    check_source(&mount.from)?;
    if guarantees.image.is_some() {
        return container::check_target(&mount.to, "a mount's target");
    }
    absolute(&mount.to, "a mount's target")?;
    check_target(&mount.to)
}

/// Places inside that are the system's own.
fn check_target(to: &Path) -> Result<(), Failure> {
    let reserved = [
        "/proc", "/dev", "/sys", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64",
    ];
    if to == Path::new("/") || reserved.iter().any(|r| to.starts_with(r)) {
        return Err(
            Failure::invalid(format!("nothing can be mounted at {}", to.display()))
                .hint("choose a folder such as /data"),
        );
    }
    Ok(())
}

pub(crate) fn check_env(env: &BTreeMap<String, String>) -> Result<(), Failure> {
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(Failure::invalid(format!(
                "`{name}` is not an environment variable"
            )));
        }
    }
    let total: usize = env.iter().map(|(k, v)| k.len() + v.len()).sum();
    if total > 1 << 20 {
        return Err(Failure::invalid("the environment is over 1 MiB"));
    }
    Ok(())
}

/// The name becomes part of a path on the host.
pub fn check_environment(name: &str) -> Result<(), Failure> {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let good = (1..=32).contains(&name.len())
        && name.starts_with(word)
        && name.chars().all(|c| word(c) || c == '_' || c == '-');
    if good {
        return Ok(());
    }
    Err(
        Failure::invalid(format!("`{name}` is not the name of an environment"))
            .hint("use 1 to 32 lower case letters, digits, `_` and `-`"),
    )
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Failure> {
    for (name, value) in labels {
        let good = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        if name.is_empty() || name.len() > 63 || !name.chars().all(good) || value.len() > 256 {
            return Err(Failure::invalid(format!(
                "`{name}` is not a label: 1 to 63 letters, digits, `.`, `_`, `-`, `/`, with a \
                 value of at most 256 bytes"
            )));
        }
    }
    Ok(())
}

impl Access {
    pub fn writable(self) -> bool {
        self == Self::ReadWrite
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::LimitsSpec;

    fn guarantees(memory: Hold) -> Guarantees {
        let mut controls = BTreeMap::new();
        for control in [
            Control::Isolation,
            Control::SystemCalls,
            Control::Network,
            Control::Cpus,
            Control::Pids,
            Control::Workspace,
            Control::Tmp,
        ] {
            controls.insert(control, (Hold::Sandbox, "test".to_owned()));
        }
        controls.insert(Control::Memory, (memory, "test".to_owned()));
        Guarantees {
            backend: "test".to_owned(),
            disk_workspace: DiskWorkspace::Limited,
            image: None,
            controls,
        }
    }

    fn with_memory() -> SandboxSpec {
        let limits = LimitsSpec {
            memory: Some(Size(64 << 20)),
            ..LimitsSpec::default()
        };
        SandboxSpec {
            limits,
            ..SandboxSpec::default()
        }
    }

    #[test]
    fn an_environment_stays_below_its_folder() {
        for (name, good) in [
            ("data", true),
            ("../x", false),
            ("a/b", false),
            ("", false),
            (".", false),
        ] {
            let spec = SandboxSpec {
                environment: Some(name.to_owned()),
                ..SandboxSpec::default()
            };
            let plan = resolve(spec, Lifetime::Disposable, &guarantees(Hold::Sandbox));
            assert_eq!(plan.is_ok(), good, "{name}");
        }
    }

    #[test]
    fn a_given_limit_is_enforced_or_refused() {
        let weak = guarantees(Hold::Process);
        let failure = resolve(with_memory(), Lifetime::Disposable, &weak).unwrap_err();
        assert_eq!(failure.code, Code::Unenforceable);
        assert!(failure.message.contains("memory"), "{failure}");
        let prefer = SandboxSpec {
            prefer: true,
            ..with_memory()
        };
        let plan = resolve(prefer, Lifetime::Disposable, &weak).unwrap();
        let row = plan
            .enforced
            .iter()
            .find(|e| e.control == Control::Memory)
            .unwrap();
        assert_eq!(
            (row.hold, row.limit.as_deref()),
            (Hold::Process, Some("64 MiB"))
        );
        assert!(resolve(SandboxSpec::default(), Lifetime::Disposable, &weak).is_ok());
        assert!(
            resolve(
                with_memory(),
                Lifetime::Disposable,
                &guarantees(Hold::Sandbox)
            )
            .is_ok()
        );
    }

    #[test]
    fn isolation_is_never_optional() {
        let mut none = guarantees(Hold::Sandbox);
        none.controls.remove(&Control::Isolation);
        assert!(resolve(SandboxSpec::default(), Lifetime::Disposable, &none).is_err());
    }

    #[test]
    fn bad_values_are_refused() {
        let all = guarantees(Hold::Sandbox);
        let bad = [
            r#"{"limits":{"memory":"1k"}}"#,
            r#"{"limits":{"cpus":0}}"#,
            r#"{"limits":{"cpus":-1}}"#,
            r#"{"limits":{"pids":0}}"#,
            r#"{"mounts":[{"from":"a","to":"/b"}]}"#,
            r#"{"mounts":[{"from":"/a","to":"/../b"}]}"#,
            r#"{"mounts":[{"from":"/a","to":"/proc/x"}]}"#,
            r#"{"mounts":[{"from":"/a","to":"/"}]}"#,
            r#"{"mounts":[{"from":"/a","to":"/b"},{"from":"/c","to":"/b/"}]}"#,
            r#"{"workdir":"work"}"#,
            r#"{"workdir":"/"}"#,
            r#"{"workdir":"/proc/work"}"#,
            r#"{"workdir":"/a:b"}"#,
            r#"{"env":{"A=B":"c"}}"#,
            r#"{"labels":{"a b":"c"}}"#,
            r#"{"workspace":{"folder":{"path":"x","access":"rw"}}}"#,
        ];
        for text in bad {
            let spec: SandboxSpec = serde_json::from_str(text).unwrap();
            assert!(resolve(spec, Lifetime::Disposable, &all).is_err(), "{text}");
        }
        assert!(serde_json::from_str::<SandboxSpec>(r#"{"memory":1}"#).is_err());
    }

    #[test]
    fn ids_have_a_rule() {
        for bad in ["", "-a", "A", "a/b", "a.b", "..", &"a".repeat(49)] {
            assert!(SandboxId::try_from(bad.to_owned()).is_err(), "{bad}");
        }
        let id = SandboxId::random(Lifetime::Disposable).unwrap();
        assert_eq!(SandboxId::try_from(id.as_str().to_owned()).unwrap(), id);
    }
}
