//! The persistent volume controller and a CSI provisioner: binds claims to volumes, and deletes released volumes.
//!
//! Claims of classes with immediate binding are bound here; claims that wait for their first consumer are bound by the scheduler
//! through [`bind`]. Not implemented: resizing, snapshots, claims of generic ephemeral volumes, attach and detach.
//!
//! UPSTREAM: pkg/controller/volume/persistentvolume

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::cache::{Change, Key, api};
use super::driver::{Context, Controller, Next};
use super::outcome::{ignore_conflict_of_existence, ignore_not_found};
use super::scheduler::volumes::{ClaimBinding, ClaimKey};

/// Executes a binding decision of the scheduler.
pub(crate) async fn bind(context: &Context, binding: &ClaimBinding) -> Result<(), kube::Error> {
    match binding {
        ClaimBinding::Existing { claim, volume } => bind_to(context, claim, volume).await,
        ClaimBinding::Provision {
            claim,
            volume,
            topology,
        } => {
            provision(context, claim, volume, topology).await?;
            bind_to(context, claim, volume).await
        }
    }
}

fn key((namespace, name): &ClaimKey) -> Key {
    Key::new(namespace, name)
}

async fn provision(
    context: &Context,
    claim_key: &ClaimKey,
    name: &str,
    topology: &[(String, String)],
) -> Result<(), kube::Error> {
    let claims: Api<PersistentVolumeClaim> = api(&context.client(), &key(claim_key));
    let claim = claims.get(&claim_key.1).await?;
    let spec = claim.spec.clone().unwrap_or_default();
    let class_name = spec.storage_class_name.unwrap_or_default();
    let class = context.cache.storage_classes.named(&class_name);
    let expressions: Vec<Value> = topology
        .iter()
        .map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}))
        .collect();
    let mut volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "annotations": {"pv.kubernetes.io/provisioned-by": class.as_ref().map(|c| c.provisioner.clone())},
        },
        "spec": {
            "capacity": spec.resources.and_then(|r| r.requests).unwrap_or_default(),
            "accessModes": spec.access_modes,
            "storageClassName": class_name,
            "volumeMode": spec.volume_mode,
            "persistentVolumeReclaimPolicy":
                class.as_ref().and_then(|c| c.reclaim_policy.clone()).unwrap_or_else(|| "Delete".to_owned()),
            "csi": {
                "driver": class.as_ref().map(|c| c.provisioner.clone()).unwrap_or_default(),
                "volumeHandle": name,
            },
            "claimRef": reference(&claim),
        },
    });
    if !expressions.is_empty() {
        volume["spec"]["nodeAffinity"] =
            json!({"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}});
    }
    let volume: PersistentVolume =
        serde_json::from_value(volume).map_err(kube::Error::SerdeError)?;
    let volumes: Api<PersistentVolume> = Api::all(context.client());
    ignore_conflict_of_existence(volumes.create(&PostParams::default(), &volume).await)
}

fn reference(claim: &PersistentVolumeClaim) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.metadata.namespace,
        "name": claim.metadata.name,
        "uid": claim.metadata.uid,
    })
}

async fn bind_to(context: &Context, claim_key: &ClaimKey, name: &str) -> Result<(), kube::Error> {
    let claims: Api<PersistentVolumeClaim> = api(&context.client(), &key(claim_key));
    let volumes: Api<PersistentVolume> = Api::all(context.client());
    let params = PatchParams::default();
    let claim = claims.get(&claim_key.1).await?;
    let volume = volumes
        .patch(
            name,
            &params,
            &Patch::Merge(json!({"spec": {"claimRef": reference(&claim)}})),
        )
        .await?;
    let bound = json!({"status": {"phase": "Bound"}});
    volumes
        .patch_status(name, &params, &Patch::Merge(bound))
        .await?;
    let chosen = json!({
        "metadata": {"annotations": {
            "pv.kubernetes.io/bind-completed": "yes",
            "pv.kubernetes.io/bound-by-controller": "yes",
        }},
        "spec": {"volumeName": name},
    });
    claims
        .patch(&claim_key.1, &params, &Patch::Merge(chosen))
        .await?;
    let spec = volume.spec.unwrap_or_default();
    let status = json!({"status": {
        "phase": "Bound",
        "accessModes": spec.access_modes,
        "capacity": spec.capacity,
    }});
    claims
        .patch_status(&claim_key.1, &params, &Patch::Merge(status))
        .await?;
    Ok(())
}

