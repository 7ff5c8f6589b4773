//! Clock of the stand-in: follows tokio's timer (real, accelerated, or paused), or is advanced by the test.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::time::Instant;

/// The time source of the stand-in. Cheap to clone; clones share the time.
///
/// ```
/// use karpenter_aws_fake::Clock;
/// use std::time::Duration;
///
/// let clock = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
/// clock.advance(Duration::from_secs(90));
/// assert_eq!(clock.now().to_string(), "2026-01-01T00:01:30Z");
/// ```
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    Timer {
        epoch: Timestamp,
        started: Instant,
        speed: f64,
    },
    Manual(Arc<watch::Sender<Timestamp>>),
}

impl Clock {
    /// Creates a clock that shows `epoch` now and follows tokio's timer, `speed` times as fast.
    ///
    /// A `speed` that is not a positive finite number counts as 1. With tokio's time paused, the clock is virtual.
    #[must_use]
    pub fn new(epoch: Timestamp, speed: f64) -> Self {
        let speed = if speed.is_finite() && speed > 0.0 {
            speed
        } else {
            1.0
        };
        Self(Source::Timer {
            epoch,
            started: Instant::now(),
            speed,
        })
    }

    /// Creates a clock that shows the wall clock's time.
    #[must_use]
    pub fn real() -> Self {
        Self::new(Timestamp::now(), 1.0)
    }

    /// Creates a clock that stays at `epoch` until [`Clock::advance`] moves it.
    #[must_use]
    pub fn manual(epoch: Timestamp) -> Self {
        Self(Source::Manual(Arc::new(watch::Sender::new(epoch))))
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::Timer {
                epoch,
                started,
                speed,
            } => later(
                *epoch,
                Duration::try_from_secs_f64(started.elapsed().as_secs_f64() * speed)
                    .unwrap_or(Duration::MAX),
            ),
            Source::Manual(now) => *now.borrow(),
        }
    }

    /// Advances a manual clock and wakes its sleepers; has no effect on a clock that follows the timer.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(now) = &self.0 {
            now.send_modify(|t| *t = later(*t, by));
        }
    }

    /// Waits until `duration` has passed on this clock.
    pub async fn sleep(&self, duration: Duration) {
        match &self.0 {
            Source::Timer { speed, .. } => {
                let real = Duration::try_from_secs_f64(duration.as_secs_f64() / speed)
                    .unwrap_or(Duration::MAX);
                tokio::time::sleep(real).await;
            }
            Source::Manual(now) => {
                let mut now = now.subscribe();
                let until = later(*now.borrow_and_update(), duration);
                // The sender lives as long as the clock, so waiting ends only at the deadline.
                let _reached = now.wait_for(|t| *t >= until).await;
            }
        }
    }
}

/// Returns `at` plus `by`, at most the largest timestamp.
pub(crate) fn later(at: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by)
        .ok()
        .and_then(|by| at.checked_add(by).ok())
        .unwrap_or(Timestamp::MAX)
}

/// Formats `at` as EC2 does: UTC with milliseconds.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sleeper_on_a_manual_clock_wakes_when_the_clock_passes_its_deadline() {
        let clock = Clock::manual(Timestamp::UNIX_EPOCH);
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep(Duration::from_secs(10)).await }
        });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(9));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
    }

    #[test]
    fn timestamps_are_formatted_with_milliseconds() {
        let at = Timestamp::from_millisecond(1_700_000_000_042).unwrap();
        assert_eq!(rfc3339(at), "2023-11-14T22:13:20.042Z");
    }
}
