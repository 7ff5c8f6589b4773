//! Events about nodes that are not disrupted, and which reason comes first (section 10 of the reference).

use karpenter_core::disruption::{
    Candidates, CommandInvalidated, Method, NotConsolidatable, NotDisruptable, VerdictKind,
};
use karpenter_core::fake;
use serde_json::{Value, json};

use crate::fixture::{
    CAPACITY_TYPE, EPOCH, INSTANCE_TYPE, NODE_POOL, Object, Pod, World, Z1, ZONE, now, pod,
};
use crate::fleet::{
    Fleet, FleetNode, ON_DEMAND, SPOT, alone, commands, node, on_demand_pool, on_each, open_pool,
    running, type_with_offerings, verdict, world, world_of, world_with,
};

/// Removes a label from NodeClaim and Node.
fn without_label(mut node: FleetNode, key: &str) -> FleetNode {
    node.claim = node.claim.without_label(key);
    node.node = node.node.without_label(key);
    node
}

/// Conformance: DIS-169
#[test]
fn of_several_reasons_against_a_candidate_the_first_in_order_is_given() {
    let deleting = |m: FleetNode| m.claim("/metadata/deletionTimestamp", json!(EPOCH));
    let starting = |m: FleetNode| m.uninitialized();
    let refusing = |m: FleetNode| m.annotation("karpenter.sh/do-not-disrupt", "true");
    // Each reason with all of those that come after it.
    let says = |from: usize| {
        let mut m = node("a", "huge");
        if from <= 8 {
            m = m.pool("gone");
        }
        if from <= 7 {
            m = without_label(m, NODE_POOL);
        }
        if from <= 6 {
            m = refusing(m);
        }
        if from <= 4 {
            m = deleting(m);
        }
        if from <= 3 {
            m = starting(m);
        }
        let guarded = |name: &str| running(name, "a", "1").label("app", "guarded");
        let pods: Vec<Object<Pod>> = match from {
            ..=9 => vec![guarded("p").do_not_disrupt()],
            _ => vec![guarded("p")],
        };
        let mut world =
            world()
                .run([m, node("b", "huge")])
                .with(pods)
                .pdb("one", "default", json!({}), 0);
        if from <= 10 {
            world = world.pdb("two", "default", json!({}), 0);
        }
        if from <= 5 {
            world
                .cluster
                .nominate("a", now() + jiff::SignedDuration::from_secs(10));
            world
                .cluster
                .nominate("a-claim", now() + jiff::SignedDuration::from_secs(10));
        }
        let plan = world.decide_with(|request| {
            if from <= 1 {
                let held = &mut request.surroundings.in_flight;
                held.insert("a-claim".to_owned());
            }
        });
        let named = ["a", "a-claim"].map(|name| verdict(&plan, name));
        named.into_iter().find(|text| text != "None").unwrap()
    };
    for (from, text) in [
        (1, "candidate is already being disrupted"),
        (3, "node isn't initialized"),
        (4, "node is deleting or marked for deletion"),
        (5, "node is nominated for a pending pod"),
        (
            6,
            "disruption is blocked through the \"karpenter.sh/do-not-disrupt\" annotation",
        ),
        (
            7,
            "node doesn't have required label (label=karpenter.sh/nodepool)",
        ),
        (8, "NodePool not found (NodePool=gone)"),
        (
            9,
            "pod has \"karpenter.sh/do-not-disrupt\" annotation (Pod=default/p)",
        ),
        (
            10,
            "eviction does not support multiple PDBs (Pod=default/p, PodDisruptionBudget=[one two])",
        ),
        (
            11,
            "pdb prevents pod evictions (PodDisruptionBudget=default/one)",
        ),
    ] {
        assert_eq!(says(from), text);
    }
}

