//! Values that only settings have.

use super::value::Value;
use ringfence_core::Access;
use ringfence_core::languages::Language;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Settings that are one of a few words.
macro_rules! words {
    ($($(#[$about:meta])* $Name:ident { $($(#[$meaning:meta])* $Word:ident = $word:literal,)+ })+) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $Name { $($(#[$meaning])* $Word,)+ }

        impl Value for $Name {
            fn expects() -> String {
                format!("one of {}", [$(concat!("`", $word, "`")),+].join(", "))
            }

            fn from_text(text: &str) -> Option<Self> {
                match text {
                    $($word => Some(Self::$Word),)+
                    _ => None,
                }
            }

            fn text(&self) -> String {
                match self { $(Self::$Word => $word,)+ }.to_owned()
            }
        }
    )+};
}

words! {
    /// What makes the sandboxes.
    BackendChoice {
        /// The best that this machine has.
        Auto = "auto",
        Native = "native",
        Docker = "docker",
        Kubernetes = "kubernetes",
    }

    /// What callers may ask of a container beyond what stays in it.
    Danger {
        /// Everything on this list.
        All = "all",
        Privileged = "privileged",
        Network = "network",
        HostNetwork = "host_network",
        Devices = "devices",
        Capabilities = "capabilities",
        SystemCalls = "system_calls",
        NewPrivileges = "new_privileges",
        Names = "names",
        Volumes = "volumes",
        Ports = "ports",
        Cluster = "cluster",
    }

    /// Who may call.
    Auth {
        /// Those who have a key of `ringfence key add`, or of a session.
        Keys = "keys",
        /// Everybody.
        Off = "off",
    }

    /// Where the files of a session lie.
    WorkspaceChoice {
        /// Where the backend holds its size limit best.
        Auto = "auto",
        Disk = "disk",
        Memory = "memory",
    }

    /// How sandboxes in a cluster are reached.
    ReachChoice {
        /// By address inside of the cluster, else through its API server.
        Auto = "auto",
        Address = "address",
        Exec = "exec",
    }

    /// What sandboxes are to a cluster.
    SandboxesChoice {
        Pods = "pods",
        AgentSandbox = "agent-sandbox",
    }

    LogFormat {
        Text = "text",
        Json = "json",
    }

    LogLevel {
        Error = "error",
        Warn = "warn",
        Info = "info",
        Debug = "debug",
        Trace = "trace",
    }
}

/// Where the server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Value for Listen {
    fn expects() -> String {
        "an address such as 127.0.0.1:8080, [::1]:8080 or unix:/run/ringfence.sock".to_owned()
    }

    fn from_text(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            return PathBuf::from_text(path).map(Self::Unix);
        }
        // A name could mean several addresses; this one means the same everywhere.
        if let Some(port) = text.strip_prefix("localhost:") {
            let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
            return Some(Self::Tcp(SocketAddr::new(local, port.parse().ok()?)));
        }
        text.parse().ok().map(Self::Tcp)
    }

    fn from_flag(given: &[String]) -> Option<Self> {
        let text = given.last()?;
        match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => {
                PathBuf::from_flag(&[path.to_owned()]).map(Self::Unix)
            }
            _ => Self::from_text(text),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Tcp(address) => address.to_string(),
            Self::Unix(path) => format!("unix:{}", path.display()),
        }
    }
}

impl Value for IpAddr {
    fn expects() -> String {
        "an address such as 127.0.0.1 or ::1".to_owned()
    }

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// Ports of one address, from the first to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// Below those that systems hand out to programs that name none.
    pub(crate) const DEFAULT: Self = Self {
        first: 18_000,
        last: 18_999,
    };

    pub(crate) fn count(self) -> u64 {
        u64::from(self.last - self.first) + 1
    }

    pub(crate) fn range(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }

    /// The one at this place; after the last comes the first.
    pub(crate) fn nth(self, place: u64) -> u16 {
        self.first + (place % self.count()) as u16
    }
}

impl std::fmt::Display for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl Value for Ports {
    fn expects() -> String {
        "ports such as 18000-18999".to_owned()
    }

    fn from_text(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first > 0 && first <= last).then_some(Self { first, last })
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// A folder of the host that callers may mount, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AllowedMount {
    pub path: PathBuf,
    /// The most that a caller may ask for.
    pub access: Access,
}

