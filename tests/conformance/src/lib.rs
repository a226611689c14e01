//! The behaviours that every backend must show, as one list.
//!
//! A behaviour gets a live sandbox and says what went wrong. Where a backend can't enforce what a
//! behaviour is about, the trial checks that its guarantees say so: nothing is skipped in silence.

mod behaviours;
mod fake;
mod subject;

pub use behaviours::{BEHAVIOURS, Behaviour};
pub use fake::Fake;
pub use subject::{Subject, Trial};

use ringfence_core::Failure;

/// What went wrong, in words.
#[derive(Debug)]
pub struct Wrong(pub String);

impl From<Failure> for Wrong {
    fn from(failure: Failure) -> Self {
        let detail = failure.detail.as_deref().unwrap_or_default();
        Self(format!("{}: {failure} {detail}", failure.code.name()))
    }
}

impl From<std::io::Error> for Wrong {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

pub type Outcome = Result<(), Wrong>;

/// Fails the behaviour unless both are equal.
#[macro_export]
macro_rules! same {
    ($left:expr, $right:expr) => {
        match (&$left, &$right) {
            (left, right) if *left == *right => {}
            (left, right) => {
                return Err($crate::Wrong(format!(
                    "{}:{}: {} is {left:?}, not {right:?}",
                    file!(),
                    line!(),
                    stringify!($left)
                )));
            }
        }
    };
}

/// Fails the behaviour unless this holds.
#[macro_export]
macro_rules! holds {
    ($what:expr) => {
        holds!($what, "")
    };
    ($what:expr, $about:expr) => {
        if !$what {
            let (what, about) = (stringify!($what), &$about);
            return Err($crate::Wrong(format!(
                "{}:{}: not {what}: {about:?}",
                file!(),
                line!()
            )));
        }
    };
}
