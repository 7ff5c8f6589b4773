//! Collects triggers into batches: a batch closes when no new trigger has arrived for the idle time, or at the maximum.
//!
//! A trigger is never lost: one that arrives while a batch is processed opens the next.
//!
//! UPSTREAM: pkg/controllers/provisioning/batcher.go

use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock::Clock;

/// Collects the uids of objects that need a plan.
#[derive(Debug, Default)]
pub struct Batcher {
    waiting: Mutex<FxHashSet<String>>,
    added: Notify,
}

impl Batcher {
    /// Requests a plan for an object by its uid. The same uid again within a batch changes nothing.
    pub fn trigger(&self, uid: &str) {
        if self.waiting.lock().insert(uid.to_owned()) {
            self.added.notify_one();
        }
    }

    fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }

    /// Waits for a batch to open and to close.
    pub async fn batch(&self, clock: &Clock, idle: Duration, max: Duration) {
        while self.is_empty() {
            self.added.notified().await;
        }
        let close = clock.instant_after(max);
        let mut quiet = clock.instant_after(idle);
        while Instant::now() < quiet.min(close) {
            tokio::select! {
                biased;
                // The first trigger may have left a permit; the window starts when the batch opened all the same.
                () = self.added.notified() => quiet = clock.instant_after(idle),
                () = tokio::time::sleep_until(quiet.min(close)) => break,
            }
        }
        self.waiting.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;

    const IDLE: Duration = Duration::from_secs(5);
    const MAX: Duration = Duration::from_secs(12);

    /// Triggers at the given seconds; returns after how many seconds the first batch closes.
    async fn closes_after(triggers: &[(u64, &'static str)]) -> f64 {
        let (clock, batcher, start) = (
            Clock::new(Timestamp::UNIX_EPOCH, 1.0),
            Arc::new(Batcher::default()),
            Instant::now(),
        );
        let triggers = triggers.to_vec();
        let triggering = Arc::clone(&batcher);
        let task = tokio::spawn(async move {
            for (at, uid) in triggers {
                tokio::time::sleep_until(start + Duration::from_secs(at)).await;
                triggering.trigger(uid);
            }
        });
        batcher.batch(&clock, IDLE, MAX).await;
        task.abort();
        start.elapsed().as_secs_f64()
    }

    /// Conformance: SCH-001
    #[tokio::test(start_paused = true)]
    async fn a_single_trigger_closes_after_the_idle_time() {
        assert!((closes_after(&[(0, "a")]).await - 5.0).abs() < 0.01);
    }

    /// Conformance: SCH-002
    #[tokio::test(start_paused = true)]
    async fn the_same_uid_does_not_extend_the_batch() {
        assert!((closes_after(&[(0, "a"), (3, "a")]).await - 5.0).abs() < 0.01);
    }

    /// Conformance: SCH-003
    #[tokio::test(start_paused = true)]
    async fn a_new_uid_extends_the_batch_up_to_the_maximum() {
        assert!((closes_after(&[(0, "a"), (3, "b")]).await - 8.0).abs() < 0.01);
        let every_three = [(0, "a"), (3, "b"), (6, "c"), (9, "d"), (12, "e"), (15, "f")];
        assert!((closes_after(&every_three).await - 12.0).abs() < 0.01);
    }

    /// Conformance: SCH-180
    #[tokio::test(start_paused = true)]
    async fn a_trigger_while_a_batch_is_processed_opens_the_next() {
        let (clock, batcher) = (Clock::new(Timestamp::UNIX_EPOCH, 1.0), Batcher::default());
        batcher.trigger("a");
        batcher.batch(&clock, IDLE, MAX).await;
        batcher.trigger("a");
        batcher.batch(&clock, IDLE, MAX).await;
        assert!(batcher.is_empty());
    }
}
