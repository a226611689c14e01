//! `ringfence`: gives every AI agent a computer of its own.

mod cli;
mod config;
mod embedded;
mod http;
mod settings;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
