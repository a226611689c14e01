//! The guest, brought to where the engine can give it to a container: a volume for each version of
//! it. Nothing of the host is mounted, so the engine may be on another machine.

use super::body::{guest_mount, labels};
use super::engine::{failed, status, unless_gone};
use super::sweep::maker;
use super::{Docker, GUEST_NAME, offline};
use crate::hex;
use crate::spec::Access;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    CreateContainerOptions, InspectContainerOptions, RemoveContainerOptions,
    UploadToContainerOptions,
};
use bytes::Bytes;
use ringfence_proto::{Code, Failure};
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long another may take to fill the volume until it is taken to be dead.
const FILLING: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// The guest as it is sent to an engine.
pub(super) struct Cargo {
    path: PathBuf,
    /// It can be executed and not read there. So the kernel lets nobody look into the memory of who
    /// executes it, from the first instruction on.
    pub(super) closed: GuestVolume,
    /// It can be read too: gVisor executes nothing else.
    pub(super) open: GuestVolume,
}

/// A volume that holds the guest.
pub(super) struct GuestVolume {
    pub(super) name: String,
    mode: u32,
    /// Where the engine has its files.
    folder: OnceLock<String>,
}

/// What the names of gVisor's runtimes have in common.
const GVISOR: &str = "runsc";

/// What the names of our guest volumes start with.
pub(super) const VOLUMES: &str = "ringfence-guest-";

impl Cargo {
    fn new(path: &Path) -> Result<Self, Failure> {
        let version = match version(path) {
            Some(version) => version,
            None => hex(&Sha256::digest(read(path)?)[..8]),
        };
        let volume = |kind: &str, mode: u32| GuestVolume {
            name: format!("{VOLUMES}{version}{kind}"),
            mode,
            folder: OnceLock::new(),
        };
        Ok(Self {
            path: path.to_owned(),
            closed: volume("", 0o111),
            open: volume("-open", 0o555),
        })
    }

    /// The volume for containers of this runtime.
    pub(super) fn volume(&self, runtime: Option<&str>) -> &GuestVolume {
        match runtime.is_some_and(|runtime| runtime.contains(GVISOR)) {
            false => &self.closed,
            true => &self.open,
        }
    }

    /// As an archive, with other files beside it. Engines unpack what came of an archive that broke
    /// off, so the guest gets its name last, when all of it is there: a start finds it whole or not
    /// at all, and fills the volume then.
    fn archive(&self, name: &str, mode: u32, others: &[(&str, &str)]) -> Result<Bytes, Failure> {
        let guest = read(&self.path)?;
        let mut builder = tar::Builder::new(Vec::with_capacity(guest.len() + 8192));
        let mut add = |name: &str, mode: u32, bytes: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(mode);
            builder.append_data(&mut header, name, bytes)
        };
        let whole = format!("{name}.whole");
        let added = others
            .iter()
            .try_for_each(|(name, text)| add(name, 0o444, text.as_bytes()))
            .and_then(|()| add(&whole, mode, &guest));
        let mut link = tar::Header::new_gnu();
        link.set_entry_type(tar::EntryType::Link);
        link.set_size(0);
        link.set_mode(mode);
        added
            .and_then(|()| builder.append_link(&mut link, name, &whole))
            .and_then(|()| builder.into_inner())
            .map(Bytes::from)
            .map_err(|e| Failure::io("cannot pack the guest", &e))
    }
}

/// What the name of an unpacked guest says of it, so that a start need not read all of it.
fn version(path: &Path) -> Option<String> {
    let hash = path.file_name()?.to_str()?.strip_prefix("guest-")?;
    let is_hash = hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit());
    is_hash.then(|| hash.to_owned())
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path)
        .map_err(|e| Failure::io(format!("cannot read the guest {}", path.display()), &e))
}

