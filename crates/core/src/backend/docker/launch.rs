//! Containers of ours, made and started; and the streams of processes in them.

use super::body::{self, has_work_volume};
use super::engine::{failed, knows_fewer_options, status};
use super::inject::{lacks_guest, may_not};
use super::stdio::Stdio;
use super::{Docker, GUEST, container_of, offline};
use crate::plan::{Lifetime, Plan};
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    AttachContainerOptions, CreateContainerOptions, StartContainerOptions,
};
use ringfence_proto::{Code, Failure};
use std::collections::HashMap;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;

/// How often the guest is brought for one container: those of other versions remove what no
/// container uses.
const FILLINGS: u32 = 3;
/// How long the engine may take to connect us to a process.
const JOINING: Duration = Duration::from_secs(30);

impl Docker {
    /// What the engine is asked to make for this plan; its image is there afterwards.
    pub(super) async fn describe(
        &self,
        plan: &Plan,
        labels: HashMap<String, String>,
    ) -> Result<ContainerCreateBody, Failure> {
        let container = container_of(plan)?;
        let guest = self.cargo()?.volume(container.runtime.as_deref());
        let offline = offline::is_possible(plan, container);
        let folder = async {
            match offline {
                true => self.guest_folder(guest).await,
                false => Ok(None),
            }
        };
        let (image, mut folder) = tokio::try_join!(self.image(container), folder)?;
        if offline && folder.is_none() {
            // The first of its version on this engine.
            self.fill(guest, &container.image).await?;
            folder = self.guest_folder(guest).await?;
        }
        let image = image.config.unwrap_or_default();
        let mut body = body::body(plan, container, &image, &guest.name, labels);
        if let Some(folder) = folder {
            offline::apply(&mut body, folder);
        }
        Ok(body)
    }

    /// Makes a container and starts it; answers with its id and its guest's standard streams, or
    /// with none where its name is taken.
    pub(super) async fn launch(
        &self,
        plan: &Plan,
        name: &str,
        mut body: ContainerCreateBody,
        secret: &str,
    ) -> Result<Option<(String, Stdio)>, Failure> {
        let client = self.engine.client().await?;
        let container = container_of(plan)?;
        let mut guest = self.cargo()?.volume(container.runtime.as_deref());
        let mut fillings = 0;
        loop {
            let options = CreateContainerOptions {
                name: Some(name.to_owned()),
                platform: container.platform.clone().unwrap_or_default(),
            };
            let failure = match client.create_container(Some(options), body.clone()).await {
                Ok(made) => {
                    let started = async {
                        if has_work_volume(plan, container) {
                            let user = body.user.as_deref();
                            self.give(&made.id, container, user).await?;
                        }
                        self.start(&made.id, secret, plan.lifetime).await
                    };
                    match started.await {
                        Ok(stdio) => return Ok(Some((made.id, stdio))),
                        Err(failure) => {
                            self.discard(&made.id).await?;
                            failure
                        }
                    }
                }
                Err(error) if status(&error) == Some(409) => return Ok(None),
                Err(error) if knows_fewer_options(&error) && body::simplify_tmpfs(&mut body) => {
                    continue;
                }
                Err(error) => failed(format!("cannot make container {name}"), error),
            };
            let lacks = lacks_guest(&failure);
            if (fillings > 0 || !lacks) && offline::is_refused(&body, &failure) {
                offline::undo(&mut body);
                continue;
            }
            if !lacks || fillings == FILLINGS {
                return Err(failure);
            }
            if fillings > 0 && may_not(&failure) {
                // The engine's own runtime is one that reads what it executes.
                guest = &self.cargo()?.open;
                body::mount_guest(&mut body, &guest.name);
            }
            // Somebody removed the volume, or what was in it.
            self.fill(guest, &container.image).await?;
            fillings += 1;
        }
    }

    pub(super) async fn run(&self, container: &str) -> Result<(), Failure> {
        let client = self.engine.client().await?;
        client
            .start_container(container, None::<StartContainerOptions>)
            .await
            .map_err(|e| failed(format!("cannot start container {container}"), e))
    }

    /// Starts a container of ours, and answers with its guest's standard streams.
    pub(super) async fn start(
        &self,
        container: &str,
        secret: &str,
        lifetime: Lifetime,
    ) -> Result<Stdio, Failure> {
        let client = self.engine.client().await?;
        let options = AttachContainerOptions {
            stream: true,
            stdin: true,
            stdout: true,
            stderr: true,
            ..AttachContainerOptions::default()
        };
        let attached = in_time(client.attach_container(container, Some(options)), container);
        let attached = attached.await?;
        let mut stdio = Stdio::new(attached.output, attached.input);
        // It waits in the engine until there is somebody to hear it.
        say(&mut stdio, secret).await?;
        let (client, name) = (client.clone(), container.to_owned());
        let mut starting = tokio::spawn(async move {
            let options = None::<StartContainerOptions>;
            client.start_container(&name, options).await
        });
        let answer = match lifetime {
            // It is there when the engine lists it.
            Lifetime::Kept => starting.await,
            // Nobody else looks for it, and the guest speaks before the engine says that it runs.
            Lifetime::Disposable => tokio::select! {
                answer = &mut starting => answer,
                spoke = stdio.spoke() => match spoke {
                    true => return Ok(stdio),
                    false => starting.await,
                }
            },
        };
        let what = || format!("cannot start container {container}");
        match answer {
            Ok(Ok(())) => Ok(stdio),
            Ok(Err(error)) => Err(failed(what(), error)),
            Err(error) => Err(Failure::new(Code::Internal, what()).detail(error)),
        }
    }

    /// Starts the guest's program in a container that runs, and answers with its standard streams.
    pub(super) async fn exec(
        &self,
        container: &str,
        words: Vec<String>,
        user: Option<String>,
        env: Vec<String>,
    ) -> Result<Stdio, Failure> {
        let client = self.engine.client().await?;
        let what = || format!("cannot reach the guest in container {container}");
        let mut command = vec![GUEST.to_owned()];
        command.extend(words);
        let options = CreateExecOptions {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(command),
            user,
            env: Some(env),
            ..CreateExecOptions::default()
        };
        let made = client
            .create_exec(container, options)
            .await
            .map_err(|e| failed(what(), e))?;
        let started = client.start_exec(&made.id, None::<StartExecOptions>);
        match in_time(started, container).await? {
            StartExecResults::Attached { output, input } => Ok(Stdio::new(output, input)),
            StartExecResults::Detached => Err(Failure::new(Code::Internal, what())),
        }
    }
}

/// The first that a guest behind a door hears.
pub(super) async fn say(stdio: &mut Stdio, secret: &str) -> Result<(), Failure> {
    stdio
        .write_all(secret.as_bytes())
        .await
        .map_err(|e| Failure::new(Code::Unavailable, "the guest ended at once").detail(e))
}

async fn in_time<T>(
    joining: impl Future<Output = Result<T, bollard::errors::Error>>,
    container: &str,
) -> Result<T, Failure> {
    let what = || format!("cannot join container {container}");
    match tokio::time::timeout(JOINING, joining).await {
        Ok(joined) => joined.map_err(|e| failed(what(), e)),
        Err(_) => {
            let message = format!("{}: the engine does not answer", what());
            Err(Failure::new(Code::Unavailable, message))
        }
    }
}
