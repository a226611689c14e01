//! The Docker backend against Docker's own command line, where an engine with the image answers.

use super::{DOCKER, IMAGE, Result, Row, guest_in};
use ringfence_core::backend::docker::{Config, Docker, Endpoint, Surroundings};
use ringfence_core::proto::{Command as Exec, ExecRequest, RunRequest};
use ringfence_core::sessions::MAIN;
use ringfence_core::spec::SandboxSpec;
use ringfence_core::{Backend as _, GuestClient, Lifetime, Plan, resolve};
use std::path::Path;
use std::time::{Duration, Instant};

/// Long enough for a container to be removed, or to be parked in the place of one that was claimed.
/// Nothing is measured meanwhile.
const REST: Duration = Duration::from_millis(1500);

/// Rows of their own: each is to `docker run` or `docker exec` of the same run.
pub(super) async fn measure(
    rounds: usize,
    home: &Path,
    ringfence: &Path,
    docker: &Path,
    timed: impl Fn(&Path, &[&str]) -> Result<Duration>,
) -> Result<Vec<Row>> {
    let mut theirs = Row::new("docker run --rm … print(1)", "", None);
    let mut ours = Row::new("ringfence run --image … print(1)", theirs.name, Some(0.75));
    let mut their_exec = Row::new("docker exec /bin/true", "", None);
    let mut exec = Row::new(
        "exec /bin/true in a live container",
        their_exec.name,
        Some(0.03),
    );
    let mut pooled = Row::new("pooled session, first result", theirs.name, Some(0.03));
    let backend = Docker::new(Config {
        endpoint: Endpoint::find(&Surroundings {
            host: std::env::vars()
                .find(|(name, _)| name == "DOCKER_HOST")
                .map(|(_, host)| host),
            ..Surroundings::default()
        })?,
        state: home.join("docker"),
        guest: guest_in(&home.join("cache"))?,
        image: IMAGE.to_owned(),
        docker_config: home.to_owned(),
        listener: None,
        pool: 2,
    })?;
    let guarantees = backend.guarantees().await?;
    let plan = || -> Result<Plan> {
        Ok(resolve(
            SandboxSpec::default(),
            Lifetime::Kept,
            &guarantees,
        )?)
    };
    let live = plan()?;
    backend.create(&live).await?;
    let guest = GuestClient::connect(backend.dial(&live.id).await?).await?;
    let label = format!("label=ringfence={}", live.id);
    let found = std::process::Command::new(docker)
        .args(["ps", "-q", "--filter", &label])
        .output()?;
    let container = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    let code = ["run", "--image", IMAGE, "-c", "print(1)"];
    let inside = ["exec", container.as_str(), "/bin/true"];
    let quick = ExecRequest::new(Exec::Argv(vec!["/bin/true".into()]));
    let measured = async {
        timed(ringfence, &code)?;
        for _ in 0..rounds.min(20) {
            tokio::time::sleep(REST).await;
            theirs.samples.push(timed(docker, &DOCKER)?);
            ours.samples.push(timed(ringfence, &code)?);
            tokio::time::sleep(REST).await;
            their_exec.samples.push(timed(docker, &inside)?);
            for _ in 0..10 {
                let start = Instant::now();
                guest.exec(&quick).await?;
                exec.samples.push(start.elapsed());
            }
            let session = plan()?;
            let start = Instant::now();
            backend.create(&session).await?;
            let guest = GuestClient::connect(backend.dial(&session.id).await?).await?;
            let call = RunRequest {
                code: "print(1)".into(),
                ..RunRequest::default()
            };
            guest.run(MAIN, &call).await?;
            pooled.samples.push(start.elapsed());
            backend.destroy(&session.id).await?;
        }
        Result::<()>::Ok(())
    };
    let measured = measured.await;
    backend.destroy(&live.id).await?;
    backend.close().await?;
    measured?;
    Ok(vec![theirs, ours, their_exec, exec, pooled])
}
