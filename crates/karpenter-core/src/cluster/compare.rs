//! What two snapshots of one cluster have in common. Objects are compared by address where the model stores them unchanged.

use std::sync::Arc;

use karpenter_api::v1::{NodePool, NodePoolStatus};

use super::Snapshot;
use crate::instance_type::InstanceType;

/// Reports whether two maps have the same objects under the same keys.
fn is_same<'a, K: PartialEq + 'a, T: 'a>(
    a: impl Iterator<Item = (&'a K, &'a Arc<T>)>,
    b: impl Iterator<Item = (&'a K, &'a Arc<T>)>,
) -> bool {
    let by_address = |(key, object): (&'a K, &'a Arc<T>)| (key, Arc::as_ptr(object));
    a.map(by_address).eq(b.map(by_address))
}

/// Returns the parts of a NodePool that plans depend on: not its usage, nor the times and messages of its conditions.
fn decisive(pool: &NodePool) -> NodePool {
    let mut pool = pool.clone();
    pool.metadata.resource_version = None;
    pool.metadata.managed_fields = None;
    let ready = |condition: &karpenter_api::conditions::Condition| condition.type_ == "Ready";
    let conditions = std::mem::take(&mut pool.status.conditions);
    let conditions = conditions.into_iter().filter(ready).map(|mut condition| {
        condition.message = String::new();
        condition.last_transition_time =
            karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                jiff::Timestamp::UNIX_EPOCH,
            );
        condition
    });
    pool.status = NodePoolStatus {
        conditions: conditions.collect(),
        ..NodePoolStatus::default()
    };
    pool
}

/// The instance types of a NodePool, or the provider's error.
type Types = Result<Arc<[InstanceType]>, String>;

fn has_same_types(a: &Types, b: &Types) -> bool {
    match (a, b) {
        (Ok(a), Ok(b)) => Arc::ptr_eq(a, b) || a == b,
        (Err(a), Err(b)) => a == b,
        _ => false,
    }
}

impl Snapshot {
    /// Reports whether NodePools, instance types, NodeOverlays, namespaces and device classes are those of another snapshot; with
    /// `selectors` also the selectors of Services and workload controllers.
    pub(crate) fn has_settings_of(&self, other: &Self, selectors: bool) -> bool {
        let (a, b) = (&self.state, &other.state);
        let pools = a.pools.size() == b.pools.size()
            && (a.pools.values().zip(b.pools.values()))
                .all(|(a, b)| Arc::ptr_eq(a, b) || decisive(a) == decisive(b));
        let types = a.instance_types.size() == b.instance_types.size()
            && (a.instance_types.iter().zip(b.instance_types.iter()))
                .all(|((pool, a), (other, b))| pool == other && has_same_types(a, b));
        pools
            && types
            && is_same(a.overlays.iter(), b.overlays.iter())
            && is_same(a.namespaces.iter(), b.namespaces.iter())
            && (!selectors
                || (is_same(a.services.iter(), b.services.iter())
                    && is_same(a.replica_sets.iter(), b.replica_sets.iter())
                    && is_same(a.stateful_sets.iter(), b.stateful_sets.iter())
                    && is_same(
                        a.replication_controllers.iter(),
                        b.replication_controllers.iter(),
                    )))
    }

    /// Reports whether volume claims, volumes and storage classes are those of another snapshot.
    pub(crate) fn has_storage_of(&self, other: &Self) -> bool {
        let (a, b) = (&self.state, &other.state);
        is_same(a.volume_claims.iter(), b.volume_claims.iter())
            && is_same(a.volumes.iter(), b.volumes.iter())
            && is_same(a.storage_classes.iter(), b.storage_classes.iter())
    }

    /// Returns the names of the nodes for which only one of two snapshots has certain limits of attached volumes.
    pub(crate) fn nodes_with_other_attach_limits(&self, other: &Self) -> Vec<String> {
        let (a, b) = (&self.state.csi_nodes, &other.state.csi_nodes);
        if is_same(a.iter(), b.iter()) {
            return Vec::new();
        }
        let differs = |name: &&String| match (a.get(*name), b.get(*name)) {
            (Some(a), Some(b)) => !Arc::ptr_eq(a, b) && a != b,
            _ => true,
        };
        let mut names: Vec<String> = a.keys().filter(differs).cloned().collect();
        names.extend(b.keys().filter(|name| !a.contains_key(*name)).cloned());
        names
    }
}
