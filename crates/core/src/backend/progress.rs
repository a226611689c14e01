//! How far something is that takes long, for whoever waits for it.

use serde::Serialize;
use std::sync::Arc;

/// How far the fetching of an image is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Progress {
    pub image: String,
    /// In the engine's words, such as `Downloading`; in the end [`OVER`].
    pub status: String,
    /// Bytes of all layers that are known so far.
    pub current: u64,
    pub total: u64,
}

/// The last that is said of a fetching, however it ended.
pub const OVER: &str = "Over";

/// Who wants to hear how far a fetching is.
pub type Listener = Arc<dyn Fn(&Progress) + Send + Sync>;

tokio::task_local! {
    static HEARS: Option<Listener>;
}

/// Does something that takes long, and lets this one hear how far it is.
pub async fn heard_by<F: Future>(listener: Option<Listener>, work: F) -> F::Output {
    HEARS.scope(listener, work).await
}

/// Who hears of what is going on here, to be handed to another task.
pub(crate) fn listener() -> Option<Listener> {
    HEARS.try_with(Clone::clone).ok().flatten()
}
