//! The scheduling shape of a pod: all that the scheduler's filters and scores use, without the pod's identity.
//!
//! Pods of equal shape are one scheduling class: a rejection of one of them applies to all.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Container, PodAffinityTerm, PodSpec, Taint, Toleration as ApiToleration,
    TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity;
use crate::selector::{Labels, NodeTerm, Selector};

/// Amounts by resource: thousandths of `cpu`, whole units of all others.
pub(crate) type Amounts = BTreeMap<String, i64>;

/// A port on the node's own address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct HostPort {
    ip: String,
    protocol: String,
    port: i32,
}

impl HostPort {
    /// Whether both ports cannot be used on one node.
    pub(crate) fn conflicts(&self, other: &Self) -> bool {
        let any = |ip: &str| ip.is_empty() || ip == "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (any(&self.ip) || any(&other.ip) || self.ip == other.ip)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Toleration {
    key: String,
    exists: bool,
    value: String,
    effect: String,
}

impl Toleration {
    fn new(t: &ApiToleration) -> Self {
        Self {
            key: t.key.clone().unwrap_or_default(),
            exists: t.operator.as_deref() == Some("Exists"),
            value: t.value.clone().unwrap_or_default(),
            effect: t.effect.clone().unwrap_or_default(),
        }
    }

    /// Whether it tolerates `taint`. UPSTREAM: k8s.io/component-helpers, `ToleratesTaint`.
    pub(crate) fn tolerates(&self, taint: &Taint) -> bool {
        (self.effect.is_empty() || self.effect == taint.effect)
            && (self.key.is_empty() && self.exists || self.key == taint.key)
            && (self.exists || self.value == taint.value.as_deref().unwrap_or_default())
    }
}

pub(crate) fn tolerated(tolerations: Option<&Vec<ApiToleration>>, taint: &Taint) -> bool {
    tolerations
        .into_iter()
        .flatten()
        .any(|t| Toleration::new(t).tolerates(taint))
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Spread {
    pub(crate) key: String,
    pub(crate) max_skew: i64,
    pub(crate) min_domains: i64,
    pub(crate) selector: Selector,
    /// `DoNotSchedule`.
    pub(crate) hard: bool,
    pub(crate) honor_affinity: bool,
    pub(crate) honor_taints: bool,
}

impl Spread {
    fn new(c: &TopologySpreadConstraint, labels: &Labels) -> Self {
        let mut selector = Selector::new(c.label_selector.as_ref());
        for key in c.match_label_keys.iter().flatten() {
            if let Some(value) = labels.get(key) {
                selector.and(key, value, false);
            }
        }
        Self {
            key: c.topology_key.clone(),
            max_skew: i64::from(c.max_skew),
            min_domains: i64::from(c.min_domains.unwrap_or(1)),
            selector,
            hard: c.when_unsatisfiable == "DoNotSchedule",
            honor_affinity: c.node_affinity_policy.as_deref() != Some("Ignore"),
            honor_taints: c.node_taints_policy.as_deref() == Some("Honor"),
        }
    }
}

/// A pod (anti-)affinity term with the pods it matches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PodTerm {
    pub(crate) key: String,
    namespaces: Vec<String>,
    namespace_selector: Option<Selector>,
    selector: Selector,
}

impl PodTerm {
    fn new(t: &PodAffinityTerm, namespace: &str, labels: &Labels) -> Self {
        let mut selector = Selector::new(t.label_selector.as_ref());
        let keys = [
            (t.match_label_keys.as_ref(), false),
            (t.mismatch_label_keys.as_ref(), true),
        ];
        for (list, negated) in keys {
            for key in list.into_iter().flatten() {
                if let Some(value) = labels.get(key) {
                    selector.and(key, value, negated);
                }
            }
        }
        let mut namespaces = t.namespaces.clone().unwrap_or_default();
        if namespaces.is_empty() && t.namespace_selector.is_none() {
            namespaces.push(namespace.to_owned());
        }
        Self {
            key: t.topology_key.clone(),
            namespaces,
            namespace_selector: t
                .namespace_selector
                .as_ref()
                .map(|s| Selector::new(Some(s))),
            selector,
        }
    }

    /// Whether the term matches pods with these labels in this namespace.
    pub(crate) fn matches(
        &self,
        namespace: &str,
        labels: &Labels,
        namespaces: &BTreeMap<String, Labels>,
    ) -> bool {
        let here = self.namespaces.iter().any(|n| n == namespace)
            || self.namespace_selector.as_ref().is_some_and(|s| {
                let empty = Labels::new();
                s.matches(namespaces.get(namespace).unwrap_or(&empty))
            });
        here && self.selector.matches(labels)
    }
}

/// All that the scheduler evaluates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) namespace: String,
    pub(crate) labels: Labels,
    pub(crate) priority: i32,
    pub(crate) never_preempts: bool,
    /// Non-zero requests, including the pod count.
    pub(crate) requests: Amounts,
    pub(crate) ports: Vec<HostPort>,
    pub(crate) node_selector: Labels,
    pub(crate) node_terms: Option<Vec<NodeTerm>>,
    pub(crate) preferred_nodes: Vec<(i32, NodeTerm)>,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) spread: Vec<Spread>,
    pub(crate) affinity: Vec<PodTerm>,
    pub(crate) anti_affinity: Vec<PodTerm>,
    /// Preferred terms; avoidance has a negative weight.
    pub(crate) preferred_pods: Vec<(i32, PodTerm)>,
    /// Names of the claims that the pod mounts.
    pub(crate) claims: Vec<String>,
}

