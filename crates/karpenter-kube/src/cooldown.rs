//! Cool-down of NodePools whose nodes cannot be launched: otherwise they would delay other NodePools, and repeat a failing
//! request as fast as the provider answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::controller::Backoff;

/// The NodePools in cool-down, for at most as long as the back-off says. Half of it is fixed, the other half differs by
/// NodePool, so that NodePools that failed together are not retried together.
#[derive(Debug)]
pub(crate) struct PoolCooldowns {
    backoff: Backoff,
    pools: BTreeMap<String, (u32, Instant)>,
}

impl PoolCooldowns {
    /// Creates the cool-downs; no NodePool is in cool-down yet.
    pub(crate) fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            pools: BTreeMap::new(),
        }
    }

    /// Records a failure in this NodePool; `until` returns the instant a duration from now.
    pub(crate) fn failed(&mut self, pool: &str, until: impl Fn(Duration) -> Instant) {
        let failures = self.pools.get(pool).map_or(0, |(failures, _)| *failures) + 1;
        let entry = (failures, until(self.backoff.of(pool, failures)));
        self.pools.insert(pool.to_owned(), entry);
    }

    /// Records a success in this NodePool.
    pub(crate) fn succeeded(&mut self, pool: &str) {
        self.pools.remove(pool);
    }

    /// Returns when the current or last cool-down of this NodePool ends.
    pub(crate) fn until(&self, pool: &str) -> Option<Instant> {
        self.pools.get(pool).map(|(_, until)| *until)
    }

    /// Returns the NodePools in cool-down.
    pub(crate) fn active(&self, now: Instant) -> BTreeSet<String> {
        let cooldowns = self.pools.iter().filter(|(_, (_, until))| now < *until);
        cooldowns.map(|(pool, _)| pool.clone()).collect()
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
    async fn the_cool_down_of_a_failing_pool_grows_each_time_and_concerns_no_other_pool() {
        let mut cooldowns = PoolCooldowns::new(BACKOFF);
        let start = Instant::now();
        let after = |passed: u64| start + Duration::from_secs(passed);
        let from = |duration: Duration| start + duration;
        cooldowns.failed("a", from);
        assert!(
            cooldowns.active(after(29)).contains("a") && !cooldowns.active(after(29)).contains("b")
        );
        assert!(cooldowns.active(after(60)).is_empty());
        cooldowns.failed("a", from);
        assert!(
            cooldowns.active(after(59)).contains("a") && cooldowns.active(after(120)).is_empty()
        );
        for _ in 0..40 {
            cooldowns.failed("a", from);
        }
        assert!(
            cooldowns.active(after(299)).contains("a") && cooldowns.active(after(600)).is_empty()
        );
        cooldowns.succeeded("a");
        assert!(cooldowns.active(after(1)).is_empty());
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
