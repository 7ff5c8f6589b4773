//! Karpenter for an imaginary cloud.
//!
//! A provider has three parts: a NodeClass that users write (`LagoonClass`), a controller that maintains the readiness of
//! the class, and the [`CloudProvider`] itself. Everything else (scheduling, lifecycle, disruption, metrics, events) comes
//! with `karpenter-kube`. `main.rs` is the program, and says how to try it; `tests/cluster.rs` runs a cluster on it in virtual
//! time.

pub mod kubelets;
pub mod lagoon;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use karpenter_api::conditions::{ConditionTypes, HasConditions, types};
use karpenter_api::labels;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::validation::WellKnown;
use karpenter_core::instance_type::{InstanceType, Overhead};
use karpenter_core::offering::Offering;
use karpenter_core::provider::{CloudProvider, CloudProviderError, NodeClassKind, ProviderProfile};
use karpenter_core::requirements::{Requirement, Requirements};
use karpenter_core::resources::Resources;
use karpenter_kube::client::Clients;
use karpenter_kube::client::patch::{Lock, patch_status};
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Controller, Doing, Next, ObjectKey, Queue, ReconcileError};
use karpenter_kube::model::{Change, View};
use karpenter_kube::operator::{Builder, Operator};
use karpenter_kube::options::Options;
use kube::{Api, Client, CustomResource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use lagoon::{ISLANDS, Instance, Lagoon, SIZES};

/// The API group of the class, and the domain of the provider's labels.
pub const GROUP: &str = "lagoon.example.com";
/// Prefix of provider ids.
pub const PROVIDER_PREFIX: &str = "lagoon://";

// ANCHOR: class
/// Configuration of instances, written by users.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    derive = "PartialEq",
    group = "lagoon.example.com",
    version = "v1",
    kind = "LagoonClass",
    plural = "lagoonclasses",
    status = "LagoonClassStatus",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#
)]
pub struct LagoonClassSpec {
    /// The image that instances boot.
    pub image: String,
}

/// Observed state of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LagoonClassStatus {
    /// Conditions of the class.
    #[serde(default)]
    #[schemars(schema_with = "karpenter_api::crd::fields::conditions")]
    pub conditions: Vec<Condition>,
}

impl HasConditions for LagoonClass {
    const TYPES: ConditionTypes = ConditionTypes {
        root: types::READY,
        dependents: &[],
    };

    fn conditions(&self) -> &[Condition] {
        self.status
            .as_ref()
            .map_or(&[], |status| &status.conditions)
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.get_or_insert_default().conditions
    }
}
// ANCHOR_END: class

/// Maintains the condition Ready of classes: NodePools are used only while their class is ready.
#[derive(Debug)]
struct Readiness {
    cx: Arc<Context>,
}

// ANCHOR: readiness
impl Controller for Readiness {
    type Key = ObjectKey;
    const NAME: &'static str = "lagoonclass.status";
    const KIND: &'static str = "LagoonClass";

    fn triggered_by(&self, change: &Change, _: &View, queue: &Queue<ObjectKey>) {
        if let Change::NodeClass {
            reference,
            after: Some(_),
        } = change
            && reference.group == GROUP
        {
            queue.add(ObjectKey::cluster(&reference.name));
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let api: Api<LagoonClass> = Api::all(self.cx.clients.api.clone());
        let Some(before) = api.get_opt(&key.name).await.doing("getting class")? else {
            return Ok(Next::Wait);
        };
        let (mut after, now) = (before.clone(), self.cx.clock.now());
        if before.spec.image.is_empty() {
            after.set_false(
                types::READY,
                "NoImage",
                "spec.image is empty: name the image to boot",
                now,
            );
        } else {
            after.set_true(types::READY, now);
        }
        patch_status(&api, &before, &after, Lock::Optimistic)
            .await
            .doing("updating class")?;
        Ok(Next::Wait)
    }
}
// ANCHOR_END: readiness

/// Launches instances for NodeClaims.
pub struct LagoonProvider {
    client: Client,
    cloud: Lagoon,
    cluster: String,
    profile: ProviderProfile,
}

impl LagoonProvider {
    // ANCHOR: profile
    /// Creates a provider for one cluster.
    #[must_use]
    pub fn new(client: Client, cloud: Lagoon, cluster: &str) -> Self {
        let profile = ProviderProfile::new("lagoon", [NodeClassKind::of::<LagoonClass>()])
            .with_well_known(WellKnown::default().with_restricted_domain(GROUP));
        let cluster = cluster.to_owned();
        Self {
            client,
            cloud,
            cluster,
            profile,
        }
    }
    // ANCHOR_END: profile

