//! The cloud provider: EC2 instances for NodeClaims.
//!
//! | module | content |
//! |---|---|
//! | [`claims`] | conversion of instances into NodeClaims |
//! | [`drift`] | drift of instances |
//! | [`registration_hook`] | partitions of placement groups, on registration |
//! | [`stores`] | node classes and NodePools as the API server has them |
//!
//! UPSTREAM: pkg/cloudprovider/cloudprovider.go

pub mod claims;
pub mod drift;
pub mod registration_hook;
pub mod stores;

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use karpenter_api::conditions::{HasConditions, Status, types};
use karpenter_api::labels as core_labels;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::provider::{
    CloudProvider, CloudProviderError, NodeClassKind, Overlays, ProviderProfile, RegistrationHook,
    RepairPolicy, SubnetAddresses,
};
use karpenter_core::requirements::Requirements;
use karpenter_core::resources::Resources;
use karpenter_kube::clock::Clock;
use karpenter_kube::events::{Event, Recorder, reference};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;

use crate::api::labels::{GROUP, tags};
use crate::api::{EC2NodeClass, events, labels};
use crate::kubelet;
use crate::providers::instance::filter::{Request, capacity_type, filter};
use crate::providers::instance::launcher::{LaunchRequest, Launcher};
use crate::providers::instance::{Freshness, Instance, InstanceError, Instances, instance_id};
use crate::providers::instance_type::offered::Offered;
use crate::providers::launch_template::Reserved;
use crate::providers::launch_template::template::launch_annotations;
use crate::providers::placement_group::{PlacementGroup, PlacementGroups};
use crate::providers::pricing::overlay_prices;
use stores::Stores;

/// How long EC2 may leave a new instance out of its lists.
const LIST_LAG: SignedDuration = SignedDuration::from_mins(5);

/// The node class and the instance types of an instance, as far as they are known.
type ClassAndTypes = (Option<Arc<EC2NodeClass>>, Option<Arc<[InstanceType]>>);

/// Launches and terminates EC2 instances for NodeClaims.
pub struct Ec2Provider {
    stores: Stores,
    launcher: Launcher,
    instances: Arc<Instances>,
    placement_groups: PlacementGroups,
    offered: Arc<Offered>,
    clock: Clock,
    profile: ProviderProfile,
    strict_min_values: bool,
    overlays: OnceLock<Arc<dyn Overlays>>,
    /// Names of the NodeClaims that this process launched instances for, by instance ID: `list` may return an instance
    /// before its NodeClaim has the provider ID.
    launched_for: Mutex<HashMap<String, (String, Timestamp)>>,
    /// Limits the number of launches that select instance types concurrently.
    selections: Semaphore,
}

impl std::fmt::Debug for Ec2Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ec2Provider").finish_non_exhaustive()
    }
}

/// Converts an error of an instance operation.
pub(crate) fn instance_error(error: InstanceError) -> CloudProviderError {
    match error {
        InstanceError::NotFound(id) => {
            CloudProviderError::NodeClaimNotFound(format!("instance `{id}` not found"))
        }
        error => CloudProviderError::other(error),
    }
}

/// Returns the class with the kubelet settings of a NodePool's or NodeClaim's v1beta1 annotation, if it has one.
fn with_kubelet_settings<'a>(
    class: &'a EC2NodeClass,
    kubelet: Option<&str>,
) -> Result<Cow<'a, EC2NodeClass>, CloudProviderError> {
    kubelet::with_v1beta1(class, kubelet).map_err(|error| CloudProviderError::Create {
        reason: "InvalidKubelet".into(),
        message: format!(
            "annotation {} is not a JSON object, {error}",
            core_labels::annotations::KUBELET_COMPATIBILITY
        ),
        source: None,
    })
}

