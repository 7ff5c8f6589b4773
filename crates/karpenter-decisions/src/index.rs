//! The current reason of each pending pod and each node.
//!
//! An entry needs 48 bytes: objects are identified by a digest, reasons are shared by the pods of a workload, and the parameters
//! of all reasons together are bounded. Names come from the snapshot that a question is asked of.

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_core::reason::Reason;
use rustc_hash::FxHashSet;

/// The maximum number of pending pods.
pub const MAX_PODS: usize = 20_000;
/// The maximum number of nodes.
pub const MAX_NODES: usize = 10_000;
/// The maximum size of the parameters of all reasons of a table, as JSON in bytes. Beyond it, reasons are only known by id.
pub const MAX_PARAMETERS: usize = 256 * 1024;
/// How many records an entry remembers.
pub const RECORDS: usize = 3;

/// Identifies an object by the digest of its uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 16]);

impl Key {
    /// Returns the key of an object with this uid, or of another text that identifies it.
    pub fn of(identity: &str) -> Self {
        let digest = blake3::hash(identity.as_bytes());
        let mut key = [0; 16];
        key.copy_from_slice(&digest.as_bytes()[..16]);
        Self(key)
    }
}

/// What is known about an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Known {
    Reason {
        id: &'static str,
        /// The reason; absent if there was no room for its parameters.
        reason: Option<Reason>,
        /// The reason of each NodePool against the pod.
        pools: Vec<(String, Reason)>,
        bytes: usize,
    },
    /// The pod was placed on a node: a NodeClaim's name, or that of a Node without one.
    Placed { target: String },
}

impl Known {
    /// Creates what is known about an object with a reason, and `pools` with theirs.
    pub fn reason(reason: Reason, pools: Vec<(String, Reason)>) -> Self {
        let length =
            |reason: &Reason| serde_json::to_vec(reason).map_or(MAX_PARAMETERS, |json| json.len());
        let of_pools = pools.iter().map(|(name, why)| name.len() + length(why));
        Self::Reason {
            id: reason.id(),
            bytes: length(&reason) + of_pools.sum::<usize>(),
            reason: Some(reason),
            pools,
        }
    }

    /// Returns the id of the reason; `None` for a pod that was placed.
    pub fn id(&self) -> Option<&'static str> {
        match self {
            Self::Reason { id, .. } => Some(id),
            Self::Placed { .. } => None,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Reason { bytes, .. } => *bytes,
            Self::Placed { target } => target.len(),
        }
    }

    /// Returns the same without parameters.
    fn id_only(&self) -> Self {
        match self {
            Self::Reason { id, .. } => Self::Reason {
                id,
                reason: None,
                pools: Vec::new(),
                bytes: 0,
            },
            // Without its target nothing is known about the pod.
            Self::Placed { .. } => Self::Reason {
                id: Reason::Undecided {}.id(),
                reason: None,
                pools: Vec::new(),
                bytes: 0,
            },
        }
    }
}

/// An object with a reason.
#[derive(Clone, Debug)]
pub struct Entry {
    key: Key,
    since: i64,
    known: Arc<Known>,
    records: [u32; RECORDS],
    at_least: bool,
}

impl Entry {
    pub fn known(&self) -> &Arc<Known> {
        &self.known
    }

    /// Returns since when the object has the reason. It survives a change of the reason's parameters, not of its id.
    pub fn since(&self) -> Timestamp {
        Timestamp::from_microsecond(self.since).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Reports whether [`Self::since`] is a time of the object, because the object is older than the history: the object has
    /// waited since then, at first perhaps for another reason.
    pub fn is_at_least(&self) -> bool {
        self.at_least
    }

    /// Iterates over the numbers of the last records, latest first.
    pub fn records(&self) -> impl Iterator<Item = u32> {
        self.records.into_iter().filter(|number| *number > 0)
    }
}

/// A fresh result for an object.
#[derive(Clone, Debug)]
pub struct Fresh {
    pub key: Key,
    pub known: Arc<Known>,
    /// A time of the object, for `since` of objects that are older than the history.
    pub object_time: Option<Timestamp>,
}

/// Objects with their reasons, by key.
#[derive(Clone, Debug)]
pub struct Table {
    entries: Vec<Entry>,
    capacity: usize,
    /// Whether a pass has filled the table since this replica leads.
    filled: bool,
    left_out: usize,
}

impl Table {
    /// Creates an empty table for at most `capacity` objects.
    pub fn new(capacity: usize) -> Self {
        Self {
            entries: Vec::new(),
            capacity,
            filled: false,
            left_out: 0,
        }
    }

