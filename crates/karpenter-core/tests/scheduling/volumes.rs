//! PersistentVolumeClaims: the zones they admit, invalid claims, and how many volumes a node can attach.

use serde_json::json;

use crate::fixture::*;

pub fn bound(name: &str, volume: &str) -> Object<PersistentVolumeClaim> {
    of_class(name).bound_to(volume)
}

fn of_class(name: &str) -> Object<PersistentVolumeClaim> {
    persistent_volume_claim(name).storage_class("class")
}

fn class() -> Object<StorageClass> {
    storage_class("class")
}

/// Returns a volume `v` in a zone.
fn zonal(zone: &str) -> Object<PersistentVolume> {
    persistent_volume("v").zone(zone)
}

/// Returns whether a pod with the volume `c` is placed.
fn is_placed(storage: impl Applied) -> bool {
    World::new().places((storage, pod("p").volume("c")))
}

/// Returns a world in which this provisioner is not supported.
fn unsupported(provisioner: &str) -> World {
    World::configured(|config| config.unsupported_provisioners.push(provisioner.to_owned()))
        .with_pool(node_pool("default"))
}

/// Conformance: SCH-091
#[test]
fn an_unbound_claim_needs_a_storage_class() {
    for class_name in [None, Some("")] {
        let mut unbound = persistent_volume_claim("c");
        if let Some(name) = class_name {
            unbound = unbound.storage_class(name);
        }
        assert!(!is_placed(unbound.clone()));
        let known = unbound.bound_to("v");
        assert!(is_placed((known, zonal(Z1))));
    }
    let ephemeral = pod("p").push(
        "/spec/volumes",
        json!({ "name": "e", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } }),
    );
    let unbound = persistent_volume_claim("p-e");
    assert!(!World::new().places((unbound, ephemeral.clone())));
    assert!(World::new().places((bound("p-e", "v"), zonal(Z1), ephemeral)));
}

/// Conformance: SCH-092
#[test]
fn a_named_volume_counts_once_binding_is_complete() {
    let named = of_class("c").volume_name("v");
    assert!(!is_placed((named, zonal(Z1), class())));
    assert!(is_placed((bound("c", "v"), zonal(Z1), class())));
}

/// Conformance: SCH-093
#[test]
fn a_claim_or_volume_that_cannot_be_used_makes_the_pod_invalid() {
    let unbound = of_class("c");
    let gone = "2026-01-01T00:00:00Z";
    let deleting = unbound.clone().deleted(gone);
    assert!(!is_placed((deleting, class())));
    let lost = unbound.clone().set("/status/phase", "Lost");
    assert!(!is_placed((lost, class())));
    let volume_deleting = zonal(Z1).deleted(gone);
    assert!(!is_placed((bound("c", "v"), volume_deleting)));
    let immediate = class().set("/volumeBindingMode", "Immediate");
    assert!(!is_placed((unbound.clone(), immediate)));
    assert!(!is_placed(class()), "the claim does not exist");
    assert!(!is_placed(unbound.clone()), "the class does not exist");
    let provisioner = || unsupported("ebs.csi.aws.com").with(pod("p").volume("c"));
    assert!(!provisioner().places((unbound.clone(), class())));
    assert!(!provisioner().places((bound("c", "v"), zonal(Z1))));
    let key = World::configured(|config| config.unsupported_topology_keys.push(ZONE.into()));
    let key = key
        .with_pool(node_pool("default"))
        .with(pod("p").volume("c"));
    assert!(!key.places((unbound.clone(), class().zones(&[Z1]))));
    assert!(is_placed((unbound, class())));
}

