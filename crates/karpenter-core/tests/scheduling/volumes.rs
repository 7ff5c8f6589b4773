//! PersistentVolumeClaims: the zones they admit, invalid claims, and how many volumes a node can attach.

use serde_json::{Value, json};

use crate::fixture::*;

fn claim(name: &str, spec: Value) -> Value {
    json!({ "metadata": { "name": name, "namespace": "default", "uid": name }, "spec": spec, "status": { "phase": "Pending" } })
}

pub fn bound(name: &str, volume: &str) -> Value {
    let mut value = claim(
        name,
        json!({ "volumeName": volume, "storageClassName": "class" }),
    );
    value["metadata"]["annotations"] = json!({ "pv.kubernetes.io/bind-completed": "yes" });
    value
}

fn class(name: &str, zones: &[&str]) -> Value {
    let mut value = json!({ "metadata": { "name": name }, "provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer" });
    if !zones.is_empty() {
        value["allowedTopologies"] =
            json!([{ "matchLabelExpressions": [{ "key": ZONE, "values": zones }] }]);
    }
    value
}

pub fn volume(name: &str, terms: Value) -> Value {
    let csi = json!({ "driver": "ebs.csi.aws.com", "volumeHandle": name });
    json!({ "metadata": { "name": name }, "spec": { "csi": csi, "nodeAffinity": { "required": { "nodeSelectorTerms": terms } } } })
}

pub fn in_zone(zone: &str) -> Value {
    term(&[(ZONE, "In", &[zone])])
}

pub fn world(claims: &[Value], volumes: &[Value], classes: &[Value]) -> World {
    add(World::new(), claims, volumes, classes)
}

fn add(mut world: World, claims: &[Value], volumes: &[Value], classes: &[Value]) -> World {
    claims.iter().for_each(|claim| {
        assert!(
            world
                .cluster
                .apply_volume_claim(&read(claim.clone()))
                .is_change()
        )
    });
    volumes.iter().for_each(|volume| {
        assert!(
            world
                .cluster
                .apply_volume(&read(volume.clone()))
                .is_change()
        )
    });
    classes.iter().for_each(|class| {
        assert!(
            world
                .cluster
                .apply_storage_class(&read(class.clone()))
                .is_change()
        )
    });
    world
}

fn is_placed(world: World) -> bool {
    all_placed(&world.with([pod("p").volume("c")]).plan())
}

/// Conformance: SCH-091
#[test]
fn an_unbound_claim_needs_a_storage_class() {
    for class_name in [None, Some("")] {
        let mut spec = json!({});
        if let Some(name) = class_name {
            spec["storageClassName"] = json!(name);
        }
        assert!(!is_placed(world(&[claim("c", spec.clone())], &[], &[])));
        let mut known = bound("c", "v");
        known["spec"]["storageClassName"] = spec["storageClassName"].clone();
        assert!(is_placed(world(
            &[known],
            &[volume("v", json!([in_zone(Z1)]))],
            &[]
        )));
    }
    let ephemeral = pod("p").push(
        "/spec/volumes",
        json!({ "name": "e", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } }),
    );
    assert!(!all_placed(
        &world(&[claim("p-e", json!({}))], &[], &[])
            .with([ephemeral.clone()])
            .plan()
    ));
    assert!(all_placed(
        &world(
            &[bound("p-e", "v")],
            &[volume("v", json!([in_zone(Z1)]))],
            &[]
        )
        .with([ephemeral])
        .plan()
    ));
}

/// Conformance: SCH-092
#[test]
fn a_named_volume_counts_once_binding_is_complete() {
    let volumes = [volume("v", json!([in_zone(Z1)]))];
    let named = claim(
        "c",
        json!({ "volumeName": "v", "storageClassName": "class" }),
    );
    assert!(!is_placed(world(
        &[named],
        &volumes,
        &[class("class", &[])]
    )));
    assert!(is_placed(world(
        &[bound("c", "v")],
        &volumes,
        &[class("class", &[])]
    )));
}

/// Conformance: SCH-093
#[test]
fn a_claim_or_volume_that_cannot_be_used_makes_the_pod_invalid() {
    let unbound = claim("c", json!({ "storageClassName": "class" }));
    let zonal = || volume("v", json!([in_zone(Z1)]));
    let gone = json!("2026-01-01T00:00:00Z");
    let mut deleting = unbound.clone();
    deleting["metadata"]["deletionTimestamp"] = gone.clone();
    assert!(!is_placed(world(&[deleting], &[], &[class("class", &[])])));
    let mut lost = unbound.clone();
    lost["status"]["phase"] = json!("Lost");
    assert!(!is_placed(world(&[lost], &[], &[class("class", &[])])));
    let mut volume_deleting = zonal();
    volume_deleting["metadata"]["deletionTimestamp"] = gone;
    assert!(!is_placed(world(
        &[bound("c", "v")],
        &[volume_deleting],
        &[]
    )));
    let mut immediate = class("class", &[]);
    immediate["volumeBindingMode"] = json!("Immediate");
    assert!(!is_placed(world(
        std::slice::from_ref(&unbound),
        &[],
        &[immediate]
    )));
    assert!(!is_placed(world(&[], &[], &[])), "the claim does not exist");
    assert!(
        !is_placed(world(std::slice::from_ref(&unbound), &[], &[])),
        "the class does not exist"
    );
    let configured = |change: fn(&mut karpenter_core::cluster::ClusterConfig)| {
        World::configured(change).with_pool(node_pool("default"))
    };
    let provisioner = || {
        configured(|config| {
            config
                .unsupported_provisioners
                .push("ebs.csi.aws.com".into())
        })
    };
    assert!(!is_placed(add(
        provisioner(),
        std::slice::from_ref(&unbound),
        &[],
        &[class("class", &[])]
    )));
    assert!(!is_placed(add(
        provisioner(),
        &[bound("c", "v")],
        &[zonal()],
        &[]
    )));
    let key = configured(|config| config.unsupported_topology_keys.push(ZONE.into()));
    assert!(!is_placed(add(
        key,
        std::slice::from_ref(&unbound),
        &[],
        &[class("class", &[Z1])]
    )));
    assert!(is_placed(world(&[unbound], &[], &[class("class", &[])])));
}

