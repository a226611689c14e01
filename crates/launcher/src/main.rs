//! The one static program that `ringfence` carries. It is the guest, which is all that containers
//! need of it; on a host without an engine it is first the launcher, whose copies become guests
//! without executing anything.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words: Vec<_> = std::env::args_os().skip(1).collect();
    match words.first().and_then(|word| word.to_str()) {
        Some("launcher") => match ringfence_jail::serve(ringfence_guest::guest) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        // The guest of a container, under the filter of native sandboxes.
        Some("filtered") => {
            words.remove(0);
            match ringfence_jail::filter() {
                Ok(()) => ringfence_guest::main(words),
                Err(error) => ringfence_guest::complain(&format!("cannot filter calls: {error}")),
            }
        }
        _ => ringfence_guest::main(words),
    }
}
