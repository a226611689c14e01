//! What the tests on a real cluster share.

pub mod agent;
pub mod cluster;
pub mod gate;
