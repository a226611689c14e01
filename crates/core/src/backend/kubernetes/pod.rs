//! From a plan to the pod that the cluster is asked for.

use super::{
    CONTAINER, Config, GUEST, GUEST_FOLDER, GUEST_IN_IMAGE, LABEL, NODES_GONE, PLAN_NOTE, PORT,
    SANDBOX_LABEL, SECRET_NOTE,
};
use crate::container::{ClusterSpec, ContainerPlan, Defaults, FILTERED, LIMITED, Pull};
use crate::hex;
use crate::plan::{Lifetime, Plan};
use crate::size::Size;
use crate::spec::{Access, Workspace};
use k8s_openapi::api::core::v1::Pod;
use ringfence_proto::{Code, Failure};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use std::path::Path;

/// Who runs where nobody says.
const ORDINARY: i64 = 1000;

/// Seconds without anybody inside after which a disposable sandbox ends by itself.
const ALONE: u64 = 60;

/// Before the name of a guest's door, on its command line.
pub(super) const DOOR: &str = "--door";

/// What a pod is for.
pub(super) enum Purpose<'a> {
    /// This sandbox, which it belongs to.
    Sandbox,
    /// Whoever comes first with a plan of this shape.
    Pool { shape: &'a str, maker: &'a str },
    /// Any number like it, made by the controller of agent-sandbox.
    Template,
}

/// The pod of a plan; `claim` is the volume claim of its work folder, where that is one.
pub(super) fn pod(
    config: &Config,
    plan: &Plan,
    name: &str,
    secret: &str,
    claim: Option<&str>,
    purpose: &Purpose<'_>,
) -> Result<Pod, Failure> {
    let container = super::container_of(plan)?;
    check(plan, container)?;
    let cluster = container.kubernetes.clone().unwrap_or_default();
    let owner = owner(container)?;
    let on_host = container.network == "host";
    let volumes = Volumes::of(config, plan, container, claim)?;
    let security = security(container, owner);
    let resources = resources(config, plan, container);
    let guest = match config.guest_image {
        Some(_) => GUEST,
        None => GUEST_IN_IMAGE,
    };
    let mut main = json!({
        "name": CONTAINER,
        "image": container.image,
        "imagePullPolicy": pull_policy(container.pull),
        "command": [guest],
        "args": arguments(config, plan, container, name, secret),
        "workingDir": container.workdir,
        "env": environment(plan, container),
        "securityContext": security,
        "resources": resources,
        "volumeMounts": volumes.mounts,
        "terminationMessagePolicy": "File",
    });
    if !on_host {
        main["ports"] = json!([{"name": "guest", "containerPort": PORT}]);
    }
    let mut spec = json!({
        "containers": [main],
        "volumes": volumes.volumes,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "activeDeadlineSeconds": config.deadline.as_secs().max(1),
        "automountServiceAccountToken": cluster.service_account.is_some(),
        "enableServiceLinks": false,
        "hostNetwork": on_host,
        "securityContext": pod_security(container, &cluster, owner),
        "tolerations": tolerations(&cluster)?,
    });
    if !on_host {
        spec["hostname"] = json!("sandbox");
    }
    if let Some(image) = &config.guest_image {
        // The kernel lets nobody look into a program that can be executed and not read; gVisor and
        // its like execute only what can be read.
        let mode = match container.runtime {
            None => "0111",
            Some(_) => "0555",
        };
        spec["initContainers"] = json!([{
            "name": "guest",
            "image": image,
            "imagePullPolicy": pull_policy(container.pull),
            "command": [GUEST_IN_IMAGE],
            "args": ["install", GUEST, mode],
            "securityContext": security,
            "resources": resources,
            "volumeMounts": [{"name": "guest", "mountPath": GUEST_FOLDER}],
        }]);
    }
    set(&mut spec, "runtimeClassName", container.runtime.clone());
    set(
        &mut spec,
        "serviceAccountName",
        cluster.service_account.clone(),
    );
    if !cluster.node_selector.is_empty() {
        spec["nodeSelector"] = json!(cluster.node_selector);
    }
    let secrets = cluster.pull_secrets.iter().chain(&config.pull_secrets);
    let secrets: Vec<_> = secrets.map(|name| json!({"name": name})).collect();
    spec["imagePullSecrets"] = json!(secrets);
    if !container.dns.is_empty() {
        spec["dnsPolicy"] = json!("None");
        spec["dnsConfig"] = json!({"nameservers": container.dns});
    }
    let hosts: Vec<_> = container
        .extra_hosts
        .iter()
        .map(|(name, address)| json!({"ip": address, "hostnames": [name]}))
        .collect();
    spec["hostAliases"] = json!(hosts);
    let pod = json!({
        "metadata": {
            "name": name,
            "labels": labels(plan, purpose),
            "annotations": annotations(plan, secret, purpose)?,
        },
        "spec": spec,
    });
    serde_json::from_value(pod)
        .map_err(|e| Failure::new(Code::Internal, "cannot describe a pod").detail(e))
}

