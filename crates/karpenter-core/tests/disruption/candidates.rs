//! Which nodes are candidates, and why the others are not.

use karpenter_core::disruption::Candidates;
use serde_json::{Value, json};

use crate::fixture::{EPOCH, Object, Pod, buffer_pod, now, pod};
use crate::fleet::{
    Fleet, commands, node, open_pool, running, verdict, world, world_of, world_with,
};

/// Returns the verdict on node `a`, on which one pod runs.
fn blocked(change: impl FnOnce(Object<Pod>) -> Object<Pod>) -> String {
    let world = world()
        .run([node("a", "huge")])
        .with(change(running("p", "a", "1")));
    world.verdict("a")
}

const DO_NOT_DISRUPT: &str = "pod has \"karpenter.sh/do-not-disrupt\" annotation (Pod=default/p)";

/// Conformance: DIS-089
#[test]
fn a_do_not_disrupt_pod_blocks_its_node_unless_it_has_ended() {
    let refusing = |pod: Object<Pod>| pod.do_not_disrupt();
    assert_eq!(blocked(refusing), DO_NOT_DISRUPT);
    for (api_version, kind) in [("v1", "Node"), ("apps/v1", "DaemonSet")] {
        let owned = |pod| {
            refusing(pod)
                .set("/metadata/ownerReferences", json!([]))
                .owned_by(api_version, kind, "o")
        };
        assert_eq!(blocked(owned), DO_NOT_DISRUPT, "{kind}");
    }
    assert_eq!(
        blocked(|pod| refusing(pod).set("/status/phase", json!("Succeeded"))),
        "deleted"
    );
    let terminating = |pod| refusing(pod).deleted(EPOCH);
    assert_eq!(blocked(terminating), "deleted");
}

#[test]
fn the_do_not_consolidate_annotation_of_v1alpha5_blocks_consolidation() {
    let says = |value: &str| {
        let annotation = "/metadata/annotations/karpenter.sh~1do-not-consolidate";
        let empty = node("a", "huge").node(annotation, json!(value));
        world().run([empty]).verdict("a")
    };
    assert_eq!(
        says("true"),
        "consolidation is blocked through the \"karpenter.sh/do-not-consolidate\" annotation"
    );
    assert_eq!(says("false"), "deleted");
}

#[test]
fn when_empty_deletes_empty_nodes_annotated_with_do_not_consolidate() {
    let says = |pod: Option<Object<Pod>>| {
        let pool = open_pool("default").consolidation_policy("WhenEmpty");
        let annotation = "/metadata/annotations/karpenter.sh~1do-not-consolidate";
        let world = world_of(pool)
            .run([node("a", "huge").node(annotation, json!("true"))])
            .with(pod);
        world.verdict("a")
    };
    assert_eq!(says(None), "deleted");
    assert_eq!(
        says(Some(running("p", "a", "1"))),
        "consolidation is blocked through the \"karpenter.sh/do-not-consolidate\" annotation"
    );
}

/// The caller counts the ten minutes of docs/DIFFERENCES.md and passes the names of the NodeClaims within them.
#[test]
fn a_node_that_consolidation_just_launched_is_kept_unless_it_is_empty() {
    let says = |pods: Vec<Object<Pod>>| {
        let world = world()
            .run([node("a", "huge"), node("b", "huge")])
            .with(pods);
        let plan = world.decide_with(|request| {
            let recent_replacements = &mut request.surroundings.recent_replacements;
            recent_replacements.insert("a-claim".to_owned());
        });
        ["a", "b"].map(|node| verdict(&plan, node))
    };
    let busy = vec![running("p", "a", "1"), running("q", "b", "1")];
    let [a, b] = says(busy);
    assert_eq!(a, "Node changed within consolidateAfter");
    assert_eq!(b, "deleted", "another node is consolidated as before");
    assert_eq!(says(vec![]), ["deleted", "deleted"]);
}

