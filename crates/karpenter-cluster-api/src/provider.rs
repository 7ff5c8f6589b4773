//! Launches and terminates Machines.
//!
//! UPSTREAM: karpenter-provider-cluster-api, pkg/cloudprovider/cloudprovider.go

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Taint;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::validation::WellKnown;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::Offering;
use karpenter_core::provider::{
    CloudProvider, CloudProviderError, NodeClassKind, Overlays, ProviderProfile, RepairPolicy,
};
use karpenter_core::requirements::Requirements;
use karpenter_core::resources::Resources;
use karpenter_kube::clock::Clock;
use kube::ResourceExt;
use kube::core::DynamicObject;
use kube::runtime::reflector;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use parking_lot::Mutex;

use crate::catalogue::{InstanceTypeCache, Unavailable, conflict, instance_types, tolerated};
use crate::deployment::{Shape, TemplateRef, fingerprint, is_selected, own_label, shape};
use crate::errors::{failed, refused, unreachable};
use crate::hub::{Hub, HubError};
use crate::machine::{self, Launched, MACHINE_ANNOTATION, UID_LABEL};
use crate::node_class::{ClusterAPINodeClass, DriftPolicy, GROUP};

/// How long `create` waits for the provider id before the NodeClaim is queued again.
const PROVIDER_ID_WAIT: Duration = Duration::from_secs(10);
/// How long a launch may take. Bare metal needs most of it.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// The taint that Cluster API removes from a Node once it has copied the Machine's labels.
const UNINITIALIZED: &str = "node.cluster.x-k8s.io/uninitialized";

/// What a node class has: shapes, and MachineDeployments that are refused with the reason.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Offered {
    /// What can be launched, in the order of the names of MachineDeployments.
    pub shapes: Vec<Shape>,
    /// Why nothing is launched from a MachineDeployment, by its name.
    pub rejected: BTreeMap<String, String>,
}

pub struct ClusterApiProvider {
    hub: Hub,
    clock: Clock,
    profile: ProviderProfile,
    classes: Store<ClusterAPINodeClass>,
    class_writer: Mutex<Option<Writer<ClusterAPINodeClass>>>,
    overlays: OnceLock<Arc<dyn Overlays>>,
    unavailable: Unavailable,
    instance_types: InstanceTypeCache,
    /// Uids of NodeClaims whose Machine this process creates, with their MachineDeployment: the watch may not have it yet.
    launching: Mutex<BTreeMap<String, String>>,
    /// Names of Machines whose infrastructure machine and bootstrap configuration exist.
    complete: Mutex<BTreeSet<String>>,
}

impl std::fmt::Debug for ClusterApiProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ClusterApiProvider")
            .field(&self.hub)
            .finish()
    }
}

fn profile() -> ProviderProfile {
    let unhealthy = ["False", "Unknown"].map(|status| RepairPolicy {
        condition_type: "Ready".into(),
        condition_status: status.into(),
        toleration: jiff::SignedDuration::from_mins(30),
    });
    let mut well_known = WellKnown::default().with_restricted_domain(GROUP);
    for name in [
        "instance-size",
        "instance-family",
        "instance-memory",
        "instance-cpu",
    ] {
        well_known = well_known.with_label(&own_label(name));
    }
    let uninitialized = Taint {
        key: UNINITIALIZED.to_owned(),
        effect: labels::taints::NO_SCHEDULE.to_owned(),
        ..Taint::default()
    };
    ProviderProfile::new("clusterapi", [NodeClassKind::of::<ClusterAPINodeClass>()])
        .with_well_known(well_known)
        .with_repair_policies(unhealthy)
        .with_launch_timeout(LAUNCH_TIMEOUT)
        .with_ephemeral_taints([uninitialized])
}

impl ClusterApiProvider {
    /// Creates the provider for the Cluster of a management cluster. [`controllers::add`](crate::controllers::add) starts its watches.
    #[must_use]
    pub fn new(hub: Hub, clock: Clock) -> Self {
        let (classes, writer) = reflector::store();
        Self {
            hub,
            clock,
            profile: profile(),
            classes,
            class_writer: Mutex::new(Some(writer)),
            overlays: OnceLock::new(),
            unavailable: Unavailable::default(),
            instance_types: InstanceTypeCache::default(),
            launching: Mutex::default(),
            complete: Mutex::default(),
        }
    }

