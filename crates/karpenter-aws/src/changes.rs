//! What has changed since somebody looked last, so that he looks again at no more than that.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

/// Counts changes, and remembers which instance types the last ones concerned.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    version: u64,
    /// The version of the last change that concerned all types.
    of_all: u64,
    /// The version of the last change that concerned a type.
    of_type: FxHashMap<String, u64>,
}

/// What has changed since a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed<'a> {
    /// It may be any type.
    Everything,
    /// Nothing but these types.
    These(BTreeSet<&'a str>),
}

impl Changes {
    /// Counts up with every change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Something changed that concerns one type.
    pub fn of(&mut self, instance_type: &str) {
        self.version += 1;
        match self.of_type.get_mut(instance_type) {
            Some(version) => *version = self.version,
            None => {
                self.of_type.insert(instance_type.to_owned(), self.version);
            }
        }
    }

    /// Something changed that concerns all types.
    pub fn of_all(&mut self) {
        self.version += 1;
        self.of_all = self.version;
        self.of_type.clear();
    }

    /// What changed since `version`.
    pub fn since(&self, version: u64) -> Changed<'_> {
        if version < self.of_all {
            return Changed::Everything;
        }
        let newer = self.of_type.iter().filter(|(_, at)| **at > version);
        Changed::These(newer.map(|(name, _)| name.as_str()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_since_is_told() {
        let mut changes = Changes::default();
        assert_eq!(changes.since(0), Changed::These(BTreeSet::new()));
        changes.of("a");
        let seen = changes.version();
        changes.of("b");
        changes.of("b");
        assert_eq!(changes.since(0), Changed::These(["a", "b"].into()));
        assert_eq!(changes.since(seen), Changed::These(["b"].into()));
        changes.of_all();
        assert_eq!(changes.since(seen), Changed::Everything);
        assert_eq!(
            changes.since(changes.version()),
            Changed::These(BTreeSet::new())
        );
    }
}
