//! Claims that are left alone for a while.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::time::Instant;

/// Until when claims rest, by uid. What is over is forgotten now and then.
#[derive(Debug, Default)]
pub(super) struct Rests {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    until: FxHashMap<String, Instant>,
    /// How many there were after the last clearing.
    kept: usize,
}

impl Rests {
    /// How long the claim rests yet; nothing if it does not.
    pub(super) fn left(&self, uid: &str) -> Option<Duration> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let left = state
            .until
            .get(uid)?
            .checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }

    /// Lets the claim rest.
    pub(super) fn rest(&self, uid: &str, until: Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Clearing looks at all of them: not each time, or many claims would cost their number squared.
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
    async fn a_claim_rests_until_its_time_and_is_then_forgotten() {
        let rests = Rests::default();
        let second = Duration::from_secs(1);
        for round in 0..10 {
            for n in 0..100 {
                rests.rest(&format!("{round}-{n}"), Instant::now() + second);
            }
            assert_eq!(rests.left(&format!("{round}-99")), Some(second));
            tokio::time::advance(second).await;
            assert_eq!(rests.left(&format!("{round}-99")), None);
        }
        let known = rests.state.lock().unwrap().until.len();
        assert!(known <= 300, "{known} claims are remembered");
    }
}