    /// Returns the management cluster.
    #[must_use]
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    pub(crate) fn class_writer(&self) -> Option<Writer<ClusterAPINodeClass>> {
        self.class_writer.lock().take()
    }

    /// Returns the node classes, as the watch has them.
    #[must_use]
    pub fn classes(&self) -> Vec<Arc<ClusterAPINodeClass>> {
        self.classes.state()
    }

    fn class(&self, name: &str) -> Option<Arc<ClusterAPINodeClass>> {
        self.classes.get(&ObjectRef::new(name))
    }

    /// Returns what the MachineDeployments of a node class offer.
    #[must_use]
    pub fn offered(&self, class: &ClusterAPINodeClass) -> Offered {
        let mut offered = Offered::default();
        for deployment in self.hub.deployments() {
            if !is_selected(&deployment, self.hub.cluster(), &class.spec) {
                continue;
            }
            let template =
                infrastructure(&deployment).and_then(|template| self.hub.kept_template(&template));
            let read = shape(&deployment, template.as_deref(), &class.spec);
            let fits = read.and_then(|shape| match conflict(&offered.shapes, &shape) {
                Some(conflict) => Err(conflict),
                None => Ok(shape),
            });
            match fits {
                Ok(shape) => offered.shapes.push(shape),
                Err(reason) => {
                    offered.rejected.insert(deployment.name_any(), reason);
                }
            }
        }
        offered
    }

    /// Returns whether a MachineDeployment has as many Machines of Karpenter as it may have, beside that of the NodeClaim `of`.
    fn is_full(&self, shape: &Shape, of: &str) -> bool {
        let Some(most) = shape.max_size else {
            return false;
        };
        let mut uids: BTreeSet<String> = BTreeSet::new();
        for machine in self.hub.machines() {
            let is_from =
                machine::launched(&machine).is_some_and(|l| l.deployment == shape.deployment);
            uids.extend(machine.labels().get(UID_LABEL).filter(|_| is_from).cloned());
        }
        let launching = self.launching.lock();
        let mine = launching
            .iter()
            .filter(|(_, deployment)| **deployment == shape.deployment);
        uids.extend(mine.map(|(uid, _)| uid.clone()));
        uids.remove(of);
        uids.len() >= most
    }

    fn types(
        &self,
        class: &ClusterAPINodeClass,
        taints: &[Taint],
    ) -> (Vec<Shape>, Vec<InstanceType>) {
        let mut shapes = self.offered(class).shapes;
        shapes.retain(|shape| tolerated(shape, taints));
        let reserved = Resources::requests_from(&class.spec.reserved).unwrap_or_default();
        let is_full = |shape: &Shape| self.is_full(shape, "");
        let types = instance_types(
            &shapes,
            &reserved,
            &self.unavailable,
            is_full,
            self.clock.now(),
        );
        (shapes, types)
    }

