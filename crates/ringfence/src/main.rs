//! `ringfence`: gives every AI agent a computer of its own.

mod backends;
mod callback;
mod cli;
mod config;
mod embedded;
mod http;
mod keys;
mod settings;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
