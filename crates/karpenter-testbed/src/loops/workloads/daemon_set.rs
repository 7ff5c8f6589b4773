//! The DaemonSet controller: one pod on every eligible node, pinned by name and placed by the scheduler.
//!
//! Not implemented: `OnDelete`, `maxSurge`, ControllerRevision objects.
//!
//! UPSTREAM: pkg/controller/daemon

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec};
use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::pods::{
    PodControl, available_at, from_template, label, labeled, report, scaled, tally, template_hash,
};
use crate::loops::cache::{Change, Key, PodRecord};
use crate::loops::driver::{Context, Controller, Next};
use crate::loops::scheduler::shape::tolerated;
use crate::selector::NodeTerm;

const REVISION: &str = "controller-revision-hash";

/// Tolerations that the controller adds to every pod.
fn daemon_tolerations(host_network: bool) -> Vec<Toleration> {
    let mut taints = vec![
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ];
    if host_network {
        taints.push(("node.kubernetes.io/network-unavailable", "NoSchedule"));
    }
    taints
        .into_iter()
        .map(|(key, effect)| Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        })
        .collect()
}

fn with_tolerations(spec: &mut PodSpec) {
    let own = spec.tolerations.get_or_insert_with(Vec::new);
    for toleration in daemon_tolerations(spec.host_network == Some(true)) {
        if !own.contains(&toleration) {
            own.push(toleration);
        }
    }
}

/// Restricts the pod to one node in its required node affinity.
fn pin(spec: &mut PodSpec, node: &str) {
    let name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity = spec.affinity.get_or_insert_default();
    let required = &mut affinity
        .node_affinity
        .get_or_insert_default()
        .required_during_scheduling_ignored_during_execution;
    match required {
        Some(selector) if !selector.node_selector_terms.is_empty() => {
            for term in &mut selector.node_selector_terms {
                term.match_fields = Some(vec![name.clone()]);
            }
        }
        _ => {
            let term = NodeSelectorTerm {
                match_fields: Some(vec![name]),
                match_expressions: None,
            };
            *required = Some(NodeSelector {
                node_selector_terms: vec![term],
            });
        }
    }
}

/// Returns the node of a DaemonSet pod.
fn target(pod: &PodRecord) -> Option<String> {
    if let Some(node) = &pod.node {
        return Some(node.to_string());
    }
    let required = pod
        .spec
        .affinity
        .as_ref()?
        .node_affinity
        .as_ref()?
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let fields = required
        .node_selector_terms
        .first()?
        .match_fields
        .as_ref()?;
    fields.first()?.values.as_ref()?.first().cloned()
}

/// Whether the node should get a pod, and whether a running pod may stay.
fn wants(spec: &PodSpec, node: &Node) -> (bool, bool) {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(k, v)| labels.get(k) == Some(v));
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| {
            a.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    let near = affinity.is_none_or(|s| {
        s.node_selector_terms
            .iter()
            .any(|t| NodeTerm::new(t).matches(name, &labels))
    });
    let named = spec.node_name.as_deref().is_none_or(|n| n == name);
    if !(selected && near && named) {
        return (false, false);
    }
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    let untolerated: Vec<&str> = taints
        .into_iter()
        .flatten()
        .filter(|t| t.effect != "PreferNoSchedule" && !tolerated(spec.tolerations.as_ref(), t))
        .map(|t| t.effect.as_str())
        .collect();
    (untolerated.is_empty(), !untolerated.contains(&"NoExecute"))
}

/// The actions of a pass.
#[derive(Debug, Default)]
struct Plan {
    /// Nodes that get a pod.
    create: Vec<String>,
    delete: Vec<Arc<PodRecord>>,
    desired: i32,
    scheduled: i32,
    misscheduled: i32,
}

fn age(pod: &PodRecord) -> (Option<jiff::Timestamp>, &str) {
    (
        pod.meta.creation_timestamp.as_ref().map(|t| t.0),
        pod.name(),
    )
}

fn plan(
    spec: &PodSpec,
    nodes: &[Arc<Node>],
    pods: Vec<Arc<PodRecord>>,
) -> (Plan, Vec<Arc<PodRecord>>) {
    let mut by_node: BTreeMap<String, Vec<Arc<PodRecord>>> = BTreeMap::new();
    for pod in pods {
        by_node
            .entry(target(&pod).unwrap_or_default())
            .or_default()
            .push(pod);
    }
    let mut plan = Plan::default();
    let mut kept = Vec::new();
    for node in nodes {
        let name = node.metadata.name.clone().unwrap_or_default();
        let mut here = by_node.remove(&name).unwrap_or_default();
        here.sort_by(|a, b| age(a).cmp(&age(b)));
        let (should_run, may_stay) = wants(spec, node);
        let (ended, mut alive): (Vec<_>, Vec<_>) = here.into_iter().partition(|p| p.is_terminal());
        plan.delete
            .extend(ended.into_iter().filter(|p| !p.is_terminating()));
        plan.desired += i32::from(should_run);
        if !alive.is_empty() {
            plan.scheduled += i32::from(should_run);
            plan.misscheduled += i32::from(!should_run);
        }
        if should_run && alive.is_empty() {
            plan.create.push(name);
        } else if may_stay || should_run {
            let surplus = alive.split_off(1.min(alive.len()));
            plan.delete
                .extend(surplus.into_iter().filter(|p| !p.is_terminating()));
            kept.extend(alive.into_iter().filter(|_| should_run));
        } else {
            plan.delete
                .extend(alive.into_iter().filter(|p| !p.is_terminating()));
        }
    }
    // Pods of deleted nodes.
    let gone = by_node.into_values().flatten();
    plan.delete.extend(gone.filter(|p| !p.is_terminating()));
    (plan, kept)
}

