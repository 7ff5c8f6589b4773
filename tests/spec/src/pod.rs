//! Requests and constraints of a pod, read from the Kubernetes object.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{
    Affinity, Container, NodeSelectorTerm, Pod, PodAffinityTerm, PodSpec, Taint, Toleration,
    TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use karpenter_core::requirements::{InvalidRequirement, Requirements, Unaliased};
use karpenter_core::resources::{CPU, HUGE_PAGES_PREFIX, MEMORY, PODS, Resources};

/// Labels as in Kubernetes objects.
pub type Labels = BTreeMap<String, String>;

impl fmt::Debug for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Namespace and name of a pod.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodId {
    pub namespace: String,
    pub name: String,
}

/// Returns namespace and name of a pod.
pub fn id(pod: &Pod) -> PodId {
    PodId {
        namespace: namespace(pod).to_owned(),
        name: pod.metadata.name.clone().unwrap_or_default(),
    }
}

pub(crate) fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

pub(crate) fn labels(pod: &Pod) -> Labels {
    pod.metadata.labels.clone().unwrap_or_default()
}

pub(crate) fn spec(pod: &Pod) -> PodSpec {
    pod.spec.clone().unwrap_or_default()
}

pub(crate) fn affinity(pod: &Pod) -> Affinity {
    spec(pod).affinity.unwrap_or_default()
}

/// Returns whether the pod is neither finished nor terminating.
pub(crate) fn is_active(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Failed" | "Succeeded")) && pod.metadata.deletion_timestamp.is_none()
}

pub(crate) fn is_owned_by(pod: &Pod, kind: &str) -> bool {
    pod.metadata
        .owner_references
        .iter()
        .flatten()
        .any(|owner| owner.kind == kind)
}

/// Returns whether kube-scheduler has marked the pod unschedulable, so that Karpenter provisions for it.
pub(crate) fn is_provisionable(pod: &Pod) -> bool {
    let status = pod.status.clone().unwrap_or_default();
    let unschedulable = status.conditions.iter().flatten().any(|condition| {
        condition.type_ == "PodScheduled" && condition.reason.as_deref() == Some("Unschedulable")
    });
    let bound = spec(pod).node_name.is_some_and(|name| !name.is_empty());
    let preempting = status
        .nominated_node_name
        .is_some_and(|name| !name.is_empty());
    unschedulable
        && !bound
        && !preempting
        && !is_owned_by(pod, "DaemonSet")
        && !is_owned_by(pod, "Node")
}

/// Returns the requests of the pod that count on a node (section 5).
// UPSTREAM: k8s.io/component-helpers/resource/helpers.go (PodRequests)
pub fn requests(pod: &Pod) -> Resources {
    let spec = spec(pod);
    let read = |list: Option<&BTreeMap<String, Quantity>>| {
        list.and_then(|list| Resources::requests_from(list).ok())
            .unwrap_or_default()
    };
    let of_spec = |container: &Container| {
        read(
            container
                .resources
                .as_ref()
                .and_then(|resources| resources.requests.as_ref()),
        )
    };
    let status = pod.status.clone().unwrap_or_default();
    let infeasible = status.conditions.iter().flatten().any(|condition| {
        condition.type_ == "PodResizePending" && condition.reason.as_deref() == Some("Infeasible")
    });
    let statuses: Vec<_> = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .flatten()
        .collect();
    let running = |container: &Container| match statuses
        .iter()
        .find(|status| status.name == container.name)
    {
        Some(status) if status.resources.is_some() => {
            let mut most = read(
                status
                    .resources
                    .as_ref()
                    .and_then(|resources| resources.requests.as_ref()),
            );
            most.max_assign(&read(status.allocated_resources.as_ref()));
            if !infeasible {
                most.max_assign(&of_spec(container));
            }
            most
        }
        _ => of_spec(container),
    };
    let mut total = Resources::new();
    spec.containers
        .iter()
        .for_each(|container| total.add_assign(&running(container)));
    let (mut sidecars, mut peak) = (Resources::new(), Resources::new());
    for container in spec.init_containers.iter().flatten() {
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars.add_assign(&running(container));
            peak.max_assign(&sidecars);
        } else {
            let mut starting = of_spec(container);
            starting.add_assign(&sidecars);
            peak.max_assign(&starting);
        }
    }
    total.add_assign(&sidecars);
    total.max_assign(&peak);
    let of_pod = read(
        spec.resources
            .as_ref()
            .and_then(|resources| resources.requests.as_ref()),
    );
    for (name, amount) in of_pod
        .iter()
        .filter(|(name, _)| *name == CPU || *name == MEMORY || name.starts_with(HUGE_PAGES_PREFIX))
    {
        total.set(name, amount);
    }
    total.add_assign(&read(spec.overhead.as_ref()));
    total.set(PODS, 1);
    total
}

