//! Which pods a topology spread constraint counts.

use karpenter_core::schedule::{Plan, PodSet};
use serde_json::json;

use super::{node_in, spread, zones};
use crate::fixture::*;

/// Returns a world in which two do-not-disrupt pods in zone 1 block the deletion of their node.
fn with_blocked_deletion(change: impl Fn(Object<Pod>) -> Object<Pod>) -> World {
    let deleted = json!("2026-01-01T00:00:00Z");
    let kept = |name: &str| {
        let pod = member(name).on("n");
        change(pod.do_not_disrupt())
    };
    zones(&[Z1, Z2]).with((
        node_in("n", Z1).set("/metadata/deletionTimestamp", deleted),
        kept("a"),
        kept("b"),
    ))
}

#[test]
fn pods_that_block_the_deletion_of_a_node_count_in_its_zone() {
    let plan = with_blocked_deletion(|pod| pod)
        .with(copies(&spread("p", ZONE).cpu("1"), 2))
        .plan();
    for draft in &plan.new_node_claims {
        assert_eq!(values(draft, ZONE), [Z2], "the other zone has two");
    }
    assert!(all_placed(&plan));
}

#[test]
fn other_pods_that_block_the_deletion_of_a_node_do_not_count_in_its_zone() {
    let plan = with_blocked_deletion(|pod| pod.label("app", "y"))
        .with(copies(&spread("p", ZONE).cpu("1"), 2))
        .plan();
    let mut zones: Vec<String> = (plan.new_node_claims.iter())
        .flat_map(|draft| values(draft, ZONE))
        .collect();
    zones.sort_unstable();
    assert_eq!(zones, [Z1, Z2], "one in each zone");
}

#[test]
fn anti_affinity_of_pods_that_block_a_deletion_counts_in_the_zone() {
    let next = member("p").select(ZONE, Z1);
    let plan = with_blocked_deletion(|pod| pod).with(next.clone()).plan();
    assert!(all_placed(&plan));
    // Whether or not they match their own term.
    for app in ["x", "y"] {
        let apart = |pod: Object<Pod>| pod.label("app", app).anti_affinity(ZONE, APP);
        let plan = with_blocked_deletion(apart).with(next.clone()).plan();
        assert!(!all_placed(&plan), "{app}");
    }
}

/// Returns the zone of each pod on a planned node, sorted.
fn zones_of_pods(plan: &Plan) -> Vec<String> {
    let drafts = plan.new_node_claims.iter();
    let mut zones: Vec<String> = drafts
        .flat_map(|draft| vec![values(draft, ZONE).join("/"); draft.pods.len()])
        .collect();
    zones.sort_unstable();
    zones
}

/// Returns the zones of two pods with skew 1 in a cluster of two zones with these pods.
///
/// If no pod counts, the two get one zone each. If two pods count in zone 1, both get zone 2.
fn zones_with(existing: Vec<Object<Pod>>) -> Vec<String> {
    let without_zone = node("zoneless").without_label(ZONE);
    let no_room = json!({ "cpu": "0", "pods": "9" });
    let plan = zones(&[Z1, Z2])
        .with([
            node_in("n", Z1),
            without_zone.set("/status/allocatable", no_room),
        ])
        .with(existing)
        .with(copies(&spread("p", ZONE).cpu("3"), 2))
        .plan();
    assert!(all_placed(&plan));
    zones_of_pods(&plan)
}