fn profile() -> ProviderProfile {
    let class = NodeClassKind {
        group: GROUP.into(),
        version: "v1".into(),
        kind: "EC2NodeClass".into(),
        plural: "ec2nodeclasses".into(),
    };
    let unhealthy = [
        ("Ready", "False", 30),
        ("Ready", "Unknown", 30),
        ("AcceleratedHardwareReady", "False", 10),
        ("StorageReady", "False", 30),
        ("NetworkingReady", "False", 30),
        ("KernelReady", "False", 30),
        ("ContainerRuntimeReady", "False", 30),
    ];
    let unhealthy = unhealthy.map(|(condition, status, minutes)| RepairPolicy {
        condition_type: condition.into(),
        condition_status: status.into(),
        toleration: SignedDuration::from_mins(minutes),
    });
    ProviderProfile::new("aws", [class])
        .with_well_known(crate::api::well_known())
        .with_reservation_id_label(labels::CAPACITY_RESERVATION_ID)
        .with_repair_policies(unhealthy)
}

impl Ec2Provider {
    /// Creates the provider. `strict_min_values` is whether the policy for minValues is Strict.
    #[must_use]
    pub fn new(
        stores: Stores,
        launcher: Launcher,
        placement_groups: PlacementGroups,
        offered: Arc<Offered>,
        clock: Clock,
        strict_min_values: bool,
    ) -> Self {
        Self {
            instances: Arc::clone(&launcher.instances),
            stores,
            launcher,
            placement_groups,
            offered,
            clock,
            profile: profile(),
            strict_min_values,
            overlays: OnceLock::new(),
            launched_for: Mutex::default(),
            selections: Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from)),
        }
    }

    /// Sets the recorder of events.
    pub fn set_recorder(&self, recorder: Recorder) {
        // Only the first call has an effect, at the start.
        let _ = self.launcher.recorder.set(recorder);
    }

    #[must_use]
    pub fn instances(&self) -> &Arc<Instances> {
        &self.instances
    }

    /// Returns the provider of instance types and offerings.
    #[must_use]
    pub fn offered(&self) -> &Arc<Offered> {
        &self.offered
    }

    #[must_use]
    pub fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    fn launched_for(&self) -> MutexGuard<'_, HashMap<String, (String, Timestamp)>> {
        self.launched_for.lock()
    }

    /// Publishes an event about an object whose node class does not exist.
    fn publish_missing_class(&self, about: ObjectReference) {
        self.launcher.publish(Event::warning(
            about,
            events::FAILED_RESOLVING_NODE_CLASS,
            "Failed resolving NodeClass",
        ));
    }

    /// Returns the ready node class of a NodeClaim that is to be launched.
    fn class_for_launch(&self, claim: &NodeClaim) -> Result<Arc<EC2NodeClass>, CloudProviderError> {
        let name = &claim.spec.node_class_ref.name;
        let class = self
            .stores
            .class_of_claim(claim)
            .filter(|class| !class.is_deleting());
        let Some(class) = class else {
            self.publish_missing_class(reference(claim));
            // A NodeClaim without its class can never be launched; as insufficient capacity it is deleted, so that
            // another NodePool can be tried.
            return Err(CloudProviderError::InsufficientCapacity(format!(
                "resolving node class, ec2nodeclass `{name}` not found"
            )));
        };
        let ready = class.condition(types::READY);
        let text = ready.map(|c| c.message.clone()).unwrap_or_default();
        match class.condition_status(types::READY) {
            Status::False => return Err(CloudProviderError::NodeClassNotReady(text)),
            Status::Unknown => {
                return Err(CloudProviderError::Create {
                    reason: "NodeClassReadinessUnknown".into(),
                    message: format!(
                        "resolving NodeClass readiness, NodeClass is in Ready=Unknown, {text}"
                    ),
                    source: None,
                });
            }
            Status::True => {}
        }
        let observed = ready.and_then(|c| c.observed_generation);
        if observed != class.metadata.generation {
            return Err(CloudProviderError::NodeClassNotReady(
                "NodeClass readiness has not been reconciled against the latest spec".into(),
            ));
        }
        let restricted = class
            .spec
            .tags
            .iter()
            .flatten()
            .find_map(|(key, _)| tags::restriction(key));
        if let Some(why) = restricted {
            return Err(CloudProviderError::NodeClassNotReady(format!(
                "validating tags, {why}"
            )));
        }
        Ok(class)
    }

    /// Returns the placement group of a node class. After a failed call, the last result is used; without one no
    /// instance is launched, because it would be outside of its group.
    async fn placement_group(
        &self,
        class: &EC2NodeClass,
    ) -> Result<Option<PlacementGroup>, CloudProviderError> {
        let Some(selector) = &class.spec.placement_group_selector else {
            return Ok(None);
        };
        match self.placement_groups.get(selector).await {
            Ok(group) => Ok(group),
            Err(unanswered) if unanswered.last.is_some() => Ok(unanswered.last),
            Err(unanswered) => Err(CloudProviderError::other(unanswered)),
        }
    }

    /// Returns the instance types of a node class.
    ///
    /// # Errors
    /// If the instance types are not known yet, or the class is invalid.
    pub async fn types_of(
        &self,
        class: &EC2NodeClass,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError> {
        let group = self.placement_group(class).await?;
        self.update_overlay_prices();
        self.offered.types(class, group, self.clock.now())
    }

    /// Updates the prices that NodeOverlays set for types without one, which become available by it. Without the
    /// feature gate NodeOverlay there are no overlays.
    fn update_overlay_prices(&self) {
        if let Some(overlays) = self.overlays.get() {
            let prices = overlay_prices(&overlays.accepted());
            self.offered
                .with_pricing(|pricing| pricing.update_overlays(prices));
        }
    }

    /// Returns the node class and the instance types of an instance's NodePool, which is found by the instance's tags.
    async fn class_and_types(&self, instance: &Instance) -> ClassAndTypes {
        let pool = instance.tags.get(tags::NODE_POOL);
        let pool = pool.and_then(|name| self.stores.pool(name));
        let of_pool = pool
            .as_ref()
            .and_then(|pool| self.stores.class_of_pool(pool));
        let of_tag = || {
            let name = instance.tags.get(labels::NODE_CLASS)?;
            self.stores.class(name)
        };
        let class = of_pool.or_else(of_tag);
        let kubelet = pool.as_ref().and_then(|pool| pool.kubelet_compatibility());
        let seen = class
            .as_deref()
            .map(|class| with_kubelet_settings(class, kubelet));
        let types = match &seen {
            Some(Ok(class)) => self.types_of(class).await.ok(),
            _ => None,
        };
        (class, types)
    }

    fn claim_of(&self, instance: &Instance, (class, types): &ClassAndTypes) -> NodeClaim {
        let instance_type = types.as_deref().and_then(|types| {
            let found = types.binary_search_by(|t| t.name.cmp(&instance.type_));
            found.ok().map(|index| &types[index])
        });
        let known = self.launched_for().get(&instance.id).cloned();
        let name = known.map_or_else(|| instance.id.clone(), |(name, _)| name);
        let mut claim = claims::claim(&name, instance, instance_type, class.as_deref());
        if let Some(class) = class {
            claim.spec.node_class_ref = karpenter_api::v1::NodeClassReference {
                group: GROUP.into(),
                kind: "EC2NodeClass".into(),
                name: class.metadata.name.clone().unwrap_or_default(),
            };
        }
        claim
    }

    /// Returns the instance types a NodeClaim may be launched as, with their available offerings, and the capacity
    /// type.
    fn candidates(
        &self,
        claim: &NodeClaim,
        requirements: &Requirements,
        all: &[InstanceType],
    ) -> Result<(Vec<InstanceType>, &'static str), CloudProviderError> {
        let asked = Resources::requests_from(&claim.spec.resources.requests).map_err(|error| {
            CloudProviderError::Create {
                reason: "InvalidResources".into(),
                message: error.to_string(),
                source: None,
            }
        })?;
        let request = Request {
            requirements,
            resources: &asked,
            strict_min_values: self.strict_min_values,
        };
        let left = filter(all, request).map_err(|nothing| {
            CloudProviderError::InsufficientCapacity(format!(
                "all requested instance types were unavailable during launch, {nothing}"
            ))
        })?;
        let how = capacity_type(&left, requirements);
        Ok((left, how.as_str()))
    }

    /// Returns the class to determine drift against; `None` if the NodePool or class does not exist.
    fn compared_with(&self, claim: &NodeClaim) -> Option<Arc<EC2NodeClass>> {
        let pool = self.stores.pool(claim.node_pool()?)?;
        let class = self.stores.class_of_pool(&pool)?;
        (!class.is_deleting()).then_some(class)
    }
}