    async fn class(&self, claim: &NodeClaim) -> Result<LagoonClass, CloudProviderError> {
        let name = &claim.spec.node_class_ref.name;
        let class = Api::<LagoonClass>::all(self.client.clone())
            .get_opt(name)
            .await;
        let class = class.map_err(|error| CloudProviderError::Other(error.into()))?;
        let missing =
            || CloudProviderError::InsufficientCapacity(format!("lagoonclass `{name}` not found"));
        let class = class.ok_or_else(missing)?;
        if class.is_true(types::READY) {
            Ok(class)
        } else {
            Err(CloudProviderError::NodeClassNotReady(format!(
                "lagoonclass `{name}`"
            )))
        }
    }

    /// Returns all sizes; offerings without capacity are unavailable.
    fn catalogue(&self) -> Vec<InstanceType> {
        SIZES
            .map(|(size, cores, memory, price)| self.instance_type(size, cores, memory, price))
            .into()
    }

    fn instance_type(&self, size: &str, cores: i64, memory: i64, price: f64) -> InstanceType {
        let equal = Requirement::equal;
        let labels = [
            equal(labels::INSTANCE_TYPE, size),
            equal(labels::ARCH, "amd64"),
            equal(labels::OS, "linux"),
        ];
        // CPUs are counted in thousandths, other resources in whole units; so are the resources reserved for the kubelet.
        let capacity = Resources::new()
            .with("cpu", cores * 1000)
            .with("memory", memory << 30)
            .with("pods", 110);
        let mut instance_type = InstanceType::new(size, labels.into_iter().collect(), capacity);
        let kube_reserved = Resources::new().with("cpu", 100).with("memory", 512 << 20);
        instance_type.overhead = Overhead {
            kube_reserved,
            ..Overhead::default()
        };
        for island in ISLANDS {
            let place = [
                equal(labels::ZONE, island),
                equal(labels::CAPACITY_TYPE, labels::CAPACITY_TYPE_ON_DEMAND),
            ];
            let mut offering = Offering::new(place.into_iter().collect(), price);
            offering.available = self.cloud.has_capacity(size, island);
            instance_type.offerings.push(offering);
        }
        instance_type
    }

    /// Describes an instance as a NodeClaim.
    fn claim_of(&self, instance: &Instance, name: &str) -> NodeClaim {
        let mut claim = NodeClaim::new(name, Default::default());
        claim.status.provider_id = Some(format!("{PROVIDER_PREFIX}{}", instance.id));
        claim.status.image_id = Some(instance.image.clone());
        let of_offering = [
            (labels::ZONE, instance.island.as_str()),
            (labels::CAPACITY_TYPE, labels::CAPACITY_TYPE_ON_DEMAND),
        ];
        let mut all: BTreeMap<String, String> = of_offering
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        if let Some(size) = self
            .catalogue()
            .into_iter()
            .find(|size| size.name == instance.size)
        {
            all.extend(size.requirements.labels(|_| true));
            claim.status.capacity = size.capacity.to_quantities();
            claim.status.allocatable = size.allocatable().to_quantities();
        }
        claim.metadata.labels = Some(all);
        claim
    }

