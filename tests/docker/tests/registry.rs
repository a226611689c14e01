//! Images of a real registry on loopback, with and without a password.

use ringfence_docker_tests::{
    Outcome, Removed, docker, docker_ok, engine, ringfence, serve, shell, unique,
};
use ringfence_http_tests::events::Got;
use serde_json::json;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// `open sesame`, for the user `ali`.
const USERS: &str = "ali:$2b$04$HcLO/JijILJDCKuWyReFCua.HvC6lqlxMEo3xo3olNAWHX7zQtqsu\n";
const LOGIN: &str = "YWxpOm9wZW4gc2VzYW1l";

/// A registry with one image, which the engine itself does not have.
struct Registry {
    child: Child,
    folder: tempfile::TempDir,
    image: String,
    digest: String,
}

impl Registry {
    fn start(password: bool) -> Outcome<Self> {
        engine()?;
        let folder = tempfile::tempdir()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let users = folder.path().join("users");
        std::fs::write(&users, USERS)?;
        let data = folder.path().join("data");
        let mut config = json!({
            "version": 0.1,
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": data}},
            "http": {"addr": format!("127.0.0.1:{port}")},
        });
        if password {
            config["auth"] = json!({"htpasswd": {"realm": "cave", "path": users}});
        }
        let file = folder.path().join("config.yml");
        // JSON is YAML.
        std::fs::write(&file, config.to_string())?;
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let name = format!("127.0.0.1:{port}");
        let mut registry = Self {
            child,
            folder,
            image: format!("{name}/{}:1", unique("rf-img-")),
            digest: String::new(),
        };
        let limit = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(&name).is_err() {
            if Instant::now() > limit {
                return Err("the registry does not listen".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        registry.push(&name)?;
        Ok(registry)
    }

    /// Puts an image there, and takes it from the engine.
    fn push(&mut self, name: &str) -> Outcome {
        docker_ok(&["tag", "ringfence-test/busybox", &self.image])?;
        let image = Removed("image", self.image.clone());
        let config = self.folder.path().join("pusher");
        write_config(&config, &json!({"auths": {name: {"auth": LOGIN}}}))?;
        let config = config.display().to_string();
        docker_ok(&["--config", &config, "push", "--quiet", &image.1])?;
        let format = "{{index .RepoDigests 0}}";
        self.digest = docker_ok(&["inspect", "--format", format, &image.1])?;
        Ok(())
    }

    fn host(&self) -> &str {
        self.image.split('/').next().unwrap_or_default()
    }

    /// `ringfence run` of this image with this configuration of Docker.
    fn run(&self, image: &str, config: &Path, more: &[&str]) -> Outcome<Output> {
        let path = format!("{}:/usr/bin:/bin", self.folder.path().display());
        Ok(Command::new(ringfence())
            .args(["run", "--image", image])
            .args(more)
            .args(["--", "/bin/busybox", "echo", "fetched"])
            .env("DOCKER_CONFIG", config)
            .env("RINGFENCE_STATE_DIR", self.folder.path().join("state"))
            .env("PATH", path)
            .stdin(Stdio::null())
            .output()?)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = docker(["image", "rm", "-f", &self.image, &self.digest]);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write_config(folder: &Path, config: &serde_json::Value) -> Outcome {
    std::fs::create_dir_all(folder)?;
    Ok(std::fs::write(
        folder.join("config.json"),
        config.to_string(),
    )?)
}

fn said(done: &Output) -> String {
    String::from_utf8_lossy(&done.stderr).into_owned()
}

#[test]
fn an_image_is_fetched_when_it_is_missing_and_as_the_policy_says() -> Outcome {
    let registry = Registry::start(false)?;
    let nothing = registry.folder.path().join("nothing");
    let never = registry.run(&registry.image, &nothing, &["--pull", "never"])?;
    assert_eq!(never.status.code(), Some(69), "{}", said(&never));
    let done = registry.run(&registry.image, &nothing, &[])?;
    assert_eq!(
        String::from_utf8_lossy(&done.stdout),
        "fetched\n",
        "{}",
        said(&done)
    );
    assert!(said(&done).contains("fetching"), "{}", said(&done));
    // Now it is there: nothing is fetched unless always.
    let done = registry.run(&registry.image, &nothing, &[])?;
    assert_eq!(said(&done), "");
    let done = registry.run(&registry.image, &nothing, &["--pull", "always"])?;
    assert!(said(&done).contains("fetching"), "{}", said(&done));
    // By its digest it is exactly that one.
    docker_ok(&["image", "rm", "-f", &registry.image])?;
    let done = registry.run(&registry.digest, &nothing, &[])?;
    assert_eq!(
        String::from_utf8_lossy(&done.stdout),
        "fetched\n",
        "{}",
        said(&done)
    );
    let missing = format!("{}-not-there", registry.image);
    let done = registry.run(&missing, &nothing, &[])?;
    assert_eq!(done.status.code(), Some(66), "{}", said(&done));
    Ok(())
}

#[test]
fn credentials_come_from_dockers_own_configuration_and_helpers() -> Outcome {
    let registry = Registry::start(true)?;
    let host = registry.host();
    let config = |name: &str, value: serde_json::Value| -> Outcome<std::path::PathBuf> {
        let folder = registry.folder.path().join(name);
        write_config(&folder, &value)?;
        Ok(folder)
    };
    let nobody = registry.run(&registry.image, &config("nobody", json!({}))?, &[])?;
    assert_eq!(nobody.status.code(), Some(77), "{}", said(&nobody));
    assert!(said(&nobody).contains("docker login"), "{}", said(&nobody));
    let wrong = config("wrong", json!({"auths": {host: {"auth": "YWxpOndyb25n"}}}))?;
    let done = registry.run(&registry.image, &wrong, &[])?;
    assert_eq!(done.status.code(), Some(77), "{}", said(&done));
    let helper = registry.folder.path().join("docker-credential-cave");
    let script = "#!/bin/sh\necho '{\"Username\": \"ali\", \"Secret\": \"open sesame\"}'\n";
    std::fs::write(&helper, script)?;
    std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755))?;
    for (name, value) in [
        ("auths", json!({"auths": {host: {"auth": LOGIN}}})),
        ("helper", json!({"credHelpers": {host: "cave"}})),
        ("store", json!({"credsStore": "cave"})),
    ] {
        let done = registry.run(
            &registry.image,
            &config(name, value)?,
            &["--pull", "always"],
        )?;
        assert_eq!(
            String::from_utf8_lossy(&done.stdout),
            "fetched\n",
            "{name}: {}",
            said(&done)
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_server_fetches_too() -> Outcome {
    let registry = Registry::start(false)?;
    let server = serve(&[])?;
    let body = json!({"spec": {"container": {"image": registry.image}}});
    let (status, answer) = server.post("/sessions", &body).await?;
    assert_eq!(status, 201, "{answer}");
    Ok(())
}

#[tokio::test]
async fn a_server_tells_how_far_a_fetching_is() -> Outcome {
    let registry = Registry::start(false)?;
    let server = serve(&[])?;
    let make = async |image: &str| -> Outcome<Vec<Got>> {
        let body = json!({"spec": {"container": {"image": image}}});
        let mut events = server
            .events("POST", "/sessions", Some(&body), None)
            .await?;
        let mut all = Vec::new();
        while let Some(event) = events.next().await? {
            all.push(event);
        }
        Ok(all)
    };
    let all = make(&registry.image).await?;
    let (last, before) = all.split_last().ok_or("no events")?;
    assert_eq!(last.name, "done", "{all:?}");
    assert!(!before.is_empty(), "{all:?}");
    for event in before {
        assert_eq!(event.name, "progress", "{event:?}");
        assert_eq!(event.data["image"], registry.image, "{event:?}");
        assert!(
            event.data["current"].as_u64() <= event.data["total"].as_u64(),
            "{event:?}"
        );
    }
    let id = last.data["session_id"].as_str().ok_or("no session")?;
    assert_eq!(shell(&server, id, "echo works").await?, "works");
    // What is there is not fetched again; what can't be fetched is told.
    let all = make(&registry.image).await?;
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0].name, "done");
    let all = make(&format!("{}-not-there", registry.image)).await?;
    let last = all.last().ok_or("no events")?;
    assert_eq!(last.name, "failure", "{all:?}");
    assert!(last.data.to_string().contains("-not-there"), "{last:?}");
    Ok(())
}

/// On a terminal it is a line that moves; there the engine's words are seen too.
#[test]
fn a_terminal_shows_how_far_a_fetching_is() -> Outcome {
    let registry = Registry::start(false)?;
    let line = format!(
        "{} run --image {} -- /bin/busybox echo fetched",
        ringfence().display(),
        registry.image
    );
    let done = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("RINGFENCE_STATE_DIR", registry.folder.path().join("state"))
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()?;
    let seen = String::from_utf8_lossy(&done.stdout);
    assert!(seen.contains("fetching"), "{seen}");
    // The line is gone when the output comes.
    let (_, output) = seen
        .trim_end()
        .rsplit_once('\r')
        .ok_or("no line that moves")?;
    assert!(output.contains("fetched"), "{seen}");
    assert!(!output.contains("fetching"), "{seen}");
    Ok(())
}
