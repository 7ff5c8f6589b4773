//! Names of objects by a value that several of them can have.

use std::sync::Arc;

use rpds::RedBlackTreeMapSync;

/// Names of objects by a value of theirs, for example Nodes by provider id. Cloning is O(1).
#[derive(Clone, Debug)]
pub(super) struct Index {
    names: RedBlackTreeMapSync<Arc<str>, Arc<[Arc<str>]>>,
}

impl Index {
    pub(super) fn new() -> Self {
        Self {
            names: RedBlackTreeMapSync::new_sync(),
        }
    }

    /// Returns the names of the objects with this value, sorted.
    pub(super) fn names(&self, value: &str) -> &[Arc<str>] {
        self.names.get(value).map(AsRef::as_ref).unwrap_or_default()
    }

    /// Returns the name of the first object with this value.
    pub(super) fn first(&self, value: &str) -> Option<&str> {
        self.names(value).first().map(AsRef::as_ref)
    }

    /// Records that the value of object `name` changed; `None` is no value.
    pub(super) fn update(&mut self, name: &str, from: Option<&str>, to: Option<&str>) {
        if from == to {
            return;
        }
        if let Some(from) = from {
            let others = self.names(from).iter().filter(|other| ***other != *name);
            let others: Vec<Arc<str>> = others.cloned().collect();
            if others.is_empty() {
                self.names.remove_mut(from);
            } else {
                self.names.insert_mut(from.into(), others.into());
            }
        }
        if let Some(to) = to {
            let mut names = self.names(to).to_vec();
            if let Err(at) = names.binary_search_by(|other| (**other).cmp(name)) {
                names.insert(at, name.into());
            }
            self.names.insert_mut(to.into(), names.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(index: &Index, value: &str) -> Vec<String> {
        index.names(value).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_object_has_one_value_and_the_objects_of_a_value_are_sorted() {
        let mut index = Index::new();
        for name in ["c", "a", "b"] {
            index.update(name, None, Some("x"));
        }
        assert_eq!(names(&index, "x"), ["a", "b", "c"]);
        let before = index.clone();
        index.update("a", Some("x"), Some("y"));
        index.update("c", Some("x"), None);
        assert_eq!(names(&index, "x"), ["b"]);
        assert_eq!(index.first("y"), Some("a"));
        index.update("b", Some("x"), None);
        assert_eq!(index.first("x"), None);
        assert_eq!(names(&before, "x"), ["a", "b", "c"], "a copy stays");
    }
}
