//! The work queue of a controller: each key is reconciled by one worker at a time, now or later.
//!
//! 1. A key is queued at most once; adding it again while it waits can make it due earlier, never later.
//! 2. A key is never handed out twice at a time. If it is added while it is being reconciled, it is requeued afterwards.
//! 3. Failures are counted per key and delay it exponentially; a success forgets them.
//! 4. A key that is done and not due again uses no memory, and a queue that had many keys frees its own.

mod key;

pub use key::ObjectKey;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The number of keys below which a queue keeps its memory.
const SMALL: usize = 16;

/// A keyed work queue. Clones share it.
#[derive(Debug)]
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

#[derive(Debug)]
struct Shared<K> {
    state: Mutex<State<K>>,
    wake: Notify,
}

#[derive(Debug)]
struct State<K> {
    entries: FxHashMap<K, Entry>,
    ready: VecDeque<K>,
    /// May hold outdated due times; the status of the entry decides.
    delayed: BinaryHeap<Reverse<(Instant, K)>>,
    adds: u64,
    retries: u64,
}

#[derive(Debug)]
struct Entry {
    status: Status,
    failures: u32,
    /// Since when the entry has its status.
    since: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Ready,
    Waiting(Instant),
    Running { again: Option<Instant> },
}

impl<K: Clone + Eq + Hash + Ord> Default for Queue<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Clone + Eq + Hash + Ord> Queue<K> {
    /// Creates an empty queue.
    #[must_use]
    pub fn new() -> Self {
        let state = State {
            entries: FxHashMap::default(),
            ready: VecDeque::new(),
            delayed: BinaryHeap::new(),
            adds: 0,
            retries: 0,
        };
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                wake: Notify::new(),
            }),
        }
    }

    /// Makes the key due now.
    pub fn add(&self, key: K) {
        self.add_at(key, None);
    }

    /// Makes the key due at `due` at the latest.
    pub fn add_later(&self, key: K, due: Instant) {
        self.add_at(key, Some(due));
    }

    fn add_at(&self, key: K, due: Option<Instant>) {
        self.shared.state.lock().add(key, due);
        self.shared.wake.notify_one();
    }

    /// Returns the next key that is due. It is returned to the queue by [`Queue::done`] or [`Queue::failed`].
    pub fn next(&self) -> Option<K> {
        self.next_waited().map(|(key, _)| key)
    }

    /// Returns the next key like [`Queue::next`], and how long it was due.
    pub fn next_waited(&self) -> Option<(K, Duration)> {
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        state.promote(now);
        let key = state.ready.pop_front()?;
        let mut waited = Duration::ZERO;
        if let Some(entry) = state.entries.get_mut(&key) {
            entry.status = Status::Running { again: None };
            waited = now.duration_since(entry.since);
            entry.since = now;
        }
        Some((key, waited))
    }

    /// Completes a key after success; it is due again at `due`, if given.
    pub fn done(&self, key: K, due: Option<Instant>) {
        let mut state = self.shared.state.lock();
        let again = state.finish(&key, true).0;
        match (again, due) {
            (Some(again), Some(due)) => state.add(key, Some(again.min(due))),
            (Some(due), None) | (None, Some(due)) => state.add(key, Some(due)),
            (None, None) => {}
        }
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Completes a key after a failure; it is due again after `delay` of its number of failures. Returns that number.
    pub fn failed(&self, key: K, delay: impl FnOnce(u32) -> Duration) -> u32 {
        let mut state = self.shared.state.lock();
        let (again, failures) = state.finish(&key, false);
        state.retries += 1;
        let due = Instant::now() + delay(failures);
        state.insert(key, again.map_or(due, |a| a.min(due)), failures);
        drop(state);
        self.shared.wake.notify_one();
        failures
    }

    /// Waits until a key may be due.
    pub async fn changed(&self) {
        let due = self.shared.state.lock().next_due();
        match due {
            Some(due) => tokio::select! {
                biased;
                () = self.shared.wake.notified() => {}
                () = tokio::time::sleep_until(due) => {}
            },
            None => self.shared.wake.notified().await,
        }
    }

    /// Returns the number of keys that are due, delayed or being reconciled.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.state.lock().entries.len()
    }

    /// Returns whether no key is due, delayed or being reconciled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Clone + Eq + Hash + Ord> State<K> {
    fn add(&mut self, key: K, due: Option<Instant>) {
        let now = Instant::now();
        let due = due.filter(|due| *due > now);
        match self.entries.get_mut(&key).map(|entry| &mut entry.status) {
            None => self.insert(key, due.unwrap_or(now), 0),
            Some(Status::Ready) => {}
            Some(Status::Running { again }) => {
                let due = due.unwrap_or(now);
                *again = Some(again.map_or(due, |a| a.min(due)));
            }
            Some(status @ Status::Waiting(_)) => match due {
                None => {
                    *status = Status::Ready;
                    self.due(key, now);
                }
                Some(due) => {
                    if let Status::Waiting(planned) = status
                        && due < *planned
                    {
                        *planned = due;
                        self.delayed.push(Reverse((due, key)));
                    }
                }
            },
        }
    }

    fn insert(&mut self, key: K, due: Instant, failures: u32) {
        let status = if due > Instant::now() {
            self.delayed.push(Reverse((due, key.clone())));
            Status::Waiting(due)
        } else {
            Status::Ready
        };
        let since = Instant::now();
        let entry = Entry {
            status,
            failures,
            since,
        };
        self.entries.insert(key.clone(), entry);
        if status == Status::Ready {
            self.due(key, since);
        }
    }

    /// Makes a key due.
    fn due(&mut self, key: K, now: Instant) {
        self.adds += 1;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.since = now;
        }
        self.ready.push_back(key);
    }

    /// Removes a running key; returns when it was requested again and its number of consecutive failures.
    fn finish(&mut self, key: &K, success: bool) -> (Option<Instant>, u32) {
        let removed = self.entries.remove(key);
        self.shrink();
        match removed {
            Some(Entry {
                status: Status::Running { again },
                failures,
                ..
            }) => (again, if success { 0 } else { failures + 1 }),
            _ => (None, u32::from(!success)),
        }
    }

    /// Frees memory once an eighth of it is used. Every object is a key of a dozen controllers at start, and of few afterwards.
    fn shrink(&mut self) {
        let keys = self.entries.len();
        if self.entries.capacity() / 8 > keys.max(SMALL) {
            self.entries.shrink_to(2 * keys);
            self.ready.shrink_to(2 * keys);
            self.delayed.shrink_to(2 * keys);
        }
    }

    fn promote(&mut self, now: Instant) {
        while let Some(Reverse((due, _))) = self.delayed.peek()
            && *due <= now
        {
            let Some(Reverse((due, key))) = self.delayed.pop() else {
                return;
            };
            if let Some(entry) = self.entries.get_mut(&key)
                && entry.status == Status::Waiting(due)
            {
                entry.status = Status::Ready;
                self.due(key, now);
            }
        }
    }

    fn next_due(&self) -> Option<Instant> {
        if self.ready.is_empty() {
            self.delayed.peek().map(|Reverse((due, _))| *due)
        } else {
            Some(Instant::now())
        }
    }
}

