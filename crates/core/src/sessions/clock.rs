//! How old something is, also when somebody sets the clock.

use serde::{Deserialize, Serialize};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment on two clocks: the one that people read, and the one of this boot, which never jumps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Seconds since the epoch.
    pub wall: f64,
    /// Which boot, and its seconds.
    boot: Option<(String, f64)>,
}

impl Moment {
    pub fn now() -> Self {
        Self {
            wall: wall(),
            boot: boot_id().map(|id| (id.to_owned(), since_boot())),
        }
    }

    /// The time from then to now. After another boot only the wall clock is left to tell.
    pub fn age(&self) -> Duration {
        let seconds = match &self.boot {
            Some((id, then)) if Some(id.as_str()) == boot_id() => since_boot() - then,
            _ => wall() - self.wall,
        };
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }
}

/// Seconds since the epoch.
pub(super) fn wall() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

fn since_boot() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn boot_id() -> Option<&'static str> {
    static BOOT: OnceLock<Option<String>> = OnceLock::new();
    let read = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    BOOT.get_or_init(|| read().map(|id| id.trim().to_owned()))
        .as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_ages_nobody() {
        let mut moment = Moment::now();
        // As if the clock had been set forward by a day since.
        moment.wall -= 86_400.0;
        assert!(moment.age() < Duration::from_secs(60));
        // Of another boot nothing but the wall clock is known.
        moment.boot = Some(("another".to_owned(), 0.0));
        assert!(moment.age() >= Duration::from_secs(86_400));
        // And a clock that was set back makes nobody younger than new.
        moment.wall += 2.0 * 86_400.0;
        assert_eq!(moment.age(), Duration::ZERO);
    }
}
