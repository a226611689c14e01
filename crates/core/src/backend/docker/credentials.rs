//! Who we are to a registry, as Docker's own configuration says.

use base64::Engine as _;
use bollard::auth::DockerCredentials;
use ringfence_proto::{Code, Failure};
use serde::Deserialize;
use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Docker Hub goes by this name in configurations.
const HUB: &str = "https://index.docker.io/v1/";

#[derive(Deserialize, Default)]
#[serde(default)]
struct Config {
    auths: HashMap<String, Auth>,
    #[serde(rename = "credsStore")]
    store: Option<String>,
    #[serde(rename = "credHelpers")]
    helpers: HashMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Auth {
    /// `user:password` in base64.
    auth: Option<String>,
    identitytoken: Option<String>,
}

/// What a helper program answers with.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Helped {
    username: String,
    secret: String,
}

/// The credentials for the registry of this image; none where none are configured.
pub(super) async fn credentials(
    folder: &Path,
    image: &str,
) -> Result<Option<DockerCredentials>, Failure> {
    let path = folder.join("config.json");
    let Ok(text) = std::fs::read(&path) else {
        return Ok(None);
    };
    let config: Config = serde_json::from_slice(&text).map_err(|e| {
        Failure::invalid(format!(
            "cannot read {}: not Docker's configuration",
            path.display()
        ))
        .detail(e)
    })?;
    let registry = registry(image).to_owned();
    let helper = config.helpers.get(&registry).or(config.store.as_ref());
    if let Some(helper) = helper {
        let (helper, asked) = (helper.clone(), registry.clone());
        return tokio::task::spawn_blocking(move || ask(&helper, &asked))
            .await
            .map_err(|e| {
                Failure::new(Code::Internal, "a credential helper broke off").detail(e)
            })?;
    }
    let known = [
        registry.clone(),
        format!("https://{registry}"),
        format!("https://{registry}/v1/"),
    ];
    let auth = config
        .auths
        .iter()
        .find_map(|(name, auth)| known.contains(name).then_some(auth));
    let Some(auth) = auth else { return Ok(None) };
    let login = auth.auth.as_deref().filter(|text| !text.is_empty());
    let (username, password) = match login.map(decode) {
        None => (None, None),
        Some(Some((username, password))) => (Some(username), Some(password)),
        Some(None) => {
            return Err(Failure::invalid(format!(
                "cannot read the credentials for {registry} in {}",
                path.display()
            ))
            .hint("`docker login` writes them anew"));
        }
    };
    Ok(Some(DockerCredentials {
        username,
        password,
        identitytoken: auth.identitytoken.clone(),
        serveraddress: Some(registry),
        ..DockerCredentials::default()
    }))
}

/// The registry of an image: what stands before the first slash, if that is a host.
fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => HUB,
    }
}

fn decode(text: &str) -> Option<(String, String)> {
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(text)
        .ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (user, password) = text.split_once(':')?;
    // Docker pads short ones with zeros.
    let password = password.trim_end_matches('\0');
    Some((user.to_owned(), password.to_owned()))
}

/// Asks `docker-credential-NAME`; one that knows none is no failure.
fn ask(helper: &str, registry: &str) -> Result<Option<DockerCredentials>, Failure> {
    let program = format!("docker-credential-{helper}");
    let failure = |why: String| {
        Failure::new(
            Code::Missing,
            format!("cannot ask {program} for the credentials of {registry}: {why}"),
        )
    };
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !helper.chars().all(good) {
        return Err(failure("not the name of a program".to_owned()));
    }
    let mut child = Command::new(&program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| failure(e.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read says so by how it ends.
        let _ = stdin.write_all(registry.as_bytes());
    }
    let output = child
        .wait_with_output()
        .map_err(|e| failure(e.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if said.contains("credentials not found") {
            return Ok(None);
        }
        return Err(failure(said));
    }
    let helped: Helped =
        serde_json::from_slice(&output.stdout).map_err(|e| failure(e.to_string()))?;
    let mut login = DockerCredentials {
        serveraddress: Some(registry.to_owned()),
        ..DockerCredentials::default()
    };
    // A helper's word for a token that is no password.
    if helped.username == "<token>" {
        login.identitytoken = Some(helped.secret);
    } else {
        login.username = Some(helped.username);
        login.password = Some(helped.secret);
    }
    Ok(Some(login))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_is_a_host_before_the_first_slash() {
        for (image, host) in [
            ("python", HUB),
            ("team/image:1", HUB),
            ("localhost/image", "localhost"),
            ("127.0.0.1:5000/image", "127.0.0.1:5000"),
            ("registry.example/a/b@sha256:00", "registry.example"),
        ] {
            assert_eq!(registry(image), host);
        }
    }
}
