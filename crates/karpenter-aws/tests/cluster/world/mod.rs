//! A cluster on AWS: the testbed's API server, the stand-in for AWS over HTTP, the real provider and controllers.

mod options;

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_aws::api::{EC2NodeClass, condition_types};
use karpenter_aws::context::{AwsContext, AwsSettings};
use karpenter_aws::operator::AwsOperator;
use karpenter_aws::providers::instance::instance_id;
use karpenter_aws::sdk::{Aws, Connect};
use karpenter_aws_fake::{AwsFake, Builder, Instance, Policy, Server};
use karpenter_kube::clock::Clock;
use karpenter_kube::context::Context;
use karpenter_kube::logging::JsonLines;
use karpenter_kube::metrics::Registry;
use karpenter_kube::operator::Operator;
use karpenter_kube::options::Options;
use karpenter_testbed::Testbed;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::prelude::*;

pub use options::WorldOptions;

pub const CLUSTER: &str = "test";
pub const QUEUE: &str = "test";
/// The documented policy.
pub const POLICY: &str = include_str!("../../../../../docs/iam-policy.json");
pub const ZONE: &str = "us-west-2a";
/// How long to wait for a condition. It only delays a failure: a loaded computer may be slow.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The version of Kubernetes that the stand-in has AMIs for.
const VERSION: &str = "1.34";
const IMAGES: &str = "/aws/service/eks/optimized-ami/1.34/amazon-linux-2023";

pub struct World {
    pub fake: AwsFake,
    pub client: Client,
    pub aws: AwsContext,
    pub registry: Registry,
    /// The context of the controllers, if there are any.
    pub cx: Option<Arc<Context>>,
    controllers: bool,
    _server: Server,
    testbed: Testbed,
    _stop: DropGuard,
}

impl World {
    /// Creates a cluster with the node class and the NodePool `default`.
    pub async fn new() -> Self {
        Self::with(|b| b, |_| {}).await
    }

    pub async fn with(
        change: impl FnOnce(Builder) -> Builder,
        configure: impl FnOnce(&mut AwsSettings),
    ) -> Self {
        Self::with_fake(change, |_| {}, configure).await
    }

    /// Creates a cluster whose AWS is prepared by `furnish` before the controllers start.
    pub async fn with_fake(
        change: impl FnOnce(Builder) -> Builder,
        furnish: impl FnOnce(&AwsFake),
        configure: impl FnOnce(&mut AwsSettings),
    ) -> Self {
        Self::start(change, furnish, configure, WorldOptions::default()).await
    }

    /// Creates a provider without controllers.
    pub async fn still() -> Self {
        let how = WorldOptions {
            controllers: false,
            ..WorldOptions::default()
        };
        Self::start(|b| b, |_| {}, |_| {}, how).await
    }

