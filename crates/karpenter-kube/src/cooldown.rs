//! Cool-downs of NodePools whose nodes cannot be launched, and of NodeClaims that were just checked: otherwise a NodePool would
//! delay others, and repeat a failing request as fast as the provider answers.

use std::time::Duration;

use karpenter_core::lifecycle::backoff::Backoff;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

/// The ends of cool-downs, by the name or uid of an object.
#[derive(Debug, Default)]
pub(crate) struct Cooldowns(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    objects: FxHashMap<String, Cooldown>,
    /// Number of entries after the last cleanup.
    kept: usize,
}

#[derive(Debug)]
struct Cooldown {
    /// Consecutive failures; 0 for a cool-down of a fixed duration.
    failures: u32,
    until: Instant,
}

impl Cooldowns {
    /// Starts the object's cool-down, or replaces the end of the current one.
    pub(crate) fn start(&self, object: &str, until: Instant) {
        let state = &mut *self.0.lock();
        // A cleanup visits all entries: not each time, or many NodeClaims would cost their number squared.
        if state.objects.len() >= 2 * state.kept + 64 {
            let now = Instant::now();
            let objects = &mut state.objects;
            objects.retain(|_, known| known.failures > 0 || known.until > now);
            state.kept = objects.len();
        }
        let cooldown = Cooldown { failures: 0, until };
        state.objects.insert(object.to_owned(), cooldown);
    }

    /// Records a failure of the object: its cool-down lasts for at most the back-off, longer after each failure.
    /// Half of it is fixed, the other half differs by object, so that NodePools that failed together are not retried together.
    /// `until` returns the instant a duration from now.
    pub(crate) fn failed(
        &self,
        object: &str,
        backoff: Backoff,
        until: impl FnOnce(Duration) -> Instant,
    ) {
        let objects = &mut self.0.lock().objects;
        let failures = objects.get(object).map_or(0, |known| known.failures) + 1;
        let until = until(backoff.of(object, failures));
        objects.insert(object.to_owned(), Cooldown { failures, until });
    }

    /// Records a success of the object: its cool-down ends.
    pub(crate) fn succeeded(&self, object: &str) {
        self.0.lock().objects.remove(object);
    }

    /// Returns when the object's current or last cool-down ends.
    pub(crate) fn until(&self, object: &str) -> Option<Instant> {
        self.0.lock().objects.get(object).map(|known| known.until)
    }

    /// Returns how long the object's cool-down lasts; `None` if it is in none.
    pub(crate) fn remaining(&self, object: &str) -> Option<Duration> {
        let remaining = self.until(object)?.checked_duration_since(Instant::now())?;
        (!remaining.is_zero()).then_some(remaining)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff {
        base: Duration::from_secs(60),
        max: Duration::from_secs(600),
    };

    #[tokio::test(start_paused = true)]
    async fn the_cool_down_of_a_failing_pool_grows_and_concerns_no_other_pool() {
        let (cooldowns, start) = (Cooldowns::default(), Instant::now());
        let fail = || {
            cooldowns.failed("a", BACKOFF, |duration| start + duration);
            let until = cooldowns.until("a").map(|until| until - start);
            until.map_or(0, |until| until.as_secs())
        };
        assert!((30..=60).contains(&fail()));
        assert!((60..=120).contains(&fail()));
        assert!((0..40).all(|_| fail() <= 600));
        assert!(fail() >= 300);
        assert_eq!(cooldowns.until("b"), None);
        cooldowns.succeeded("a");
        assert_eq!(cooldowns.until("a"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cool_down_ends_in_time_and_is_then_removed() {
        let cooldowns = Cooldowns::default();
        let second = Duration::from_secs(1);
        cooldowns.failed("failing", BACKOFF, |_| Instant::now());
        for round in 0..10 {
            for n in 0..100 {
                cooldowns.start(&format!("{round}-{n}"), Instant::now() + second);
            }
            assert_eq!(cooldowns.remaining(&format!("{round}-99")), Some(second));
            tokio::time::advance(second).await;
            assert_eq!(cooldowns.remaining(&format!("{round}-99")), None);
        }
        let known = cooldowns.0.lock().objects.len();
        assert!(known <= 300, "{known} entries are kept");
        assert!(
            cooldowns.until("failing").is_some(),
            "failures are counted on"
        );
    }

    #[test]
    fn pools_that_failed_together_are_not_retried_together() {
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
