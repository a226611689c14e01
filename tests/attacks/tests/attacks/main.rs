//! Attacks on sandboxes, from inside. Each runs on a native sandbox of root, on one of an ordinary
//! user and on a container, and has a control: the same probe, outside, succeeds.
#![allow(clippy::unwrap_used, reason = "tests, which a macro hides from clippy")]

mod between;
mod calls;
mod files;
mod guest;
mod life;
mod limits;
mod network;
mod processes;
