//! Storage of objects: revisions, optimistic concurrency, watch.
//!
//! A [`Store`] has one [`Collection`] per resource. All collections share one increasing revision counter, so a resource version
//! orders every write of the cluster. A collection keeps
//!
//! 1. the live objects, ordered by `namespace/name`, each in one serialized form that all readers and watchers share ([`Object`];
//!    only the labels and selectable fields are kept parsed), and
//! 2. a bounded history of changes, which serves watches and reconstructs pages of an older snapshot.
//!
//! INVARIANT: a revision is assigned while the collection's lock is held, so the holder of the lock has all changes of that
//! collection up to the counter's value.

mod collection;
mod object;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

pub use collection::{Collection, Page, Query, Rejected};
pub use object::{Matcher, Object, Selectable};
pub use watch::{Change, ChangeKind, Cursor, Expired};

/// Default number of changes in the history of a collection.
pub const DEFAULT_HISTORY: usize = 16_384;

/// The revision counter and the history bound, shared by all collections.
#[derive(Debug)]
pub(crate) struct Shared {
    revision: AtomicU64,
    history: usize,
}

impl Shared {
    fn next_revision(&self) -> u64 {
        self.revision.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn revision(&self) -> u64 {
        self.revision.load(Ordering::SeqCst)
    }

    fn history(&self) -> usize {
        self.history
    }
}

/// All objects of the cluster.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    collections: RwLock<Vec<Arc<Collection>>>,
}

impl Default for Store {
    fn default() -> Self {
        Self::new(DEFAULT_HISTORY)
    }
}

impl Store {
    /// Returns an empty store whose collections keep `history` changes each.
    #[must_use]
    pub fn new(history: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                revision: AtomicU64::new(1),
                history: history.max(1),
            }),
            collections: RwLock::new(Vec::new()),
        }
    }

    /// Returns a new, empty collection whose objects have these selectable fields.
    pub fn collection(&self, fields: Arc<[Selectable]>) -> Arc<Collection> {
        let collection = Arc::new(Collection::new(Arc::clone(&self.shared), fields));
        self.collections.write().push(Arc::clone(&collection));
        collection
    }

    /// Removes a collection that is no longer served; its watches end.
    pub fn forget(&self, collection: &Arc<Collection>) {
        self.collections
            .write()
            .retain(|c| !Arc::ptr_eq(c, collection));
        collection.close();
    }

    /// Returns the revision of the latest write.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.shared.revision()
    }

    /// Drops the history, as etcd's compaction does: earlier watches and pages expire.
    pub fn compact(&self) {
        for collection in self.collections.read().iter() {
            collection.compact();
        }
    }
}