/// Conformance: SCH-109
#[test]
fn only_running_pods_of_the_namespace_on_known_nodes_count() {
    let existing = || member("existing");
    let deleted = json!("2026-01-01T00:00:00Z");
    let two = |pod: Object<Pod>| zones_with(copies(&pod, 2));
    assert_eq!(two(existing().on("n")), [Z2, Z2], "running pods count");
    for (kind, uncounted) in [
        ("other label", pod("existing").label("app", "y").on("n")),
        ("other namespace", existing().namespace("other").on("n")),
        ("pending", {
            let waiting = existing().select(ZONE, Z1);
            waiting.set("/status/conditions", json!([]))
        }),
        ("node without zone", existing().on("zoneless")),
        ("unknown node", existing().on("no-such-node")),
        (
            "terminating",
            existing()
                .on("n")
                .set("/metadata/deletionTimestamp", deleted),
        ),
        (
            "failed",
            existing().on("n").set("/status/phase", json!("Failed")),
        ),
        (
            "succeeded",
            existing().on("n").set("/status/phase", json!("Succeeded")),
        ),
    ] {
        assert_eq!(two(uncounted), [Z1, Z2], "{kind}");
    }
}

/// Conformance: SCH-110
#[test]
fn pods_that_do_not_count_themselves_are_not_spread() {
    let other = pod("p").label("app", "y").spread(HOSTNAME, 1, APP);
    assert_eq!(World::new().with(copies(&other, 4)).sizes(), [4]);
}

/// Conformance: SCH-121
#[test]
fn match_label_keys_spread_each_revision_separately() {
    let keys = json!({ "matchLabelKeys": ["revision"] });
    let of = |name: &str| {
        member(name)
            .label("revision", name)
            .spread_with(HOSTNAME, 1, APP, keys.clone())
    };
    assert_eq!(
        World::new()
            .with(copies(&of("a"), 2))
            .with(copies(&of("b"), 2))
            .sizes(),
        [2, 2]
    );
    let unknown =
        member("p").spread_with(HOSTNAME, 1, APP, json!({ "matchLabelKeys": ["unknown"] }));
    assert_eq!(World::new().with(copies(&unknown, 4)).sizes(), [1, 1, 1, 1]);
}

/// Conformance: SCH-228
#[test]
fn pods_on_nodes_that_the_node_filter_excludes_do_not_count_for_a_spread() {
    // Zone 1 has two pods on a node that the spread pods do not select.
    let placed = |policy: &str, on_selected: bool| {
        let existing = node_in("n", Z1).set(
            "/metadata/labels/team",
            json!(if on_selected { "mine" } else { "other" }),
        );
        let asked = member("p").cpu("3").select("team", "mine").spread_with(
            ZONE,
            1,
            APP,
            json!({ "nodeAffinityPolicy": policy }),
        );
        let pool = node_pool("default")
            .requires(ZONE, "In", &[Z1, Z2])
            .node_label("team", "mine");
        let plan = World::of(pool)
            .with(existing)
            .with(copies(&member("existing").on("n"), 2))
            .with(copies(&asked, 2))
            .plan();
        assert!(all_placed(&plan), "{policy}");
        zones_of_pods(&plan)
    };
    assert_eq!(placed("Honor", false), [Z1, Z2]);
    assert_eq!(placed("Honor", true), [Z2, Z2]);
    assert_eq!(placed("Ignore", false), [Z2, Z2]);
}

/// Conformance: SCH-272
#[test]
fn a_node_without_a_hostname_label_is_the_domain_of_its_name() {
    let placed = |existing: usize| {
        let plan = World::new()
            .with(node("n").cpu("8").without_label(HOSTNAME))
            .with(copies(&member("existing").on("n"), existing))
            .with(member("p").spread(HOSTNAME, 1, APP))
            .plan();
        assert!(all_placed(&plan));
        plan.existing.len()
    };
    assert_eq!((placed(0), placed(1)), (1, 0));
}

/// Conformance: SCH-273
#[test]
fn affinity_counts_pods_on_nodes_that_the_pod_cannot_use() {
    // A spread would not count the pod on this node, which is of another team.
    let plan = zones(&[Z1, Z2, Z3])
        .with(node_in("n", Z2).label("team", "other"))
        .with(member("target").on("n"))
        .with(
            pod("p")
                .require("team", "NotIn", &["other"])
                .affinity(ZONE, APP),
        )
        .plan();
    assert!(all_placed(&plan));
    assert_eq!(first_values(&plan, ZONE), [Z2]);
}

