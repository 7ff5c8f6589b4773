//! Deduplication of values that many objects have in common.

use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashSet;

/// One `Arc` per distinct value, so that equal values have equal pointers and are stored once.
#[derive(Debug)]
pub(super) struct Shared<T: ?Sized> {
    values: FxHashSet<Arc<T>>,
    at_last_purge: usize,
}

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Self {
        Self {
            values: FxHashSet::default(),
            at_last_purge: 0,
        }
    }
}

impl<T: ?Sized + Eq + Hash> Shared<T> {
    /// Returns the stored value equal to `value`; stores `value` if there is none.
    pub(super) fn share(&mut self, value: Arc<T>) -> Arc<T> {
        if let Some(known) = self.values.get(&value) {
            return known.clone();
        }
        if self.values.len() > 2 * self.at_last_purge + 1024 {
            self.values.retain(|value| Arc::strong_count(value) > 1);
            self.at_last_purge = self.values.len();
        }
        self.values.insert(value.clone());
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_stored_once_and_unused_values_are_dropped() {
        let mut shared: Shared<str> = Shared::default();
        let kept = shared.share("kept".into());
        assert!(Arc::ptr_eq(&kept, &shared.share("kept".into())));
        for n in 0..5000 {
            shared.share(n.to_string().into());
        }
        assert!(shared.values.len() < 3000, "{}", shared.values.len());
        assert!(Arc::ptr_eq(&kept, &shared.share("kept".into())));
    }
}