    pub async fn start(
        change: impl FnOnce(Builder) -> Builder,
        furnish: impl FnOnce(&AwsFake),
        configure: impl FnOnce(&mut AwsSettings),
        WorldOptions {
            speed,
            controllers,
            unreadable,
            node_overlay,
            leader_election,
        }: WorldOptions,
    ) -> Self {
        if std::env::var_os("TEST_LOG").is_some() {
            let ours = filter_fn(|metadata| metadata.target().starts_with("karpenter"));
            let lines = JsonLines::new(std::io::stderr, "test");
            let lines = lines.with_filter(LevelFilter::DEBUG).with_filter(ours);
            // Only the first test of the process can set it.
            let _ = tracing_subscriber::registry().with(lines).try_init();
        }
        let epoch = Timestamp::now();
        // They are created at the same time, so that their clocks agree.
        let clock = Clock::new(epoch, speed);
        let testbed_clock = karpenter_testbed::Clock::new(epoch, speed);
        let aws_clock = karpenter_aws_fake::Clock::new(epoch, speed);
        let testbed = Testbed::builder()
            .clock(testbed_clock)
            .version(VERSION)
            .start()
            .await;
        let definitions = karpenter_api::crd::all(
            &[karpenter_aws::api::restricted_domain()],
            &[karpenter_aws::api::overlay_domain()],
        );
        let definitions = definitions.into_iter().map(|(_, definition)| definition);
        let mut own = karpenter_aws::api::crd();
        if !controllers {
            without_rules(&mut own);
        }
        testbed.apply_crds(definitions.chain([own])).await.unwrap();
        let unreadable = unreadable.map(Self::unreadable);
        testbed.load(unreadable);
        let builder = AwsFake::builder()
            .clock(aws_clock)
            .cluster(CLUSTER)
            .interruption_queue(QUEUE)
            .unlimited()
            .settings(|s| {
                s.pending_s = 1.0;
                s.page_size = 100;
            });
        let fake = change(builder).build();
        fake.add_instance_profile("nodes", Some("KarpenterNodeRole-test"));
        // Calls that the documented policy does not allow are refused.
        fake.set_policy(Some(policy()));
        furnish(&fake);
        let server = fake.serve(0).await.unwrap();
        let registry = Registry::new();
        let how = Connect {
            region: Some("us-west-2".into()),
            endpoint: Some(server.url()),
            credentials: Some(("AKIATEST".into(), "secret".into())),
            pause: Duration::from_millis(1),
            registry: registry.clone(),
            ..Connect::default()
        };
        let aws = Aws::connect(&how).await.unwrap();
        let mut settings = AwsSettings {
            interruption_queue: Some(QUEUE.to_owned()),
            ..AwsSettings::for_cluster(CLUSTER)
        };
        configure(&mut settings);
        let mut options = Options {
            disable_leader_election: !leader_election,
            leader_election_namespace: "default".into(),
            ..Options::for_tests()
        };
        options.feature_gates.node_overlay = node_overlay;
        let client = testbed.client();
        let on_aws = AwsOperator::new(aws, client.clone(), clock, &registry, settings)
            .await
            .unwrap();
        let aws = on_aws.context.clone();
        let stop = CancellationToken::new();
        let cx = if controllers {
            let operator = Operator::builder(on_aws.provider(), client, options)
                .clock(clock)
                .registry(registry.clone())
                .with(move |setup| on_aws.add(setup))
                .build();
            let cx = Arc::clone(operator.context());
            tokio::spawn(operator.run(stop.clone()));
            Some(cx)
        } else {
            tokio::spawn(on_aws.watch(stop.clone()));
            None
        };
        let world = Self {
            client: testbed.admin_client(),
            fake,
            aws,
            registry,
            cx,
            controllers,
            _server: server,
            testbed,
            _stop: stop.drop_guard(),
        };
        world.class("default", json!({})).await;
        world.pool("default", "default", json!([])).await;
        world
    }

