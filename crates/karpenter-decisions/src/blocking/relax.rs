//! Turns constraints whose relaxation helps into the smallest change that helps, with its cost.

use std::collections::BTreeSet;

use karpenter_api::labels;
use karpenter_api::v1::{NodePool, NodeSelectorRequirementWithMinValues, Operator};
use karpenter_core::pod::{Pod, Shape, Toleration};
use karpenter_core::resources::{in_words, plain};
use karpenter_core::schedule::PlannedNodeClaim;
use serde_json::{Value, json};

use super::answer::{Amount, Constraint, Effect, NewNode, Patch, Relaxation, constraint, until};
use super::atom::{Atom, Side, toleration};
use super::probe::{Outcome, Probe};
use super::search::Set;
use crate::workload::Workload;

/// Values that are tried for a requirement that excludes what the pod needs.
const VALUES: usize = 3;
/// The largest `maxSkew` that is suggested.
const MAX_SKEW: i32 = 1024;

/// A change that goes less far than lifting a constraint, and was run.
struct Refined {
    text: String,
    amount: Option<Amount>,
    patch: Option<Patch>,
    outcome: Outcome,
}

/// Returns the change that relaxes these constraints; `None` if a run of the whole cluster does not confirm that it helps.
pub(super) fn relaxation(probe: &mut Probe<'_>, set: &Set) -> Option<Relaxation> {
    let lifted = probe.verify(set).filter(|outcome| outcome.fits)?;
    let single = match set.iter().copied().collect::<Vec<_>>()[..] {
        [index] => Some(probe.atoms[index].clone()),
        _ => None,
    };
    let refined = single.and_then(|atom| refine(probe, &atom, &lifted));
    let (mut atoms, mut texts, mut patches, mut affects, mut side) =
        (Vec::new(), Vec::new(), Vec::new(), None, Side::Pod);
    for index in set {
        let atom = &probe.atoms[*index];
        let Constraint { id, path, text, .. } = constraint(probe, *index);
        atoms.push(id);
        texts.push(lift_text(probe, atom, &text));
        patches.extend(lift_patch(probe, atom, path.as_deref()));
        side = side.max(atom.side());
        if let Atom::OtherAntiAffinity(workload, _) = atom {
            affects = Some(workload.to_string());
        }
    }
    let (text, change, patch, outcome) = match refined {
        Some(refined) => (refined.text, refined.amount, refined.patch, refined.outcome),
        None => {
            let one = (set.len() == 1).then(|| patches.pop()).flatten();
            (texts.join(" and "), None, one, lifted)
        }
    };
    Some(Relaxation {
        atoms,
        side,
        text,
        change,
        patch,
        effect: effect(&outcome)?,
        delta_per_hour: price(&outcome),
        exact: true,
        affects,
    })
}

/// Returns the price of the nodes that are launched, in dollars per hour.
pub(super) fn price(outcome: &Outcome) -> f64 {
    // An empty sum is -0.0.
    outcome.plan.hourly_price() + 0.0
}

pub(super) fn effect(outcome: &Outcome) -> Option<Effect> {
    if let Some(placement) = outcome.plan.existing.first() {
        return Some(Effect::Node(placement.node.clone()));
    }
    let claim = outcome.plan.new_node_claims.first()?;
    Some(Effect::NewNode(NewNode::of(claim)))
}

/// Finds the smallest change of one constraint that helps; `None` if it can only be lifted.
fn refine(probe: &mut Probe<'_>, atom: &Atom, lifted: &Outcome) -> Option<Refined> {
    match atom {
        Atom::Spread(index) => max_skew(probe, *index),
        Atom::Request(resource) => request(probe, resource, lifted),
        Atom::Limit(pool, resource) => limit(probe, pool, resource, lifted),
        Atom::MinValues(pool, index) => min_values(probe, pool, *index),
        Atom::PoolRequirement(pool, index) => requirement(probe, pool, *index, lifted),
        _ => None,
    }
}

/// Runs the pod with a changed shape.
fn with_shape(probe: &mut Probe<'_>, change: impl FnOnce(&mut Shape)) -> Option<Outcome> {
    let mut shape = Shape::clone(&probe.pod.shape);
    change(&mut shape);
    probe.with_shape(shape)
}

/// Finds the smallest of `low + 1 ..= high` for which the run fits. Returns `None` if `high` itself does not fit.
fn smallest(
    low: i64,
    high: i64,
    mut run: impl FnMut(i64) -> Option<Outcome>,
) -> Option<(i64, Outcome)> {
    let mut best = (high, run(high).filter(|outcome| outcome.fits)?);
    let mut low = low;
    while best.0 - low > 1 {
        let middle = low + (best.0 - low) / 2;
        match run(middle)? {
            outcome if outcome.fits => best = (middle, outcome),
            _ => low = middle,
        }
    }
    Some(best)
}

