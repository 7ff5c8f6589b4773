//! A cluster, a stand-in for AWS, and the controllers of node classes between them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Event;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_aws::api::EC2NodeClass;
use karpenter_aws::context::{AwsContext, AwsSettings};
use karpenter_aws::controllers::node_class::NodeClasses;
use karpenter_aws::operator::AwsOperator;
use karpenter_aws::sdk::Aws;
use karpenter_aws_fake::{AwsFake, Builder, Server};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::provider::{CloudProvider, CloudProviderError, ProviderProfile};
use karpenter_kube::clock::Clock;
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Controller, Next, ObjectKey, ReconcileError};
use karpenter_kube::metrics::Registry;
use karpenter_kube::operator::Operator;
use karpenter_kube::options::Options;
use karpenter_testbed::Testbed;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::cluster::world::without_rules;
use crate::ec2::support::{class, how};

pub const CLUSTER: &str = "test";
pub const ROLE: &str = "KarpenterNodeRole-test";
/// The version of the testbed's API server.
const VERSION: &str = "1.36";
pub const IMAGES: &str = "/aws/service/eks/optimized-ami/1.36/amazon-linux-2023";

pub struct World {
    pub fake: AwsFake,
    pub aws: AwsContext,
    pub cx: Arc<Context>,
    pub controller: NodeClasses,
    pub client: Client,
    _stop: DropGuard,
    _server: Server,
    testbed: Testbed,
}

/// Status, reason and message of a condition.
pub type Observed = (String, String, String);

pub fn observed(class: &EC2NodeClass, condition: &str) -> Observed {
    let found = class.condition(condition).unwrap();
    (
        found.status.clone(),
        found.reason.clone(),
        found.message.clone(),
    )
}

pub fn reason(class: &EC2NodeClass, condition: &str) -> (String, String) {
    let (status, reason, _) = observed(class, condition);
    (status, reason)
}

