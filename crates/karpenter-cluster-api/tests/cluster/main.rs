//! Karpenter on Cluster API: a workload cluster, a management cluster, and a stand-in for Cluster API's controllers.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod capi;
mod ending;
mod management;
mod offerings;
mod world;

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_cluster_api::node_class::{ClusterAPINodeClass, PRICES_KNOWN};
use karpenter_core::provider::CloudProvider;
use karpenter_testbed::faults::{Fault, Rule};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use capi::INFRASTRUCTURE;
use world::{World, deployment};

const UID: &str = "karpenter.cluster.x-k8s.io/nodeclaim-uid";

fn annotated(mut deployment: Value, key: &str, value: &str) -> Value {
    deployment["metadata"]["annotations"][key] = json!(value);
    deployment
}

fn from(machine: &kube::core::DynamicObject) -> String {
    let launched = &machine.annotations()["karpenter.cluster.x-k8s.io/launched"];
    let launched: Value = serde_json::from_str(launched).unwrap();
    launched["deployment"].as_str().unwrap().to_owned()
}

/// Conformance: CAPI-14, CAPI-31, CAPI-44
#[tokio::test(start_paused = true)]
async fn machines_are_launched_and_deleted_with_the_pods() {
    let world = World::start([deployment("small", 2, "a"), deployment("large", 8, "b")]).await;
    world.run_pods(8).await;
    for node in world.list::<Node>().await {
        let claim = node.annotations()["cluster.x-k8s.io/machine"].clone();
        assert_eq!(
            claim,
            node.name_any(),
            "Cluster API's annotation keeps its value"
        );
        let zone = if node.labels()["node.kubernetes.io/instance-type"] == "t2" {
            "a"
        } else {
            "b"
        };
        assert_eq!(node.labels()["topology.kubernetes.io/zone"], zone);
        assert!(!node.labels().contains_key("example.com/a"));
    }
    for machine in world.machines().await {
        assert!(
            !machine
                .labels()
                .contains_key("cluster.x-k8s.io/deployment-name"),
            "no MachineSet adopts it"
        );
        assert_eq!(
            machine.labels()["example.com/a"],
            "1",
            "labels of the template are copied"
        );
    }
    world.deploy(0).await;
    world.nothing_lost_or_doubled().await;
    let deployments = world
        .capi
        .all("cluster.x-k8s.io", "MachineDeployment")
        .await;
    assert!(
        deployments.iter().all(|d| d.data["spec"]["replicas"] == 0),
        "replicas are never written"
    );
}

/// Conformance: CAPI-01, CAPI-02, CAPI-04
#[tokio::test(start_paused = true)]
async fn lost_answers_and_kills_neither_lose_nor_double_a_machine() {
    let mut world = World::start([deployment("small", 2, "a")]).await;
    for resource in ["machines", "testmachines"] {
        world.hub.faults().add(
            Rule::new(Fault::LostAnswer)
                .verb("create")
                .resource(resource)
                .rate(0.5),
        );
        world.hub.faults().add(
            Rule::new(Fault::Error(500))
                .verb("create")
                .resource(resource)
                .rate(0.3),
        );
    }
    world.boots_in(60);
    world.deploy(20).await;
    for kill_after in [5, 30, 20] {
        world.until_machine().await;
        world.clock.sleep(Duration::from_secs(kill_after)).await;
        world.kill();
        world.run().await;
    }
    world.until_running(20).await;
    assert_eq!(world.machines().await.len(), 20, "a pod fits on each");
    world.deploy(0).await;
    world.nothing_lost_or_doubled().await;
}

/// Conformance: CAPI-05
#[tokio::test(start_paused = true)]
async fn a_node_claim_deleted_before_its_provider_id_deletes_its_machine() {
    let world = World::start([deployment("small", 2, "a")]).await;
    world.boots_in(1_000_000);
    world.deploy(1).await;
    world.until_machine().await;
    world.deploy(0).await;
    let claim = world.list::<NodeClaim>().await.remove(0);
    world.delete_claim(&claim).await;
    world.clock.sleep(Duration::from_secs(60)).await;
    assert!(world.machines().await.is_empty());
    world.nothing_lost_or_doubled().await;
}