fn set(spec: &mut Value, name: &str, value: Option<String>) {
    if let Some(value) = value {
        spec[name] = json!(value);
    }
}

pub(super) fn labels(plan: &Plan, purpose: &Purpose<'_>) -> Value {
    let mut all = Map::new();
    all.insert(
        "app.kubernetes.io/managed-by".to_owned(),
        json!("ringfence"),
    );
    match purpose {
        Purpose::Sandbox => {
            all.insert(LABEL.to_owned(), json!("sandbox"));
            all.insert(SANDBOX_LABEL.to_owned(), json!(plan.id));
        }
        Purpose::Pool { shape, maker } => {
            all.insert(LABEL.to_owned(), json!(super::POOL));
            all.insert(super::MAKER_LABEL.to_owned(), json!(maker));
            all.insert(super::SHAPE_LABEL.to_owned(), json!(shape));
        }
        // It can't be changed in a claim, so it says what they will be.
        Purpose::Template => {
            all.insert(LABEL.to_owned(), json!("sandbox"));
        }
    }
    Value::Object(all)
}

fn annotations(plan: &Plan, secret: &str, purpose: &Purpose<'_>) -> Result<Value, Failure> {
    let mut all = Map::new();
    all.insert(SECRET_NOTE.to_owned(), json!(secret));
    if matches!(purpose, Purpose::Sandbox) {
        all.insert(PLAN_NOTE.to_owned(), json!(super::text_of(plan)?));
    }
    Ok(Value::Object(all))
}

/// What a pod can't be, or does not have.
fn check(plan: &Plan, container: &ContainerPlan) -> Result<(), Failure> {
    let folder = match &plan.workspace {
        Workspace::Folder { path, .. } => Some(path),
        _ => None,
    };
    if let Some(path) = plan
        .mounts
        .iter()
        .map(|mount| &mount.from)
        .chain(folder)
        .next()
    {
        let message = format!(
            "cannot mount {}: a cluster has no folders of this host",
            path.display()
        );
        return Err(Failure::new(Code::NotFound, message).hint("use a volume claim"));
    }
    let shares = container.network.starts_with("container:");
    let profile = container
        .seccomp
        .as_deref()
        .is_some_and(|s| s != "unconfined");
    for (what, asked) in [
        ("a platform", container.platform.is_some()),
        (
            "the name of a container",
            container.name.is_some() || container.keep,
        ),
        ("the removal of volumes", container.remove_volumes),
        ("ulimits", !container.ulimits.is_empty()),
        ("published ports", !container.ports.is_empty()),
        ("devices", !container.devices.is_empty()),
        ("the network of another container", shares),
        ("a seccomp profile of the caller's", profile),
    ] {
        if asked {
            let message = format!("{what} can't be asked of a cluster");
            return Err(Failure::new(Code::Unenforceable, message));
        }
    }
    Ok(())
}

/// The numbers of user and group; none where those of the image are to be.
fn owner(container: &ContainerPlan) -> Result<Option<(i64, Option<i64>)>, Failure> {
    let Some(user) = &container.user else {
        let tight = container.defaults == Defaults::Tight;
        return Ok(tight.then_some((ORDINARY, Some(ORDINARY))));
    };
    let number = |text: &str| text.parse::<u32>().ok().map(i64::from);
    let named = || {
        Failure::invalid(format!(
            "the user `{user}` is a name, and a cluster knows only numbers"
        ))
        .hint("such as 1000 or 1000:1000")
    };
    match user.split_once(':') {
        None => Ok(Some((number(user).ok_or_else(named)?, None))),
        Some((user, group)) => {
            let both = number(user).zip(number(group)).ok_or_else(named)?;
            Ok(Some((both.0, Some(both.1))))
        }
    }
}

