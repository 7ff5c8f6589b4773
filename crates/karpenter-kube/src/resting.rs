//! NodePools whose machines cannot be had are left alone for a while: they would keep others from being looked at, and ask the
//! provider for the same in vain as fast as it answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::controller::Backoff;

/// The pools that rest: at most as long as the back-off says. Half of that is certain, the other half differs from pool to
/// pool, so that pools that failed together do not try again together.
#[derive(Debug)]
pub(crate) struct Resting {
    backoff: Backoff,
    pools: BTreeMap<String, (u32, Instant)>,
}

impl Resting {
    /// No pool rests yet.
    pub(crate) fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            pools: BTreeMap::new(),
        }
    }

    /// Something failed in this pool; `until` says when a duration from now will have passed.
    pub(crate) fn failed(&mut self, pool: &str, until: impl Fn(Duration) -> Instant) {
        let failures = self.pools.get(pool).map_or(0, |(failures, _)| *failures) + 1;
        let entry = (failures, until(self.backoff.of(pool, failures)));
        self.pools.insert(pool.to_owned(), entry);
    }

    /// Something succeeded in this pool.
    pub(crate) fn succeeded(&mut self, pool: &str) {
        self.pools.remove(pool);
    }

    /// Until when this pool rests, or rested last.
    pub(crate) fn until(&self, pool: &str) -> Option<Instant> {
        self.pools.get(pool).map(|(_, until)| *until)
    }

    /// The pools that rest now.
    pub(crate) fn now(&self, now: Instant) -> BTreeSet<String> {
        let resting = self.pools.iter().filter(|(_, (_, until))| now < *until);
        resting.map(|(pool, _)| pool.clone()).collect()
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
    async fn a_failing_pool_rests_longer_each_time_and_alone() {
        let mut resting = Resting::new(BACKOFF);
        let start = Instant::now();
        let after = |passed: u64| start + Duration::from_secs(passed);
        let from = |duration: Duration| start + duration;
        resting.failed("a", from);
        assert!(resting.now(after(29)).contains("a") && !resting.now(after(29)).contains("b"));
        assert!(resting.now(after(60)).is_empty());
        resting.failed("a", from);
        assert!(resting.now(after(59)).contains("a") && resting.now(after(120)).is_empty());
        for _ in 0..40 {
            resting.failed("a", from);
        }
        assert!(resting.now(after(299)).contains("a") && resting.now(after(600)).is_empty());
        resting.succeeded("a");
        assert!(resting.now(after(1)).is_empty());
    }

    #[test]
    fn pools_that_failed_together_do_not_try_again_together() {
        let rests: Vec<Duration> = (0..100)
            .map(|n| BACKOFF.of(&format!("pool-{n}"), 1))
            .collect();
        let half = Duration::from_secs(30);
        assert!(rests.iter().all(|rest| (half..=2 * half).contains(rest)));
        let early = rests
            .iter()
            .filter(|rest| **rest < half.mul_f64(1.5))
            .count();
        assert!(
            (25..=75).contains(&early),
            "{early} of 100 in the first half"
        );
    }
}