    /// Chooses the cheapest shape that meets the NodeClaim's requirements, and holds a place of its MachineDeployment for it.
    fn choose(&self, claim: &NodeClaim) -> Result<(Shape, InstanceType), CloudProviderError> {
        let name = &claim.spec.node_class_ref.name;
        let class = self.class(name).ok_or_else(|| {
            CloudProviderError::NodeClassNotReady(format!("clusterapinodeclass `{name}` not found"))
        })?;
        if !class.is_true(types::READY) {
            let condition = class.condition(types::READY).map(|c| c.message.clone());
            return Err(CloudProviderError::NodeClassNotReady(
                condition.unwrap_or_default(),
            ));
        }
        let wanted = Requirements::from_api(&claim.spec.requirements, &self.profile.well_known);
        let wanted = wanted.map_err(|error| failed("InvalidRequirements", error.to_string()))?;
        let (shapes, types) = self.types(&class, &claim.spec.taints);
        let types = match (self.overlays.get(), claim.node_pool()) {
            (Some(overlays), Some(pool)) => overlays.apply(pool, types.into())?,
            _ => types.into(),
        };
        let mut options: Vec<(&InstanceType, &Offering)> = types
            .iter()
            .filter(|candidate| wanted.intersects(&candidate.requirements).is_ok())
            .flat_map(|candidate| {
                candidate
                    .offerings
                    .iter()
                    .map(move |offering| (candidate, offering))
            })
            .filter(|(_, offering)| {
                offering.available && wanted.intersects(&offering.requirements).is_ok()
            })
            .collect();
        options.sort_by(|a, b| {
            a.1.price
                .total_cmp(&b.1.price)
                .then_with(|| a.0.name.cmp(&b.0.name))
        });
        for (candidate, offering) in options {
            let is_it = |shape: &&Shape| {
                shape.instance_type == candidate.name
                    && Some(shape.zone.as_str()) == offering.zone()
                    && Some(shape.capacity_type.as_str()) == offering.capacity_type()
            };
            if let Some(shape) = shapes.iter().find(is_it) {
                self.launching
                    .lock()
                    .insert(claim.uid().to_owned(), shape.deployment.clone());
                if !self.is_full(shape, claim.uid()) {
                    return Ok((shape.clone(), candidate.clone()));
                }
                self.launching.lock().remove(claim.uid());
            }
        }
        Err(CloudProviderError::InsufficientCapacity(
            "no MachineDeployment that meets the requirements is available".to_owned(),
        ))
    }

    async fn launch(&self, claim: &NodeClaim) -> Result<DynamicObject, CloudProviderError> {
        let (shape, of) = self.choose(claim)?;
        let created = self.launch_from(claim, &shape, &of).await;
        // After an error of the server the Machine may exist: its place is held until the next attempt or the deletion.
        if created
            .as_ref()
            .is_err_and(CloudProviderError::is_insufficient_capacity)
        {
            self.launching.lock().remove(claim.uid());
        }
        created
    }

    async fn launch_from(
        &self,
        claim: &NodeClaim,
        shape: &Shape,
        of: &InstanceType,
    ) -> Result<DynamicObject, CloudProviderError> {
        let deployment = self.hub.deployment(&shape.deployment);
        let deployment = deployment.ok_or_else(|| {
            failed(
                "TemplateNotFound",
                format!("MachineDeployment `{}` was deleted", shape.deployment),
            )
        })?;
        let template = infrastructure(&deployment).ok_or_else(|| {
            failed(
                "TemplateNotFound",
                format!(
                    "MachineDeployment `{}` has no infrastructureRef",
                    shape.deployment
                ),
            )
        })?;
        // Nothing is created from templates that do not exist.
        self.hub
            .template(&template)
            .await
            .map_err(|error| self.refused(&shape.deployment, error))?;
        let mut labels = shape.labels.clone();
        for (key, value) in [
            (labels::INSTANCE_TYPE, &shape.instance_type),
            (labels::ZONE, &shape.zone),
            (labels::CAPACITY_TYPE, &shape.capacity_type),
        ] {
            labels.insert(key.to_owned(), value.clone());
        }
        if let Some(pool) = claim.label(labels::NODE_POOL) {
            labels.insert(labels::NODE_POOL.to_owned(), pool.to_owned());
        }
        let launched = Launched {
            node_claim: claim.name().to_owned(),
            deployment: shape.deployment.clone(),
            fingerprint: fingerprint(&deployment),
            image_id: template.name.clone(),
            labels,
            capacity: of.capacity.to_quantities(),
            allocatable: of.allocatable().to_quantities(),
        };
        let machine = {
            let kind = self.hub.machine_kind().await;
            let kind = kind.map_err(|error| self.refused(&shape.deployment, error))?;
            machine::new(kind, &deployment, claim, &launched)
        };
        let created = self.hub.create_machine(&machine).await;
        created.map_err(|error| self.refused(&shape.deployment, error))
    }

    fn refused(&self, deployment: &str, error: HubError) -> CloudProviderError {
        let error = refused(error);
        if error.is_insufficient_capacity() {
            self.unavailable.mark(deployment, self.clock);
        }
        error
    }