/// Returns the requirements of the node selector and the first required term, which are never relaxed.
pub fn strict_requirements(pod: &Pod) -> Result<Requirements, InvalidRequirement> {
    let mut all = selector_requirements(pod);
    if let Some(term) = required_terms(pod).first() {
        all.add_all(&Requirements::from_node_selector_term(term, &Unaliased)?);
    }
    Ok(all)
}

/// Returns the strict requirements and the heaviest preference, as if it were required (section 4).
pub fn all_requirements(pod: &Pod) -> Result<Requirements, InvalidRequirement> {
    let mut all = strict_requirements(pod)?;
    let preferred = affinity(pod)
        .node_affinity
        .unwrap_or_default()
        .preferred_during_scheduling_ignored_during_execution;
    // The first of the heaviest.
    if let Some(heaviest) = preferred
        .unwrap_or_default()
        .iter()
        .rev()
        .max_by_key(|term| term.weight)
    {
        all.add_all(&Requirements::from_node_selector_term(
            &heaviest.preference,
            &Unaliased,
        )?);
    }
    Ok(all)
}

pub(crate) fn selector_requirements(pod: &Pod) -> Requirements {
    Requirements::from_labels(&spec(pod).node_selector.unwrap_or_default(), &Unaliased)
}

/// Returns whether the requirements of the node selector and those of some required term fit.
pub(crate) fn accepts(pod: &Pod, fits: &dyn Fn(&Requirements) -> bool) -> bool {
    let terms = required_terms(pod);
    let term_fits = |term| {
        Requirements::from_node_selector_term(term, &Unaliased).is_ok_and(|wanted| fits(&wanted))
    };
    fits(&selector_requirements(pod)) && (terms.is_empty() || terms.iter().any(term_fits))
}

pub(crate) fn required_terms(pod: &Pod) -> Vec<NodeSelectorTerm> {
    let required = affinity(pod)
        .node_affinity
        .unwrap_or_default()
        .required_during_scheduling_ignored_during_execution;
    required
        .map(|selector| selector.node_selector_terms)
        .unwrap_or_default()
}

/// Returns the required and, if `preferred`, the preferred pod affinity terms.
pub(crate) fn affinity_terms(pod: &Pod, preferred: bool) -> Vec<PodAffinityTerm> {
    let affinity = affinity(pod).pod_affinity.unwrap_or_default();
    let soft = affinity
        .preferred_during_scheduling_ignored_during_execution
        .into_iter()
        .flatten()
        .filter(|_| preferred);
    let hard = affinity
        .required_during_scheduling_ignored_during_execution
        .into_iter()
        .flatten();
    hard.chain(soft.map(|term| term.pod_affinity_term))
        .collect()
}

/// Returns the required and, if `preferred`, the preferred pod anti-affinity terms.
pub(crate) fn anti_affinity_terms(pod: &Pod, preferred: bool) -> Vec<PodAffinityTerm> {
    let affinity = affinity(pod).pod_anti_affinity.unwrap_or_default();
    let soft = affinity
        .preferred_during_scheduling_ignored_during_execution
        .into_iter()
        .flatten()
        .filter(|_| preferred);
    let hard = affinity
        .required_during_scheduling_ignored_during_execution
        .into_iter()
        .flatten();
    hard.chain(soft.map(|term| term.pod_affinity_term))
        .collect()
}

/// Returns the hard and, if `soft`, the soft spread constraints.
pub(crate) fn spread_constraints(pod: &Pod, soft: bool) -> Vec<TopologySpreadConstraint> {
    let all = spec(pod).topology_spread_constraints.unwrap_or_default();
    all.into_iter()
        .filter(|constraint| soft || constraint.when_unsatisfiable != "ScheduleAnyway")
        .collect()
}

/// Returns the pod with one preference dropped, or None if none is left (section 4).
pub(crate) fn relax(pod: &Pod, prefer_no_schedule_exists: bool) -> Option<Pod> {
    let mut relaxed = pod.clone();
    drop_one(&mut relaxed, prefer_no_schedule_exists).then_some(relaxed)
}