/// Conformance: DIS-177
#[test]
fn candidates_are_ordered_by_price_per_rescheduling_cost() {
    // The more expensive node has so many pods that it saves less per pod.
    let pods = (0..7).map(|index| running(&format!("p{index}"), "a", "1"));
    let world = world()
        .run([node("a", "huge"), node("b", "large"), node("c", "medium")])
        .with(pods)
        .with(running("q", "b", "1"));
    let all = Candidates::new(&world.cluster.snapshot(), &<_>::default(), now());
    let candidates = all.candidates.iter();
    let order = candidates.map(|it| (it.name(), it.price / it.reschedule_cost));
    assert_eq!(
        order.collect::<Vec<_>>(),
        [("b", 0.4), ("c", 0.4), ("a", 0.2)]
    );
}

/// Conformance: DIS-176
#[test]
fn a_node_costs_what_its_zone_and_capacity_type_cost() {
    use crate::fixture::{Z1, Z2};
    let offering = karpenter_core::fake::offering;
    let types = [crate::fleet::type_with_offerings(
        "large",
        8,
        vec![
            offering("on-demand", Z2, 0.9),
            offering("spot", Z1, 0.3),
            offering("on-demand", Z1, 0.8),
            offering("spot", Z2, 0.4),
        ],
    )];
    let in_zone =
        |name: &str, zone: &str| node(name, "large").label("topology.kubernetes.io/zone", zone);
    let world = world_with(types).run([
        in_zone("a", Z1),
        in_zone("b", Z2),
        in_zone("c", Z1).spot(),
        in_zone("d", Z2).spot(),
        in_zone("e", "elsewhere"),
    ]);
    let all = Candidates::new(&world.cluster.snapshot(), &<_>::default(), now());
    let candidates = all.candidates.iter();
    let mut prices: Vec<(&str, f64)> = candidates.map(|it| (it.name(), it.price)).collect();
    prices.sort_by_key(|(name, _)| *name);
    assert_eq!(
        prices,
        [("a", 0.8), ("b", 0.9), ("c", 0.3), ("d", 0.4), ("e", 0.0)]
    );
    let mut zones: Vec<&str> = all.candidates.iter().filter_map(|c| c.zone()).collect();
    zones.sort_unstable();
    assert_eq!(zones, ["elsewhere", Z1, Z1, Z2, Z2]);
}

/// Conformance: DIS-091
#[test]
fn do_not_disrupt_blocks_only_if_true_or_a_duration_that_has_not_passed() {
    let annotated =
        |value: &str| node("a", "huge").annotation("karpenter.sh/do-not-disrupt", value);
    let says = |value| world().run([annotated(value)]).verdict("a");
    assert_eq!(
        says("true"),
        "disruption is blocked through the \"karpenter.sh/do-not-disrupt\" annotation"
    );
    assert_eq!(says("false"), "deleted");
    let for_duration = |value: &str| {
        let started = json!((now() - jiff::SignedDuration::from_mins(10)).to_string());
        blocked(|pod| {
            pod.annotation("karpenter.sh/do-not-disrupt", value)
                .set("/status/startTime", started)
        })
    };
    assert_eq!(for_duration("nonsense"), "replaced");
    assert_eq!(for_duration("5m"), "replaced");
    assert_eq!(for_duration("15m"), DO_NOT_DISRUPT);
}

/// Conformance: DIS-092
#[test]
fn a_pdb_blocks_nodes_with_daemon_pods_but_not_with_static_pods() {
    let guarded = |api_version: &str, kind: &str| {
        let owned = pod("p")
            .label("app", "guarded")
            .owned_by(api_version, kind, "o")
            .on("a");
        let world = world().run([node("a", "huge")]).with(owned);
        let world = world.pdb("pdb", "default", json!({ "maxUnavailable": 0 }), 0);
        world.verdict("a")
    };
    assert_eq!(
        guarded("apps/v1", "DaemonSet"),
        "pdb prevents pod evictions (PodDisruptionBudget=default/pdb)"
    );
    assert_eq!(guarded("v1", "Node"), "deleted");
}

/// Conformance: DIS-169
#[test]
fn two_pdbs_on_one_pod_block_its_node() {
    let world = world()
        .run([node("a", "huge"), node("b", "huge")])
        .with(running("p", "a", "1").label("app", "guarded"))
        .pdb("one", "default", json!({}), 1)
        .pdb("two", "default", json!({}), 1);
    assert_eq!(
        world.verdict("a"),
        "eviction does not support multiple PDBs (Pod=default/p, PodDisruptionBudget=[one two])"
    );
}

