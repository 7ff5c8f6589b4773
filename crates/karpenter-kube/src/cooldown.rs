//! Cool-downs of NodeClaims that were just checked: a failing request is not repeated as fast as the provider answers.

use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

/// The ends of cool-downs, by the name or uid of an object.
#[derive(Debug, Default)]
pub(crate) struct Cooldowns(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    ends: FxHashMap<String, Instant>,
    /// Number of entries after the last cleanup.
    kept: usize,
}

impl Cooldowns {
    /// Starts the object's cool-down, or replaces the end of the current one.
    pub(crate) fn start(&self, object: &str, until: Instant) {
        let state = &mut *self.0.lock();
        // A cleanup visits all entries: not each time, or many NodeClaims would cost their number squared.
        if state.ends.len() >= 2 * state.kept + 64 {
            let now = Instant::now();
            state.ends.retain(|_, until| *until > now);
            state.kept = state.ends.len();
        }
        state.ends.insert(object.to_owned(), until);
    }

    /// Returns how long the object's cool-down lasts; `None` if it is in none.
    pub(crate) fn remaining(&self, object: &str) -> Option<Duration> {
        let until = *self.0.lock().ends.get(object)?;
        let remaining = until.checked_duration_since(Instant::now())?;
        (!remaining.is_zero()).then_some(remaining)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cool_down_ends_in_time_and_is_then_removed() {
        let cooldowns = Cooldowns::default();
        let second = Duration::from_secs(1);
        for round in 0..10 {
            for n in 0..100 {
                cooldowns.start(&format!("{round}-{n}"), Instant::now() + second);
            }
            assert_eq!(cooldowns.remaining(&format!("{round}-99")), Some(second));
            tokio::time::advance(second).await;
            assert_eq!(cooldowns.remaining(&format!("{round}-99")), None);
        }
        let known = cooldowns.0.lock().ends.len();
        assert!(known <= 300, "{known} entries are kept");
    }
}
