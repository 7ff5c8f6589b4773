//! Following a collection's changes.

use std::sync::Arc;

use tokio::sync::watch as signal;

use super::{Collection, Object};

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was created.
    Added,
    /// It was changed.
    Modified,
    /// It was removed.
    Deleted,
}

/// One write.
#[derive(Debug)]
pub struct Change {
    /// The write's revision.
    pub revision: u64,
    /// What it did.
    pub kind: ChangeKind,
    /// The object after the write; for a removal its final state.
    pub object: Arc<Object>,
    /// The object before the write.
    pub previous: Option<Arc<Object>>,
}

/// The wanted changes are no longer remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too old resource version: {requested} ({oldest})")]
pub struct Expired {
    /// The revision asked for.
    pub requested: u64,
    /// The oldest revision that can be asked for.
    pub oldest: u64,
}

/// A position in a collection's changes. A cursor that falls behind the history expires.
#[derive(Debug)]
pub struct Cursor {
    collection: Arc<Collection>,
    revision: u64,
    signal: signal::Receiver<u64>,
}

impl Cursor {
    pub(super) fn new(
        collection: Arc<Collection>,
        revision: u64,
        signal: signal::Receiver<u64>,
    ) -> Self {
        Self {
            collection,
            revision,
            signal,
        }
    }

    /// The revision up to which changes have been taken.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Takes up to `limit` changes, oldest first. An empty answer moves the cursor to the store's latest revision.
    ///
    /// # Errors
    /// [`Expired`] when changes after the cursor are already forgotten.
    pub fn take(&mut self, limit: usize) -> Result<Vec<Arc<Change>>, Expired> {
        let _ = self.signal.borrow_and_update();
        let state = self.collection.state();
        if self.revision < state.compacted {
            return Err(Expired {
                requested: self.revision,
                oldest: state.compacted,
            });
        }
        let start = state
            .history
            .partition_point(|c| c.revision <= self.revision);
        let changes: Vec<_> = state.history.range(start..).take(limit).cloned().collect();
        self.revision = match changes.last() {
            Some(last) => last.revision,
            None => self.revision.max(self.collection.revision()),
        };
        Ok(changes)
    }

    /// Waits until something may have changed.
    pub async fn changed(&mut self) {
        // The sender lives in the collection, which the cursor keeps alive.
        let _ = self.signal.changed().await;
    }
}
