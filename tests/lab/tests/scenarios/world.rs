//! The world of a scenario, and helpers for scenarios.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_fixtures::{ARCH, CAPACITY_TYPE, OS, Object, read};
use karpenter_kwok::KWOKNodeClass;
use karpenter_lab::local_cluster::{LocalCluster, LocalClusterSettings};
use karpenter_lab::progress::{Progress, describe};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A cluster with Karpenter, and the virtual clock, with which an hour passes in milliseconds.
pub struct World {
    /// The control plane, the cloud and the controllers.
    pub cluster: LocalCluster,
    /// A client without injected faults.
    pub client: Client,
}

/// The time at which every scenario starts.
pub fn epoch() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

pub fn settings() -> LocalClusterSettings {
    LocalClusterSettings {
        epoch: epoch(),
        ..LocalClusterSettings::default()
    }
}

/// Advances a world until a condition holds, for at most this many seconds.
macro_rules! until {
    ($world:expr, $seconds:expr, $what:expr, |$w:pat_param| $holds:expr $(,)?) => {
        $world.until($seconds, $what, async |$w| $holds).await
    };
}

impl World {
    /// A cluster without NodePools.
    pub async fn bare(settings: LocalClusterSettings) -> Self {
        let cluster = LocalCluster::start(settings).await.unwrap();
        let client = cluster.client();
        Self { cluster, client }
    }

    /// A cluster with the NodePool `default` of simulated nodes.
    pub async fn new() -> Self {
        Self::with(node_pool("default")).await
    }

    /// A cluster with this NodePool of simulated nodes.
    pub async fn with(pool: Object<NodePool>) -> Self {
        Self::with_settings(settings(), pool).await
    }

    pub async fn with_settings(settings: LocalClusterSettings, pool: Object<NodePool>) -> Self {
        let world = Self::bare(settings).await;
        world
            .create(&KWOKNodeClass::new("default", Default::default()))
            .await;
        world.add(pool).await;
        world
    }

    /// A cluster with the NodePool `default`, whose spec is changed by `spec`.
    pub async fn with_spec(settings: LocalClusterSettings, spec: Value) -> Self {
        let world = Self::bare(settings).await;
        world
            .create(&KWOKNodeClass::new("default", Default::default()))
            .await;
        world.create(&pool("default", spec)).await;
        world
    }

