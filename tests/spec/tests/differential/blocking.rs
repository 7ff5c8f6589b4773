//! The answers of `karpenter_decisions::blocking` about a pod without a place, compared with the naive solver.
//!
//! The reported constraints are found in the objects again by their paths and names, relaxed there, and the naive solver is
//! asked; patches are applied as `kubectl patch` would.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

use k8s_openapi::api::core::v1::Pod;
use karpenter_api::v1::NodePool;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::requirements::{Operator, Requirement};
use karpenter_core::schedule::{Query, schedule};
use karpenter_decisions::blocking::{Constraint, Effect, Relaxation, blocking, constraints};
use karpenter_spec::{SolveSettings, World, cost, engine, pod_id, solve};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use super::generate::{Features, world};
use crate::{cases, number};

const SETTINGS: SolveSettings = SolveSettings {
    respect_preferences: false,
    strict_min_values: true,
    strict_reserved: true,
};

/// Clusters without what the naive solver does not know (devices), and without preferences.
const FEATURES: Features = Features {
    devices: false,
    preferences: false,
    reserved: false,
    ..Features::ALL
};

/// Leaves one pending pod in a cluster, and no node that is being deleted.
fn alone(world: &World, pod: &Pod) -> World {
    let of_deleting_claim = |id: Option<&String>| {
        let mut claims = world
            .node_claims
            .iter()
            .filter(|claim| claim.metadata.deletion_timestamp.is_some());
        id.is_some() && claims.any(|claim| claim.status.provider_id.as_ref() == id)
    };
    let deleting: Vec<String> = (world.nodes.iter())
        .filter(|node| {
            let id = node
                .spec
                .as_ref()
                .and_then(|spec| spec.provider_id.as_ref());
            node.metadata.deletion_timestamp.is_some() || of_deleting_claim(id)
        })
        .filter_map(|node| node.metadata.name.clone())
        .collect();
    let mut world = world.clone();
    world.pods.retain(
        |other| match other.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) {
            Some(node) => !deleting.contains(node),
            None => other.metadata.name == pod.metadata.name,
        },
    );
    world
}

fn is_pending(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|spec| spec.node_name.is_none())
}

/// Reports whether the pod's required node affinity has several terms.
fn has_alternatives(pod: &Pod) -> bool {
    const TERMS: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let pod = serde_json::to_value(pod).unwrap();
    pod.pointer(TERMS)
        .and_then(Value::as_array)
        .is_some_and(|terms| terms.len() > 1)
}

fn fits(world: &World) -> bool {
    solve(world, SETTINGS).unplaced.is_empty()
}

