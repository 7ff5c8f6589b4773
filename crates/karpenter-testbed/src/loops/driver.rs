//! Runs a loop: changes become keys, keys are reconciled, a key never concurrently, failures back off.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::cache::{Cache, Change, Key};
use crate::clock::Clock;

/// The context of every loop.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    pub(crate) cache: Arc<Cache>,
    pub(crate) names: Arc<Names>,
}

impl Context {
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }
}

/// Name suffixes, reproducible from a seed.
#[derive(Debug)]
pub(crate) struct Names {
    rng: Mutex<StdRng>,
}

impl Names {
    /// Returns names that are derived from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
        }
    }

    /// Returns five characters, as the API server appends to `generateName`.
    pub(crate) fn suffix(&self) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut rng = self.rng.lock();
        (0..5)
            .map(|_| char::from(ALPHABET[rng.random_range(0..ALPHABET.len())]))
            .collect()
    }
}

/// The result of a reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// No requeue until a change.
    Wait,
    /// Requeue after this much cluster time.
    After(Duration),
}

impl Next {
    /// Requeues at this time, if there is one.
    pub(crate) fn at(now: Timestamp, at: Option<Timestamp>) -> Self {
        let pause = |at| until(now, at).max(Duration::from_millis(1));
        at.map_or(Self::Wait, |at| Self::After(pause(at)))
    }
}

pub(crate) trait Controller: Send + Sync + 'static {
    /// Its name in logs.
    const NAME: &'static str;

    /// Returns the keys that a change affects.
    fn keys(&self, change: &Change, keys: &mut Vec<Key>);

    /// Reconciles the object of this key.
    fn reconcile(&self, key: &Key) -> impl Future<Output = Result<Next, kube::Error>> + Send;
}

const CONCURRENCY: usize = 64;
const BATCH: usize = 4096;

/// Keys that are due now or later. A key is queued once; the earlier time applies.
#[derive(Debug, Default)]
struct Queue {
    ready: VecDeque<Key>,
    queued: FxHashSet<Key>,
    later: BinaryHeap<Reverse<(Timestamp, Key)>>,
    due: FxHashMap<Key, Timestamp>,
    running: FxHashSet<Key>,
    again: FxHashSet<Key>,
    failures: FxHashMap<Key, u32>,
}

impl Queue {
    fn add(&mut self, key: Key) {
        if self.running.contains(&key) {
            self.again.insert(key);
        } else if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn add_at(&mut self, key: Key, at: Timestamp) {
        if self.due.get(&key).is_none_or(|known| *known > at) {
            self.due.insert(key.clone(), at);
            self.later.push(Reverse((at, key)));
        }
    }

    fn promote(&mut self, now: Timestamp) {
        while let Some(Reverse((at, _))) = self.later.peek() {
            if *at > now {
                break;
            }
            if let Some(Reverse((at, key))) = self.later.pop()
                && self.due.get(&key) == Some(&at)
            {
                self.due.remove(&key);
                self.add(key);
            }
        }
    }

    fn next_due(&self) -> Option<Timestamp> {
        self.later.peek().map(|Reverse((at, _))| *at)
    }

    fn take(&mut self) -> Option<Key> {
        let key = self.ready.pop_front()?;
        self.queued.remove(&key);
        self.running.insert(key.clone());
        Some(key)
    }

    fn done(&mut self, key: Key, result: Result<Next, kube::Error>, now: Timestamp, name: &str) {
        self.running.remove(&key);
        let pause = match result {
            Ok(next) => {
                self.failures.remove(&key);
                match next {
                    Next::Wait => None,
                    Next::After(pause) => Some(pause),
                }
            }
            Err(error) => {
                let failures = self.failures.entry(key.clone()).or_default();
                let pause = Duration::from_millis(5u64 << (*failures).min(12));
                *failures += 1;
                tracing::debug!(controller = name, key = ?key, %error, "reconcile failed");
                Some(pause)
            }
        };
        if let Some(pause) = pause {
            self.add_at(key.clone(), after(now, pause));
        }
        if self.again.remove(&key) {
            self.add(key);
        }
    }
}

pub(crate) fn after(now: Timestamp, pause: Duration) -> Timestamp {
    SignedDuration::try_from(pause)
        .ok()
        .and_then(|d| now.checked_add(d).ok())
        .unwrap_or(Timestamp::MAX)
}

/// Returns the time until `at`.
pub(crate) fn until(now: Timestamp, at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default()
}

/// Runs a loop until canceled.
pub(crate) async fn run<C: Controller>(
    controller: Arc<C>,
    context: Context,
    mut changes: mpsc::UnboundedReceiver<Change>,
    token: CancellationToken,
) {
    // With an incomplete list a loop would, for example, create pods that exist already.
    tokio::select! {
        biased;
        () = token.cancelled() => return,
        () = context.cache.synced() => {}
    }
    let clock = context.clock;
    let mut queue = Queue::default();
    let mut running = FuturesUnordered::new();
    let mut batch = Vec::new();
    let mut keys = Vec::new();
    loop {
        queue.promote(clock.now());
        while running.len() < CONCURRENCY
            && let Some(key) = queue.take()
        {
            let controller = controller.clone();
            running.push(async move {
                let result = controller.reconcile(&key).await;
                (key, result)
            });
        }
        let due = queue.next_due();
        let wait = due.map(|at| until(clock.now(), at)).unwrap_or_default();
        tokio::select! {
            biased;
            () = token.cancelled() => return,
            count = changes.recv_many(&mut batch, BATCH) => {
                if count == 0 {
                    return;
                }
                for change in batch.drain(..) {
                    controller.keys(&change, &mut keys);
                    keys.drain(..).for_each(|key| queue.add(key));
                }
            }
            Some((key, result)) = running.next(), if !running.is_empty() => {
                queue.done(key, result, clock.now(), C::NAME);
            }
            () = clock.sleep(wait), if due.is_some() => {}
        }
    }
}
