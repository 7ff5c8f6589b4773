//! Persistent maps of objects by name, and names of objects by a value that several of them can have.

use std::sync::Arc;

use rpds::{RedBlackTreeMapSync, RedBlackTreeSetSync};

/// Namespace and name of an object.
pub(super) type Named = (String, String);
/// Objects by name.
pub(super) type Map<T> = RedBlackTreeMapSync<String, Arc<T>>;
/// Objects by namespace and name.
pub(super) type NamespacedMap<T> = RedBlackTreeMapSync<Named, Arc<T>>;

pub(super) fn named(namespace: &str, name: &str) -> Named {
    (namespace.to_owned(), name.to_owned())
}

/// Names of objects by a value of theirs, for example Nodes by provider id. Cloning is O(1).
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    names: RedBlackTreeMapSync<Arc<str>, Names>,
}

/// The names of the objects that have a value. A provider id has one; a NodePool can have all NodeClaims of the cluster.
#[derive(Clone, Debug)]
enum Names {
    One(Arc<str>),
    Several(RedBlackTreeSetSync<Arc<str>>),
}

impl Names {
    fn with(self, name: &str) -> Self {
        let mut names = match self {
            Self::One(known) => RedBlackTreeSetSync::new_sync().insert(known),
            Self::Several(names) => names,
        };
        names.insert_mut(name.into());
        Self::Several(names)
    }

    fn without(self, name: &str) -> Option<Self> {
        match self {
            Self::One(known) => (*known != *name).then_some(Self::One(known)),
            Self::Several(mut names) => {
                names.remove_mut(name);
                (!names.is_empty()).then_some(Self::Several(names))
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<str>> {
        let (one, several) = match self {
            Self::One(name) => (Some(name), None),
            Self::Several(names) => (None, Some(names)),
        };
        one.into_iter()
            .chain(several.into_iter().flat_map(|names| names.iter()))
    }
}

impl Index {
    /// Iterates over the names of the objects with this value, sorted.
    pub(super) fn names(&self, value: &str) -> impl Iterator<Item = &Arc<str>> {
        self.names.get(value).into_iter().flat_map(Names::iter)
    }

    /// Returns the name of the first object with this value.
    pub(super) fn first(&self, value: &str) -> Option<&str> {
        self.names(value).next().map(AsRef::as_ref)
    }

    /// Records that the value of object `name` changed; `None` is no value. O(log n) for n objects with the value.
    pub(super) fn update(&mut self, name: &str, from: Option<&str>, to: Option<&str>) {
        if from == to {
            return;
        }
        if let Some(from) = from
            && let Some(names) = self.names.get(from).cloned()
        {
            match names.without(name) {
                Some(left) => self.names.insert_mut(from.into(), left),
                None => {
                    self.names.remove_mut(from);
                }
            }
        }
        if let Some(to) = to {
            let names = match self.names.get(to).cloned() {
                Some(names) => names.with(name),
                None => Names::One(name.into()),
            };
            self.names.insert_mut(to.into(), names);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(index: &Index, value: &str) -> Vec<String> {
        index.names(value).map(ToString::to_string).collect()
    }

    #[test]
    fn an_object_has_one_value_and_the_objects_of_a_value_are_sorted() {
        let mut index = Index::default();
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

    #[test]
    fn an_object_is_recorded_once_and_others_of_its_value_stay() {
        let mut index = Index::default();
        index.update("a", None, Some("x"));
        index.update("a", None, Some("x"));
        assert_eq!(names(&index, "x"), ["a"]);
        index.update("b", None, Some("x"));
        index.update("b", None, Some("x"));
        assert_eq!(names(&index, "x"), ["a", "b"]);
        index.update("c", Some("x"), None);
        assert_eq!(names(&index, "x"), ["a", "b"], "c was not there");
        index.update("a", Some("x"), None);
        index.update("a", Some("x"), None);
        assert_eq!(names(&index, "x"), ["b"]);
        index.update("b", Some("x"), Some("y"));
        assert_eq!((names(&index, "x").len(), names(&index, "y").len()), (0, 1));
        index.update("b", Some("y"), None);
        assert_eq!(index.names.size(), 0, "values without objects are not kept");
    }
}
