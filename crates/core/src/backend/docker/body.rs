//! From a plan to what the engine is asked to make.

use super::sweep::maker;
use super::{GUEST, GUEST_FOLDER, LABEL, PLAN_LABEL, SECRET_LABEL, STATE_LABEL, WORK_LABEL};
use crate::container::{ContainerPlan, Defaults, FILTERED, Gpus, Protocol};
use crate::plan::{Lifetime, Plan};
use crate::spec::{Access, Workspace};
use bollard::models::{
    ContainerCreateBody, DeviceMapping, DeviceRequest, HostConfig, HostConfigLogConfig,
    ImageConfig, Mount, MountType, MountVolumeOptions, PortBinding, ResourcesUlimits,
};
use ringfence_proto::{Code, Failure};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Who runs where the image says root, or nothing.
const ORDINARY: &str = "1000:1000";

/// Most files of a file system in memory.
const MEMORY_FILES: u64 = 200_000;

/// The guest serves many at once; what it starts gets the plan's own limit.
const GUEST_FILES: u64 = 4096;

/// The user that a container runs as; absent where the image's own does.
pub(super) fn user(plan: &Plan, container: &ContainerPlan, image: &ImageConfig) -> Option<String> {
    if container.user.is_some() || container.defaults == Defaults::Engine {
        return container.user.clone();
    }
    // Files of a folder of the host belong to somebody, and only that one can write them.
    if let Workspace::Folder {
        path,
        access: Access::ReadWrite,
    } = &plan.workspace
        && let Ok(metadata) = std::fs::metadata(path)
    {
        use std::os::unix::fs::MetadataExt as _;
        return Some(format!("{}:{}", metadata.uid(), metadata.gid()));
    }
    let own = image.user.as_deref().unwrap_or_default();
    let name = own.split(':').next().unwrap_or_default();
    match name {
        "" | "0" | "root" => Some(ORDINARY.to_owned()),
        _ => Some(own.to_owned()),
    }
}

/// The numbers of a user and its group, where the name itself says them.
pub(super) fn numbers(user: &str) -> Option<(u32, u32)> {
    match user.split_once(':') {
        Some((user, group)) => Some((user.parse().ok()?, group.parse().ok()?)),
        None => Some((user.parse().ok()?, 0)),
    }
}

/// Whether the work folder is a volume of its own.
pub(super) fn has_work_volume(plan: &Plan, container: &ContainerPlan) -> bool {
    plan.workspace == Workspace::Disk && is_free(plan, container, &container.workdir)
}

/// Whether nothing else that was asked for goes there.
pub(super) fn is_free(plan: &Plan, container: &ContainerPlan, path: &Path) -> bool {
    path != Path::new("/")
        && !plan.mounts.iter().any(|mount| mount.to == path)
        && !container.volumes.iter().any(|volume| volume.to == path)
        && !container.tmpfs.keys().any(|to| Path::new(to) == path)
}

/// Labels of everything of ours on the engine.
pub(super) fn labels(value: &str) -> HashMap<String, String> {
    HashMap::from([(LABEL.to_owned(), value.to_owned())])
}

/// Labels of a sandbox: with them any server finds it and its guest.
pub(super) fn sandbox_labels(
    plan: &Plan,
    secret: &str,
    state: &str,
) -> Result<HashMap<String, String>, Failure> {
    let text = serde_json::to_string(plan)
        .map_err(|e| Failure::new(Code::Internal, "cannot label a container").detail(e))?;
    let mut labels = labels(plan.id.as_str());
    labels.insert(PLAN_LABEL.to_owned(), text);
    labels.insert(SECRET_LABEL.to_owned(), secret.to_owned());
    labels.insert(STATE_LABEL.to_owned(), state.to_owned());
    if plan.lifetime == Lifetime::Disposable {
        labels.extend([maker()?]);
    }
    for (name, value) in &plan.labels {
        if !name.starts_with("ringfence") {
            labels.insert(name.clone(), value.clone());
        }
    }
    Ok(labels)
}

