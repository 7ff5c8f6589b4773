//! PodDisruptionBudgets that never allow an eviction, select the wrong pods, or overlap.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;
use karpenter_core::pod::LabelSelector;
use serde_json::json;

use super::check::Check;
use super::finding::{Draft, Release, Subject, plural};
use super::scan::{Blocker, Pdb, Scan};
use crate::pdb::{PdbState, is_current};
use crate::workload::Workload;

/// A younger PodDisruptionBudget may be ahead of its pods, and of its status.
const MIN_AGE: SignedDuration = SignedDuration::from_mins(10);
/// Owners that a finding names.
const OWNERS: usize = 3;

#[derive(Default)]
struct Selected {
    /// The number of active pods.
    pods: usize,
    workloads: BTreeSet<Workload>,
}

pub(super) fn check(scan: &Scan<'_>, found: &mut Vec<Draft>) {
    let mut selected: Vec<Selected> = scan.pdbs().iter().map(|_| Selected::default()).collect();
    let mut several: BTreeMap<Arc<[usize]>, Selected> = BTreeMap::new();
    for pod in scan.snapshot.pods().filter(|pod| pod.is_active()) {
        let by = scan.pdbs_of(pod);
        if by.is_empty() {
            continue;
        }
        let workload = Workload::of(pod);
        for index in by.iter() {
            let of = &mut selected[*index];
            of.pods += 1;
            if of.workloads.len() <= OWNERS {
                of.workloads.insert(workload.clone());
            }
        }
        if by.len() > 1 {
            let of = several.entry(by).or_default();
            of.pods += 1;
            of.workloads.insert(workload);
        }
    }
    for (index, (pdb, selected)) in scan.pdbs().iter().zip(&selected).enumerate() {
        if let Some(draft) = wrong(scan, pdb, selected) {
            let draft = Draft {
                subjects: [subject(pdb)].into(),
                since: pdb.created_at(),
                owner: owner(&selected.workloads, pdb),
                ..draft
            };
            found.push(match draft.check {
                Check::PdbSelection => draft,
                _ => draft.blocks(
                    scan.blocked_by(&Blocker::Pdb(index)),
                    Release::Eviction(Blocker::Pdb(index)),
                ),
            });
        }
    }
    for (by, selected) in several {
        let pdbs: Vec<&Pdb<'_>> = by.iter().map(|index| &scan.pdbs()[*index]).collect();
        let Some(first) = pdbs.first() else { continue };
        let names: Vec<String> = pdbs.iter().map(|pdb| pdb.id()).collect();
        let blocker = Blocker::SeveralPdbs(by.clone());
        let draft = Draft {
            what: format!("{} PodDisruptionBudgets select the same {}: {}", names.len(), plural(selected.pods, "pod"), names.join(", ")),
            why: "The API server rejects every eviction of a pod that more than one PodDisruptionBudget selects.".into(),
            fix: "Keep one of them, or make their selectors distinct.".into(),
            subjects: pdbs.iter().map(|pdb| subject(pdb)).collect(),
            since: pdbs.iter().filter_map(|pdb| pdb.created_at()).max(),
            owner: owner(&selected.workloads, first),
            ..Draft::of(Check::SeveralPdbs, json!({ "pdbs": names, "pods": selected.pods }))
        };
        found.push(draft.blocks(scan.blocked_by(&blocker), Release::Eviction(blocker)));
    }
}

fn subject(pdb: &Pdb<'_>) -> Subject {
    Subject::namespaced("PodDisruptionBudget", pdb.namespace(), pdb.name())
}

/// Returns the workloads whose owners can act; without one, the PodDisruptionBudget itself.
fn owner(workloads: &BTreeSet<Workload>, pdb: &Pdb<'_>) -> String {
    let named: Vec<String> = workloads
        .iter()
        .take(OWNERS)
        .map(ToString::to_string)
        .collect();
    match named.is_empty() {
        true => format!("namespace {}", pdb.namespace()),
        false if workloads.len() > OWNERS => format!("{} and others", named.join(", ")),
        false => named.join(", "),
    }
}

