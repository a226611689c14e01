//! The one static program that `ringfence` carries. It is the guest, which is all that containers
//! need of it; on a host without an engine it is first the launcher, whose copies become guests
//! without executing anything.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == "launcher")
    {
        return match ringfence_jail::serve(ringfence_guest::guest) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    ringfence_guest::main()
}
