//! What machines count against the limits of their NodePools, and whether there is room for those that were decided on.
//!
//! A machine that is not launched yet counts as the largest of the instance types it may become, as in the run that decided on
//! it: which one it becomes is known later. Machines that leave do not count.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/scheduler.go (calculateExistingNodeClaims), provisioner.go (Create),
//! pkg/apis/v1/nodepool.go (Limits.ExceededBy)

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::labels;
use karpenter_api::v1::{NodeClaim, NodePool};
use rustc_hash::FxHashMap;

use crate::cluster::{NodeState, Snapshot};
use crate::instance_type::InstanceType;
use crate::resources::{self, NODES, Resources};
use crate::schedule::ClaimDraft;

/// A NodePool has no room for one more machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{resource} resource usage of {usage} exceeds limit of {limit}")]
pub struct LimitExceeded {
    /// The resource.
    pub resource: String,
    /// What the pool would use with the machine, as Kubernetes writes it.
    pub usage: String,
    /// What it may use.
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

    /// The most of everything that one of these types has.
    fn largest<'n>(&self, names: impl IntoIterator<Item = &'n String>) -> Resources {
        let mut largest = Resources::new();
        let known = names
            .into_iter()
            .filter_map(|name| self.0.get(name.as_str()));
        known.for_each(|capacity| largest.max_assign(capacity));
        largest
    }

    /// What a machine counts, the largest it may become if it is not launched yet.
    pub(crate) fn usage(&self, machine: &NodeState) -> Resources {
        let mut usage = known_usage(machine);
        if let (true, Some(claim)) = (machine.is_launching(), &machine.claim) {
            usage.max_assign(&self.largest(named_types(claim)));
        }
        usage
    }
}

/// The instance types a NodeClaim names.
fn named_types(claim: &NodeClaim) -> impl Iterator<Item = &String> {
    let named = claim.spec.requirements.iter().filter(|requirement| {
        requirement.key == labels::INSTANCE_TYPE && requirement.operator.as_str() == "In"
    });
    named.flat_map(|requirement| &requirement.values)
}

/// What is known to count of a machine: its capacity, and before its launch what it was asked to have.
pub(crate) fn known_usage(machine: &NodeState) -> Resources {
    let mut usage = machine.capacity();
    if machine.is_launching() {
        usage.max_assign(&machine.allocatable());
    }
    usage.set(NODES, 1);
    usage
}

/// Room below the limits of NodePools, as things are when decisions are carried out.
///
/// Two who decide at the same time, the provisioner and disruption, do not see each other's machines; who comes second has to
/// look again. A plan that nobody came before always finds its room.
#[derive(Debug)]
pub struct Room<'a> {
    snapshot: &'a Snapshot,
    leaving: &'a BTreeSet<String>,
    pools: BTreeMap<&'a str, Pool<'a>>,
}

/// A pool as far as its room goes.
#[derive(Debug)]
struct Pool<'a> {
    sizes: Sizes<'a>,
    used: Resources,
}

impl<'a> Room<'a> {
    /// What a snapshot leaves; machines of `leaving` NodeClaims, which are replaced, do not count.
    pub fn new(snapshot: &'a Snapshot, leaving: &'a BTreeSet<String>) -> Self {
        Self {
            snapshot,
            leaving,
            pools: BTreeMap::new(),
        }
    }

    /// Takes the room for a machine of the pool.
    ///
    /// # Errors
    /// When there is none; nothing is taken then. Limits that cannot be read are for the decision to judge.
    pub fn take(&mut self, pool: &'a NodePool, draft: &ClaimDraft) -> Result<(), LimitExceeded> {
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
        after.add_assign(&sizes.largest(draft.instance_types.iter()));
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
    /// What the machines of a pool add up to, but those that leave.
    fn of(snapshot: &'a Snapshot, name: &str, leaving: &BTreeSet<String>) -> Self {
        let sizes = match snapshot.instance_types(name) {
            Some(Ok(types)) => Sizes::of(types),
            _ => Sizes::default(),
        };
        let stays = |machine: &NodeState| {
            let claim = machine.claim.as_deref().map(NodeClaim::name);
            !machine.is_deleting() && claim.is_some_and(|name| !leaving.contains(name))
        };
        let mut used = Resources::new();
        for machine in snapshot.nodes() {
            if machine.node_pool() == Some(name) && stays(machine) {
                used.add_assign(&sizes.usage(machine));
            }
        }
        Self { sizes, used }
    }
}
