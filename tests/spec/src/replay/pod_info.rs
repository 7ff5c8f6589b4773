//! A pod as kube-scheduler's filters see it, with its terms, constraints and volumes resolved.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, Pod, PodAffinityTerm, Taint, Toleration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use karpenter_core::resources::Resources;

use crate::pod;
use crate::pod::{HostPort, Labels, PodId};
use crate::world::World;

/// A term of pod affinity or anti-affinity, with its namespaces and label keys resolved.
#[derive(Debug, Clone)]
pub(super) struct Term {
    pub(super) key: String,
    pub(super) namespaces: BTreeSet<String>,
    pub(super) selector: Option<LabelSelector>,
}

impl Term {
    pub(super) fn matches(&self, other: &PodInfo) -> bool {
        self.namespaces.contains(&other.id.namespace)
            && pod::selects(self.selector.as_ref(), &other.labels)
    }
}

/// A hard topology spread constraint.
#[derive(Debug, Clone)]
pub(crate) struct Spread {
    pub(super) key: String,
    pub(super) max_skew: i64,
    pub(super) min_domains: i64,
    pub(super) selector: Option<LabelSelector>,
    pub(super) honor_affinity: bool,
    pub(super) honor_taints: bool,
}

impl Spread {
    /// Returns how many of the pods count. For an empty selector kube-scheduler counts none and so never rejects a pod; this
    /// check is stricter.
    pub(super) fn count<'p>(
        &self,
        namespace: &str,
        pods: impl Iterator<Item = &'p PodInfo>,
    ) -> i64 {
        let counted = pods.filter(|pod| {
            !pod.is_terminating
                && pod.id.namespace == namespace
                && pod::selects(self.selector.as_ref(), &pod.labels)
        });
        counted.count() as i64
    }
}

/// The fields of a pod that the filters read.
#[derive(Debug, Clone)]
pub(crate) struct PodInfo {
    pub(crate) id: PodId,
    pub(super) labels: Labels,
    pub(super) requests: Resources,
    pub(super) ports: Vec<HostPort>,
    pub(super) tolerations: Vec<Toleration>,
    pub(super) node_selector: BTreeMap<String, String>,
    /// Alternatives of the required node affinity; None if there is none.
    pub(super) terms: Option<Vec<NodeSelectorTerm>>,
    pub(crate) spread: Vec<Spread>,
    pub(super) affinity: Vec<Term>,
    pub(super) anti_affinity: Vec<Term>,
    /// The alternative node selector terms of each volume.
    pub(super) volumes: Vec<Vec<NodeSelectorTerm>>,
    /// Attached volumes: CSI driver and claim.
    pub(super) attached: BTreeSet<(String, String)>,
    pub(super) is_terminating: bool,
    pub(super) is_daemon: bool,
}

impl PodInfo {
    pub(crate) fn of(world: &World, pod: &Pod) -> Self {
        let spec = pod::spec(pod);
        let term = |term: &PodAffinityTerm| {
            let listed = term.namespaces.iter().flatten().cloned();
            let mut namespaces: BTreeSet<String> = listed.collect();
            if let Some(selector) = &term.namespace_selector {
                let all = world.namespaces.iter().filter(|namespace| {
                    let labels = namespace.metadata.labels.clone().unwrap_or_default();
                    pod::selects(Some(selector), &labels)
                });
                namespaces.extend(all.filter_map(|namespace| namespace.metadata.name.clone()));
                // A namespace without an object has no labels; an empty selector selects it, too.
                if pod::selects(Some(selector), &Labels::new()) {
                    let named = world.pods.iter().map(|pod| pod::namespace(pod).to_owned());
                    namespaces.extend(named.filter(|name| {
                        let known = |n: &k8s_openapi::api::core::v1::Namespace| {
                            n.metadata.name.as_ref() == Some(name)
                        };
                        !world.namespaces.iter().any(known)
                    }));
                }
            } else if namespaces.is_empty() {
                namespaces.insert(pod::namespace(pod).to_owned());
            }
            Term {
                key: term.topology_key.clone(),
                namespaces,
                selector: pod::with_label_keys(
                    term.label_selector.as_ref(),
                    term.match_label_keys.as_ref(),
                    term.mismatch_label_keys.as_ref(),
                    pod,
                ),
            }
        };
        let spread = pod::spread_constraints(pod, false).into_iter();
        let spread = spread.map(|constraint| Spread {
            max_skew: constraint.max_skew.into(),
            min_domains: constraint.min_domains.unwrap_or(1).into(),
            selector: pod::with_label_keys(
                constraint.label_selector.as_ref(),
                constraint.match_label_keys.as_ref(),
                None,
                pod,
            ),
            honor_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honor_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
            key: constraint.topology_key,
        });
        let required = pod::affinity(pod).node_affinity.unwrap_or_default();
        let required = required.required_during_scheduling_ignored_during_execution;
        let (volumes, attached) = volumes(world, pod);
        Self {
            id: pod::id(pod),
            labels: pod::labels(pod),
            requests: pod::requests(pod),
            ports: pod::host_ports(pod),
            spread: spread.collect(),
            affinity: pod::affinity_terms(pod, false).iter().map(term).collect(),
            anti_affinity: pod::anti_affinity_terms(pod, false)
                .iter()
                .map(term)
                .collect(),
            tolerations: spec.tolerations.unwrap_or_default(),
            node_selector: spec.node_selector.unwrap_or_default(),
            terms: required.map(|selector| selector.node_selector_terms),
            volumes,
            attached,
            is_terminating: pod.metadata.deletion_timestamp.is_some(),
            is_daemon: pod::is_owned_by(pod, "DaemonSet"),
        }
    }

