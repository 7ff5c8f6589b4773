//! Resources as rows of integers.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::resources::{ALWAYS_COMPARED, Resources};

/// Amounts by place. Up to six resources are stored without an allocation, which is enough for most clusters.
pub(crate) type Vector = SmallVec<[i64; 6]>;

/// The place of each resource, and the resources by place. Only resources that some pod requests have one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dimensions {
    pub(crate) names: Vec<Arc<str>>,
    places: FxHashMap<Arc<str>, usize>,
}

impl Dimensions {
    pub(crate) fn new(names: &BTreeSet<&str>) -> Self {
        let always = ALWAYS_COMPARED.into_iter();
        let others = names.iter().copied();
        let others = others.filter(|name| !ALWAYS_COMPARED.contains(name));
        let all: Vec<Arc<str>> = always.chain(others).map(Arc::from).collect();
        let places = all
            .iter()
            .enumerate()
            .map(|(place, name)| (name.clone(), place))
            .collect();
        Self { names: all, places }
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn vector(&self, resources: &Resources) -> Box<[i64]> {
        let mut vector = vec![0; self.names.len()].into_boxed_slice();
        for (name, value) in resources.iter() {
            if let Some(place) = self.places.get(name) {
                vector[*place] = value;
            }
        }
        vector
    }

    /// Reports whether a positive request has no place, so that no node was checked for it.
    pub(crate) fn misses(&self, resources: &Resources) -> bool {
        resources
            .iter()
            .any(|(name, value)| value > 0 && !self.places.contains_key(name))
    }

    pub(crate) fn resources(&self, vector: &[i64]) -> Resources {
        let named = self
            .names
            .iter()
            .zip(vector)
            .filter(|(_, value)| **value != 0);
        named.map(|(name, value)| (name.as_ref(), *value)).collect()
    }
}

/// Reports whether `need` in addition to `used` fits in `room`.
#[inline]
pub(crate) fn fits(used: &[i64], need: &[i64], room: &[i64]) -> bool {
    used.iter()
        .zip(need)
        .zip(room)
        .all(|((used, need), room)| used.saturating_add(*need) <= *room)
}

pub(crate) fn add(to: &mut [i64], from: &[i64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = to.saturating_add(*from);
    }
}

pub(crate) fn subtract(to: &mut [i64], from: &[i64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = to.saturating_sub(*from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_missed_if_some_of_it_is_requested() {
        let dimensions = Dimensions::new(&BTreeSet::from(["example.com/known"]));
        let misses = |name, amount| dimensions.misses(&Resources::new().with(name, amount));
        assert!(misses("example.com/new", 1));
        assert!(!misses("example.com/new", 0));
        assert!(!misses("example.com/known", 1));
        assert!(!misses("cpu", 1));
    }
}
