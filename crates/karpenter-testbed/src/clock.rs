//! The time of the control plane: the wall clock, a faster clock, or tokio's virtual time.
//!
//! Every timestamp the testbed writes and every delay it waits for goes through a [`Clock`]. The clock is anchored at an
//! epoch and follows tokio's timer, so `tokio::time::pause` makes the whole control plane virtual, and a speed-up
//! factor makes a minute of cluster time pass in a second of real time.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The control plane's time source. Cheap to clone; clones share the time.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    epoch: Timestamp,
    started: Instant,
    speed: f64,
}

impl Clock {
    /// Returns a clock that shows `epoch` now and then follows tokio's timer, `speed` times as fast.
    ///
    /// A `speed` that is not a positive finite number counts as 1.
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

    /// Returns the wall clock (virtual when tokio's time is paused).
    #[must_use]
    pub fn real() -> Self {
        Self::new(Timestamp::now(), 1.0)
    }

    /// Returns the cluster's current time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let passed = self.started.elapsed().as_secs_f64() * self.speed;
        SignedDuration::try_from_secs_f64(passed)
            .ok()
            .and_then(|d| self.epoch.checked_add(d).ok())
            .unwrap_or(Timestamp::MAX)
    }

    /// Waits until `duration` of cluster time has passed.
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(self.real_duration(duration)).await;
    }

    /// Returns the duration on tokio's timer of `duration` of cluster time.
    #[must_use]
    pub fn real_duration(&self, duration: Duration) -> Duration {
        Duration::try_from_secs_f64(duration.as_secs_f64() / self.speed).unwrap_or(Duration::MAX)
    }

    /// Returns the speed of the cluster's time relative to tokio's timer.
    #[must_use]
    pub fn speed(&self) -> f64 {
        self.speed
    }
}