#[test]
fn a_provisioner_is_unsupported_by_its_name_and_by_its_csi_driver() {
    let is_supported = |provisioner: &str, unsupported: &str| {
        let storage = (of_class("c"), class().provisioner(provisioner));
        self::unsupported(unsupported).places((storage, pod("p").volume("c")))
    };
    let (in_tree, driver) = ("kubernetes.io/aws-ebs", "ebs.csi.aws.com");
    assert!(!is_supported(in_tree, in_tree));
    assert!(!is_supported(in_tree, driver));
    assert!(!is_supported(driver, driver));
    assert!(is_supported(driver, in_tree));
    assert!(is_supported("efs.csi.aws.com", driver));
}

/// Conformance: SCH-284, SCH-285
#[test]
fn a_bound_claim_needs_no_late_binding_mode_and_no_term_of_its_volume() {
    let immediate = || class().set("/volumeBindingMode", "Immediate");
    let placed = |claim: Object<PersistentVolumeClaim>, volume: Object<PersistentVolume>| {
        is_placed((claim, volume, immediate()))
    };
    assert!(!placed(of_class("c"), persistent_volume("v")));
    assert!(placed(bound("c", "v"), persistent_volume("v")));
    // A term without expressions is none, and not one that no node meets.
    let empty = persistent_volume("v").reachable_from_term(&[]);
    assert!(placed(bound("c", "v"), empty));
}

/// Returns the zone of the planned node; empty if there is none.
fn zone_of(objects: impl Applied) -> String {
    let claims = plan_of(objects).new_node_claims;
    let zones = claims.first().map(|draft| values(draft, ZONE).join(","));
    zones.unwrap_or_default()
}

/// Conformance: SCH-094
#[test]
fn a_pod_is_placed_in_the_zone_of_its_volume() {
    let asked = |zones: &[&str]| pod("p").volume("c").require(ZONE, "In", zones);
    let unbound = || (of_class("c"), class().zones(&[Z2, Z3]));
    assert_eq!(zone_of((unbound(), asked(&[Z1, Z3]))), Z3);
    assert_eq!(zone_of((unbound(), asked(&[Z1]))), "");
    let known = || (bound("c", "v"), zonal(Z3));
    assert_eq!(zone_of((known(), asked(&[Z1, Z3]))), Z3);
    assert_eq!(zone_of((known(), asked(&[Z1]))), "");
    let ephemeral = pod("p").push("/spec/volumes", json!({ "name": "e", "ephemeral": { "volumeClaimTemplate": { "spec": { "storageClassName": "class" } } } }));
    let ephemeral = ephemeral.require(ZONE, "In", &[Z1, Z3]);
    assert_eq!(zone_of((unbound(), ephemeral)), Z3);
}

/// Conformance: SCH-033
#[test]
fn a_volume_s_zone_survives_relaxation() {
    let asked = pod("p")
        .volume("c")
        .require_term(&[("unknown", "In", &["x"])])
        .require_term(&[(CAPACITY_TYPE, "In", &["on-demand"])]);
    assert_eq!(zone_of((bound("c", "v"), zonal(Z3), asked)), Z3);
}

fn on_host(kind: &str, volume: Object<PersistentVolume>) -> Object<PersistentVolume> {
    let volume = volume.remove("/spec/csi");
    volume.set(&format!("/spec/{kind}/path"), "/data")
}

/// Conformance: SCH-095
#[test]
fn a_local_volume_s_host_does_not_matter() {
    let host = persistent_volume("v").reachable_from(HOSTNAME, "In", &["gone"]);
    for kind in ["local", "hostPath"] {
        assert!(
            is_placed((bound("c", "v"), on_host(kind, host.clone()))),
            "{kind}"
        );
    }
    assert!(!is_placed((bound("c", "v"), host)));
}

/// Conformance: SCH-096
#[test]
fn a_local_volume_s_host_is_an_alternative_without_constraint() {
    let either = persistent_volume("v")
        .reachable_from(HOSTNAME, "In", &["gone"])
        .zone("nowhere");
    assert!(is_placed((bound("c", "v"), on_host("local", either))));
}