/// Relaxes constraints in the objects.
fn relax<'a>(world: &World, relaxed: impl IntoIterator<Item = &'a Constraint>) -> World {
    let mut world = world.clone();
    let at = world
        .pods
        .iter()
        .position(is_pending)
        .expect("the pending pod");
    let mut pod = serde_json::to_value(&world.pods[at]).unwrap();
    let mut pools: Vec<Value> = world
        .node_pools
        .iter()
        .map(|pool| serde_json::to_value(pool).unwrap())
        .collect();
    let mut removed: Vec<(Option<usize>, String)> = Vec::new();
    for constraint in relaxed {
        let (kind, argument) = constraint
            .id
            .split_once('[')
            .unwrap_or((&constraint.id, ""));
        let argument = argument
            .split_once(']')
            .map_or(argument, |(argument, _)| argument);
        match kind {
            "pod.toleration" => {
                let (key, effect) = argument.rsplit_once(':').unwrap();
                let (key, value) = key.split_once('=').unwrap_or((key, ""));
                let toleration =
                    json!({ "key": key, "operator": "Equal", "value": value, "effect": effect });
                let spec = pod["spec"].as_object_mut().unwrap();
                spec.entry("tolerations")
                    .or_insert_with(|| json!([]))
                    .as_array_mut()
                    .unwrap()
                    .push(toleration);
            }
            "pod.requests" => {
                for container in ["containers", "initContainers"]
                    .iter()
                    .filter_map(|list| pod["spec"].get(*list).cloned().map(|_| *list))
                    .collect::<Vec<_>>()
                {
                    for container in pod["spec"][container].as_array_mut().unwrap() {
                        for kind in ["requests", "limits"] {
                            if let Some(map) = container
                                .pointer_mut(&format!("/resources/{kind}"))
                                .and_then(Value::as_object_mut)
                            {
                                map.remove(argument);
                            }
                        }
                    }
                }
                if let Some(overhead) = pod["spec"]
                    .get_mut("overhead")
                    .and_then(Value::as_object_mut)
                {
                    overhead.remove(argument);
                }
            }
            "pod.hostPort" => {
                let (port, protocol) = argument.split_once('/').unwrap();
                for container in pod["spec"]["containers"].as_array_mut().unwrap() {
                    if let Some(ports) = container.get_mut("ports").and_then(Value::as_array_mut) {
                        ports.retain(|it| {
                            it["hostPort"].as_i64() != port.parse().ok()
                                || it.get("protocol").and_then(Value::as_str).unwrap_or("TCP")
                                    != protocol
                        });
                    }
                }
            }
            "pod.volume" => {
                let volumes = pod["spec"]["volumes"].as_array_mut().unwrap();
                volumes.retain(|it| {
                    it["persistentVolumeClaim"]["claimName"] != *argument && it["name"] != *argument
                });
            }
            "antiAffinity" => {
                let name = argument.rsplit_once('/').unwrap().1;
                let term: usize = constraint
                    .id
                    .rsplit_once('[')
                    .unwrap()
                    .1
                    .trim_end_matches(']')
                    .parse()
                    .unwrap();
                for other in world
                    .pods
                    .iter_mut()
                    .filter(|other| other.metadata.name.as_deref() == Some(name))
                {
                    let affinity = other.spec.as_mut().and_then(|spec| spec.affinity.as_mut());
                    let anti = affinity
                        .and_then(|affinity| affinity.pod_anti_affinity.as_mut())
                        .unwrap();
                    let terms = anti
                        .required_during_scheduling_ignored_during_execution
                        .as_mut()
                        .unwrap();
                    terms[term].label_selector = None;
                }
            }
            "daemonSet" => world.daemon_sets.retain(|set| {
                !argument.ends_with(&format!("/{}", set.metadata.name.as_deref().unwrap()))
            }),
            "offer" => {
                let [pool, capacity_type, zone] = argument.split('/').collect::<Vec<_>>()[..]
                else {
                    panic!("{argument}")
                };
                for kind in world.instance_types.get_mut(pool).unwrap() {
                    offer(kind, capacity_type, zone);
                }
            }
            "pool" => {
                let pool = world
                    .node_pools
                    .iter()
                    .position(|pool| pool.metadata.name.as_deref() == Some(argument))
                    .unwrap();
                match &constraint.path {
                    Some(path) => removed.push((Some(pool), path.clone())),
                    None => pools[pool]["status"]["conditions"][0]["status"] = json!("True"),
                }
            }
            _ => removed.push((None, constraint.path.clone().expect("a path"))),
        }
    }
    // From the end, so that indices stay true.
    removed.sort_by_key(|(pool, path)| {
        (
            *pool,
            path.split('/')
                .map(|part| part.parse::<usize>().unwrap_or_default())
                .collect::<Vec<_>>(),
            path.len(),
        )
    });
    for (pool, path) in removed.iter().rev() {
        let object = match pool {
            Some(pool) => &mut pools[*pool],
            None => &mut pod,
        };
        let is_requirement =
            path.starts_with("/spec/template/spec/requirements/") && !path.ends_with("/minValues");
        match object.pointer(path) {
            None => {}
            Some(requirement) if is_requirement && requirement.get("minValues").is_some() => {
                let (key, least) = (requirement["key"].clone(), requirement["minValues"].clone());
                *object.pointer_mut(path).unwrap() =
                    json!({ "key": key, "operator": "Exists", "minValues": least });
            }
            Some(_) => take(object, path),
        }
    }
    lift_empty_terms(&mut pod);
    world.pods[at] = serde_json::from_value(pod).unwrap();
    world.node_pools = pools
        .into_iter()
        .map(|pool| serde_json::from_value::<NodePool>(pool).unwrap())
        .collect();
    world
}

