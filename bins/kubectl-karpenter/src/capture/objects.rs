//! The state of a cluster from its objects, for clusters without our controller.

use jiff::Timestamp;
use k8s_openapi::api::{apps, core, policy, resource, storage};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_core::cluster::{Cluster as Model, ClusterConfig};
use karpenter_core::provider::NodeClassKind;
use karpenter_core::requirements::Requirement;
use karpenter_decisions::bundle::catalogue::Catalogue;
use karpenter_decisions::bundle::{Bundle, Settings};

use crate::cluster::Cluster;

/// Lists all objects that decisions depend on.
pub(super) async fn capture(
    cluster: &Cluster,
    catalogue: Option<&Catalogue>,
) -> anyhow::Result<Bundle> {
    let mut pools: Vec<NodePool> = Vec::new();
    cluster.each(None, false, |pool| pools.push(pool)).await?;
    let mut model = Model::new(config(&pools, catalogue));
    for pool in &pools {
        model.apply_node_pool(pool);
        if let Some(types) = catalogue.and_then(|all| all.instance_types(pool.name())) {
            model.set_instance_types(pool.name(), Ok(types));
        }
    }
    macro_rules! list {
        (optional: $optional:literal, $($kind:ty: $apply:ident,)+) => {
            $(cluster.each(None, $optional, |it: $kind| drop(model.$apply(&it))).await?;)+
        };
    }
    // Nodes before their pods: the order has no effect on the model, but a listing is not atomic.
    list! {
        optional: false,
        NodeClaim: apply_node_claim,
        core::v1::Node: apply_node,
        core::v1::Namespace: apply_namespace,
        core::v1::Pod: apply_pod,
        apps::v1::DaemonSet: apply_daemon_set,
        policy::v1::PodDisruptionBudget: apply_pdb,
        core::v1::PersistentVolumeClaim: apply_volume_claim,
        core::v1::PersistentVolume: apply_volume,
        storage::v1::StorageClass: apply_storage_class,
        storage::v1::CSINode: apply_csi_node,
        storage::v1::VolumeAttachment: apply_volume_attachment,
    }
    // Kinds that a cluster may not serve.
    list! {
        optional: true,
        NodeOverlay: apply_node_overlay,
        resource::v1::ResourceSlice: apply_resource_slice,
        resource::v1::ResourceClaim: apply_resource_claim,
        resource::v1::DeviceClass: apply_device_class,
    }
    let provider = pools.first().map_or("unknown", |pool| {
        pool.spec.template.spec.node_class_ref.group.as_str()
    });
    let settings = Settings::at(Timestamp::now());
    let engine = env!("CARGO_PKG_VERSION");
    Ok(Bundle::new(provider, engine, model.snapshot(), settings))
}

/// Returns what the model must know about the provider: the labels that its instance types define, and its NodeClass kinds.
fn config(pools: &[NodePool], catalogue: Option<&Catalogue>) -> ClusterConfig {
    let mut config = ClusterConfig::default();
    let types = catalogue
        .into_iter()
        .flat_map(|all| all.node_pools.values());
    for instance_type in types.flatten() {
        let own = instance_type.requirements.iter();
        let offered = instance_type.offerings.iter();
        let offered = offered.flat_map(|offering| offering.requirements.iter());
        for key in own.chain(offered).map(Requirement::key) {
            if !config.well_known.contains(key) {
                config.well_known = config.well_known.with_label(key);
            }
        }
    }
    for pool in pools {
        let class = &pool.spec.template.spec.node_class_ref;
        let kind = NodeClassKind {
            group: class.group.clone(),
            version: "v1".to_owned(),
            kind: class.kind.clone(),
            plural: format!("{}es", class.kind.to_lowercase()),
        };
        if class.group == "karpenter.k8s.aws" {
            config.reservation_id_label = "karpenter.k8s.aws/capacity-reservation-id".to_owned();
        }
        if !config.node_classes.contains(&kind) {
            config.node_classes.push(kind);
        }
    }
    config
}
