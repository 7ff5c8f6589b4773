//! Makes changes to a copy of a snapshot.

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;
use karpenter_api::labels::annotations;
use karpenter_api::v1::{Budget, NodePool};
use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::disruption::DisruptionRequest;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::pod::{Pod, Toleration};

use super::{Change, InvalidChange, MAX_CHANGES};
use crate::blocking::{admit_offering, make_available, set_ready, toleration};

/// The instance types of a NodePool.
type Types = Arc<[InstanceType]>;

/// A question after its changes.
#[derive(Clone)]
pub struct Changed {
    pub snapshot: Snapshot,
    /// The request to the engine.
    pub request: DisruptionRequest,
    /// What the pod that is asked about tolerates in addition.
    pub tolerations: Vec<Toleration>,
    /// The constraints that are dropped, by id.
    pub dropped: Vec<String>,
    /// Whether the changes decide where pods fit, so that the snapshot has to be compiled again.
    pub places: bool,
}

/// Makes changes to a copy of the snapshot and to the request.
///
/// # Errors
/// If an object that is changed does not exist, or there are too many changes.
pub fn apply(
    changes: &[Change],
    snapshot: &Snapshot,
    request: &DisruptionRequest,
) -> Result<Changed, InvalidChange> {
    if changes.len() > MAX_CHANGES {
        return Err(InvalidChange::TooMany);
    }
    let mut applier = ChangeApplier {
        cluster: Cluster::from(snapshot.fork()),
        changed: Changed {
            snapshot: snapshot.fork(),
            request: request.clone(),
            tolerations: Vec::new(),
            dropped: Vec::new(),
            places: false,
        },
    };
    for change in changes {
        applier.apply_one(change)?;
    }
    let snapshot = applier.cluster.snapshot();
    Ok(Changed {
        snapshot,
        ..applier.changed
    })
}

/// Applies changes one after another.
struct ChangeApplier {
    cluster: Cluster,
    /// Everything but the snapshot, which is that of the cluster.
    changed: Changed,
}

impl ChangeApplier {
    fn apply_one(&mut self, change: &Change) -> Result<(), InvalidChange> {
        match change {
            Change::Budget(pool, nodes) => self.pool(pool, |pool| {
                pool.spec.disruption.budgets = vec![Budget {
                    nodes: nodes.clone(),
                    ..Budget::default()
                }];
            }),
            Change::Policy(pool, policy) => self.pool(pool, |pool| {
                pool.spec.disruption.consolidation_policy = policy.clone();
            }),
            Change::ConsolidateAfter(pool, after) => self.pool(pool, |pool| {
                pool.spec.disruption.consolidate_after = after.clone();
            }),
            Change::WithoutPause(pool) => self.pool(pool, |pool| {
                let all = pool.metadata.annotations.get_or_insert_default();
                all.remove(annotations::PAUSED);
            }),
            Change::Limit(target, amount) => {
                self.changed.places = true;
                let snapshot = self.cluster.snapshot();
                let splits = target.match_indices('.').map(|(at, _)| at);
                let named = splits
                    .map(|at| (&target[..at], &target[at + 1..]))
                    .rfind(|(pool, _)| snapshot.node_pool(pool).is_some());
                let (pool, resource) = named.ok_or_else(|| not_found("NodePool", target))?;
                self.pool(pool, |pool| {
                    let limit = WireQuantity(amount.clone());
                    pool.spec.limits.insert(resource.to_owned(), limit);
                })
            }
            Change::WithoutPdb(namespace, name) => {
                let removed = self.cluster.remove_pdb(namespace, name).before;
                let name = || format!("{namespace}/{name}");
                exists(removed.is_some(), "PodDisruptionBudget", name)
            }
            Change::WithoutPodAnnotation(namespace, name) => {
                let snapshot = self.cluster.snapshot();
                let pod = snapshot.pod(namespace, name);
                let pod = pod.ok_or_else(|| not_found("Pod", &format!("{namespace}/{name}")))?;
                self.cluster.insert_pod(without_annotation(pod));
                Ok(())
            }
            Change::WithoutNodeAnnotation(name) => self.without_node_annotation(name),
            Change::WithoutNomination(name) => {
                self.node(name)?;
                self.cluster.nominate(name, Timestamp::MIN);
                Ok(())
            }
            Change::Consolidatable(name) => self.consolidatable(name),
            Change::SpotToSpot => {
                self.changed.request.spot_to_spot = true;
                Ok(())
            }
            Change::Tolerate(taint) => {
                self.changed.tolerations.push(toleration(taint));
                Ok(())
            }
            Change::Drop(id) => {
                self.changed.dropped.push(id.clone());
                Ok(())
            }
            Change::Pool(pool) => self.add_pool(pool),
            Change::Pdb(budget) => {
                self.cluster.apply_pdb(budget);
                Ok(())
            }
            Change::Offer {
                instance_type,
                zone,
                capacity_type,
            } => {
                self.changed.places = true;
                self.offer(instance_type, zone, capacity_type)
            }
            Change::Now(now) => {
                self.changed.places = true;
                self.changed.request.policy.now = *now;
                Ok(())
            }
        }
    }