fn take(object: &mut Value, path: &str) {
    let (parent, last) = path.rsplit_once('/').unwrap();
    match object.pointer_mut(parent).unwrap() {
        Value::Array(list) => drop(list.remove(last.parse().unwrap())),
        Value::Object(map) => drop(map.remove(&last.replace("~1", "/").replace("~0", "~"))),
        other => panic!("{path}: {other}"),
    }
}

/// A user who deletes the last expression of a term deletes the affinity.
fn lift_empty_terms(pod: &mut Value) {
    const PATH: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
    let terms = pod
        .pointer(&format!("{PATH}/nodeSelectorTerms"))
        .and_then(Value::as_array);
    let is_empty = |term: &Value| {
        term["matchExpressions"]
            .as_array()
            .is_none_or(Vec::is_empty)
    };
    if terms.is_some_and(|terms| terms.iter().any(is_empty)) {
        take(pod, PATH);
    }
}

fn offer(kind: &mut InstanceType, capacity_type: &str, zone: &str) {
    let of = |it: &karpenter_core::offering::Offering| {
        it.capacity_type() == Some(capacity_type) && it.zone() == Some(zone)
    };
    if !kind.offerings.iter().any(of) {
        return;
    }
    for offering in kind.offerings.iter_mut().filter(|it| of(it)) {
        offering.available = true;
        offering.reservation_capacity = offering.reservation_capacity.max(1);
    }
    for (key, value) in [
        (karpenter_api::labels::CAPACITY_TYPE, capacity_type),
        (karpenter_api::labels::ZONE, zone),
    ] {
        let listed = kind
            .requirements
            .get(key)
            .map(|requirement| requirement.values().map(str::to_owned).collect::<Vec<_>>());
        let values = listed
            .unwrap_or_default()
            .into_iter()
            .chain([value.to_owned()]);
        kind.requirements
            .replace(Requirement::new(key, Operator::In, values));
    }
}

/// Applies a patch to the NodePool it names; patches of workloads are applied to the pod, which has no workload here.
fn apply(world: &World, relaxation: &Relaxation) -> Option<World> {
    let patch = relaxation.patch.as_ref()?;
    let name = patch.target.strip_prefix("NodePool/")?;
    let mut world = world.clone();
    let pool = world
        .node_pools
        .iter_mut()
        .find(|pool| pool.metadata.name.as_deref() == Some(name))?;
    let mut object = serde_json::to_value(&*pool).unwrap();
    match patch.kind {
        "merge" => json_patch::merge(&mut object, &patch.value),
        _ => json_patch::patch(
            &mut object,
            &serde_json::from_value::<json_patch::Patch>(patch.value.clone()).unwrap(),
        )
        .unwrap(),
    }
    *pool = serde_json::from_value(object).unwrap();
    Some(world)
}

fn is_pool_taint(constraint: &Constraint) -> bool {
    constraint.id.starts_with("pool[") && constraint.id.contains("].taints[")
}

fn is_pool_requirement(constraint: &Constraint) -> bool {
    constraint.id.starts_with("pool[")
        && constraint.id.contains("].requirements[")
        && !constraint.id.ends_with(".minValues")
}

/// Reports whether the naive solver may leave the domain of an anti-affinity open: only several domains together have as many values
/// as a NodePool asks for. The engine decides for a domain that has them, which can cost more.
fn may_leave_a_domain_open(world: &World, pod: &Pod) -> bool {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let keeps_away = affinity.is_some_and(|affinity| affinity.pod_anti_affinity.is_some());
    let mut pools = world.node_pools.iter();
    let asks = |pool: &NodePool| {
        let mut requirements = pool.spec.template.spec.requirements.iter();
        requirements.any(|requirement| requirement.min_values.is_some())
    };
    keeps_away && pools.any(asks)
}

