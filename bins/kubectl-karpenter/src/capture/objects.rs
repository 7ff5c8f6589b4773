//! The state of a cluster from its objects, for clusters without our controller.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::api::{apps, core, policy, resource, storage};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_core::cluster::{Cluster as Model, ClusterConfig};
use karpenter_core::provider::NodeClassKind;
use karpenter_core::requirements::Requirement;
use karpenter_decisions::bundle::catalogue::Catalogue;
use karpenter_decisions::bundle::{Bundle, Settings};
use kube::api::ListParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::cluster::{Access, Cluster};

/// Objects of one answer.
const PAGE: u32 = 500;

/// Lists all objects that decisions depend on.
pub(super) async fn capture(
    cluster: &Cluster,
    catalogue: Option<&Catalogue>,
) -> anyhow::Result<Bundle> {
    let mut pools: Vec<NodePool> = Vec::new();
    Listing::required(cluster)
        .each(|pool: &NodePool| pools.push(pool.clone()))
        .await?;
    let mut model = Model::new(config(&pools, catalogue));
    for pool in &pools {
        model.apply_node_pool(pool);
        if let Some(types) = catalogue.and_then(|all| all.instance_types(pool.name())) {
            model.set_instance_types(pool.name(), Ok(types));
        }
    }
    let required = Listing::required(cluster);
    let model = &mut model;
    // Nodes before their pods: the order has no effect on the model, but a listing is not atomic.
    required
        .each(|it: &NodeClaim| drop(model.apply_node_claim(it)))
        .await?;
    required
        .each(|it: &core::v1::Node| drop(model.apply_node(it)))
        .await?;
    required
        .each(|it: &core::v1::Namespace| drop(model.apply_namespace(it)))
        .await?;
    required
        .each(|it: &core::v1::Pod| drop(model.apply_pod(it)))
        .await?;
    required
        .each(|it: &apps::v1::DaemonSet| drop(model.apply_daemon_set(it)))
        .await?;
    required
        .each(|it: &policy::v1::PodDisruptionBudget| drop(model.apply_pdb(it)))
        .await?;
    required
        .each(|it: &core::v1::PersistentVolumeClaim| drop(model.apply_volume_claim(it)))
        .await?;
    required
        .each(|it: &core::v1::PersistentVolume| drop(model.apply_volume(it)))
        .await?;
    required
        .each(|it: &storage::v1::StorageClass| drop(model.apply_storage_class(it)))
        .await?;
    required
        .each(|it: &storage::v1::CSINode| drop(model.apply_csi_node(it)))
        .await?;
    required
        .each(|it: &storage::v1::VolumeAttachment| drop(model.apply_volume_attachment(it)))
        .await?;
    // Kinds that a cluster may not serve.
    let optional = Listing::optional(cluster);
    optional
        .each(|it: &NodeOverlay| drop(model.apply_node_overlay(it)))
        .await?;
    optional
        .each(|it: &resource::v1::ResourceSlice| drop(model.apply_resource_slice(it)))
        .await?;
    optional
        .each(|it: &resource::v1::ResourceClaim| drop(model.apply_resource_claim(it)))
        .await?;
    optional
        .each(|it: &resource::v1::DeviceClass| drop(model.apply_device_class(it)))
        .await?;
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

/// Lists the objects of kinds, page by page.
struct Listing<'a> {
    cluster: &'a Cluster,
    /// Whether a kind may not exist.
    optional: bool,
}

impl<'a> Listing<'a> {
    fn required(cluster: &'a Cluster) -> Self {
        let optional = false;
        Self { cluster, optional }
    }

    fn optional(cluster: &'a Cluster) -> Self {
        let optional = true;
        Self { cluster, optional }
    }

    async fn each<K>(&self, mut see: impl FnMut(&K)) -> anyhow::Result<()>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.cluster.client.clone());
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = match api.list(&params).await {
                Ok(page) => page,
                Err(kube::Error::Api(status)) if self.optional && status.is_not_found() => {
                    return Ok(());
                }
                Err(error) => {
                    let (group, plural) = (K::group(&()), K::plural(&()));
                    let access = Access {
                        verb: "list",
                        group: &group,
                        resource: &plural,
                        namespace: None,
                        name: None,
                    };
                    return Err(access.failed(self.cluster, error));
                }
            };
            page.items.iter().for_each(&mut see);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(()),
            }
        }
    }
}