fn drop_one(pod: &mut Pod, prefer_no_schedule_exists: bool) -> bool {
    let spec = pod.spec.get_or_insert_default();
    let affinity = spec.affinity.get_or_insert_default();
    let node = affinity.node_affinity.get_or_insert_default();
    if let Some(required) = &mut node.required_during_scheduling_ignored_during_execution
        && required.node_selector_terms.len() > 1
    {
        required.node_selector_terms.remove(0);
        return true;
    }
    let with_affinity = affinity
        .pod_affinity
        .get_or_insert_default()
        .preferred_during_scheduling_ignored_during_execution
        .get_or_insert_default();
    let apart = affinity
        .pod_anti_affinity
        .get_or_insert_default()
        .preferred_during_scheduling_ignored_during_execution
        .get_or_insert_default();
    for terms in [with_affinity, apart] {
        if let Some(heaviest) = first_heaviest(terms.iter().map(|term| term.weight)) {
            terms.remove(heaviest);
            return true;
        }
    }
    let preferred = node
        .preferred_during_scheduling_ignored_during_execution
        .get_or_insert_default();
    if let Some(heaviest) = first_heaviest(preferred.iter().map(|term| term.weight)) {
        preferred.remove(heaviest);
        return true;
    }
    let spread = spec.topology_spread_constraints.get_or_insert_default();
    if let Some(soft) = spread
        .iter()
        .position(|constraint| constraint.when_unsatisfiable == "ScheduleAnyway")
    {
        spread.swap_remove(soft);
        return true;
    }
    let tolerations = spec.tolerations.get_or_insert_default();
    let anything = Toleration {
        operator: Some("Exists".into()),
        effect: Some("PreferNoSchedule".into()),
        ..Toleration::default()
    };
    if prefer_no_schedule_exists && !tolerations.contains(&anything) {
        tolerations.push(anything);
        return true;
    }
    false
}

fn first_heaviest(
    weights: impl DoubleEndedIterator<Item = i32> + ExactSizeIterator,
) -> Option<usize> {
    weights
        .enumerate()
        .rev()
        .max_by_key(|(_, weight)| *weight)
        .map(|(index, _)| index)
}

/// Returns whether the pod tolerates all taints. `PreferNoSchedule` counts like the others until it is relaxed (section 8).
pub(crate) fn tolerates(pod: &Pod, taints: &[Taint]) -> bool {
    let tolerations = spec(pod).tolerations.unwrap_or_default();
    taints.iter().all(|taint| {
        tolerations
            .iter()
            .any(|toleration| matches_taint(toleration, taint))
    })
}

fn matches_taint(toleration: &Toleration, taint: &Taint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    let value = taint.value.as_deref().unwrap_or_default();
    let wanted = toleration.value.as_deref().unwrap_or_default();
    let numbers = || Some((value.parse::<i64>().ok()?, wanted.parse::<i64>().ok()?));
    match toleration.operator.as_deref().unwrap_or_default() {
        "Exists" => true,
        "" | "Equal" => !key.is_empty() && value == wanted,
        "Gt" => numbers().is_some_and(|(value, wanted)| value > wanted),
        "Lt" => numbers().is_some_and(|(value, wanted)| value < wanted),
        _ => false,
    }
}

/// A host port that a container uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostPort {
    ip: String,
    port: i32,
    protocol: String,
}

pub(crate) fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let containers = spec(pod).containers;
    let ports = containers
        .iter()
        .flat_map(|container| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let ip = port
                .host_ip
                .clone()
                .filter(|ip| !ip.is_empty())
                .unwrap_or_else(|| "0.0.0.0".into());
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
            Some(HostPort {
                ip,
                port: port.host_port.filter(|port| *port != 0)?,
                protocol,
            })
        })
        .collect()
}

pub(crate) fn ports_conflict(a: &[HostPort], b: &[HostPort]) -> bool {
    let anywhere = |port: &HostPort| port.ip == "0.0.0.0" || port.ip == "::";
    a.iter().any(|a| {
        b.iter().any(|b| {
            a.port == b.port
                && a.protocol == b.protocol
                && (a.ip == b.ip || anywhere(a) || anywhere(b))
        })
    })
}

/// Returns the selector merged with the pod's values of `matchLabelKeys` and `mismatchLabelKeys`.
pub(crate) fn with_label_keys(
    selector: Option<&LabelSelector>,
    keys: Option<&Vec<String>>,
    mismatch: Option<&Vec<String>>,
    pod: &Pod,
) -> Option<LabelSelector> {
    let mut selector = selector?.clone();
    let labels = labels(pod);
    for (keys, operator) in [(keys, "In"), (mismatch, "NotIn")] {
        for key in keys.into_iter().flatten() {
            if let Some(value) = labels.get(key) {
                let values = Some(vec![value.clone()]);
                let expression = LabelSelectorRequirement {
                    key: key.clone(),
                    operator: operator.into(),
                    values,
                };
                selector
                    .match_expressions
                    .get_or_insert_default()
                    .push(expression);
            }
        }
    }
    Some(selector)
}

/// Returns whether a selector selects the labels. None selects nothing, an empty one everything, an invalid one nothing.
pub(crate) fn selects(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    let Some(selector) = selector else {
        return false;
    };
    let equal = selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector
            .match_expressions
            .iter()
            .flatten()
            .all(|expression| {
                let value = labels.get(&expression.key);
                let listed = || {
                    value.is_some_and(|value| {
                        expression
                            .values
                            .iter()
                            .flatten()
                            .any(|other| other == value)
                    })
                };
                match expression.operator.as_str() {
                    "In" => listed(),
                    "NotIn" => !listed(),
                    "Exists" => value.is_some(),
                    "DoesNotExist" => value.is_none(),
                    _ => false,
                }
            })
}
