//! Results that are computed on demand and kept.

use std::borrow::Borrow;
use std::hash::Hash;
use std::sync::Mutex;

use rustc_hash::FxHashMap;

/// Up to `MOST` results by key, for any number of threads. Each is a function of its key alone.
pub(crate) struct Memo<K, V, const MOST: usize = { usize::MAX }>(Mutex<FxHashMap<K, V>>);

impl<K, V, const MOST: usize> Default for Memo<K, V, MOST> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone, const MOST: usize> Memo<K, V, MOST> {
    /// Returns the known result, or that of `compute`, which is kept. A poisoned lock only keeps results from being kept.
    pub(crate) fn get<Q>(&self, key: &Q, compute: impl FnOnce() -> V) -> V
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        if let Ok(known) = self.0.lock()
            && let Some(value) = known.get(key)
        {
            return value.clone();
        }
        let value = compute();
        if let Ok(mut known) = self.0.lock()
            && known.len() < MOST
        {
            known.insert(key.to_owned(), value.clone());
        }
        value
    }
}
