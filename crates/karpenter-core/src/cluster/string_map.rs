//! The labels and annotations of a node, in little memory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// An immutable map of strings, sorted by key: the labels or the annotations of a node.
///
/// The model has two such maps for each of up to 100,000 nodes, so all keys and values of a map share one piece of text: in a
/// `BTreeMap<String, String>` each takes 24 bytes and an allocation of its own. Cloning is O(1).
///
/// ```
/// use std::collections::BTreeMap;
///
/// use karpenter_core::cluster::StringMap;
///
/// let labels = BTreeMap::from([("topology.kubernetes.io/zone".to_owned(), "eu-west-1a".to_owned())]);
/// let labels = StringMap::from(&labels);
/// assert_eq!(labels.get("topology.kubernetes.io/zone"), Some("eu-west-1a"));
/// assert_eq!(labels.get("karpenter.sh/nodepool"), None);
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct StringMap(Arc<Entries>);

#[derive(PartialEq, Eq, Default)]
struct Entries {
    /// Key, value, next key, next value, …
    text: Box<str>,
    /// Where each of them ends.
    ends: Box<[usize]>,
}

impl Entries {
    fn part(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[index]]
    }
}

impl StringMap {
    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.0.ends.len() / 2
    }

    /// Reports whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.ends.is_empty()
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = usize::midpoint(from, to);
            match self.0.part(2 * middle).cmp(key) {
                std::cmp::Ordering::Less => from = middle + 1,
                std::cmp::Ordering::Equal => return Some(self.0.part(2 * middle + 1)),
                std::cmp::Ordering::Greater => to = middle,
            }
        }
        None
    }

    /// Reports whether it has a key.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Returns the keys with their values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let entries = &*self.0;
        (0..self.len()).map(|at| (entries.part(2 * at), entries.part(2 * at + 1)))
    }

    /// Returns the keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }
}

impl From<&BTreeMap<String, String>> for StringMap {
    fn from(map: &BTreeMap<String, String>) -> Self {
        let parts = || map.iter().flat_map(|(key, value)| [&**key, &**value]);
        let text: String = parts().collect();
        let ends = parts().scan(0, |end, part| {
            *end += part.len();
            Some(*end)
        });
        Self(Arc::new(Entries {
            ends: ends.collect(),
            text: text.into(),
        }))
    }
}

impl From<Option<&BTreeMap<String, String>>> for StringMap {
    fn from(map: Option<&BTreeMap<String, String>>) -> Self {
        map.map_or_else(Self::default, Self::from)
    }
}

impl fmt::Debug for StringMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_has_the_keys_and_values_of_the_map_that_it_is_made_of(
            map in prop::collection::btree_map("[a-e\u{0}é]{0,3}", "\\PC{0,4}", 0..12),
            other in "[a-e\u{0}é]{0,3}",
        ) {
            let short = StringMap::from(&map);
            let listed: Vec<(&str, &str)> = map.iter().map(|(k, v)| (&**k, &**v)).collect();
            prop_assert_eq!(short.iter().collect::<Vec<_>>(), listed);
            prop_assert_eq!((short.len(), short.is_empty()), (map.len(), map.is_empty()));
            for key in map.keys().chain([&other]) {
                prop_assert_eq!(short.get(key), map.get(key).map(String::as_str));
                prop_assert_eq!(short.contains_key(key), map.contains_key(key));
            }
        }
    }

    #[test]
    fn maps_are_equal_only_if_their_keys_and_values_end_at_the_same_places() {
        let of = |key: &str, value: &str| {
            StringMap::from(&BTreeMap::from([(key.to_owned(), value.to_owned())]))
        };
        assert_eq!(of("a", "bc"), of("a", "bc"));
        assert_ne!(of("a", "bc"), of("ab", "c"));
        assert_ne!(of("a", "bc"), of("a", "bd"));
    }
}