fn security(container: &ContainerPlan, owner: Option<(i64, Option<i64>)>) -> Value {
    let mut context = json!({
        "allowPrivilegeEscalation": !container.no_new_privileges || container.privileged,
        "privileged": container.privileged,
        "readOnlyRootFilesystem": container.read_only,
        "capabilities": {"add": container.cap_add, "drop": container.cap_drop},
    });
    if let Some((user, group)) = owner {
        context["runAsUser"] = json!(user);
        context["runAsNonRoot"] = json!(user != 0);
        if let Some(group) = group {
            context["runAsGroup"] = json!(group);
        }
    }
    context
}

fn pod_security(
    container: &ContainerPlan,
    cluster: &ClusterSpec,
    owner: Option<(i64, Option<i64>)>,
) -> Value {
    let profile = match container.seccomp {
        Some(_) => "Unconfined",
        None => "RuntimeDefault",
    };
    let mut context = json!({"seccompProfile": {"type": profile}});
    let group = owner.map(|(user, group)| group.unwrap_or(user));
    if let Some(group) = cluster.fs_group.or(group) {
        context["fsGroup"] = json!(group);
    }
    context
}

/// Limits as planned; what is reserved is a share of them, so that many fit on a node.
fn resources(config: &Config, plan: &Plan, container: &ContainerPlan) -> Value {
    let limits = &plan.limits;
    let milli = |cpus: f64| format!("{}m", ((cpus * 1000.0) as u64).max(1));
    let share = |size: Size| {
        ((size.0 as f64 * config.reserve) as u64)
            .max(1 << 20)
            .min(size.0)
    };
    // What is written outside of memory: by the container's own layer, and to its logs.
    let storage = limits
        .workspace
        .0
        .saturating_add(limits.tmp.0)
        .saturating_add(64 << 20);
    let mut most = json!({
        "memory": limits.memory.0.to_string(),
        "cpu": milli(limits.cpus),
        "ephemeral-storage": storage.to_string(),
    });
    match container.gpus {
        None => {}
        Some(crate::container::Gpus::Count(count)) => {
            most["nvidia.com/gpu"] = json!(count.to_string())
        }
        Some(crate::container::Gpus::All) => most["nvidia.com/gpu"] = json!("1"),
    }
    json!({
        "limits": most,
        "requests": {
            "memory": share(limits.memory).to_string(),
            "cpu": milli(limits.cpus * config.reserve),
            "ephemeral-storage": (16 << 20).to_string(),
        },
    })
}

fn pull_policy(pull: Pull) -> &'static str {
    match pull {
        Pull::Missing => "IfNotPresent",
        Pull::Always => "Always",
        Pull::Never => "Never",
    }
}

/// A node that is lost is not waited for.
fn tolerations(cluster: &ClusterSpec) -> Result<Value, Failure> {
    let mut all: Vec<Value> = ["not-ready", "unreachable"]
        .iter()
        .map(|what| {
            json!({
                "key": format!("node.kubernetes.io/{what}"),
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": NODES_GONE.as_secs(),
            })
        })
        .collect();
    for toleration in &cluster.tolerations {
        let asked = serde_json::to_value(toleration)
            .map_err(|e| Failure::new(Code::Internal, "cannot describe a toleration").detail(e))?;
        all.push(asked);
    }
    Ok(Value::Array(all))
}

/// As it is: a cluster replaces `$(NAME)`.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

fn environment(plan: &Plan, container: &ContainerPlan) -> Vec<Value> {
    let mut env = std::collections::BTreeMap::new();
    if container.defaults == Defaults::Tight {
        env.insert("HOME", container.workdir.display().to_string());
        for (name, value) in [
            ("LANG", "C.UTF-8"),
            ("MPLBACKEND", "Agg"),
            ("USER", "sandbox"),
        ] {
            env.insert(name, value.to_owned());
        }
    }
    for (name, value) in &plan.env {
        env.insert(name, value.clone());
    }
    env.into_iter()
        .map(|(name, value)| json!({"name": name, "value": literal(&value)}))
        .collect()
}

