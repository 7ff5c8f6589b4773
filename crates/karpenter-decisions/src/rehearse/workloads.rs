//! Pods that a change adds or removes: replicas and templates of Deployments and StatefulSets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::cost::POD_DELETION_COST;
use karpenter_core::pod::{Phase, Pod, PodKey, Shape, VolumeRef};

use super::InvalidPlan;
use crate::workload::Workload;

/// The most replicas that a workload can be scaled to.
const MAX_REPLICAS: u32 = 100_000;
/// The most pods that a request can add.
const MAX_ADDED: usize = 200_000;
/// Labels that the controllers of workloads add to pods.
const ADDED_LABELS: [&str; 4] = [
    "pod-template-hash",
    "controller-revision-hash",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
];
/// Taints that admission adds tolerations for.
const ADDED_TOLERATIONS: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

/// The pods that are added and removed.
#[derive(Clone, Debug)]
pub(super) struct Workloads {
    start: Timestamp,
    pub(super) added: BTreeMap<(String, String), Pod>,
    pub(super) removed: BTreeSet<(String, String)>,
}

/// What a change of a workload does.
#[derive(Clone, Debug, Default)]
pub(super) struct Applied {
    pub(super) what: String,
    pub(super) new_template: bool,
    pub(super) rolls_out: bool,
    pub(super) without_volumes: bool,
}

impl Workloads {
    pub(super) fn new(start: Timestamp) -> Self {
        Self {
            start,
            added: BTreeMap::new(),
            removed: BTreeSet::new(),
        }
    }

    /// Returns the active pods of a workload after the changes so far, by name.
    fn pods(&self, snapshot: &Snapshot, workload: &Workload) -> BTreeMap<String, Pod> {
        let is_of = |pod: &Pod| {
            let controller = pod.shape.controller.as_ref();
            pod.key.namespace == workload.namespace
                && pod.is_active()
                && (Workload::of(pod) == *workload
                    || controller
                        .is_some_and(|it| it.kind == workload.kind && it.name == workload.name))
        };
        let existing = snapshot.pods().filter(|pod| is_of(pod));
        let existing = existing.filter(|pod| {
            let key = (pod.key.namespace.clone(), pod.key.name.clone());
            !self.removed.contains(&key) && !self.added.contains_key(&key)
        });
        let existing = existing.map(|pod| Pod::clone(pod));
        let added = self.added.values().filter(|pod| is_of(pod)).cloned();
        let all = existing.chain(added);
        all.map(|pod| (pod.key.name.clone(), pod)).collect()
    }

    /// Returns the newest pod of a workload after the changes so far, and how many it has.
    pub(super) fn newest(&self, snapshot: &Snapshot, workload: &Workload) -> Option<(Pod, usize)> {
        let pods = self.pods(snapshot, workload);
        Some((newest(&pods)?.clone(), pods.len()))
    }

    /// Checks that a request adds no more pods than a cluster can have.
    fn check_replicas(&self, of: &str, replicas: u32) -> Result<(), InvalidPlan> {
        let wanted = usize::try_from(replicas).unwrap_or(usize::MAX);
        if replicas > MAX_REPLICAS || self.added.len().saturating_add(wanted) > MAX_ADDED {
            let why = format!(
                "must be at most {MAX_REPLICAS}, and all changes together at most {MAX_ADDED}"
            );
            return Err(InvalidPlan::field(of, "spec.replicas", why));
        }
        Ok(())
    }

    /// Sets the number of replicas.
    pub(super) fn scale(
        &mut self,
        snapshot: &Snapshot,
        workload: &Workload,
        replicas: u32,
    ) -> Result<Applied, InvalidPlan> {
        let of = workload.to_string();
        self.check_replicas(&of, replicas)?;
        let pods = self.pods(snapshot, workload);
        let Some(template) = newest(&pods).cloned() else {
            let why = "the cluster has no pod of it to copy: apply its manifest instead";
            return Err(InvalidPlan::field(&of, "", why));
        };
        Ok(self.resize(workload, pods, &template, replicas))
    }

