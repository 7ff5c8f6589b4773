//! The pods of DaemonSets, as they will run on new nodes.

use std::sync::Arc;

use karpenter_api::validation::WellKnown;

use crate::cluster::Snapshot;
use crate::pod::{NodeTerm, Shape, Toleration};
use crate::requirements::Requirements;
use crate::schedule::compile::node_affinity::alternatives;
use crate::schedule::request::Policy;

/// A DaemonSet's pod, as it will run on a new node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Daemon {
    pub(crate) shape: Arc<Shape>,
    pub(crate) tolerations: Vec<Toleration>,
    /// Node selector with each alternative of the required node affinity.
    pub(crate) sets: Vec<Requirements>,
}

impl Daemon {
    pub(crate) fn new(shape: &Arc<Shape>, terms: &[NodeTerm], well_known: &WellKnown) -> Self {
        let mut tolerations = shape.tolerations.clone();
        tolerations.push(Toleration::any_prefer_no_schedule());
        Self {
            shape: shape.clone(),
            tolerations,
            sets: alternatives(shape, terms, well_known),
        }
    }
}

/// Returns the DaemonSets whose pods new nodes will run. Pods that exist are preferred to the template.
pub(crate) fn daemons(snapshot: &Snapshot, policy: &Policy) -> Vec<Daemon> {
    let well_known = &snapshot.config().well_known;
    snapshot
        .daemon_sets()
        .filter_map(|(set, newest)| {
            let live = newest.unwrap_or(&set.template);
            let terms = if set.template_has_affinity || newest.is_none() {
                &set.template.shape.required_nodes
            } else {
                &live.shape.required_nodes
            };
            if policy.ignore_dra_requests && !live.shape.resource_claims.is_empty() {
                return None;
            }
            Some(Daemon::new(&live.shape, terms, well_known))
        })
        .collect()
}
