//! Change tracking by version: a reader recomputes only what changed since the version it has seen.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

/// Counts changes, and records which instance types they concern.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    version: u64,
    /// The version of the last change that concerns all instance types.
    of_all: u64,
    /// The version of the last change that concerns an instance type.
    of_type: FxHashMap<String, u64>,
}

/// The instance types that changed since a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed<'a> {
    /// Any instance type may have changed.
    Everything,
    /// Only these instance types changed.
    These(BTreeSet<&'a str>),
}

impl Changes {
    /// Returns the current version, which increases with every change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Records a change that concerns one instance type.
    pub fn of(&mut self, instance_type: &str) {
        self.version += 1;
        match self.of_type.get_mut(instance_type) {
            Some(version) => *version = self.version,
            None => {
                self.of_type.insert(instance_type.to_owned(), self.version);
            }
        }
    }

    /// Records a change that concerns all instance types.
    pub fn of_all(&mut self) {
        self.version += 1;
        self.of_all = self.version;
        self.of_type.clear();
    }

    /// Returns the instance types that changed since `version`.
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
    fn only_changes_since_the_version_are_returned() {
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
