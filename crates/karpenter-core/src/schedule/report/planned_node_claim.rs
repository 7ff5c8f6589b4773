//! The NodeClaims to create for the planned nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use karpenter_api::labels::annotations;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::{hash, labels};

use crate::pod::PodKey;
use crate::requirements::{Operator, Requirement, Requirements, Unaliased};
use crate::resources::Resources;

/// A planned node: a NodeClaim to create, with its pods and price.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedNodeClaim {
    /// The NodePool.
    pub node_pool: String,
    /// Compatible instance types, cheapest first, truncated to the request's `max_instance_types`.
    pub instance_types: Arc<[String]>,
    /// The pods.
    pub pods: Vec<PodKey>,
    /// Capacity buffers' pods.
    pub buffer_pods: Vec<PodKey>,
    /// Requests of the pods, plus the least that DaemonSets request on any of the instance types.
    pub requests: Resources,
    /// Price of the cheapest offering in dollars per hour.
    pub hourly_price: f64,
    /// Whether minValues were lowered.
    pub min_values_relaxed: bool,
    /// Ids of the capacity reservations the instance may use.
    pub reservations: Vec<String>,
    /// The NodeClaim to create; it has a `generateName` and no name.
    pub claim: DraftClaim,
}

/// A NodeClaim that is built on first access.
///
/// With hundreds of instance types each, the NodeClaims of a large plan need more memory than the rest of the plan, and most
/// plans are only compared by price.
#[derive(Clone)]
pub struct DraftClaim {
    /// The parts it is built from, unless it was made from a NodeClaim.
    fill: Option<Fill>,
    written: OnceLock<Box<NodeClaim>>,
    own: Option<Arc<NodeClaim>>,
}

/// The parts shared by similar drafts, and those of this draft.
#[derive(Clone)]
struct Fill {
    shape: Arc<DraftShape>,
    requests: Resources,
    min_values_relaxed: bool,
    /// Drivers of the devices of its pods, joined; empty without any.
    drivers: Arc<str>,
}

impl Fill {
    fn write(&self) -> Box<NodeClaim> {
        let mut claim = self.shape.prototype().clone();
        claim.spec.resources.requests = self.requests.to_quantities();
        let marks = claim.metadata.annotations.get_or_insert_default();
        marks.insert(
            annotations::MIN_VALUES_RELAXED.to_owned(),
            self.min_values_relaxed.to_string(),
        );
        if !self.drivers.is_empty() {
            marks.insert(
                annotations::REQUESTED_DRA_DRIVERS.to_owned(),
                self.drivers.to_string(),
            );
        }
        Box::new(claim)
    }
}

impl DraftClaim {
    pub(crate) fn new(
        shape: Arc<DraftShape>,
        requests: Resources,
        min_values_relaxed: bool,
        drivers: Arc<str>,
    ) -> Self {
        Self {
            fill: Some(Fill {
                shape,
                requests,
                min_values_relaxed,
                drivers,
            }),
            written: OnceLock::new(),
            own: None,
        }
    }

    fn write(fill: Option<&Fill>) -> Box<NodeClaim> {
        fill.map(Fill::write).unwrap_or_default()
    }

    /// Returns the requirements of the NodeClaim without building it; for instance types only how many there must be.
    pub(crate) fn requirements(&self) -> Requirements {
        match (&self.own, &self.fill) {
            (None, Some(Fill { shape, .. })) => {
                let mut requirements = shape.requirements.clone();
                if shape.min_types.is_some() {
                    let any = Requirement::exists(labels::INSTANCE_TYPE);
                    requirements.replace(any.with_min_values(shape.min_types));
                }
                requirements
            }
            _ => Requirements::from_api(&self.spec.requirements, &Unaliased).unwrap_or_default(),
        }
    }
}

impl From<NodeClaim> for DraftClaim {
    fn from(claim: NodeClaim) -> Self {
        Self {
            fill: None,
            written: OnceLock::new(),
            own: Some(Arc::new(claim)),
        }
    }
}

impl std::ops::Deref for DraftClaim {
    type Target = NodeClaim;

    fn deref(&self) -> &NodeClaim {
        match &self.own {
            Some(claim) => claim,
            None => self.written.get_or_init(|| Self::write(self.fill.as_ref())),
        }
    }
}

impl std::ops::DerefMut for DraftClaim {
    fn deref_mut(&mut self) -> &mut NodeClaim {
        let (fill, written) = (&self.fill, &mut self.written);
        let own = self.own.get_or_insert_with(|| {
            let claim = written.take().unwrap_or_else(|| Self::write(fill.as_ref()));
            Arc::new(*claim)
        });
        Arc::make_mut(own)
    }
}

impl PartialEq for DraftClaim {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for DraftClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        NodeClaim::fmt(self, f)
    }
}

/// The parts shared by drafts with the same requirements and instance types.
#[derive(Clone, Debug)]
pub(crate) struct DraftShape {
    pub(crate) pool: Arc<NodePool>,
    pub(crate) labels: BTreeMap<String, String>,
    /// Without the list of instance types.
    pub(crate) requirements: Requirements,
    pub(crate) instance_types: Arc<[String]>,
    /// minValues of the instance type requirement.
    pub(crate) min_types: Option<u32>,
    pub(crate) hourly_price: f64,
    pub(crate) overhead: Resources,
    pub(crate) reservations: Vec<String>,
    pub(crate) price_overlay: bool,
    pub(crate) capacity_overlay: bool,
    /// The NodeClaim of drafts of this shape, without pod requests; built on first access.
    pub(crate) prototype: OnceLock<Box<NodeClaim>>,
}

impl DraftShape {
    fn prototype(&self) -> &NodeClaim {
        self.prototype.get_or_init(|| Box::new(self.write()))
    }

    fn write(&self) -> NodeClaim {
        let mut claim = self.pool.spec.template.to_node_claim();
        let mut requirements = self.requirements.clone();
        let listed = Requirement::new(
            labels::INSTANCE_TYPE,
            Operator::In,
            self.instance_types.iter().map(String::as_str),
        );
        requirements.replace(listed.with_min_values(self.min_types));
        claim.spec.requirements = requirements.to_node_selector_requirements();
        let metadata = &mut claim.metadata;
        metadata.generate_name = Some(format!("{}-", self.pool.name()));
        metadata.owner_references = Some(vec![owner(&self.pool)]);
        metadata.labels = Some(self.labels.clone());
        let marks = metadata.annotations.get_or_insert_default();
        let mut mark = |key: &str, value: String| marks.insert(key.to_owned(), value);
        mark(annotations::NODE_POOL_HASH, hash::node_pool(&self.pool));
        mark(
            annotations::NODE_POOL_HASH_VERSION,
            hash::NODE_POOL_HASH_VERSION.to_owned(),
        );
        if let Some(kubelet) = self.pool.kubelet_compatibility() {
            mark(annotations::KUBELET_COMPATIBILITY, kubelet.to_owned());
        }
        if self.price_overlay {
            mark(annotations::PRICE_OVERLAY_APPLIED, "true".to_owned());
        }
        if self.capacity_overlay {
            mark(annotations::CAPACITY_OVERLAY_APPLIED, "true".to_owned());
        }
        claim
    }
}

fn owner(pool: &NodePool) -> OwnerReference {
    OwnerReference {
        api_version: "karpenter.sh/v1".to_owned(),
        kind: NodePool::KIND.to_owned(),
        name: pool.name().to_owned(),
        uid: pool.uid().to_owned(),
        block_owner_deletion: Some(true),
        controller: None,
    }
}