/// Conformance: CAPI-06
#[tokio::test(start_paused = true)]
async fn a_machine_may_take_twenty_minutes_for_its_provider_id() {
    let world = World::start([deployment("small", 2, "a")]).await;
    world.boots_in(20 * 60);
    world.deploy(1).await;
    world
        .until("the claim says what it waits for", async |w| {
            let claims = w.list::<NodeClaim>().await;
            let launched = claims
                .first()
                .and_then(|claim| claim.condition(types::LAUNCHED).cloned());
            launched.is_some_and(|launched| launched.reason == "WaitingForProviderID")
        })
        .await;
    world.until_running(1).await;
    assert_eq!(
        world.capi.state.lock().machines.len(),
        1,
        "by the first NodeClaim"
    );
}

/// Conformance: CAPI-46
#[tokio::test(start_paused = true)]
async fn the_pods_of_a_failed_machine_get_another_machine_deployment() {
    let world = World::start([deployment("small", 2, "a"), deployment("large", 8, "a")]).await;
    world
        .capi
        .state
        .lock()
        .failing
        .insert("2-cores".to_owned(), "no hosts left".to_owned());
    world.run_pods(1).await;
    let machines = world.machines().await;
    assert_eq!(machines.iter().map(from).collect::<Vec<_>>(), ["large"]);
}

/// Conformance: CAPI-12
#[tokio::test(start_paused = true)]
async fn a_machine_deployment_gets_no_more_machines_than_its_max_size() {
    let limited = annotated(
        deployment("small", 2, "a"),
        "karpenter.cluster.x-k8s.io/max-size",
        "3",
    );
    let world = World::start([limited]).await;
    world.deploy(10).await;
    world.until_running(3).await;
    world.clock.sleep(Duration::from_secs(600)).await;
    assert_eq!(world.machines().await.len(), 3);
}

/// Conformance: CAPI-27, CAPI-28, CAPI-33, CAPI-36
#[tokio::test(start_paused = true)]
async fn unusable_machine_deployments_are_reported_and_others_offered() {
    let capacity = "capacity.cluster-autoscaler.kubernetes.io/cpu";
    let mut without_zone = deployment("zoneless", 4, "a");
    without_zone["spec"]["template"]["spec"]
        .as_object_mut()
        .unwrap()
        .remove("failureDomain");
    let mut without_cpu = deployment("unknown", 4, "a");
    without_cpu["metadata"]["annotations"]
        .as_object_mut()
        .unwrap()
        .remove(capacity);
    let mut stranger = deployment("stranger", 4, "a");
    stranger["metadata"]["labels"]["node.cluster.x-k8s.io/karpenter-member"] = json!("true");
    let world = World::start([
        deployment("good", 2, "a"),
        annotated(deployment("fruit", 4, "a"), capacity, "banana"),
        annotated(
            deployment("scaled", 4, "a"),
            "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size",
            "5",
        ),
        annotated(
            deployment("twin", 2, "a"),
            "karpenter.cluster.x-k8s.io/price",
            "1",
        ),
        annotated(
            deployment("priced", 4, "a"),
            "karpenter.cluster.x-k8s.io/price",
            "cheap",
        ),
        annotated(
            deployment("memory", 2, "b"),
            "capacity.cluster-autoscaler.kubernetes.io/memory",
            "9Gi",
        ),
        without_zone,
        without_cpu,
        stranger,
    ])
    .await;
    world
        .until("the class is ready", async |w| {
            w.class().await.is_true(types::READY)
        })
        .await;
    let class = world.class().await;
    let rows = class.status.clone().unwrap().machine_deployments;
    let reason = |name: &str| {
        rows.iter()
            .find(|row| row.name == name)
            .unwrap()
            .rejected
            .clone()
            .unwrap_or_default()
    };
    for (name, text) in [
        ("good", ""),
        ("fruit", "banana"),
        ("scaled", "Cluster Autoscaler"),
        ("twin", "already offers instance type `t2`"),
        ("priced", "invalid price `cheap`"),
        ("memory", "has another capacity or other labels"),
        ("zoneless", "failureDomain"),
        ("unknown", "its cpu is not known"),
    ] {
        assert!(reason(name).contains(text), "{name}: {}", reason(name));
        assert_eq!(reason(name).is_empty(), text.is_empty(), "{name}");
    }
    assert!(!rows.iter().any(|row| row.name == "stranger"));
    assert!(
        class
            .condition(PRICES_KNOWN)
            .unwrap()
            .message
            .contains("good")
    );
}

