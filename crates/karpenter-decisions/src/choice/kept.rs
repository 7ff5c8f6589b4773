//! The choices for the latest NodeClaims, and those that are not worked out yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::Snapshot;
use karpenter_core::pod::PodKey;
use karpenter_core::resources::Resources;
use rustc_hash::FxHashSet;

use super::{Choice, Launch, choose, largest};

/// NodeClaims whose choice is kept.
pub const MAX_CHOICES: usize = 1000;
/// Memory of all kept choices in bytes.
pub const MAX_BYTES: usize = 1 << 20;

/// The choice for a NodeClaim that is kept.
#[derive(Clone, Debug)]
struct Kept {
    uid: String,
    choice: Choice,
}

/// The choices for the latest NodeClaims, within [`MAX_CHOICES`] and [`MAX_BYTES`]. Equal lists are kept once.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    kept: VecDeque<Kept>,
}

impl Choices {
    /// Returns the choice for the NodeClaim of a uid.
    pub fn get(&self, uid: &str) -> Option<&Choice> {
        let found = self.kept.iter().rev().find(|kept| kept.uid == uid);
        found.map(|kept| &kept.choice)
    }

    /// Adds the choice for a NodeClaim; drops the oldest ones beyond the bounds.
    pub fn add(&mut self, uid: &str, mut choice: Choice) {
        // NodeClaims of one pass differ in their pods mostly.
        for kept in self.kept.iter().rev().take(16) {
            if kept.choice.options == choice.options {
                choice.options = kept.choice.options.clone();
            }
            if kept.choice.rejected == choice.rejected {
                choice.rejected = kept.choice.rejected.clone();
            }
        }
        self.kept.push_back(Kept {
            uid: uid.to_owned(),
            choice,
        });
        while self.kept.len() > MAX_CHOICES || self.memory() > MAX_BYTES {
            self.kept.pop_front();
        }
    }

    /// Returns the number of choices.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Reports whether there is none.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Returns the memory in bytes.
    pub fn memory(&self) -> usize {
        let mut seen: FxHashSet<*const u8> = FxHashSet::default();
        let mut sum = self.kept.capacity() * size_of::<Kept>();
        for Kept { uid, choice } in &self.kept {
            sum += uid.capacity();
            if seen.insert(choice.options.as_ptr().cast()) {
                let names = choice.options.iter().map(|it| it.instance_type.capacity());
                sum += size_of_val(&*choice.options) + names.sum::<usize>();
            }
            if seen.insert(choice.rejected.as_ptr().cast()) {
                let texts = choice
                    .rejected
                    .iter()
                    .map(|it| it.instance_type.capacity() + it.reason.to_string().len());
                sum += size_of_val(&*choice.rejected) + texts.sum::<usize>();
            }
        }
        sum
    }
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
