//! Tests of all loops together, on the in-process API server, in virtual time.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_fixtures::{Object, ZONE, bare_node, pdb};
use karpenter_testbed::loops::node_agent::NodeFault;
use karpenter_testbed::loops::{Loops, Options};
use karpenter_testbed::{Clock, Testbed};
use kube::api::{ApiResource, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

/// A testbed in virtual time whose controllers are started by the test.
struct World {
    testbed: Testbed,
    client: Client,
    clock: Clock,
    options: Options,
    loops: Option<Loops>,
}

fn epoch() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

impl World {
    async fn new() -> Self {
        let clock = Clock::new(epoch(), 1.0);
        let testbed = Testbed::builder()
            .clock(clock)
            .seed(7)
            .garbage_collection()
            .start()
            .await;
        let client = testbed.admin_client();
        let options = Options::default();
        let loops = Loops::start(testbed.client(), clock, options.clone());
        Self {
            testbed,
            client,
            clock,
            options,
            loops: Some(loops),
        }
    }

    fn api(&self, api_version: &str, kind: &str) -> Api<DynamicObject> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let cluster_wide = ["Node", "PersistentVolume", "StorageClass", "Namespace"];
        if cluster_wide.contains(&kind) {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), "default", &resource)
        }
    }

    async fn create(&self, object: Value) {
        let api = self.api(
            object["apiVersion"].as_str().unwrap(),
            object["kind"].as_str().unwrap(),
        );
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    async fn get(&self, api_version: &str, kind: &str, name: &str) -> Option<Value> {
        let found = self.api(api_version, kind).get_opt(name).await.unwrap();
        found.map(|o| serde_json::to_value(o).unwrap())
    }

    async fn patch(&self, api_version: &str, kind: &str, name: &str, patch: Value) {
        self.api(api_version, kind)
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

    async fn node(&self, name: &str, zone: &str) {
        let node = bare_node(name)
            .remove("/spec/providerID")
            .label("kwok.x-k8s.io/node", "fake")
            .zone(zone)
            .cpu("64")
            .memory("256Gi")
            .pods("110");
        self.create(node.into_json()).await;
    }

    async fn pods(&self) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        pods.list(&ListParams::default()).await.unwrap().items
    }

    async fn running(&self) -> usize {
        let running = |p: &&Pod| {
            p.metadata.deletion_timestamp.is_none()
                && p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running")
        };
        self.pods().await.iter().filter(running).count()
    }

    async fn node_object(&self, name: &str) -> Node {
        Api::<Node>::all(self.client.clone())
            .get(name)
            .await
            .unwrap()
    }

    async fn pass(&self, seconds: u64) {
        self.clock.sleep(Duration::from_secs(seconds)).await;
    }
}

/// A Deployment of pods that request 100 millicores each.
fn deployment(name: &str, replicas: i32) -> Object<Deployment> {
    karpenter_fixtures::deployment(name)
        .replicas(replicas)
        .cpu("100m")
        .grace_period(30)
        .as_written()
}

fn node_of(pod: &Pod) -> String {
    pod.spec
        .as_ref()
        .and_then(|s| s.node_name.clone())
        .unwrap_or_default()
}

fn per<K: Ord>(pods: &[Pod], key: impl Fn(&Pod) -> K) -> BTreeMap<K, usize> {
    let mut counts = BTreeMap::new();
    for pod in pods {
        *counts.entry(key(pod)).or_default() += 1;
    }
    counts
}

