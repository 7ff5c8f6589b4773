//! Launches simulated instances.
//!
//! An instance's name is derived from the uid of its NodeClaim, so that launching twice for one NodeClaim gives one
//! instance, even after a restart: the cloud has it, or its Node exists, or it is launched under the same name.
//!
//! UPSTREAM: kwok/cloudprovider/cloudprovider.go

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels;
use karpenter_api::labels::taints;
use karpenter_api::v1::{NodeClaim, NodePool, Operator};
use karpenter_api::validation::WellKnown;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::Offering;
use karpenter_core::provider::{
    CloudProvider, CloudProviderError, NodeClassKind, Overlays, ProviderProfile, RepairPolicy,
};
use karpenter_core::requirements::{Requirement, Requirements};
use karpenter_kube::client::delete::delete_object;
use karpenter_kube::clock::Clock;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::catalogue::{INSTANCE_CPU, INSTANCE_FAMILY, INSTANCE_MEMORY, INSTANCE_SIZE};
use crate::cloud::{CapacityPool, Cloud, Instance};
use crate::node_class::{GROUP, KWOKNodeClass};

/// Prefix of the provider ids of simulated instances.
pub const PROVIDER_PREFIX: &str = "kwok://";
/// Label and annotation of simulated nodes; the value is `fake`.
pub const FAKE_NODE: &str = "kwok.x-k8s.io/node";
/// Price label of eks-node-viewer.
const NODE_VIEWER_PRICE: &str = "eks-node-viewer/instance-price";
const PARTITION: &str = "kwok-partition";

pub struct KwokProvider {
    client: Client,
    registration_client: Client,
    clock: Clock,
    cloud: Cloud,
    profile: ProviderProfile,
    types: Arc<[InstanceType]>,
    offered: Mutex<Offered>,
    overlays: OnceLock<Arc<dyn Overlays>>,
    /// Names of Nodes of unknown instances that existed at the first listing.
    orphans: Mutex<Option<BTreeSet<String>>>,
}

/// The instance types, with the currently exhausted offerings unavailable.
struct Offered {
    unavailable: BTreeMap<CapacityPool, Timestamp>,
    types: Arc<[InstanceType]>,
}

impl std::fmt::Debug for KwokProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KwokProvider")
            .field("types", &self.types.len())
            .finish_non_exhaustive()
    }
}

/// Returns the error of a failed request to the API server.
fn unreachable(action: &str, error: &kube::Error) -> CloudProviderError {
    CloudProviderError::other(format!("{action}, {error}"))
}

fn profile(well_known: WellKnown) -> ProviderProfile {
    let unhealthy = ["False", "Unknown"].map(|status| RepairPolicy {
        condition_type: "Ready".into(),
        condition_status: status.into(),
        toleration: jiff::SignedDuration::from_mins(10),
    });
    let class = NodeClassKind {
        group: GROUP.into(),
        version: KWOKNodeClass::VERSION.into(),
        kind: KWOKNodeClass::KIND.into(),
        plural: KWOKNodeClass::PLURAL.into(),
    };
    ProviderProfile::new("kwok", [class])
        .with_well_known(well_known)
        .with_repair_policies(unhealthy)
}

impl KwokProvider {
    /// Creates a provider that launches `types` in `cloud` and registers Nodes in the cluster of `client`.
    #[must_use]
    pub fn new(client: Client, clock: Clock, types: Vec<InstanceType>, cloud: Cloud) -> Self {
        let types: Arc<[InstanceType]> = types.into();
        let mut well_known = WellKnown::default().with_restricted_domain(GROUP);
        for label in [
            INSTANCE_SIZE,
            INSTANCE_FAMILY,
            INSTANCE_CPU,
            INSTANCE_MEMORY,
        ] {
            well_known = well_known.with_label(label);
        }
        for key in types
            .iter()
            .flat_map(|t| &t.offerings)
            .flat_map(|o| o.requirements.keys())
        {
            well_known = well_known.with_label(key);
        }
        let offered = Mutex::new(Offered {
            unavailable: BTreeMap::new(),
            types: Arc::clone(&types),
        });
        Self {
            registration_client: client.clone(),
            client,
            clock,
            cloud,
            profile: profile(well_known),
            types,
            offered,
            overlays: OnceLock::new(),
            orphans: Mutex::new(None),
        }
    }