/// Conformance: SCH-097
#[test]
fn alternatives_of_a_volume_or_class_are_all_used() {
    let apart = |name: &str, claim: &str| member(name).anti_affinity(ZONE, APP).volume(claim);
    let zones = |mut world: World| {
        world.add(apart("p", "a"));
        world.add(apart("q", "b"));
        let plan = world.launch_and_bind();
        assert!(all_placed(&plan));
        let mut zones: Vec<String> = plan
            .new_node_claims
            .iter()
            .flat_map(|draft| values(draft, ZONE))
            .collect();
        zones.sort_unstable();
        zones
    };
    let either = |name: &str| persistent_volume(name).zone(Z1).zone(Z2);
    let of_volumes = World::new().with((
        [bound("a", "va"), bound("b", "vb")],
        [either("va"), either("vb")],
    ));
    assert_eq!(zones(of_volumes), [Z1, Z2], "PersistentVolumes");
    let either = storage_class("either").zones(&[Z1]).zones(&[Z2]);
    let unbound = |name: &str| persistent_volume_claim(name).storage_class("either");
    let of_class = World::new().with(([unbound("a"), unbound("b")], either));
    assert_eq!(zones(of_class), [Z1, Z2], "StorageClass");
}

/// Conformance: SCH-098
#[test]
fn a_pod_is_placed_in_a_zone_that_all_its_volumes_admit() {
    let classes = [
        storage_class("one").zones(&[Z1]).zones(&[Z2]),
        storage_class("two").zones(&[Z2]).zones(&[Z3]),
    ];
    let claims = [
        persistent_volume_claim("a").storage_class("one"),
        persistent_volume_claim("b").storage_class("two"),
    ];
    let pod = pod("p").volume("a").volume("b");
    assert_eq!(zone_of((claims, classes, pod)), Z2);
}

fn limited(storage: impl Applied, count: i32) -> World {
    let node = node("n").cpu("64").memory("64Gi").pods("200");
    World::new().with((
        storage,
        node,
        csi_node("n").driver("ebs.csi.aws.com", count),
    ))
}

/// Conformance: SCH-099
#[test]
fn a_node_attaches_as_many_volumes_as_its_csi_driver_allows() {
    let claims: Vec<_> = (0..12)
        .map(|index| of_class(&format!("c{index}")))
        .collect();
    let pods = (0..6).map(|index| {
        pod(&format!("p{index}"))
            .volume(&format!("c{}", 2 * index))
            .volume(&format!("c{}", 2 * index + 1))
    });
    let plan = limited((claims, class()), 10).with(pods).plan();
    assert_eq!(counts(&plan), (5, 1));
    let shared = copies(&pod("p").volume("c").memory("10Mi"), 100);
    let plan = limited((of_class("c"), class()), 10).with(shared).plan();
    assert_eq!(counts(&plan), (100, 0));
}

/// Conformance: SCH-100
#[test]
fn ephemeral_volumes_are_attached_too() {
    for (class_name, default) in [(Some("class"), false), (None, true)] {
        let mut spec = json!({});
        if let Some(name) = class_name {
            spec["storageClassName"] = json!(name);
        }
        let asked = pod("p").push(
            "/spec/volumes",
            json!({ "name": "e", "ephemeral": { "volumeClaimTemplate": { "spec": spec } } }),
        );
        let mut newest = class();
        let mut old = storage_class("old").provisioner("other");
        if default {
            let is_default = "storageclass.kubernetes.io/is-default-class";
            newest = newest
                .annotation(is_default, "true")
                .created("2026-01-02T00:00:00Z");
            old = old
                .annotation(is_default, "true")
                .created("2026-01-01T00:00:00Z");
        }
        let plan = limited([newest, old], 1).with(copies(&asked, 2)).plan();
        assert_eq!(counts(&plan), (1, 1));
    }
}

