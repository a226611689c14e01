//! The timer of a kernel's calls, kept from one to the next: each new one wakes the runtime by two
//! system calls, and one that goes off later than it would have costs none.

use std::pin::Pin;
use std::time::Instant;
use tokio::time::Sleep;

#[derive(Default)]
pub(super) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Waits until then; without a time for ever.
    pub(super) async fn at(&mut self, time: Option<Instant>) {
        let Some(time) = time else {
            return std::future::pending().await;
        };
        let sleep = self
            .0
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(time.into())));
        sleep.as_mut().reset(time.into());
        sleep.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn it_goes_off_when_it_was_set_last() {
        let mut alarm = Alarm::default();
        let (soon, late) = (Duration::from_millis(20), Duration::from_secs(3600));
        for time in [None, Some(Instant::now() + late)] {
            let waited = tokio::time::timeout(soon, alarm.at(time)).await;
            assert!(waited.is_err());
        }
        // Earlier, later, and after it has gone off.
        for _ in 0..2 {
            let time = Instant::now() + soon;
            alarm.at(Some(time)).await;
            assert!(Instant::now() >= time);
        }
    }
}
