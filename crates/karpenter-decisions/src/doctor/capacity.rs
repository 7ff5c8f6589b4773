//! What NodePools can launch.

use std::collections::{BTreeMap, BTreeSet};

use karpenter_core::instance_type::InstanceType;
use karpenter_core::pod::{NodeTerm, Shape};
use karpenter_core::requirements::{AllowUndefined, Operator, Requirement, Requirements};
use karpenter_core::resources::{Resources, plain};
use karpenter_core::taints::untolerated;
use serde_json::{Value, json};

use super::check::{Check, Severity};
use super::finding::{Draft, Subject};
use super::scan::{Pool, Scan};
use crate::explain::usage;

/// The part of a limit from which on it counts as nearly reached, in percent.
const NEARLY: i128 = 95;
/// The part of a node that DaemonSets may take, in percent.
const OVERHEAD: i64 = 30;
/// Characters of a provider's error in a finding.
const MAX_ERROR: usize = 200;

pub(super) fn check(scan: &Scan<'_>, found: &mut Vec<Draft>) {
    let used = usage(scan.snapshot);
    for pool in scan.pools() {
        let contradictions = contradictions(scan, pool);
        if contradictions.is_empty() {
            match no_instance_types(pool) {
                Some(draft) => found.push(draft),
                None => {
                    found.extend(min_values(pool));
                    found.extend(daemon_overhead(scan, pool));
                }
            }
        }
        found.extend(contradictions);
        found.extend(limits(pool, used.get(pool.name())));
    }
    overlapping(scan, found);
}

/// Returns a draft about a NodePool.
fn about(pool: &Pool<'_>, check: Check, mut parameters: Value) -> Draft {
    parameters["nodePool"] = pool.name().into();
    Draft {
        subjects: [Subject::pool(pool)].into(),
        ..Draft::of(check, parameters)
    }
}

/// Finds keys of requirements and labels that no value can meet.
fn contradictions(scan: &Scan<'_>, pool: &Pool<'_>) -> Vec<Draft> {
    let template = &pool.pool.spec.template;
    let names = &scan.snapshot.config().well_known;
    let mut by_key: BTreeMap<String, Vec<Requirement>> = BTreeMap::new();
    for requirement in &template.spec.requirements {
        let one = Requirements::from_api(std::slice::from_ref(requirement), names);
        for parsed in one.iter().flat_map(Requirements::iter) {
            let of = by_key.entry(parsed.key().to_owned()).or_default();
            of.push(parsed.clone());
        }
    }
    let labels = template.metadata.labels.iter().flatten();
    for label in Requirements::from_labels(labels, names).iter() {
        let of = by_key.entry(label.key().to_owned()).or_default();
        of.push(label.clone());
    }
    let excluded = |(key, all): (String, Vec<Requirement>)| {
        let mut merged = all.first()?.clone();
        let before = merged.is_never();
        for other in &all[1..] {
            merged = merged.intersection(other);
        }
        let is_never = merged.is_empty() && all.iter().all(|one| !one.is_empty());
        (is_never || (merged.is_never() && !before && all.len() > 1)).then(|| {
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            Draft {
                severity: Severity::Blocks,
                what: format!(
                    "NodePool {} has requirements on {key} that exclude each other",
                    pool.name()
                ),
                why: format!(
                    "No node can meet all of these, so that none is launched: {}.",
                    all.join("; ")
                ),
                fix: "Keep one of the requirements, or give them common values.".into(),
                ..about(
                    pool,
                    Check::ContradictoryRequirements,
                    json!({ "key": key, "requirements": all }),
                )
            }
        })
    };
    by_key.into_iter().filter_map(excluded).collect()
}