#[async_trait]
impl CloudProvider for Ec2Provider {
    fn profile(&self) -> &ProviderProfile {
        &self.profile
    }

    fn use_overlays(&self, overlays: Arc<dyn Overlays>) {
        // Only the first call has an effect, at the start.
        let _ = self.overlays.set(overlays);
    }

    fn subnet_addresses(&self) -> Option<Vec<SubnetAddresses>> {
        let subnets = &self.launcher.subnets;
        let of_class = |class: Arc<EC2NodeClass>| {
            let node_class = class.metadata.name.clone().unwrap_or_default();
            let known = class.status.subnets.iter().filter_map(move |subnet| {
                Some(SubnetAddresses {
                    node_class: node_class.clone(),
                    zone: subnet.zone.clone(),
                    subnet: subnet.id.clone(),
                    free: subnets.free(&subnet.id)?,
                })
            });
            known.collect::<Vec<_>>()
        };
        Some(
            self.stores
                .classes()
                .into_iter()
                .flat_map(of_class)
                .collect(),
        )
    }

    async fn create(&self, claim: &NodeClaim) -> Result<NodeClaim, CloudProviderError> {
        let class = self.class_for_launch(claim)?;
        let now = self.clock.now();
        let requirements =
            Requirements::from_api(&claim.spec.requirements, &self.profile.well_known).map_err(
                |error| CloudProviderError::Create {
                    reason: "InvalidRequirements".into(),
                    message: error.to_string(),
                    source: None,
                },
            )?;
        let group = self.placement_group(&class).await?;
        let seen = with_kubelet_settings(&class, claim.kubelet_compatibility())?;
        let announced = self.launcher.fleets.announce();
        // Selection of instance types is limited: a thousand NodeClaims at once would delay the handling of responses.
        let selection = self.selections.acquire().await;
        self.update_overlay_prices();
        let resolved = self.offered.resolve(&seen, group.clone(), now)?;
        let mut all = Arc::clone(&resolved.types);
        if let (Some(overlays), Some(pool)) = (self.overlays.get(), claim.node_pool()) {
            all = overlays.apply(pool, all)?;
        }
        let (candidates, capacity_type) = self.candidates(claim, &requirements, &all)?;
        drop(selection);
        let request = LaunchRequest {
            claim,
            class: &seen,
            requirements: &requirements,
            types: &candidates,
            capacity_type,
            placement_group: group.as_ref(),
        };
        drop(announced);
        let instance = self
            .launcher
            .launch(request, now, |t| Reserved::of(&resolved, &t.name))
            .await?;
        let name = claim.name().to_owned();
        self.launched_for().insert(instance.id.clone(), (name, now));
        let instance_type = all.iter().find(|t| t.name == instance.type_);
        let mut answer = claims::claim(claim.name(), &instance, instance_type, Some(&class));
        answer.spec = claim.spec.clone();
        answer.metadata.uid.clone_from(&claim.metadata.uid);
        answer.metadata.annotations = Some(launch_annotations(&class));
        if let Some(group) = group.filter(|g| g.partitions > 0) {
            let all = answer.metadata.labels.get_or_insert_default();
            all.insert(labels::PLACEMENT_GROUP_ID.into(), group.id);
            // The partition is known later; the registration hook waits for it.
            all.entry(labels::PLACEMENT_GROUP_PARTITION.into())
                .or_default();
        }
        Ok(answer)
    }

