//! Clock of the stand-in: follows tokio's timer (real, accelerated, or paused).

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The time source of the stand-in.
#[derive(Debug, Clone)]
pub struct Clock {
    epoch: Timestamp,
    started: Instant,
    speed: f64,
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
        Self {
            epoch,
            started: Instant::now(),
            speed,
        }
    }

    /// Creates a clock that shows the wall clock's time.
    #[must_use]
    pub fn real() -> Self {
        Self::new(Timestamp::now(), 1.0)
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let passed = self.started.elapsed().as_secs_f64() * self.speed;
        later(
            self.epoch,
            Duration::try_from_secs_f64(passed).unwrap_or(Duration::MAX),
        )
    }

    /// Waits until `duration` has passed on this clock.
    pub async fn sleep(&self, duration: Duration) {
        let real = duration.as_secs_f64() / self.speed;
        tokio::time::sleep(Duration::try_from_secs_f64(real).unwrap_or(Duration::MAX)).await;
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
