//! The engine and the naive solver on the same clusters.
//!
//! Where only resources decide (no topology, limits, reservations or minValues), the engine places all pods that first fit
//! places, at no higher price. It may place more: it treats the terms of a required node affinity as alternatives, where first
//! fit drops them for good before it tolerates a soft taint. Where the placement of one pod decides what is left for another,
//! it may place other pods than first fit does; the independent checker always verifies the result.

mod blocking;
mod buffers;
mod generate;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, Taint, TopologySpreadConstraint};
use karpenter_api::labels;
use karpenter_core::limits::LimitHeadroom;
use karpenter_core::pod::LabelSelector;
use karpenter_core::schedule::{Packing, Plan, Policy, Query, Solver, schedule};
use karpenter_spec::{Claim, PodId, Solution, SolveSettings, World, check, cost, engine, solve};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use serde_json::json;

use crate::{cases, reversed};
use generate::{Features, world};

/// Returns a policy that repacks planned nodes with any number of pods, as these clusters are small.
fn policy(settings: SolveSettings) -> Policy {
    engine::policy(settings).with_packing(Packing::LowestCost { from_pods: 1 })
}

fn engine_solution(world: &World, settings: SolveSettings) -> Solution {
    engine::solution(&schedule(
        &engine::snapshot(world),
        &policy(settings),
        &Query::default(),
    ))
}

fn settings() -> impl Strategy<Value = SolveSettings> {
    (any::<bool>(), any::<bool>()).prop_map(|(respect_preferences, strict_reserved)| {
        SolveSettings {
            respect_preferences,
            strict_reserved,
            ..SolveSettings::default()
        }
    })
}

/// Returns whether some pod has several terms of required node affinity and something else that first fit drops after them: a
/// preference, or a NodePool's soft taint, which is tolerated last.
fn alternatives_meet_preferences(world: &World) -> bool {
    let soft = |taints: &Option<Vec<Taint>>| {
        taints
            .iter()
            .flatten()
            .any(|taint| taint.effect == "PreferNoSchedule")
    };
    let soft_taints = (world.node_pools.iter()).any(|pool| soft(&pool.spec.template.spec.taints));
    let terms = |pod: &Pod| -> Option<usize> {
        let affinity = pod.spec.as_ref()?.affinity.as_ref()?;
        let required = affinity.node_affinity.as_ref()?;
        let required = required
            .required_during_scheduling_ignored_during_execution
            .as_ref()?;
        Some(required.node_selector_terms.len())
    };
    let prefers = |pod: &Pod| {
        let text = serde_json::to_string(&pod.spec).unwrap_or_default();
        text.contains("ScheduleAnyway")
            || text.contains("\"preference\":")
            || text.contains("\"podAffinityTerm\":")
    };
    let mut alternatives = world.pods.iter().filter(|pod| terms(pod) > Some(1));
    alternatives.any(|pod| soft_taints || prefers(pod))
}

/// Returns whether claims leave a label open over which pods are spread: first fit counts no pod by it until it is pinned.
fn leaves_open(world: &World, solution: &Solution) -> bool {
    let constraints = world.pods.iter().filter_map(|pod| pod.spec.as_ref());
    let constraints =
        constraints.flat_map(|spec| spec.topology_spread_constraints.iter().flatten());
    let keys: BTreeSet<&String> = constraints
        .map(|constraint| &constraint.topology_key)
        .filter(|key| *key != labels::HOSTNAME)
        .collect();
    let pinned = |claim: &Claim, key: &str| {
        let requirement = claim.requirements.get(key);
        requirement.is_some_and(|requirement| requirement.single().is_some())
    };
    let mut claims = solution.claims.iter();
    claims.any(|claim| keys.iter().any(|key| !pinned(claim, key)))
}

