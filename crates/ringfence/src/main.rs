//! `ringfence`: gives every AI agent a computer of its own.

mod backends;
mod callback;
mod cli;
mod client;
mod config;
mod embedded;
mod http;
mod keys;
mod mcp;
mod settings;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