/// Finds a NodePool for which no instance type is left. One whose NodeClass is not ready is a finding of another check.
fn no_instance_types(pool: &Pool<'_>) -> Option<Draft> {
    if pool.not_ready_class().is_some() || pool.requirements.is_none() {
        return None;
    }
    let (offered, error) = match pool.types.as_ref()? {
        Ok(types) if pool.compatible.is_empty() => (types.len(), String::new()),
        Ok(_) => return None,
        Err(error) => (0, error.chars().take(MAX_ERROR).collect()),
    };
    let (why, fix) = match error.is_empty() {
        true => (
            format!(
                "Its requirements exclude all {offered} instance types that the provider offers: no node is launched."
            ),
            "Relax the requirements of the NodePool: instance types, sizes, zones, architecture.",
        ),
        false => (
            format!("The provider cannot list its instance types: {error}."),
            "See the events of the NodePool and its NodeClass, and Karpenter's log.",
        ),
    };
    Some(Draft {
        severity: Severity::Blocks,
        what: format!("NodePool {} has no instance type to launch", pool.name()),
        why,
        fix: fix.into(),
        ..about(
            pool,
            Check::NoInstanceTypes,
            json!({ "offered": offered, "error": error }),
        )
    })
}

/// Finds `minValues` that the instance types of the NodePool do not reach.
fn min_values(pool: &Pool<'_>) -> Vec<Draft> {
    let all = pool.requirements.iter().flat_map(Requirements::iter);
    let unreached = all.filter_map(|requirement| {
        let min_values = requirement.min_values()?;
        let mut values: BTreeSet<&str> = BTreeSet::new();
        for it in pool.launchable() {
            if let Some(of_type) = it.requirements.get(requirement.key()) {
                values.extend(of_type.values().filter(|value| requirement.has(value)));
            }
        }
        let available = values.len();
        let (name, key) = (pool.name(), requirement.key());
        (available < usize::try_from(min_values).unwrap_or(usize::MAX)).then(|| Draft {
            severity: Severity::Blocks,
            what: format!("NodePool {name} requires {min_values} values of {key}, and there are {available}"),
            why: "It demands a choice among more values than its instance types have: no node is launched.".into(),
            fix: "Lower minValues, or allow more instance types.".into(),
            ..about(
                pool,
                Check::MinValuesUnreachable,
                json!({ "key": key, "minValues": min_values, "available": available }),
            )
        })
    });
    unreached.collect()
}

/// Finds limits of which less than 5 % is left.
fn limits(pool: &Pool<'_>, used: Option<&Resources>) -> Vec<Draft> {
    let limits = Resources::allocatable_from(&pool.pool.spec.limits).unwrap_or_default();
    let near = limits.iter().filter_map(|(resource, limit)| {
        let used = used.map_or(0, |used| used.get(resource));
        let is_reached = used >= limit;
        (i128::from(used) * 100 >= i128::from(limit) * NEARLY).then(|| {
            let (name, used, limit) = (pool.name(), plain(resource, used), plain(resource, limit));
            let why = match is_reached {
                true => "The limit is used up: pods that need another node of this NodePool wait.",
                false => "Less than 5 % is left: soon pods that need another node of this NodePool will wait.",
            };
            Draft {
                severity: Severity::blocks_if(is_reached),
                what: format!("NodePool {name} uses {used} of {limit} {resource}, its limit"),
                why: why.into(),
                fix: format!("Raise spec.limits.{resource}, or remove workloads."),
                ..about(
                    pool,
                    Check::LimitNearlyReached,
                    json!({ "resource": resource, "used": used, "limit": limit, "isReached": is_reached }),
                )
            }
        })
    });
    near.collect()
}