    /// Creates what the Machine lacks: its infrastructure machine and its bootstrap configuration.
    async fn complete(
        &self,
        machine: &DynamicObject,
        launched: &Launched,
    ) -> Result<(), CloudProviderError> {
        let name = machine.name_any();
        if machine::provider_id(machine).is_some() || self.complete.lock().contains(&name) {
            return Ok(());
        }
        let deployment = self.hub.deployment(&launched.deployment);
        let current = deployment.filter(|deployment| machine::is_current(launched, deployment));
        let deployment = current.ok_or_else(|| {
            // The Machine was created from templates that are not known any more: it is deleted, and the pods are planned again.
            let why = format!(
                "MachineDeployment `{}` changed during the launch",
                launched.deployment
            );
            CloudProviderError::InsufficientCapacity(why)
        })?;
        let references = [
            "/spec/template/spec/infrastructureRef",
            "/spec/template/spec/bootstrap/configRef",
        ];
        let templates = references
            .iter()
            .filter_map(|at| TemplateRef::read(deployment.data.pointer(at)?));
        for template in templates {
            let made = self.hub.instantiate(&template, machine).await;
            made.map_err(|error| self.refused(&launched.deployment, error))?;
        }
        self.complete.lock().insert(name);
        Ok(())
    }

    async fn find(&self, provider_id: &str) -> Result<Option<DynamicObject>, CloudProviderError> {
        let has_id = |machine: &DynamicObject| machine::provider_id(machine) == Some(provider_id);
        let seen = self
            .hub
            .machines()
            .into_iter()
            .find(|machine| has_id(machine));
        let unreachable = |error: HubError| unreachable("reading machines", &error);
        match seen {
            Some(seen) => {
                let read = self.hub.read_machine(&seen.name_any()).await;
                Ok(read.map_err(unreachable)?.filter(has_id))
            }
            None => {
                let all = self.hub.list_machines().await.map_err(unreachable)?;
                Ok(all.into_iter().find(has_id))
            }
        }
    }
}

pub(crate) fn infrastructure(deployment: &DynamicObject) -> Option<TemplateRef> {
    TemplateRef::read(
        deployment
            .data
            .pointer("/spec/template/spec/infrastructureRef")?,
    )
}

#[async_trait]
impl CloudProvider for ClusterApiProvider {
    fn profile(&self) -> &ProviderProfile {
        &self.profile
    }

    fn use_overlays(&self, overlays: Arc<dyn Overlays>) {
        // Set once, before any launch.
        let _ = self.overlays.set(overlays);
    }

    async fn create(&self, claim: &NodeClaim) -> Result<NodeClaim, CloudProviderError> {
        if !self.hub.filled().await {
            return Err(CloudProviderError::other(
                "the management cluster has not been read yet",
            ));
        }
        let name = machine::name_of(claim);
        let known = match self.hub.machine(&name) {
            Some(known) => DynamicObject::clone(&known),
            // The watch may lag behind an earlier attempt of this process. Its MachineDeployment need not be chosen again.
            None if self.launching.lock().contains_key(claim.uid()) => {
                let read = self.hub.read_machine(&name).await;
                match read.map_err(refused)? {
                    Some(read) => read,
                    None => self.launch(claim).await?,
                }
            }
            None => self.launch(claim).await?,
        };
        let uid = known.labels().get(UID_LABEL).map(String::as_str);
        let Some(launched) = machine::launched(&known).filter(|_| uid == Some(claim.uid())) else {
            return Err(failed(
                "NameTaken",
                format!("machine `{name}` does not belong to this NodeClaim"),
            ));
        };
        if known.metadata.deletion_timestamp.is_some() {
            let why = format!("machine `{name}` is being deleted");
            return Err(CloudProviderError::InsufficientCapacity(why));
        }
        self.complete(&known, &launched).await?;
        let ended = |machine: &DynamicObject| {
            let ends =
                machine::provider_id(machine).is_some() || machine::failure(machine).is_some();
            ends.then(|| machine.clone())
        };
        let Some(machine) = self.hub.wait_for(&name, PROVIDER_ID_WAIT, ended).await else {
            let waits = self
                .hub
                .machine(&name)
                .map(|machine| machine::waits_for(&machine));
            let message = format!(
                "machine `{name}` has no provider id yet. {}",
                waits.unwrap_or_default()
            );
            return Err(failed(
                "WaitingForProviderID",
                message.trim_end().to_owned(),
            ));
        };
        if let Some(why) =
            machine::failure(&machine).filter(|_| machine::provider_id(&machine).is_none())
        {
            self.unavailable.mark(&launched.deployment, self.clock);
            return Err(CloudProviderError::InsufficientCapacity(why));
        }
        self.complete.lock().remove(&name);
        machine::claim_of(&machine)
            .ok_or_else(|| failed("NameTaken", format!("machine `{name}` has lost its labels")))
    }

