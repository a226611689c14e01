//! The removal of what makers that died in the middle left on the engine.

use super::engine::{failed, status, unless_gone};
use super::inject::VOLUMES;
use super::{Docker, LABEL, MAKER_LABEL, WORK_LABEL};
use crate::backend::process::Process;
use bollard::models::ContainerSummaryStateEnum as EngineState;
use bollard::query_parameters::{ListVolumesOptions, RemoveVolumeOptions};
use ringfence_proto::{Code, Failure};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// Longer than it takes to make a container and start it.
const STALE: Duration = Duration::from_secs(120);

/// What a sweep removed, by the engine's names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Swept {
    pub containers: Vec<String>,
    pub volumes: Vec<String>,
}

/// Tells that this process made a container, and that it goes with it.
pub(super) fn maker() -> Result<(String, String), Failure> {
    let maker = serde_json::to_string(&Process::own())
        .map_err(|e| Failure::new(Code::Internal, "cannot label a container").detail(e))?;
    Ok((MAKER_LABEL.to_owned(), maker))
}

/// Whether who made a container is dead; of a process of another machine nobody here can say.
fn is_gone(maker: &str) -> bool {
    let maker: Option<Process> = serde_json::from_str(maker).ok().flatten();
    maker.is_some_and(|maker| maker.is_of_this_boot() && !maker.is_alive())
}

impl Docker {
    /// Removes containers that were made and never started, those of makers that are dead, the guests
    /// of other versions, and notes about what is gone.
    pub async fn sweep(&self) -> Result<Swept, Failure> {
        let mut swept = Swept::default();
        let mut there = BTreeSet::new();
        let listed = self.labelled(vec![LABEL.to_owned()]).await?;
        // Read after the list: one that was claimed since is not taken for its dead maker's.
        let ids = self.store.ids()?;
        let borrowed: Vec<_> = ids
            .iter()
            .filter_map(|id| self.store.borrowed(id))
            .collect();
        for found in listed {
            let (Some(id), Some(labels)) = (found.id, found.labels) else {
                continue;
            };
            let age = super::now() - found.created.unwrap_or_default() as f64;
            let never_started = found.state == Some(EngineState::CREATED);
            let in_use = borrowed.iter().any(|borrowed| borrowed.container == id);
            let abandoned = !in_use && labels.get(MAKER_LABEL).is_some_and(|maker| is_gone(maker));
            if abandoned || never_started && age > STALE.as_secs_f64() {
                self.discard(&id).await?;
                swept.containers.push(id);
            } else if let Some(sandbox) = labels.get(LABEL) {
                there.insert(sandbox.clone());
            }
        }
        for id in ids {
            let known = there.contains(id.as_str()) || self.store.borrowed(&id).is_some();
            if !known && self.store.is_old(&id, STALE) {
                self.store.remove(&id)?;
            }
        }
        self.sweep_volumes(&mut swept).await?;
        Ok(swept)
    }

    /// The guests of other versions, and work folders whose container somebody else removed.
    async fn sweep_volumes(&self, swept: &mut Swept) -> Result<(), Failure> {
        let client = self.engine.client().await?;
        let cargo = self.cargo()?;
        let own = [&cargo.closed.name, &cargo.open.name];
        let mut unused = self.unused_volumes(&format!("{LABEL}=guest")).await?;
        unused.retain(|name| name.starts_with(VOLUMES) && !own.contains(&name));
        unused.extend(self.unused_volumes(WORK_LABEL).await?);
        for name in unused {
            let options = None::<RemoveVolumeOptions>;
            match unless_gone(client.remove_volume(&name, options).await) {
                Ok(()) => swept.volumes.push(name),
                // A container has come that uses it.
                Err(error) if status(&error) == Some(409) => {}
                Err(error) => return Err(failed(format!("cannot remove volume {name}"), error)),
            }
        }
        Ok(())
    }

    /// The names of volumes with this label that no container uses.
    async fn unused_volumes(&self, label: &str) -> Result<Vec<String>, Failure> {
        let client = self.engine.client().await?;
        let filters = [("label", label), ("dangling", "true")];
        let filters = filters.map(|(name, value)| (name.to_owned(), vec![value.to_owned()]));
        let options = ListVolumesOptions {
            filters: Some(HashMap::from(filters)),
        };
        let listed = client
            .list_volumes(Some(options))
            .await
            .map_err(|e| failed("cannot list volumes", e))?;
        let volumes = listed.volumes.unwrap_or_default();
        Ok(volumes.into_iter().map(|volume| volume.name).collect())
    }
}
