//! Projection of Provisioners and AWSNodeTemplates into NodePools and EC2NodeClasses in a cluster.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_aws::api::EC2NodeClass;
use karpenter_legacy::v1alpha1::AWSNodeTemplate;
use karpenter_legacy::v1alpha5::Provisioner;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::world::World;

async fn deploy(world: &World, selector: Value, replicas: i32) {
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": { "name": "inflate", "namespace": "default" },
        "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": "inflate" } }, "template": {
            "metadata": { "labels": { "app": "inflate" } },
            "spec": { "nodeSelector": selector, "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": "1" } } }] },
        } },
    }))
    .unwrap();
    let api: Api<Deployment> = Api::namespaced(world.client.clone(), "default");
    api.create(&PostParams::default(), &deployment)
        .await
        .unwrap();
}

async fn running(world: &World) -> usize {
    let pods: Api<Pod> = Api::all(world.client.clone());
    let pods = pods.list(&ListParams::default()).await.unwrap();
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|s| s.phase.clone());
    pods.items
        .iter()
        .filter(|p| phase(p).as_deref() == Some("Running"))
        .count()
}

/// The steps of the first walkthrough: applied, used by pods that select by old labels, edited, deleted.
#[tokio::test(start_paused = true)]
async fn a_provisioner_launches_nodes_is_edited_and_deleted_with_its_projection() {
    let world = World::new().await;
    world
        .provisioner(
            "default",
            json!({ "labels": { "intent": "apps" }, "ttlSecondsAfterEmpty": 30, "weight": 3 }),
        )
        .await;
    let waiting = world
        .condition::<Provisioner>("default", "Converted", "False")
        .await;
    assert_eq!(
        (waiting.reason.as_str(), waiting.message.as_str()),
        (
            "CannotBeConverted",
            "spec.providerRef: there is no AWSNodeTemplate `default`; create it, or refer to another"
        )
    );
    assert_eq!(world.names::<NodePool>().await, Vec::<String>::new());

    world.template("default", json!({})).await;
    world.make_ready("default").await;
    let ready = world
        .condition::<Provisioner>("default", "Ready", "True")
        .await;
    assert_eq!(ready.status, "True");
    world.is_true::<AWSNodeTemplate>("default", "Ready").await;
    let converted = world
        .condition::<Provisioner>("default", "Converted", "True")
        .await;
    assert_eq!(converted.message, "is NodePool default");
    let old: Provisioner = world.get("default").await.unwrap();
    assert_eq!(
        (
            old.status.node_pool.as_deref(),
            old.status.node_class.as_deref()
        ),
        (Some("default"), Some("default"))
    );
    let old: AWSNodeTemplate = world.get("default").await.unwrap();
    assert_eq!(old.status.subnets[0].id, "subnet-1");
    let pool: NodePool = world.get("default").await.unwrap();
    let owner = &pool.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.controller),
        ("Provisioner", Some(true))
    );
    let class: EC2NodeClass = world.get("default").await.unwrap();
    assert_eq!(
        class.spec.instance_profile.as_deref(),
        Some("default-profile")
    );
    assert_eq!(class.spec.subnet_selector_terms.len(), 2);

    let selector = json!({ "intent": "apps", "karpenter.sh/provisioner-name": "default" });
    deploy(&world, selector, 2).await;
    world
        .until("pods run", async |world| running(world).await == 2)
        .await;
    let nodes: Vec<String> = world.names::<Node>().await;
    assert_eq!(nodes.len(), 1);
    let node: Node = world.get(&nodes[0]).await.unwrap();
    let labels = node.metadata.labels.unwrap();
    assert_eq!(labels["karpenter.sh/provisioner-name"], "default");
    assert_eq!(labels["karpenter.sh/nodepool"], "default");
    world
        .until("resources are counted", async |world| {
            let old: Provisioner = world.get("default").await.unwrap();
            old.status
                .resources
                .get("cpu")
                .is_some_and(|cpu| cpu.0 == "4")
        })
        .await;

    world
        .edit::<Provisioner>(
            "default",
            json!({ "weight": 9, "labels": { "intent": null } }),
        )
        .await;
    world
        .edit::<AWSNodeTemplate>("default", json!({ "tags": { "cost": "x" } }))
        .await;
    world
        .until("edits are projected", async |world| {
            let pool: NodePool = world.get("default").await.unwrap();
            let class: EC2NodeClass = world.get("default").await.unwrap();
            let labels = pool.spec.template.metadata.labels.unwrap_or_default();
            pool.spec.weight == Some(9)
                && !labels.contains_key("intent")
                && class.spec.tags.is_some()
        })
        .await;

    world.delete::<Provisioner>("default").await;
    world
        .until("nodes and projected objects are deleted", async |world| {
            world.names::<NodePool>().await.is_empty()
                && world.names::<NodeClaim>().await.is_empty()
        })
        .await;
    assert_eq!(
        world.names::<EC2NodeClass>().await,
        ["default"],
        "the template still exists"
    );
    world.delete::<AWSNodeTemplate>("default").await;
    world
        .until("the class is deleted", async |world| {
            world.names::<EC2NodeClass>().await.is_empty()
        })
        .await;
}