    async fn delete(&self, claim: &NodeClaim) -> Result<(), CloudProviderError> {
        self.launching.lock().remove(claim.uid());
        let name = machine::recorded_name(claim);
        let missing = || CloudProviderError::NodeClaimNotFound(format!("machine `{name}`"));
        let read = self.hub.read_machine(&name).await;
        let machine = read
            .map_err(|error| unreachable("reading machine", &error))?
            .ok_or_else(missing)?;
        // An instance that `list` returned has no uid.
        let uid = machine.labels().get(UID_LABEL).ok_or_else(missing)?;
        if uid != claim.uid() && !claim.uid().is_empty() {
            return Err(missing());
        }
        self.complete.lock().remove(&name);
        if machine.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        if machine::provider_id(&machine).is_none()
            && let Some(created) = &machine.metadata.creation_timestamp
            && self.clock.since(created.0) >= LAUNCH_TIMEOUT
            && let Some(launched) = machine::launched(&machine)
        {
            self.unavailable.mark(&launched.deployment, self.clock);
        }
        match self.hub.delete_machine(&machine).await {
            Err(error) if error.is_not_found() => Err(missing()),
            Err(error) => Err(unreachable("deleting machine", &error)),
            Ok(()) => Ok(()),
        }
    }

    async fn get(&self, provider_id: &str) -> Result<NodeClaim, CloudProviderError> {
        let found = self.find(provider_id).await?;
        let claim = found.as_ref().and_then(machine::claim_of);
        claim.ok_or_else(|| CloudProviderError::NodeClaimNotFound(provider_id.to_owned()))
    }

    async fn list(&self) -> Result<Vec<Arc<NodeClaim>>, CloudProviderError> {
        let all = self.hub.list_machines().await;
        let all = all.map_err(|error| unreachable("listing machines", &error))?;
        Ok(all
            .iter()
            .filter_map(machine::claim_of)
            .map(Arc::new)
            .collect())
    }

    async fn instance_types(
        &self,
        pool: &NodePool,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError> {
        if !self.hub.filled().await {
            return Err(CloudProviderError::other(
                "the management cluster has not been read yet",
            ));
        }
        let spec = &pool.spec.template.spec;
        let class = self.class(&spec.node_class_ref.name).ok_or_else(|| {
            CloudProviderError::NodeClassNotReady(format!(
                "clusterapinodeclass `{}` not found",
                spec.node_class_ref.name
            ))
        })?;
        let taints = spec.taints.clone().unwrap_or_default();
        let (_, types) = self.types(&class, &taints);
        Ok(self.instance_types.of(&pool.name_any(), types))
    }

    async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<String>, CloudProviderError> {
        if !self.hub.is_filled() {
            return Err(CloudProviderError::other(
                "the management cluster has not been read yet",
            ));
        }
        let class = self.class(&claim.spec.node_class_ref.name);
        let Some(class) = class
            .filter(|class| class.spec.drift_policy.unwrap_or_default() == DriftPolicy::Karpenter)
        else {
            return Ok(None);
        };
        let name = claim.annotation(MACHINE_ANNOTATION).unwrap_or_default();
        let Some(launched) = self
            .hub
            .machine(name)
            .and_then(|machine| machine::launched(&machine))
        else {
            return Ok(None);
        };
        let deployment = self.hub.deployment(&launched.deployment);
        let selected = deployment.filter(|d| is_selected(d, self.hub.cluster(), &class.spec));
        Ok(match selected {
            None => Some("MachineDeploymentRemoved".to_owned()),
            Some(deployment) if machine::is_current(&launched, &deployment) => None,
            Some(_) => Some("MachineTemplateDrift".to_owned()),
        })
    }
}