/// Conformance: DIS-170
#[test]
fn every_reason_but_commands_and_foreign_nodes_is_told_by_an_event() {
    let pod = karpenter_core::pod::PodKey::new("default", "p", "p");
    let (budgets, budget) = (vec![], "b".into());
    let named = || "a".to_owned();
    for reported in [
        NotDisruptable::NoNode,
        NotDisruptable::NotInitialized,
        NotDisruptable::Deleting,
        NotDisruptable::Nominated,
        NotDisruptable::NodeDoNotDisrupt,
        NotDisruptable::NoNodePoolLabel,
        NotDisruptable::NoNodePool { node_pool: named() },
        NotDisruptable::PodDoNotDisrupt { pod: pod.clone() },
        NotDisruptable::SeveralPdbs {
            pod: pod.clone(),
            budgets,
        },
        NotDisruptable::Pdb { pod, budget },
    ] {
        assert!(reported.is_reported(), "{reported}");
    }
    for reported in [
        NotConsolidatable::Static,
        NotConsolidatable::InstanceTypeUnknown { name: named() },
        NotConsolidatable::NoLabel { label: "a" },
        NotConsolidatable::Disabled { node_pool: named() },
        NotConsolidatable::WhenEmpty { node_pool: named() },
        NotConsolidatable::BufferPods { node: named() },
    ] {
        assert!(reported.is_reported(), "{reported}");
    }
    assert!(!NotDisruptable::InFlight.is_reported());
    assert!(!NotDisruptable::NotManaged.is_reported());
    assert!(!NotConsolidatable::Empty.is_reported());
    assert!(!NotConsolidatable::TooRecent.is_reported());
}

/// Conformance: DIS-171
#[test]
fn what_prevents_consolidation_is_reported_in_order() {
    // Each reason with all of those that come after it.
    let says = |from: usize| {
        let mut pool = open_pool("default");
        if from <= 5 {
            pool = pool.consolidation_policy("WhenEmpty");
        }
        if from <= 4 {
            pool = pool.consolidate_after("Never");
        }
        if from == 0 {
            pool = pool.replicas(1);
        }
        let mut m = node("a", "huge").without("Consolidatable");
        if from <= 3 {
            m = without_label(m, ZONE);
        }
        if from <= 2 {
            m = without_label(m, CAPACITY_TYPE);
        }
        if from <= 1 {
            m = m.label(INSTANCE_TYPE, "gone");
        }
        let world = world_of(pool);
        let world = world.run([m]).with(running("p", "a", "1"));
        world.verdict("a")
    };
    for (from, text) in [
        (0, "NodePool is static"),
        (1, "Instance Type \"gone\" not found"),
        (2, "Node does not have label \"karpenter.sh/capacity-type\""),
        (
            3,
            "Node does not have label \"topology.kubernetes.io/zone\"",
        ),
        (4, "NodePool \"default\" has consolidation disabled"),
        (
            5,
            "NodePool \"default\" has non-empty consolidation disabled",
        ),
        (6, "Node changed within consolidateAfter"),
    ] {
        assert_eq!(says(from), text);
    }
}

/// Conformance: DIS-172
#[test]
fn empty_and_drifted_nodes_of_unknown_type_are_disrupted() {
    let bare = || {
        let m = without_label(node("a", "huge"), ZONE);
        without_label(m, CAPACITY_TYPE).label(INSTANCE_TYPE, "gone")
    };
    let empty = world().run([bare()]);
    assert_eq!(empty.decide(), ["delete a (saves 0.00)"]);
    let drifted = world()
        .run([bare().drifted(EPOCH), node("b", "huge")])
        .with([running("p", "a", "1"), running("q", "b", "1")]);
    let plan = drifted.decide_with(|request| request.max_commands = 1);
    let methods: Vec<Method> = plan.commands.iter().map(|command| command.method).collect();
    assert_eq!(methods, [Method::Drift]);
}

/// Conformance: DIS-174
#[test]
fn a_node_whose_pods_cost_nothing_to_move_is_empty() {
    let with = |priority: i32, cost: &str| {
        let cheap = running("p", "a", "1")
            .priority(priority)
            .annotation("controller.kubernetes.io/pod-deletion-cost", cost);
        let plan = world()
            .run([node("a", "huge")])
            .with(cheap)
            .decide_with(|_| ());
        plan.commands[0].method
    };
    assert_eq!(with(0, "-134217728"), Method::Emptiness, "it costs nothing");
    assert_eq!(
        with(-1_000_000_000, "0"),
        Method::Emptiness,
        "it costs less than nothing"
    );
    assert_eq!(with(0, "-134217727"), Method::SingleNode);
}

