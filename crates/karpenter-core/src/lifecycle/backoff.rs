//! Exponential back-off with jitter.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use rustc_hash::FxHasher;

/// Limits of the exponential back-off of a failing key: `base` doubled with each failure, up to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Delay after the first failure.
    pub base: Duration,
    /// Longest delay.
    pub max: Duration,
}

impl Backoff {
    /// controller-runtime's default: 5 ms up to 1000 s.
    pub const DEFAULT: Self = Self {
        base: Duration::from_millis(5),
        max: Duration::from_secs(1000),
    };

    /// Returns the delay after this many consecutive failures.
    #[must_use]
    pub fn after(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.base.saturating_mul(1 << doublings).min(self.max)
    }

    /// Returns the delay of one key with jitter: half of [`Self::after`] is fixed, the other half differs by key and by
    /// failure, so that keys that failed together are not retried together. It is deterministic, so that simulations
    /// repeat.
    pub fn of(&self, key: &(impl Hash + ?Sized), failures: u32) -> Duration {
        let mut hasher = FxHasher::default();
        key.hash(&mut hasher);
        failures.hash(&mut hasher);
        // The upper bits are well mixed.
        let share = (hasher.finish() >> 32) as f64 / f64::from(u32::MAX);
        self.after(failures).mul_f64(0.5 + share / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff {
        base: Duration::from_secs(60),
        max: Duration::from_secs(600),
    };

    #[test]
    fn the_delay_of_a_failing_key_grows_up_to_a_limit() {
        let delay = |failures| BACKOFF.of("a", failures).as_secs();
        assert!((30..=60).contains(&delay(1)));
        assert!((60..=120).contains(&delay(2)));
        assert!((3..40).all(|failures| delay(failures) <= 600));
        assert!(delay(40) >= 300);
    }

    #[test]
    fn keys_that_failed_together_are_not_retried_together() {
        let delays: Vec<Duration> = (0..100)
            .map(|n| BACKOFF.of(&format!("pool-{n}"), 1))
            .collect();
        let half = Duration::from_secs(30);
        assert!(delays.iter().all(|delay| (half..=2 * half).contains(delay)));
        let early = delays
            .iter()
            .filter(|delay| **delay < half.mul_f64(1.5))
            .count();
        assert!(
            (25..=75).contains(&early),
            "{early} of 100 in the first half"
        );
    }
}