/// Finds DaemonSets that take more than 30 % of the smallest instance type.
fn daemon_overhead(scan: &Scan<'_>, pool: &Pool<'_>) -> Option<Draft> {
    let size = |it: &&InstanceType| {
        let allocatable = it.allocatable();
        (allocatable.get("cpu"), allocatable.get("memory"))
    };
    let smallest = pool.launchable().min_by_key(size)?;
    let node = pool.node_requirements()?;
    let names = &scan.snapshot.config().well_known;
    let labels: BTreeSet<String> = names.labels().map(str::to_owned).collect();
    let (mut requested, mut names_of) = (Resources::new(), Vec::new());
    for (set, newest) in scan.snapshot.daemon_sets() {
        let live = newest.unwrap_or(&set.template);
        let terms = match set.template_has_affinity || newest.is_none() {
            true => &set.template.shape.required_nodes,
            false => &live.shape.required_nodes,
        };
        let runs = untolerated(&pool.taints, &live.shape.tolerations).is_none()
            && alternatives(&live.shape, terms, names)
                .iter()
                .any(|wanted| {
                    let known = AllowUndefined::Keys(&labels);
                    node.is_compatible(wanted, known)
                        && smallest.requirements.intersects(wanted).is_ok()
                });
        if runs {
            requested.add_assign(&live.shape.requests);
            names_of.push(format!("{}/{}", set.namespace, set.name));
        }
    }
    let allocatable = smallest.allocatable();
    let share = |resource: &str| {
        let of = allocatable.get(resource);
        (of > 0).then(|| requested.get(resource).saturating_mul(100) / of)
    };
    let (percent, resource) = ["cpu", "memory"]
        .into_iter()
        .filter_map(|resource| Some((share(resource)?, resource)))
        .max_by_key(|(percent, _)| *percent)?;
    let (name, instance_type) = (pool.name(), &smallest.name);
    (percent > OVERHEAD).then(|| Draft {
        what: format!("DaemonSets take {percent}% of the {resource} of {instance_type}, the smallest type of NodePool {name}"),
        why: format!("Each node runs these, whatever its size: {}. Small nodes have little room left for anything else.", names_of.join(", ")),
        fix: "Exclude the smallest instance types in the NodePool's requirements, or lower the DaemonSets' requests.".into(),
        ..about(
            pool,
            Check::DaemonSetOverhead,
            json!({ "instanceType": instance_type, "resource": resource, "percent": percent, "daemonSets": names_of }),
        )
    })
}

/// Returns the node selector with each alternative of the required node affinity.
fn alternatives(
    shape: &Shape,
    terms: &[NodeTerm],
    names: &karpenter_api::validation::WellKnown,
) -> Vec<Requirements> {
    let selector = Requirements::from_labels(&shape.node_selector, names);
    if terms.is_empty() {
        return vec![selector];
    }
    let with = |term: &NodeTerm| {
        let mut all = selector.clone();
        for it in &term.expressions {
            let parsed = Requirement::parse(&it.key, &it.operator, &it.values);
            // An invalid expression is never met.
            let parsed =
                parsed.unwrap_or_else(|_| Requirement::new(&it.key, Operator::In, [""; 0]));
            all.add(parsed.canonical(names));
        }
        all
    };
    terms.iter().map(with).collect()
}

/// Finds NodePools of equal weight and equal taints that can launch the same instance type with the same labels.
fn overlapping(scan: &Scan<'_>, found: &mut Vec<Draft>) {
    let mut groups: BTreeMap<_, Vec<&Pool<'_>>> = BTreeMap::new();
    for pool in scan.pools().filter(|pool| !pool.pool.is_static()) {
        let mut taints: Vec<String> = pool.taints.iter().map(ToString::to_string).collect();
        taints.sort();
        let key = (pool.pool.weight(), taints);
        groups.entry(key).or_default().push(pool);
    }
    for ((weight, _), pools) in groups {
        let overlaps = |pool: &&&Pool<'_>| {
            let others = pools.iter().filter(|other| other.name() != pool.name());
            others.into_iter().any(|other| overlap(pool, other))
        };
        let mut same: Vec<&Pool<'_>> = pools.iter().filter(overlaps).copied().collect();
        same.sort_by(|a, b| karpenter_api::v1::NodePool::scheduling_order(a.pool, b.pool));
        let names: Vec<&str> = same.iter().map(|pool| pool.name()).collect();
        let Some(first) = names.first() else {
            continue;
        };
        found.push(Draft {
            what: format!("NodePools {} accept the same pods and have the same weight", names.join(", ")),
            why: format!("A pod that fits several of them gets a node of {first}, because its name comes last in the alphabet. Another NodePool may change that."),
            fix: "Give them different weights, or taints and requirements that exclude each other.".into(),
            subjects: same.iter().map(|pool| Subject::pool(pool)).collect(),
            ..Draft::of(Check::OverlappingNodePools, json!({ "nodePools": names, "weight": weight }))
        });
    }
}

fn overlap(a: &Pool<'_>, b: &Pool<'_>) -> bool {
    let (Some(of_a), Some(of_b)) = (&a.requirements, &b.requirements) else {
        return false;
    };
    if of_a.intersects(of_b).is_err() {
        return false;
    }
    let names: BTreeSet<&str> = a.launchable().map(|it| it.name.as_str()).collect();
    let mut shared = b.launchable();
    shared.any(|it| names.contains(it.name.as_str()))
}