    /// Registers Nodes through another client, as kubelets do: registration continues when Karpenter is killed.
    #[must_use]
    pub fn instances_through(mut self, client: Client) -> Self {
        self.registration_client = client;
        self
    }

    #[must_use]
    pub fn cloud(&self) -> &Cloud {
        &self.cloud
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    async fn node_class(&self, claim: &NodeClaim) -> Result<KWOKNodeClass, CloudProviderError> {
        let api: Api<KWOKNodeClass> = Api::all(self.client.clone());
        let name = &claim.spec.node_class_ref.name;
        match api.get_opt(name).await {
            Ok(Some(class)) if class.is_false(types::READY) => {
                let why = class
                    .condition(types::READY)
                    .map(|c| c.message.clone())
                    .unwrap_or_default();
                Err(CloudProviderError::NodeClassNotReady(why))
            }
            Ok(Some(class)) => Ok(class),
            // A NodeClaim without its class can never be launched; deleting it lets another NodePool try.
            Ok(None) => Err(CloudProviderError::InsufficientCapacity(format!(
                "resolving node class, `{name}` not found"
            ))),
            Err(error) => Err(unreachable("resolving node class", &error)),
        }
    }

    /// Returns the cheapest offering that meets the NodeClaim's requirements and has capacity.
    fn choose<'a>(
        &self,
        claim: &NodeClaim,
        types: &'a [InstanceType],
    ) -> Result<(&'a InstanceType, &'a Offering), CloudProviderError> {
        let invalid = |error: &dyn std::fmt::Display| CloudProviderError::Create {
            reason: "InvalidRequirements".into(),
            message: error.to_string(),
            source: None,
        };
        let requirements =
            Requirements::from_api(&claim.spec.requirements, &self.profile.well_known)
                .map_err(|e| invalid(&e))?;
        let now = self.clock.now();
        let accepts = |theirs: &Requirements| requirements.intersects(theirs).is_ok();
        let named = requirements.get(labels::INSTANCE_TYPE);
        let mut options: Vec<(&InstanceType, &Offering)> = Vec::new();
        for instance_type in types
            .iter()
            .filter(|t| named.is_none_or(|n| n.has(&t.name)) && accepts(&t.requirements))
        {
            options.extend(
                instance_type
                    .offerings
                    .iter()
                    .filter(|o| o.available && accepts(&o.requirements))
                    .map(|o| (instance_type, o)),
            );
        }
        // Ties are broken by the NodeClaim's uid, so that zones are used evenly and a retry chooses the same.
        let tie = |(t, o): &(&InstanceType, &Offering)| {
            digest(&(claim.uid(), &t.name, o.zone(), o.capacity_type()))
        };
        options.sort_by(|a, b| {
            a.1.price
                .total_cmp(&b.1.price)
                .then_with(|| tie(a).cmp(&tie(b)))
        });
        let chosen = options
            .into_iter()
            .find(|(t, o)| self.cloud.has_capacity(&t.name, o, now));
        chosen.ok_or_else(|| {
            CloudProviderError::InsufficientCapacity(
                "all requested instance types were unavailable during launch".into(),
            )
        })
    }