fn check(world: &World) -> Result<bool, String> {
    let snapshot = engine::snapshot(world);
    let policy = engine::policy(SETTINGS);
    let pod = world.pods.iter().find(|pod| is_pending(pod)).unwrap();
    let id = pod_id(pod);
    let key = snapshot
        .pod(&id.namespace, &id.name)
        .ok_or("the pod is not in the snapshot")?;
    let answer = blocking(&snapshot, &policy, None, key);
    let failure = |text: &str| format!("{text}\n{answer:#?}\n{world:?}");
    if answer.fits_alone != fits(world) {
        return Err(failure(
            "the naive solver does not agree that the pod fits alone",
        ));
    }
    if answer.fits_alone {
        return Ok(false);
    }
    let all = constraints(&snapshot, &policy, key);
    let core = &answer.blocking.atoms;
    if answer.blocking.exact {
        let others = |kept: &[&Constraint]| -> Vec<&Constraint> {
            all.iter().filter(|one| !kept.contains(one)).collect()
        };
        let kept: Vec<&Constraint> = core.iter().collect();
        if fits(&relax(world, others(&kept))) {
            return Err(failure("the reported constraints do not block"));
        }
        // To relax fewer constraints may leave more room: without its taint DaemonSets may run on the nodes of a NodePool, and without
        // its requirement for a label of the user its nodes do not have the label.
        let fits_without = |kept: &[&Constraint]| {
            let all = |_: &&Constraint| true;
            let no_taints = |one: &&Constraint| !is_pool_taint(one);
            let no_labels = |one: &&Constraint| !is_pool_requirement(one);
            let neither = |one: &&Constraint| no_taints(one) && no_labels(one);
            let ways: [&dyn Fn(&&Constraint) -> bool; 4] = [&all, &no_taints, &no_labels, &neither];
            ways.iter()
                .any(|relaxed| fits(&relax(world, others(kept).into_iter().filter(*relaxed))))
        };
        for one in core.iter().filter(|_| answer.blocking.minimal) {
            let rest: Vec<&Constraint> = core.iter().filter(|other| *other != one).collect();
            if !fits_without(&rest) {
                return Err(failure(&format!(
                    "without {} the rest blocks all the same",
                    one.id
                )));
            }
        }
    }
    for relaxation in &answer.relaxations {
        let lifted = relax(
            world,
            all.iter().filter(|one| relaxation.atoms.contains(&one.id)),
        );
        if !fits(&lifted) {
            return Err(failure(&format!("does not help: {}", relaxation.text)));
        }
        if let Some(patched) = apply(world, relaxation) {
            let solution = solve(&patched, SETTINGS);
            if !solution.unplaced.is_empty() {
                return Err(failure(&format!(
                    "the patch does not help: {:?}",
                    relaxation.patch
                )));
            }
            // The naive solver takes the first zone and capacity type that fit, the engine the cheapest.
            let naive = cost(&patched, &solution).unwrap_or(f64::NAN);
            let price =
                schedule(&engine::snapshot(&patched), &policy, &Query::default()).hourly_price();
            let same = (price - relaxation.delta_per_hour).abs() <= 1e-9;
            let on_node = matches!(relaxation.effect, Effect::Node(_));
            if on_node != solution.claims.is_empty()
                || !same
                || naive.is_nan()
                || (naive < price - 1e-9 && !may_leave_a_domain_open(&patched, pod))
            {
                return Err(failure(&format!(
                    "{} costs {price}, or {naive}",
                    relaxation.text
                )));
            }
        }
    }
    Ok(true)
}

/// Conformance: EXP-04
#[test]
fn reported_constraints_block_and_reported_changes_help() {
    let wanted: usize = number("KARPENTER_SPEC_CASES").unwrap_or(40);
    let mut runner = TestRunner::new(cases(40));
    let clusters = world(FEATURES);
    let (mut compared, mut looked) = (0, 0);
    while compared < wanted {
        let world = clusters.new_tree(&mut runner).unwrap().current();
        for pod in world.pods.iter().filter(|pod| is_pending(pod)) {
            let alone = alone(&world, pod);
            // First fit drops the terms of a required node affinity before it tolerates a soft taint, and does not try them again.
            if has_alternatives(pod) && format!("{alone:?}").contains("PreferNoSchedule") {
                continue;
            }
            looked += 1;
            match check(&alone) {
                Ok(blocked) => compared += usize::from(blocked),
                Err(problem) => panic!("pod {compared} of {looked}: {problem}"),
            }
        }
    }
    eprintln!("{compared} blocked pods of {looked}");
}