    /// Applies NodeAffinity: the node selector and one of the alternatives.
    pub(crate) fn accepts(&self, labels: &Labels) -> bool {
        let mut selector = self.node_selector.iter();
        selector.all(|(key, value)| labels.get(key) == Some(value))
            && (self.terms.as_ref()).is_none_or(|terms| terms.iter().any(|t| term_meets(t, labels)))
    }

    /// Applies TaintToleration, which ignores `PreferNoSchedule`.
    pub(super) fn tolerates(&self, taints: &[Taint]) -> bool {
        let hard = taints.iter().filter(|t| t.effect != "PreferNoSchedule");
        let mut hard = hard.map(|taint| self.tolerations.iter().any(|t| tolerates(t, taint)));
        hard.all(|tolerated| tolerated)
    }
}

/// Returns the node selector terms of a pod's volumes and the volumes it attaches. A missing claim requires a node that does
/// not exist.
fn volumes(world: &World, pod: &Pod) -> (Vec<Vec<NodeSelectorTerm>>, BTreeSet<(String, String)>) {
    let (mut needs, mut attached) = (Vec::new(), BTreeSet::new());
    for volume in pod::spec(pod).volumes.unwrap_or_default() {
        let name = match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(source), _) => source.claim_name.clone(),
            (None, Some(_)) => format!("{}-{}", pod::id(pod).name, volume.name),
            (None, None) => continue,
        };
        let claim = world.volume_claims.iter().find(|claim| {
            claim.metadata.name.as_ref() == Some(&name)
                && claim.metadata.namespace.as_deref() == Some(pod::namespace(pod))
        });
        let Some(spec) = claim.and_then(|claim| claim.spec.clone()) else {
            needs.push(vec![]);
            continue;
        };
        if let Some(volume) = spec.volume_name.filter(|name| !name.is_empty()) {
            let volume = world
                .volumes
                .iter()
                .find(|v| v.metadata.name.as_ref() == Some(&volume));
            let Some(spec) = volume.and_then(|volume| volume.spec.clone()) else {
                needs.push(vec![]);
                continue;
            };
            if let Some(required) = spec.node_affinity.and_then(|affinity| affinity.required) {
                needs.push(required.node_selector_terms);
            }
            if let Some(csi) = spec.csi {
                attached.insert((csi.driver, format!("{}/{name}", pod::namespace(pod))));
            }
            continue;
        }
        let class = world.storage_classes.iter().find(|class| {
            class.metadata.name.is_some() && class.metadata.name == spec.storage_class_name
        });
        let Some(class) = class
            .filter(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
        else {
            needs.push(vec![]);
            continue;
        };
        if let Some(terms) = class
            .allowed_topologies
            .as_ref()
            .filter(|all| !all.is_empty())
        {
            let expressions = |term: &k8s_openapi::api::core::v1::TopologySelectorTerm| {
                let all = term.match_label_expressions.iter().flatten();
                all.map(|e| NodeSelectorRequirement {
                    key: e.key.clone(),
                    operator: "In".into(),
                    values: Some(e.values.clone()),
                })
                .collect()
            };
            let terms = terms.iter().map(|term| NodeSelectorTerm {
                match_expressions: Some(expressions(term)),
                match_fields: None,
            });
            needs.push(terms.collect());
        }
        attached.insert((
            class.provisioner.clone(),
            format!("{}/{name}", pod::namespace(pod)),
        ));
    }
    (needs, attached)
}

/// Returns whether labels match a node selector term; a term without expressions matches none.
pub(super) fn term_meets(term: &NodeSelectorTerm, labels: &Labels) -> bool {
    let expressions = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten().count();
    fields == 0
        && term.match_expressions.iter().flatten().count() > 0
        && expressions.clone().all(|e| expression_meets(e, labels))
}

fn expression_meets(expression: &NodeSelectorRequirement, labels: &Labels) -> bool {
    let value = labels.get(&expression.key);
    let listed = || expression.values.iter().flatten().any(|v| Some(v) == value);
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    let bound = || number(expression.values.iter().flatten().next());
    match expression.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number(value)
            .zip(bound())
            .is_some_and(|(own, bound)| own > bound),
        "Lt" => number(value)
            .zip(bound())
            .is_some_and(|(own, bound)| own < bound),
        _ => false,
    }
}

pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let empty_or = |own: Option<&str>, other: &str| own.is_none_or(|o| o.is_empty() || o == other);
    let value = toleration.value.as_deref().unwrap_or_default();
    empty_or(toleration.effect.as_deref(), &taint.effect)
        && empty_or(toleration.key.as_deref(), &taint.key)
        && match toleration.operator.as_deref().unwrap_or("Equal") {
            "Exists" => true,
            _ => value == taint.value.as_deref().unwrap_or_default(),
        }
}