fn max_skew(probe: &mut Probe<'_>, index: usize) -> Option<Refined> {
    let now = probe.pod.shape.spread[index].max_skew;
    let mut run = |skew: i64| {
        with_shape(probe, |shape| {
            shape.spread[index].max_skew = i32::try_from(skew).unwrap_or(MAX_SKEW)
        })
    };
    let mut high = i64::from(now.max(1)) * 2;
    while high <= i64::from(MAX_SKEW) && !run(high)?.fits {
        high *= 2;
    }
    let (skew, outcome) = smallest(i64::from(now), high, run)?;
    let path = format!("/spec/topologySpreadConstraints/{index}/maxSkew");
    Some(Refined {
        text: format!("topologySpreadConstraints[{index}] maxSkew {now} -> {skew}"),
        amount: Some(Amount::of(now, skew)),
        patch: template_patch(&probe.pod, "replace", &path, json!(skew)),
        outcome,
    })
}

/// The unit in which a request is suggested.
fn unit(resource: &str) -> i64 {
    match resource {
        "memory" | "ephemeral-storage" => 1 << 20,
        _ => 1,
    }
}

/// Returns the largest amount of a resource that a new node of any NodePool has for the pod, as far as that is known without a run.
fn roomiest(probe: &Probe<'_>, resource: &str, lifted: &Outcome) -> i64 {
    let snapshot = probe.snapshot();
    let pools = snapshot.node_pools();
    let types = pools.filter_map(|pool| snapshot.instance_types(pool.name())?.as_ref().ok());
    // NodePools often share their instance types.
    let mut seen = BTreeSet::new();
    let types = types.filter(|types| seen.insert(types.as_ptr()));
    let rooms = types.flat_map(|types| types.iter()).map(|kind| {
        // Most instance types have one answer for all offerings.
        kind.allocatable().get(resource)
    });
    let room = rooms.max().unwrap_or_default();
    let claim = lifted.plan.new_node_claims.first();
    room.saturating_sub(claim.map_or(0, |claim| claim.requests.get(resource)))
}

/// Finds the largest request that fits.
fn request(probe: &mut Probe<'_>, resource: &str, lifted: &Outcome) -> Option<Refined> {
    let (unit, now) = (unit(resource), probe.pod.shape.requests.get(resource));
    let units = now / unit;
    let guess = units - roomiest(probe, resource, lifted).max(0) / unit;
    let mut run = |less: i64| {
        with_shape(probe, |shape| {
            shape.requests.set(resource, (units - less) * unit)
        })
    };
    // Counted from above, so that the smallest reduction is found.
    let (mut low, mut high, mut best) = (0, units, None);
    if (1..units).contains(&guess) {
        let outcome = run(guess)?;
        if outcome.fits {
            if guess == 1 || !run(guess - 1)?.fits {
                low = guess - 1;
            }
            (high, best) = (guess, Some((guess, outcome)));
        } else {
            low = guess;
        }
    }
    let (less, outcome) = match best {
        Some(best) if high - low <= 1 => best,
        _ => smallest(low, high, run)?,
    };
    let most = (units - less) * unit;
    if most == 0 {
        return None;
    }
    Some(Refined {
        text: format!(
            "requests {resource} {} -> {}",
            in_words(resource, now),
            in_words(resource, most)
        ),
        amount: Some(Amount::of(plain(resource, now), plain(resource, most))),
        patch: None,
        outcome,
    })
}

/// Runs the pod with a changed NodePool.
fn with_pool(
    probe: &mut Probe<'_>,
    pool: &str,
    change: impl FnOnce(&mut NodePool),
) -> Option<Outcome> {
    let mut changed = probe.pool(pool)?.as_ref().clone();
    change(&mut changed);
    probe.with_pool(&changed)
}

