//! The list of settings. Structs, flags, names in the environment, keys of the file, the help and
//! the documentation all come from here.

use super::declare::{Alias, Group, Setting, Shorthand, maybe, settings};
use super::sources::{Rule, Sources};
use super::types::{
    AllowedMount, Auth, BackendChoice, CallbackRule, Danger, Endpoint, LanguageImage, Listen,
    LogFormat, LogLevel, Ports, ReachChoice, SandboxesChoice, WorkspaceChoice,
};
use crate::settings as host;
use ringfence_core::{Failure, Size};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// As far as a plan lets a size go.
const MOST: Size = Size(1 << 44);

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

settings! {
    /// The server
    top {
        /// Address to listen at: IP:PORT, or unix:PATH for a socket in the file system
        listen: Listen = Listen::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))),
            "listen" "ADDRESS";

        /// Folder for what lives as long as sandboxes and keys do
        state_dir: PathBuf = host::usual_state(), "state-dir" "FOLDER",
            alias "SANDBOX_SESSIONS_ROOT",
            shown "`/var/lib/ringfence` for root, else `ringfence` below `XDG_STATE_HOME`";

        /// What makes the sandboxes: `auto` takes the best that is there
        backend: BackendChoice = BackendChoice::Auto, "backend" "NAME";

        /// Who may call: `keys` for those with a key, `off` for everybody
        auth: Auth = Auth::Keys, "auth" "WAY", shorthand "no-auth" = "off";

        /// Leaves sandboxes running when the server stops, to be found by the next one
        keep: bool = false, "keep" "";
    }

    /// Sessions: how many, and for how long
    sessions: Sessions {
        /// Sessions at one time
        max: u64 = 256, "max-sessions" "N", within 1..=100_000;

        /// Sessions of each key at one time
        max_per_key: Option<u64> = None, "max-sessions-per-key" "N",
            check |n: &Option<u64>| n.is_none_or(|n| (1..=100_000).contains(&n))
                => "a whole number from 1 to 100000, or none";

        /// Sum of the memory limits of all sessions at one time
        max_memory: Option<Size> = None, "max-memory" "SIZE",
            check |size: &Option<Size>| size.is_none_or(|size| size >= Size(16 * MIB))
                => "a size of 16 MiB or more, or none";

        /// Time without a request after which a session is destroyed
        idle_timeout: Duration = s(900), "idle-timeout" "TIME",
            alias "SANDBOX_SESSION_IDLE_TIMEOUT", within s(1)..=s(30 * 86_400);

        /// Age at which a session is destroyed
        max_lifetime: Duration = s(7200), "max-lifetime" "TIME",
            alias "SANDBOX_SESSION_MAX_LIFETIME", within s(1)..=s(365 * 86_400);

        /// Time between two looks for sessions that are over
        gc_interval: Duration = s(10), "gc-interval" "TIME",
            alias "SANDBOX_SESSION_GC_INTERVAL", within s(1)..=s(30);

        /// Longest idle timeout and lifetime that callers may ask for
        longest_timeout: Duration = s(7200), "longest-timeout" "TIME",
            within s(1)..=s(365 * 86_400);
    }

    /// Limits of each sandbox, unless its caller asks for others
    limits: Limits {
        /// Memory of the whole sandbox
        memory: Size = Size(1536 * MIB), "memory" "SIZE",
            alias "SANDBOX_RUNNER_MEMORY_MB" "m", within Size(16 * MIB)..=MOST;

        /// Processors, such as 0.5
        cpus: f64 = 1.0, "cpus" "N", within 0.01..=1024.0;

        /// Processes at one time
        pids: u64 = 256, "pids" "N", within 4..=1 << 20;

        /// Size of the workspace
        workspace: Size = Size(512 * MIB), "workspace-size" "SIZE", within Size(MIB)..=MOST;

        /// Size of /tmp
        tmp: Size = Size(128 * MIB), "tmp-size" "SIZE", within Size(64 * KIB)..=MOST;

        /// Size of the largest file
        file_size: Size = Size(256 * MIB), "file-size" "SIZE",
            alias "SANDBOX_RUNNER_FSIZE_MB" "m", within Size(4 * KIB)..=MOST;

        /// Open files of each process
        open_files: u64 = 256, "open-files" "N",
            alias "SANDBOX_RUNNER_NOFILE", within 32..=1 << 20;

        /// Seconds of processor time of each call
        cpu_seconds: u64 = 120, "cpu-time" "SECONDS",
            alias "SANDBOX_RUNNER_CPU_SECONDS", within 1..=1_000_000;

        /// Bytes of each output stream that an answer has; of the rest the latest 4 MiB can be fetched
        output: Size = Size(MIB), "output" "SIZE",
            alias "SANDBOX_RUNNER_MAX_OUTPUT_BYTES", within Size(KIB)..=Size(1024 * MIB);

        /// Time of a call that names none, on our own routes
        wall_clock: Duration = s(60), "timeout" "TIME",
            alias "SANDBOX_RUNNER_WALL_CLOCK_SECONDS", within s(1)..=s(86_400);

        /// Takes the nearest limit that can be enforced, and says so, instead of failing
        prefer: bool = false, "prefer" "";
    }

    /// What is in each sandbox
    sandbox: Sandbox {
        /// The Python interpreter; none is the first python3 on the search path
        python: Option<PathBuf> = None, "python" "FILE";

        /// A packages environment made by `ringfence env add`
        env_name: Option<String> = None, "env-name" "NAME",
            check |name: &Option<String>| name.as_deref().is_none_or(is_environment)
                => "the name of an environment, or none";

        /// Folders that are skills (each with a SKILL.md) or have skills in them, for every session
        skills: Vec<PathBuf> = Vec::new(), "skills" "FOLDER";

        /// Where the files of a session lie
        workspace: WorkspaceChoice = WorkspaceChoice::Auto, "workspace-in" "PLACE";
    }

    /// Containers of a Docker engine, and what they share with pods
    docker: Docker {
        /// The image of a session that names none
        image: String = crate::backends::IMAGE.to_owned(), "image" "IMAGE",
            check |name: &String| !name.is_empty() => "the name of an image";

        /// Containers that are kept ready for each kind of session that is asked for
        pool: u64 = 0, "pool" "N", within 0..=256;
    }

    /// Pods of a Kubernetes cluster
    kubernetes: Kubernetes {
        /// A context of the file that KUBECONFIG names; none is its current one
        context: Option<String> = None, "kube-context" "NAME";

        /// Namespace of the pods; none is that of the context or of the service account
        namespace: Option<String> = None, "kube-namespace" "NAME",
            check |name: &Option<String>| name.as_deref().is_none_or(is_kube_name)
                => "a name of lower case letters, digits and `-`, or none";

        /// Image that brings the guest into pods, at /ringfence-guest; none is that of each
        /// sandbox, which then has it there
        guest_image: Option<String> = None, "guest-image" "IMAGE",
            check |name: &Option<String>| {
                name.as_deref().is_none_or(|name| !name.contains(char::is_whitespace))
            } => "the name of an image, or none";

        /// How sandboxes are reached: by address, by exec through the API server, or auto
        reach: ReachChoice = ReachChoice::Auto, "kube-reach" "WAY";

        /// What sandboxes are: pods of the server's own, or objects of kubernetes-sigs/agent-sandbox,
        /// which then makes the pods and keeps them ready
        sandboxes: SandboxesChoice = SandboxesChoice::Pods, "kube-sandboxes" "KIND";

        /// The cluster enforces the network policy of deploy/, so guests need not deny sockets
        network_policy: bool = false, "kube-network-policy" "";

        /// Class of the volumes for work folders on disk; none is no such folders
        storage_class: Option<String> = None, "kube-storage-class" "NAME",
            check |name: &Option<String>| name.as_deref().is_none_or(is_kube_name)
                => "a name of lower case letters, digits and `-`, or none";

        /// Secrets for private registries, for all pods
        pull_secrets: Vec<String> = Vec::new(), "kube-pull-secret" "NAME";

        /// Share of a sandbox's memory and processors that is reserved for it on its node
        reserve: f64 = 0.05, "kube-reserve" "SHARE", within 0.001..=1.0;

        /// Time that a pod may stay without a node that takes it
        scheduling: Duration = s(5), "kube-scheduling" "TIME", within s(1)..=s(3600);
    }

    /// Sandboxes for clients of HasteKit, at /api/sandbox
    hastekit: Hastekit {
        /// Serves them
        enabled: bool = false, "hastekit" "", alias "SANDBOX_ENABLED";

        /// Image of those whose client names none, on an engine that has images
        image: Option<String> = None, "hastekit-image" "IMAGE",
            alias "SANDBOX_DEFAULT_IMAGE",
            check |name: &Option<String>| {
                name.as_deref().is_none_or(|name| !name.contains(char::is_whitespace))
            } => "the name of an image, or none";

        /// Address at which their daemons are reached, without a token
        address: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST), "hastekit-address" "IP";

        /// Ports of that address, one for each sandbox
        ports: Ports = Ports::DEFAULT, "hastekit-ports" "FROM-TO";

        /// Host that clients are told, where it is another; none is the address itself
        advertise: Option<String> = None, "hastekit-advertise" "HOST",
            check |host: &Option<String>| host.as_deref().is_none_or(is_host)
                => "a name or an address, or none";

        /// Serves the daemons at the addresses of their pods or containers, to all who reach those
        pod_address: bool = false, "hastekit-pod-address" "";

        /// Folder with a folder for each agent, in which each folder with a SKILL.md is a skill
        skills_root: Option<PathBuf> = None, "skills-root" "FOLDER", alias "SKILLS_ROOT";
    }

    /// Snippets in many languages
    languages: Languages {
        /// Images in place of the usual ones, on an engine that has images: LANGUAGE=IMAGE
        images: Vec<LanguageImage> = Vec::new(), "language-image" "LANGUAGE=IMAGE";
    }

    /// What callers may ask for
    policy: Policy {
        /// Host folders that callers may mount, with what is below: PATH[:ro|:rw]
        mounts: Vec<AllowedMount> = Vec::new(), "allow-mount" "PATH";

        /// Allows the host's own network, with everything on it
        host_network: bool = false, "allow-host-network" "";

        /// What callers may ask of a container: privileged, network, host_network, devices,
        /// capabilities, system_calls, new_privileges, names, volumes, ports, cluster, or all
        allow: Vec<Danger> = Vec::new(), "allow" "OPTION";

        /// Where tool callbacks may go: hosts, networks or starts of URLs; none is anywhere but
        /// to link-local, metadata, multicast and unspecified addresses
        callbacks: Vec<CallbackRule> = Vec::new(), "allow-callback" "TARGET";
    }

    /// The HTTP server
    http: Http {
        /// Size of the largest request body that is not an upload
        max_body: Size = Size(32 * MIB), "max-body" "SIZE", within Size(KIB)..=Size(1024 * MIB);

        /// Size of the largest upload
        max_upload: Size = Size(100_000_000), "max-upload" "SIZE", within Size(KIB)..=MOST;

        /// Size of all headers of a request
        max_headers: Size = Size(64 * KIB), "max-headers" "SIZE",
            within Size(8 * KIB)..=Size(MIB);

        /// Connections at one time
        max_connections: u64 = 1024, "max-connections" "N", within 1..=1_000_000;

        /// Requests of each key in a second; 0 is no limit
        requests_per_second: f64 = 0.0, "requests-per-second" "N",
            check |n: &f64| *n == 0.0 || (0.001..=1e6).contains(n)
                => "a number from 0.001 to 1000000, or 0 for no limit";

        /// Requests of each key at once, before the rate counts; none is those of one second
        burst: Option<u64> = None, "burst" "N",
            check |n: &Option<u64>| n.is_none_or(|n| (1..=1_000_000).contains(&n))
                => "a whole number from 1 to 1000000, or none";

        /// Time that the headers of a request may take
        header_timeout: Duration = s(10), "header-timeout" "TIME", within s(1)..=s(3600);

        /// Time without a byte of a body after which the client is cut off
        body_timeout: Duration = s(30), "body-timeout" "TIME", within s(1)..=s(3600);

        /// Time after which a connection without a request is closed
        connection_idle: Duration = s(75), "connection-idle" "TIME", within s(1)..=s(86_400);

        /// Time without a reader after which a command is cancelled
        reader_grace: Duration = s(30), "reader-grace" "TIME", within s(0)..=s(86_400);

        /// Time that running requests have to end when the server stops
        drain: Duration = s(30), "drain" "TIME", within s(0)..=s(86_400);
    }

    /// The Model Context Protocol, at /mcp
    mcp: Mcp {
        /// Names of this server that requests may use; none is any for those with a key
        allowed_hosts: Vec<String> = Vec::new(), "mcp-allow-host" "NAME";
    }

    /// The log
    log: Log {
        /// How its lines look
        format: LogFormat = LogFormat::Text, "log-format" "FORMAT";

        /// The least that is worth a line
        level: LogLevel = LogLevel::Info, "log-level" "LEVEL";
    }

    /// The record of who did what
    audit: Audit {
        /// File to which each call adds a line of JSON
        file: Option<PathBuf> = None, "audit-file" "FILE";

        /// Records the code and the commands too
        code: bool = false, "audit-code" "";
    }

    /// Traces and metrics
    otlp: Otlp {
        /// Collector to send them to, over HTTP
        endpoint: Option<Endpoint> = None, "otlp-endpoint" "URL";
    }
}

