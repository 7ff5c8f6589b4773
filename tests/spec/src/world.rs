//! A cluster as plain Kubernetes objects, the input of the naive solver and of the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Taint,
};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use karpenter_api::labels;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::resources::{NODES, Resources};

use crate::pod;

/// All objects of a cluster that scheduling reads.
#[derive(Clone, Default)]
pub struct World {
    /// Bound and unbound pods.
    pub pods: Vec<Pod>,
    pub nodes: Vec<Node>,
    /// NodeClaims, matched with their Node by provider id.
    pub node_claims: Vec<NodeClaim>,
    pub node_pools: Vec<NodePool>,
    /// Instance types by NodePool.
    pub instance_types: BTreeMap<String, Vec<InstanceType>>,
    pub daemon_sets: Vec<DaemonSet>,
    pub namespaces: Vec<Namespace>,
    pub volume_claims: Vec<PersistentVolumeClaim>,
    pub volumes: Vec<PersistentVolume>,
    pub storage_classes: Vec<StorageClass>,
    /// Attach limits of nodes.
    pub csi_nodes: Vec<CSINode>,
    /// Device classes. The naive solver ignores devices; the checker verifies them.
    pub device_classes: Vec<DeviceClass>,
    pub resource_claims: Vec<ResourceClaim>,
    /// Resource slices, which publish devices.
    pub resource_slices: Vec<ResourceSlice>,
    /// The labels that are defined once an instance type is chosen.
    pub well_known: BTreeSet<String>,
}

impl fmt::Debug for World {
    /// Writes one object per line, as JSON without empty fields, to keep failing cases readable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let World {
            pods,
            nodes,
            node_claims,
            node_pools,
            instance_types,
            daemon_sets,
            namespaces,
            ..
        } = self;
        for (pool, types) in instance_types {
            for instance_type in types {
                write!(
                    f,
                    "\n{pool} {}: {} {}",
                    instance_type.name, instance_type.capacity, instance_type.requirements
                )?;
                for device in instance_type.devices.iter().flat_map(|all| &all.devices) {
                    write!(
                        f,
                        "\n    device {} {:?} {:?}",
                        device.name, device.attributes, device.capacity
                    )?;
                }
                for offering in &instance_type.offerings {
                    let state = if offering.available {
                        ""
                    } else {
                        " (unavailable)"
                    };
                    write!(
                        f,
                        "\n    {} at {:.4}{state}",
                        offering.requirements, offering.price
                    )?;
                }
            }
        }
        lines(f, node_pools)?;
        lines(f, nodes)?;
        lines(f, node_claims)?;
        lines(f, daemon_sets)?;
        lines(f, namespaces)?;
        lines(f, pods)?;
        lines(f, &self.volume_claims)?;
        lines(f, &self.volumes)?;
        lines(f, &self.storage_classes)?;
        lines(f, &self.csi_nodes)?;
        lines(f, &self.device_classes)?;
        lines(f, &self.resource_claims)?;
        lines(f, &self.resource_slices)
    }
}

fn lines<T: serde::Serialize>(f: &mut fmt::Formatter<'_>, objects: &[T]) -> fmt::Result {
    for object in objects {
        let mut value = serde_json::to_value(object).map_err(|_| fmt::Error)?;
        prune(&mut value);
        write!(f, "\n{value}")?;
    }
    Ok(())
}

fn prune(value: &mut serde_json::Value) {
    use serde_json::Value::{Array, Null, Object};
    let is_empty = |value: &serde_json::Value| match value {
        Null => true,
        Array(items) => items.is_empty(),
        Object(fields) => fields.is_empty(),
        _ => false,
    };
    match value {
        Array(items) => items.iter_mut().for_each(prune),
        Object(fields) => {
            fields.values_mut().for_each(prune);
            fields.retain(|_, value| !is_empty(value));
        }
        _ => {}
    }
}

/// An existing or starting node: a Node, a launched NodeClaim, or both.
#[derive(Debug, Clone)]
pub(crate) struct SpecNode {
    pub name: String,
    pub labels: pod::Labels,
    pub taints: Vec<Taint>,
    pub allocatable: Resources,
    pub capacity: Resources,
    pub initialized: bool,
    pub deleting: bool,
}

