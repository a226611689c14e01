//! `ringfence translate`: TypeScript to JavaScript, for the process that started it.

use ringfence_core::Failure;
use ringfence_core::languages::translate;
use std::ffi::OsString;
use std::process::ExitCode;

/// Translates the code that comes on standard input, if that is what these words ask for. It is
/// no verb for people, and does not wait for those to be described.
pub(super) fn main(words: &[OsString]) -> Option<ExitCode> {
    let asked = words.len() == 2 && words[1] == translate::VERB;
    asked.then(|| {
        let done = translate::serve(ringfence_jail::confine);
        match done.map_err(|e| Failure::io("cannot translate", &e)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => super::report(&failure),
        }
    })
}