/// Returns what is wrong with one PodDisruptionBudget.
fn wrong(scan: &Scan<'_>, pdb: &Pdb<'_>, selected: &Selected) -> Option<Draft> {
    let created = pdb.created_at();
    let is_young = created.is_some_and(|created| scan.now.duration_since(created) < MIN_AGE);
    if pdb.selector == LabelSelector::Matching(Vec::new()) && selected.workloads.len() > 1 {
        return impossible(pdb, selected).or_else(|| Some(selects_everything(pdb)));
    }
    if selected.pods == 0 {
        return (!is_young).then(|| selects_nothing(pdb));
    }
    impossible(pdb, selected).or_else(|| stale(pdb).filter(|_| !is_young))
}

fn selects_nothing(pdb: &Pdb<'_>) -> Draft {
    let id = pdb.id();
    Draft {
        what: format!("PodDisruptionBudget {id} selects no pod"),
        why: "Its selector matches no pod of its namespace: it protects nothing. Often a label is misspelt, or the workload is gone.".into(),
        fix: "Correct its selector, or delete it.".into(),
        ..Draft::of(Check::PdbSelection, json!({ "pdb": id }))
    }
}

fn selects_everything(pdb: &Pdb<'_>) -> Draft {
    let (id, namespace) = (pdb.id(), pdb.namespace());
    Draft {
        what: format!("PodDisruptionBudget {id} selects every pod of namespace {namespace}"),
        why: format!(
            "Its selector is empty. Every pod of namespace {namespace} counts, and one that is not ready can block the eviction of all others."
        ),
        fix: "Give each workload a PodDisruptionBudget of its own.".into(),
        ..Draft::of(
            Check::PdbSelection,
            json!({ "pdb": id, "namespace": namespace }),
        )
    }
}

/// Finds a rule by which no number of ready pods allows an eviction.
fn impossible(pdb: &Pdb<'_>, selected: &Selected) -> Option<Draft> {
    let state = PdbState::with_pods(pdb.object, pdb.namespace(), || selected.pods);
    let (id, rule, pods) = (pdb.id(), state.rule(), state.expected);
    let fix = match pods {
        ..=1 => {
            "Run 2 replicas, or set maxUnavailable: 1 in the PodDisruptionBudget (the pod is then restarted elsewhere, with a short outage)."
        }
        _ => {
            "Set maxUnavailable: 1 in the PodDisruptionBudget, or a minAvailable below the number of replicas."
        }
    };
    state.impossible.then(|| Draft {
        what: format!("PodDisruptionBudget {id} can never allow an eviction"),
        why: format!("It demands {rule} of {pods}, so that no pod may be evicted, ever. The node of such a pod can neither be removed nor replaced, not even for a security update."),
        fix: fix.into(),
        ..Draft::of(Check::PdbImpossible, json!({ "pdb": id, "rule": rule, "pods": pods }))
    })
}

/// Finds a status that does not follow the specification.
fn stale(pdb: &Pdb<'_>) -> Option<Draft> {
    let (id, message) = (pdb.id(), stale_message(pdb)?);
    let why = match message.is_empty() {
        true => "Kubernetes' disruption controller has not processed the latest change".to_owned(),
        false => format!("Kubernetes' disruption controller reports: {message}"),
    };
    Some(Draft {
        what: format!("PodDisruptionBudget {id} has an outdated status"),
        why: format!(
            "{why}. Until it has, the number of allowed evictions is not known, and evictions may be rejected."
        ),
        fix: "See the PodDisruptionBudget's events, and the log of kube-controller-manager.".into(),
        ..Draft::of(
            Check::PdbStatusStale,
            json!({ "pdb": id, "message": message }),
        )
    })
}

/// Returns the message of the disruption controller if it could not follow the specification, which may be empty.
fn stale_message(pdb: &Pdb<'_>) -> Option<String> {
    let status = pdb.object.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let failed = conditions.into_iter().flatten().find(|condition| {
        condition.type_ == "DisruptionAllowed" && condition.reason == "SyncFailed"
    });
    match failed {
        Some(condition) => Some(condition.message.clone()),
        None => (!is_current(pdb.object)).then(String::new),
    }
}
