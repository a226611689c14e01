//! Writes to the API server, counted in its audit log.

use super::Result;
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

/// The log, which has every write and no reads.
pub(crate) struct Audit {
    path: PathBuf,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Writes {
    ours: u32,
    theirs: u32,
}

/// For one session.
pub(crate) struct Cost {
    pub ours: f64,
    pub theirs: f64,
}

impl Writes {
    pub(crate) fn since(&self, before: &Self, sessions: usize) -> Cost {
        Cost {
            ours: f64::from(self.ours - before.ours) / sessions as f64,
            theirs: f64::from(self.theirs - before.theirs) / sessions as f64,
        }
    }
}

impl Audit {
    /// Where cluster-up puts it: two folders above the kubeconfig's file.
    pub(crate) fn beside(config: &Path) -> Result<Self> {
        let path = config
            .ancestors()
            .nth(2)
            .ok_or("no folder")?
            .join("audit.log");
        match path.is_file() {
            true => Ok(Self { path }),
            false => Err(format!("there is no {}", path.display()).into()),
        }
    }

    /// Writes in a namespace so far, by servers of ours and by everybody else but kubectl.
    pub(crate) fn count(&self, namespace: &str) -> Result<Writes> {
        let mut writes = Writes::default();
        for line in BufReader::new(std::fs::File::open(&self.path)?).lines() {
            let event: Value = serde_json::from_str(&line?)?;
            if event["objectRef"]["namespace"] != namespace {
                continue;
            }
            match event["userAgent"].as_str().unwrap_or_default() {
                agent if agent.starts_with("ringfence") => writes.ours += 1,
                agent if agent.starts_with("kubectl") => {}
                _ => writes.theirs += 1,
            }
        }
        Ok(writes)
    }
}
