//! The engine and the naive solver on the same clusters.
//!
//! Where nothing but room decides (no topology, limits, reservations or minValues), the engine places all that first fit
//! places, for no more money. It may place more: it takes the terms of a required node affinity as alternatives, where first
//! fit gives them up for good before it tolerates a soft taint. Where what one pod gets decides what is left for another, it
//! may place others than first fit does; what it places is always judged by the independent checker.

mod generate;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;

use generate::{Features, world};
use k8s_openapi::api::core::v1::{Pod, Taint, TopologySpreadConstraint};
use karpenter_api::labels;
use karpenter_core::limits::Room;
use karpenter_core::pod::LabelSelector;
use karpenter_core::schedule::{Packing, Plan, ScheduleRequest, Solver, schedule};
use karpenter_spec::{Claim, PodId, Settings, Solution, World, check, cost, engine, solve};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::RngSeed;
use serde_json::json;

/// How many clusters each property looks at; more on demand. With a number in KARPENTER_SPEC_CASES they are new ones each time.
/// A failure shows their seed, and PROPTEST_RNG_SEED takes it.
fn cases(usual: u32) -> ProptestConfig {
    fn number<T: FromStr>(variable: &str) -> Option<T> {
        std::env::var(variable).ok()?.parse().ok()
    }
    let wanted = number("KARPENTER_SPEC_CASES");
    let seed = number("PROPTEST_RNG_SEED").unwrap_or_else(|| match wanted {
        Some(_) => RandomState::new().hash_one(usual),
        None => 1,
    });
    // libtest shows it when the test fails.
    eprintln!("PROPTEST_RNG_SEED={seed}");
    ProptestConfig {
        cases: wanted.unwrap_or(usual),
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// These clusters are small: machines of any number of pods are packed anew if that pays.
fn request(settings: Settings) -> ScheduleRequest {
    ScheduleRequest {
        packing: Packing::LowestCost { from_pods: 1 },
        ..engine::request(settings)
    }
}

fn engine_solution(world: &World, settings: Settings) -> Solution {
    engine::solution(&schedule(&engine::snapshot(world), &request(settings)))
}

fn settings() -> impl Strategy<Value = Settings> {
    (any::<bool>(), any::<bool>()).prop_map(|(respect_preferences, strict_reserved)| Settings {
        respect_preferences,
        strict_reserved,
        ..Settings::default()
    })
}

/// Whether some pod has several terms of required node affinity, and something else that first fit gives up after them: a
/// preference, or a NodePool's taint that is tolerated last of all.
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

/// Whether machines leave a label open that pods are spread over: first fit counts nobody by it until it is settled.
fn leaves_open(world: &World, solution: &Solution) -> bool {
    let constraints = world.pods.iter().filter_map(|pod| pod.spec.as_ref());
    let constraints =
        constraints.flat_map(|spec| spec.topology_spread_constraints.iter().flatten());
    let keys: BTreeSet<&String> = constraints
        .map(|constraint| &constraint.topology_key)
        .filter(|key| *key != labels::HOSTNAME)
        .collect();
    let settled = |claim: &Claim, key: &str| {
        let requirement = claim.requirements.get(key);
        requirement.is_some_and(|requirement| requirement.single().is_some())
    };
    let mut claims = solution.claims.iter();
    claims.any(|claim| keys.iter().any(|key| !settled(claim, key)))
}

/// Whether pods are spread over pods that are not spread with them. Then who comes first, and which of two zones that are
/// equally good it gets, decides what is left for others: first fit may be the luckier one.
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

/// All orders of objects turned round.
fn reversed(world: &World) -> World {
    let mut reversed = world.clone();
    reversed.pods.reverse();
    reversed.nodes.reverse();
    reversed.node_claims.reverse();
    reversed.node_pools.reverse();
    reversed.daemon_sets.reverse();
    reversed.resource_claims.reverse();
    reversed.resource_slices.reverse();
    reversed
        .instance_types
        .values_mut()
        .for_each(|types| types.reverse());
    reversed
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn the_naive_solver_keeps_all_rules(world in world(Features::COMMON)) {
        let solution = solve(&world, Settings::default());
        prop_assert_eq!(check(&world, Settings::default(), &solution), vec![], "{:#?}", solution);
        prop_assert!(cost(&world, &solution).is_some());
    }

    #[test]
    fn the_engine_keeps_all_rules(world in world(Features::ALL), settings in settings()) {
        let solution = engine_solution(&world, settings);
        prop_assert_eq!(check(&world, settings, &solution), vec![], "{:#?}", solution);
        prop_assert!(cost(&world, &solution).is_some());
    }

    #[test]
    fn the_engine_places_what_first_fit_places_where_only_room_decides(world in world(Features::PLAIN)) {
        let (naive, engine) = (solve(&world, Settings::default()), engine_solution(&world, Settings::default()));
        prop_assert!(engine.unplaced.is_subset(&naive.unplaced), "naive {:#?} engine {:#?}", naive, engine);
        // More pods may cost more, and so may an alternative that first fit gave up for one that needs no soft taint tolerated.
        if engine.unplaced != naive.unplaced || alternatives_meet_preferences(&world) {
            return Ok(());
        }
        let (naive_cost, engine_cost) = (cost(&world, &naive).unwrap_or(0.0), cost(&world, &engine).unwrap_or(f64::INFINITY));
        prop_assert!(engine_cost <= naive_cost + 1e-9, "{} > {}: naive {:#?} engine {:#?}", engine_cost, naive_cost, naive, engine);
    }

    #[test]
    // Without pod affinity: there, who comes first decides who finds company, and first fit may be the luckier one. So it may be
    // where it leaves a label to the launch, and counts nobody by it until then, and where pods are spread over others. The
    // engine may place one large pod instead of two small ones, because it tries alternatives that first fit gave up.
    fn the_engine_places_no_fewer_pods(world in world(Features { limits: false, reserved: false, min_values: false, affinity: false, ..Features::COMMON })) {
        let (naive, engine) = (solve(&world, Settings::default()), engine_solution(&world, Settings::default()));
        if leaves_open(&world, &naive) || alternatives_meet_preferences(&world) || spreads_over_others(&world) {
            return Ok(());
        }
        prop_assert!(engine.unplaced.len() <= naive.unplaced.len(), "naive {:#?} engine {:#?}", naive, engine);
    }

    #[test]
    fn the_order_of_objects_and_who_asks_does_not_matter(world in world(Features::ALL), settings in settings()) {
        let request = request(settings);
        let solver = Solver::prepare(&engine::snapshot(&world), &request);
        let plan = solver.solve(&request);
        let plans: Vec<Plan> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| solver.solve(&request))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        prop_assert_eq!(plans, vec![plan.clone(); 3], "on several threads at once");
        prop_assert_eq!(&schedule(&engine::snapshot(&reversed(&world)), &request), &plan, "with everything reversed");
    }

    #[test]
    fn a_plan_that_nobody_came_before_finds_its_room_below_the_limits(world in world(Features::COMMON)) {
        let (snapshot, nobody) = (engine::snapshot(&world), BTreeSet::new());
        let plan = schedule(&snapshot, &request(Settings::default()));
        let mut room = Room::new(&snapshot, &nobody);
        for draft in &plan.new_claims {
            let pool = snapshot.node_pools().find(|pool| pool.name() == draft.node_pool);
            let taken = pool.map(|pool| room.take(pool, draft));
            prop_assert_eq!(taken, Some(Ok(())), "{:#?}", plan);
        }
    }

    #[test]
    fn another_machine_leaves_no_pod_without_a_place(world in world(Features::PLAIN)) {
        let placed = |solution: &Solution| -> BTreeSet<PodId> {
            solution.existing.keys().chain(solution.claims.iter().flat_map(|claim| &claim.pods)).cloned().collect()
        };
        let mut fewer = world.clone();
        // One that nobody runs on, so that no pod goes with it.
        let free = |name: &str| world.pods.iter().all(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) != Some(name));
        let names: Vec<String> = fewer.nodes.iter().filter_map(|node| node.metadata.name.clone()).filter(|name| free(name)).collect();
        let Some(name) = names.first() else { return Ok(()) };
        let id = format!("test:///{name}");
        fewer.nodes.retain(|node| node.metadata.name.as_ref() != Some(name));
        fewer.node_claims.retain(|claim| claim.status.provider_id.as_ref() != Some(&id));
        let (before, after) = (placed(&engine_solution(&fewer, Settings::default())), placed(&engine_solution(&world, Settings::default())));
        prop_assert!(before.is_subset(&after), "{:?} had a place without {}", before.difference(&after).collect::<Vec<_>>(), name);
    }
}

#[test]
fn a_pod_runs_beside_its_volume_on_a_node_over_its_attach_limit() {
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
    let naive = solve(&world, Settings::default());
    let name = |pod: &PodId| format!("{pod:?}");
    assert_eq!(
        naive.existing.keys().map(name).collect::<Vec<_>>(),
        ["default/waits-b"]
    );
    assert_eq!(naive, engine_solution(&world, Settings::default()));
    assert_eq!(check(&world, Settings::default(), &naive), vec![]);
}

#[test]
fn most_clusters_are_interesting() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut none, mut all, mut some) = (0, 0, 0);
    for _ in 0..200 {
        let world = world(Features::COMMON)
            .new_tree(&mut runner)
            .unwrap()
            .current();
        let solution = solve(&world, Settings::default());
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