pub(crate) struct VolumeBinder {
    context: Context,
}

impl VolumeBinder {
    pub(crate) fn new(context: Context) -> Self {
        Self { context }
    }

    async fn bind_claim(&self, claim: &PersistentVolumeClaim) -> Result<(), kube::Error> {
        let spec = claim.spec.clone().unwrap_or_default();
        let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
        if phase == Some("Bound") || claim.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let claim_key = (
            claim.metadata.namespace.clone().unwrap_or_default(),
            claim.metadata.name.clone().unwrap_or_default(),
        );
        if let Some(volume) = spec.volume_name.filter(|v| !v.is_empty()) {
            if self.context.cache.volumes.named(&volume).is_some() {
                bind_to(&self.context, &claim_key, &volume).await?;
            }
            return Ok(());
        }
        let class_name = spec.storage_class_name.unwrap_or_default();
        let Some(class) = self.context.cache.storage_classes.named(&class_name) else {
            return Ok(());
        };
        if class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
            || class.provisioner == "kubernetes.io/no-provisioner"
        {
            return Ok(());
        }
        let topology: Vec<(String, String)> = class
            .allowed_topologies
            .iter()
            .flatten()
            .take(1)
            .flat_map(|t| t.match_label_expressions.iter().flatten())
            .filter_map(|e| Some((e.key.clone(), e.values.first()?.clone())))
            .collect();
        let volume = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default());
        provision(&self.context, &claim_key, &volume, &topology).await?;
        bind_to(&self.context, &claim_key, &volume).await
    }

    async fn release_volume(&self, volume: &PersistentVolume) -> Result<(), kube::Error> {
        let Some(name) = volume.metadata.name.as_deref() else {
            return Ok(());
        };
        let spec = volume.spec.clone().unwrap_or_default();
        let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
        let volumes: Api<PersistentVolume> = Api::all(self.context.client());
        let params = PatchParams::default();
        let Some(reference) = spec.claim_ref else {
            if phase != Some("Available") {
                let status = json!({"status": {"phase": "Available"}});
                volumes
                    .patch_status(name, &params, &Patch::Merge(status))
                    .await?;
            }
            return Ok(());
        };
        // Only a volume that was bound can be released: a volume may be observed before its claim is bound.
        if phase != Some("Bound") || volume.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let claim_key = Key::new(
            reference.namespace.as_deref().unwrap_or_default(),
            reference.name.as_deref().unwrap_or_default(),
        );
        let claims: Api<PersistentVolumeClaim> = api(&self.context.client(), &claim_key);
        let claim = claims.get_opt(&claim_key.name).await?;
        if claim.is_some_and(|c| reference.uid.is_none() || c.metadata.uid == reference.uid) {
            return Ok(());
        }
        if spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete") {
            return ignore_not_found(volumes.delete(name, &DeleteParams::default()).await);
        }
        let status = json!({"status": {"phase": "Released"}});
        volumes
            .patch_status(name, &params, &Patch::Merge(status))
            .await?;
        Ok(())
    }
}

impl Controller for VolumeBinder {
    const NAME: &'static str = "volume-binder";

    fn keys(&self, change: &Change, keys: &mut Vec<Key>) {
        match change {
            Change::PersistentVolumeClaim(diff) => match (&diff.new, &diff.old) {
                (Some(claim), _) => keys.push(Key::of(&claim.metadata)),
                (None, Some(old)) => {
                    let volume = old.spec.as_ref().and_then(|s| s.volume_name.as_deref());
                    keys.extend(volume.map(|v| Key::new("", v)));
                }
                (None, None) => {}
            },
            Change::PersistentVolume(diff) => {
                if let Some(volume) = &diff.new {
                    keys.push(Key::of(&volume.metadata));
                    let claim = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
                    if let Some(claim) = claim
                        && let (Some(namespace), Some(name)) = (&claim.namespace, &claim.name)
                    {
                        keys.push(Key::new(namespace, name));
                    }
                }
            }
            Change::StorageClass(_) => {
                let claims = self.context.cache.claims.all();
                keys.extend(claims.iter().map(|c| Key::of(&c.metadata)));
            }
            _ => {}
        }
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, kube::Error> {
        if key.namespace.is_empty() {
            if let Some(volume) = self.context.cache.volumes.get(key) {
                self.release_volume(&volume).await?;
            }
        } else if let Some(claim) = self.context.cache.claims.get(key) {
            self.bind_claim(&claim).await?;
        }
        Ok(Next::Wait)
    }
}