/// Conformance: SCH-101
#[test]
fn in_tree_volumes_count_as_their_csi_driver_s() {
    let in_tree = class().provisioner("kubernetes.io/aws-ebs");
    let old = persistent_volume("v")
        .zone(Z1)
        .remove("/spec/csi")
        .set("/spec/awsElasticBlockStore/volumeID", "v");
    let claims = [of_class("a"), bound("b", "v")];
    let plan = limited((claims, old, in_tree), 1)
        .with([pod("p").volume("a"), pod("q").volume("b")])
        .plan();
    assert_eq!(counts(&plan), (1, 1));
}

/// Conformance: SCH-270
#[test]
fn volumes_that_no_csi_driver_attaches_are_not_limited() {
    let attached = |change: fn(Object<PersistentVolume>) -> Object<PersistentVolume>| {
        let claims = [bound("a", "v"), bound("b", "w")];
        let volumes = ["v", "w"].map(|name| change(persistent_volume(name)));
        let plan = limited((claims, volumes, class()), 1)
            .with([pod("p").volume("a"), pod("q").volume("b")])
            .plan();
        counts(&plan)
    };
    assert_eq!(attached(|volume| volume), (1, 1), "of the driver");
    let nfs = attached(|volume| volume.remove("/spec/csi").set("/spec/nfs/server", "files"));
    assert_eq!(nfs, (2, 0));
    let other = attached(|volume| volume.driver("other.example.com"));
    assert_eq!(other, (2, 0), "of a driver for which the node has no limit");
}

/// Conformance: SCH-271
#[test]
fn a_planned_node_attaches_any_number_of_volumes() {
    let claims: Vec<_> = (0..60)
        .map(|index| of_class(&format!("c{index}")))
        .collect();
    let pods = (0..3).map(|index| {
        let claims = (20 * index)..(20 * (index + 1));
        claims.fold(pod(&format!("p{index}")), |pod, claim| {
            pod.volume(&format!("c{claim}"))
        })
    });
    let plan = World::new().with((claims, class())).with(pods).plan();
    assert_eq!(sizes(&plan), [3]);
}

/// Conformance: SCH-102
#[test]
fn a_volume_does_not_shrink_the_domains_of_a_spread() {
    let app = APP;
    let mut all = World::new().with((bound("c", "v"), zonal(Z1)));
    let asked = member("p").spread_with(ZONE, 1, app, json!({ "minDomains": 3 }));
    all.add(copies(&asked, 3));
    all.launch_and_bind();
    assert_eq!(all.skew(ZONE, app), [1, 1, 1]);
    all.add(asked.renamed("z").volume("c"));
    all.launch_and_bind();
    assert_eq!(all.skew(ZONE, app), [2, 1, 1]);
    assert!(
        all.cluster
            .snapshot()
            .pod("default", "z")
            .unwrap()
            .node_name
            .is_some()
    );
}

/// Conformance: SCH-223
#[test]
fn a_volume_of_two_zones_is_placed_on_the_existing_node() {
    let world = |volume: Object<PersistentVolume>| {
        let world = World::new().with((bound("c", "v"), volume));
        world.with((node("n").zone(Z2), pod("p").cpu("1").volume("c")))
    };
    let plan = world(zonal(Z1).zone(Z2)).plan();
    assert_eq!(plan.existing.len(), 1);
    let plan = world(zonal(Z1)).plan();
    assert_eq!(first_values(&plan, ZONE), [Z1]);
}

/// Conformance: SCH-224, SCH-226
#[test]
fn a_volume_s_zone_does_not_shrink_the_spread() {
    // One pod counts in z1; the volume forces a second one there, which the spread does not admit.
    let world = World::new().with((bound("c", "v"), zonal(Z1)));
    let spread = |name: &str| member(name).spread(ZONE, 1, APP);
    let world = world.with((
        node("n"),
        spread("a").on("n"),
        spread("p").cpu("1").volume("c"),
    ));
    assert!(!world.is_placed());
    assert!(why(&world.plan(), "p").contains(
        "unsatisfiable topology constraint for topology spread, key=topology.kubernetes.io/zone"
    ));
}