    /// Registers the Node of the instance after the delay, unless the instance is terminated before.
    pub(crate) fn register_later(&self, node: Node, delay: Duration, stop: CancellationToken) {
        let (api, clock): (Api<Node>, _) = (Api::all(self.registration_client.clone()), self.clock);
        let registering = async move {
            clock.sleep(delay).await;
            loop {
                match api.create(&PostParams::default(), &node).await {
                    Ok(_) => return,
                    Err(kube::Error::Api(status)) if status.is_already_exists() => return,
                    Err(error) => {
                        tracing::debug!(logger = "kwok", error = %error, "failed to register a node");
                        clock.sleep(Duration::from_secs(1)).await;
                    }
                }
            }
        };
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = registering => {}
                () = stop.cancelled() => {}
            }
        });
    }

    /// Returns the Nodes of instances that an earlier process launched and that the cloud does not know.
    ///
    /// All Nodes are listed once: Nodes that join later are of this process. Then only the Nodes that were found are
    /// checked again.
    async fn orphans(&self) -> Result<Vec<Node>, CloudProviderError> {
        let known = self.orphans.lock().clone();
        let Some(known) = known else {
            let found = self.all_orphans().await?;
            *self.orphans.lock() = Some(
                found
                    .iter()
                    .filter_map(|n| n.metadata.name.clone())
                    .collect(),
            );
            return Ok(found);
        };
        let mut found = Vec::new();
        for name in known {
            match self.existing(&name).await? {
                Some(node) if self.is_orphan(&node) => found.push(node),
                _ => {
                    self.orphans.lock().get_or_insert_default().remove(&name);
                }
            }
        }
        Ok(found)
    }

    async fn all_orphans(&self) -> Result<Vec<Node>, CloudProviderError> {
        const PAGE: u32 = 500;
        let (mut found, mut page) = (Vec::new(), ListParams::default().limit(PAGE));
        loop {
            let nodes = self.nodes().list(&page).await;
            let nodes = nodes.map_err(|error| unreachable("listing nodes", &error))?;
            found.extend(nodes.items.into_iter().filter(|node| self.is_orphan(node)));
            match nodes.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(found),
            }
        }
    }

    fn is_orphan(&self, node: &Node) -> bool {
        let id = node.spec.as_ref().and_then(|s| s.provider_id.as_deref());
        let ours = id.is_some_and(|id| {
            id.starts_with(PROVIDER_PREFIX)
                && self.cloud.instance(id).is_none()
                && !self.cloud.is_killed(id)
        });
        ours && node.metadata.deletion_timestamp.is_none()
    }

    async fn existing(&self, name: &str) -> Result<Option<Node>, CloudProviderError> {
        self.nodes()
            .get_opt(name)
            .await
            .map_err(|error| unreachable("getting node", &error))
    }

    /// Deletes the Node of an instance that has no finalizer of the registration.
    async fn remove_node(&self, name: &str) -> Result<(), CloudProviderError> {
        let Some(node) = self.existing(name).await? else {
            return Ok(());
        };
        if node.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let deleted = delete_object(&self.nodes(), &node).await;
        deleted.map_err(|error| unreachable("deleting node", &error))?;
        Ok(())
    }

    /// Restores an instance that is known from its NodeClaim only, as after a restart; `joined` is whether its Node exists.
    pub(crate) fn resume(&self, claim: &Arc<NodeClaim>, joined: bool) {
        let Some(provider_id) = claim
            .status
            .provider_id
            .clone()
            .filter(|id| id.starts_with(PROVIDER_PREFIX))
        else {
            return;
        };
        if self.cloud.is_killed(&provider_id) {
            return;
        }
        let price = claim
            .label(NODE_VIEWER_PRICE)
            .and_then(|p| p.parse().ok())
            .unwrap_or_default();
        let registration = CancellationToken::new();
        let instance = Instance {
            claim_uid: claim.uid().to_owned(),
            answer: Arc::clone(claim),
            price,
            launched_at: claim
                .metadata
                .creation_timestamp
                .as_ref()
                .map_or_else(|| self.clock.now(), |t| t.0),
            registration: registration.clone(),
        };
        if self.cloud.launch(&provider_id, instance) && self.cloud.registers() && !joined {
            let node = node_of(claim, claim, node_name_of(&provider_id));
            self.register_later(node, Duration::ZERO, registration);
        }
    }
}

/// Returns a number that is derived from the value only.
fn digest(value: &impl Hash) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Returns `kwok-<nodeclaim>-<letters>-<number>`, the last two derived from the NodeClaim's uid.
fn node_name(claim: &NodeClaim) -> String {
    let seed = digest(&claim.uid());
    let letters: String = (0..5)
        .map(|i| char::from(b'a' + ((seed >> (i * 5)) % 26) as u8))
        .collect();
    format!("kwok-{}-{letters}-{}", claim.name(), (seed >> 32) as u32)
}

