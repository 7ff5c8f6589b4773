//! Cool-down of checks of single NodeClaims.

use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

/// The ends of cool-downs, by uid of the NodeClaim. Expired ones are removed from time to time.
#[derive(Debug, Default)]
pub(super) struct ClaimCooldowns {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    until: FxHashMap<String, Instant>,
    /// Number of entries after the last cleanup.
    kept: usize,
}

impl ClaimCooldowns {
    /// Returns how long the cool-down of the NodeClaim lasts; `None` if there is none.
    pub(super) fn remaining(&self, uid: &str) -> Option<Duration> {
        let state = self.state.lock();
        let remaining = state
            .until
            .get(uid)?
            .checked_duration_since(Instant::now())?;
        (!remaining.is_zero()).then_some(remaining)
    }

    /// Starts the cool-down of the NodeClaim.
    pub(super) fn start(&self, uid: &str, until: Instant) {
        let mut state = self.state.lock();
        // A cleanup visits all entries: not each time, or many NodeClaims would cost their number squared.
        if state.until.len() >= 2 * state.kept + 64 {
            let now = Instant::now();
            state.until.retain(|_, until| *until > now);
            state.kept = state.until.len();
        }
        state.until.insert(uid.to_owned(), until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cool_down_ends_in_time_and_is_then_removed() {
        let cooldowns = ClaimCooldowns::default();
        let second = Duration::from_secs(1);
        for round in 0..10 {
            for n in 0..100 {
                cooldowns.start(&format!("{round}-{n}"), Instant::now() + second);
            }
            assert_eq!(cooldowns.remaining(&format!("{round}-99")), Some(second));
            tokio::time::advance(second).await;
            assert_eq!(cooldowns.remaining(&format!("{round}-99")), None);
        }
        let known = cooldowns.state.lock().until.len();
        assert!(known <= 300, "{known} entries are kept");
    }
}
