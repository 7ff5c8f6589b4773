//! A problem that a check found, before its savings are known.

use std::collections::BTreeSet;

use jiff::Timestamp;
use karpenter_api::v1::DisruptionReason;
use serde::Serialize;
use serde_json::Value;

use super::check::{Check, Severity};
use super::scan::{Blocker, Pool};
use crate::workload::Workload;

/// An object that a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Subject {
    pub kind: String,
    /// The namespace, unless the object belongs to none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
}

impl Subject {
    pub(super) fn cluster(kind: &str, name: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            namespace: None,
            name: name.to_owned(),
        }
    }

    pub(super) fn namespaced(kind: &str, namespace: &str, name: &str) -> Self {
        Self {
            namespace: Some(namespace.to_owned()),
            ..Self::cluster(kind, name)
        }
    }

    pub(super) fn workload(workload: &Workload) -> Self {
        Self::namespaced(&workload.kind, &workload.namespace, &workload.name)
    }

    pub(super) fn pool(pool: &Pool<'_>) -> Self {
        Self::cluster("NodePool", pool.name())
    }
}

/// What releases the nodes of a finding.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Release {
    /// It keeps no node.
    Nothing,
    /// Evictions that this blocks are allowed.
    Eviction(Blocker),
    /// The NodePool may disrupt nodes for these reasons.
    Pool {
        pool: String,
        reasons: Vec<DisruptionReason>,
        /// Whether `consolidateAfter: Never` keeps them, and not a budget.
        is_policy: bool,
    },
    /// The deletion of the nodes ends.
    Deleted,
    /// What a fix saves depends on more than the fix.
    Unknown,
}

/// A finding before its savings are known. Its texts are for readers who do not know Karpenter.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) check: Check,
    pub(super) severity: Severity,
    /// What is wrong, in one line.
    pub(super) what: String,
    /// Why it is a problem, with the evidence.
    pub(super) why: String,
    pub(super) fix: String,
    pub(super) parameters: Value,
    pub(super) subjects: BTreeSet<Subject>,
    pub(super) nodes: BTreeSet<String>,
    pub(super) release: Release,
    pub(super) since: Option<Timestamp>,
    pub(super) owner: String,
}

impl Draft {
    /// Returns a warning for the administrators of the cluster, about no object.
    pub(super) fn of(check: Check, parameters: Value) -> Self {
        Self {
            check,
            severity: Severity::Warns,
            what: String::new(),
            why: String::new(),
            fix: String::new(),
            parameters,
            subjects: BTreeSet::new(),
            nodes: BTreeSet::new(),
            release: Release::Nothing,
            since: None,
            owner: "cluster administrators".to_owned(),
        }
    }

    /// Returns it with the nodes that it keeps, without being what blocks them.
    pub(super) fn keeps(mut self, nodes: BTreeSet<String>, release: Release) -> Self {
        if !nodes.is_empty() {
            (self.nodes, self.release) = (nodes, release);
        }
        self
    }

    /// Returns it with the nodes that it blocks; without any it stays a warning.
    pub(super) fn blocks(mut self, nodes: BTreeSet<String>, release: Release) -> Self {
        self.severity = Severity::blocks_if(!nodes.is_empty());
        self.keeps(nodes, release)
    }
}

/// Returns `1 pod`, `2 pods`.
pub(super) fn plural(count: usize, one: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {one}s"),
    }
}