    async fn delete(&self, claim: &NodeClaim) -> Result<(), CloudProviderError> {
        // EC2 answers a launch with the ids. An instance of a lost answer is listed by its tags, and is garbage collected.
        let Some(provider_id) = claim.status.provider_id.as_deref() else {
            let without = format!("`{}` has no provider id", claim.name());
            return Err(CloudProviderError::NodeClaimNotFound(without));
        };
        let id = instance_id(provider_id).ok_or_else(|| {
            CloudProviderError::other(format!("getting instance id, `{provider_id}` has none"))
        })?;
        let deleted = self.instances.delete(id).await;
        if let Err(error) = &deleted
            && error.is_not_found()
            && claim.label(core_labels::CAPACITY_TYPE) == Some(core_labels::CAPACITY_TYPE_RESERVED)
            && let Some(reservation) = claim.label(labels::CAPACITY_RESERVATION_ID)
        {
            self.launcher.counts.terminated(reservation);
        }
        deleted.map_err(instance_error)
    }

    async fn get(&self, provider_id: &str) -> Result<NodeClaim, CloudProviderError> {
        let id = instance_id(provider_id).ok_or_else(|| {
            CloudProviderError::other(format!("getting instance id, `{provider_id}` has none"))
        })?;
        let instance = self
            .instances
            .get(id, Freshness::Fresh)
            .await
            .map_err(instance_error)?;
        let about = self.class_and_types(&instance).await;
        Ok(self.claim_of(&instance, &about))
    }

