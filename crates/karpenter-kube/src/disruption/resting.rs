//! NodePools whose replacements fail are left alone by drift for a while, so that they do not keep others from it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

const FIRST: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(600);

/// The pools that rest: one minute after the first failure, twice as long after each further one, ten minutes at most.
#[derive(Debug, Default)]
pub(super) struct Resting {
    pools: BTreeMap<String, (u32, Instant)>,
}

/// How long a pool rests after this many failures in a row.
fn rest(failures: u32) -> Duration {
    let doubled = 2u32.saturating_pow(failures.saturating_sub(1).min(16));
    FIRST.saturating_mul(doubled).min(LONGEST)
}

impl Resting {
    /// A command failed in this pool; `until` says when a duration from now will have passed.
    pub(super) fn failed(&mut self, pool: &str, until: impl Fn(Duration) -> Instant) {
        let failures = self.pools.get(pool).map_or(0, |(failures, _)| *failures) + 1;
        let entry = (failures, until(rest(failures)));
        self.pools.insert(pool.to_owned(), entry);
    }

    /// A command succeeded in this pool.
    pub(super) fn succeeded(&mut self, pool: &str) {
        self.pools.remove(pool);
    }

    /// The pools that rest now.
    pub(super) fn now(&self, now: Instant) -> BTreeSet<String> {
        let resting = self.pools.iter().filter(|(_, (_, until))| now < *until);
        resting.map(|(pool, _)| pool.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failing_pool_rests_longer_each_time_and_alone() {
        let mut resting = Resting::default();
        let start = Instant::now();
        let after = |passed: u64| start + Duration::from_secs(passed);
        let from = |duration: Duration| start + duration;
        resting.failed("a", from);
        assert!(resting.now(after(59)).contains("a") && !resting.now(after(59)).contains("b"));
        assert!(resting.now(after(60)).is_empty());
        resting.failed("a", from);
        assert!(resting.now(after(119)).contains("a") && resting.now(after(120)).is_empty());
        for _ in 0..40 {
            resting.failed("a", from);
        }
        assert!(resting.now(after(599)).contains("a") && resting.now(after(600)).is_empty());
        resting.succeeded("a");
        assert!(resting.now(after(1)).is_empty());
    }
}