/// Returns the outdated pods to replace now. Unavailable pods do not count against the limit.
fn replace(
    kept: &[Arc<PodRecord>],
    set: &DaemonSetSpec,
    desired: i32,
    current: impl Fn(&PodRecord) -> bool,
    now: jiff::Timestamp,
) -> Vec<Arc<PodRecord>> {
    let strategy = set.update_strategy.clone().unwrap_or_default();
    let limit = strategy.rolling_update.and_then(|r| r.max_unavailable);
    let limit = scaled(&limit.unwrap_or(IntOrString::Int(1)), desired, true).max(1);
    let min_ready = set.min_ready_seconds.unwrap_or(0);
    let serves = |p: &PodRecord| {
        !p.is_terminating() && available_at(p, min_ready).is_some_and(|at| at <= now)
    };
    let serving = kept.iter().filter(|p| serves(p)).count();
    let mut room = limit - (desired - i32::try_from(serving).unwrap_or(i32::MAX));
    let mut out = Vec::new();
    for pod in kept.iter().filter(|p| !current(p) && !p.is_terminating()) {
        if !serves(pod) {
            out.push(pod.clone());
        } else if room > 0 {
            room -= 1;
            out.push(pod.clone());
        }
    }
    out
}

pub(crate) struct DaemonSets {
    context: Context,
    control: PodControl,
}

impl DaemonSets {
    pub(crate) fn new(context: Context) -> Self {
        Self {
            context,
            control: PodControl::default(),
        }
    }

    fn pod(&self, set: &DaemonSet, spec: &PodSpec, node: &str, revision: &str) -> Pod {
        let mut template = set
            .spec
            .as_ref()
            .map(|s| s.template.clone())
            .unwrap_or_default();
        let mut spec = spec.clone();
        pin(&mut spec, node);
        template.spec = Some(spec);
        let mut pod = from_template(&template, set, &self.context.names.suffix());
        label(&mut pod.metadata, REVISION, revision);
        let generation = set.metadata.generation.unwrap_or(1).to_string();
        label(&mut pod.metadata, "pod-template-generation", &generation);
        pod
    }
}

impl Controller for DaemonSets {
    const NAME: &'static str = "daemonset";

    fn keys(&self, change: &Change, keys: &mut Vec<Key>) {
        match change {
            Change::Pod(diff) => keys.extend(self.control.observe(diff, "DaemonSet")),
            Change::DaemonSet(diff) => keys.push(diff.key()),
            Change::Node(diff) => {
                let relevant = |n: &Arc<Node>| {
                    let taints = n.spec.as_ref().and_then(|s| s.taints.clone());
                    (n.metadata.labels.clone(), taints)
                };
                if diff.old.as_ref().map(relevant) != diff.new.as_ref().map(relevant) {
                    let sets = self.context.cache.daemon_sets.all();
                    keys.extend(sets.iter().map(|s| Key::of(&s.metadata)));
                }
            }
            _ => {}
        }
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, kube::Error> {
        let Some(set) = self.context.cache.daemon_sets.get(key) else {
            return Ok(Next::Wait);
        };
        let now = self.context.clock.now();
        let spec = set.spec.clone().unwrap_or_default();
        let uid = set.metadata.uid.as_deref().unwrap_or_default();
        let revision = template_hash(&spec.template, 0);
        let mut pod_spec = spec.template.spec.clone().unwrap_or_default();
        with_tolerations(&mut pod_spec);
        let pods = self.context.cache.pods_of(uid);
        let nodes = self.context.cache.nodes.all();
        let (mut plan, kept) = plan(&pod_spec, &nodes, pods);
        let current = |p: &PodRecord| labeled(&p.meta, REVISION) == Some(&revision);
        plan.delete
            .extend(replace(&kept, &spec, plan.desired, current, now));
        if set.metadata.deletion_timestamp.is_none() && self.control.expectations_met(uid, now) {
            let new = plan
                .create
                .iter()
                .map(|node| self.pod(&set, &pod_spec, node, &revision))
                .collect();
            self.control.create(&self.context, uid, new).await?;
            self.control
                .delete(&self.context, uid, &plan.delete)
                .await?;
        }
        let counted = tally(kept.iter(), spec.min_ready_seconds.unwrap_or(0), now);
        let updated = kept.iter().filter(|p| current(p)).count();
        let updated = i32::try_from(updated).unwrap_or(i32::MAX);
        let optional = |n: i32| (n > 0).then_some(n);
        let mut new = set.status.clone().unwrap_or_default();
        new.observed_generation = set.metadata.generation;
        new.desired_number_scheduled = plan.desired;
        new.current_number_scheduled = plan.scheduled;
        new.number_misscheduled = plan.misscheduled;
        new.number_ready = counted.ready;
        new.number_available = optional(counted.available);
        new.number_unavailable = optional(plan.desired - counted.available);
        new.updated_number_scheduled = optional(updated);
        report(&self.context, &*set, set.status.as_ref(), &new).await?;
        Ok(Next::at(now, counted.next))
    }
}