/// Conformance: DIS-182
#[test]
fn a_node_whose_pods_need_several_replacements_stays() {
    let types = [type_with_offerings(
        "small",
        2,
        vec![fake::offering(ON_DEMAND, Z1, 0.1)],
    )];
    let huge = node("a", "small").node("/status/allocatable/cpu", json!("16"));
    let world = world_with(types);
    let world = world
        .run([huge])
        .with(["p", "q", "r"].map(|name| running(name, "a", "1500m")));
    assert_eq!(
        world.verdict("a"),
        "Can't remove without creating 3 candidates"
    );
}

/// Conformance: DIS-181
#[test]
fn of_pods_that_cannot_be_placed_five_are_named() {
    let pinned = |index: usize| running(&format!("p{index}"), "a", "100m").select("team", "x");
    let world = world()
        .run([node("a", "small").label("team", "x")])
        .with((0..7).map(pinned));
    let text = world.verdict("a");
    assert!(
        text.starts_with("Not all pods would schedule, default/p0 => "),
        "{text}"
    );
    assert!(text.ends_with(" and 2 other(s)"), "{text}");
    assert_eq!(text.matches(" => ").count(), 5, "{text}");
}

/// Conformance: DIS-183
#[test]
fn what_costs_the_same_replaces_nothing() {
    let decide = |other: f64| {
        let types = [
            type_with_offerings("now", 4, vec![fake::offering(ON_DEMAND, Z1, 0.4)]),
            type_with_offerings("other", 2, vec![fake::offering(ON_DEMAND, Z1, other)]),
        ];
        let world = world_with(types);
        let world = world.run([node("a", "now")]).with(running("p", "a", "1"));
        let plan = world.decide_with(|_| ());
        (commands(&plan), verdict(&plan, "a"))
    };
    let stays = "Can't replace with a cheaper node".to_owned();
    assert_eq!(decide(0.4), (vec![], stays));
    assert_eq!(
        decide(0.399).0,
        ["replace a with other on-demand (saves 0.00)"],
        "however little it is"
    );
}

/// Conformance: API-206
#[test]
fn the_price_of_a_launch_is_the_dearest_of_the_first_capacity_type() {
    let decide = |offerings: Vec<karpenter_core::offering::Offering>| {
        let types = [
            type_with_offerings("now", 4, vec![fake::offering(ON_DEMAND, Z1, 0.5)]),
            type_with_offerings("other", 4, offerings),
        ];
        let world = world_with(types);
        let world = world.run([node("a", "now")]).with(running("p", "a", "1"));
        !commands(&world.decide_with(|_| ())).is_empty()
    };
    let (on_demand, spot) = (
        |price| fake::offering(ON_DEMAND, Z1, price),
        |zone, price| fake::offering(SPOT, zone, price),
    );
    let reserved = |price| fake::reserved("r", 5, Z1, price);
    assert!(decide(vec![reserved(0.1), spot(Z1, 0.9), on_demand(0.9)]));
    assert!(decide(vec![spot(Z1, 0.1), on_demand(0.9)]));
    assert!(decide(vec![on_demand(0.1)]));
    assert!(
        !decide(vec![spot(Z1, 0.6), on_demand(0.1)]),
        "spot comes before on-demand"
    );
    assert!(
        !decide(vec![spot(Z1, 0.1), spot(crate::fixture::Z2, 0.6)]),
        "the dearest zone counts"
    );
}

/// Conformance: DIS-185
#[test]
fn several_spot_nodes_are_consolidated_with_fewer_than_fifteen_types() {
    let world = world_of(open_pool("default").requires(CAPACITY_TYPE, "In", &[SPOT]));
    let world = world
        .run(["a", "b", "c"].map(|name| node(name, "medium").spot()))
        .with(on_each(["a", "b", "c"], "2500m"));
    let with_gate =
        |gate: bool| commands(&world.decide_with(|request| request.spot_to_spot = gate));
    assert_eq!(with_gate(false), Vec::<String>::new());
    assert_eq!(
        with_gate(true),
        ["replace a b c with large spot (saves 0.20)"]
    );
}

