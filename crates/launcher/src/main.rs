//! The one static program that `ringfence` carries. It is the guest, which is all that containers
//! need of it; on a host without an engine it is first the launcher, whose copies become guests
//! without executing anything.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words: Vec<_> = std::env::args_os().skip(1).collect();
    loop {
        let word = words.first().and_then(|word| word.to_str());
        // The guest of a container, under limits and the filter of native sandboxes.
        let (what, done) = match word {
            Some("limited") => ("set limits", ringfence_jail::limit()),
            Some("filtered") => ("filter calls", ringfence_jail::filter()),
            Some("launcher") => {
                return match ringfence_jail::serve(ringfence_guest::guest) {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(_) => ExitCode::FAILURE,
                };
            }
            _ => return ringfence_guest::main(words),
        };
        if let Err(error) = done {
            return ringfence_guest::complain(&format!("cannot {what}: {error}"));
        }
        words.remove(0);
    }
}
