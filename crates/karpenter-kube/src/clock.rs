//! The clock of the controllers: the wall clock, accelerated time for the playground, or tokio's virtual time in tests.
//!
//! Every timestamp that a controller writes, every deadline it compares and every delay it waits for goes through a
//! [`Clock`]. In production it is the wall clock, as the API server's timestamps are: it follows when the wall clock is
//! set, or when the host was suspended. Elsewhere it is anchored at an epoch and follows tokio's timer, so
//! `tokio::time::pause` makes all controllers virtual.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The controllers' time source. Cheap to clone; clones agree.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// None means the wall clock.
    anchor: Option<Anchor>,
    speed: f64,
}

/// The start of a clock on tokio's timer, and the time it showed then.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    epoch: Timestamp,
    started: Instant,
}

impl Clock {
    /// Creates a clock that shows `epoch` now and then follows tokio's timer, `speed` times as fast.
    ///
    /// A `speed` that is not a positive finite number counts as 1.
    #[must_use]
    pub fn new(epoch: Timestamp, speed: f64) -> Self {
        let speed = if speed.is_finite() && speed > 0.0 {
            speed
        } else {
            1.0
        };
        let started = Instant::now();
        Self {
            anchor: Some(Anchor { epoch, started }),
            speed,
        }
    }

    /// Creates the wall clock, read anew each time: it may jump, also backwards. It continues when tokio's time is paused.
    #[must_use]
    pub fn real() -> Self {
        Self {
            anchor: None,
            speed: 1.0,
        }
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let Some(Anchor { epoch, started }) = self.anchor else {
            return Timestamp::now();
        };
        let passed = started.elapsed().as_secs_f64() * self.speed;
        SignedDuration::try_from_secs_f64(passed)
            .ok()
            .and_then(|d| epoch.checked_add(d).ok())
            .unwrap_or(Timestamp::MAX)
    }

    /// Returns the time since `past`; zero if `past` is in the future.
    #[must_use]
    pub fn since(&self, past: Timestamp) -> Duration {
        self.now()
            .duration_since(past)
            .try_into()
            .unwrap_or(Duration::ZERO)
    }

    /// Waits until `duration` of the clock's time has passed.
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(self.real_duration(duration)).await;
    }

    /// Returns the instant on tokio's timer that is `duration` of the clock's time from now.
    #[must_use]
    pub fn instant_after(&self, duration: Duration) -> Instant {
        // Tokio cannot represent instants centuries ahead; a year is "never" for a timer.
        const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
        Instant::now() + self.real_duration(duration).min(FAR)
    }

    /// Returns how long `duration` of the clock's time takes on tokio's timer.
    #[must_use]
    pub fn real_duration(&self, duration: Duration) -> Duration {
        Duration::try_from_secs_f64(duration.as_secs_f64() / self.speed).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_follows_the_paused_timer_at_the_given_speed() {
        let epoch = Timestamp::UNIX_EPOCH;
        let clock = Clock::new(epoch, 60.0);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(clock.since(epoch).as_secs(), 60);
        clock.sleep(Duration::from_secs(60)).await;
        assert_eq!(clock.since(epoch).as_secs(), 120);
        let ahead = clock.instant_after(Duration::from_secs(90));
        assert_eq!(ahead - Instant::now(), Duration::from_millis(1500));
    }

    /// A timer that advances without the wall clock stands for a wall clock that was set, or for a host that was suspended.
    #[tokio::test(start_paused = true)]
    async fn the_real_clock_shows_the_wall_clock_whatever_the_timer_does() {
        let clock = Clock::real();
        tokio::time::advance(Duration::from_secs(86_400)).await;
        let ahead = clock.now().duration_since(Timestamp::now()).abs();
        assert!(ahead < SignedDuration::from_hours(1), "{ahead}");
        let soon = clock.instant_after(Duration::from_secs(5));
        assert_eq!(soon - Instant::now(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn an_endless_wait_is_representable() {
        let clock = Clock::real();
        assert!(clock.instant_after(Duration::MAX) > Instant::now());
        assert_eq!(clock.since(Timestamp::MAX), Duration::ZERO);
    }
}