/// Conformance: API-175, DIS-167
#[test]
fn methods_come_in_order_and_name_their_reason_and_type() {
    let order = [
        (Method::Emptiness, "Empty", "empty"),
        (Method::StaticDrift, "Drifted", ""),
        (Method::Drift, "Drifted", ""),
        (Method::MultiNode, "Underutilized", "multi"),
        (Method::SingleNode, "Underutilized", "single"),
    ];
    for (method, reason, kind) in order {
        assert_eq!(method.reason().as_str(), reason);
        assert_eq!(method.consolidation_type(), kind, "{reason}");
    }
    let fixed = open_pool("fixed").replicas(1);
    let drifted = |name: &str| node(name, "large").drifted(EPOCH);
    let apart =
        |name: &str, node: &str, cpu: &str| alone(name, node, cpu).select(NODE_POOL, "default");
    // The first method that finds anything is the last of its pass.
    let found = |from: usize| {
        let nodes = [
            node("empty", "huge"),
            drifted("fixed").pool("fixed"),
            drifted("drifted"),
            node("first", "small"),
            node("second", "small"),
            node("oversized", "huge"),
        ];
        let mut pods = vec![
            apart("p", "drifted", "7"),
            running("q", "first", "100m"),
            running("r", "second", "100m"),
            apart("s", "oversized", "1"),
        ];
        // Pods that cannot share a node leave nothing to merge.
        if from == 4 {
            pods.drain(1..3);
        }
        let gone: &[&str] = match from {
            0 => &[],
            1 => &["empty"],
            2 => &["empty", "fixed"],
            3 => &["empty", "fixed", "drifted"],
            _ => &["empty", "fixed", "drifted", "first", "second"],
        };
        let stays = |name: &str| !gone.contains(&name);
        pods.retain(|pod| stays(pod.json()["spec"]["nodeName"].as_str().unwrap()));
        let world = world_of(on_demand_pool("default"))
            .with_pool(fixed.clone())
            .run(nodes.into_iter().filter(|node| stays(node.name())))
            .with(pods);
        let plan = world.decide_with(|request| {
            request.static_headroom.insert("fixed".to_owned(), 1);
        });
        let found = plan.commands.iter().map(|command| command.method);
        found.collect::<std::collections::BTreeSet<Method>>()
    };
    for (from, (method, _, _)) in order.into_iter().enumerate() {
        assert_eq!(found(from), [method].into(), "{from}");
    }
}

/// Conformance: DIS-189
#[test]
fn a_rejected_proposal_names_one_of_the_reasons_of_the_event() {
    assert_eq!(CommandInvalidated::Budget.to_string(), "budget");
    assert_eq!(CommandInvalidated::Scheduling.to_string(), "scheduling");
    assert_eq!(CommandInvalidated::Churn.to_string(), "churn");
}

/// Conformance: DIS-141, DIS-176
#[test]
fn a_node_without_a_known_price_costs_0() {
    let world = world_of(open_pool("default")).run([
        node("unknown", "gone"),
        node("elsewhere", "huge").label(ZONE, "nowhere"),
        node("known", "huge"),
    ]);
    let all = Candidates::new(&world.cluster.snapshot(), &<_>::default(), now());
    let prices: Vec<(&str, f64)> = all.candidates.iter().map(|c| (c.name(), c.price)).collect();
    assert_eq!(
        prices,
        [("known", 1.6), ("elsewhere", 0.0), ("unknown", 0.0)]
    );
}