/// The volume that holds the guest.
pub(super) fn guest_mount(volume: &str, access: Access) -> Mount {
    Mount {
        target: Some(GUEST_FOLDER.to_owned()),
        source: Some(volume.to_owned()),
        typ: Some(MountType::VOLUME),
        read_only: Some(access == Access::ReadOnly),
        volume_options: Some(MountVolumeOptions {
            no_copy: Some(true),
            labels: Some(labels("guest")),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}

/// Has the guest come from another volume.
pub(super) fn mount_guest(body: &mut ContainerCreateBody, volume: &str) {
    let host = body.host_config.as_mut();
    let mounts = host.and_then(|host| host.mounts.as_mut());
    for mount in mounts.into_iter().flatten() {
        if mount.target.as_deref() == Some(GUEST_FOLDER) {
            mount.source = Some(volume.to_owned());
        }
    }
}

/// Words of the guest's command line that do not depend on how it is started.
pub(super) fn arguments(plan: &Plan, container: &ContainerPlan) -> Vec<String> {
    let mut words = vec![
        "--stdio".to_owned(),
        "--id".to_owned(),
        plan.id.to_string(),
        "--workspace".to_owned(),
        container.workdir.display().to_string(),
        "--memory-limit".to_owned(),
        plan.limits.memory.0.to_string(),
    ];
    if container.defaults == Defaults::Tight {
        words.extend([
            "--open-files".to_owned(),
            plan.limits.open_files.to_string(),
            "--file-size".to_owned(),
            plan.limits.file_size.0.to_string(),
        ]);
    }
    words
}

/// Everything that the engine is asked for.
pub(super) fn body(
    plan: &Plan,
    container: &ContainerPlan,
    image: &ImageConfig,
    guest_volume: &str,
    labels: HashMap<String, String>,
) -> ContainerCreateBody {
    let user = user(plan, container, image);
    let mut command = arguments(plan, container);
    if container.is_filtered() {
        command.insert(0, FILTERED.to_owned());
    }
    command.extend(["--door".to_owned(), plan.id.to_string()]);
    if container.daemon {
        command.push("--daemon".to_owned());
        if container.network == "none" {
            command.push("--no-sockets".to_owned());
        }
    }
    if plan.lifetime == Lifetime::Disposable {
        command.push("--end-with-stdio".to_owned());
    }
    // An engine refuses a name of its own for one that shares another's.
    let shares_host = container.network == "host" || container.network.starts_with("container:");
    ContainerCreateBody {
        hostname: (!shares_host).then(|| "sandbox".to_owned()),
        user: user.clone(),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        open_stdin: Some(true),
        // The input of a disposable one ends with its maker, and with its input it ends itself.
        stdin_once: Some(plan.lifetime == Lifetime::Disposable),
        tty: Some(false),
        env: Some(environment(plan, container, image)),
        entrypoint: Some(vec![GUEST.to_owned()]),
        cmd: Some(command),
        image: Some(container.image.clone()),
        working_dir: Some(container.workdir.display().to_string()),
        labels: Some(labels),
        stop_signal: Some("SIGTERM".to_owned()),
        exposed_ports: Some(
            container
                .ports
                .iter()
                .map(|port| port_name(port.container, port.protocol))
                .collect(),
        ),
        host_config: Some(host_config(plan, container, guest_volume, user.as_deref())),
        ..ContainerCreateBody::default()
    }
}

fn port_name(port: u16, protocol: Protocol) -> String {
    let protocol = match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    };
    format!("{port}/{protocol}")
}

fn environment(plan: &Plan, container: &ContainerPlan, image: &ImageConfig) -> Vec<String> {
    let mut env = BTreeMap::new();
    if container.defaults == Defaults::Tight {
        let home = container.workdir.display().to_string();
        env.insert("HOME", home);
        let own = image.env.as_deref().unwrap_or_default();
        for (name, value) in [
            ("LANG", "C.UTF-8"),
            ("MPLBACKEND", "Agg"),
            ("USER", "sandbox"),
        ] {
            if !own.iter().any(|text| text.split('=').next() == Some(name)) {
                env.insert(name, value.to_owned());
            }
        }
    }
    for (name, value) in &plan.env {
        env.insert(name, value.clone());
    }
    env.into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

fn host_config(
    plan: &Plan,
    container: &ContainerPlan,
    guest_volume: &str,
    user: Option<&str>,
) -> HostConfig {
    let limits = &plan.limits;
    let memory = limits.memory.0 as i64;
    HostConfig {
        memory: Some(memory),
        // As much with swap as without: there is none.
        memory_swap: Some(memory),
        nano_cpus: Some((limits.cpus * 1e9) as i64),
        pids_limit: Some(limits.pids as i64),
        ulimits: Some(ulimits(plan, container)),
        // What goes through the standard streams is between us and the guest.
        log_config: Some(HostConfigLogConfig {
            typ: Some("none".to_owned()),
            config: None,
        }),
        network_mode: Some(network(container).to_owned()),
        port_bindings: Some(ports(container)),
        auto_remove: Some(plan.lifetime == Lifetime::Disposable),
        mounts: Some(mounts(plan, container, guest_volume)),
        cap_add: Some(container.cap_add.clone()),
        cap_drop: Some(container.cap_drop.clone()),
        dns: (!container.dns.is_empty()).then(|| container.dns.clone()),
        extra_hosts: Some(
            container
                .extra_hosts
                .iter()
                .map(|(name, address)| format!("{name}:{address}"))
                .collect(),
        ),
        ipc_mode: Some("private".to_owned()),
        privileged: Some(container.privileged),
        readonly_rootfs: Some(container.read_only),
        security_opt: Some(security(container)),
        tmpfs: Some(tmpfs(plan, container, user)),
        shm_size: container.shm_size.map(|size| size.0 as i64),
        runtime: container.runtime.clone(),
        devices: Some(
            container
                .devices
                .iter()
                .map(|device| DeviceMapping {
                    path_on_host: Some(device.from.clone()),
                    path_in_container: Some(device.to.clone()),
                    cgroup_permissions: Some(device.rights.clone()),
                })
                .collect(),
        ),
        device_requests: container.gpus.map(|gpus| {
            vec![DeviceRequest {
                count: Some(match gpus {
                    Gpus::All => -1,
                    Gpus::Count(count) => i64::from(count),
                }),
                capabilities: Some(vec![vec!["gpu".to_owned()]]),
                ..DeviceRequest::default()
            }]
        }),
        ..HostConfig::default()
    }
}

/// Where a daemon is reached at the container's address, it needs one. What runs inside has no
/// sockets all the same, unless a network was asked for.
fn network(container: &ContainerPlan) -> &str {
    match container.network.as_str() {
        "none" if container.daemon => "bridge",
        network => network,
    }
}

fn security(container: &ContainerPlan) -> Vec<String> {
    let mut options = Vec::new();
    if container.no_new_privileges {
        options.push("no-new-privileges:true".to_owned());
    }
    if let Some(profile) = &container.seccomp {
        options.push(format!("seccomp={profile}"));
    }
    options
}

fn ulimits(plan: &Plan, container: &ContainerPlan) -> Vec<ResourcesUlimits> {
    let mut all = BTreeMap::new();
    if container.defaults == Defaults::Tight {
        let size = plan.limits.guest_file_size() as i64;
        let files = plan.limits.open_files.max(GUEST_FILES) as i64;
        all.extend(
            [
                // Not 0: see the native backend.
                ("core", 1),
                ("fsize", size),
                ("nofile", files),
                ("memlock", 64 << 10),
                ("msgqueue", 800 << 10),
                ("rtprio", 0),
                ("nice", 0),
            ]
            .map(|(name, value)| (name.to_owned(), (value, value))),
        );
    }
    for (name, limit) in &container.ulimits {
        all.insert(name.clone(), (limit.soft, limit.hard));
    }
    all.into_iter()
        .map(|(name, (soft, hard))| ResourcesUlimits {
            name: Some(name),
            soft: Some(soft),
            hard: Some(hard),
        })
        .collect()
}

fn ports(container: &ContainerPlan) -> HashMap<String, Option<Vec<PortBinding>>> {
    let mut all: HashMap<String, Option<Vec<PortBinding>>> = HashMap::new();
    for port in &container.ports {
        let binding = PortBinding {
            host_ip: Some(port.address.clone().unwrap_or("127.0.0.1".to_owned())),
            host_port: Some(match port.host {
                0 => String::new(),
                port => port.to_string(),
            }),
        };
        all.entry(port_name(port.container, port.protocol))
            .or_default()
            .get_or_insert_default()
            .push(binding);
    }
    all
}

fn mounts(plan: &Plan, container: &ContainerPlan, guest_volume: &str) -> Vec<Mount> {
    let bind = |from: &Path, to: &Path, access: Access| Mount {
        target: Some(to.display().to_string()),
        source: Some(from.display().to_string()),
        typ: Some(MountType::BIND),
        read_only: Some(access == Access::ReadOnly),
        ..Mount::default()
    };
    let volume = |name: Option<String>, to: &Path, access: Access| Mount {
        target: Some(to.display().to_string()),
        source: name,
        typ: Some(MountType::VOLUME),
        read_only: Some(access == Access::ReadOnly),
        volume_options: Some(MountVolumeOptions {
            labels: Some(labels(plan.id.as_str())),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    };
    let mut all = vec![guest_mount(guest_volume, Access::ReadOnly)];
    if let Workspace::Folder { path, access } = &plan.workspace {
        all.push(bind(path, &container.workdir, *access));
    }
    if has_work_volume(plan, container) {
        // Without a name it goes with its container; where others remove that one, by its label.
        let mut work = volume(None, &container.workdir, Access::ReadWrite);
        if let Some(labels) = work.volume_options.as_mut().and_then(|o| o.labels.as_mut()) {
            labels.insert(WORK_LABEL.to_owned(), String::new());
        }
        all.push(work);
    }
    for mount in &plan.mounts {
        all.push(bind(&mount.from, &mount.to, mount.access));
    }
    for asked in &container.volumes {
        all.push(volume(Some(asked.name.clone()), &asked.to, asked.access));
    }
    all
}

fn tmpfs(plan: &Plan, container: &ContainerPlan, user: Option<&str>) -> HashMap<String, String> {
    let memory = |bytes: u64, owner: &str| {
        format!("rw,exec,nosuid,nodev,size={bytes},nr_inodes={MEMORY_FILES},{owner}")
    };
    let mut all = HashMap::new();
    let workdir = &container.workdir;
    if plan.workspace == Workspace::Memory && is_free(plan, container, workdir) {
        let owner = match user.and_then(numbers) {
            Some((uid, gid)) => format!("uid={uid},gid={gid},mode=755"),
            None => "mode=1777".to_owned(),
        };
        let options = memory(plan.limits.workspace.0, &owner);
        all.insert(workdir.display().to_string(), options);
    }
    if plan.workspace == Workspace::Empty && is_free(plan, container, workdir) {
        let options = "ro,nosuid,nodev,size=4k".to_owned();
        all.insert(workdir.display().to_string(), options);
    }
    let mut places = Vec::new();
    if container.defaults == Defaults::Tight {
        places.push("/tmp");
        if container.read_only {
            places.push("/var/tmp");
        }
    }
    for place in places.into_iter().map(Path::new) {
        if place != workdir && is_free(plan, container, place) {
            let options = memory(plan.limits.tmp.0, "mode=1777");
            all.insert(place.display().to_string(), options);
        }
    }
    for (to, options) in &container.tmpfs {
        all.insert(to.clone(), options.clone());
    }
    all
}

/// Asks for the same files in memory by the options that Podman knows: sizes stay, the number of
/// files and the owner can't be said. False where that is the case already.
pub(super) fn simplify_tmpfs(body: &mut ContainerCreateBody) -> bool {
    let count = format!("nr_inodes={MEMORY_FILES}");
    let tmpfs = body.host_config.as_mut().and_then(|h| h.tmpfs.as_mut());
    let mut changed = false;
    for options in tmpfs.into_iter().flat_map(HashMap::values_mut) {
        let known: Vec<&str> = options.split(',').filter(|o| *o != count).collect();
        if known.len() == options.split(',').count() {
            continue;
        }
        let owned = |o: &&str| !o.starts_with("uid=") && !o.starts_with("gid=");
        let plain: Vec<&str> = known.iter().copied().filter(owned).collect();
        let open = plain.len() < known.len();
        *options = plain.join(",");
        if open {
            *options = options.replace("mode=755", "mode=1777");
        }
        changed = true;
    }
    changed
}