fn is_host(host: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || ".-:".contains(c);
    (1..=253).contains(&host.len()) && host.chars().all(good)
}

fn is_kube_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-".contains(c);
    (1..=253).contains(&name.len()) && name.chars().all(good)
}

fn is_environment(name: &str) -> bool {
    ringfence_core::plan::check_environment(name).is_ok()
}

impl Config {
    /// Whether somebody set this, so that it must hold: a default may be held by the nearest means.
    #[allow(dead_code, reason = "for the server")]
    pub(crate) fn is_set(&self, key: &str) -> bool {
        debug_assert!(SETTINGS.iter().any(|setting| setting.key == key), "{key}");
        self.set.contains(key)
    }
}

impl Limits {
    /// Those of each sandbox.
    pub(crate) fn of_sandboxes(&self) -> ringfence_core::Limits {
        ringfence_core::Limits {
            memory: self.memory,
            cpus: self.cpus,
            pids: self.pids,
            workspace: self.workspace,
            tmp: self.tmp,
            file_size: self.file_size,
            open_files: self.open_files,
        }
    }
}

impl BackendChoice {
    /// The name of the engine that this comes to.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto | Self::Native => "native",
            Self::Docker => "docker",
            Self::Kubernetes => "kubernetes",
        }
    }
}

impl Languages {
    /// By language; the last one that is named counts.
    pub(crate) fn images(&self) -> BTreeMap<String, String> {
        let one = |set: &LanguageImage| (set.language.to_owned(), set.image.clone());
        self.images.iter().map(one).collect()
    }
}
