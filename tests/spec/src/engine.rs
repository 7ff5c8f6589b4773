//! The engine's side of the comparison: builds its cluster from a world and reads its plan as a solution.

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::validation::WellKnown;
use karpenter_core::cluster::{Cluster, ClusterConfig, Snapshot};
use karpenter_core::pod::PodKey;
use karpenter_core::provider::NodeClassKind;
use karpenter_core::requirements::{Requirements, Unaliased};
use karpenter_core::schedule::{MinValuesPolicy, Plan, Policy, PreferencePolicy, ReservedMode};

use crate::pod::PodId;
use crate::solve::{Claim, Solution, SolveSettings};
use crate::world::World;

/// Returns a cluster of the engine with all objects of the world applied.
pub fn cluster(world: &World) -> Cluster {
    let well_known = world
        .well_known
        .iter()
        .fold(WellKnown::default(), |known, label| known.with_label(label));
    let mut node_classes: Vec<NodeClassKind> = Vec::new();
    for pool in &world.node_pools {
        let class = &pool.spec.template.spec.node_class_ref;
        if !node_classes
            .iter()
            .any(|known| known.group == class.group && known.kind == class.kind)
        {
            let plural = format!("{}es", class.kind.to_lowercase());
            node_classes.push(NodeClassKind {
                group: class.group.clone(),
                version: "v1".into(),
                kind: class.kind.clone(),
                plural,
            });
        }
    }
    let mut cluster = Cluster::new(ClusterConfig {
        well_known,
        node_classes,
        ..ClusterConfig::default()
    });
    for object in &world.namespaces {
        cluster.apply_namespace(object);
    }
    for object in &world.node_pools {
        cluster.apply_node_pool(object);
    }
    for (pool, types) in &world.instance_types {
        cluster.set_instance_types(pool, Ok(Arc::from(types.as_slice())));
    }
    for object in &world.storage_classes {
        cluster.apply_storage_class(object);
    }
    for object in &world.volumes {
        cluster.apply_volume(object);
    }
    for object in &world.volume_claims {
        cluster.apply_volume_claim(object);
    }
    for object in &world.daemon_sets {
        cluster.apply_daemon_set(object);
    }
    for object in &world.csi_nodes {
        cluster.apply_csi_node(object);
    }
    for object in &world.device_classes {
        cluster.apply_device_class(object);
    }
    for object in &world.resource_claims {
        cluster.apply_resource_claim(object);
    }
    for object in &world.resource_slices {
        cluster.apply_resource_slice(object);
    }
    for object in &world.nodes {
        cluster.apply_node(object);
    }
    for object in &world.node_claims {
        cluster.apply_node_claim(object);
    }
    for object in &world.pods {
        cluster.apply_pod(object);
    }
    cluster
}

/// Returns the engine's snapshot of the world.
pub fn snapshot(world: &World) -> Snapshot {
    cluster(world).snapshot()
}

/// Returns the engine's policy for a pass with these settings.
pub fn policy(settings: SolveSettings) -> Policy {
    let mut policy = Policy::at(Timestamp::UNIX_EPOCH);
    policy.ignore_dra_requests = false;
    if !settings.respect_preferences {
        policy.preference_policy = PreferencePolicy::Ignore;
    }
    if !settings.strict_min_values {
        policy.min_values_policy = MinValuesPolicy::BestEffort;
    }
    if !settings.strict_reserved {
        policy.reserved_mode = ReservedMode::Fallback;
    }
    policy
}

/// Converts the engine's plan into a solution.
pub fn solution(plan: &Plan) -> Solution {
    let id = |key: &PodKey| PodId {
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
    };
    let claims = plan.new_node_claims.iter().map(|draft| {
        let claim = draft.to_node_claim();
        let mut requirements =
            Requirements::from_api(&claim.spec.requirements, &Unaliased).unwrap_or_default();
        requirements.add_all(&Requirements::from_labels(
            &claim.metadata.labels.unwrap_or_default(),
            &Unaliased,
        ));
        Claim {
            pool: draft.node_pool.clone(),
            requirements,
            types: draft.instance_types.to_vec(),
            pods: draft.pods.iter().map(id).collect(),
        }
    });
    Solution {
        existing: plan
            .existing
            .iter()
            .map(|placement| (id(&placement.pod), placement.node.clone()))
            .collect(),
        claims: claims.collect(),
        unplaced: plan
            .unplaced
            .iter()
            .map(|unplaced| id(&unplaced.pod))
            .collect(),
    }
}
