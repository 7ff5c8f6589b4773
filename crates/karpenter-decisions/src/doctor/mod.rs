//! What blocks nodes: a list of findings that names, for each, the evidence, the owner, the fix, and what it costs.
//!
//! [`examine`] runs all checks on a snapshot. A check is a pure function; what only the operator can know, such as a missing
//! permission, is handed in as [`Installation`]. The dollars of a finding are the savings of the consolidation that becomes
//! possible once it is fixed, found by running the engine on a cluster in which it is.
//!
//! | Check | File |
//! |---|---|
//! | PodDisruptionBudgets | `budgets` |
//! | pods, and objects that do not terminate | `pods` |
//! | volumes | `volumes` |
//! | when NodePools may disrupt nodes | `disruption` |
//! | what NodePools can launch | `capacity` |
//! | the installation | `installation` |

mod budgets;
mod capacity;
mod check;
mod disruption;
mod evidence;
mod installation;
mod pods;
mod savings;
mod scan;
mod sentences;
mod volumes;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use karpenter_core::cluster::Snapshot;
use karpenter_core::schedule::{Cancel, Policy};
use serde::Serialize;

pub use check::{Check, Severity};
pub use evidence::Evidence;
pub use installation::{Installation, MissingKind, MissingPermission};

use crate::explain::Observed;
use savings::{Release, Savings};
use scan::Scan;

/// Subjects and nodes that a finding names; further ones are counted.
const NAMED: usize = 5;
/// Findings of a report. The most expensive ones are kept.
const FINDINGS: usize = 500;
/// Hours of a day.
const HOURS: f64 = 24.0;

#[derive(Clone)]
pub struct Examination<'a> {
    pub snapshot: &'a Snapshot,
    /// The settings of scheduling simulations. Their time is that of the examination.
    pub policy: &'a Policy,
    /// Ends the search for savings.
    pub cancel: Option<Cancel>,
    /// Whether spot nodes may be replaced by spot nodes (feature gate).
    pub spot_to_spot: bool,
    /// What is known about the installation.
    pub installation: &'a Installation,
}

impl Examination<'_> {
    fn now(&self) -> Timestamp {
        self.policy.now
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockerReport {
    /// [`API_VERSION`](crate::API_VERSION).
    pub api_version: &'static str,
    /// `BlockerReport`.
    pub kind: &'static str,
    /// When and on what the answer was made.
    pub observed: Observed,
    /// The ids of all checks that ran.
    pub ran: Vec<&'static str>,
    /// The sum of what the findings cost, in dollars per day.
    pub cost_per_day: f64,
    /// The findings: those that block first, then the most expensive ones.
    pub checks: Vec<Finding>,
}

/// One finding of a check.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The id of the check.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, in one line.
    pub what: String,
    /// The objects that have to be changed, or that are affected; at most five.
    pub subjects: Vec<Subject>,
    /// The number of further subjects.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_subjects: usize,
    /// What was found, as parameters and as text.
    pub evidence: Told,
    /// Nodes that it keeps; at most five.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// The number of nodes that it keeps.
    pub node_count: usize,
    /// Savings in dollars per day once it is fixed; absent for a finding that keeps no node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_per_day: Option<f64>,
    /// Whether it costs at least so much, because not all nodes were simulated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
    /// The number of its nodes that something else keeps as well, so that they are not part of the savings.
    #[serde(skip_serializing_if = "is_zero")]
    pub also_blocked: usize,
    /// Since when it can have been so: the age of the oldest object that it takes, or of a condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Who can fix it: a workload, or the administrators of the cluster.
    pub owner: String,
    pub fix: String,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Evidence as parameters and as text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Told {
    pub parameters: Evidence,
    /// A sentence for readers who do not know Karpenter.
    pub text: String,
}

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
    fn cluster(kind: &str, name: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            namespace: None,
            name: name.to_owned(),
        }
    }

    fn namespaced(kind: &str, namespace: &str, name: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        }
    }
}

/// A finding before its savings are known.
#[derive(Clone, Debug)]
struct Draft {
    evidence: Evidence,
    subjects: BTreeSet<Subject>,
    /// Nodes that it keeps.
    nodes: BTreeSet<String>,
    release: Release,
    since: Option<Timestamp>,
    owner: String,
}

/// The owner of what only administrators change.
const ADMINISTRATORS: &str = "cluster administrators";

impl Draft {
    fn new(evidence: Evidence) -> Self {
        Self {
            evidence,
            subjects: BTreeSet::new(),
            nodes: BTreeSet::new(),
            release: Release::Nothing,
            since: None,
            owner: ADMINISTRATORS.to_owned(),
        }
    }

