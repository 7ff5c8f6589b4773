//! The effective zone of pending pods.

use karpenter_core::schedule::EffectiveZone;
use serde_json::json;

use crate::fixture::*;
use crate::volumes::bound;

const WEB: (&str, &str) = ("app", "web");

/// Returns the effective zone of the only pending pod.
fn zone(world: World) -> String {
    let zones = world.plan().pending_by_zone;
    assert_eq!(zones.values().sum::<usize>(), 1, "{zones:?}");
    zones.keys().map(EffectiveZone::to_string).collect()
}

fn with_volume(pod: Object<Pod>) -> World {
    World::new()
        .with((bound("data", "disk"), persistent_volume("disk").zone(Z2)))
        .with(pod.volume("data"))
}

fn running(name: &str, zone: &str) -> impl Applied {
    let node = node(name).label(ZONE, zone);
    let pod = pod(&format!("on-{name}")).label("app", "web").on(name);
    (node, pod)
}

fn web() -> Object<Pod> {
    pod("p").label("app", "web")
}

/// Conformance: SCH-164
#[test]
fn required_constraints_determine_the_effective_zone() {
    let new = World::new;
    assert_eq!(zone(new().with(pod("p"))), "flexible");
    assert_eq!(zone(new().with(pod("p").select(ZONE, Z1))), Z1);
    assert_eq!(zone(with_volume(pod("p"))), Z2);
    let near = new().with(running("a", Z1)).with(web().affinity(ZONE, WEB));
    assert_eq!(zone(near), Z1);
    let spread = new()
        .with(running("a", Z1))
        .with(running("b", Z3))
        .with(web().spread(ZONE, 1, WEB));
    assert_eq!(zone(spread), Z2);
    let preferred = pod("p").prefer(1, ZONE, "In", &[Z1]);
    assert_eq!(zone(new().with(preferred)), "flexible");
    assert_eq!(zone(with_volume(pod("p").select(ZONE, Z1))), "none");
    let few = json!([{ "topologyKey": ZONE, "maxSkew": 1, "minDomains": 5, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": "web" } } }]);
    let crowded = [("a", Z1), ("b", Z2), ("c", Z3)]
        .into_iter()
        .fold(new(), |world, (name, zone)| world.with(running(name, zone)));
    let few = crowded.with(web().set("/spec/topologySpreadConstraints", few));
    assert_eq!(zone(few), "none");
    let absent = new().with(pod("p").affinity(ZONE, WEB));
    assert_eq!(zone(absent), "none");
    let crowded = [("a", Z1), ("b", Z2), ("c", Z3)]
        .into_iter()
        .fold(new(), |world, (name, zone)| world.with(running(name, zone)));
    assert_eq!(
        zone(crowded.with(pod("p").anti_affinity(ZONE, WEB))),
        "none"
    );
}

#[test]
fn a_zone_without_offerings_is_effective_for_a_pod_or_a_node_in_it() {
    let new = World::new;
    let far = "zone-without-offerings";
    assert_eq!(zone(new().with(pod("p").select(ZONE, far))), far);
    let elsewhere = pod("p").require(ZONE, "NotIn", &[Z1, Z2, Z3, "test-zone-4"]);
    assert_eq!(zone(new().with(elsewhere.clone())), "none");
    let world = new().with(running("a", far)).with(elsewhere);
    assert_eq!(zone(world), far);
}

#[test]
fn a_bound_pod_that_has_not_started_is_not_pending() {
    let deleting = node("n").set("/metadata/deletionTimestamp", "2026-01-01T00:00:00Z");
    let bound = pod("p").on("n").set("/status/phase", "Pending");
    let plan = plan_of((deleting, bound));
    assert_eq!(sizes(&plan), [1], "it is leaving");
    assert!(
        plan.pending_by_zone.is_empty(),
        "{:?}",
        plan.pending_by_zone
    );
}