impl Docker {
    /// Fills the volume, through a container that is never started. Its name is the lock: of those
    /// who fill at the same time, one does.
    pub(super) async fn fill(&self, volume: &GuestVolume, image: &str) -> Result<(), Failure> {
        let client = self.engine.client().await?;
        let name = &volume.name;
        let what = || format!("cannot put the guest into the volume {name}");
        let helper = name.replace(VOLUMES, "ringfence-fill-");
        // Where this process is killed, the next sweep removes the helper, and nobody waits for it.
        let mut labels = labels("fill");
        labels.extend([maker()?]);
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            entrypoint: Some(vec!["/never-started".to_owned()]),
            labels: Some(labels),
            host_config: Some(HostConfig {
                mounts: Some(vec![guest_mount(name, Access::ReadWrite)]),
                network_mode: Some("none".to_owned()),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let begun = Instant::now();
        loop {
            let options = CreateContainerOptions {
                name: Some(helper.clone()),
                ..CreateContainerOptions::default()
            };
            match client.create_container(Some(options), body.clone()).await {
                Ok(_) => break,
                Err(error) if status(&error) == Some(409) => {
                    if begun.elapsed() > FILLING {
                        self.discard(&helper).await?;
                    }
                    // When it is gone, the volume is full.
                    while begun.elapsed() <= FILLING {
                        let options = None::<InspectContainerOptions>;
                        match client.inspect_container(&helper, options).await {
                            Err(error) if status(&error) == Some(404) => return Ok(()),
                            _ => tokio::time::sleep(PAUSE).await,
                        }
                    }
                }
                Err(error) => return Err(failed(what(), error)),
            }
        }
        let options = UploadToContainerOptions {
            path: super::GUEST_FOLDER.to_owned(),
            ..UploadToContainerOptions::default()
        };
        let others = [(offline::HOSTS_NAME, offline::HOSTS_TEXT)];
        let archive = self.cargo()?.archive(GUEST_NAME, volume.mode, &others)?;
        let filled = client
            .upload_to_container(&helper, Some(options), bollard::body_full(archive))
            .await
            .map_err(|e| failed(what(), e));
        self.discard(&helper).await?;
        filled
    }

    /// Puts the guest into a container that is not ours.
    pub(super) async fn put_guest(
        &self,
        container: &str,
        runtime: Option<&str>,
    ) -> Result<(), Failure> {
        let client = self.engine.client().await?;
        let cargo = self.cargo()?;
        let name = super::GUEST.trim_start_matches('/');
        let archive = cargo.archive(name, cargo.volume(runtime).mode, &[])?;
        let options = UploadToContainerOptions {
            path: "/".to_owned(),
            ..UploadToContainerOptions::default()
        };
        client
            .upload_to_container(container, Some(options), bollard::body_full(archive))
            .await
            .map_err(|e| {
                let failure = failed(format!("cannot put the guest into {container}"), e);
                match failure.message.contains("read-only") {
                    true => {
                        failure.hint("a container whose root can be written to can be attached to")
                    }
                    false => failure,
                }
            })
    }

    /// Removes a container with its volumes, whatever state it is in.
    pub(super) async fn discard(&self, container: &str) -> Result<(), Failure> {
        let client = self.engine.client().await?;
        let begun = Instant::now();
        loop {
            let options = RemoveContainerOptions {
                force: true,
                v: true,
                ..RemoveContainerOptions::default()
            };
            let removed = client.remove_container(container, Some(options)).await;
            match unless_gone(removed) {
                Ok(()) => return Ok(()),
                // Another is at it: it is gone when its name is.
                Err(error) if status(&error) == Some(409) && begun.elapsed() < FILLING => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => {
                    return Err(failed(
                        format!("cannot remove container {container}"),
                        error,
                    ));
                }
            }
        }
    }

    /// Where the engine has the files of the guest's volume; none before that is made.
    pub(super) async fn guest_folder<'a>(
        &self,
        volume: &'a GuestVolume,
    ) -> Result<Option<&'a str>, Failure> {
        if let Some(folder) = volume.folder.get() {
            return Ok(Some(folder));
        }
        let client = self.engine.client().await?;
        match client.inspect_volume(&volume.name).await {
            Ok(found) => Ok(Some(volume.folder.get_or_init(|| found.mountpoint))),
            Err(error) if status(&error) == Some(404) => Ok(None),
            Err(error) => {
                let what = format!("cannot look at volume {}", volume.name);
                Err(failed(what, error))
            }
        }
    }

    pub(super) fn cargo(&self) -> Result<&Cargo, Failure> {
        if let Some(cargo) = self.cargo.get() {
            return Ok(cargo);
        }
        let cargo = Cargo::new(&self.config.guest)?;
        Ok(self.cargo.get_or_init(|| cargo))
    }
}

/// Whether a start failed because there was no guest in its volume, or not what lies beside it.
pub(super) fn lacks_guest(failure: &Failure) -> bool {
    let says = |words: &str| failure.message.contains(words);
    let absent = says("no such file") || says("not found") || may_not(failure);
    let guest = says(super::GUEST) && absent;
    let hosts = offline::names_hosts(failure) && says("does not exist");
    (guest || hosts) && failure.code != Code::NoSpace
}

/// Whether it failed because something was not allowed.
pub(super) fn may_not(failure: &Failure) -> bool {
    failure.message.contains("permission denied")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_of_which_a_part_was_sent_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let guest: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
        let path = folder.path().join("guest");
        std::fs::write(&path, &guest).unwrap();
        let cargo = Cargo::new(&path).unwrap();
        let others = [(offline::HOSTS_NAME, offline::HOSTS_TEXT)];
        let archive = cargo.archive(GUEST_NAME, 0o755, &others).unwrap();
        let sent = |bytes: usize| {
            let folder = tempfile::tempdir().unwrap();
            // That it breaks off is no reason to take back what came.
            let _ = tar::Archive::new(&archive[..bytes]).unpack(folder.path());
            std::fs::read(folder.path().join(GUEST_NAME)).ok()
        };
        assert_eq!(sent(archive.len()), Some(guest.clone()));
        for bytes in (0..archive.len()).step_by(512) {
            assert!(sent(bytes).is_none_or(|found| found == guest), "{bytes}");
        }
        assert_eq!(sent(archive.len() / 2), None);
    }
}
