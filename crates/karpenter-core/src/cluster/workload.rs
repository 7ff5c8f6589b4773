//! DaemonSets, and the objects that provide the selector of default spread constraints.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::k8s_openapi::api::apps::v1 as apps;
use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use serde::{Deserialize, Serialize};

use crate::pod::{LabelSelector, Pod};

/// A DaemonSet.
#[derive(Clone, Debug, PartialEq)]
pub struct DaemonSet {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// A pod of its template; limits replace missing requests.
    pub template: Arc<Pod>,
    /// Whether the template has required node affinity; it is then used instead of that of a live pod, which names its node.
    pub template_has_affinity: bool,
}

impl DaemonSet {
    /// Parses a DaemonSet.
    pub fn parse(set: &apps::DaemonSet) -> Self {
        let meta = &set.metadata;
        let template = set
            .spec
            .as_ref()
            .map(|spec| spec.template.clone())
            .unwrap_or_default();
        let mut pod = corev1::Pod {
            metadata: template.metadata.unwrap_or_default(),
            spec: template.spec,
            status: None,
        };
        pod.metadata.namespace.clone_from(&meta.namespace);
        if let Some(spec) = pod.spec.as_mut() {
            let init = spec.init_containers.iter_mut().flatten();
            for container in spec.containers.iter_mut().chain(init) {
                default_requests(container);
            }
        }
        let template = Arc::new(Pod::parse(&pod));
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            template_has_affinity: !template.shape.required_nodes.is_empty(),
            template,
        }
    }
}

/// Applies API defaulting: a limit without a request is the request.
fn default_requests(container: &mut corev1::Container) {
    let Some(resources) = container.resources.as_mut() else {
        return;
    };
    let limits = resources.limits.clone().unwrap_or_default();
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in limits {
        requests.entry(name).or_insert(limit);
    }
}

/// Returns the selector of a Service; `None` selects nothing.
pub(super) fn service_selector(service: &corev1::Service) -> Option<BTreeMap<String, String>> {
    service.spec.as_ref().and_then(|spec| spec.selector.clone())
}

/// The pod selector of a workload controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControllerSelector {
    /// A ReplicationController: labels, which replace those of services.
    Labels(BTreeMap<String, String>),
    /// A ReplicaSet or StatefulSet: a selector, which is added.
    Selector(LabelSelector),
}

pub(super) fn replica_set_selector(set: &apps::ReplicaSet) -> ControllerSelector {
    let selector = set.spec.as_ref().map(|spec| &spec.selector);
    ControllerSelector::Selector(LabelSelector::parse(selector))
}

pub(super) fn stateful_set_selector(set: &apps::StatefulSet) -> ControllerSelector {
    let selector = set.spec.as_ref().map(|spec| &spec.selector);
    ControllerSelector::Selector(LabelSelector::parse(selector))
}

pub(super) fn replication_controller_selector(
    controller: &corev1::ReplicationController,
) -> ControllerSelector {
    let spec = controller.spec.as_ref();
    let selector = spec.and_then(|spec| spec.selector.clone());
    ControllerSelector::Labels(selector.unwrap_or_default())
}

pub(super) fn namespace_labels(namespace: &corev1::Namespace) -> BTreeMap<String, String> {
    namespace.metadata.labels.clone().unwrap_or_default()
}