    pub fn api<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Merges a patch into an object.
    pub async fn patch<K>(&self, name: &str, patch: Value)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        let (patch, params) = (Patch::Merge(patch), PatchParams::default());
        let patched = self.api::<K>().patch(name, &params, &patch).await;
        patched.unwrap();
    }

    /// Merges a patch into the status of an object.
    pub async fn patch_status<K>(&self, name: &str, patch: Value)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        let (patch, params) = (Patch::Merge(patch), PatchParams::default());
        let patched = self.api::<K>().patch_status(name, &params, &patch).await;
        patched.unwrap();
    }

    /// Merges a patch into each pod of the namespace `default`.
    pub async fn patch_pods(&self, patch: Value) {
        let (patch, params) = (Patch::Merge(patch), PatchParams::default());
        let api = self.namespaced::<Pod>();
        for pod in self.pods().await {
            let name = pod.metadata.name.unwrap();
            api.patch(&name, &params, &patch).await.unwrap();
        }
    }

    pub async fn create<K>(&self, object: &K)
    where
        K: Resource<DynamicType = ()>
            + DeserializeOwned
            + serde::Serialize
            + Clone
            + std::fmt::Debug,
    {
        self.api::<K>()
            .create(&PostParams::default(), object)
            .await
            .unwrap();
    }

    /// Creates an object as a user does: without UID and status.
    pub async fn add<K>(&self, object: Object<K>)
    where
        K: Resource<DynamicType = ()>,
    {
        self.create_json::<K>(object.as_written().into_json()).await;
    }

    pub async fn get<K>(&self, name: &str) -> Option<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        self.api::<K>().get_opt(name).await.unwrap()
    }

    /// Returns an API of the namespace `default`.
    pub fn namespaced<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Creates an object of the namespace `default`, or of none.
    pub async fn create_json<K>(&self, object: Value)
    where
        K: Resource<DynamicType = ()>,
    {
        let kind = ApiResource::erase::<K>(&());
        let object: DynamicObject = read(object);
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind),
            None => Api::all_with(self.client.clone(), &kind),
        };
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    /// Returns the name of the only node, or of one of them.
    pub async fn node_name(&self) -> String {
        self.nodes().await.remove(0).metadata.name.unwrap()
    }

    pub async fn list<K>(&self) -> Vec<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        self.api::<K>()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
    }

    pub async fn claims(&self) -> Vec<NodeClaim> {
        self.list().await
    }

    pub async fn nodes(&self) -> Vec<Node> {
        self.list().await
    }

    pub async fn pods(&self) -> Vec<Pod> {
        self.list().await
    }

    /// Returns the only NodeClaim, or one of them.
    pub async fn claim(&self) -> NodeClaim {
        self.claims().await.remove(0)
    }

    /// Returns the name of the first pod whose name begins so.
    pub async fn pod_name(&self, start: &str) -> String {
        let pods = self.pods().await.into_iter();
        let mut names = pods.filter_map(|pod| pod.metadata.name);
        names.find(|name| name.starts_with(start)).unwrap()
    }

    /// Returns the value of a series: its name with labels, as exposed.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let text = self.cluster.registry.render();
        text.lines()
            .find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }

    /// Creates a Deployment `name` of pods that request 1 CPU each.
    pub async fn deploy(&self, name: &str, replicas: i32) {
        self.add(deployment(name, replicas)).await;
    }

    /// Creates a Deployment `name` of pods that request 1 CPU each, the first pods of the cluster, and waits until they run.
    pub async fn run(&self, name: &str, replicas: i32) {
        self.deploy(name, replicas).await;
        let pods = usize::try_from(replicas).unwrap();
        self.until_running(pods, 120).await;
    }

    /// Creates a Deployment `name` of pods whose spec is changed by `pod_spec`.
    pub async fn deploy_with(&self, name: &str, replicas: i32, pod_spec: Value) {
        let mut object = deployment(name, replicas).into_json();
        merge(&mut object["spec"]["template"]["spec"], &pod_spec);
        self.add(Object::<Deployment>::from_json(object)).await;
    }

    pub async fn scale(&self, name: &str, replicas: i32) {
        let api = self.namespaced::<Deployment>();
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        let scaled = api.patch(name, &PatchParams::default(), &patch).await;
        scaled.unwrap();
    }

    pub async fn delete_deployments(&self, names: &[&str]) {
        let api = self.namespaced::<Deployment>();
        for name in names {
            api.delete(name, &DeleteParams::default()).await.unwrap();
        }
    }

    pub async fn delete<K>(&self, name: &str)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        self.api::<K>()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// Advances the world for a while.
    pub async fn pass(&self, seconds: u64) {
        self.cluster.clock.sleep(Duration::from_secs(seconds)).await;
    }

    /// Advances the world until a condition holds, for at most this many seconds.
    pub async fn until(&self, seconds: u64, what: &str, holds: impl AsyncFn(&Self) -> bool) {
        let start = self.cluster.clock.now();
        while !holds(self).await {
            let passed = self.cluster.clock.since(start).as_secs();
            assert!(
                passed < seconds,
                "timed out after {passed} s: {what}; {}",
                self.describe().await
            );
            self.pass(1).await;
        }
    }

    /// Advances the world until this many pods run.
    pub async fn until_running(&self, pods: usize, seconds: u64) {
        until!(self, seconds, &format!("{pods} pods run"), |world| {
            world.progress().await.running == pods
        });
    }

    pub async fn until_claims(&self, count: usize, seconds: u64) {
        let what = format!("there are {count} nodeclaims");
        until!(self, seconds, &what, |w| w.claims().await.len() == count);
    }

    pub async fn until_event(&self, reason: &str, seconds: u64) {
        until!(self, seconds, reason, |w| w.has_event(reason).await);
    }

    /// Advances the world until there is no object of this name.
    pub async fn until_gone<K>(&self, name: &str, seconds: u64)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        let what = format!("{name} is gone");
        until!(self, seconds, &what, |w| w.get::<K>(name).await.is_none());
    }

    /// Advances the world until there are no NodeClaims, no Nodes and no instances.
    pub async fn until_empty(&self, seconds: u64) {
        until!(self, seconds, "nothing is left", |world| {
            world.claims().await.is_empty()
                && world.nodes().await.is_empty()
                && world.cluster.cloud.instances().is_empty()
        });
    }

    pub async fn progress(&self) -> Progress {
        Progress::of(&self.cluster).await.unwrap()
    }

    /// Describes the state of the cluster for a failed assertion.
    pub async fn describe(&self) -> String {
        let mut lines = vec![self.progress().await.line()];
        lines.extend(describe(&self.client).await.unwrap());
        for event in self.events().await {
            lines.push(format!(
                "{} {}",
                event.reason.unwrap_or_default(),
                event.message.unwrap_or_default()
            ));
        }
        lines.join("\n")
    }

    pub async fn events(&self) -> Vec<Event> {
        self.list().await
    }

    /// Returns the events with a reason.
    pub async fn events_of(&self, reason: &str) -> Vec<Event> {
        let mut events = self.events().await;
        events.retain(|event| event.reason.as_deref() == Some(reason));
        events
    }

    /// Whether an event with this reason was published.
    pub async fn has_event(&self, reason: &str) -> bool {
        !self.events_of(reason).await.is_empty()
    }

    /// Returns the messages of all events.
    pub async fn messages(&self) -> Vec<String> {
        let events = self.events().await.into_iter();
        events.filter_map(|event| event.message).collect()
    }

    /// Whether an event with this message was published.
    pub async fn says(&self, message: &str) -> bool {
        self.messages().await.iter().any(|it| it == message)
    }

    /// Asserts that every instance belongs to a NodeClaim, and every launched NodeClaim to an instance (invariant I7).
    pub async fn assert_no_orphans(&self) {
        let claims = self.claims().await;
        let ids: Vec<_> = claims
            .iter()
            .filter_map(|c| c.status.provider_id.clone())
            .collect();
        let instances = self.cluster.cloud.instances().into_iter();
        let instances = instances.map(|it| it.answer.status.provider_id.clone().unwrap());
        let nodes = self.nodes().await.into_iter();
        let nodes = nodes.map(|it| it.spec.and_then(|spec| spec.provider_id).unwrap());
        let unknown: Vec<String> = instances
            .chain(nodes)
            .filter(|it| !ids.contains(it))
            .collect();
        assert_eq!(
            unknown,
            [""; 0],
            "without nodeclaim; {}",
            self.describe().await
        );
    }
}