/// The controller reverts changes of other clients to a projected object: the Provisioner determines its fields.
#[tokio::test(start_paused = true)]
async fn an_edited_projected_object_is_restored() {
    let world = World::new().await;
    world.template("default", json!({})).await;
    world.provisioner("default", json!({})).await;
    world.make_ready("default").await;
    world.is_true::<Provisioner>("default", "Ready").await;
    world
        .edit::<NodePool>("default", json!({ "limits": { "cpu": "1" } }))
        .await;
    world
        .until("the limit is removed", async |world| {
            let pool: NodePool = world.get("default").await.unwrap();
            pool.spec.limits.is_empty()
        })
        .await;
    // No writes once the projected objects match.
    world.advance().await;
    let before: NodePool = world.get("default").await.unwrap();
    world.advance().await;
    let after: NodePool = world.get("default").await.unwrap();
    assert_eq!(after.metadata.generation, before.metadata.generation);
    assert_eq!(
        after.metadata.resource_version,
        before.metadata.resource_version
    );
}

/// Invalid input is reported with its fix in a condition of its object; it launches no nodes, and other objects are projected.
#[tokio::test(start_paused = true)]
async fn invalid_input_is_reported_in_a_condition_and_does_not_affect_others() {
    let world = World::new().await;
    world.template("default", json!({})).await;
    let launch = json!({ "launchTemplate": "mine" });
    world.template("launch", launch).await;
    world.provisioner("fine", json!({})).await;
    let both = json!({ "ttlSecondsAfterEmpty": 30, "consolidation": { "enabled": true } });
    world.provisioner("two-policies", both).await;
    world.make_ready("default").await;
    world.is_true::<Provisioner>("fine", "Ready").await;

    let condition = world
        .condition::<Provisioner>("two-policies", "Converted", "False")
        .await;
    assert_eq!(
        (condition.reason.as_str(), condition.message.as_str()),
        (
            "CannotBeConverted",
            "spec.ttlSecondsAfterEmpty: excludes consolidation.enabled; remove one of them"
        )
    );
    world
        .condition::<Provisioner>("two-policies", "Ready", "False")
        .await;
    let condition = world
        .condition::<AWSNodeTemplate>("launch", "Converted", "False")
        .await;
    let message = "spec.launchTemplate: custom launch templates have no equivalent; move its user data, image";
    assert!(condition.message.starts_with(message), "{condition:?}");
    assert_eq!(world.names::<NodePool>().await, ["fine"]);
    assert_eq!(world.names::<EC2NodeClass>().await, ["default"]);
}

#[tokio::test(start_paused = true)]
async fn fields_without_an_equivalent_are_reported_and_the_others_converted() {
    let world = World::new().await;
    let selector = json!({ "securityGroupSelector": { "aws-ids": "sg-1", "env": "x" } });
    world.template("default", selector).await;
    let lossy = world
        .condition::<AWSNodeTemplate>("default", "Lossless", "False")
        .await;
    assert_eq!(
        (lossy.reason.as_str(), lossy.message.as_str()),
        (
            "NoEquivalent",
            "spec.securityGroupSelector: `env` is ignored next to ids; select either by ids or by the others"
        )
    );
    world
        .edit::<AWSNodeTemplate>(
            "default",
            json!({ "securityGroupSelector": { "env": null } }),
        )
        .await;
    world
        .is_true::<AWSNodeTemplate>("default", "Lossless")
        .await;
}