/// Finds the lowest limit that admits the smallest node that the pod fits on.
fn limit(probe: &mut Probe<'_>, pool: &str, resource: &str, lifted: &Outcome) -> Option<Refined> {
    let claim = lifted.planned_for(pool)?;
    let used: i64 = probe
        .snapshot()
        .nodes()
        .filter(|node| node.node_pool() == Some(pool))
        .map(|node| karpenter_core::limits::known_usage(node).get(resource))
        .fold(0, i64::saturating_add);
    let needed = match resource {
        "nodes" => 1,
        _ => {
            let types = probe.snapshot().instance_types(pool)?.as_ref().ok()?;
            let fits = |name: &str| claim.instance_types.iter().any(|fits| fits == name);
            types
                .iter()
                .filter(|kind| fits(&kind.name))
                .map(|kind| kind.capacity.get(resource))
                .min()?
        }
    };
    let needed = used.saturating_add(needed);
    let to = plain(resource, needed);
    let set = |to: &str| {
        let to = to.to_owned();
        move |pool: &mut NodePool| {
            if let Some(limit) = pool.spec.limits.get_mut(resource) {
                limit.0 = to;
            }
        }
    };
    let outcome = with_pool(probe, pool, set(&to)).filter(|outcome| outcome.fits)?;
    let less = plain(resource, needed.saturating_sub(1));
    if with_pool(probe, pool, set(&less))?.fits {
        return None;
    }
    let from = probe.pool(pool)?.spec.limits.get(resource)?.0.clone();
    Some(Refined {
        text: format!(
            "NodePool {pool}: limits {resource} {from} -> {}",
            in_words(resource, needed)
        ),
        patch: Some(Patch::of_pool(
            pool,
            "merge",
            json!({ "spec": { "limits": { resource: to } } }),
        )),
        amount: Some(Amount { from, to }),
        outcome,
    })
}

fn requirement_of(
    probe: &Probe<'_>,
    pool: &str,
    index: usize,
) -> Option<NodeSelectorRequirementWithMinValues> {
    let requirements = &probe.pool(pool)?.spec.template.spec.requirements;
    requirements.get(index).cloned()
}

fn min_values(probe: &mut Probe<'_>, pool: &str, index: usize) -> Option<Refined> {
    let requirement = requirement_of(probe, pool, index)?;
    let now = requirement.min_values?;
    let (less, outcome) = smallest(0, now - 1, |less| {
        with_pool(probe, pool, |pool| {
            pool.spec.template.spec.requirements[index].min_values = Some(now - less)
        })
    })?;
    let to = now - less;
    let path = format!("/spec/template/spec/requirements/{index}/minValues");
    Some(Refined {
        text: format!(
            "NodePool {pool}: minValues of {} {now} -> {to}",
            requirement.key
        ),
        amount: Some(Amount::of(now, to)),
        patch: Some(Patch::of_pool(
            pool,
            "json",
            json!([{ "op": "replace", "path": path, "value": to }]),
        )),
        outcome,
    })
}

/// Finds a value whose admission by the requirement helps.
fn requirement(
    probe: &mut Probe<'_>,
    pool: &str,
    index: usize,
    lifted: &Outcome,
) -> Option<Refined> {
    let claim = lifted.planned_for(pool)?;
    let requirement = requirement_of(probe, pool, index)?;
    let adds = match requirement.operator {
        Operator::In => true,
        Operator::NotIn => false,
        _ => return None,
    };
    let candidates = values(probe, claim, &requirement.key);
    let open = candidates
        .into_iter()
        .filter(|value| requirement.values.contains(value) != adds);
    for value in open.take(VALUES) {
        let changed = with_pool(probe, pool, |pool| {
            let values = &mut pool.spec.template.spec.requirements[index].values;
            if adds {
                values.push(value.clone())
            } else {
                values.retain(|listed| *listed != value)
            }
        });
        let Some(outcome) = changed.filter(|outcome| outcome.fits) else {
            continue;
        };
        let path = format!("/spec/template/spec/requirements/{index}/values");
        let position = requirement
            .values
            .iter()
            .position(|listed| *listed == value);
        let (verb, mut operation) = match position {
            None => (
                "add",
                json!({ "path": format!("{path}/-"), "value": value }),
            ),
            Some(position) => ("remove", json!({ "path": format!("{path}/{position}") })),
        };
        operation["op"] = json!(verb);
        return Some(Refined {
            text: format!(
                "NodePool {pool}: {} {}: {verb} {value}",
                requirement.key,
                requirement.operator.as_str()
            ),
            amount: None,
            patch: Some(Patch::of_pool(pool, "json", json!([operation]))),
            outcome,
        });
    }
    None
}

