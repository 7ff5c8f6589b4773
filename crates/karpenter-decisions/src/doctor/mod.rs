//! What blocks nodes: a list of findings that names, for each, the evidence, the owner, the fix, and what it costs.
//!
//! [`examine`] runs all checks on a snapshot. A check is a pure function that returns drafts of findings: a new one is a variant of
//! [`Check`] and the function that fills a `Draft` with its sentences. What only the operator can know, such as a missing
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
//!
//! A file has the checks that read the same objects: most share the walk over them.

mod budgets;
mod capacity;
mod check;
mod disruption;
mod finding;
mod installation;
mod pods;
mod savings;
mod scan;
mod volumes;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

pub use check::{Check, Installation, MissingKind, MissingPermission, Severity};
pub use finding::Subject;
pub use scan::Examination;

use crate::explain::Observed;
use finding::Draft;
use savings::Savings;
use scan::Scan;

/// Subjects and nodes that a finding names; further ones are counted.
const NAMED: usize = 5;
/// Findings of a report, the most expensive ones.
const FINDINGS: usize = 500;
const HOURS: f64 = 24.0;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockerReport {
    pub api_version: &'static str,
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
    pub severity: Severity,
    /// What is wrong, in one line.
    pub what: String,
    /// The objects that have to be changed, or that are affected; at most five.
    pub subjects: Vec<Subject>,
    /// The number of further subjects.
    #[serde(skip_serializing_if = "crate::record::is_zero")]
    pub more_subjects: usize,
    /// What was found, as parameters and as text.
    pub evidence: Evidence,
    /// Nodes that it keeps; at most five.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// The number of nodes that it keeps.
    pub node_count: usize,
    /// Savings in dollars per day once it is fixed; absent for a finding that keeps no node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_per_day: Option<f64>,
    /// Whether the cost is a lower bound, because not all nodes were simulated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
    /// The number of its nodes that something else keeps as well, so that they are not part of the savings.
    #[serde(skip_serializing_if = "crate::record::is_zero")]
    pub also_blocked: usize,
    /// The earliest time at which the problem can have existed: the age of the oldest object in it, or of a condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Who can fix it: a workload, or the administrators of the cluster.
    pub owner: String,
    pub fix: String,
}

/// Evidence as parameters and as text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    pub parameters: Value,
    /// A sentence for readers who do not know Karpenter.
    pub text: String,
}

/// Runs all checks.
///
/// `namespace` leaves only what a team can fix there: findings with a subject in that namespace.
pub fn examine(
    examination: &Examination<'_>,
    observed: Observed,
    namespace: Option<&str>,
) -> BlockerReport {
    let scan = Scan::new(examination.snapshot, examination.policy.now);
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
        .map(|(number, draft)| Finding::new(draft, &mut savings, number))
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
    fn new(draft: Draft, savings: &mut Savings<'_>, number: usize) -> Self {
        let amount = savings.of(number, &draft);
        Self {
            id: draft.check.id(),
            severity: draft.severity,
            what: draft.what,
            more_subjects: draft.subjects.len().saturating_sub(NAMED),
            subjects: draft.subjects.into_iter().take(NAMED).collect(),
            evidence: Evidence {
                parameters: draft.parameters,
                text: draft.why,
            },
            node_count: draft.nodes.len(),
            nodes: draft.nodes.into_iter().take(NAMED).collect(),
            cost_per_day: amount.as_ref().map(|amount| amount.per_hour * HOURS),
            at_least: amount.as_ref().is_some_and(|amount| amount.at_least),
            also_blocked: amount.map_or(0, |amount| amount.also_blocked),
            since: draft.since,
            owner: draft.owner,
            fix: draft.fix,
        }
    }

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
