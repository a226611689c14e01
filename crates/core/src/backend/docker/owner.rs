//! The owner of a work folder on disk: a new volume belongs to root, and not always root runs.

use super::Docker;
use super::body::{labels, numbers};
use super::engine::failed;
use crate::container::ContainerPlan;
use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType};
use bollard::query_parameters::{
    CreateContainerOptions, DownloadFromContainerOptions, InspectContainerOptions,
    UploadToContainerOptions,
};
use futures_util::StreamExt as _;
use ringfence_proto::{Code, Failure};
use std::io::Read as _;
use std::path::Path;

/// Most bytes of an image's list of users.
const USERS_LIMIT: usize = 1 << 20;

/// Where a helper sees the volume.
const GIVEN: &str = "/given";

impl Docker {
    /// Gives the work folder of a container that has not been started to who runs in it. Nothing
    /// can be changed in a root that is read-only: then a helper changes the volume.
    pub(super) async fn give(
        &self,
        made: &str,
        container: &ContainerPlan,
        user: Option<&str>,
    ) -> Result<(), Failure> {
        let user = user.unwrap_or("0:0");
        let owner = match numbers(user) {
            Some(owner) => Some(owner),
            None => self.look_up(made, user).await,
        };
        if !container.read_only {
            return self.set_owner(made, &container.workdir, owner).await;
        }
        let volume = self.work_volume(made, &container.workdir).await?;
        let body = ContainerCreateBody {
            image: Some(container.image.clone()),
            entrypoint: Some(vec!["/never-started".to_owned()]),
            labels: Some(labels("give")),
            host_config: Some(HostConfig {
                mounts: Some(vec![Mount {
                    target: Some(GIVEN.to_owned()),
                    source: Some(volume),
                    typ: Some(MountType::VOLUME),
                    ..Mount::default()
                }]),
                network_mode: Some("none".to_owned()),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let client = self.engine.client().await?;
        let helper = client
            .create_container(None::<CreateContainerOptions>, body)
            .await
            .map_err(|e| failed("cannot make a container that gives a volume away", e))?;
        let given = self.set_owner(&helper.id, Path::new(GIVEN), owner).await;
        self.discard(&helper.id).await?;
        given
    }

    /// The engine's name for the volume at the work folder.
    async fn work_volume(&self, made: &str, folder: &Path) -> Result<String, Failure> {
        let client = self.engine.client().await?;
        let what = || format!("cannot look at container {made}");
        let options = None::<InspectContainerOptions>;
        let found = client
            .inspect_container(made, options)
            .await
            .map_err(|e| failed(what(), e))?;
        let folder = folder.to_string_lossy();
        found
            .mounts
            .into_iter()
            .flatten()
            .find(|mount| mount.destination.as_deref() == Some(&*folder))
            .and_then(|mount| mount.name)
            .ok_or_else(|| Failure::new(Code::Internal, what()))
    }

    /// Changes the owner of a folder, by an archive in which it is the only entry.
    async fn set_owner(
        &self,
        container: &str,
        folder: &Path,
        owner: Option<(u32, u32)>,
    ) -> Result<(), Failure> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        // Of somebody whom the image does not list, nothing is known but that it must be able to.
        header.set_mode(if owner.is_some() { 0o755 } else { 0o1777 });
        let (uid, gid) = owner.unwrap_or((0, 0));
        header.set_uid(uid.into());
        header.set_gid(gid.into());
        let what = || format!("cannot give {} away", folder.display());
        let mut builder = tar::Builder::new(Vec::new());
        let archive = builder
            .append_data(
                &mut header,
                folder.strip_prefix("/").unwrap_or(folder),
                std::io::empty(),
            )
            .and_then(|()| builder.into_inner())
            .map_err(|e| Failure::io(what(), &e))?;
        let options = UploadToContainerOptions {
            path: "/".to_owned(),
            ..UploadToContainerOptions::default()
        };
        let body = bollard::body_full(archive.into());
        let client = self.engine.client().await?;
        client
            .upload_to_container(container, Some(options), body)
            .await
            .map_err(|e| failed(what(), e))
    }

    /// The numbers of a user by name, as the image's own list has them.
    async fn look_up(&self, container: &str, user: &str) -> Option<(u32, u32)> {
        let client = self.engine.client().await.ok()?;
        let options = DownloadFromContainerOptions {
            path: "/etc/passwd".to_owned(),
        };
        let mut parts = client.download_from_container(container, Some(options));
        let mut archive = Vec::new();
        while let Some(Ok(part)) = parts.next().await {
            archive.extend_from_slice(&part);
            if archive.len() > USERS_LIMIT {
                return None;
            }
        }
        let mut archive = tar::Archive::new(archive.as_slice());
        let mut text = String::new();
        let mut entry = archive.entries().ok()?.next()?.ok()?;
        entry.read_to_string(&mut text).ok()?;
        let name = user.split(':').next()?;
        text.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            match fields.as_slice() {
                [known, _, uid, gid, ..] if *known == name || *uid == name => {
                    Some((uid.parse().ok()?, gid.parse().ok()?))
                }
                _ => None,
            }
        })
    }
}