    /// Records the result of a pass at `now`, in record number `record`: `fresh` results replace earlier ones, other entries stay
    /// if `keep` returns true. `began` is when the history began.
    pub fn update(
        &mut self,
        mut fresh: Vec<Fresh>,
        keep: impl Fn(Key) -> bool,
        (began, now): (Timestamp, Timestamp),
        record: u32,
    ) {
        fresh.sort_by_key(|fresh| fresh.key);
        fresh.dedup_by_key(|fresh| fresh.key);
        let is_fresh = |key| fresh.binary_search_by_key(&key, |fresh| fresh.key).is_ok();
        let mut room = Room::default();
        let mut next: Vec<Entry> = Vec::with_capacity(self.capacity.min(
            fresh.len() + self.entries.len(), // An upper bound: most fresh objects have an entry.
        ));
        let kept = self.entries.iter();
        next.extend(
            kept.filter(|entry| !is_fresh(entry.key) && keep(entry.key))
                .cloned(),
        );
        for entry in &mut next {
            entry.known = room.take(&entry.known);
        }
        let left = self.capacity.saturating_sub(next.len());
        self.left_out = fresh.len().saturating_sub(left);
        for fresh in fresh.into_iter().take(left) {
            let old = self.get(fresh.key);
            let known = room.take(&fresh.known);
            let before = fresh.object_time.filter(|time| *time < began);
            let (since, at_least) = match (old, before) {
                (Some(old), _) if same(&old.known, &known) => (old.since, old.at_least),
                (None, Some(time)) if !self.filled => (time.as_microsecond(), true),
                _ => (now.as_microsecond(), false),
            };
            let mut records = old.map(|old| old.records).unwrap_or_default();
            if record > 0 && records[0] != record {
                records = [record, records[0], records[1]];
            }
            next.push(Entry {
                key: fresh.key,
                since,
                known,
                records,
                at_least,
            });
        }
        next.sort_by_key(|entry| entry.key);
        next.shrink_to_fit();
        self.entries = next;
        self.filled = true;
    }

    /// Returns the entry of an object.
    pub fn get(&self, key: Key) -> Option<&Entry> {
        let at = self.entries.binary_search_by_key(&key, |entry| entry.key);
        self.entries.get(at.ok()?)
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Reports whether the table has no objects.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of objects of the last pass for which there was no room.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Returns the memory of entries and reasons in bytes; parameters count as long as their JSON.
    pub fn memory(&self) -> usize {
        let mut seen = FxHashSet::default();
        let distinct = self
            .entries
            .iter()
            .filter(|e| seen.insert(Arc::as_ptr(&e.known)));
        let reasons = distinct.map(|entry| size_of::<Known>() + entry.known.bytes());
        self.entries.capacity() * size_of::<Entry>() + reasons.sum::<usize>()
    }
}

/// Reports whether an object still has the same reason, or the same place.
fn same(old: &Known, new: &Known) -> bool {
    match (old, new) {
        (Known::Reason { id: old, .. }, Known::Reason { id: new, .. }) => old == new,
        (old, new) => old == new,
    }
}

/// The room that is left for parameters.
#[derive(Default)]
struct Room {
    used: usize,
    /// What was taken, by address, and what stands for it.
    taken: rustc_hash::FxHashMap<*const Known, Arc<Known>>,
    /// Reasons without parameters, by id.
    bare: rustc_hash::FxHashMap<&'static str, Arc<Known>>,
}

impl Room {
    /// Returns the same with its parameters if there is room for them, else without.
    fn take(&mut self, known: &Arc<Known>) -> Arc<Known> {
        if let Some(taken) = self.taken.get(&Arc::as_ptr(known)) {
            return Arc::clone(taken);
        }
        let needed = known.bytes() + size_of::<Known>();
        let taken = if self.used + needed <= MAX_PARAMETERS {
            self.used += needed;
            Arc::clone(known)
        } else {
            let bare = known.id_only();
            let id = bare.id().unwrap_or_default();
            Arc::clone(self.bare.entry(id).or_insert_with(|| Arc::new(bare)))
        };
        self.taken.insert(Arc::as_ptr(known), Arc::clone(&taken));
        taken
    }
}