fn zone_of(world: World, asked: Object<Pod>) -> Option<String> {
    let plan = world.with([asked]).plan();
    plan.new_claims
        .first()
        .map(|draft| values(draft, ZONE).join(","))
}

/// Conformance: SCH-094
#[test]
fn a_pod_is_placed_in_the_zone_of_its_volume() {
    let asked = |zones: &[&str]| pod("p").volume("c").require(ZONE, "In", zones);
    let unbound = || {
        world(
            &[claim("c", json!({ "storageClassName": "class" }))],
            &[],
            &[class("class", &[Z2, Z3])],
        )
    };
    assert_eq!(zone_of(unbound(), asked(&[Z1, Z3])).as_deref(), Some(Z3));
    assert_eq!(zone_of(unbound(), asked(&[Z1])), None);
    let known = || {
        world(
            &[bound("c", "v")],
            &[volume("v", json!([in_zone(Z3)]))],
            &[],
        )
    };
    assert_eq!(zone_of(known(), asked(&[Z1, Z3])).as_deref(), Some(Z3));
    assert_eq!(zone_of(known(), asked(&[Z1])), None);
    let ephemeral = pod("p").push("/spec/volumes", json!({ "name": "e", "ephemeral": { "volumeClaimTemplate": { "spec": { "storageClassName": "class" } } } }));
    assert_eq!(
        zone_of(unbound(), ephemeral.require(ZONE, "In", &[Z1, Z3])).as_deref(),
        Some(Z3)
    );
}

/// Conformance: SCH-033
#[test]
fn a_volume_s_zone_survives_relaxation() {
    let asked = pod("p")
        .volume("c")
        .require_term(&[("unknown", "In", &["x"])])
        .require_term(&[(CAPACITY_TYPE, "In", &["on-demand"])]);
    assert_eq!(
        zone_of(
            world(
                &[bound("c", "v")],
                &[volume("v", json!([in_zone(Z3)]))],
                &[]
            ),
            asked
        )
        .as_deref(),
        Some(Z3)
    );
}

fn on_host(kind: &str, terms: Value) -> Value {
    let mut value = volume("v", terms);
    value["spec"].as_object_mut().unwrap().remove("csi");
    value["spec"][kind] = json!({ "path": "/data" });
    value
}

/// Conformance: SCH-095
#[test]
fn a_local_volume_s_host_does_not_matter() {
    let host = json!([term(&[(HOSTNAME, "In", &["gone"])])]);
    for kind in ["local", "hostPath"] {
        assert!(
            is_placed(world(
                &[bound("c", "v")],
                &[on_host(kind, host.clone())],
                &[]
            )),
            "{kind}"
        );
    }
    assert!(!is_placed(world(
        &[bound("c", "v")],
        &[volume("v", host)],
        &[]
    )));
}

/// Conformance: SCH-096
#[test]
fn a_local_volume_s_host_is_an_alternative_without_constraint() {
    let terms = json!([term(&[(HOSTNAME, "In", &["gone"])]), in_zone("nowhere")]);
    assert!(is_placed(world(
        &[bound("c", "v")],
        &[on_host("local", terms)],
        &[]
    )));
}

/// Conformance: SCH-097
#[test]
fn alternatives_of_a_volume_or_class_are_all_used() {
    let apart = |name: &str, claim: &str| {
        pod(name)
            .label("app", "x")
            .anti_affinity(ZONE, ("app", "x"))
            .volume(claim)
    };
    let zones = |mut world: World| {
        world.add(apart("p", "a"));
        world.add(apart("q", "b"));
        let plan = world.launch_and_bind();
        assert!(all_placed(&plan));
        let mut zones: Vec<String> = plan
            .new_claims
            .iter()
            .flat_map(|draft| values(draft, ZONE))
            .collect();
        zones.sort_unstable();
        zones
    };
    let either = json!([in_zone(Z1), in_zone(Z2)]);
    let of_volumes = world(
        &[bound("a", "va"), bound("b", "vb")],
        &[volume("va", either.clone()), volume("vb", either)],
        &[],
    );
    assert_eq!(zones(of_volumes), [Z1, Z2], "PersistentVolumes");
    let alternative =
        |zone: &str| json!({ "matchLabelExpressions": [{ "key": ZONE, "values": [zone] }] });
    let mut either = class("either", &[]);
    either["allowedTopologies"] = json!([alternative(Z1), alternative(Z2)]);
    let unbound = |name: &str| claim(name, json!({ "storageClassName": "either" }));
    let of_class = world(&[unbound("a"), unbound("b")], &[], &[either]);
    assert_eq!(zones(of_class), [Z1, Z2], "StorageClass");
}