impl World {
    /// Returns the nodes, initialized ones first, then by name.
    pub(crate) fn nodes(&self) -> Vec<SpecNode> {
        let claim_of = |node: &Node| {
            let id = node
                .spec
                .as_ref()?
                .provider_id
                .clone()
                .filter(|id| !id.is_empty())?;
            self.node_claims
                .iter()
                .find(|claim| claim.status.provider_id.as_ref() == Some(&id))
        };
        let joined: BTreeSet<&str> = self
            .nodes
            .iter()
            .filter_map(claim_of)
            .map(NodeClaim::name)
            .collect();
        let nodes = self
            .nodes
            .iter()
            .map(|node| joined_node(Some(node), claim_of(node)));
        let launched = self
            .node_claims
            .iter()
            .filter(|claim| claim.status.provider_id.is_some() && !joined.contains(claim.name()));
        let mut all: Vec<SpecNode> = nodes
            .chain(launched.map(|claim| joined_node(None, Some(claim))))
            .collect();
        all.sort_by(|a, b| {
            b.initialized
                .cmp(&a.initialized)
                .then_with(|| a.name.cmp(&b.name))
        });
        all
    }

    pub(crate) fn namespace_labels(&self, name: &str) -> pod::Labels {
        let found = self
            .namespaces
            .iter()
            .find(|namespace| namespace.metadata.name.as_deref() == Some(name));
        found
            .and_then(|namespace| namespace.metadata.labels.clone())
            .unwrap_or_default()
    }

    /// Returns the capacity of a NodePool's nodes that counts against its limits.
    pub(crate) fn usage(&self, pool: &str) -> Resources {
        let mut usage = Resources::new();
        let owned = |node: &SpecNode| {
            node.labels
                .get(labels::NODE_POOL)
                .is_some_and(|owner| owner == pool)
        };
        for node in self
            .nodes()
            .iter()
            .filter(|node| owned(node) && !node.deleting)
        {
            usage.add_assign(&node.capacity);
            usage.add_assign(&Resources::new().with(NODES, 1));
        }
        usage
    }
}

/// Joins a Node and its NodeClaim (sections 5 and 8): labels and taints are the NodeClaim's until the Node registers, and
/// resources that the Node has not reported are the NodeClaim's until it is initialized.
fn joined_node(node: Option<&Node>, claim: Option<&NodeClaim>) -> SpecNode {
    let node_labels = node
        .and_then(|node| node.metadata.labels.clone())
        .unwrap_or_default();
    let is_set = |label: &str| node_labels.get(label).is_some_and(|value| value == "true");
    let registered = node.is_some() && (claim.is_none() || is_set(labels::REGISTERED));
    let initialized = node.is_some() && (claim.is_none() || is_set(labels::INITIALIZED));
    let node_spec = node.and_then(|node| node.spec.clone()).unwrap_or_default();
    let node_status = node
        .and_then(|node| node.status.clone())
        .unwrap_or_default();
    let claim_or_default = claim.cloned().unwrap_or_default();
    let name = node
        .and_then(|node| node.metadata.name.clone())
        .unwrap_or_else(|| claim_or_default.name().to_owned());
    let mut labels = if registered {
        node_labels
    } else {
        claim_or_default.metadata.labels.clone().unwrap_or_default()
    };
    labels
        .entry(labels::HOSTNAME.to_owned())
        .or_insert_with(|| name.clone());
    let mut taints = if registered {
        node_spec.taints.unwrap_or_default()
    } else {
        claim_or_default.spec.taints.clone()
    };
    if !initialized {
        let startup = &claim_or_default.spec.startup_taints;
        taints.retain(|taint| {
            !labels::taints::is_known_ephemeral(taint)
                && !startup.iter().any(|own| labels::taints::same(own, taint))
        });
    }
    let amounts = |of_node: Option<_>, of_claim: &karpenter_api::ResourceList| {
        let mut amounts = of_node
            .and_then(|list| Resources::allocatable_from(&list).ok())
            .unwrap_or_default();
        if !initialized {
            for (name, amount) in Resources::allocatable_from(of_claim)
                .unwrap_or_default()
                .iter()
            {
                if amounts.get(name) == 0 {
                    amounts.set(name, amount);
                }
            }
        }
        amounts
    };
    SpecNode {
        allocatable: amounts(
            node_status.allocatable,
            &claim_or_default.status.allocatable,
        ),
        capacity: amounts(node_status.capacity, &claim_or_default.status.capacity),
        deleting: match claim {
            Some(claim) => claim.metadata.deletion_timestamp.is_some(),
            None => node.is_some_and(|node| node.metadata.deletion_timestamp.is_some()),
        },
        name,
        labels,
        taints,
        initialized,
    }
}