/// Returns whether a spread constraint counts pods that do not have it. Then the order of pods, and the choice between two
/// equally good zones, decides what is left for others: first fit may place more.
fn spreads_over_others(world: &World) -> bool {
    let constraints = |pod: &Pod| -> Vec<TopologySpreadConstraint> {
        let spec = pod.spec.as_ref();
        let all = spec.and_then(|spec| spec.topology_spread_constraints.clone());
        all.unwrap_or_default()
    };
    let labels = |pod: &Pod| pod.metadata.labels.clone().unwrap_or_default();
    world.pods.iter().any(|pod| {
        constraints(pod).iter().any(|constraint| {
            let selector = LabelSelector::parse(constraint.label_selector.as_ref());
            let mut counted = world.pods.iter();
            let others = counted.any(|other| {
                selector.matches(&labels(other)) && !constraints(other).contains(constraint)
            });
            others || !selector.matches(&labels(pod))
        })
    })
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn the_naive_solver_keeps_all_rules(world in world(Features::COMMON)) {
        let solution = solve(&world, SolveSettings::default());
        prop_assert_eq!(check(&world, SolveSettings::default(), &solution), vec![], "{:#?}", solution);
        prop_assert!(cost(&world, &solution).is_some());
    }

    #[test]
    fn the_engine_keeps_all_rules(world in world(Features::ALL), settings in settings()) {
        let solution = engine_solution(&world, settings);
        prop_assert_eq!(check(&world, settings, &solution), vec![], "{:#?}", solution);
        prop_assert!(cost(&world, &solution).is_some());
    }

    #[test]
    fn the_engine_places_what_first_fit_places_where_only_resources_decide(world in world(Features::PLAIN)) {
        let (naive, engine) = (solve(&world, SolveSettings::default()), engine_solution(&world, SolveSettings::default()));
        prop_assert!(engine.unplaced.is_subset(&naive.unplaced), "naive {:#?} engine {:#?}", naive, engine);
        // More pods may cost more, and so may an alternative that first fit dropped for one that does not tolerate a soft taint.
        if engine.unplaced != naive.unplaced || alternatives_meet_preferences(&world) {
            return Ok(());
        }
        let (naive_cost, engine_cost) = (cost(&world, &naive).unwrap_or(0.0), cost(&world, &engine).unwrap_or(f64::INFINITY));
        prop_assert!(engine_cost <= naive_cost + 1e-9, "{} > {}: naive {:#?} engine {:#?}", engine_cost, naive_cost, naive, engine);
    }

    #[test]
    // Without pod affinity: there, the order of pods decides which of them find a match, and first fit may place more. So it may
    // where it leaves a label to the launch, and counts no pod by it until then, and where a spread counts other pods. The engine
    // may place one large pod instead of two small ones, because it tries alternatives that first fit dropped.
    fn the_engine_places_no_fewer_pods(world in world(Features { limits: false, reserved: false, min_values: false, affinity: false, ..Features::COMMON })) {
        let (naive, engine) = (solve(&world, SolveSettings::default()), engine_solution(&world, SolveSettings::default()));
        if leaves_open(&world, &naive) || alternatives_meet_preferences(&world) || spreads_over_others(&world) {
            return Ok(());
        }
        prop_assert!(engine.unplaced.len() <= naive.unplaced.len(), "naive {:#?} engine {:#?}", naive, engine);
    }

    #[test]
    fn the_order_of_objects_and_concurrent_solving_do_not_matter(world in world(Features::ALL), settings in settings()) {
        let (policy, query) = (policy(settings), Query::default());
        let solver = Solver::prepare(&engine::snapshot(&world), &policy);
        let plan = solver.solve(&query);
        let plans: Vec<Plan> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| solver.solve(&query))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        prop_assert_eq!(plans, vec![plan.clone(); 3], "on several threads at once");
        prop_assert_eq!(&schedule(&engine::snapshot(&reversed(&world)), &policy, &query), &plan, "with everything reversed");
    }

    #[test]
    fn a_plan_carried_out_first_fits_below_the_limits(world in world(Features::COMMON)) {
        let (snapshot, nothing_replaced) = (engine::snapshot(&world), BTreeSet::new());
        let plan = schedule(&snapshot, &policy(SolveSettings::default()), &Query::default());
        let mut room = LimitHeadroom::new(&snapshot, &nothing_replaced);
        for draft in &plan.new_node_claims {
            let pool = snapshot.node_pools().find(|pool| pool.name() == draft.node_pool);
            let taken = pool.map(|pool| room.take(pool, draft));
            prop_assert_eq!(taken, Some(Ok(())), "{:#?}", plan);
        }
    }

    #[test]
    fn another_node_leaves_no_placed_pod_unplaced(world in world(Features::PLAIN)) {
        let placed = |solution: &Solution| -> BTreeSet<PodId> {
            solution.existing.keys().chain(solution.claims.iter().flat_map(|claim| &claim.pods)).cloned().collect()
        };
        let mut fewer = world.clone();
        // A node without pods, so that no pod is removed with it.
        let free = |name: &str| world.pods.iter().all(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) != Some(name));
        let names: Vec<String> = fewer.nodes.iter().filter_map(|node| node.metadata.name.clone()).filter(|name| free(name)).collect();
        let Some(name) = names.first() else { return Ok(()) };
        let id = format!("test:///{name}");
        fewer.nodes.retain(|node| node.metadata.name.as_ref() != Some(name));
        fewer.node_claims.retain(|claim| claim.status.provider_id.as_ref() != Some(&id));
        let (before, after) = (placed(&engine_solution(&fewer, SolveSettings::default())), placed(&engine_solution(&world, SolveSettings::default())));
        prop_assert!(before.is_subset(&after), "{:?} were placed without {}", before.difference(&after).collect::<Vec<_>>(), name);
    }
}