/// Conformance: DIS-179
#[test]
fn pending_pods_block_no_disruption_and_blocked_pods_get_no_replacement() {
    let kept = |change: fn(Object<Pod>) -> Object<Pod>, budget: Option<Value>| {
        let drifted = node("a", "large").drifted(EPOCH);
        let guarded = running("p", "a", "7").label("app", "guarded");
        let mut world = world()
            .run([drifted.claim("/spec/terminationGracePeriod", json!("1h"))])
            .with([change(guarded), pod("hopeless").cpu("1000")]);
        if let Some(spec) = budget {
            world = world.pdb("pdb", "default", spec, 0);
        }
        let plan = world.decide_with(|_| ());
        plan.commands[0].replacements.len()
    };
    assert_eq!(kept(|pod| pod, None), 1);
    let refuses = |pod: Object<Pod>| pod.do_not_disrupt();
    assert_eq!(kept(refuses, None), 0);
    assert_eq!(kept(|pod| pod, Some(json!({ "maxUnavailable": 0 }))), 0);
    assert_eq!(kept(|pod| pod, Some(json!({ "minAvailable": "100%" }))), 0);
    assert_eq!(
        kept(|pod| pod, Some(json!({ "minAvailable": 1 }))),
        1,
        "a number may be met another time"
    );
}

#[test]
fn a_command_names_its_claims_and_five_instance_types() {
    let text = |types: usize| {
        let cheap = (0..types).map(|n| {
            let name = format!("t{n}");
            crate::fleet::priced_type(&name, 2, 0.1 + 0.01 * n as f64)
        });
        let all = cheap.chain([crate::fleet::priced_type("huge", 16, 1.6)]);
        let plan = World::of(on_demand_pool("default"))
            .with_types(all.collect::<Vec<_>>())
            .run([node("a", "huge")])
            .with(running("p", "a", "1"))
            .decide_with(|_| ());
        assert_eq!(plan.commands[0].id().claims(), ["a-claim"]);
        plan.commands[0].to_string()
    };
    let (five, seven) = (text(5), text(7));
    assert!(five.ends_with(" from types t0, t1, t2, t3, t4"), "{five}");
    assert!(
        seven.ends_with(" from types t0, t1, t2, t3, t4 and 2 other(s)"),
        "{seven}"
    );
}

#[test]
fn verdicts_come_by_name_and_a_name_has_one() {
    let mut world = world().run([node("b", "huge"), node("d", "huge"), node("f", "huge")]);
    for (pod, on) in [("p", "b"), ("q", "d"), ("r", "f")] {
        world.add(running(pod, on, "12"));
    }
    world.add(crate::fixture::node("h").set("/metadata/labels", json!({})));
    // NodeClaims without Nodes; `d` is also the name of a candidate, `h` that of a foreign Node.
    for name in ["a", "c", "d", "h", "z"] {
        let claim = crate::fixture::node_claim(name);
        world.cluster.apply_node_claim(&claim.build());
    }
    let plan = world.decide_with(|_| ());
    let missing = VerdictKind::NotDisruptable(NotDisruptable::NoNode);
    let verdicts = plan.verdicts.iter();
    let found: Vec<(&str, bool)> = verdicts
        .map(|verdict| (verdict.node.name(), verdict.kind != missing))
        .collect();
    let expected = [
        ("a", false),
        ("b", true),
        ("c", false),
        ("d", true),
        ("f", true),
        ("h", false),
        ("z", false),
    ];
    assert_eq!(found, expected, "and whether there is a Node");
}

#[test]
fn without_reasons_a_node_is_not_evaluated_if_its_pods_have_no_room() {
    let world = world()
        .run(["a", "b"].map(|name| node(name, "medium")))
        .with([running("p", "a", "3500m"), running("q", "b", "3500m")]);
    let found = |finds_reasons: bool| {
        let plan = world.decide_with(|request| {
            request.finds_reasons = finds_reasons;
            // Else multi-node consolidation asks how each node fares alone.
            request.policy.behavior.multi_node_considers_any_set = false;
        });
        (plan.evaluated, verdict(&plan, "a"))
    };
    let cheaper = NotConsolidatable::NotCheaper.to_string();
    assert_eq!(found(true), (2, cheaper));
    let unknown = NotConsolidatable::NotEvaluated.to_string();
    assert_eq!(found(false), (0, unknown));
}