/// Statistics of a queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueueStats {
    /// Number of keys that are due.
    pub depth: usize,
    /// How often a key has become due.
    pub adds: u64,
    /// How often a key failed and was delayed.
    pub retries: u64,
    /// Sum of the durations of the running reconciliations.
    pub unfinished: Duration,
    /// Duration of the longest running reconciliation.
    pub longest: Duration,
}

/// A queue of keys of any type, for metrics.
pub trait WorkQueue: std::fmt::Debug + Send + Sync {
    /// Returns the current statistics.
    fn stats(&self) -> QueueStats;
}

impl<K: Clone + Eq + Hash + Ord + std::fmt::Debug + Send + Sync> WorkQueue for Queue<K> {
    fn stats(&self) -> QueueStats {
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        state.promote(now);
        let running = state
            .entries
            .values()
            .filter(|entry| matches!(entry.status, Status::Running { .. }))
            .map(|entry| now.duration_since(entry.since));
        let (unfinished, longest) = running.fold((Duration::ZERO, Duration::ZERO), |sum, took| {
            (sum.0 + took, sum.1.max(took))
        });
        QueueStats {
            depth: state.ready.len(),
            adds: state.adds,
            retries: state.retries,
            unfinished,
            longest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use karpenter_core::lifecycle::backoff::Backoff;

    const SECOND: Duration = Duration::from_secs(1);
    const BACKOFF: Backoff = Backoff {
        base: SECOND,
        max: Duration::from_secs(60),
    };

    #[tokio::test(start_paused = true)]
    async fn a_key_is_queued_once_and_never_handed_out_twice() {
        let queue = Queue::new();
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.next(), Some("a"));
        queue.add("a");
        assert_eq!(queue.next(), None);
        queue.done("a", None);
        assert_eq!(queue.next(), Some("a"));
        queue.done("a", None);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn memory_of_many_keys_is_freed_once_few_are_left() {
        let queue = Queue::new();
        for key in 0..10_000 {
            queue.add(key);
        }
        while let Some(key) = queue.next() {
            queue.done(key, None);
        }
        let state = queue.shared.state.lock();
        for capacity in [state.entries.capacity(), state.ready.capacity()] {
            assert!(capacity < 300, "{capacity}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn adding_can_make_a_waiting_key_due_earlier_never_later() {
        let queue = Queue::new();
        let start = Instant::now();
        queue.add_later("a", start + 10 * SECOND);
        queue.add_later("a", start + 20 * SECOND);
        queue.add_later("a", start + 5 * SECOND);
        assert_eq!(queue.next(), None);
        queue.changed().await;
        queue.changed().await;
        assert_eq!(start.elapsed(), 5 * SECOND);
        assert_eq!(queue.next(), Some("a"));
        queue.done("a", None);
        tokio::time::advance(30 * SECOND).await;
        assert_eq!(queue.next(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_delay_exponentially_until_a_success() {
        let queue = Queue::new();
        queue.add("a");
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(queue.next(), Some("a"));
            queue.failed("a", |n| BACKOFF.after(n));
            tokio::time::advance(expected * SECOND - Duration::from_millis(1)).await;
            assert_eq!(queue.next(), None, "{expected}");
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(queue.next(), Some("a"));
        queue.done("a", None);
        queue.add("a");
        assert_eq!(queue.next(), Some("a"));
        assert_eq!(queue.failed("a", |n| BACKOFF.after(n)), 1);
    }

    #[test]
    fn keys_that_failed_together_are_not_retried_together() {
        let mut waits: Vec<Duration> = (0..100).map(|key| BACKOFF.of(&key, 4)).collect();
        assert!(waits.iter().all(|w| (4 * SECOND..=8 * SECOND).contains(w)));
        waits.sort_unstable();
        let (first, last) = (waits[0], waits[99]);
        assert!(last - first > 3 * SECOND, "{first:?} to {last:?}");
        waits.dedup();
        assert!(waits.len() > 95, "{} different waits", waits.len());
        let of = || BACKOFF.of(&"a", 4);
        assert_eq!(of(), of(), "the jitter is deterministic");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_during_a_failing_reconciliation_is_due_at_once() {
        let queue = Queue::new();
        queue.add("a");
        assert_eq!(queue.next(), Some("a"));
        queue.add("a");
        assert_eq!(queue.failed("a", |_| 10 * SECOND), 1);
        assert_eq!(queue.next(), Some("a"));
        assert_eq!(queue.failed("a", |_| 10 * SECOND), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_reports_its_statistics() {
        let queue = Queue::new();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        tokio::time::advance(2 * SECOND).await;
        assert_eq!(queue.next_waited(), Some(("a", 2 * SECOND)));
        tokio::time::advance(3 * SECOND).await;
        assert_eq!(queue.next_waited(), Some(("b", 5 * SECOND)));
        tokio::time::advance(SECOND).await;
        let expected = QueueStats {
            depth: 0,
            adds: 2,
            retries: 0,
            unfinished: 5 * SECOND,
            longest: 4 * SECOND,
        };
        assert_eq!(queue.stats(), expected);
        queue.failed("a", |_| SECOND);
        queue.done("b", None);
        assert_eq!((queue.stats().adds, queue.stats().retries), (2, 1));
        tokio::time::advance(SECOND).await;
        assert_eq!((queue.stats().adds, queue.stats().depth), (3, 1));
    }
}
