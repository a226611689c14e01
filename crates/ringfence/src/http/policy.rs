//! What a caller may ask of the host.

use super::problem::Answer;
use crate::config::{Danger as Allowed, Policy};
use ringfence_core::container::Danger;
use ringfence_core::spec::{Access, Network, SandboxSpec, Workspace};
use ringfence_core::{Code, Failure};
use std::path::{Path, PathBuf};

/// Refuses what the server's policy does not allow. Paths are resolved here, once. Skills that
/// every session gets may be asked for by anybody.
pub(crate) fn apply(policy: &Policy, skills: &[PathBuf], spec: &mut SandboxSpec) -> Answer<()> {
    if spec.network == Network::Host && !policy.host_network {
        return Err(refused("the host's network", "policy.host_network").into());
    }
    for danger in spec.container.iter().flat_map(|asked| asked.dangers()) {
        let (what, leave) = leave(danger);
        let host_network = danger == Danger::HostNetwork && policy.host_network;
        let allowed = policy
            .allow
            .iter()
            .any(|given| [leave, Allowed::All].contains(given));
        if !allowed && !host_network {
            return Err(refused(what, "policy.allow").into());
        }
    }
    if spec.rootfs.is_some() {
        return Err(refused("a root folder of the host", "the server's own").into());
    }
    if spec.python.is_some() {
        return Err(refused("an interpreter of the host", "sandbox.python").into());
    }
    if let Workspace::Folder { path, access } = &mut spec.workspace {
        *path = folder(policy, path, *access)?;
    }
    for mount in &mut spec.mounts {
        mount.from = folder(policy, &mount.from, mount.access)?;
    }
    for path in &mut spec.skills {
        if !skills.contains(path) {
            *path = folder(policy, path, Access::ReadOnly)?;
        }
    }
    Ok(())
}

/// What a danger is called, and the leave that it needs.
fn leave(danger: Danger) -> (&'static str, Allowed) {
    match danger {
        Danger::Privileged => ("a privileged container", Allowed::Privileged),
        Danger::Network => ("a network", Allowed::Network),
        Danger::HostNetwork => ("the network of another", Allowed::HostNetwork),
        Danger::Devices => ("a device of the host", Allowed::Devices),
        Danger::Capabilities => ("such a capability", Allowed::Capabilities),
        Danger::SystemCalls => ("another seccomp profile", Allowed::SystemCalls),
        Danger::NewPrivileges => ("to gain privileges", Allowed::NewPrivileges),
        Danger::Names => ("a container by its name", Allowed::Names),
        Danger::Volumes => ("a volume by its name", Allowed::Volumes),
        Danger::Ports => ("a port that others reach", Allowed::Ports),
        Danger::Cluster => ("what belongs to the cluster", Allowed::Cluster),
    }
}

fn refused(what: &str, setting: &str) -> Failure {
    Failure::new(Code::Forbidden, format!("{what} is not allowed here"))
        .hint(format!("the server's configuration decides: {setting}"))
}

/// Allowed when it lies, links resolved, in an allowed folder.
fn folder(policy: &Policy, path: &Path, access: Access) -> Answer<PathBuf> {
    if !path.is_absolute() {
        // The server's own folder is nothing to its callers.
        let message = format!("a path of the host must be absolute: {}", path.display());
        return Err(Failure::invalid(message).into());
    }
    let what = format!("to mount {}", path.display());
    let real = path
        .canonicalize()
        .map_err(|_| refused(&what, "policy.mounts"))?;
    let allowed = policy.mounts.iter().any(|allowed| {
        let root = allowed.path.canonicalize();
        root.is_ok_and(|root| real.starts_with(root))
            && (access == Access::ReadOnly || allowed.access == Access::ReadWrite)
    });
    if allowed {
        return Ok(real);
    }
    Err(refused(&what, "policy.mounts").into())
}