    pub fn api<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    async fn create<K: Resource<DynamicType = ()>>(
        &self,
        name: &str,
        metadata: Value,
        spec: Value,
    ) {
        let resource = ApiResource::erase::<K>(&());
        let mut object = DynamicObject::new(name, &resource);
        object.data = json!({ "spec": spec });
        object.metadata.labels = serde_json::from_value(metadata["labels"].clone()).unwrap();
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    /// Creates a ready node class: the controller makes it ready, or, without controllers, this function.
    pub async fn class(&self, name: &str, changed: Value) {
        let discovery = json!([{ "tags": { "karpenter.sh/discovery": CLUSTER } }]);
        let mut spec = json!({
            "instanceProfile": "nodes",
            "amiSelectorTerms": [{ "alias": "al2023@latest" }],
            "subnetSelectorTerms": [{ "id": "subnet-00000000000000001" }, { "id": "subnet-00000000000000002" }],
            "securityGroupSelectorTerms": discovery,
        });
        let members = spec.as_object_mut().unwrap();
        for (key, value) in changed.as_object().into_iter().flatten() {
            match value {
                Value::Null => members.remove(key),
                value => members.insert(key.clone(), value.clone()),
            };
        }
        let subnets: Vec<Value> = [("1", "a", "2"), ("2", "b", "1")]
            .into_iter()
            .filter(|(n, ..)| {
                let terms = spec["subnetSelectorTerms"].as_array().unwrap();
                terms.iter().any(|t| t["id"].as_str().unwrap().ends_with(n))
            })
            .map(|(n, zone, id)| {
                json!({
                    "id": format!("subnet-0000000000000000{n}"), "zone": format!("us-west-2{zone}"),
                    "zoneID": format!("usw2-az{id}"),
                })
            })
            .collect();
        self.create::<EC2NodeClass>(name, json!({}), spec).await;
        if self.controllers {
            self.until("a class that is ready", async || {
                let known = self.aws.stores.class(name)?;
                known.is_true(types::READY).then_some(())
            })
            .await;
            return;
        }
        let image = |arch: &str| {
            let parameter = format!("{IMAGES}/{arch}/standard/recommended/image_id");
            self.fake.parameter(&parameter).unwrap()
        };
        let ami = |arch: &str, kubernetes: &str| {
            json!({
                "id": image(arch),
                "requirements": [{ "key": "kubernetes.io/arch", "operator": "In", "values": [kubernetes] }],
            })
        };
        let status = json!({
            "instanceProfile": "nodes",
            "amis": [ami("x86_64", "amd64"), ami("arm64", "arm64")],
            "securityGroups": [{ "id": "sg-00000000000000001", "name": "node" }],
            "subnets": subnets,
        });
        self.change_class(name, |class| {
            class.status = serde_json::from_value(status.clone()).unwrap();
            let now = Timestamp::now();
            for condition in [
                condition_types::AMIS_READY,
                condition_types::SUBNETS_READY,
                condition_types::SECURITY_GROUPS_READY,
                condition_types::INSTANCE_PROFILE_READY,
                condition_types::VALIDATION_SUCCEEDED,
                condition_types::PLACEMENT_GROUP_READY,
                condition_types::CAPACITY_RESERVATIONS_READY,
            ] {
                class.set_true(condition, now);
            }
            assert!(class.is_true(types::READY));
        })
        .await;
    }

    /// Changes the status of a node class, and waits until the provider has it.
    pub async fn change_class(&self, name: &str, change: impl Fn(&mut EC2NodeClass)) {
        let api = self.api::<EC2NodeClass>();
        let mut class = api.get(name).await.unwrap();
        change(&mut class);
        let patch = json!({ "status": class.status });
        let written = api
            .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
        self.until("the class to be known", async || {
            let known = self.aws.stores.class(name)?;
            (known.metadata.resource_version == written.metadata.resource_version).then_some(())
        })
        .await;
    }

    /// Returns a node class that cannot be parsed.
    pub fn unreadable(name: &str) -> Value {
        json!({
            "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": name },
            "spec": { "amiSelectorTerms": "al2023@latest" },
        })
    }

    /// Creates a NodePool of a class, without voluntary disruption.
    pub async fn pool(&self, name: &str, class: &str, requirements: Value) {
        let reference =
            json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": class });
        let spec = json!({
            "template": { "spec": { "nodeClassRef": reference, "requirements": requirements } },
            "disruption": { "consolidateAfter": "Never" },
        });
        self.create::<NodePool>(name, json!({}), spec).await;
    }

