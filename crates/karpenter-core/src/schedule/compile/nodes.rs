//! The existing nodes, with the resources that bound pods and DaemonSets leave.

use std::sync::Arc;

use index_vec::IndexVec;
use karpenter_api::labels;
use rustc_hash::FxHashMap;

use crate::cluster::{NodeState, Snapshot};
use crate::pod::HostPort;
use crate::requirements::{Requirement, Requirements};
use crate::resources::Resources;
use crate::schedule::compile::daemons::Daemon;
use crate::schedule::compile::ids::NodeIdx;
use crate::schedule::compile::vectors::{Dimensions, subtract};
use crate::taints::{Taint, untolerated};

/// A node of the cluster, or a NodeClaim that is launching one.
#[derive(Clone, Debug)]
pub(crate) struct ExistingNode {
    pub(crate) state: Arc<NodeState>,
    pub(crate) name: String,
    pub(crate) taints: Vec<Taint>,
    /// The requirements of a NodeClaim that is launching; other nodes have labels.
    pub(crate) requirements: Option<Requirements>,
    /// Some available resource is negative: no pod fits.
    pub(crate) broken: bool,
    /// Host ports of the DaemonSets that run or will run on it.
    pub(crate) daemon_ports: Vec<HostPort>,
}

impl ExistingNode {
    /// Returns the value of a label, if it is known.
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        if key == labels::HOSTNAME {
            return Some(self.state.hostname());
        }
        match self.state.labels().get(key) {
            Some(value) => Some(value),
            None => self
                .requirements
                .as_ref()
                .and_then(|all| all.get(key))
                .and_then(Requirement::single),
        }
    }

    /// Reports whether the node meets a requirement, by its labels or by the requirements of its NodeClaim.
    pub(crate) fn meets(&self, requirement: &Requirement) -> bool {
        match self.label(requirement.key()) {
            Some(value) => requirement.has(value),
            None => match self
                .requirements
                .as_ref()
                .and_then(|all| all.get(requirement.key()))
            {
                Some(present) => requirement.has_intersection(present),
                None => requirement.allows_absent(),
            },
        }
    }

    pub(crate) fn meets_all(&self, requirements: &Requirements) -> bool {
        requirements
            .iter()
            .all(|requirement| self.meets(requirement))
    }
}

/// The existing nodes.
pub(crate) struct Nodes {
    pub(crate) nodes: IndexVec<NodeIdx, ExistingNode>,
    pub(crate) index: FxHashMap<String, NodeIdx>,
    /// Free resources, node by node.
    pub(crate) remaining: Vec<i64>,
}

/// Returns the existing nodes, initialized ones first, then by name, with their free resources.
pub(crate) fn existing_nodes(
    snapshot: &Snapshot,
    daemons: &[Daemon],
    dimensions: &Dimensions,
) -> Nodes {
    let well_known = &snapshot.config().well_known;
    let mut states: Vec<&Arc<NodeState>> = snapshot
        .nodes()
        .filter(|node| !node.is_deleting())
        .collect();
    states.sort_by_cached_key(|node| (!node.is_initialized(), node.name().to_owned()));
    let mut remaining = Vec::with_capacity(states.len() * dimensions.len());
    let mut nodes = IndexVec::with_capacity(states.len());
    for state in states {
        let requirements = state
            .claim
            .as_ref()
            .filter(|_| state.is_launching())
            .map(|claim| {
                let mut requirements = Requirements::from_api(&claim.spec.requirements, well_known)
                    .unwrap_or_default();
                requirements.add_all(&Requirements::from_labels(state.labels(), well_known));
                requirements
            });
        let mut node = ExistingNode {
            state: state.clone(),
            name: state.name().to_owned(),
            taints: state.taints(),
            requirements,
            broken: false,
            daemon_ports: Vec::new(),
        };
        let pods = snapshot.node_pods(state.name());
        // Resources that the Node does not list are ignored, even if a pod requests them.
        let mut available = state.allocatable();
        if let Some(pods) = pods {
            let mut taken = pods.requests().clone();
            taken.retain(|name, _| available.contains(name));
            available.sub_assign(&taken);
        }
        node.broken = available.iter().any(|(_, value)| value < 0);
        let mut expected = Resources::new();
        for daemon in daemons {
            let runs = untolerated(&node.taints, &daemon.tolerations).is_none()
                && daemon
                    .sets
                    .iter()
                    .any(|alternative| node.meets_all(alternative));
            if runs {
                expected.add_assign(&daemon.shape.requests);
                let ports = daemon.shape.host_ports.iter().cloned();
                node.daemon_ports.extend(ports);
            }
        }
        expected.retain(|name, _| available.contains(name));
        let mut left = dimensions.vector(&available);
        let bound = pods.map(|pods| dimensions.vector(pods.daemon_requests()));
        let mut missing = dimensions.vector(&expected);
        if let Some(bound) = bound {
            subtract(&mut missing, &bound);
        }
        for missing in missing.iter_mut() {
            *missing = (*missing).max(0);
        }
        subtract(&mut left, &missing);
        remaining.extend_from_slice(&left);
        nodes.push(node);
    }
    let index = nodes
        .iter_enumerated()
        .map(|(index, node)| (node.name.clone(), index))
        .collect();
    Nodes {
        nodes,
        index,
        remaining,
    }
}