/// Conformance: CAPI-29, CAPI-30
#[tokio::test(start_paused = true)]
async fn the_capacity_of_the_template_is_used_where_there_is_no_annotation() {
    let mut bare = deployment("bare", 4, "a");
    bare["metadata"]["annotations"] =
        json!({ "capacity.cluster-autoscaler.kubernetes.io/maxPods": "17" });
    let world = World::start([bare]).await;
    let patch = json!({ "status": { "capacity": { "cpu": "4", "memory": "16Gi", "pods": "50" },
        "nodeInfo": { "architecture": "arm64" } } });
    let templates = world.capi.api(INFRASTRUCTURE, "TestMachineTemplate");
    templates
        .patch_status("4-cores", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    world.deploy(1).await;
    world
        .until("a claim is launched", async |w| {
            w.list::<NodeClaim>()
                .await
                .first()
                .is_some_and(|claim| claim.is_true(types::LAUNCHED))
        })
        .await;
    let claim = world.list::<NodeClaim>().await.remove(0);
    assert_eq!(claim.labels()["kubernetes.io/arch"], "arm64");
    assert_eq!(
        (
            &*claim.status.capacity["cpu"].0,
            &*claim.status.capacity["pods"].0
        ),
        ("4", "17")
    );
}

/// Conformance: CAPI-39, CAPI-41
#[tokio::test(start_paused = true)]
async fn another_template_drifts_the_nodes_and_another_label_does_not() {
    let world = World::start([deployment("small", 2, "a")]).await;
    world.run_pods(3).await;
    let names = async |w: &World| {
        w.machines()
            .await
            .iter()
            .map(ResourceExt::name_any)
            .collect::<Vec<_>>()
    };
    let before = names(&world).await;
    let label =
        json!({ "spec": { "template": { "metadata": { "labels": { "example.com/a": "2" } } } } });
    world.change_deployment("small", label).await;
    world.clock.sleep(Duration::from_secs(1200)).await;
    assert_eq!(names(&world).await, before);
    let version = json!({ "spec": { "template": { "spec": { "version": "v1.37.0" } } } });
    world.change_deployment("small", version).await;
    world
        .until("every Machine has the new version", async |w| {
            let machines = w.machines().await;
            machines.len() == 3
                && machines
                    .iter()
                    .all(|m| m.data["spec"]["version"] == "v1.37.0")
                && w.running().await == 3
        })
        .await;
}

/// Conformance: CAPI-40
#[tokio::test(start_paused = true)]
async fn nodes_of_a_class_that_leaves_upgrades_to_cluster_api_never_drift() {
    let world = World::start([deployment("small", 2, "a")]).await;
    let policy = json!({ "spec": { "driftPolicy": "ClusterAPI" } });
    let classes = world.api::<ClusterAPINodeClass>();
    classes
        .patch("default", &PatchParams::default(), &Patch::Merge(policy))
        .await
        .unwrap();
    world.run_pods(1).await;
    let version = json!({ "spec": { "template": { "spec": { "version": "v1.37.0" } } } });
    world.change_deployment("small", version).await;
    world.clock.sleep(Duration::from_secs(1200)).await;
    assert_eq!(world.machines().await[0].data["spec"]["version"], "v1.36.0");
    assert!(
        world.list::<NodeClaim>().await[0]
            .condition(types::DRIFTED)
            .is_none()
    );
}

/// Conformance: CAPI-45
#[tokio::test(start_paused = true)]
async fn a_machine_that_a_user_deletes_is_replaced_at_once() {
    let world = World::start([deployment("small", 2, "a")]).await;
    world.run_pods(2).await;
    let machine = world.machines().await.remove(0);
    world
        .capi
        .machines()
        .delete(&machine.name_any(), &DeleteParams::default())
        .await
        .unwrap();
    world.clock.sleep(Duration::from_secs(5)).await;
    let claims = world.list::<NodeClaim>().await;
    let deleting = claims
        .iter()
        .filter(|claim| claim.is_deleting())
        .map(ResourceExt::uid);
    let other = claims
        .iter()
        .any(|c| !c.is_deleting() && c.uid() != machine.labels()[UID]);
    assert!(
        deleting.flatten().all(|uid| uid == machine.labels()[UID]) && other,
        "{claims:?}"
    );
    world
        .until("two Machines run", async |w| {
            w.machines().await.len() == 2 && w.running().await == 2
        })
        .await;
    world.deploy(0).await;
    world.nothing_lost_or_doubled().await;
}

/// Conformance: CAPI-09, CAPI-22
#[tokio::test(start_paused = true)]
async fn machines_of_others_are_not_listed_and_not_deleted() {
    let world = World::start([deployment("small", 2, "a")]).await;
    let own = |name: &str, labels: Value| {
        json!({ "metadata": { "name": name, "namespace": capi::NAMESPACE, "labels": labels }, "spec": {
            "clusterName": "c1", "providerID": format!("test://{name}"), "infrastructureRef": { "kind": "TestMachine", "name": name } } })
    };
    let member = "node.cluster.x-k8s.io/karpenter-member";
    world
        .add(
            "cluster.x-k8s.io",
            "Machine",
            own(
                "user",
                json!({ "cluster.x-k8s.io/cluster-name": "c1", member: "" }),
            ),
        )
        .await;
    // One of Karpenter in another cluster.
    let foreign = json!({ "cluster.x-k8s.io/cluster-name": "c2", UID: "u" });
    world
        .add("cluster.x-k8s.io", "Machine", own("foreign", foreign))
        .await;
    let provider = world.provider().await;
    assert!(provider.list().await.unwrap().is_empty());
    assert!(
        provider
            .get("test://user")
            .await
            .unwrap_err()
            .is_node_claim_not_found()
    );
    world.clock.sleep(Duration::from_secs(600)).await;
    assert_eq!(world.machines().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_machine_without_a_claim_is_deleted_even_before_its_provider_id() {
    let mut world = World::start([deployment("small", 2, "a")]).await;
    world.boots_in(1_000_000);
    world.deploy(1).await;
    world.until_machine().await;
    world.kill();
    world.deploy(0).await;
    let claim = world.list::<NodeClaim>().await.remove(0);
    let patch = json!({ "metadata": { "finalizers": null } });
    world
        .api::<NodeClaim>()
        .patch(
            &claim.name_any(),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await
        .unwrap();
    world.delete_claim(&claim).await;
    world.run().await;
    world.nothing_lost_or_doubled().await;
}

/// Conformance: CAPI-21
#[tokio::test(start_paused = true)]
async fn a_silent_management_cluster_stops_collection_and_is_reported() {
    let world = World::start([deployment("small", 2, "a")]).await;
    world.run_pods(2).await;
    world.hub.faults().add(Rule::new(Fault::Error(503)));
    world
        .until("the class is not ready", async |w| {
            w.class()
                .await
                .condition(types::READY)
                .is_some_and(|ready| ready.status == "False")
        })
        .await;
    assert!(world.running_provider().list().await.is_err());
    world.clock.sleep(Duration::from_secs(900)).await;
    assert_eq!(
        (world.running().await, world.list::<NodeClaim>().await.len()),
        (2, 2)
    );
    world.hub.faults().clear();
    world.run_pods(4).await;
}

/// Conformance: CAPI-26
#[tokio::test(start_paused = true)]
async fn a_management_cluster_with_the_older_version_only_does_the_same() {
    let mut older = deployment("small", 2, "a");
    older["spec"]["template"]["spec"]["infrastructureRef"] = json!({
        "apiVersion": format!("{INFRASTRUCTURE}/v1beta2"), "kind": "TestMachineTemplate", "name": "2-cores" });
    let world = World::start_on("v1beta1", [older]).await;
    world.run_pods(2).await;
    world.deploy(0).await;
    world.nothing_lost_or_doubled().await;
}

#[tokio::test(start_paused = true)]
async fn kubelets_of_kubeadm_register_with_the_unregistered_taint() {
    let bootstrap = "bootstrap.cluster.x-k8s.io";
    let mut with_config = deployment("small", 2, "a");
    with_config["spec"]["template"]["spec"]["bootstrap"] = json!({ "configRef": { "apiGroup": bootstrap, "kind": "KubeadmConfigTemplate", "name": "k" } });
    let world = World::start([with_config]).await;
    let template = json!({ "metadata": { "name": "k", "namespace": capi::NAMESPACE },
        "spec": { "template": { "spec": { "files": [{ "path": "/a" }] } } } });
    world
        .add(bootstrap, "KubeadmConfigTemplate", template)
        .await;
    world.run_pods(1).await;
    let (configs, machines) = (
        world.capi.all(bootstrap, "KubeadmConfig").await,
        world.machines().await,
    );
    let spec = &configs[0].data["spec"];
    let taints = &spec["joinConfiguration"]["nodeRegistration"]["taints"];
    assert_eq!(
        (&spec["files"][0]["path"], &taints[0]["key"]),
        (&json!("/a"), &json!("karpenter.sh/unregistered"))
    );
    assert_eq!(
        configs[0].owner_references()[0].uid,
        machines[0].uid().unwrap()
    );
    let reference = &machines[0].data["spec"]["bootstrap"]["configRef"];
    assert_eq!(
        (&reference["kind"], &reference["name"]),
        (&json!("KubeadmConfig"), &json!(configs[0].name_any()))
    );
}

#[tokio::test(start_paused = true)]
async fn classes_of_karpenter_in_go_are_accepted_and_mistakes_are_rejected() {
    let world = World::start([]).await;
    let create = async |spec: Value| {
        let class = json!({ "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
            "metadata": { "generateName": "c-" }, "spec": spec });
        let class: kube::core::DynamicObject = serde_json::from_value(class).unwrap();
        let kind = kube::core::ApiResource::erase::<ClusterAPINodeClass>(&());
        let api = kube::Api::all_with(world.client.clone(), &kind);
        let created = api.create(&kube::api::PostParams::default(), &class).await;
        created.map(|_| ()).map_err(|error| error.to_string())
    };
    let selector = json!({ "matchLabels": { "a": "b" }, "matchExpressions": [{ "key": "c", "operator": "Exists" }] });
    create(json!({ "scalableResourceSelector": selector }))
        .await
        .unwrap();
    create(json!({ "reserved": { "cpu": "100m" }, "prices": [{ "instanceType": "t", "price": "0.1" }] })).await.unwrap();
    for (spec, text) in [
        (
            json!({ "reserved": { "pods": "1" } }),
            "keys 'cpu', 'memory' and 'ephemeral-storage' only",
        ),
        (
            json!({ "prices": [{ "instanceType": "t", "price": "cheap" }] }),
            "price",
        ),
        (json!({ "driftPolicy": "Never" }), "driftPolicy"),
    ] {
        let error = create(spec).await.unwrap_err();
        assert!(error.contains(text), "{error}");
    }
}
