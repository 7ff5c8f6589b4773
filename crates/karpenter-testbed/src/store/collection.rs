//! The objects of one resource: reads, conditional writes, pages of a consistent snapshot.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

use super::watch::{Change, ChangeKind, Cursor, Expired, Signal};
use super::{Matcher, Object, Selectable, Shared};

/// The reason why a conditional write failed.
#[derive(Debug, Clone)]
pub enum Rejected {
    /// The object is already there.
    Exists,
    /// The object does not exist.
    Missing,
    /// The object has another revision than the writer expected.
    Moved,
}

/// The objects to list.
pub struct Query<'a> {
    pub namespace: Option<&'a str>,
    /// Only keys after this one.
    pub after: Option<&'a str>,
    /// At most this many; 0 means all.
    pub limit: usize,
    /// The snapshot to read; the latest when absent.
    pub at: Option<u64>,
    pub matcher: &'a dyn Matcher,
}

/// A page of a list.
#[derive(Debug)]
pub struct Page {
    /// The objects, ordered by key.
    pub items: Vec<Arc<Object>>,
    pub revision: u64,
    /// How many objects of the range come after the page; 0 at the end. Counts unselected ones too.
    pub remaining: usize,
}

#[derive(Debug, Default)]
pub(super) struct State {
    objects: BTreeMap<Arc<str>, Arc<Object>>,
    pub(super) history: VecDeque<Arc<Change>>,
    /// Changes up to this revision have been dropped.
    pub(super) compacted: u64,
}

/// The objects of one resource.
#[derive(Debug)]
pub struct Collection {
    shared: Arc<Shared>,
    fields: Arc<[Selectable]>,
    state: Mutex<State>,
    signal: Signal,
}

impl Collection {
    pub(super) fn new(shared: Arc<Shared>, fields: Arc<[Selectable]>) -> Self {
        let revision = shared.revision();
        Self {
            fields,
            state: Mutex::new(State {
                compacted: revision.saturating_sub(1),
                ..State::default()
            }),
            signal: Signal::default(),
            shared,
        }
    }

    /// The fields that selectors may use.
    #[must_use]
    pub fn fields(&self) -> &Arc<[Selectable]> {
        &self.fields
    }

