//! The last step before a launch: which planned nodes may still be launched, and their NodeClaims.

use std::collections::BTreeSet;

use karpenter_api::v1::NodeClaim;

use crate::cluster::Snapshot;
use crate::limits::{LimitExceeded, LimitHeadroom};
use crate::schedule::PlannedNodeClaim;

/// Why no NodeClaim is created for a planned node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotAdmitted {
    /// The NodePool does not exist any more.
    #[error("nodepool `{0}` not found")]
    NoPool(String),
    /// The NodePool has grown since the plan.
    #[error(transparent)]
    LimitExceeded(#[from] LimitExceeded),
}

/// Returns the NodeClaim to create for each planned node, or why there is none. Nodes of `replaced` NodeClaims do not count against
/// limits.
///
/// UPSTREAM: pkg/controllers/provisioning/provisioner.go (Create)
pub fn admit(
    snapshot: &Snapshot,
    planned: &[PlannedNodeClaim],
    replaced: &BTreeSet<String>,
) -> Vec<Result<NodeClaim, NotAdmitted>> {
    let mut room = LimitHeadroom::new(snapshot, replaced);
    let admit = |planned: &PlannedNodeClaim| {
        let pool = snapshot.node_pool(&planned.node_pool);
        let pool = pool.ok_or_else(|| NotAdmitted::NoPool(planned.node_pool.clone()))?;
        room.take(pool, planned)?;
        let mut claim = planned.to_node_claim();
        let grace = &mut claim.spec.termination_grace_period;
        if grace.is_none() {
            grace.clone_from(&snapshot.config().default_termination_grace_period);
        }
        Ok(claim)
    };
    planned.iter().map(admit).collect()
}

/// Returns whether a planned node has limits: such NodeClaims are created by one caller at a time, so that the next one counts them.
pub fn has_limits(snapshot: &Snapshot, planned: &[PlannedNodeClaim]) -> bool {
    let pools = planned.iter().map(|it| snapshot.node_pool(&it.node_pool));
    pools.flatten().any(|pool| !pool.spec.limits.is_empty())
}

#[cfg(test)]
mod tests {
    use karpenter_api::validation::WellKnown;
    use karpenter_fixtures::node_pool;

    use super::*;
    use crate::cluster::{Cluster, ClusterConfig};

    /// Conformance: SCH-009
    #[test]
    fn a_nodeclaim_has_the_grace_period_of_its_nodepool_or_the_providers() {
        for (of_pool, of_provider, expected) in [
            (Some("7m"), Some("3m"), Some("7m")),
            (None, Some("3m"), Some("3m")),
            (None, None, None),
        ] {
            let mut pool = node_pool("p").build();
            let parsed = |text: Option<&str>| text.map(|text| text.parse().unwrap());
            pool.spec.template.spec.termination_grace_period = parsed(of_pool);
            let mut cluster = Cluster::new(ClusterConfig {
                default_termination_grace_period: parsed(of_provider),
                ..ClusterConfig::default()
            });
            cluster.apply_node_pool(&pool);
            let planned = [PlannedNodeClaim::from_template(
                &pool,
                &WellKnown::default(),
            )];
            let admitted = admit(&cluster.snapshot(), &planned, &BTreeSet::new());
            let claim = admitted[0].as_ref().unwrap();
            assert_eq!(claim.spec.termination_grace_period, parsed(expected));
        }
    }

    #[test]
    fn a_node_whose_nodepool_is_gone_or_at_its_limit_is_not_launched() {
        let pool = node_pool("p").limit("nodes", "1").build();
        let planned = PlannedNodeClaim::from_template(&pool, &WellKnown::default());
        let planned = [planned.clone(), planned];
        let mut cluster = Cluster::new(ClusterConfig::default());
        let why = |cluster: &Cluster| -> Vec<String> {
            let admitted = admit(&cluster.snapshot(), &planned, &BTreeSet::new());
            let errors = admitted.into_iter().filter_map(Result::err);
            errors.map(|error| error.to_string()).collect()
        };
        assert_eq!(why(&cluster), ["nodepool `p` not found"; 2]);
        cluster.apply_node_pool(&pool);
        let full = "nodes resource usage of 2 exceeds limit of 1";
        assert_eq!(why(&cluster), [full], "the first one takes the place");
    }
}