/// Two pods count in zone 1 and one in zone 2, but one of the two is the pod in question.
#[test]
fn a_bound_pod_that_moves_does_not_count_where_it_is() {
    let on = |name: &str, node: &str| member(name).cpu("100m").on(node);
    let roomy = |name: &str, zone: &str| node(name).zone(zone).cpu("4").pods("9");
    let mut world = zones(&[Z1, Z2]).with((
        roomy("n1", Z1),
        roomy("n2", Z2),
        [on("a", "n1"), on("b", "n2")],
        on("moving", "n1").spread(ZONE, 1, APP),
    ));
    let moving = world.cluster.snapshot().pod("default", "moving").cloned();
    world.query.pods = PodSet::WaitingAnd(moving.into_iter().collect());
    let plan = world.plan();
    assert_eq!(plan.existing[0].node, "n1");
}

/// Returns the zones of these many pods with skew 1, which have a place in zones 1 and 2, beside a node that is being deleted with two
/// pods that stay there.
fn zones_beside_deleting(node: Object<Node>, app: &str, number: usize) -> Vec<String> {
    let kept = |name: &str| pod(name).label("app", app).on("n").do_not_disrupt();
    let policies = json!({ "nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Honor" });
    let spread = member("p")
        .select("team", "mine")
        .spread_with(ZONE, 1, APP, policies);
    let pool = node_pool("default").requires(ZONE, "In", &[Z1, Z2]);
    let plan = World::of(pool.node_label("team", "mine"))
        .with(node.set("/metadata/deletionTimestamp", "2026-01-01T00:00:00Z"))
        .with([kept("a"), kept("b")])
        .with(node_in("of-another-team", Z3).label("team", "other"))
        .with(copies(&spread.cpu("3"), number))
        .plan();
    zones_of_pods(&plan)
}

#[test]
fn the_zone_of_a_deleting_node_is_a_domain_only_if_its_pods_count() {
    let third = || node_in("n", Z3).label("team", "mine");
    // Three each in zones 1 and 2, beside two.
    assert_eq!(zones_beside_deleting(third(), "x", 8).len(), 6);
    assert_eq!(zones_beside_deleting(third(), "y", 8).len(), 8);
}

#[test]
fn pods_on_a_deleting_node_count_only_if_the_node_filter_admits_it() {
    let first = || node_in("n", Z1).label("team", "mine");
    assert_eq!(zones_beside_deleting(first(), "x", 2), [Z2, Z2]);
    let other_team = first().label("team", "other");
    assert_eq!(zones_beside_deleting(other_team, "x", 2), [Z1, Z2]);
    let tainted = first().taint("t", "t", "NoSchedule");
    assert_eq!(zones_beside_deleting(tainted, "x", 2), [Z1, Z2]);
}

#[test]
fn pods_on_a_deleting_node_that_have_ended_or_are_leaving_do_not_count() {
    let with = |change: fn(Object<Pod>) -> Object<Pod>| {
        let plan = with_blocked_deletion(change)
            .with(copies(&spread("p", ZONE).cpu("3"), 2))
            .plan();
        let spread = |draft: &&karpenter_core::schedule::PlannedNodeClaim| {
            draft.pods.iter().any(|pod| pod.name.starts_with('p'))
        };
        let mut chosen: Vec<String> = (plan.new_node_claims.iter())
            .filter(spread)
            .flat_map(|draft| values(draft, ZONE))
            .collect();
        chosen.sort_unstable();
        chosen
    };
    assert_eq!(with(|pod| pod.set("/status/phase", "Succeeded")), [Z1, Z2]);
    let leaving = |pod: Object<Pod>| pod.annotation("karpenter.sh/do-not-disrupt", "false");
    assert_eq!(with(leaving), [Z1, Z2]);
}