#[test]
fn a_pod_joins_its_attached_volume_on_a_node_over_its_attach_limit() {
    let pod = |name: &str, claim: &str, node: Option<&str>| {
        serde_json::from_value(json!({
            "metadata": { "namespace": "default", "name": name, "uid": name },
            "spec": {
                "nodeName": node, "containers": [{ "name": "main" }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }],
            },
            "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] },
        }))
        .unwrap()
    };
    let claim = |name: &str| {
        serde_json::from_value(json!({
            "metadata": { "namespace": "default", "name": name, "annotations": { "pv.kubernetes.io/bind-completed": "yes" } },
            "spec": { "volumeName": name },
        }))
        .unwrap()
    };
    let volume = |name: &str| {
        serde_json::from_value(json!({
            "metadata": { "name": name }, "spec": { "csi": { "driver": "ebs.csi.aws.com", "volumeHandle": name } },
        }))
        .unwrap()
    };
    let amounts = json!({ "cpu": "4", "memory": "4Gi", "pods": "10" });
    let world = World {
        nodes: vec![
            serde_json::from_value(json!({
                "metadata": { "name": "node", "uid": "node", "labels": { "kubernetes.io/hostname": "node" } },
                "status": { "capacity": amounts, "allocatable": amounts },
            }))
            .unwrap(),
        ],
        csi_nodes: vec![
            serde_json::from_value(json!({
                "metadata": { "name": "node" },
                "spec": { "drivers": [{ "name": "ebs.csi.aws.com", "nodeID": "node", "allocatable": { "count": 1 } }] },
            }))
            .unwrap(),
        ],
        volume_claims: ["a", "b", "c"].map(claim).to_vec(),
        volumes: ["a", "b", "c"].map(volume).to_vec(),
        pods: vec![
            pod("runs-a", "a", Some("node")),
            pod("runs-b", "b", Some("node")),
            pod("waits-b", "b", None),
            pod("waits-c", "c", None),
        ],
        ..World::default()
    };
    let naive = solve(&world, SolveSettings::default());
    let name = |pod: &PodId| format!("{pod:?}");
    assert_eq!(
        naive.existing.keys().map(name).collect::<Vec<_>>(),
        ["default/waits-b"]
    );
    assert_eq!(naive, engine_solution(&world, SolveSettings::default()));
    assert_eq!(check(&world, SolveSettings::default(), &naive), vec![]);
}

#[test]
fn many_clusters_place_some_and_not_all_pods() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut none, mut all, mut some) = (0, 0, 0);
    for _ in 0..200 {
        let world = world(Features::COMMON)
            .new_tree(&mut runner)
            .unwrap()
            .current();
        let solution = solve(&world, SolveSettings::default());
        let placed = solution.existing.len()
            + solution
                .claims
                .iter()
                .map(|claim| claim.pods.len())
                .sum::<usize>();
        match (placed, solution.unplaced.len()) {
            (0, _) => none += 1,
            (_, 0) => all += 1,
            _ => some += 1,
        }
    }
    assert!(
        some >= 80 && all >= 10 && none <= 60,
        "none {none}, all {all}, some {some}"
    );
}