    fn instance(&self, provider_id: &str) -> Result<Instance, CloudProviderError> {
        let instance = provider_id
            .strip_prefix(PROVIDER_PREFIX)
            .and_then(|id| self.cloud.instance(id));
        instance.ok_or_else(|| CloudProviderError::NodeClaimNotFound(provider_id.to_owned()))
    }
}

#[async_trait]
impl CloudProvider for LagoonProvider {
    fn profile(&self) -> &ProviderProfile {
        &self.profile
    }

    // ANCHOR: create
    async fn create(&self, claim: &NodeClaim) -> Result<NodeClaim, CloudProviderError> {
        let class = self.class(claim).await?;
        let wanted = Requirements::from_api(&claim.spec.requirements, &self.profile.well_known);
        let wanted = wanted.map_err(|error| CloudProviderError::other(error.to_string()))?;
        let sizes = self.catalogue();
        let mut options: Vec<(&InstanceType, &Offering)> = sizes
            .iter()
            .filter(|size| wanted.intersects(&size.requirements).is_ok())
            .flat_map(|size| size.offerings.iter().map(move |offering| (size, offering)))
            .filter(|(_, offering)| {
                offering.available && wanted.intersects(&offering.requirements).is_ok()
            })
            .collect();
        options.sort_by(|a, b| a.1.price.total_cmp(&b.1.price));
        // The id is the NodeClaim's uid: after a crash between launch and recording, the next attempt finds the instance again.
        let launched = options.into_iter().find_map(|(size, offering)| {
            self.cloud.launch(Instance {
                id: claim.uid().to_owned(),
                size: size.name.clone(),
                island: offering.zone()?.to_owned(),
                image: class.spec.image.clone(),
                cluster: self.cluster.clone(),
            })
        });
        let exhausted = || {
            CloudProviderError::InsufficientCapacity(
                "every compatible size is out of capacity".to_owned(),
            )
        };
        Ok(self.claim_of(&launched.ok_or_else(exhausted)?, claim.name()))
    }
    // ANCHOR_END: create

    async fn delete(&self, claim: &NodeClaim) -> Result<(), CloudProviderError> {
        // The launch of a NodeClaim without a provider id may not have been recorded: its instance has the id that `create` gave it.
        let unrecorded = || format!("{PROVIDER_PREFIX}{}", claim.uid());
        let provider_id = claim.status.provider_id.clone();
        let instance = self.instance(&provider_id.unwrap_or_else(unrecorded))?;
        // The termination is accepted. `get` reports when it is complete.
        let _ = self.cloud.terminate(&instance.id);
        Ok(())
    }

    async fn get(&self, provider_id: &str) -> Result<NodeClaim, CloudProviderError> {
        let instance = self.instance(provider_id)?;
        Ok(self.claim_of(&instance, &instance.id))
    }

    async fn list(&self) -> Result<Vec<Arc<NodeClaim>>, CloudProviderError> {
        let instances = self.cloud.instances(&self.cluster);
        Ok(instances
            .iter()
            .map(|instance| Arc::new(self.claim_of(instance, &instance.id)))
            .collect())
    }

    async fn instance_types(
        &self,
        _: &NodePool,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError> {
        Ok(self.catalogue().into())
    }

    async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<String>, CloudProviderError> {
        let class = self.class(claim).await?;
        let other = claim
            .status
            .image_id
            .as_ref()
            .is_some_and(|image| *image != class.spec.image);
        Ok(other.then(|| "ImageDrift".to_owned()))
    }
}

// ANCHOR: operator
/// Returns the operator: `operator(..).run(stop).await` is what `main` does after it has read the options and connected.
#[must_use]
pub fn operator(
    clients: impl Into<Clients>,
    cloud: Lagoon,
    cluster: &str,
    options: Options,
) -> Builder {
    let clients = clients.into();
    let provider = LagoonProvider::new(clients.api.clone(), cloud, cluster);
    Operator::builder(Arc::new(provider), clients, options).with(|controllers| {
        let cx = Arc::clone(controllers.context());
        controllers.controller(Readiness { cx });
    })
}
// ANCHOR_END: operator