    fn resize(
        &mut self,
        workload: &Workload,
        pods: BTreeMap<String, Pod>,
        template: &Pod,
        replicas: u32,
    ) -> Applied {
        let (now, wanted) = (pods.len(), usize::try_from(replicas).unwrap_or(usize::MAX));
        let mut applied = Applied {
            what: match now == wanted {
                true => "unchanged".to_owned(),
                false => format!("replicas {now} -> {wanted}"),
            },
            ..Applied::default()
        };
        if wanted < now {
            for pod in removal_order(workload, pods).into_iter().take(now - wanted) {
                let key = (pod.key.namespace.clone(), pod.key.name.clone());
                if self.added.remove(&key).is_none() {
                    self.removed.insert(key);
                }
            }
            return applied;
        }
        let mut number = 0_usize;
        for _ in now..wanted {
            let name = loop {
                let name = match workload.kind.as_str() {
                    "StatefulSet" => format!("{}-{number}", workload.name),
                    _ => format!("{}-plan-{number:05}", workload.name),
                };
                number += 1;
                let key = (workload.namespace.clone(), name.clone());
                if !pods.contains_key(&name) && !self.added.contains_key(&key) {
                    break name;
                }
            };
            let (pod, complete) = self.pending(template, &name);
            applied.without_volumes |= !complete;
            let key = (workload.namespace.clone(), name);
            self.added.insert(key, pod);
        }
        applied
    }

    /// Returns a pending pod like the template, and whether it has all volumes.
    fn pending(&self, template: &Pod, name: &str) -> (Pod, bool) {
        let mut pod = pending(template, &template.key.namespace, name, self.start);
        let own = format!("-{}", template.key.name);
        let is_own =
            |volume: &VolumeRef| matches!(volume, VolumeRef::Claim(claim) if claim.ends_with(&own));
        let complete = !pod.shape.volumes.iter().any(is_own);
        if !complete {
            pod = pod.with_shape(|shape| shape.volumes.retain(|volume| !is_own(volume)));
        }
        (pod, complete)
    }

    /// Applies a manifest: its template, and its replicas if they are given.
    pub(super) fn apply(
        &mut self,
        snapshot: &Snapshot,
        workload: &Workload,
        replicas: Option<i32>,
        template: &corev1::PodTemplateSpec,
    ) -> Result<Applied, InvalidPlan> {
        let of = workload.to_string();
        let negative = |_| InvalidPlan::field(&of, "spec.replicas", "must not be negative");
        let replicas = replicas.map(u32::try_from).transpose().map_err(negative)?;
        self.check_replicas(&of, replicas.unwrap_or_default())?;
        let mut new = from_template(workload, template);
        if let Some(problem) = &new.shape.problem {
            return Err(InvalidPlan::field(&of, "spec.template", problem.clone()));
        }
        let pods = self.pods(snapshot, workload);
        let Some(running) = pods.values().next().cloned() else {
            let mut applied = self.resize(workload, pods, &new, replicas.unwrap_or(1));
            applied.what = format!("created with {} replicas", replicas.unwrap_or(1));
            applied.new_template = true;
            return Ok(applied);
        };
        let count = u32::try_from(pods.len()).unwrap_or(u32::MAX);
        let wanted = replicas.unwrap_or(count);
        if same_shape(&running.shape, &new.shape) {
            return self.scale(snapshot, workload, wanted);
        }
        // What admission adds to pods is not in the manifest.
        let old = Arc::clone(&running.shape);
        new = new.with_shape(|shape| {
            let added = |key: &str| ADDED_TOLERATIONS.contains(&key);
            let tolerations = old.tolerations.iter().filter(|it| added(&it.key));
            shape.tolerations.extend(tolerations.cloned());
            if shape.priority == 0 {
                shape.priority = old.priority;
            }
        });
        for (name, pod) in &pods {
            let key = (pod.key.namespace.clone(), name.clone());
            if self.added.remove(&key).is_none() {
                self.removed.insert(key);
            }
        }
        let mut applied = self.resize(workload, BTreeMap::new(), &new, wanted);
        applied.what = match wanted == count {
            true => "template changed".to_owned(),
            false => format!("template changed, replicas {count} -> {wanted}"),
        };
        applied.new_template = true;
        applied.rolls_out = true;
        Ok(applied)
    }
}

fn newest(pods: &BTreeMap<String, Pod>) -> Option<&Pod> {
    pods.values().max_by(|a, b| {
        let age = a.created_at.cmp(&b.created_at);
        age.then_with(|| b.key.name.cmp(&a.key.name))
    })
}

/// Returns the labels of a pod without those that the controllers of workloads add.
pub(super) fn template_labels(labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut labels = labels.clone();
    labels.retain(|key, _| !ADDED_LABELS.contains(&key.as_str()));
    labels
}