fn arguments(
    config: &Config,
    plan: &Plan,
    container: &ContainerPlan,
    name: &str,
    secret: &str,
) -> Vec<String> {
    let digest = hex(Sha256::digest(secret));
    let mut words = Vec::new();
    if container.defaults == Defaults::Tight {
        words.push(LIMITED.to_owned());
    }
    if container.is_filtered() {
        words.push(FILTERED.to_owned());
    }
    words.extend([
        "--id".to_owned(),
        name.to_owned(),
        DOOR.to_owned(),
        name.to_owned(),
        "--secret-digest".to_owned(),
        digest,
        "--workspace".to_owned(),
        container.workdir.display().to_string(),
        "--memory-limit".to_owned(),
        plan.limits.memory.0.to_string(),
    ]);
    if container.network != "host" {
        words.extend(["--door-port".to_owned(), PORT.to_string()]);
    }
    if container.defaults == Defaults::Tight {
        words.extend([
            "--open-files".to_owned(),
            plan.limits.open_files.to_string(),
            "--file-size".to_owned(),
            plan.limits.file_size.0.to_string(),
        ]);
    }
    if plan.lifetime == Lifetime::Disposable {
        words.extend(["--end-when-alone".to_owned(), ALONE.to_string()]);
    }
    if container.daemon {
        words.push("--daemon".to_owned());
    }
    // A cluster tells every container where its API server is.
    let account = container
        .kubernetes
        .as_ref()
        .and_then(|k| k.service_account.as_ref());
    if account.is_none() {
        words.extend(["--forget".to_owned(), "KUBERNETES_".to_owned()]);
    }
    if super::denies_sockets(container, config) {
        words.push("--no-sockets".to_owned());
    }
    words.iter().map(|word| literal(word)).collect()
}

#[derive(Default)]
struct Volumes {
    volumes: Vec<Value>,
    mounts: Vec<Value>,
}

impl Volumes {
    fn of(
        config: &Config,
        plan: &Plan,
        container: &ContainerPlan,
        claim: Option<&str>,
    ) -> Result<Self, Failure> {
        let mut all = Self::default();
        if config.guest_image.is_some() {
            all.add(
                "guest",
                json!({"emptyDir": {}}),
                GUEST_FOLDER,
                Access::ReadOnly,
            );
        }
        let workdir = container.workdir.display().to_string();
        let taken = |path: &Path| {
            container.volumes.iter().any(|volume| volume.to == path)
                || container.tmpfs.keys().any(|to| Path::new(to) == path)
        };
        let memory =
            |size: Size| json!({"emptyDir": {"medium": "Memory", "sizeLimit": size.0.to_string()}});
        if !taken(&container.workdir) {
            let size = plan.limits.workspace;
            match (&plan.workspace, claim) {
                (_, Some(claim)) => {
                    let claim = json!({"persistentVolumeClaim": {"claimName": claim}});
                    all.add("workspace", claim, &workdir, Access::ReadWrite);
                }
                (Workspace::Empty, None) => {
                    all.add("workspace", memory(Size(4096)), &workdir, Access::ReadOnly);
                }
                _ => all.add("workspace", memory(size), &workdir, Access::ReadWrite),
            }
        }
        let mut places = Vec::new();
        if container.defaults == Defaults::Tight {
            places.push(("tmp", "/tmp"));
            if container.read_only {
                places.push(("var-tmp", "/var/tmp"));
            }
        }
        for (name, place) in places {
            if place != workdir && !taken(Path::new(place)) {
                all.add(name, memory(plan.limits.tmp), place, Access::ReadWrite);
            }
        }
        if let Some(size) = container.shm_size {
            all.add("shm", memory(size), "/dev/shm", Access::ReadWrite);
        }
        for (index, (path, options)) in container.tmpfs.iter().enumerate() {
            let size = tmpfs_size(options).ok_or_else(|| {
                let message = format!("`{options}` for {path} can't be asked of a cluster");
                Failure::new(Code::Unenforceable, message).hint("only `size=64m` and its like")
            })?;
            all.add(
                &format!("tmpfs-{index}"),
                memory(size),
                path,
                Access::ReadWrite,
            );
        }
        for (index, volume) in container.volumes.iter().enumerate() {
            let claim = json!({"persistentVolumeClaim": {"claimName": volume.name}});
            let to = volume.to.display().to_string();
            all.add(&format!("volume-{index}"), claim, &to, volume.access);
        }
        Ok(all)
    }

    fn add(&mut self, name: &str, mut source: Value, to: &str, access: Access) {
        source["name"] = json!(name);
        self.volumes.push(source);
        self.mounts.push(json!({
            "name": name,
            "mountPath": to,
            "readOnly": access == Access::ReadOnly,
        }));
    }
}

fn tmpfs_size(options: &str) -> Option<Size> {
    options.strip_prefix("size=")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_callers_is_replaced_by_the_cluster() {
        assert_eq!(literal("$(HOME) $$ $x"), "$$(HOME) $$$$ $$x");
    }
}
