//! Cursors over a collection's changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use super::{Collection, Object};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

#[derive(Debug)]
pub struct Change {
    pub revision: u64,
    pub kind: ChangeKind,
    /// The object after the write; for a removal its final state.
    pub object: Arc<Object>,
    /// The object before the write.
    pub previous: Option<Arc<Object>>,
}

/// The requested changes have been dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too old resource version: {requested} ({oldest})")]
pub struct Expired {
    pub requested: u64,
    /// The oldest revision that is available.
    pub oldest: u64,
}

/// Notifies followers of changes, in the order in which they began to wait.
///
/// `tokio::sync::watch` would wake them in random order, and equal seeds must produce equal runs.
#[derive(Debug, Default)]
pub(super) struct Signal {
    raised: AtomicU64,
    wake: Notify,
}

impl Signal {
    pub(super) fn raise(&self) {
        self.raised.fetch_add(1, Ordering::SeqCst);
        self.wake.notify_waiters();
    }

    fn raised(&self) -> u64 {
        self.raised.load(Ordering::SeqCst)
    }

    /// Waits until it has been raised more often than `seen`.
    async fn wait(&self, seen: u64) {
        let mut woken = std::pin::pin!(self.wake.notified());
        // Waits from here on, so that no signal between the check and the wait is lost.
        woken.as_mut().enable();
        if self.raised() == seen {
            woken.await;
        }
    }
}

/// A position in a collection's changes. A cursor that falls behind the history expires.
#[derive(Debug)]
pub struct Cursor {
    collection: Arc<Collection>,
    revision: u64,
    /// Number of signals of the collection when its changes were last taken.
    seen: u64,
}

impl Cursor {
    pub(super) fn new(collection: Arc<Collection>, revision: u64) -> Self {
        Self {
            seen: collection.signal().raised(),
            collection,
            revision,
        }
    }

    /// The revision up to which changes have been taken.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Takes up to `limit` changes, oldest first. An empty result moves the cursor to the store's latest revision.
    ///
    /// # Errors
    /// [`Expired`] if changes after the cursor have been dropped.
    pub fn take(&mut self, limit: usize) -> Result<Vec<Arc<Change>>, Expired> {
        self.seen = self.collection.signal().raised();
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

    /// Waits until there may be changes.
    ///
    /// Changes after the last [`Self::take`] count, or after the cursor was made if none were taken yet.
    pub async fn changed(&mut self) {
        self.collection.signal().wait(self.seen).await;
    }
}
