//! The ReplicaSet of a template: how it is recognized, numbered and created.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::loops::workloads::pods::{label, owner_reference};

const HASH: &str = "pod-template-hash";
/// The annotation with the number of a ReplicaSet among those of its Deployment.
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";

/// Returns the revision in the annotations; zero if there is none.
pub(super) fn revision(meta: &ObjectMeta) -> i64 {
    meta.annotations
        .as_ref()
        .and_then(|a| a.get(REVISION))
        .and_then(|r| r.parse().ok())
        .unwrap_or(0)
}

/// Returns whether the ReplicaSet has this template, apart from the hash.
pub(super) fn same_template(set: &ReplicaSet, template: &PodTemplateSpec) -> bool {
    let Some(mut own) = set.spec.as_ref().and_then(|s| s.template.clone()) else {
        return false;
    };
    if let Some(labels) = own.metadata.as_mut().and_then(|m| m.labels.as_mut()) {
        labels.remove(HASH);
    }
    let bare = |t: &PodTemplateSpec| t.metadata.clone().unwrap_or_default();
    own.spec == template.spec
        && bare(&own).labels.unwrap_or_default() == bare(template).labels.unwrap_or_default()
        && bare(&own).annotations.unwrap_or_default()
            == bare(template).annotations.unwrap_or_default()
}

/// Returns the new ReplicaSet of the deployment's template.
pub(super) fn new_set(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    hash: &str,
    revision: i64,
) -> ReplicaSet {
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let mut template = spec.template.clone();
    label(template.metadata.get_or_insert_default(), HASH, hash);
    let mut selector = spec.selector.clone();
    selector
        .match_labels
        .get_or_insert_with(BTreeMap::new)
        .insert(HASH.to_owned(), hash.to_owned());
    let annotations = BTreeMap::from([(REVISION.to_owned(), revision.to_string())]);
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{name}-{hash}")),
            namespace: deployment.metadata.namespace.clone(),
            labels: template.metadata.as_ref().and_then(|m| m.labels.clone()),
            annotations: Some(annotations),
            owner_references: Some(vec![owner_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(0),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    }
}