impl Shape {
    /// Returns the shape of a pod named `name` with this spec.
    pub(crate) fn new(name: &str, namespace: &str, labels: &Labels, spec: &PodSpec) -> Self {
        let affinity = spec.affinity.clone().unwrap_or_default();
        let mut shape = Self {
            namespace: namespace.to_owned(),
            labels: labels.clone(),
            priority: spec.priority.unwrap_or(0),
            never_preempts: spec.preemption_policy.as_deref() == Some("Never"),
            requests: requests(spec),
            ports: host_ports(spec),
            node_selector: spec.node_selector.clone().unwrap_or_default(),
            tolerations: spec
                .tolerations
                .iter()
                .flatten()
                .map(Toleration::new)
                .collect(),
            spread: spec
                .topology_spread_constraints
                .iter()
                .flatten()
                .map(|c| Spread::new(c, labels))
                .collect(),
            ..Self::default()
        };
        shape.read_affinity(affinity);
        for volume in spec.volumes.iter().flatten() {
            if let Some(claim) = &volume.persistent_volume_claim {
                shape.claims.push(claim.claim_name.clone());
            } else if volume.ephemeral.is_some() {
                shape.claims.push(format!("{name}-{}", volume.name));
            }
        }
        shape
    }

    fn read_affinity(&mut self, affinity: Affinity) {
        if let Some(node) = affinity.node_affinity {
            self.node_terms = node
                .required_during_scheduling_ignored_during_execution
                .map(|s| s.node_selector_terms.iter().map(NodeTerm::new).collect());
            self.preferred_nodes = node
                .preferred_during_scheduling_ignored_during_execution
                .iter()
                .flatten()
                .map(|p| (p.weight, NodeTerm::new(&p.preference)))
                .collect();
        }
        let term = |t: &PodAffinityTerm| PodTerm::new(t, &self.namespace, &self.labels);
        let mut preferred = Vec::new();
        if let Some(pod) = affinity.pod_affinity {
            self.affinity = pod
                .required_during_scheduling_ignored_during_execution
                .iter()
                .flatten()
                .map(term)
                .collect();
            for p in pod
                .preferred_during_scheduling_ignored_during_execution
                .iter()
                .flatten()
            {
                preferred.push((p.weight, term(&p.pod_affinity_term)));
            }
        }
        if let Some(pod) = affinity.pod_anti_affinity {
            self.anti_affinity = pod
                .required_during_scheduling_ignored_during_execution
                .iter()
                .flatten()
                .map(term)
                .collect();
            for p in pod
                .preferred_during_scheduling_ignored_during_execution
                .iter()
                .flatten()
            {
                preferred.push((-p.weight, term(&p.pod_affinity_term)));
            }
        }
        self.preferred_pods = preferred;
    }

    /// Whether the required node selector and node affinity match the node.
    pub(crate) fn selects_node(&self, name: &str, labels: &Labels) -> bool {
        self.node_selector
            .iter()
            .all(|(k, v)| labels.get(k) == Some(v))
            && self
                .node_terms
                .as_ref()
                .is_none_or(|terms| terms.iter().any(|t| t.matches(name, labels)))
    }

    /// Returns the node names the pod is restricted to by name, as DaemonSet pods are.
    pub(crate) fn pinned(&self) -> Option<Vec<&str>> {
        let mut names = Vec::new();
        for term in self.node_terms.as_ref()? {
            names.extend(term.node_names()?.iter().map(String::as_str));
        }
        Some(names)
    }

    /// Whether pods are counted by topology domain for it.
    pub(crate) fn counts_pods(&self) -> bool {
        !(self.spread.is_empty()
            && self.affinity.is_empty()
            && self.anti_affinity.is_empty()
            && self.preferred_pods.is_empty())
    }
}

fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let init = spec.init_containers.iter().flatten().filter(|c| sidecar(c));
    spec.containers
        .iter()
        .chain(init)
        .flat_map(|c| c.ports.iter().flatten())
        .filter_map(|p| {
            p.host_port.filter(|port| *port > 0).map(|port| HostPort {
                ip: p.host_ip.clone().unwrap_or_default(),
                protocol: p.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                port,
            })
        })
        .collect()
}

