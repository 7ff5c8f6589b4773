//! NodePool limits: the resources that nodes count with, and whether planned nodes are within the limits.
//!
//! A NodeClaim without an instance counts as the largest of its instance types, as in the scheduling pass that planned it, because
//! the launched instance type is not known yet. Deleting nodes do not count.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/scheduler.go (calculateExistingNodeClaims), provisioner.go (Create),
//! pkg/apis/v1/nodepool.go (Limits.ExceededBy)

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::labels;
use karpenter_api::v1::{NodeClaim, NodePool};
use rustc_hash::FxHashMap;

use crate::cluster::{NodeState, Snapshot};
use crate::instance_type::InstanceType;
use crate::resources;
use crate::resources::{NODES, Resources};
use crate::schedule::PlannedNodeClaim;

/// A NodePool has no headroom for one more node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{resource} resource usage of {usage} exceeds limit of {limit}")]
pub struct LimitExceeded {
    /// The resource.
    pub resource: String,
    /// The usage of the NodePool including the node, as a Kubernetes quantity.
    pub usage: String,
    /// The limit of the NodePool.
    pub limit: String,
}

/// The capacities of instance types by name.
#[derive(Debug, Default)]
pub(crate) struct Sizes<'a>(FxHashMap<&'a str, &'a Resources>);

impl<'a> Sizes<'a> {
    pub(crate) fn of(types: &'a [InstanceType]) -> Self {
        Self(
            types
                .iter()
                .map(|t| (t.name.as_str(), &t.capacity))
                .collect(),
        )
    }

    /// Returns the largest amount of each resource over the named types.
    fn largest<'n>(&self, names: impl IntoIterator<Item = &'n String>) -> Resources {
        let mut largest = Resources::new();
        let known = names
            .into_iter()
            .filter_map(|name| self.0.get(name.as_str()));
        known.for_each(|capacity| largest.max_assign(capacity));
        largest
    }

    /// Returns the resources that a node counts with: those of the largest possible type if it is not launched yet.
    pub(crate) fn usage(&self, node: &NodeState) -> Resources {
        let mut usage = known_usage(node);
        if let (true, Some(claim)) = (node.is_launching(), &node.claim) {
            usage.max_assign(&self.largest(named_types(claim)));
        }
        usage
    }
}

/// Returns the instance types in the requirements of a NodeClaim.
fn named_types(claim: &NodeClaim) -> impl Iterator<Item = &String> {
    let named = claim.spec.requirements.iter().filter(|requirement| {
        requirement.key == labels::INSTANCE_TYPE && requirement.operator.as_str() == "In"
    });
    named.flat_map(|requirement| &requirement.values)
}

/// Returns the known resources of a node: its capacity, and before its launch also its requests.
pub fn known_usage(node: &NodeState) -> Resources {
    let mut usage = node.capacity();
    if node.is_launching() {
        usage.max_assign(&node.allocatable());
    }
    usage.set(NODES, 1);
    usage
}

/// The headroom below the limits of NodePools at the time a plan is carried out.
///
/// Provisioning and disruption plan concurrently and do not see each other's planned nodes, so limits are checked again here.
/// Without a concurrent plan, the check of a valid plan always succeeds.
#[derive(Debug)]
pub struct LimitHeadroom<'a> {
    snapshot: &'a Snapshot,
    leaving: &'a BTreeSet<String>,
    pools: BTreeMap<&'a str, Pool<'a>>,
}

/// The usage of a NodePool.
#[derive(Debug)]
struct Pool<'a> {
    sizes: Sizes<'a>,
    used: Resources,
}

impl<'a> LimitHeadroom<'a> {
    /// Computes the headroom in a snapshot; nodes of the NodeClaims in `leaving`, which are being replaced, do not count.
    pub fn new(snapshot: &'a Snapshot, leaving: &'a BTreeSet<String>) -> Self {
        Self {
            snapshot,
            leaving,
            pools: BTreeMap::new(),
        }
    }

    /// Adds a planned node to the usage of the NodePool.
    ///
    /// # Errors
    /// Fails if a limit would be exceeded; nothing is added then. Invalid limits are ignored here, because planning rejects them.
    pub fn take(
        &mut self,
        pool: &'a NodePool,
        planned: &PlannedNodeClaim,
    ) -> Result<(), LimitExceeded> {
        if pool.spec.limits.is_empty() {
            return Ok(());
        }
        let Ok(limits) = Resources::allocatable_from(&pool.spec.limits) else {
            return Ok(());
        };
        let Pool { sizes, used } = self
            .pools
            .entry(pool.name())
            .or_insert_with(|| Pool::of(self.snapshot, pool.name(), self.leaving));
        let mut after = used.clone();
        after.add_assign(&sizes.largest(planned.instance_types.iter()));
        after.set(NODES, after.get(NODES).saturating_add(1));
        for (name, limit) in limits.iter() {
            if after.get(name) > limit {
                let text = |amount| resources::quantity(name, amount).to_string();
                return Err(LimitExceeded {
                    resource: name.to_owned(),
                    usage: text(after.get(name)),
                    limit: text(limit),
                });
            }
        }
        *used = after;
        Ok(())
    }
}

impl<'a> Pool<'a> {
    /// Sums the usage of a NodePool's nodes, except deleting ones and those in `leaving`.
    fn of(snapshot: &'a Snapshot, name: &str, leaving: &BTreeSet<String>) -> Self {
        let sizes = match snapshot.instance_types(name) {
            Some(Ok(types)) => Sizes::of(types),
            _ => Sizes::default(),
        };
        let stays = |node: &NodeState| {
            let claim = node.claim.as_deref().map(NodeClaim::name);
            !node.is_deleting() && claim.is_some_and(|name| !leaving.contains(name))
        };
        let mut used = Resources::new();
        for node in snapshot.nodes() {
            if node.node_pool() == Some(name) && stays(node) {
                used.add_assign(&sizes.usage(node));
            }
        }
        Self { sizes, used }
    }
}