pub fn is(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

/// Asserts status and reason of a condition, and words of its message.
#[track_caller]
pub fn says(class: &EC2NodeClass, condition: &str, expected: (String, String), words: &[&str]) {
    let (status, reason, message) = observed(class, condition);
    assert_eq!((status, reason), expected, "{message}");
    for word in words {
        assert!(message.contains(word), "{message}");
    }
}

/// A provider of other node classes: Karpenter's own controllers ignore ours, and only the model is used.
struct Elsewhere(ProviderProfile);

#[async_trait]
impl CloudProvider for Elsewhere {
    fn profile(&self) -> &ProviderProfile {
        &self.0
    }

    async fn create(&self, _: &NodeClaim) -> Result<NodeClaim, CloudProviderError> {
        Err(CloudProviderError::other("not supported"))
    }

    async fn delete(&self, _: &NodeClaim) -> Result<(), CloudProviderError> {
        Err(CloudProviderError::other("not supported"))
    }

    async fn get(&self, _: &str) -> Result<NodeClaim, CloudProviderError> {
        Err(CloudProviderError::other("not supported"))
    }

    async fn list(&self) -> Result<Vec<Arc<NodeClaim>>, CloudProviderError> {
        Ok(Vec::new())
    }

    async fn instance_types(
        &self,
        _: &NodePool,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError> {
        Ok([].into())
    }

    async fn is_drifted(&self, _: &NodeClaim) -> Result<Option<String>, CloudProviderError> {
        Ok(None)
    }
}

impl World {
    pub async fn new() -> Self {
        Self::with(|aws| aws, |_| {}).await
    }

    pub async fn with(
        aws: impl FnOnce(Builder) -> Builder,
        settings: impl FnOnce(&mut AwsSettings),
    ) -> Self {
        let builder = AwsFake::builder()
            .cluster(CLUSTER)
            .kubernetes(&[VERSION])
            .unlimited();
        let fake = aws(builder).build();
        let server = fake.serve(0).await.unwrap();
        let testbed = Testbed::builder().start().await;
        let definitions = karpenter_api::crd::all(
            &[karpenter_aws::api::restricted_domain()],
            &[karpenter_aws::api::overlay_domain()],
        );
        let definitions = definitions.into_iter().map(|(_, definition)| definition);
        testbed
            .apply_crds(definitions.chain([karpenter_aws::api::crd()]))
            .await
            .unwrap();
        let registry = Registry::new();
        let connected = Aws::connect(&how(&server, registry.clone())).await.unwrap();
        let mut configured = AwsSettings::for_cluster(CLUSTER);
        configured.endpoint = Some("https://test.example".into());
        configured.ca_bundle = Some("Y2E=".into());
        // Nothing is cached between reconciliations.
        configured.subnet_refresh = Duration::ZERO;
        configured.ami_refresh = Duration::ZERO;
        settings(&mut configured);
        let (client, clock) = (testbed.client(), Clock::real());
        let operator = AwsOperator::new(connected, client.clone(), clock, &registry, configured)
            .await
            .unwrap();
        let provider = Arc::new(Elsewhere(ProviderProfile::new("elsewhere", [])));
        let (aws, watches) = operator.into_context();
        let watched = client.clone();
        let operator = Operator::builder(provider, client.clone(), Options::for_tests())
            .clock(clock)
            .registry(registry)
            .with(move |setup| {
                let recorder = setup.context().recorder.clone();
                setup.task(move |stop| watches.run(watched, recorder, stop));
            })
            .build();
        let cx = Arc::clone(operator.context());
        let stop = CancellationToken::new();
        tokio::spawn(operator.run(stop.clone()));
        let controller = NodeClasses::new(Arc::clone(&cx), aws.clone());
        let world = Self {
            fake,
            aws,
            cx,
            controller,
            client,
            _stop: stop.drop_guard(),
            _server: server,
            testbed,
        };
        world
            .until(async || world.cx.view().is_synced().then_some(()))
            .await;
        world
    }

    /// Waits until a check succeeds; in real time, as sockets are involved.
    pub async fn until<T>(&self, mut check: impl AsyncFnMut() -> Option<T>) -> T {
        let wait = async {
            loop {
                if let Some(found) = check().await {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait)
            .await
            .unwrap()
    }

    /// From now on the API server takes classes that break the rules of their definition, as under an older one.
    pub async fn admit_anything(&self) {
        let mut definition = karpenter_aws::api::crd();
        without_rules(&mut definition);
        self.testbed.apply_crds([definition]).await.unwrap();
    }

    pub fn calls(&self, action: &str) -> usize {
        self.fake.call_counts().get(action).copied().unwrap_or(0)
    }

    pub fn classes(&self) -> Api<EC2NodeClass> {
        Api::all(self.client.clone())
    }

    pub fn claims(&self) -> Api<NodeClaim> {
        Api::all(self.client.clone())
    }

    /// Creates a node class that selects by the tag of the cluster, changed by `spec`; `null` removes a field.
    pub async fn create(&self, name: &str, spec: Value) -> EC2NodeClass {
        let mut class = class(name, spec);
        (class.metadata.uid, class.metadata.generation) = (None, None);
        self.classes()
            .create(&PostParams::default(), &class)
            .await
            .unwrap()
    }

    pub async fn get(&self, name: &str) -> EC2NodeClass {
        self.classes().get(name).await.unwrap()
    }

    pub async fn edit(&self, name: &str, patch: Value) {
        self.classes()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

    pub async fn respecify(&self, name: &str, spec: Value) {
        self.edit(name, json!({ "spec": spec })).await;
    }

    /// Reconciles a class as it is now.
    pub async fn reconcile(&self, name: &str) -> Result<Next, ReconcileError> {
        self.until(async || {
            let now = self.classes().get_opt(name).await.unwrap();
            let known = self.aws.stores.class(name);
            let version = |class: Option<&EC2NodeClass>| {
                class.map(|c| c.metadata.resource_version.clone().unwrap_or_default())
            };
            (version(now.as_ref()) == version(known.as_deref())).then_some(())
        })
        .await;
        self.controller.reconcile(ObjectKey::cluster(name)).await
    }

    /// Reconciles a class successfully; returns the class.
    pub async fn seen(&self, name: &str) -> EC2NodeClass {
        self.reconcile(name).await.unwrap();
        self.get(name).await
    }

    /// Creates a node class and reconciles it successfully; returns the class.
    pub async fn made(&self, name: &str, spec: Value) -> EC2NodeClass {
        self.create(name, spec).await;
        self.seen(name).await
    }

    /// Creates a node class that is ready after one reconciliation; returns the class.
    pub async fn ready(&self, name: &str, spec: Value) -> EC2NodeClass {
        let class = self.made(name, spec).await;
        assert!(class.is_true(types::READY), "{:#?}", class.status);
        class
    }

    /// Changes the spec of a class and reconciles it successfully; returns the class.
    pub async fn changed(&self, name: &str, spec: Value) -> EC2NodeClass {
        self.respecify(name, spec).await;
        self.seen(name).await
    }

    pub async fn failed(&self, name: &str) -> (EC2NodeClass, ReconcileError) {
        let error = self.reconcile(name).await.unwrap_err();
        (self.get(name).await, error)
    }

    /// Reconciles a class that is reconciled again with back-off; returns the class.
    pub async fn refused(&self, name: &str) -> EC2NodeClass {
        let (class, error) = self.failed(name).await;
        assert!(matches!(error, ReconcileError::Refused(_)), "{error}");
        class
    }

    pub async fn delete(&self, name: &str) {
        self.classes()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    pub async fn pool(&self, name: &str, class: &str, requirements: Value) {
        let pool: NodePool = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": name },
            "spec": { "template": { "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": class },
                "requirements": requirements,
            } } },
        }))
        .unwrap();
        let pools: Api<NodePool> = Api::all(self.client.clone());
        pools.create(&PostParams::default(), &pool).await.unwrap();
        self.until(async || self.aws.stores.pool(name).map(|_| ()))
            .await;
    }

    /// Creates a NodeClaim of a class, and waits until the model has it. It is not launched.
    pub async fn claim(&self, name: &str, class: &str, annotations: Value) -> NodeClaim {
        let claim: NodeClaim = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": { "name": name, "annotations": annotations },
            "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": class },
                "requirements": [],
            },
        }))
        .unwrap();
        let claim = self.claims().create(&PostParams::default(), &claim).await;
        self.until(async || self.cx.view().node_claim(name).map(|_| ()))
            .await;
        claim.unwrap()
    }

    /// Deletes a NodeClaim without its finalizer, and waits until the model has it no more.
    pub async fn unclaim(&self, name: &str) {
        let free = json!({ "metadata": { "finalizers": null } });
        let _ = self
            .claims()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
        let _ = self
            .claims()
            .patch(name, &PatchParams::default(), &Patch::Merge(free))
            .await;
        self.until(async || self.cx.view().node_claim(name).is_none().then_some(()))
            .await;
    }

    /// Returns reasons and messages of the events about a class.
    pub async fn events(&self, class: &str) -> Vec<(String, String)> {
        let events: Api<Event> = Api::all(self.client.clone());
        let all = events.list(&ListParams::default()).await.unwrap().items;
        all.into_iter()
            .filter(|e| e.involved_object.name.as_deref() == Some(class))
            .map(|e| (e.reason.unwrap_or_default(), e.message.unwrap_or_default()))
            .collect()
    }

    pub fn image(&self, arch: &str) -> String {
        let name = format!("{IMAGES}/{arch}/standard/recommended/image_id");
        self.fake.parameter(&name).unwrap()
    }
}
