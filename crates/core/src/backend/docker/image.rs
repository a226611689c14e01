//! Images: looked at, and fetched where the plan says so.

use super::Docker;
use super::credentials::credentials;
use super::engine::{failed, status};
use crate::backend::progress::{self, Progress};
use crate::container::{ContainerPlan, Pull};
use bollard::models::{CreateImageInfo, ImageInspect};
use bollard::query_parameters::CreateImageOptions;
use futures_util::StreamExt as _;
use ringfence_proto::{Code, Failure};
use std::collections::{BTreeMap, BTreeSet};

/// This machine's architecture as engines write it.
fn own_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl Docker {
    /// The image of a plan, fetched first if need be.
    pub(super) async fn image(&self, container: &ContainerPlan) -> Result<ImageInspect, Failure> {
        let name = &container.image;
        let client = self.engine.client().await?;
        let found = match container.pull {
            Pull::Always => None,
            Pull::Missing | Pull::Never => match client.inspect_image(name).await {
                Ok(image) => Some(image),
                Err(error) if status(&error) == Some(404) => None,
                Err(error) => return Err(failed(format!("cannot look at image {name}"), error)),
            },
        };
        let fits = |image: &ImageInspect| {
            container
                .platform
                .as_deref()
                .is_none_or(|platform| platform_of(image).starts_with(platform))
        };
        let image = match found {
            Some(image) if fits(&image) || container.pull == Pull::Never => image,
            None if container.pull == Pull::Never => {
                return Err(Failure::new(
                    Code::Missing,
                    format!("the engine has no image {name}, and it is not to be fetched"),
                )
                .hint(format!(
                    "`docker pull {name}`, or the pull policy `missing`"
                )));
            }
            _ => {
                self.pull(name, container.platform.as_deref()).await?;
                client
                    .inspect_image(name)
                    .await
                    .map_err(|e| failed(format!("cannot look at image {name}"), e))?
            }
        };
        let platform = platform_of(&image);
        if !fits(&image) {
            let asked = container.platform.as_deref().unwrap_or_default();
            let message = format!("image {name} is for {platform}, not for {asked}");
            return Err(Failure::new(Code::Missing, message));
        }
        let own = format!("linux/{}", own_architecture());
        if !platform.starts_with(&own) {
            return Err(Failure::new(
                Code::Unenforceable,
                format!(
                    "image {name} is for {platform}, and the guest that goes into it for {own}"
                ),
            )
            .hint("name an image of this platform"));
        }
        Ok(image)
    }

    /// Which of these images the engine has.
    pub async fn images_here(
        &self,
        names: BTreeSet<String>,
    ) -> Result<BTreeMap<String, bool>, Failure> {
        let client = self.engine.client().await?;
        let mut here = BTreeMap::new();
        for name in names {
            let there = match client.inspect_image(&name).await {
                Ok(_) => true,
                Err(error) if status(&error) == Some(404) => false,
                Err(error) => return Err(failed(format!("cannot look at image {name}"), error)),
            };
            here.insert(name, there);
        }
        Ok(here)
    }

    /// Fetches an image, and says how far it is to whoever listens.
    pub async fn pull(&self, name: &str, platform: Option<&str>) -> Result<(), Failure> {
        let client = self.engine.client().await?;
        let (image, tag) = reference(name);
        let options = CreateImageOptions {
            from_image: Some(image),
            tag: Some(tag),
            platform: platform.unwrap_or_default().to_owned(),
            ..CreateImageOptions::default()
        };
        let login = credentials(&self.config.docker_config, name).await?;
        let anonymous = login.is_none();
        let mut events = client.create_image(Some(options), None, login);
        let listener = progress::listener().or_else(|| self.config.listener.clone());
        let hears = |progress: &Progress| {
            if let Some(listener) = &listener {
                listener(progress);
            }
        };
        let mut layers: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut fetched = Ok(());
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => hears(&measured(name, event, &mut layers)),
                Err(error) => {
                    fetched = Err(unfetched(name, error, anonymous));
                    break;
                }
            }
        }
        let over = CreateImageInfo {
            status: Some(progress::OVER.to_owned()),
            ..CreateImageInfo::default()
        };
        hears(&measured(name, over, &mut layers));
        fetched
    }
}

fn platform_of(image: &ImageInspect) -> String {
    let os = image.os.as_deref().unwrap_or("linux");
    let architecture = image.architecture.as_deref().unwrap_or_default();
    match image.variant.as_deref() {
        Some(variant) if !variant.is_empty() => format!("{os}/{architecture}/{variant}"),
        _ => format!("{os}/{architecture}"),
    }
}

/// A name without its tag, and the tag or digest; without one all tags would be fetched.
fn reference(name: &str) -> (String, String) {
    if let Some((image, digest)) = name.split_once('@') {
        return (image.to_owned(), digest.to_owned());
    }
    match name.rsplit_once(':') {
        // A colon before a slash is that of a registry's port.
        Some((image, tag)) if !tag.contains('/') => (image.to_owned(), tag.to_owned()),
        _ => (name.to_owned(), "latest".to_owned()),
    }
}

/// What went wrong, in words of which the engine's are the last.
fn unfetched(name: &str, error: bollard::errors::Error, anonymous: bool) -> Failure {
    use bollard::errors::Error;
    let said = match &error {
        Error::DockerResponseServerError { message, .. } => message.clone(),
        Error::DockerStreamError { error } => error.clone(),
        _ => return failed(format!("cannot fetch image {name}"), error),
    };
    let said = said.trim().to_owned();
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    let what = format!("cannot fetch image {name}: {said}");
    if has(&[
        "no basic auth",
        "unauthorized",
        "denied",
        "authentication required",
    ]) {
        let hint = match anonymous {
            true => "`docker login` gives credentials for the registry",
            false => "the credentials that Docker has for the registry are not accepted",
        };
        return Failure::new(Code::Forbidden, what).hint(hint);
    }
    if has(&[
        "no matching manifest",
        "does not match the specified platform",
    ]) {
        return Failure::new(Code::Missing, what)
            .hint("name a platform that the image is made for");
    }
    if has(&[
        "not found",
        "manifest unknown",
        "does not exist",
        "No such image",
    ]) {
        return Failure::new(Code::NotFound, what).hint("check the name and the tag");
    }
    if has(&["invalid reference format"]) {
        return Failure::invalid(what);
    }
    Failure::new(Code::Unavailable, what).hint("check the registry's name and the network")
}

fn measured(
    image: &str,
    event: CreateImageInfo,
    layers: &mut BTreeMap<String, (u64, u64)>,
) -> Progress {
    if let (Some(layer), Some(detail)) = (event.id, event.progress_detail)
        && let (Some(current), Some(total)) = (detail.current, detail.total)
        // The same layers are counted again while they are unpacked.
        && event.status.as_deref() == Some("Downloading")
    {
        layers.insert(layer, (current.max(0) as u64, total.max(0) as u64));
    }
    Progress {
        image: image.to_owned(),
        status: event.status.unwrap_or_default(),
        current: layers.values().map(|layer| layer.0).sum(),
        total: layers.values().map(|layer| layer.1).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        for (name, image, tag) in [
            ("python", "python", "latest"),
            ("python:3", "python", "3"),
            ("localhost:5000/a/b", "localhost:5000/a/b", "latest"),
            ("localhost:5000/a/b:1", "localhost:5000/a/b", "1"),
            ("a/b@sha256:00", "a/b", "sha256:00"),
        ] {
            assert_eq!(
                reference(name),
                (image.to_owned(), tag.to_owned()),
                "{name}"
            );
        }
    }
}