fn taints(node: &Node) -> Vec<String> {
    let taints = node
        .spec
        .as_ref()
        .and_then(|s| s.taints.clone())
        .unwrap_or_default();
    taints
        .iter()
        .map(|t| format!("{}:{}", t.key, t.effect))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_deployment_runs_on_three_nodes_scales_and_rolls() {
    let world = World::new().await;
    for (name, zone) in [("a", "x"), ("b", "y"), ("c", "z")] {
        world.node(name, zone).await;
    }
    world.create(deployment("web", 100).into_json()).await;
    world.pass(20).await;
    assert_eq!(world.running().await, 100);
    let counts = per(&world.pods().await, node_of);
    assert_eq!(counts.values().copied().max().unwrap(), 34, "{counts:?}");
    let deployment = world.get("apps/v1", "Deployment", "web").await.unwrap();
    let status = &deployment["status"];
    assert_eq!(status["availableReplicas"], 100);
    assert_eq!(status["updatedReplicas"], 100);
    assert_eq!(
        status["observedGeneration"],
        deployment["metadata"]["generation"]
    );
    assert_eq!(status.get("unavailableReplicas"), None);
    let conditions = status["conditions"].as_array().unwrap();
    assert!(
        conditions
            .iter()
            .any(|c| c["reason"] == "NewReplicaSetAvailable")
    );
    assert!(taints(&world.node_object("a").await).is_empty());

    // `kubectl rollout restart`.
    let restart = json!({"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}}});
    world.patch("apps/v1", "Deployment", "web", restart).await;
    world.pass(60).await;
    assert_eq!(world.running().await, 100);
    let hashes = per(&world.pods().await, |p| {
        p.metadata.labels.clone().unwrap()["pod-template-hash"].clone()
    });
    assert_eq!(hashes.len(), 1);
    let deployment = world.get("apps/v1", "Deployment", "web").await.unwrap();
    assert_eq!(
        deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
        "2"
    );

    world
        .patch(
            "apps/v1",
            "Deployment",
            "web",
            json!({"spec": {"replicas": 10}}),
        )
        .await;
    world.pass(10).await;
    assert_eq!(world.pods().await.len(), 10);
    world.loops.unwrap().shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_unschedulable_pod_has_a_reason_until_a_node_is_created() {
    let world = World::new().await;
    world.node("a", "x").await;
    let in_y = deployment("web", 1).select(ZONE, "y");
    world.create(in_y.into_json()).await;
    world.pass(20).await;
    let pod = world.pods().await.remove(0);
    let conditions = pod.status.unwrap().conditions.unwrap();
    let scheduled = conditions
        .iter()
        .find(|c| c.type_ == "PodScheduled")
        .unwrap();
    assert_eq!(scheduled.reason.as_deref(), Some("Unschedulable"));
    assert_eq!(
        scheduled.message.as_deref(),
        Some(
            "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. \
             preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
        )
    );
    world.node("b", "y").await;
    world.pass(10).await;
    assert_eq!(world.running().await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_budget_blocks_and_allows_evictions() {
    let world = World::new().await;
    world.node("a", "x").await;
    world.node("b", "y").await;
    world.create(deployment("web", 2).into_json()).await;
    let one = pdb("web").max_unavailable(1).as_written();
    world.create(one.into_json()).await;
    world.pass(10).await;
    let budget = world
        .get("policy/v1", "PodDisruptionBudget", "web")
        .await
        .unwrap();
    assert_eq!(budget["status"]["disruptionsAllowed"], 1);
    assert_eq!(budget["status"]["currentHealthy"], 2);
    assert_eq!(budget["status"]["desiredHealthy"], 1);
    assert_eq!(budget["status"]["expectedPods"], 2);
    // No other pod can replace an evicted pod.
    for node in ["a", "b"] {
        world
            .patch("v1", "Node", node, json!({"spec": {"unschedulable": true}}))
            .await;
    }
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    let evict = |name: String| {
        let pods = pods.clone();
        async move {
            let body =
                json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
            pods.create_subresource::<_, Value>("eviction", &name, &PostParams::default(), &body)
                .await
        }
    };
    let names: Vec<String> = world
        .pods()
        .await
        .into_iter()
        .map(|p| p.metadata.name.unwrap())
        .collect();
    evict(names[0].clone()).await.unwrap();
    world.pass(5).await;
    let error = evict(names[1].clone()).await.unwrap_err();
    assert!(
        matches!(&error, kube::Error::Api(s) if s.code == 429),
        "{error}"
    );
    world
        .patch("v1", "Node", "b", json!({"spec": {"unschedulable": false}}))
        .await;
    world.pass(20).await;
    assert_eq!(world.running().await, 2);
    evict(names[1].clone()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn deleting_a_deployment_deletes_its_dependents() {
    let world = World::new().await;
    world.node("a", "x").await;
    world.create(deployment("web", 3).into_json()).await;
    world.pass(10).await;
    assert_eq!(world.running().await, 3);
    let deployments = world.api("apps/v1", "Deployment");
    deployments
        .delete("web", &DeleteParams::foreground())
        .await
        .unwrap();
    let kept = world.get("apps/v1", "Deployment", "web").await.unwrap();
    assert_eq!(
        kept["metadata"]["finalizers"],
        json!(["foregroundDeletion"])
    );
    world.pass(30).await;
    assert!(world.get("apps/v1", "Deployment", "web").await.is_none());
    assert!(world.pods().await.is_empty());

    world.create(deployment("web", 3).into_json()).await;
    world.pass(10).await;
    deployments
        .delete("web", &DeleteParams::background())
        .await
        .unwrap();
    world.pass(30).await;
    assert!(world.pods().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dead_node_is_tainted_and_its_pods_are_replaced() {
    let world = World::new().await;
    world.node("a", "x").await;
    world.node("b", "y").await;
    world.create(deployment("web", 4).into_json()).await;
    world.pass(10).await;
    assert_eq!(world.running().await, 4);
    let faults = &world.options.node_agent.as_ref().unwrap().faults;
    faults.set("a", NodeFault::Dead);
    world.pass(70).await;
    let node = world.node_object("a").await;
    let unreachable = "node.kubernetes.io/unreachable";
    assert_eq!(
        taints(&node),
        [
            format!("{unreachable}:NoSchedule"),
            format!("{unreachable}:NoExecute")
        ]
    );
    // The pods' default tolerations last five minutes; then the pods are replaced, but exist until the node is deleted.
    world.pass(320).await;
    let pods = world.pods().await;
    let (old, new): (Vec<Pod>, Vec<Pod>) = pods.into_iter().partition(|p| node_of(p) == "a");
    assert_eq!((old.len(), new.len()), (2, 4));
    assert!(old.iter().all(|p| p.metadata.deletion_timestamp.is_some()));
    world
        .api("v1", "Node")
        .delete("a", &DeleteParams::default())
        .await
        .unwrap();
    world.pass(60).await;
    assert_eq!(world.pods().await.len(), 4);
    faults.clear("a");
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_starts_in_order_with_claims() {
    let world = World::new().await;
    world.node("a", "x").await;
    world.create(json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"},
        "provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer"})).await;
    world.create(json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": {
        "replicas": 3, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
        "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "db"}]}},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
            "storageClassName": "fast", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}}]}})).await;
    world.pass(3).await;
    assert!(world.pods().await.len() < 3, "not in order");
    world.pass(20).await;
    assert_eq!(world.running().await, 3);
    let claim = world
        .get("v1", "PersistentVolumeClaim", "data-db-2")
        .await
        .unwrap();
    assert_eq!(claim["status"]["phase"], "Bound");
    let volume = claim["spec"]["volumeName"].as_str().unwrap();
    let volume = world.get("v1", "PersistentVolume", volume).await.unwrap();
    let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    assert_eq!(terms[0]["matchExpressions"][0]["values"], json!(["x"]));
    world
        .patch(
            "apps/v1",
            "StatefulSet",
            "db",
            json!({"spec": {"replicas": 1}}),
        )
        .await;
    world.pass(20).await;
    let left: Vec<_> = world
        .pods()
        .await
        .into_iter()
        .filter_map(|p| p.metadata.name)
        .collect();
    assert_eq!(left, ["db-0"]);
    assert!(
        world
            .get("v1", "PersistentVolumeClaim", "data-db-2")
            .await
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn a_daemon_set_follows_the_nodes() {
    let world = World::new().await;
    world.node("a", "x").await;
    world.create(json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"}, "spec": {
        "selector": {"matchLabels": {"app": "agent"}},
        "template": {"metadata": {"labels": {"app": "agent"}},
                     "spec": {"containers": [{"name": "c", "image": "agent"}]}}}})).await;
    world.pass(10).await;
    assert_eq!(world.running().await, 1);
    world.node("b", "y").await;
    world.pass(10).await;
    assert_eq!(
        per(&world.pods().await, node_of),
        BTreeMap::from([("a".into(), 1), ("b".into(), 1)])
    );
    let set = world.get("apps/v1", "DaemonSet", "agent").await.unwrap();
    assert_eq!(set["status"]["numberReady"], 2);
    assert_eq!(set["status"]["desiredNumberScheduled"], 2);
    world
        .api("v1", "Node")
        .delete("b", &DeleteParams::default())
        .await
        .unwrap();
    world.pass(60).await;
    assert_eq!(
        per(&world.pods().await, node_of),
        BTreeMap::from([("a".into(), 1)])
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_completes() {
    let world = World::new().await;
    world.node("a", "x").await;
    world
        .create(json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "good"}, "spec": {
            "completions": 4, "parallelism": 2,
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "job"}]}}}}))
        .await;
    world.pass(60).await;
    let good = world.get("batch/v1", "Job", "good").await.unwrap();
    assert_eq!(good["status"]["succeeded"], 4);
    assert_eq!(good["status"]["conditions"][1]["type"], "Complete");
    assert!(good["status"]["completionTime"].is_string());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_is_deleted_with_its_objects() {
    let world = World::new().await;
    world
        .create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "temp"}}))
        .await;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
    let maps: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), "temp", &resource);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    maps.create(
        &PostParams::default(),
        &serde_json::from_value(map).unwrap(),
    )
    .await
    .unwrap();
    world.pass(5).await;
    world
        .api("v1", "Namespace")
        .delete("temp", &DeleteParams::default())
        .await
        .unwrap();
    world.pass(10).await;
    assert!(world.get("v1", "Namespace", "temp").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn errors_conflicts_and_dropped_watches_only_delay() {
    use karpenter_testbed::faults::{Fault, Rule};
    let world = World::new().await;
    let rule = |verb: &str, rate: f64, fault: Fault| Rule {
        verb: Some(verb.to_owned()),
        resource: None,
        rate,
        times: None,
        fault,
    };
    let failure = Fault::Error(500);
    world.testbed.faults().set(vec![
        rule("create", 0.2, failure.clone()),
        rule("patch", 0.2, Fault::Conflict),
        rule("update", 0.2, failure),
        rule("watch", 0.3, Fault::DropWatch { after: 20 }),
    ]);
    for name in ["a", "b"] {
        world.node(name, "x").await;
    }
    world.create(deployment("web", 50).into_json()).await;
    world.pass(120).await;
    assert_eq!(world.running().await, 50);
    assert_eq!(world.pods().await.len(), 50);
}