/// Returns a pending pod like another one.
pub(super) fn pending(like: &Pod, namespace: &str, name: &str, now: Timestamp) -> Pod {
    Pod {
        key: PodKey::new(namespace, name, &format!("rehearsed/{namespace}/{name}")),
        created_at: Some(now.into()),
        deleted_at: None,
        started_at: None,
        node_name: None,
        nominated_node: None,
        nominated_by_plan: false,
        phase: Phase::Pending,
        unschedulable: true,
        gated: false,
        ready: false,
        ready_since: None,
        scheduled_since: None,
        ..like.clone()
    }
}

/// Returns a pod of a template, with the owner that its controller gives it.
fn from_template(workload: &Workload, template: &corev1::PodTemplateSpec) -> Pod {
    let mut metadata = template.metadata.clone().unwrap_or_default();
    let (kind, name) = match workload.kind.as_str() {
        "Deployment" => {
            let labels = metadata.labels.get_or_insert_default();
            labels.insert("pod-template-hash".into(), "plan".into());
            ("ReplicaSet", format!("{}-plan", workload.name))
        }
        kind => (kind, workload.name.clone()),
    };
    metadata.namespace = Some(workload.namespace.clone());
    metadata.name = Some(format!("{}-template", workload.name));
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: "apps/v1".into(),
        kind: kind.to_owned(),
        uid: format!("rehearsed/{}/{name}", workload.namespace),
        name,
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    Pod::parse(&corev1::Pod {
        metadata,
        spec: template.spec.clone(),
        status: None,
    })
}

/// Reports whether two pods come from equal templates, apart from what controllers and admission add.
pub(super) fn same_shape(running: &Shape, manifest: &Shape) -> bool {
    normalized(running, manifest) == normalized(manifest, manifest)
}

fn normalized(shape: &Shape, manifest: &Shape) -> Shape {
    let mut shape = shape.clone();
    shape.labels = template_labels(&shape.labels);
    let added = |key: &str| ADDED_TOLERATIONS.contains(&key);
    shape.tolerations.retain(|it| !added(&it.key));
    shape.controller = None;
    if manifest.priority == 0 {
        shape.priority = 0;
    }
    // Claims have the names of their pods.
    let count = |volumes: &[VolumeRef]| {
        volumes
            .iter()
            .filter(|v| matches!(v, VolumeRef::Claim(_)))
            .count()
    };
    if count(&shape.volumes) >= count(&manifest.volumes) {
        shape
            .volumes
            .retain(|volume| manifest.volumes.contains(volume));
    }
    shape
}

/// Returns the pods in the order in which their controller deletes them.
///
/// UPSTREAM: kubernetes pkg/controller/controller_utils.go (ActivePodsWithRanks), pkg/controller/statefulset
fn removal_order(workload: &Workload, pods: BTreeMap<String, Pod>) -> Vec<Pod> {
    let mut per_node: BTreeMap<Arc<str>, usize> = BTreeMap::new();
    for node in pods.values().filter_map(|pod| pod.node_name.clone()) {
        *per_node.entry(node).or_default() += 1;
    }
    let mut pods: Vec<Pod> = pods.into_values().collect();
    if workload.kind == "StatefulSet" {
        let ordinal = |pod: &Pod| {
            let text = pod.key.name.rsplit_once('-').map(|(_, ordinal)| ordinal);
            text.and_then(|text| text.parse::<u64>().ok())
                .unwrap_or_default()
        };
        pods.sort_by_key(|pod| std::cmp::Reverse(ordinal(pod)));
        return pods;
    }
    let cost = |pod: &Pod| {
        let cost = pod.annotations.get(POD_DELETION_COST);
        cost.and_then(|text| text.parse::<i32>().ok())
            .unwrap_or_default()
    };
    let crowd = |pod: &Pod| {
        let node = pod.node_name.as_ref().and_then(|node| per_node.get(node));
        std::cmp::Reverse(node.copied().unwrap_or_default())
    };
    pods.sort_by_cached_key(|pod| {
        (
            pod.node_name.is_some(),
            pod.phase == Phase::Running,
            pod.ready,
            cost(pod),
            crowd(pod),
            std::cmp::Reverse(pod.ready_since),
            std::cmp::Reverse(pod.created_at),
            pod.key.name.clone(),
        )
    });
    pods
}
