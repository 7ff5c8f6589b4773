//! Results that are valid for a short time.

use std::hash::Hash;
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::time::Instant;

/// The most entries of a cache.
pub(super) const ENTRIES: usize = 4096;

/// Results by key, each until its own time; at most [`ENTRIES`].
#[derive(Debug)]
pub(super) struct Cache<K, V> {
    entries: FxHashMap<K, (V, Instant)>,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self {
            entries: FxHashMap::default(),
        }
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    /// Returns a result that is still valid.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        let (value, until) = self.entries.get(key)?;
        (Instant::now() < *until).then(|| value.clone())
    }

    /// Keeps a result for a time. If there is no room, the result that is valid for the shortest time goes: refusals go before what
    /// was allowed.
    pub(super) fn put(&mut self, key: K, value: V, valid: Duration) {
        let now = Instant::now();
        if self.entries.len() >= ENTRIES && !self.entries.contains_key(&key) {
            self.entries.retain(|_, (_, until)| now < *until);
            if self.entries.len() >= ENTRIES {
                let first = self.entries.iter().min_by_key(|(_, (_, until))| *until);
                if let Some(first) = first.map(|(key, _)| key.clone()) {
                    self.entries.remove(&first);
                }
            }
        }
        self.entries.insert(key, (value, now + valid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_result_is_valid_for_its_time_and_the_oldest_go_first() {
        let mut cache = Cache::default();
        let seconds = Duration::from_secs;
        cache.put(0, "allowed", seconds(10));
        for key in 1..=2 * ENTRIES {
            cache.put(key, "refused", seconds(2));
        }
        assert_eq!(cache.entries.len(), ENTRIES);
        assert_eq!(cache.get(&0), Some("allowed"), "refusals went first");
        assert_eq!(cache.get(&(2 * ENTRIES)), Some("refused"));
        tokio::time::advance(seconds(2)).await;
        assert_eq!(cache.get(&(2 * ENTRIES)), None);
        assert_eq!(cache.get(&0), Some("allowed"));
        tokio::time::advance(seconds(8)).await;
        assert_eq!(cache.get(&0), None);
    }
}