fn node_name_of(provider_id: &str) -> &str {
    provider_id
        .strip_prefix(PROVIDER_PREFIX)
        .unwrap_or(provider_id)
}

/// Returns the provider's answer for a NodeClaim whose offering is chosen.
fn answer(
    claim: &NodeClaim,
    node: &str,
    instance_type: &InstanceType,
    offering: &Offering,
) -> NodeClaim {
    let mut labels: BTreeMap<String, String> = claim.metadata.labels.clone().unwrap_or_default();
    for requirement in claim
        .spec
        .requirements
        .iter()
        .filter(|r| r.operator == Operator::In)
    {
        if let [value] = requirement.values.as_slice() {
            labels.insert(requirement.key.clone(), value.clone());
        }
    }
    let singles = |requirements: &Requirements| -> Vec<(String, String)> {
        requirements
            .iter()
            .filter_map(|r: &Requirement| Some((r.key().to_owned(), r.single()?.to_owned())))
            .collect()
    };
    labels.extend(singles(&instance_type.requirements));
    labels.extend(singles(&offering.requirements));
    labels.insert(labels::INSTANCE_TYPE.into(), instance_type.name.clone());
    labels.insert(NODE_VIEWER_PRICE.into(), format!("{:.6}", offering.price));
    let mut answer = NodeClaim::new(claim.name(), claim.spec.clone());
    answer.metadata.uid.clone_from(&claim.metadata.uid);
    answer.metadata.labels = Some(labels);
    answer.metadata.annotations = Some([(FAKE_NODE.to_owned(), "fake".to_owned())].into());
    answer.status.provider_id = Some(format!("{PROVIDER_PREFIX}{node}"));
    answer.status.capacity = instance_type.capacity.to_quantities();
    answer.status.allocatable = instance_type.allocatable_of(offering).to_quantities();
    answer
}

/// Returns the Node that an instance's kubelet registers.
fn node_of(claim: &NodeClaim, answer: &NodeClaim, name: &str) -> Node {
    let mut labels = answer.metadata.labels.clone().unwrap_or_default();
    labels.insert(PARTITION.into(), "a".into());
    labels.insert(labels::HOSTNAME.into(), claim.name().to_owned());
    labels.insert(FAKE_NODE.into(), "fake".into());
    let mut annotations = claim.metadata.annotations.clone().unwrap_or_default();
    annotations.insert(FAKE_NODE.into(), "fake".into());
    Node {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: answer.status.provider_id.clone(),
            taints: Some(vec![taints::unregistered()]),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            capacity: Some(answer.status.capacity.clone()),
            allocatable: Some(answer.status.allocatable.clone()),
            phase: Some("Pending".into()),
            ..NodeStatus::default()
        }),
    }
}

/// Returns the NodeClaim that describes the instance of a Node.
fn claim_of_node(node: &Node) -> NodeClaim {
    let mut claim = NodeClaim::new(
        node.metadata.name.as_deref().unwrap_or_default(),
        Default::default(),
    );
    claim.metadata.labels.clone_from(&node.metadata.labels);
    claim
        .metadata
        .annotations
        .clone_from(&node.metadata.annotations);
    claim.status.node_name.clone_from(&node.metadata.name);
    claim.status.provider_id = node.spec.as_ref().and_then(|s| s.provider_id.clone());
    claim.status.capacity = node
        .status
        .as_ref()
        .and_then(|s| s.capacity.clone())
        .unwrap_or_default();
    claim.status.allocatable = node
        .status
        .as_ref()
        .and_then(|s| s.allocatable.clone())
        .unwrap_or_default();
    claim
}

#[async_trait]
impl CloudProvider for KwokProvider {
    fn profile(&self) -> &ProviderProfile {
        &self.profile
    }

    fn use_overlays(&self, overlays: Arc<dyn Overlays>) {
        // It is set once, at start.
        let _ = self.overlays.set(overlays);
    }