impl AllowedMount {
    fn read(text: &str, path: impl Fn(&str) -> Option<PathBuf>) -> Option<Self> {
        let (start, access) = match text.rsplit_once(':') {
            Some((start, "rw")) => (start, Access::ReadWrite),
            Some((start, "ro")) => (start, Access::ReadOnly),
            _ => (text, Access::ReadOnly),
        };
        let path = path(start).filter(|_| !start.is_empty())?;
        Some(Self { path, access })
    }
}

impl Value for AllowedMount {
    fn expects() -> String {
        "PATH, PATH:ro or PATH:rw with an absolute path".to_owned()
    }

    fn from_text(text: &str) -> Option<Self> {
        Self::read(text, PathBuf::from_text)
    }

    fn from_flag(given: &[String]) -> Option<Self> {
        Self::read(given.last()?, |path| PathBuf::from_flag(&[path.to_owned()]))
    }

    fn text(&self) -> String {
        let access = match self.access {
            Access::ReadOnly => "ro",
            Access::ReadWrite => "rw",
        };
        format!("{}:{access}", self.path.display())
    }
}

/// The image that a language runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LanguageImage {
    /// As the table of languages names it.
    pub language: &'static str,
    pub image: String,
}

impl Value for LanguageImage {
    fn expects() -> String {
        "LANGUAGE=IMAGE with a language that `ringfence languages` lists".to_owned()
    }

    fn from_text(text: &str) -> Option<Self> {
        let (language, image) = text.split_once('=')?;
        let language = Language::named(language).ok()?.name;
        let good = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
        let named = (1..=255).contains(&image.len()) && image.chars().all(good);
        named.then(|| Self {
            language,
            image: image.to_owned(),
        })
    }

    fn text(&self) -> String {
        format!("{}={}", self.language, self.image)
    }
}

/// Where callbacks of tools may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallbackRule {
    /// A host by its name, in lower case; `*.example.com` is every name below example.com.
    Host(String),
    /// A network, or with all bits an address.
    Network { address: IpAddr, bits: u8 },
    /// What a URL starts with: scheme, host and port whole, and the start of a path.
    Url(String),
}

impl Value for CallbackRule {
    fn expects() -> String {
        "a host, an address, a network such as 10.0.0.0/8, or the start of a URL".to_owned()
    }

    fn from_text(text: &str) -> Option<Self> {
        if text.contains("://") {
            return is_url(text).then(|| Self::Url(whole(text)));
        }
        let (start, bits) = match text.split_once('/') {
            Some((start, bits)) => (start, Some(bits.parse::<u8>().ok()?)),
            None => (text, None),
        };
        if let Ok(address) = start.parse::<IpAddr>() {
            let all = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.unwrap_or(all);
            return (bits <= all).then_some(Self::Network { address, bits });
        }
        // Digits and dots are an address that is none, not the name of a host.
        let digits = text.chars().all(|c| c.is_ascii_digit() || c == '.');
        let name = text.strip_prefix("*.").unwrap_or(text);
        let label = |label: &str| {
            (1..=63).contains(&label.len())
                && label
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        };
        let good = bits.is_none() && !digits && name.len() <= 253 && name.split('.').all(label);
        good.then(|| Self::Host(text.to_ascii_lowercase()))
    }

    fn text(&self) -> String {
        match self {
            Self::Host(host) => host.clone(),
            Self::Network { address, bits } => format!("{address}/{bits}"),
            Self::Url(url) => url.clone(),
        }
    }
}

/// Ends the host of a URL, so that `https://good.example` does not allow `https://good.example.evil`.
fn whole(url: &str) -> String {
    let host = url.find("://").map_or(0, |at| at + 3);
    match url[host..].contains('/') {
        true => url.to_owned(),
        false => format!("{url}/"),
    }
}

/// Whether it has a scheme that we speak and a host; credentials in it would be shown.
fn is_url(text: &str) -> bool {
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    rest.is_some_and(|rest| {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        !host.is_empty()
            && !host.contains('@')
            && !rest.contains(|c: char| c.is_whitespace() || c.is_control())
    })
}

/// Where something is sent over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint(pub String);

impl Value for Endpoint {
    fn expects() -> String {
        "a URL such as http://localhost:4318, without a password".to_owned()
    }

    fn from_text(text: &str) -> Option<Self> {
        is_url(text).then(|| Self(text.to_owned()))
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}