/// Returns the values of a label that the planned node may have: those of its requirement, else those of its cheapest type.
fn values(probe: &Probe<'_>, claim: &PlannedNodeClaim, key: &str) -> Vec<String> {
    if key == labels::INSTANCE_TYPE {
        // The cheapest comes first.
        return claim.instance_types.to_vec();
    }
    let requirements = claim.to_node_claim().spec.requirements;
    let of_claim = requirements
        .into_iter()
        .find(|requirement| requirement.key == key);
    if let Some(requirement) = of_claim.filter(|requirement| requirement.operator == Operator::In) {
        return requirement.values;
    }
    let Some(Ok(types)) = probe.snapshot().instance_types(&claim.node_pool) else {
        return Vec::new();
    };
    let cheapest = types
        .iter()
        .find(|kind| Some(&kind.name) == claim.instance_types.first());
    let Some(cheapest) = cheapest else {
        return Vec::new();
    };
    let of_type = cheapest
        .requirements
        .get(key)
        .map(|requirement| requirement.values().map(str::to_owned).collect::<Vec<_>>());
    let of_offerings = || {
        cheapest
            .offerings
            .iter()
            .filter_map(|offering| offering.single(key))
            .map(str::to_owned)
            .collect()
    };
    of_type
        .filter(|values| !values.is_empty())
        .unwrap_or_else(of_offerings)
}

// Lifting a constraint -------------------------------------------------------------------------------------------------

fn lift_text(probe: &Probe<'_>, atom: &Atom, text: &str) -> String {
    match atom {
        Atom::Toleration(taint) => format!("tolerate taint {taint}"),
        Atom::Unavailable(pool, capacity_type, zone) => {
            let again = until(probe, pool, capacity_type, zone);
            let again =
                again.map_or_else(String::new, |again| format!(", which may be at {again}"));
            format!(
                "wait until {capacity_type} capacity is available in {zone} (NodePool {pool}){again}"
            )
        }
        Atom::OtherAntiAffinity(workload, _) => format!("drop the anti-affinity of {workload}"),
        Atom::DaemonSet(..) => format!("without {text}"),
        _ => match text.split_once(": ") {
            Some((pool, rest)) if atom.side() == Side::Pool => format!("{pool}: drop {rest}"),
            _ => format!("drop {text}"),
        },
    }
}

/// Returns the patch that lifts a constraint, if it is a field of the pod template or of a NodePool.
fn lift_patch(probe: &Probe<'_>, atom: &Atom, path: Option<&str>) -> Option<Patch> {
    let pod = &probe.pod;
    match atom {
        // Without its last expression a term would match no node.
        Atom::NodeAffinity(term, _) if pod.shape.required_nodes[*term].expressions.len() <= 1 => {
            None
        }
        Atom::ResourceClaim(_) => None,
        Atom::Toleration(taint) => {
            let tolerations = pod.shape.tolerations.iter();
            let given = tolerations.filter(|it| !is_default(it)).map(written);
            let all: Vec<Value> = given.chain([written(&toleration(taint))]).collect();
            let value = json!({ "spec": { "template": { "spec": { "tolerations": all } } } });
            Some(Patch::new("strategic", Workload::of(pod).target()?, value))
        }
        Atom::Limit(pool, resource) => {
            let value = json!({ "spec": { "limits": { resource: null } } });
            Some(Patch::of_pool(pool, "merge", value))
        }
        Atom::PoolRequirement(pool, index) => {
            let requirements = &probe.pool(pool)?.spec.template.spec.requirements;
            let requirement = requirements.get(*index)?;
            let operation = match requirement.min_values {
                None => json!({ "op": "remove", "path": path? }),
                // minValues stays.
                Some(min) => json!({ "op": "replace", "path": path?, "value": {
                    "key": requirement.key, "operator": "Exists", "minValues": min,
                } }),
            };
            Some(Patch::of_pool(pool, "json", json!([operation])))
        }
        atom => match atom.pool() {
            Some(pool) => {
                let operation = json!([{ "op": "remove", "path": path? }]);
                Some(Patch::of_pool(pool, "json", operation))
            }
            None => template_patch(pod, "remove", path?, Value::Null),
        },
    }
}

/// Reports whether admission gave the toleration to the pod: it does not stand in the pod template.
fn is_default(toleration: &Toleration) -> bool {
    matches!(
        toleration.key.as_str(),
        "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable"
    )
}

fn written(toleration: &Toleration) -> Value {
    let mut value = json!({ "key": toleration.key, "operator": toleration.operator });
    if !toleration.value.is_empty() {
        value["value"] = json!(toleration.value);
    }
    if let Some(effect) = toleration.effect {
        value["effect"] = json!(effect.as_str());
    }
    value
}

/// Returns a patch of the pod template of the pod's workload; `path` is that of the pod.
fn template_patch(pod: &Pod, operation: &str, path: &str, value: Value) -> Option<Patch> {
    let target = Workload::of(pod).target()?;
    let mut step = json!({ "op": operation, "path": format!("/spec/template{path}") });
    if !value.is_null() {
        step["value"] = value;
    }
    Some(Patch::new("json", target, json!([step])))
}
