//! Topology constraints: whether some order of all placements keeps them.

use k8s_openapi::api::core::v1::{Pod, Taint};
use karpenter_api::labels::HOSTNAME;
use karpenter_core::requirements::{Requirement, Requirements, Unaliased};

use super::Checker;
use crate::replay::binding_order;
use crate::solve::Solution;
use crate::topology::{Located, Source, Topology};
use crate::world::SpecNode;
use crate::{order, pod};

impl<'w> Checker<'w> {
    /// Searches for an order in which every placement keeps all topology constraints.
    pub(super) fn topology(&mut self, solution: &Solution) {
        let nodes: Vec<(Requirements, SpecNode)> = self
            .nodes
            .iter()
            .map(|node| {
                (
                    Requirements::from_labels(&node.labels, &Unaliased),
                    node.clone(),
                )
            })
            .collect();
        let claims: Vec<(Requirements, Vec<Taint>)> = solution
            .claims
            .iter()
            .enumerate()
            .map(|(index, claim)| {
                let mut host = claim.requirements.clone();
                host.replace(Requirement::equal(HOSTNAME, &format!("claim-{index}")));
                let template = self
                    .templates
                    .iter()
                    .find(|template| template.pool.name() == claim.pool);
                (
                    host,
                    template
                        .map(|template| template.taints.clone())
                        .unwrap_or_default(),
                )
            })
            .collect();
        let mut sources: Vec<Source> = self
            .templates
            .iter()
            .flat_map(|template| template.sources(self.settings.strict_min_values))
            .collect();
        sources.extend(
            nodes
                .iter()
                .filter(|(_, node)| !node.deleting)
                .map(|(labels, node)| Source {
                    labels: labels.clone(),
                    taints: node.taints.clone(),
                    pool: None,
                    offerings: vec![],
                }),
        );
        let on_node = |name: &str| {
            nodes
                .iter()
                .find(|(_, node)| node.name == name)
                .map(|(l, m)| (l, m.taints.as_slice()))
        };
        let located = |pod: &'w Pod, host: Option<(&'_ Requirements, &'_ [Taint])>| {
            host.map(|(host, taints)| (pod, host.clone(), taints.to_vec()))
        };
        let here: Vec<(&Pod, Requirements, Vec<Taint>)> = self
            .world
            .pods
            .iter()
            .filter(|pod| !self.pods.contains_key(&pod::id(pod)) && pod::is_active(pod))
            .filter_map(|pod| located(pod, on_node(pod::spec(pod).node_name.as_deref()?)))
            .collect();
        let on_nodes = solution
            .existing
            .iter()
            .filter_map(|(id, name)| located(self.pods.get(id)?, on_node(name)));
        let on_claims = solution
            .claims
            .iter()
            .zip(&claims)
            .flat_map(|(claim, (host, taints))| {
                claim
                    .pods
                    .iter()
                    .filter_map(|id| located(self.pods.get(id)?, Some((host, taints.as_slice()))))
            });
        let mut new_pods: Vec<(&Pod, Requirements, Vec<Taint>)> =
            on_nodes.chain(on_claims).collect();
        // The order in which kube-scheduler would bind them is tried first. It need not be valid here: these rules count domains
        // without a node, too.
        let order = binding_order(self.world, solution);
        new_pods.sort_by_cached_key(|(pod, ..)| {
            let id = pod::id(pod);
            let bound = order.iter().position(|other| *other == id);
            (bound.unwrap_or(order.len()), id)
        });
        let is_planned = |host: &Requirements| claims.iter().any(|(claim, _)| claim == host);
        let view = |here: &'_ [(&'w Pod, Requirements, Vec<Taint>)],
                    pod: &Pod,
                    host: &Requirements|
         -> bool {
            let located = here
                .iter()
                .map(|(pod, host, taints)| Located { pod, host, taints })
                .collect();
            let topology = Topology {
                world: self.world,
                located,
                sources: &sources,
                planned: here.iter().any(|(_, host, _)| is_planned(host)),
                respect_preferences: false,
                tolerate_soft_taints: true,
            };
            readings(pod).iter().any(|(pod, strict)| {
                topology
                    .options(pod, strict, host)
                    .iter()
                    .all(|options| options.iter().any(|option| covers(option, host, &sources)))
            })
        };
        let alike = |a: &Pod, b: &Pod| {
            (&a.spec, &a.metadata.labels, &a.metadata.namespace)
                == (&b.spec, &b.metadata.labels, &b.metadata.namespace)
        };
        let classes: Vec<usize> = new_pods
            .iter()
            .map(|(pod, host, taints)| {
                let same = |(other, on, tainted): &(&Pod, Requirements, Vec<Taint>)| {
                    alike(pod, other) && (host, taints) == (on, tainted)
                };
                new_pods.iter().position(same).unwrap_or_default()
            })
            .collect();
        let may = |done: &[usize], next: usize| {
            let done = done.iter().map(|index| new_pods[*index].clone());
            let there: Vec<_> = here.iter().cloned().chain(done).collect();
            let (pod, host, _) = &new_pods[next];
            view(&there, pod, host)
        };
        let stuck: Vec<String> = order::stuck(&classes, may)
            .into_iter()
            .map(|index| pod::id(new_pods[index].0).name)
            .collect();
        self.demand(stuck.is_empty(), "topology", || {
            format!("no order of placements is valid; stuck at {stuck:?}")
        });
    }
}

/// Returns the interpretations of alternatives: each required term in turn bounds the pod's domains, with or without those
/// dropped before it.
fn readings(pod: &Pod) -> Vec<(Pod, Requirements)> {
    let mut readings = vec![(
        pod.clone(),
        pod::strict_requirements(pod).unwrap_or_default(),
    )];
    let mut rest = pod.clone();
    while pod::required_terms(&rest).len() > 1 {
        rest = match pod::relax(&rest, false) {
            Some(relaxed) => relaxed,
            None => break,
        };
        let strict = pod::strict_requirements(&rest).unwrap_or_default();
        readings.extend([(rest.clone(), strict.clone()), (pod.clone(), strict)]);
    }
    readings
}

/// Returns whether all domains in which the host can be satisfy the option.
fn covers(option: &Requirement, host: &Requirements, sources: &[Source]) -> bool {
    let key = option.key();
    let Some(own) = host.get(key) else {
        let known = sources
            .iter()
            .filter_map(|source| source.labels.get(key))
            .filter(|r| !r.is_complement());
        return !sources.is_empty()
            && known
                .flat_map(Requirement::values)
                .all(|domain| option.has(domain));
    };
    own.intersection(option).is_empty() == own.is_empty()
        && if own.is_complement() {
            let known = sources
                .iter()
                .filter_map(|source| source.labels.get(key))
                .filter(|r| !r.is_complement());
            known
                .flat_map(Requirement::values)
                .filter(|domain| own.has(domain))
                .all(|domain| option.has(domain))
        } else {
            own.values().all(|domain| option.has(domain))
        }
}
