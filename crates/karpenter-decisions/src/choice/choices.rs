//! The choices for the latest NodeClaims, and those that are not worked out yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::Snapshot;
use karpenter_core::pod::PodKey;
use karpenter_core::resources::Resources;
use rustc_hash::FxHashMap;

use super::{Choice, Launch, choose, largest};

pub const MAX_CHOICES: usize = 1000;
/// Memory of all choices in bytes.
pub const MAX_BYTES: usize = 1 << 20;

#[derive(Clone, Debug)]
struct Entry {
    uid: String,
    choice: Choice,
}

/// The choices for the latest NodeClaims, within [`MAX_CHOICES`] and [`MAX_BYTES`]. Equal lists are stored once.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    entries: VecDeque<Entry>,
    /// The lists by address: how often they are used, and their memory.
    lists: FxHashMap<usize, (usize, usize)>,
    /// The memory of lists and uids.
    bytes: usize,
}

/// The memory of a choice beside its lists.
const SLOT: usize = size_of::<Entry>() + 2 * size_of::<(usize, (usize, usize))>();

impl Choices {
    /// Returns the choice for the NodeClaim of a uid.
    pub fn get(&self, uid: &str) -> Option<&Choice> {
        let found = self.entries.iter().rev().find(|entry| entry.uid == uid);
        found.map(|entry| &entry.choice)
    }

    /// Adds the choice for a NodeClaim; drops the oldest ones beyond the bounds.
    pub fn add(&mut self, uid: &str, mut choice: Choice) {
        // NodeClaims of one pass differ in their pods mostly.
        for entry in self.entries.iter().rev().take(16) {
            if entry.choice.options == choice.options {
                choice.options = entry.choice.options.clone();
            }
            if entry.choice.rejected == choice.rejected {
                choice.rejected = entry.choice.rejected.clone();
            }
        }
        for (address, bytes) in lists(&choice) {
            let (used, _) = self.lists.entry(address).or_insert((0, bytes));
            *used += 1;
            if *used == 1 {
                self.bytes += bytes;
            }
        }
        self.bytes += uid.len() + SLOT;
        self.entries.push_back(Entry {
            uid: uid.to_owned(),
            choice,
        });
        while self.entries.len() > MAX_CHOICES || self.bytes > MAX_BYTES {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.entries.pop_front() else {
            return;
        };
        self.bytes -= oldest.uid.len() + SLOT;
        for (address, _) in lists(&oldest.choice) {
            let Some((used, bytes)) = self.lists.get_mut(&address) else {
                continue;
            };
            *used -= 1;
            if *used == 0 {
                self.bytes -= *bytes;
                self.lists.remove(&address);
            }
        }
    }

    /// Returns the number of choices.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Reports whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the memory in bytes.
    pub fn memory(&self) -> usize {
        self.bytes
    }
}

/// Returns the address and the memory of the lists of a choice.
fn lists(choice: &Choice) -> [(usize, usize); 2] {
    // Two counters of an `Arc`.
    const COUNTERS: usize = 2 * size_of::<usize>();
    let names = choice.options.iter().map(|it| it.instance_type.capacity());
    let options = size_of_val(&*choice.options) + names.sum::<usize>();
    let texts = choice.rejected.iter().map(|it| {
        // The parameters of a reason are part of its text.
        it.instance_type.capacity() + it.reason.to_string().len()
    });
    let rejected = size_of_val(&*choice.rejected) + texts.sum::<usize>();
    [
        (choice.options.as_ptr().addr(), options + COUNTERS),
        (choice.rejected.as_ptr().addr(), rejected + COUNTERS),
    ]
}

/// The NodeClaims of a pass whose choices are not worked out yet, with the snapshot of the pass.
#[derive(Debug)]
pub struct Waiting {
    /// The snapshot that the pass decided on.
    pub snapshot: Snapshot,
    /// The NodeClaims in the order in which they were planned, with their pods.
    pub claims: Vec<(Arc<NodeClaim>, Vec<PodKey>)>,
}

impl Waiting {
    /// Works out the choices, each with the uid of its NodeClaim.
    pub fn work(&self) -> Vec<(String, Choice)> {
        let mut earlier: BTreeMap<&str, Resources> = BTreeMap::new();
        let mut found = Vec::new();
        for (claim, pods) in &self.claims {
            let Some(pool) = claim.node_pool() else {
                continue;
            };
            let before = earlier.entry(pool).or_default();
            let launch = Launch {
                claim,
                pods,
                earlier: before,
            };
            if let Some(choice) = choose(&self.snapshot, launch) {
                found.push((claim.uid().to_owned(), choice));
            }
            before.add_assign(&largest(&self.snapshot, claim));
        }
        found
    }
}