    fn pool(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut NodePool),
    ) -> Result<(), InvalidChange> {
        let snapshot = self.cluster.snapshot();
        let pool = snapshot.node_pool(name);
        let mut pool = NodePool::clone(pool.ok_or_else(|| not_found("NodePool", name))?);
        change(&mut pool);
        self.cluster.apply_node_pool(&pool);
        Ok(())
    }

    fn node(&self, name: &str) -> Result<(), InvalidChange> {
        let known = self.cluster.snapshot().node(name).is_some();
        exists(known, "Node", || name.to_owned())
    }

    fn without_node_annotation(&mut self, name: &str) -> Result<(), InvalidChange> {
        let snapshot = self.cluster.snapshot();
        let node = snapshot.node(name).and_then(|node| node.node.as_ref());
        let node = node.and_then(|node| snapshot.node_object(&node.name));
        let mut node = node
            .ok_or_else(|| not_found("Node", name))?
            .as_ref()
            .clone();
        let all = node.metadata.annotations.get_or_insert_default();
        all.remove(annotations::DO_NOT_DISRUPT);
        all.remove(annotations::DO_NOT_CONSOLIDATE);
        self.cluster.apply_node(&node);
        Ok(())
    }

    fn consolidatable(&mut self, name: &str) -> Result<(), InvalidChange> {
        let snapshot = self.cluster.snapshot();
        let claim = snapshot.node(name).and_then(|node| node.claim.as_ref());
        let claim = claim.ok_or_else(|| not_found("Node", name))?;
        let recent = &mut self.changed.request.surroundings.recent_replacements;
        recent.remove(claim.name());
        let mut claim = claim.as_ref().clone();
        claim.set_true(types::CONSOLIDATABLE, self.changed.request.policy.now);
        self.cluster.apply_node_claim(&claim);
        Ok(())
    }

    /// Adds or replaces a NodePool. A new one counts as ready, and has the instance types of a NodePool with the same NodeClass.
    fn add_pool(&mut self, pool: &NodePool) -> Result<(), InvalidChange> {
        let snapshot = self.cluster.snapshot();
        let mut pool = pool.clone();
        let name = pool.name().to_owned();
        let known = snapshot.node_pool(&name);
        pool.status = known.map(|known| known.status.clone()).unwrap_or_default();
        if known.is_none() {
            set_ready(pool.conditions_mut());
        }
        // Where pods fit does not depend on the disruption settings of a NodePool.
        self.changed.places |= known.is_none_or(|known| {
            let mut spec = known.spec.clone();
            spec.disruption.clone_from(&pool.spec.disruption);
            spec != pool.spec || known.metadata != pool.metadata
        });
        let class = |pool: &NodePool| pool.spec.template.spec.node_class_ref.clone();
        if snapshot.instance_types(&name).is_none()
            || known.is_some_and(|known| class(known) != class(&pool))
        {
            let mut others = snapshot
                .node_pools()
                .filter(|other| class(other) == class(&pool));
            let types = others.find_map(|other| snapshot.instance_types(other.name()).cloned());
            let types = types
                .ok_or_else(|| not_found("NodePool with the NodeClass of NodePool", pool.name()))?;
            self.cluster.set_instance_types(&name, types);
        }
        self.cluster.apply_node_pool(&pool);
        Ok(())
    }

    fn offer(
        &mut self,
        instance_type: &str,
        zone: &str,
        capacity_type: &str,
    ) -> Result<(), InvalidChange> {
        let snapshot = self.cluster.snapshot();
        let mut found = false;
        // NodePools that share a catalogue share the changed one.
        let mut made: Vec<(Types, Types)> = Vec::new();
        for pool in snapshot.node_pools() {
            let Some(Ok(types)) = snapshot.instance_types(pool.name()) else {
                continue;
            };
            let known = made.iter().find(|(from, _)| Arc::ptr_eq(from, types));
            let changed = match known {
                Some((_, changed)) => changed.clone(),
                None => {
                    let Some(changed) = offered(types, instance_type, zone, capacity_type) else {
                        continue;
                    };
                    made.push((types.clone(), changed.clone()));
                    changed
                }
            };
            found = true;
            self.cluster.set_instance_types(pool.name(), Ok(changed));
        }
        exists(found, "offering", || {
            format!("{instance_type}/{zone}/{capacity_type}")
        })
    }
}

/// Returns the instance types with an offering made available; `None` if there is no such offering.
fn offered(
    types: &[InstanceType],
    instance_type: &str,
    zone: &str,
    capacity_type: &str,
) -> Option<Types> {
    let mut types = types.to_vec();
    let kind = types.iter_mut().find(|kind| kind.name == instance_type)?;
    let mut offerings = kind.offerings.iter_mut();
    let offering = offerings.find(|offering| {
        offering.zone() == Some(zone) && offering.capacity_type() == Some(capacity_type)
    })?;
    make_available(offering);
    admit_offering(&mut kind.requirements, capacity_type, zone);
    Some(types.into())
}

/// Returns the pod without the annotations that keep it from being disrupted.
pub(crate) fn without_annotation(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    pod.annotations.remove(annotations::DO_NOT_DISRUPT);
    pod.annotations.remove(annotations::DO_NOT_EVICT);
    pod
}

fn exists(
    found: bool,
    kind: &'static str,
    name: impl FnOnce() -> String,
) -> Result<(), InvalidChange> {
    match found {
        true => Ok(()),
        false => Err(not_found(kind, &name())),
    }
}

fn not_found(kind: &'static str, name: &str) -> InvalidChange {
    InvalidChange::NotFound {
        kind,
        name: name.chars().take(128).collect(),
    }
}