    /// Returns a NodeClaim of the NodePool `default` with these requirements, without creating it.
    pub fn manifest(name: &str, requirements: &[(&str, &[&str])]) -> NodeClaim {
        let requirements: Vec<Value> = requirements
            .iter()
            .map(|(key, values)| json!({ "key": key, "operator": "In", "values": values }))
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": { "name": name, "uid": format!("uid-{name}"), "labels": { "karpenter.sh/nodepool": "default" } },
            "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
                "requirements": requirements, "resources": { "requests": { "cpu": "1" } }, "expireAfter": "Never",
            },
        }))
        .unwrap()
    }

    /// Creates a NodeClaim and waits until its instance is launched; returns the NodeClaim and the instance's ID.
    pub async fn launched(
        &self,
        name: &str,
        requirements: &[(&str, &[&str])],
    ) -> (NodeClaim, String) {
        self.launch(Self::manifest(name, requirements)).await
    }

    /// Creates a NodeClaim and waits until its instance is launched; returns the NodeClaim and the instance's ID.
    pub async fn launch(&self, mut manifest: NodeClaim) -> (NodeClaim, String) {
        let name = manifest.metadata.name.clone().unwrap();
        manifest.metadata.uid = None;
        let api = self.api::<NodeClaim>();
        api.create(&PostParams::default(), &manifest).await.unwrap();
        let claim = self
            .until("a launched claim", async || {
                let claim = api.get_opt(&name).await.unwrap()?;
                let launched = claim.is_true(types::LAUNCHED);
                (launched && claim.status.provider_id.is_some()).then_some(claim)
            })
            .await;
        let id = claim.status.provider_id.as_deref().and_then(instance_id);
        (claim.clone(), id.unwrap().to_owned())
    }

    /// Launches an on-demand instance.
    pub async fn on_demand(&self, name: &str) -> (NodeClaim, String) {
        self.launched(
            name,
            &[
                ("node.kubernetes.io/instance-type", &["m5.large"]),
                ("karpenter.sh/capacity-type", &["on-demand"]),
                ("topology.kubernetes.io/zone", &[ZONE]),
            ],
        )
        .await
    }

    /// Launches an on-demand instance whose node has joined, so that it does not fail liveness, however long a test
    /// takes.
    pub async fn joined(&self, name: &str) -> (NodeClaim, String) {
        let (claim, id) = self.on_demand(name).await;
        self.join(&claim).await;
        (claim, id)
    }

    /// Creates the node of a NodeClaim, as its kubelet would; waits until it is registered.
    pub async fn join(&self, claim: &NodeClaim) -> Node {
        self.node(claim).await;
        let name = format!("node-{}", claim.metadata.name.as_deref().unwrap());
        let nodes = self.api::<Node>();
        self.until("a registered node", async || {
            let node = nodes.get(&name).await.ok()?;
            let labels = node.metadata.labels.clone().unwrap_or_default();
            labels
                .contains_key("karpenter.sh/registered")
                .then_some(node)
        })
        .await
    }

    /// Creates the node of a NodeClaim, as its kubelet would.
    pub async fn node(&self, claim: &NodeClaim) {
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": format!("node-{}", claim.metadata.name.as_deref().unwrap()) },
            "spec": {
                "providerID": claim.status.provider_id,
                "taints": [{ "key": "karpenter.sh/unregistered", "effect": "NoExecute" }],
            },
            "status": { "capacity": { "memory": "7Gi" } },
        }))
        .unwrap();
        let nodes = self.api::<Node>();
        nodes.create(&PostParams::default(), &node).await.unwrap();
    }

    pub async fn get<K>(&self, name: &str) -> Option<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        self.api::<K>().get_opt(name).await.unwrap()
    }

    /// Stores an object in the API server without admission.
    pub fn load(&self, object: Value) {
        assert_eq!(self.testbed.load([object]), 1);
    }

    /// Patches an object with a merge patch.
    pub async fn patch<K>(&self, name: &str, patch: Value)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        let api = self.api::<K>();
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

    /// Patches the status of an object with a merge patch.
    pub async fn patch_status<K>(&self, name: &str, patch: Value)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        let patch = json!({ "status": patch });
        let api = self.api::<K>();
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

    /// Returns whether a NodeClaim is deleted or being deleted.
    pub async fn is_leaving(&self, name: &str) -> bool {
        let claim = self.get::<NodeClaim>(name).await;
        claim.is_none_or(|claim| claim.is_deleting())
    }

    /// Waits until a NodeClaim is deleted or being deleted.
    pub async fn leaves(&self, name: &str) {
        self.until(&format!("{name} to be deleted"), async || {
            self.is_leaving(name).await.then_some(())
        })
        .await;
    }

    pub fn instance(&self, id: &str) -> Instance {
        self.fake.instance(id).unwrap()
    }

    /// Asserts that no call was refused for lack of permission.
    pub fn nothing_beyond_the_policy(&self) {
        let refused = self.fake.forbidden();
        assert!(refused.is_empty(), "{refused:?}");
    }

    pub fn calls(&self, action: &str) -> usize {
        self.fake.call_counts().get(action).copied().unwrap_or(0)
    }

    /// Returns the messages of the events with this reason about the object of this kind and name.
    pub async fn events(&self, kind: &str, name: &str, reason: &str) -> Vec<String> {
        let all = self.api::<Event>().list(&ListParams::default()).await;
        let about = |event: &Event| {
            event.involved_object.kind.as_deref() == Some(kind)
                && event.involved_object.name.as_deref() == Some(name)
                && event.reason.as_deref() == Some(reason)
        };
        let events = all.unwrap().items.into_iter().filter(about);
        events.filter_map(|event| event.message).collect()
    }

    /// Waits for an event; returns its message.
    pub async fn event_message(&self, kind: &str, name: &str, reason: &str) -> String {
        self.until(&format!("{reason} about {name}"), async || {
            self.events(kind, name, reason).await.pop()
        })
        .await
    }

    /// Returns the value of a series, as `/metrics` exports it; zero if it does not exist.
    pub fn metric(&self, series: &str) -> f64 {
        let text = self.registry.render();
        let value = text.lines().find_map(|line| {
            let value = line.strip_prefix(series)?;
            value.strip_prefix(' ')?.parse::<f64>().ok()
        });
        value.unwrap_or(0.0)
    }

    /// Returns the sum of a metric's series.
    pub fn metric_sum(&self, name: &str) -> f64 {
        let text = self.registry.render();
        let own = text.lines().filter_map(|line| {
            let (_, value) = line
                .strip_prefix(name)?
                .strip_prefix('{')?
                .rsplit_once(' ')?;
            value.parse::<f64>().ok()
        });
        own.sum()
    }

    /// Waits until a series has this value.
    pub async fn counts(&self, series: &str, value: f64) {
        self.until(&format!("{series} {value}"), async || {
            ((self.metric(series) - value).abs() < 0.01).then_some(())
        })
        .await;
    }

    /// Waits until an action was called this many more times.
    pub async fn more_calls(&self, action: &str, more: usize) {
        let wanted = self.calls(action) + more;
        self.until(&format!("{more} more {action}"), async || {
            (self.calls(action) >= wanted).then_some(())
        })
        .await;
    }

    /// Waits until a check succeeds; in real time, as sockets are involved.
    pub async fn until<T>(&self, what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = check().await {
                return found;
            }
            if Instant::now() > deadline {
                let claims = self.api::<NodeClaim>().list(&ListParams::default()).await;
                let states: Vec<_> = claims
                    .unwrap()
                    .items
                    .iter()
                    .map(|c| (c.metadata.clone(), c.status.conditions.clone()))
                    .collect();
                let calls = self.fake.call_counts();
                assert!(
                    what.is_empty(),
                    "waited for {what} in vain; claims {states:#?}; calls {calls:?}"
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Returns the documented policy for this cluster.
pub fn policy() -> Policy {
    Policy::parse(&Policy::fill(POLICY, CLUSTER)).unwrap()
}

/// Removes the rules from a CustomResourceDefinition, as if it were an older one.
pub fn without_rules(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            members.remove("x-kubernetes-validations");
            members.values_mut().for_each(without_rules);
        }
        Value::Array(items) => items.iter_mut().for_each(without_rules),
        _ => {}
    }
}
