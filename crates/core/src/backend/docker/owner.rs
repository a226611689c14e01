//! The owner of a work folder on disk: a new volume belongs to root, and not always root runs.

use super::Docker;
use super::body::numbers;
use super::engine::failed;
use bollard::query_parameters::{DownloadFromContainerOptions, UploadToContainerOptions};
use futures_util::StreamExt as _;
use ringfence_proto::Failure;
use std::io::Read as _;
use std::path::Path;

/// Most bytes of an image's list of users.
const USERS_LIMIT: usize = 1 << 20;

impl Docker {
    /// Gives the work folder of a container that has not been started to who runs in it.
    pub(super) async fn give(
        &self,
        container: &str,
        folder: &Path,
        user: Option<&str>,
    ) -> Result<(), Failure> {
        let user = user.unwrap_or("0:0");
        let owner = match numbers(user) {
            Some(owner) => Some(owner),
            None => self.look_up(container, user).await,
        };
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        // Of somebody whom the image does not list, nothing is known but that it must be able to.
        header.set_mode(if owner.is_some() { 0o755 } else { 0o1777 });
        let (uid, gid) = owner.unwrap_or((0, 0));
        header.set_uid(uid.into());
        header.set_gid(gid.into());
        let what = || format!("cannot give {} to user {user}", folder.display());
        let mut builder = tar::Builder::new(Vec::new());
        let archive = header
            .set_path("./")
            .and_then(|()| {
                header.set_cksum();
                builder.append(&header, std::io::empty())
            })
            .and_then(|()| builder.into_inner())
            .map_err(|e| Failure::io(what(), &e))?;
        let options = UploadToContainerOptions {
            path: folder.display().to_string(),
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
