//! The guest as a program of its own, for its tests. Sandboxes have it from `ringfence-launcher`.

fn main() -> std::process::ExitCode {
    ringfence_guest::main(std::env::args_os().skip(1).collect())
}