/// A NodePool of amd64 Linux nodes that are consolidated at once.
pub fn node_pool(name: &str) -> Object<NodePool> {
    karpenter_fixtures::node_pool(name)
        .class("karpenter.kwok.sh", "KWOKNodeClass", "default")
        .requires(ARCH, "In", &["amd64"])
        .requires(OS, "In", &["linux"])
        .consolidate_after("0s")
        .budget("100%")
}

/// A NodePool like [`node_pool`] whose spec is changed by `spec`.
pub fn pool(name: &str, spec: Value) -> NodePool {
    let mut object = node_pool(name).as_written().into_json();
    merge(&mut object["spec"], &spec);
    read(object)
}

/// What makes the nodes of a NodePool on-demand nodes: spot nodes are not replaced by spot nodes.
pub fn on_demand() -> Value {
    json!({ "spec": { "requirements": [
        { "key": ARCH, "operator": "In", "values": ["amd64"] },
        { "key": OS, "operator": "In", "values": ["linux"] },
        { "key": CAPACITY_TYPE, "operator": "In", "values": ["on-demand"] },
    ] } })
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// A Deployment of pods that request 1 CPU each and end at once.
pub fn deployment(name: &str, replicas: i32) -> Object<Deployment> {
    karpenter_fixtures::deployment(name)
        .replicas(replicas)
        .cpu("1")
        .grace_period(0)
}
