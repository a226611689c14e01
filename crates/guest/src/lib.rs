//! The guest: the init of every sandbox, and the only part of Ringfence that runs inside.
//!
//! It runs with exactly the rights of the code it starts, so a flaw here gains that code
//! nothing. It never calls out: the host connects, and speaks HTTP/2 or HTTP/1.1.

mod activity;
mod certificates;
mod checks;
mod daemon;
mod door;
mod exec;
mod files;
mod http;
mod input;
mod jobs;
mod launch;
mod log;
mod program;
mod repl;
mod server;
mod spawn;
mod stdio;
mod tools;
mod tree;

use daemon::DaemonSettings;
pub use program::{complain, guest, main};
pub use server::{Config, Guest};