    async fn create(&self, claim: &NodeClaim) -> Result<NodeClaim, CloudProviderError> {
        let class = self.node_class(claim).await?;
        let name = node_name(claim);
        let provider_id = format!("{PROVIDER_PREFIX}{name}");
        if let Some(instance) = self.cloud.instance(&provider_id) {
            return Ok(NodeClaim::clone(&instance.answer));
        }
        if let Some(node) = self.existing(&name).await? {
            return Ok(claim_of_node(&node));
        }
        if self.cloud.take_failure() {
            return Err(CloudProviderError::other("simulated launch failure"));
        }
        let mut types = Arc::clone(&self.types);
        if let (Some(overlays), Some(pool)) = (self.overlays.get(), claim.node_pool()) {
            types = overlays.apply(pool, types)?;
        }
        let (instance_type, offering) = self.choose(claim, &types)?;
        let answer = answer(claim, &name, instance_type, offering);
        let registration = CancellationToken::new();
        let instance = Instance {
            claim_uid: claim.uid().to_owned(),
            answer: Arc::new(answer.clone()),
            price: offering.price,
            launched_at: self.clock.now(),
            registration: registration.clone(),
        };
        if self.cloud.launch(&provider_id, instance) && self.cloud.registers() {
            let delay = class
                .spec
                .node_registration_delay
                .as_ref()
                .map(|d| d.unsigned())
                .unwrap_or_default();
            self.register_later(node_of(claim, &answer, &name), delay, registration);
        }
        Ok(answer)
    }

    async fn delete(&self, claim: &NodeClaim) -> Result<(), CloudProviderError> {
        let provider_id = &match &claim.status.provider_id {
            Some(provider_id) => provider_id.clone(),
            None => format!("{PROVIDER_PREFIX}{}", node_name(claim)),
        };
        self.cloud.terminate(provider_id, self.clock.now());
        self.remove_node(node_name_of(provider_id)).await?;
        Err(CloudProviderError::NodeClaimNotFound(format!(
            "instance `{provider_id}` is terminated"
        )))
    }

    async fn get(&self, provider_id: &str) -> Result<NodeClaim, CloudProviderError> {
        let missing =
            || CloudProviderError::NodeClaimNotFound(format!("no instance `{provider_id}`"));
        if let Some(instance) = self.cloud.instance(provider_id) {
            return Ok(NodeClaim::clone(&instance.answer));
        }
        if self.cloud.is_killed(provider_id) {
            return Err(missing());
        }
        let node = self.existing(node_name_of(provider_id)).await?;
        node.filter(|n| n.metadata.deletion_timestamp.is_none())
            .map(|n| claim_of_node(&n))
            .ok_or_else(missing)
    }

    async fn list(&self) -> Result<Vec<Arc<NodeClaim>>, CloudProviderError> {
        let orphans = self.orphans().await?;
        let instances = self.cloud.instances();
        let mut claims: Vec<Arc<NodeClaim>> = instances
            .into_iter()
            .map(|instance| instance.answer)
            .collect();
        let orphans = orphans.iter().map(claim_of_node);
        claims.extend(orphans.map(Arc::new));
        Ok(claims)
    }

    async fn instance_types(
        &self,
        _: &NodePool,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError> {
        let unavailable = self.cloud.unavailable(self.clock.now());
        let mut offered = self.offered.lock();
        if offered.unavailable != unavailable {
            let mut types = self.types.to_vec();
            for instance_type in &mut types {
                for offering in &mut instance_type.offerings {
                    let name = &instance_type.name;
                    let until = Cloud::unavailable_until(&unavailable, name, offering);
                    offering.available &= until.is_none();
                    offering.unavailable_until = until;
                }
            }
            *offered = Offered {
                unavailable,
                types: types.into(),
            };
        }
        Ok(Arc::clone(&offered.types))
    }

    async fn is_drifted(&self, _: &NodeClaim) -> Result<Option<String>, CloudProviderError> {
        Ok(None)
    }
}
