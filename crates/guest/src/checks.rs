//! What requests of several kinds have in common, held to its limits.

use ringfence_proto::{Failure, OUTPUT_LIMIT, OUTPUT_LIMIT_MAX};

/// The longest timeout: a day.
pub(crate) const TIMEOUT_MS_MAX: u64 = 86_400_000;

/// Checks a name that a caller chose; `what` says of what.
pub(crate) fn name(what: &str, name: &str) -> Result<(), Failure> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if (1..=64).contains(&name.len()) && name.bytes().all(good) {
        Ok(())
    } else {
        Err(Failure::invalid(format!(
            "{what} has 1 to 64 letters, digits, _ and -"
        )))
    }
}

/// Checks the limits of a command or a call; answers with the bytes of output to carry inline.
pub(crate) fn limits(output_limit: Option<u64>, timeout_ms: Option<u64>) -> Result<u64, Failure> {
    let output_limit = output_limit.unwrap_or(OUTPUT_LIMIT);
    if output_limit > OUTPUT_LIMIT_MAX {
        return Err(Failure::invalid(format!(
            "output_limit is over {OUTPUT_LIMIT_MAX} bytes"
        )));
    }
    if timeout_ms.is_some_and(|ms| !(1..=TIMEOUT_MS_MAX).contains(&ms)) {
        return Err(Failure::invalid(format!(
            "timeout_ms is not in 1 to {TIMEOUT_MS_MAX}"
        )));
    }
    Ok(output_limit)
}
