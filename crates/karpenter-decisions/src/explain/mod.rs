//! Explanations of pods, nodes, NodeClaims and NodePools.
//!
//! An explanation contains what the history and a snapshot know: the reason with its age and parameters, the records, prices and
//! usage. It runs no scheduling simulation; [`blocking`](crate::blocking) and [`what_if`](crate::what_if) do.

mod node;
mod pod;
mod pool;
mod reason;

use jiff::Timestamp;
use karpenter_core::cluster::Snapshot;
use serde::{Deserialize, Serialize};

pub(crate) use node::state as node_state;
pub use node::{NodeClaimExplanation, NodeExplanation, Usage, explain_node, explain_node_claim};
pub use pod::{Alike, PodExplanation, PoolReason, Stage, explain_pod};
pub use pool::{BudgetNow, LimitNow, NodePoolExplanation, explain_node_pool};
pub(crate) use pool::{limits, usage};
pub use reason::CurrentReason;

use crate::history::History;
use crate::index::Entry;
use crate::record::{DecisionRecord, RecordId};

/// Returns kube-scheduler's message about the pod of a uid.
pub type SchedulerMessages<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What a question is asked of.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    pub snapshot: &'a Snapshot,
    pub history: &'a History,
    pub messages: SchedulerMessages<'a>,
    pub now: Timestamp,
    pub engine: &'a str,
}

impl std::fmt::Debug for Question<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Question")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// When and on what an answer was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// The time of the answer.
    pub at: Timestamp,
    /// The epoch of the snapshot.
    pub epoch: u64,
    pub engine: String,
    /// Whether the answer is incomplete, because a bound was reached.
    pub truncated: bool,
}

impl Question<'_> {
    /// Returns what the answer is made of.
    pub fn observed(&self, truncated: bool) -> Observed {
        Observed {
            at: self.now,
            epoch: self.snapshot.epoch(),
            engine: self.engine.to_owned(),
            truncated,
        }
    }

    /// Returns the ids of an entry's records that still exist, latest first.
    fn records(&self, entry: Option<&Entry>) -> Vec<RecordId> {
        let ring = self.history.ring();
        let numbers = entry.into_iter().flat_map(Entry::records);
        numbers
            .filter_map(|number| ring.get(number))
            .map(|record: &std::sync::Arc<DecisionRecord>| record.id)
            .collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ObjectName {
    /// The namespace, unless the object belongs to none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
}

impl ObjectName {
    /// The name of an object without a namespace.
    pub fn cluster(name: &str) -> Self {
        Self {
            namespace: None,
            name: name.to_owned(),
        }
    }

    /// The name of an object in a namespace.
    pub fn namespaced(namespace: &str, name: &str) -> Self {
        Self {
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        }
    }
}

/// Identity of the object that an answer is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Metadata {
    /// The namespace, unless the object belongs to none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    /// The uid, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

impl Metadata {
    /// The identity of an object without a namespace.
    fn cluster(name: &str, uid: Option<String>) -> Self {
        Self {
            namespace: None,
            name: name.to_owned(),
            uid,
        }
    }
}
