//! The cluster of a scenario and its operations.

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::conditions::{Condition, HasConditions};
use karpenter_aws::api::EC2NodeClass;
use karpenter_kube::clock::Clock;
use karpenter_kube::operator::Operator;
use karpenter_kube::options::Options;
use karpenter_legacy::alpha::ProjectionSettings;
use karpenter_legacy::v1alpha1::AWSNodeTemplate;
use karpenter_legacy::v1alpha5::Provisioner;
use karpenter_legacy::{controller, crd};
use karpenter_testbed::loops::Loops;
use karpenter_testbed::{Testbed, loops};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::cloud::Cloud;

/// A testbed cluster with Karpenter and the controllers of older generations, in virtual time.
pub struct World {
    pub client: Client,
    clock: Clock,
    _loops: Loops,
    _testbed: Testbed,
    _stop: tokio_util::sync::DropGuard,
}

/// A kind of cluster-scoped objects.
pub trait Kind: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug {}

impl<K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug> Kind for K {}

impl World {
    /// Creates a cluster with Karpenter and the definitions of all generations.
    pub async fn new() -> Self {
        let legacy = [crd::provisioner(), crd::aws_node_template()];
        Self::with(legacy.to_vec()).await
    }

    /// Creates a cluster with Karpenter, the definitions of v1 and these definitions.
    pub async fn with(definitions: Vec<Value>) -> Self {
        let epoch = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::new(epoch, 1.0);
        let testbed_clock = karpenter_testbed::Clock::new(epoch, 1.0);
        let testbed = Testbed::builder()
            .clock(testbed_clock)
            .garbage_collection()
            .start()
            .await;
        let own = karpenter_api::crd::all(&[], &[])
            .into_iter()
            .map(|(_, definition)| definition);
        let all = own.chain([karpenter_aws::api::crd()]).chain(definitions);
        testbed.apply_crds(all).await.unwrap();
        let loops = Loops::start(testbed.client(), testbed_clock, loops::Options::default());
        let settings = ProjectionSettings {
            default_instance_profile: Some("default-profile".to_owned()),
            ..ProjectionSettings::default()
        };
        let provider = Arc::new(Cloud::new(testbed.client()));
        let operator = Operator::builder(provider, testbed.client(), Options::for_tests())
            .clock(clock)
            .with(move |controllers| controller::add(controllers, settings));
        let stop = CancellationToken::new();
        tokio::spawn(operator.run(stop.clone()));
        Self {
            client: testbed.admin_client(),
            clock,
            _loops: loops,
            _testbed: testbed,
            _stop: stop.drop_guard(),
        }
    }

    pub fn api<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Creates an object of a kind as a user would.
    pub async fn create<K: Resource<DynamicType = ()>>(&self, name: &str, spec: Value) {
        self.try_create::<K>(name, spec).await.unwrap();
    }

    /// Creates a Provisioner that refers to the template `default`, changed by `more`; `null` removes a field.
    pub async fn provisioner(&self, name: &str, more: Value) {
        let spec = json!({ "providerRef": { "name": "default" } });
        self.create::<Provisioner>(name, merged(spec, more)).await;
    }

    /// Creates an AWSNodeTemplate of two subnets, changed by `more`; `null` removes a field.
    pub async fn template(&self, name: &str, more: Value) {
        let spec = json!({ "subnetSelector": { "env": "a,b" }, "securityGroupSelector": { "aws-ids": "sg-1" } });
        self.create::<AWSNodeTemplate>(name, merged(spec, more))
            .await;
    }

    pub async fn try_create<K: Resource<DynamicType = ()>>(
        &self,
        name: &str,
        spec: Value,
    ) -> kube::Result<DynamicObject> {
        let resource = ApiResource::erase::<K>(&());
        let mut object = DynamicObject::new(name, &resource);
        object.data = json!({ "spec": spec });
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        api.create(&PostParams::default(), &object).await
    }

    pub async fn edit<K: Kind>(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let api = self.api::<K>();
        api.patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    pub async fn delete<K: Kind>(&self, name: &str) {
        let api = self.api::<K>();
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub async fn get<K: Kind>(&self, name: &str) -> Option<K> {
        self.api::<K>().get_opt(name).await.unwrap()
    }

    pub async fn names<K: Kind>(&self) -> Vec<String> {
        let list = self.api::<K>().list(&ListParams::default()).await.unwrap();
        list.items
            .iter()
            .filter_map(|object| object.meta().name.clone())
            .collect()
    }

    /// Sets an EC2NodeClass ready, as the AWS controllers would.
    pub async fn make_ready(&self, name: &str) {
        self.until("the class exists", async |world| {
            world.get::<EC2NodeClass>(name).await.is_some()
        })
        .await;
        let now = "2026-01-01T00:00:00Z";
        let patch = json!({ "status": {
            "subnets": [{ "id": "subnet-1", "zone": "us-west-2a" }],
            "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": now }],
        } });
        let api = self.api::<EC2NodeClass>();
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

    /// Advances time until a condition holds, for five minutes at most.
    pub async fn until(&self, what: &str, holds: impl AsyncFn(&Self) -> bool) {
        let start = self.clock.now();
        while !holds(self).await {
            assert!(
                self.clock.since(start).as_secs() < 300,
                "timed out waiting until {what}\n{:#?}\n{:#?}",
                self.status::<Provisioner>().await,
                self.status::<AWSNodeTemplate>().await
            );
            self.clock.sleep(Duration::from_secs(1)).await;
        }
    }

    /// Advances time by a duration.
    pub async fn advance(&self) {
        self.clock.sleep(Duration::from_secs(30)).await;
    }

    async fn status<K: Resource<DynamicType = ()>>(&self) -> Vec<Value> {
        let resource = ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let list = api.list(&ListParams::default()).await;
        let items = list.map(|list| list.items).unwrap_or_default();
        items
            .into_iter()
            .map(|o| o.data["status"].clone())
            .collect()
    }

    /// Waits for a condition of an object to be true.
    pub async fn is_true<K: Kind + HasConditions>(&self, name: &str, of: &str) {
        self.condition::<K>(name, of, "True").await;
    }

    /// Waits for a condition of an object to have this status, and returns it.
    pub async fn condition<K: Kind + HasConditions>(
        &self,
        name: &str,
        of: &str,
        status: &str,
    ) -> Condition {
        let what = format!("{name} is {of}={status}");
        self.until(&what, async |world| {
            let object = world.get::<K>(name).await.unwrap();
            object.condition(of).is_some_and(|c| c.status == status)
        })
        .await;
        let object = self.get::<K>(name).await.unwrap();
        object.condition(of).unwrap().clone()
    }
}

fn merged(mut spec: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        match value {
            Value::Null => spec.as_object_mut().unwrap().remove(key),
            value => spec
                .as_object_mut()
                .unwrap()
                .insert(key.clone(), value.clone()),
        };
    }
    spec
}