/// Conformance: SCH-098
#[test]
fn a_pod_is_placed_in_a_zone_that_all_its_volumes_admit() {
    let class_with = |name: &str, alternatives: &[&[&str]]| {
        let mut value = class(name, &[]);
        let terms: Vec<Value> = alternatives
            .iter()
            .map(|zones| json!({ "matchLabelExpressions": [{ "key": ZONE, "values": zones }] }))
            .collect();
        value["allowedTopologies"] = json!(terms);
        value
    };
    let classes = [
        class_with("one", &[&[Z1], &[Z2]]),
        class_with("two", &[&[Z2], &[Z3]]),
    ];
    let claims = [
        claim("a", json!({ "storageClassName": "one" })),
        claim("b", json!({ "storageClassName": "two" })),
    ];
    assert_eq!(
        zone_of(
            world(&claims, &[], &classes),
            pod("p").volume("a").volume("b")
        )
        .as_deref(),
        Some(Z2)
    );
}

fn limited(world: World, count: u32) -> World {
    let mut world = world.with([node("n").set(
        "/status/allocatable",
        json!({ "cpu": "64", "memory": "64Gi", "pods": "200" }),
    )]);
    world.cluster.apply_csi_node(&read(json!({
        "metadata": { "name": "n" }, "spec": { "drivers": [{ "name": "ebs.csi.aws.com", "nodeID": "n", "allocatable": { "count": count } }] },
    })));
    world
}

/// Conformance: SCH-099
#[test]
fn a_node_attaches_as_many_volumes_as_its_csi_driver_allows() {
    let claims: Vec<Value> = (0..12)
        .map(|index| claim(&format!("c{index}"), json!({ "storageClassName": "class" })))
        .collect();
    let pods = (0..6).map(|index| {
        pod(&format!("p{index}"))
            .volume(&format!("c{}", 2 * index))
            .volume(&format!("c{}", 2 * index + 1))
    });
    let plan = limited(world(&claims, &[], &[class("class", &[])]), 10)
        .with(pods)
        .plan();
    assert_eq!((plan.existing.len(), plan.new_claims.len()), (5, 1));
    let shared = copies(&pod("p").volume("c").memory("10Mi"), 100);
    let plan = limited(
        world(
            &[claim("c", json!({ "storageClassName": "class" }))],
            &[],
            &[class("class", &[])],
        ),
        10,
    )
    .with(shared)
    .plan();
    assert_eq!((plan.existing.len(), plan.new_claims.len()), (100, 0));
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
        let mut newest = class("class", &[]);
        let mut old = class("old", &[]);
        old["provisioner"] = json!("other");
        if default {
            for (class, created) in [
                (&mut newest, "2026-01-02T00:00:00Z"),
                (&mut old, "2026-01-01T00:00:00Z"),
            ] {
                class["metadata"]["annotations"] =
                    json!({ "storageclass.kubernetes.io/is-default-class": "true" });
                class["metadata"]["creationTimestamp"] = json!(created);
            }
        }
        let plan = limited(world(&[], &[], &[newest, old]), 1)
            .with(copies(&asked, 2))
            .plan();
        assert_eq!((plan.existing.len(), plan.new_claims.len()), (1, 1));
    }
}

/// Conformance: SCH-101
#[test]
fn in_tree_volumes_count_as_their_csi_driver_s() {
    let mut in_tree = class("class", &[]);
    in_tree["provisioner"] = json!("kubernetes.io/aws-ebs");
    let mut old = volume("v", json!([in_zone(Z1)]));
    old["spec"].as_object_mut().unwrap().remove("csi");
    old["spec"]["awsElasticBlockStore"] = json!({ "volumeID": "v" });
    let claims = [
        claim("a", json!({ "storageClassName": "class" })),
        bound("b", "v"),
    ];
    let plan = limited(world(&claims, &[old], &[in_tree]), 1)
        .with([pod("p").volume("a"), pod("q").volume("b")])
        .plan();
    assert_eq!((plan.existing.len(), plan.new_claims.len()), (1, 1));
}

/// Conformance: SCH-102
#[test]
fn a_volume_does_not_shrink_the_domains_of_a_spread() {
    let app = ("app", "x");
    let mut all = world(
        &[bound("c", "v")],
        &[volume("v", json!([in_zone(Z1)]))],
        &[],
    );
    let asked = pod("p")
        .label("app", "x")
        .spread_with(ZONE, 1, app, json!({ "minDomains": 3 }));
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