    fn about(mut self, subject: Subject) -> Self {
        self.subjects.insert(subject);
        self
    }

    fn since(mut self, since: Option<Timestamp>) -> Self {
        self.since = since;
        self
    }

    fn owned_by(mut self, owner: String) -> Self {
        self.owner = owner;
        self
    }

    fn keeps(mut self, nodes: BTreeSet<String>, release: Release) -> Self {
        if !nodes.is_empty() {
            (self.nodes, self.release) = (nodes, release);
        }
        self
    }

    fn severity(&self) -> Severity {
        self.evidence.severity(!self.nodes.is_empty())
    }

    fn finding(self, savings: &mut Savings<'_>, number: usize) -> Finding {
        let severity = self.severity();
        let amount = savings.of(number, &self);
        let named = |all: &BTreeSet<String>| all.iter().take(NAMED).cloned().collect();
        Finding {
            id: self.evidence.check().id(),
            severity,
            what: self.evidence.what(),
            more_subjects: self.subjects.len().saturating_sub(NAMED),
            nodes: named(&self.nodes),
            node_count: self.nodes.len(),
            cost_per_day: amount.as_ref().map(|amount| amount.per_hour * HOURS),
            at_least: amount.as_ref().is_some_and(|amount| amount.at_least),
            also_blocked: amount.map_or(0, |amount| amount.also_blocked),
            since: self.since,
            owner: self.owner,
            fix: self.evidence.fix(),
            evidence: Told {
                text: self.evidence.why(),
                parameters: self.evidence,
            },
            subjects: self.subjects.into_iter().take(NAMED).collect(),
        }
    }
}

/// Runs all checks.
///
/// `namespace` leaves only what a team can fix there: findings with a subject in that namespace.
pub fn examine(
    examination: &Examination<'_>,
    observed: Observed,
    namespace: Option<&str>,
) -> BlockerReport {
    let scan = Scan::new(examination.snapshot, examination.now());
    let mut drafts = Vec::new();
    budgets::check(&scan, &mut drafts);
    pods::check(&scan, &mut drafts);
    volumes::check(&scan, &mut drafts);
    disruption::check(&scan, &mut drafts);
    capacity::check(&scan, &mut drafts);
    installation::check(&scan, examination.installation, &mut drafts);
    let mut savings = Savings::new(examination, &scan, &drafts);
    let of_namespace = |draft: &Draft| {
        namespace.is_none_or(|namespace| {
            let inside = |subject: &Subject| subject.namespace.as_deref() == Some(namespace);
            draft.subjects.iter().any(inside)
        })
    };
    let mut checks: Vec<Finding> = drafts
        .into_iter()
        .enumerate()
        .filter(|(_, draft)| of_namespace(draft))
        .map(|(number, draft)| draft.finding(&mut savings, number))
        .collect();
    checks.sort_by(Finding::order);
    let is_cut = checks.len() > FINDINGS;
    checks.truncate(FINDINGS);
    let costs = checks.iter().filter_map(|finding| finding.cost_per_day);
    BlockerReport {
        api_version: crate::API_VERSION,
        kind: "BlockerReport",
        observed: Observed {
            truncated: observed.truncated || is_cut,
            exact: true,
            ..observed
        },
        ran: Check::ALL
            .into_iter()
            .filter(|check| examination.installation.is_known_for(*check))
            .map(Check::id)
            .collect(),
        // An empty sum is -0.0.
        cost_per_day: costs.fold(0.0, |sum, cost| sum + cost),
        checks,
    }
}

impl Finding {
    /// Orders by severity, dollars, number of nodes, check, text.
    fn order(a: &Self, b: &Self) -> Ordering {
        let cost = |it: &Self| it.cost_per_day.unwrap_or_default();
        (a.severity.cmp(&b.severity))
            .then_with(|| cost(b).total_cmp(&cost(a)))
            .then_with(|| b.node_count.cmp(&a.node_count))
            .then_with(|| (a.id, &a.what).cmp(&(b.id, &b.what)))
    }
}

impl BlockerReport {
    /// Returns the number of findings and their dollars per day, by the id of each check that ran.
    pub fn by_check(&self) -> BTreeMap<&'static str, (usize, f64)> {
        let mut all: BTreeMap<&'static str, (usize, f64)> =
            self.ran.iter().map(|id| (*id, (0, 0.0))).collect();
        for finding in &self.checks {
            let (count, cost) = all.entry(finding.id).or_default();
            *count += 1;
            *cost += finding.cost_per_day.unwrap_or_default();
        }
        all
    }
}