    /// Returns the number of objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.lock().objects.len()
    }

    /// Whether there is no object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[must_use]
    pub fn get(&self, key: &str) -> Option<Arc<Object>> {
        self.state.lock().objects.get(key).cloned()
    }

    /// Returns the object at `key` as it was `lag` revisions ago, or now if that is no longer in the history.
    #[must_use]
    pub fn get_stale(&self, key: &str, lag: u64) -> Option<Arc<Object>> {
        let state = self.state.lock();
        let at = self.shared.revision().saturating_sub(lag);
        let now = state.objects.get(key);
        if at < state.compacted {
            return now.cloned();
        }
        let undone = state
            .history
            .iter()
            .rev()
            .take_while(|c| c.revision > at)
            .filter(|c| &*c.object.key == key)
            .last();
        match undone {
            Some(change) => change.previous.clone(),
            None => now.cloned(),
        }
    }

    /// Writes a new object, and sets its `metadata.resourceVersion`.
    ///
    /// # Errors
    /// [`Rejected::Exists`] if the key exists.
    pub fn insert(
        &self,
        key: &str,
        edition: u32,
        value: &mut Value,
    ) -> Result<Arc<Object>, Rejected> {
        let mut state = self.state.lock();
        if state.objects.contains_key(key) {
            return Err(Rejected::Exists);
        }
        let object = self.stamp(key.into(), edition, value);
        self.put(&mut state, ChangeKind::Added, &object, None);
        Ok(object)
    }

    /// Replaces the object at `key` if it is still at revision `expected`.
    ///
    /// # Errors
    /// [`Rejected::Missing`], [`Rejected::Moved`].
    pub fn replace(
        &self,
        key: &str,
        expected: u64,
        edition: u32,
        value: &mut Value,
    ) -> Result<Arc<Object>, Rejected> {
        let mut state = self.state.lock();
        let previous = expect(&state, key, expected)?;
        let object = self.stamp(Arc::clone(&previous.key), edition, value);
        self.put(&mut state, ChangeKind::Modified, &object, Some(previous));
        Ok(object)
    }

    /// Removes the object at `key` if it is still at revision `expected`; `last` is its final state.
    ///
    /// # Errors
    /// [`Rejected::Missing`], [`Rejected::Moved`].
    pub fn remove(
        &self,
        key: &str,
        expected: u64,
        last: &mut Value,
    ) -> Result<Arc<Object>, Rejected> {
        let mut state = self.state.lock();
        let previous = expect(&state, key, expected)?;
        let object = self.stamp(Arc::clone(&previous.key), previous.edition, last);
        self.put(&mut state, ChangeKind::Deleted, &object, Some(previous));
        Ok(object)
    }

    fn stamp(&self, key: Arc<str>, edition: u32, value: &mut Value) -> Arc<Object> {
        let revision = self.shared.next_revision();
        value["metadata"]["resourceVersion"] = revision.to_string().into();
        Arc::new(Object::new(key, revision, edition, value, &self.fields))
    }

    fn put(
        &self,
        state: &mut State,
        kind: ChangeKind,
        object: &Arc<Object>,
        previous: Option<Arc<Object>>,
    ) {
        if kind == ChangeKind::Deleted {
            state.objects.remove(&object.key);
        } else {
            state
                .objects
                .insert(Arc::clone(&object.key), Arc::clone(object));
        }
        state.history.push_back(Arc::new(Change {
            revision: object.revision,
            kind,
            object: Arc::clone(object),
            previous,
        }));
        let bound = self.shared.history();
        while state.history.len() > bound {
            if let Some(dropped) = state.history.pop_front() {
                state.compacted = dropped.revision;
            }
        }
        self.signal.raise();
    }

    /// Returns a page of the objects that `query` selects.
    ///
    /// # Errors
    /// [`Expired`] if the requested snapshot has been dropped.
    pub fn list(&self, query: &Query<'_>) -> Result<Page, Expired> {
        let state = self.state.lock();
        let current = self.shared.revision();
        let revision = query.at.unwrap_or(current).min(current);
        if revision < state.compacted {
            return Err(Expired {
                requested: revision,
                oldest: state.compacted,
            });
        }
        let undo = undo(&state, revision);
        let (from, until) = bounds(query.namespace, query.after);
        let lower = from.as_ref().map(|s| &**s);
        let upper = until.as_ref().map(|s| &**s);
        if undo.is_empty() {
            let range = state.objects.range::<str, _>((lower, upper));
            return Ok(page(range.map(|(_, o)| o), query, revision));
        }
        let mut merged: BTreeMap<&str, &Arc<Object>> = state
            .objects
            .range::<str, _>((lower, upper))
            .map(|(k, o)| (&**k, o))
            .collect();
        for (key, object) in undo.range::<str, _>((lower, upper)) {
            match object {
                Some(object) => merged.insert(key, object),
                None => merged.remove(&**key),
            };
        }
        Ok(page(merged.into_values(), query, revision))
    }

    /// Returns all objects, or those of a namespace, ordered by key.
    #[must_use]
    pub fn all(&self, namespace: Option<&str>) -> Vec<Arc<Object>> {
        let state = self.state.lock();
        let (from, until) = bounds(namespace, None);
        let range = (from.as_ref().map(|s| &**s), until.as_ref().map(|s| &**s));
        let objects = state.objects.range::<str, _>(range);
        objects.map(|(_, object)| Arc::clone(object)).collect()
    }

    /// Returns all selected objects, and a cursor that continues from there.
    #[must_use]
    pub fn list_and_follow(
        self: &Arc<Self>,
        namespace: Option<&str>,
        matcher: &dyn Matcher,
    ) -> (Vec<Arc<Object>>, Cursor) {
        let state = self.state.lock();
        let revision = self.shared.revision();
        let (from, until) = bounds(namespace, None);
        let items = state
            .objects
            .range::<str, _>((from.as_ref().map(|s| &**s), until.as_ref().map(|s| &**s)))
            .map(|(_, o)| o)
            .filter(|o| matcher.matches(o))
            .cloned()
            .collect();
        drop(state);
        (items, Cursor::new(Arc::clone(self), revision))
    }

    /// Returns a cursor over the changes after `revision`.
    ///
    /// # Errors
    /// [`Expired`] if some of these changes have been dropped.
    pub fn follow(self: &Arc<Self>, revision: u64) -> Result<Cursor, Expired> {
        let state = self.state.lock();
        if revision < state.compacted {
            return Err(Expired {
                requested: revision,
                oldest: state.compacted,
            });
        }
        drop(state);
        Ok(Cursor::new(Arc::clone(self), revision))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn revision(&self) -> u64 {
        self.shared.revision()
    }

    pub(super) fn signal(&self) -> &Signal {
        &self.signal
    }

    pub(super) fn compact(&self) {
        let mut state = self.state.lock();
        state.history.clear();
        state.compacted = self.shared.revision();
        drop(state);
        self.signal.raise();
    }

    /// Removes all objects without events, and wakes the watches so that they end.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.objects.clear();
        state.history.clear();
        state.compacted = u64::MAX;
        drop(state);
        self.signal.raise();
    }
}

fn expect(state: &State, key: &str, expected: u64) -> Result<Arc<Object>, Rejected> {
    match state.objects.get(key) {
        None => Err(Rejected::Missing),
        Some(object) if object.revision != expected => Err(Rejected::Moved),
        Some(object) => Ok(Arc::clone(object)),
    }
}

/// Returns the differences between the live objects and the state as of `revision`.
fn undo(state: &State, revision: u64) -> BTreeMap<Arc<str>, Option<Arc<Object>>> {
    state
        .history
        .iter()
        .rev()
        .take_while(|c| c.revision > revision)
        .map(|c| (Arc::clone(&c.object.key), c.previous.clone()))
        .collect()
}

fn bounds(namespace: Option<&str>, after: Option<&str>) -> (Bound<String>, Bound<String>) {
    let from = match (after, namespace) {
        (Some(after), _) => Bound::Excluded(after.to_owned()),
        (None, Some(ns)) => Bound::Included(format!("{ns}/")),
        (None, None) => Bound::Unbounded,
    };
    // '0' is the character after '/'.
    let until = match namespace {
        Some(ns) => Bound::Excluded(format!("{ns}0")),
        None => Bound::Unbounded,
    };
    // A range whose start is after its end would panic; a continue token can request one.
    match (&from, &until) {
        (Bound::Excluded(f) | Bound::Included(f), Bound::Excluded(u)) if f >= u => {
            (Bound::Included(u.clone()), Bound::Excluded(u.clone()))
        }
        _ => (from, until),
    }
}

fn page<'a>(
    mut range: impl Iterator<Item = &'a Arc<Object>>,
    query: &Query<'_>,
    revision: u64,
) -> Page {
    let mut items = Vec::new();
    let mut remaining = 0;
    for object in range.by_ref() {
        if query.limit > 0 && items.len() == query.limit {
            remaining = 1;
            break;
        }
        if query.matcher.matches(object) {
            items.push(Arc::clone(object));
        }
    }
    remaining += range.count();
    Page {
        items,
        revision,
        remaining,
    }
}