/// A mistake deletes no nodes: the earlier projection of the object stays.
#[tokio::test(start_paused = true)]
async fn an_object_that_becomes_invalid_keeps_its_projection() {
    let world = World::new().await;
    world.template("default", json!({})).await;
    world.provisioner("default", json!({ "weight": 5 })).await;
    world.make_ready("default").await;
    world.is_true::<Provisioner>("default", "Ready").await;
    world
        .edit::<Provisioner>("default", json!({ "weight": 6, "ttlSecondsAfterEmpty": 30, "consolidation": { "enabled": true } }))
        .await;
    world
        .edit::<AWSNodeTemplate>("default", json!({ "launchTemplate": "mine" }))
        .await;
    world
        .condition::<Provisioner>("default", "Converted", "False")
        .await;
    world
        .condition::<AWSNodeTemplate>("default", "Converted", "False")
        .await;
    world.advance().await;
    let pool: NodePool = world.get("default").await.unwrap();
    assert_eq!(pool.spec.weight, Some(5));
    assert!(world.get::<EC2NodeClass>("default").await.is_some());
    world
        .edit::<Provisioner>("default", json!({ "consolidation": null }))
        .await;
    world
        .edit::<AWSNodeTemplate>("default", json!({ "launchTemplate": null }))
        .await;
    world.is_true::<Provisioner>("default", "Converted").await;
    world
        .until("the edit is projected", async |world| {
            let pool: NodePool = world.get("default").await.unwrap();
            pool.spec.weight == Some(6)
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn objects_of_other_owners_are_not_changed() {
    let world = World::new().await;
    let own = json!({
        "template": { "spec": { "requirements": [], "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" } } },
        "weight": 50,
    });
    world.create::<NodePool>("default", own).await;
    world.template("default", json!({})).await;
    world.provisioner("default", json!({ "weight": 5 })).await;
    let taken = world
        .condition::<Provisioner>("default", "Converted", "False")
        .await;
    assert_eq!(
        (taken.reason.as_str(), taken.message.as_str()),
        (
            "NameTaken",
            "the NodePool `default` exists and was not created for this object; rename or delete one of them"
        )
    );
    let pool: NodePool = world.get("default").await.unwrap();
    assert_eq!(
        (pool.spec.weight, pool.metadata.owner_references),
        (Some(50), None)
    );
    world.delete::<NodePool>("default").await;
    world.is_true::<Provisioner>("default", "Converted").await;
}

#[tokio::test(start_paused = true)]
async fn kubelet_settings_get_their_own_class_which_is_deleted_when_unused() {
    let world = World::new().await;
    world.template("default", json!({})).await;
    let kubelet = |pods: i32| json!({ "kubeletConfiguration": { "maxPods": pods } });
    world.provisioner("a", kubelet(20)).await;
    world.provisioner("b", json!({})).await;
    world.is_true::<Provisioner>("a", "Converted").await;
    world.is_true::<Provisioner>("b", "Converted").await;
    let class_of = async |world: &World, name: &str| {
        let pool: NodePool = world.get(name).await.unwrap();
        pool.spec.template.spec.node_class_ref.name
    };
    world
        .until("both classes exist", async |world| {
            world.names::<NodePool>().await.len() == 2
        })
        .await;
    let first = class_of(&world, "a").await;
    assert_eq!(class_of(&world, "b").await, "default");
    let class: EC2NodeClass = world.get(&first).await.unwrap();
    assert_eq!(class.spec.kubelet.unwrap()["maxPods"], 20);
    world.edit::<Provisioner>("a", kubelet(30)).await;
    world
        .until("the pool refers to another class", async |world| {
            class_of(world, "a").await != first
        })
        .await;
    let second = class_of(&world, "a").await;
    world
        .until("the old class is deleted", async |world| {
            let mut names = world.names::<EC2NodeClass>().await;
            names.sort();
            names == ["default".to_owned(), second.clone()]
        })
        .await;
}

/// The definitions may be installed after Karpenter, without a setting.
#[tokio::test(start_paused = true)]
async fn kinds_are_detected_when_they_are_installed() {
    let world = World::with(Vec::new()).await;
    world.advance().await;
    let definitions: Api<kube::api::DynamicObject> = Api::all_with(
        world.client.clone(),
        &kube::api::ApiResource::from_gvk(&kube::api::GroupVersionKind::gvk(
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
        )),
    );
    for definition in [
        karpenter_legacy::crd::provisioner(),
        karpenter_legacy::crd::aws_node_template(),
    ] {
        let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
        let apply = PatchParams::apply("test").force();
        definitions
            .patch(&name, &apply, &Patch::Apply(definition))
            .await
            .unwrap();
    }
    world.template("default", json!({})).await;
    world.provisioner("default", json!({})).await;
    world.is_true::<Provisioner>("default", "Converted").await;
}
