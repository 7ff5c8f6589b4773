//! Changes: what can be made, what makes no difference, and what is refused.

use karpenter_decisions::bundle::{self, Bundle};
use karpenter_decisions::rehearse::{Settings, rehearse};
use serde_json::{Value, json};

use crate::rehearse::world::{World, deployment, pool};

fn world() -> World {
    World::new(json!({})).node("a", 4).pods("web", "a", 4)
}

fn apply(object: Value) -> Value {
    json!({ "for": "2m", "changes": [{ "apply": object }] })
}

/// Conformance: PLAN-02
#[test]
fn unchanged_manifests_make_no_difference() {
    let objects = [
        pool(json!({})),
        deployment("web", 4, "1"),
        json!({ "apiVersion": "v1", "kind": "List", "items": [pool(json!({})), deployment("web", 4, "1")] }),
        json!({ "apiVersion": "karpenter.test.sh/v1alpha1", "kind": "TestNodeClass", "metadata": { "name": "default" } }),
    ];
    for object in objects {
        let plan = world().plan(apply(object));
        assert!(!plan.differs(), "{:?}", plan.changes);
        let mut changes = plan.changes.iter();
        assert!(changes.all(|change| change.ends_with(": unchanged")));
    }
}

/// Conformance: PLAN-10
#[test]
fn an_invalid_manifest_is_refused_with_its_field_or_its_kind() {
    let restricted = json!({ "template": { "metadata": { "labels": { "karpenter.sh/x": "y" } } } });
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s" } });
    let mut deployment = deployment("s", 2, "1");
    deployment["spec"]["replicas"] = json!("two");
    let nameless = json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {} });
    // An unknown NodeClass has no known instance types.
    let class = json!({ "template": { "spec": { "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "other" } } } });
    let mut other = pool(class);
    other["metadata"]["name"] = json!("other");
    for (object, field, words) in [
        (pool(json!({ "weight": 0 })), "spec.weight", ""),
        (
            pool(restricted),
            "spec.template.metadata.labels",
            "restricted",
        ),
        (secret, "", "unknown kind `v1, Secret`"),
        (deployment, "spec.replicas", ""),
        (nameless, "metadata.name", ""),
        (
            other,
            "spec.template.spec.nodeClassRef",
            "TestNodeClass other",
        ),
    ] {
        let error = world().ask(apply(object)).unwrap_err();
        assert_eq!(error.field_path().unwrap_or_default(), field, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn changes_of_objects_that_do_not_exist_are_refused() {
    for change in [
        json!({ "delete": { "kind": "NodePool", "name": "gone" } }),
        json!({ "delete": { "kind": "PodDisruptionBudget", "namespace": "shop", "name": "gone" } }),
        json!({ "scale": { "kind": "Deployment", "namespace": "shop", "name": "gone", "replicas": 1 } }),
        json!({ "scale": { "kind": "Job", "namespace": "shop", "name": "web", "replicas": 1 } }),
        json!({ "scale": { "kind": "Deployment", "namespace": "shop", "name": "web", "replicas": 100_001 } }),
        json!({ "removeNode": "gone" }),
        json!({ "if": "budget.gone=1" }),
        json!({ "if": "nonsense" }),
        json!({ "if": "tolerate=a:NoSchedule" }),
        json!({ "if": "now=2026-01-01T00:00:00Z" }),
    ] {
        let asked = world().ask(json!({ "changes": [change] }));
        assert!(asked.is_err(), "{change}");
    }
}

#[test]
fn a_second_node_pool_of_the_same_class_has_its_instance_types() {
    let mut cheap = pool(json!({ "weight": 10, "limits": { "cpu": "2" } }));
    cheap["metadata"]["name"] = json!("cheap");
    let plan = world().plan(json!({
        "for": "5m",
        "changes": [{ "apply": cheap }, { "scale": { "kind": "Deployment", "namespace": "shop", "name": "web", "replicas": 6 } }],
    }));
    let launch = &plan.steps[0].launches[0];
    assert_eq!(
        (launch.node_pool.as_str(), launch.instance_type.as_str()),
        ("cheap", "m-2")
    );
    assert_eq!(plan.changes[0], "NodePool cheap: created");
}

#[test]
fn a_new_template_replaces_the_pods_by_an_approximate_rollout() {
    let plan =
        world().plan(json!({ "for": "10m", "changes": [{ "apply": deployment("web", 4, "3") }] }));
    assert_eq!(plan.changes, ["Deployment shop/web: template changed"]);
    assert!(
        plan.approximate
            .iter()
            .any(|note| note.contains("rollout of Deployment shop/web"))
    );
    assert_eq!((plan.after.pods, plan.after.pending), (4, 0));
    assert_eq!(plan.evictions.total, 0, "a rollout is no eviction");
    assert!(plan.after.price_per_hour > plan.before.price_per_hour);
}

#[test]
fn removed_replicas_leave_the_fullest_node_and_count_as_pod_events() {
    let world = World::new(
        json!({ "disruption": { "consolidationPolicy": "WhenEmpty", "consolidateAfter": "1m" } }),
    )
    .node("a", 4)
    .pods("web", "a", 3)
    .node("b", 4)
    .pods("web", "b", 1);
    let scale = json!({ "scale": { "kind": "Deployment", "namespace": "shop", "name": "web", "replicas": 0 } });
    let plan = world.plan(json!({ "for": "10m", "changes": [scale] }));
    assert_eq!(plan.after.nodes, 0);
    assert_eq!(plan.evictions.total, 0);
    // A minute after their pods began to end, and the validation.
    assert!(
        plan.steps
            .iter()
            .all(|step| step.after >= 75 && step.reason == "Empty"),
        "{:?}",
        plan.steps
    );
}

/// Conformance: PLAN-03
#[test]
fn a_bundle_of_the_cluster_has_the_plan_of_the_cluster() {
    let change =
        pool(json!({ "disruption": { "consolidationPolicy": "WhenEmptyOrUnderutilized" } }));
    let quiet = json!({ "disruption": { "consolidationPolicy": "WhenEmpty" } });
    let world = World::new(quiet)
        .node("a", 4)
        .pods("web", "a", 1)
        .node("b", 4)
        .pods("web", "b", 1)
        .pdb("web", json!({ "minAvailable": 1 }));
    let asked = json!({ "at": "2026-01-01T13:00:00Z", "changes": [{ "apply": change }] });
    let live = world.plan(asked.clone());
    assert!(live.differs());

    let settings = karpenter_decisions::bundle::Settings::at(crate::rehearse::world::now());
    let bundle = Bundle::new("fake", "0.1.0", world.snapshot(), settings);
    let mut file = Vec::new();
    bundle::write(&bundle, &mut file).unwrap();
    let read = bundle::read(file.as_slice()).unwrap();
    let request = serde_json::from_value(asked).unwrap();
    let offline = rehearse(&read.snapshot, &Settings::of_bundle(&read), &request).unwrap();
    assert_eq!((offline.steps, offline.digest), (live.steps, live.digest));
}