/// Whether an init container keeps running with the others (a sidecar).
pub(crate) fn sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Returns the amounts of these lists; a later one replaces those of an earlier one.
fn amounts(lists: [Option<&BTreeMap<String, Quantity>>; 2]) -> Amounts {
    let all = lists.into_iter().flatten().flatten();
    all.map(|(name, quantity)| (name.clone(), quantity::amount(name, quantity)))
        .collect()
}

/// Returns what a container requests. A limit without a request is a request; the API server defaults it, but this code does not
/// depend on that.
fn container_requests(container: &Container) -> Amounts {
    let wanted = container.resources.as_ref();
    amounts([
        wanted.and_then(|w| w.limits.as_ref()),
        wanted.and_then(|w| w.requests.as_ref()),
    ])
}

fn add(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let entry = to.entry(name.clone()).or_default();
        *entry = entry.saturating_add(*amount);
    }
}

fn raise(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let entry = to.entry(name.clone()).or_default();
        *entry = (*entry).max(*amount);
    }
}

/// Returns the pod's requests. UPSTREAM: k8s.io/component-helpers/resource, `PodRequests`.
///
/// Containers and sidecars are summed up; an init container needs its own requests and those of the sidecars started before it;
/// pod-level requests replace the sum; overhead is added.
pub(crate) fn requests(spec: &PodSpec) -> Amounts {
    let mut running = Amounts::new();
    for container in &spec.containers {
        add(&mut running, &container_requests(container));
    }
    let mut sidecars = Amounts::new();
    let mut peak = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let own = container_requests(container);
        if sidecar(container) {
            add(&mut running, &own);
            add(&mut sidecars, &own);
            raise(&mut peak, &sidecars);
        } else {
            let mut here = sidecars.clone();
            add(&mut here, &own);
            raise(&mut peak, &here);
        }
    }
    raise(&mut running, &peak);
    if let Some(pod_level) = spec.resources.as_ref() {
        running.extend(amounts([
            pod_level.limits.as_ref(),
            pod_level.requests.as_ref(),
        ]));
    }
    add(&mut running, &amounts([spec.overhead.as_ref(), None]));
    running.insert("pods".to_owned(), 1);
    running.retain(|_, amount| *amount > 0);
    running
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(value: serde_json::Value) -> PodSpec {
        serde_json::from_value(value).unwrap()
    }

    fn cpu(value: &str) -> serde_json::Value {
        json!({"requests": {"cpu": value}})
    }

    fn of(amounts: &[(&str, i64)]) -> Amounts {
        let owned = |(name, amount): &(&str, i64)| ((*name).to_owned(), *amount);
        amounts.iter().map(owned).collect()
    }

    #[test]
    fn init_containers_need_their_peak_and_sidecars_add_up() {
        let spec = spec(json!({
            "initContainers": [
                {"name": "s", "restartPolicy": "Always", "resources": cpu("200m")},
                {"name": "i", "resources": cpu("2")}
            ],
            "containers": [{"name": "a", "resources": cpu("500m")}, {"name": "b", "resources": cpu("500m")}],
            "overhead": {"cpu": "50m"}
        }));
        assert_eq!(requests(&spec), of(&[("cpu", 2250), ("pods", 1)]));
    }

    #[test]
    fn limits_stand_in_for_requests_and_pod_level_ones_replace_the_sum() {
        let with_limit = spec(
            json!({"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}),
        );
        assert_eq!(
            requests(&with_limit),
            of(&[("pods", 1), ("nvidia.com/gpu", 2)])
        );
        let pod_level = spec(json!({
            "resources": {"requests": {"cpu": "3"}},
            "containers": [{"name": "a", "resources": cpu("1")}]
        }));
        assert_eq!(requests(&pod_level), of(&[("cpu", 3000), ("pods", 1)]));
    }

    #[test]
    fn a_wildcard_port_conflicts_with_every_address() {
        let port = |ip: &str| HostPort {
            ip: ip.to_owned(),
            protocol: "TCP".to_owned(),
            port: 80,
        };
        assert!(port("").conflicts(&port("10.0.0.1")));
        assert!(port("0.0.0.0").conflicts(&port("10.0.0.1")));
        assert!(!port("10.0.0.2").conflicts(&port("10.0.0.1")));
    }

    #[test]
    fn tolerations_follow_kubernetes() {
        let taint = Taint {
            key: "a".to_owned(),
            value: Some("b".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        };
        let tolerates = |value: serde_json::Value| {
            Toleration::new(&serde_json::from_value(value).unwrap()).tolerates(&taint)
        };
        assert!(tolerates(json!({"operator": "Exists"})));
        assert!(tolerates(
            json!({"key": "a", "operator": "Equal", "value": "b"})
        ));
        assert!(tolerates(
            json!({"key": "a", "operator": "Exists", "effect": "NoSchedule"})
        ));
        assert!(!tolerates(json!({"key": "a", "value": "c"})));
        assert!(!tolerates(
            json!({"key": "a", "operator": "Exists", "effect": "NoExecute"})
        ));
        assert!(!tolerates(json!({"value": "b"})));
    }
}
