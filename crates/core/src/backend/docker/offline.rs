//! A container without a network, in which the engine's own networking is switched off: for each
//! container that is none of its networks' it executes itself once more, which takes longer than
//! all else of a start. What the code inside would miss is `/etc/hosts`, which then comes from the
//! guest's volume. It is named by where the engine has it, so the engine may be far away.

use super::body::is_free;
use crate::container::{ContainerPlan, Defaults};
use crate::plan::Plan;
use bollard::models::{ContainerCreateBody, Mount, MountType};
use ringfence_proto::Failure;
use std::path::Path;

const HOSTS: &str = "/etc/hosts";
/// Its name in the guest's volume, and what it says.
pub(super) const HOSTS_NAME: &str = "hosts";
pub(super) const HOSTS_TEXT: &str = "127.0.0.1 localhost sandbox\n::1 localhost\n";

/// Whether nothing is asked for that the engine's networking does.
pub(super) fn is_possible(plan: &Plan, container: &ContainerPlan) -> bool {
    container.network == "none"
        && !container.daemon
        && container.defaults == Defaults::Tight
        && container.extra_hosts.is_empty()
        && container.dns.is_empty()
        && is_free(plan, container, Path::new(HOSTS))
}

/// `folder` is where the engine has the files of the guest's volume.
pub(super) fn apply(body: &mut ContainerCreateBody, folder: &str) {
    body.network_disabled = Some(true);
    let host = body.host_config.get_or_insert_default();
    host.mounts.get_or_insert_default().push(Mount {
        target: Some(HOSTS.to_owned()),
        source: Some(format!("{folder}/{HOSTS_NAME}")),
        typ: Some(MountType::BIND),
        read_only: Some(true),
        ..Mount::default()
    });
}

/// Leaves `/etc/hosts` and the network to the engine.
pub(super) fn undo(body: &mut ContainerCreateBody) {
    body.network_disabled = None;
    let host = body.host_config.as_mut();
    if let Some(mounts) = host.and_then(|host| host.mounts.as_mut()) {
        mounts.retain(|mount| mount.target.as_deref() != Some(HOSTS));
    }
}

/// Whether the engine does not mount from where it says that a volume is, as one in a machine of
/// its own.
pub(super) fn is_refused(body: &ContainerCreateBody, failure: &Failure) -> bool {
    body.network_disabled == Some(true) && names_hosts(failure)
}

/// Whether this is about our own file of hosts.
pub(super) fn names_hosts(failure: &Failure) -> bool {
    failure.message.contains(&format!("/{HOSTS_NAME}"))
}