    async fn list(&self) -> Result<Vec<Arc<NodeClaim>>, CloudProviderError> {
        let instances = self
            .instances
            .list()
            .await
            .map_err(CloudProviderError::other)?;
        let listed: HashSet<&str> = instances.iter().map(|i| i.id.as_str()).collect();
        let now = self.clock.now();
        self.launched_for().retain(|id, (_, at)| {
            listed.contains(id.as_str()) || now.duration_since(*at) < LIST_LAG
        });
        let mut claims = Vec::with_capacity(instances.len());
        // Ten thousand instances belong to a few NodePools.
        let mut known: HashMap<[Option<&String>; 2], ClassAndTypes> = HashMap::new();
        for instance in &instances {
            let of = [tags::NODE_POOL, labels::NODE_CLASS].map(|key| instance.tags.get(key));
            let about = match known.entry(of) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(self.class_and_types(instance).await),
            };
            claims.push(Arc::new(self.claim_of(instance, about)));
        }
        Ok(claims)
    }

    async fn instance_types(
        &self,
        pool: &NodePool,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError> {
        let class = self.stores.class_of_pool(pool).ok_or_else(|| {
            self.publish_missing_class(reference(pool));
            let name = &pool.spec.template.spec.node_class_ref.name;
            CloudProviderError::other(format!(
                "resolving node class, ec2nodeclass `{name}` not found"
            ))
        })?;
        let seen = with_kubelet_settings(&class, pool.kubelet_compatibility())?;
        self.types_of(&seen).await
    }

    async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<String>, CloudProviderError> {
        let Some(class) = self.compared_with(claim) else {
            return Ok(None);
        };
        let drifted = |reason: &str| Ok(Some(reason.to_owned()));
        let pool = claim.node_pool().and_then(|name| self.stores.pool(name));
        let kubelet = pool.as_ref().and_then(|pool| pool.kubelet_compatibility());
        if drift::is_static_part_changed(&class, claim) || drift::is_kubelet_changed(kubelet, claim)
        {
            return drifted(drift::NODE_CLASS);
        }
        let group = self.placement_group(&class).await?;
        let types = self
            .offered
            .types(&class, group.clone(), self.clock.now())?;
        if drift::is_ami_changed(&class, claim, &types).map_err(CloudProviderError::other)? {
            return drifted(drift::AMI);
        }
        let provider_id = claim.status.provider_id.as_deref().unwrap_or_default();
        let id = instance_id(provider_id).ok_or_else(|| {
            CloudProviderError::other(format!("getting instance id, `{provider_id}` has none"))
        })?;
        let instance = match self.instances.get(id, Freshness::Cached).await {
            Ok(instance) => instance,
            // The instance is already terminated.
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(instance_error(error)),
        };
        if let Some(reason) =
            drift::of_instance(&class, &instance).map_err(CloudProviderError::other)?
        {
            return drifted(reason);
        }
        if drift::left_reservations(&class, &instance) {
            // Instances of a reservation that ended become on-demand instances, which EC2 reports with a delay.
            let fresh = self.instances.get(id, Freshness::Fresh).await;
            match fresh {
                Ok(instance) if drift::left_reservations(&class, &instance) => {
                    return drifted(drift::CAPACITY_RESERVATION);
                }
                Ok(_) => {}
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => return Err(instance_error(error)),
            }
        }
        if drift::is_placement_changed(claim, group.as_ref()) {
            return drifted(drift::PLACEMENT_GROUP);
        }
        Ok(None)
    }

    fn registration_hooks(&self) -> Vec<Arc<dyn RegistrationHook>> {
        vec![Arc::new(registration_hook::PartitionHook::new(Arc::clone(
            &self.instances,
        )))]
    }
}
