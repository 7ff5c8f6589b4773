//! Changes of CapacityBuffers: the pods that reserve their capacity, as the controller for them resolves them.
//!
//! The model has only these pods, not the objects. So what a buffer refers to is a PodTemplate of the same request, or a workload
//! with pods in the cluster or in the request.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::autoscaling::{CapacityBuffer, LocalObjectRef, ScalableRef};
use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_core::capacity_buffer::{MAX_PODS, Source, buffer_of, chunks, pods};
use karpenter_core::cluster::Snapshot;
use karpenter_core::pod::Pod;
use serde_json::Value;

use super::workloads::{Workloads, template_labels};
use super::{InvalidPlan, admission};
use crate::workload::Workload;

/// The PodTemplates of a request, by namespace and name.
pub(super) type PodTemplates = BTreeMap<(String, String), corev1::PodTemplate>;

pub(super) fn pod_template(of: &str, object: &Value) -> Result<corev1::PodTemplate, InvalidPlan> {
    admission::read(of, object)
}

/// Returns the pods of a buffer.
pub(super) fn resolve(
    of: &str,
    (namespace, name): (&str, &str),
    object: &Value,
    templates: &PodTemplates,
    (snapshot, workloads): (&Snapshot, &Workloads),
) -> Result<Vec<Arc<Pod>>, InvalidPlan> {
    let mut buffer: CapacityBuffer = admission::capacity_buffer(of, object)?;
    buffer.metadata.namespace = Some(namespace.to_owned());
    buffer.metadata.uid = Some(format!("rehearsed/{namespace}/{name}"));
    let (chunk, scale) = match (&buffer.spec.pod_template_ref, &buffer.spec.scalable_ref) {
        (Some(LocalObjectRef { name }), _) => {
            let template = templates.get(&(namespace.to_owned(), name.clone()));
            let template = template.and_then(|it| it.template.clone()).ok_or_else(|| {
                let why = format!("PodTemplates of the cluster are not known to a rehearsal: add PodTemplate {name} before the buffer");
                InvalidPlan::field(of, "spec.podTemplateRef", why)
            })?;
            let source = Source {
                metadata: template.metadata,
                spec: template.spec.unwrap_or_default(),
                scale: None,
            };
            (source.chunk(&buffer), None)
        }
        (None, Some(target)) => {
            let workload = scalable(of, namespace, target)?;
            let (like, scale) = workloads.newest(snapshot, &workload).ok_or_else(|| {
                let why =
                    format!("{workload} has no pod to copy: add its manifest before the buffer");
                InvalidPlan::field(of, "spec.scalableRef", why)
            })?;
            let scale = i32::try_from(scale).unwrap_or(i32::MAX);
            (of_pod(&like, &buffer), Some(scale))
        }
        (None, None) => {
            let why = "either podTemplateRef or scalableRef must be set";
            return Err(InvalidPlan::field(of, "spec", why));
        }
    };
    if let Some(problem) = &chunk.shape.problem {
        return Err(InvalidPlan::field(of, "spec", problem.clone()));
    }
    let count = chunks(&buffer.spec, scale, &chunk.shape.requests)
        .map_err(|error| InvalidPlan::field(of, "spec.limits", error.to_string()))?;
    if count > MAX_PODS {
        let why = format!("must be at most {MAX_PODS} pods, and is {count}");
        return Err(InvalidPlan::field(of, "spec", why));
    }
    Ok(pods(&chunk, count))
}

fn scalable(of: &str, namespace: &str, target: &ScalableRef) -> Result<Workload, InvalidPlan> {
    let ScalableRef {
        api_group,
        kind,
        name,
    } = target;
    let known = ["Deployment", "StatefulSet", "ReplicaSet"].contains(&kind.as_str());
    if api_group != "apps" || !known {
        let why = format!("unsupported scalableRef \"{api_group}/{kind}\"");
        return Err(InvalidPlan::field(of, "spec.scalableRef", why));
    }
    Ok(Workload {
        kind: kind.clone(),
        namespace: namespace.to_owned(),
        name: name.clone(),
    })
}

/// Returns the chunk of a buffer whose workload has such pods.
fn of_pod(like: &Pod, buffer: &CapacityBuffer) -> Pod {
    let source = Source {
        metadata: None,
        spec: corev1::PodSpec::default(),
        scale: None,
    };
    let mut chunk = source.chunk(buffer);
    let priority = chunk.shape.priority;
    chunk.shape = Arc::clone(&like.shape);
    chunk.with_shape(|shape| {
        shape.labels = template_labels(&shape.labels);
        shape.controller = None;
        shape.priority = priority;
        shape.volumes.clear();
    })
}

/// Replaces the pods of a buffer among those of all buffers; returns the pods that it had.
pub(super) fn replace(
    all: &mut Vec<Arc<Pod>>,
    (namespace, name): (&str, &str),
    pods: Vec<Arc<Pod>>,
) -> Vec<Arc<Pod>> {
    let mut by_buffer: BTreeMap<(String, String), Vec<Arc<Pod>>> = BTreeMap::new();
    for pod in std::mem::take(all) {
        let (namespace, name) = buffer_of(&pod).unwrap_or_default();
        let key = (namespace.to_owned(), name.to_owned());
        by_buffer.entry(key).or_default().push(pod);
    }
    let key = (namespace.to_owned(), name.to_owned());
    let before = by_buffer.insert(key, pods).unwrap_or_default();
    all.extend(by_buffer.into_values().flatten());
    before
}

/// Returns what a change of the pods of a buffer is described as.
pub(super) fn described(before: &[Arc<Pod>], after: &[Arc<Pod>]) -> String {
    let same = |(a, b): (&Arc<Pod>, &Arc<Pod>)| a.shape == b.shape;
    let same_shape = before.first().zip(after.first()).is_none_or(same);
    match (before.len(), after.len()) {
        (0, now) => format!("created with {now} chunks"),
        (was, now) if was == now && same_shape => "unchanged".to_owned(),
        (was, now) if same_shape => format!("chunks {was} -> {now}"),
        (was, now) => format!("template changed, chunks {was} -> {now}"),
    }
}