/// Conformance: DIS-104
#[test]
fn pdbs_of_other_namespaces_and_unready_pods_do_not_block() {
    let with = |namespace: &str, spec: serde_json::Value, ready: Option<&str>| {
        let conditions = ready.map(|status| json!({ "type": "Ready", "status": status }));
        let guarded = running("p", "a", "1")
            .label("app", "guarded")
            .set("/status/conditions", Value::from_iter(conditions));
        let world = world()
            .run([node("a", "small"), node("b", "huge")])
            .with([guarded, running("q", "b", "12")])
            .pdb("pdb", namespace, spec, 0);
        world.verdict("a")
    };
    let always = || json!({ "unhealthyPodEvictionPolicy": "AlwaysAllow" });
    let blocked = "pdb prevents pod evictions (PodDisruptionBudget=default/pdb)";
    assert_eq!(with("other", json!({}), Some("True")), "deleted");
    assert_eq!(with("default", always(), Some("False")), "deleted");
    assert_eq!(
        with("default", always(), None),
        "deleted",
        "as in the eviction API"
    );
    assert_eq!(with("default", always(), Some("True")), blocked);
    assert_eq!(with("default", json!({}), Some("False")), blocked);
}

/// Conformance: DIS-169
#[test]
fn a_claim_without_a_node_and_a_node_without_a_claim_are_no_candidates() {
    let mut world = world();
    world
        .cluster
        .apply_node_claim(&node("c", "huge").claim.build());
    world.add(crate::fixture::node("foreign").set("/metadata/labels", json!({})));
    let plan = world.decide_with(|_| ());
    for (name, text) in [
        ("c-claim", "nodeclaim does not have an associated node"),
        ("foreign", "node isn't managed by karpenter"),
    ] {
        assert_eq!(verdict(&plan, name), text);
    }
    assert_eq!(commands(&plan), Vec::<String>::new());
}

/// Conformance: DIS-117
#[test]
fn daemon_pods_leave_a_node_empty_but_a_stateful_set_pod_does_not() {
    let verdict_with = |api_version: &str, kind: &str, terminating: bool| {
        let mut pod = pod("p").cpu("1").owned_by(api_version, kind, "o").on("a");
        if terminating {
            pod = pod.deleted(EPOCH);
        }
        let world = world().run([node("a", "small")]).with(pod);
        world.verdict("a")
    };
    assert_eq!(verdict_with("apps/v1", "DaemonSet", false), "deleted");
    assert_eq!(verdict_with("apps/v1", "ReplicaSet", true), "deleted");
    assert_ne!(verdict_with("apps/v1", "StatefulSet", true), "deleted");
}

/// Conformance: DIS-118
#[test]
fn a_node_that_holds_only_buffer_pods_is_not_empty() {
    let world = world().run([node("a", "huge"), node("b", "huge")]);
    let plan = world.decide_with(|request| {
        request.surroundings.buffer_pods.insert("a".to_owned(), 2);
    });
    assert_eq!(commands(&plan), ["delete b (saves 1.60)"]);
    assert_eq!(world.decide(), ["delete a b (saves 3.20)"]);
}

/// Conformance: API-109
#[test]
fn a_node_with_a_buffer_pod_is_deleted_once_the_buffer_pod_fits_elsewhere() {
    let decide = |used: &str| {
        let buffer = buffer_pod(pod("capacity-buffer-b-1").cpu("3"));
        let stays = running("q", "b", used).do_not_disrupt();
        let plan = world()
            .run([node("a", "medium"), node("b", "huge")])
            .with(stays)
            .decide_with(|request| {
                request.query.buffer_pods = vec![buffer];
                request.surroundings.buffer_pods.insert("a".to_owned(), 1);
            });
        verdict(&plan, "a")
    };
    assert_eq!(decide("14"), "Can't replace with a cheaper node");
    assert_eq!(decide("12"), "deleted");
}
