//! A real cluster, seen through its own command line: the tests' second opinion.

pub use ringfence_http_tests::{Outcome, Server, ringfence, until};

use ringfence_tests::Environment;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The image of sessions that name none; it has the guest.
pub const IMAGE: &str = "ringfence-test/python-guest";
/// The guest alone, for images that have none.
pub const GUEST: &str = "ringfence-test/guest";

/// How to reach the cluster. Not KUBECONFIG: nobody's own cluster is tested on by chance.
#[allow(clippy::disallowed_methods, reason = "tests have no settings")]
pub fn kubeconfig() -> Outcome<PathBuf> {
    match std::env::var_os("RINGFENCE_TEST_KUBECONFIG") {
        Some(path) => Ok(path.into()),
        None => Err(
            "RINGFENCE_TEST_KUBECONFIG is not set; start a cluster: export \
                     $(tests/engines/docker-up) $(tests/engines/cluster-up), then \
                     tests/engines/cluster-guest"
                .into(),
        ),
    }
}

/// The command line of Kubernetes.
pub fn command(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Outcome<Command> {
    let mut command = Command::new("kubectl");
    command
        .arg("--kubeconfig")
        .arg(kubeconfig()?)
        .args(args)
        .stdin(Stdio::null());
    Ok(command)
}

pub fn kubectl(args: &[&str]) -> Outcome<Output> {
    Ok(command(args)?.output()?)
}

/// It must succeed, and what it prints is the answer.
pub fn kubectl_ok(args: &[&str]) -> Outcome<String> {
    let done = kubectl(args)?;
    if !done.status.success() {
        let stderr = String::from_utf8_lossy(&done.stderr);
        return Err(format!("kubectl {}: {stderr}", args.join(" ")).into());
    }
    Ok(String::from_utf8(done.stdout)?.trim_end().to_owned())
}

/// A namespace of a test's own, removed with all that is in it.
pub struct Namespace(pub String);

impl Namespace {
    pub fn new(what: &str) -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("x").tempdir()?;
        let unique = folder.path().file_name().unwrap_or_default();
        let name = format!("rf-{what}-{}", unique.to_string_lossy().to_lowercase());
        kubectl_ok(&["create", "namespace", &name])?;
        Ok(Self(name))
    }

    /// For programs that are to make their pods here, and reach them by address.
    pub fn environment(&self) -> Outcome<Environment> {
        Ok(vec![
            ("KUBECONFIG", kubeconfig()?.into()),
            ("RINGFENCE_KUBERNETES_NAMESPACE", self.0.clone().into()),
            ("RINGFENCE_KUBERNETES_REACH", "address".into()),
        ])
    }

    /// `kubectl` in this namespace, which must succeed.
    pub fn kubectl(&self, args: &[&str]) -> Outcome<String> {
        kubectl_ok(&[&["--namespace", &self.0], args].concat())
    }

    /// What the cluster says of something here, such as `pod/NAME` or `pods`.
    pub fn get(&self, what: &str) -> Outcome<Value> {
        let text = self.kubectl(&["get", what, "--output=json"])?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Names of everything of these kinds that is here.
    pub fn names(&self, kinds: &str) -> Outcome<Vec<String>> {
        let text = self.kubectl(&["get", kinds, "--output=name"])?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The pod of a session, as the cluster names it.
    pub fn pod_of(&self, session: &str) -> Outcome<String> {
        let id = session.trim_start_matches("sbx_");
        let pods = self.names("pods")?;
        let found = pods.into_iter().find(|name| name.contains(id));
        found.ok_or_else(|| format!("no pod for {session}").into())
    }

    /// Waits until nothing of a sandbox is left here.
    pub fn await_nothing(&self) -> Outcome {
        self.await_none("pods,leases,persistentvolumeclaims,configmaps,secrets")
    }

    /// Waits until nothing of these kinds is left here.
    pub fn await_none(&self, kinds: &str) -> Outcome {
        let start = Instant::now();
        loop {
            let left = self.names(kinds)?;
            // These come with every namespace.
            let left: Vec<_> = left
                .into_iter()
                .filter(|name| !name.starts_with("secret/default-token-"))
                .filter(|name| name != "configmap/kube-root-ca.crt")
                .collect();
            if left.is_empty() {
                return Ok(());
            }
            if start.elapsed() > Duration::from_secs(120) {
                return Err(format!("this is left: {left:?}").into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A way to the cluster as an account of this namespace, as a file in this folder.
    pub async fn config_of(&self, account: &str, folder: &Path) -> Outcome<PathBuf> {
        let account = format!("serviceaccount/{account}");
        let secret = until(async || {
            let path = "--output=jsonpath={.secrets[0].name}";
            let name = self.kubectl(&["get", &account, path])?;
            Ok((!name.is_empty()).then_some(name))
        })
        .await?;
        let decoded = "--output=go-template={{.data.token | base64decode}}";
        let token = self.kubectl(&["get", &format!("secret/{secret}"), decoded])?;
        let view = [
            "config",
            "view",
            "--flatten",
            "--minify",
            "--raw",
            "--output=json",
        ];
        let mut config: Value = serde_json::from_str(&kubectl_ok(&view)?)?;
        config["users"][0]["user"] = json!({"token": token});
        let path = folder.join("kubeconfig");
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }

    /// A server whose sessions are pods here. It runs outside the cluster, on its node.
    pub fn serve(&self, args: &[&str]) -> Outcome<Server> {
        self.serve_by(&kubeconfig()?, args)
    }

    /// The same, which reaches the cluster as this file says.
    pub fn serve_by(&self, config: &Path, args: &[&str]) -> Outcome<Server> {
        let own = ["--backend", "kubernetes", "--kube-namespace", &self.0];
        let usual = ["--image", IMAGE, "--no-auth"];
        let env = [("KUBECONFIG", config.to_str().ok_or("a strange path")?)];
        Server::start_in(&[&own[..], &usual, args].concat(), &env)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let everything = [
            "delete",
            "pods",
            "--all",
            "--grace-period=0",
            "--force",
            "--namespace",
        ];
        let _ = kubectl(&[&everything[..], &[&self.0]].concat());
        let _ = kubectl(&["delete", "namespace", &self.0, "--wait=false"]);
    }
}
