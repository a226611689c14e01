//! From what was asked to what runs: spec, plan, backends, and the client of the guest.

pub mod backend;
pub mod blocks;
pub mod container;
pub mod file_id;
pub mod guest;
mod hex;
pub mod interpreter;
pub mod languages;
pub mod near;
pub mod plan;
pub mod sessions;
mod shortened;
pub mod size;
pub mod skills;
pub mod snippet;
pub mod spec;
pub mod tools;
pub mod work;

pub use backend::{Backend, Io, SandboxInfo, SandboxState};
pub use file_id::FileId;
pub use guest::GuestClient;
pub use hex::{hex, random, random_hex};
pub use plan::{
    Control, DiskWorkspace, Enforced, Guarantees, Hold, Lifetime, Limits, Plan, SandboxId, resolve,
};
pub use ringfence_proto as proto;
pub use ringfence_proto::{Code, Failure};
pub use sessions::{NewSession, Session, SessionId, Sessions};
pub use size::Size;
pub use spec::{Access, LimitsSpec, MountSpec, Network, SandboxSpec, Workspace};
pub use work::Work;
