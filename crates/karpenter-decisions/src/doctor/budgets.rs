//! PodDisruptionBudgets that never allow an eviction, select the wrong pods, or overlap.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;
use karpenter_core::pod::LabelSelector;

use super::evidence::Evidence;
use super::savings::Release;
use super::scan::{Hold, Pdb, Scan};
use super::{Draft, Subject};
use crate::pdb::{PdbState, is_current};
use crate::workload::Workload;

/// A younger PodDisruptionBudget may be ahead of its pods, and of its status.
const YOUNG: SignedDuration = SignedDuration::from_mins(10);
/// Owners that a finding names.
const OWNERS: usize = 3;

/// What a PodDisruptionBudget selects.
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
        if let Some(evidence) = wrong(scan, pdb, selected) {
            let nodes = match evidence {
                Evidence::PdbSelectsNothing { .. } | Evidence::PdbSelectsEverything { .. } => {
                    BTreeSet::new()
                }
                _ => scan.kept_by(&Hold::Pdb(index)),
            };
            found.push(
                Draft::new(evidence)
                    .about(subject(pdb))
                    .since(pdb.created_at())
                    .owned_by(owner(&selected.workloads, pdb))
                    .keeps(nodes, Release::Eviction(Hold::Pdb(index))),
            );
        }
    }
    for (by, selected) in several {
        let pdbs: Vec<&Pdb<'_>> = by.iter().map(|index| &scan.pdbs()[*index]).collect();
        let Some(first) = pdbs.first() else { continue };
        let evidence = Evidence::SeveralPdbs {
            pdbs: pdbs.iter().map(|pdb| pdb.id()).collect(),
            pods: selected.pods,
        };
        let newest = pdbs.iter().filter_map(|pdb| pdb.created_at()).max();
        let hold = Hold::SeveralPdbs(by.clone());
        let mut draft = Draft::new(evidence)
            .since(newest)
            .owned_by(owner(&selected.workloads, first));
        draft.subjects = pdbs.iter().map(|pdb| subject(pdb)).collect();
        found.push(draft.keeps(scan.kept_by(&hold), Release::Eviction(hold)));
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
fn wrong(scan: &Scan<'_>, pdb: &Pdb<'_>, selected: &Selected) -> Option<Evidence> {
    let created = pdb.created_at();
    let is_young = created.is_some_and(|created| scan.now.duration_since(created) < YOUNG);
    let id = pdb.id();
    if pdb.selector == LabelSelector::Matching(Vec::new()) && selected.workloads.len() > 1 {
        // An impossible one is told as such.
        return impossible(pdb, selected).or_else(|| {
            Some(Evidence::PdbSelectsEverything {
                namespace: pdb.namespace().to_owned(),
                pdb: id,
            })
        });
    }
    if selected.pods == 0 {
        return (!is_young).then_some(Evidence::PdbSelectsNothing { pdb: id });
    }
    impossible(pdb, selected).or_else(|| {
        let message = stale(pdb)?;
        (!is_young).then_some(Evidence::PdbStatusStale { pdb: id, message })
    })
}

/// Returns the evidence if no number of ready pods allows an eviction.
fn impossible(pdb: &Pdb<'_>, selected: &Selected) -> Option<Evidence> {
    let state = PdbState::with_pods(pdb.object, pdb.namespace(), || selected.pods);
    state.impossible.then(|| Evidence::PdbImpossible {
        pdb: pdb.id(),
        rule: state.rule(),
        pods: state.expected.into(),
    })
}

/// Returns the message of the disruption controller if it could not follow the specification, which may be empty.
fn stale(pdb: &Pdb<'_>) -> Option<String> {
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
