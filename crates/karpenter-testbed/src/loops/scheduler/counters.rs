//! Counts pods by topology domain, for topology spread and inter-pod (anti-)affinity.
//!
//! Counters belong to a class of pending pods. They are built once and then updated by every placement; a change of the topology
//! itself (a node or namespace label) invalidates them.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::node::NodeInfo;
use super::reason::Reason;
use super::shape::{PodTerm, Shape, Spread};
use crate::selector::Labels;

type Domains = FxHashMap<Arc<str>, i64>;

pub(crate) type Namespaces = BTreeMap<String, Labels>;

/// The counters of one class.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// By spread constraint; a domain without pods has 0.
    spread: Vec<Domains>,
    /// By required affinity term: pods that match all terms.
    affinity: Vec<Domains>,
    anti_affinity: Vec<Domains>,
    preferred: Vec<Domains>,
}

impl Counters {
    /// Returns counters with the domains of the nodes and without pods.
    pub(crate) fn new<'a>(shape: &Shape, nodes: impl Iterator<Item = &'a NodeInfo>) -> Self {
        let mut counters = Self {
            spread: vec![Domains::default(); shape.spread.len()],
            affinity: vec![Domains::default(); shape.affinity.len()],
            anti_affinity: vec![Domains::default(); shape.anti_affinity.len()],
            preferred: vec![Domains::default(); shape.preferred_pods.len()],
        };
        if shape.spread.is_empty() {
            return counters;
        }
        for node in nodes {
            for (constraint, domains) in shape.spread.iter().zip(&mut counters.spread) {
                if counts_node(shape, constraint, node)
                    && let Some(value) = node.facts.labels.get(&constraint.key)
                {
                    domains.entry(value.as_str().into()).or_default();
                }
            }
        }
        counters
    }

    /// Adds `delta` pods of shape `placed` on `node` to the spread counts. Terminating pods do not count for spread.
    pub(crate) fn count_spread(
        &mut self,
        shape: &Shape,
        placed: &Shape,
        node: &NodeInfo,
        delta: i64,
    ) {
        if placed.namespace != shape.namespace {
            return;
        }
        for (constraint, domains) in shape.spread.iter().zip(&mut self.spread) {
            if constraint.selector.matches(&placed.labels)
                && counts_node(shape, constraint, node)
                && let Some(value) = node.facts.labels.get(&constraint.key)
            {
                bump(domains, value, delta);
            }
        }
    }

    /// Adds `delta` pods of shape `placed` on `node` to the affinity counts.
    pub(crate) fn count_affinity(
        &mut self,
        shape: &Shape,
        placed: &Shape,
        node: &NodeInfo,
        namespaces: &Namespaces,
        delta: i64,
    ) {
        let means = |term: &PodTerm| term.means(&placed.namespace, &placed.labels, namespaces);
        if !shape.affinity.is_empty() && shape.affinity.iter().all(means) {
            for (term, domains) in shape.affinity.iter().zip(&mut self.affinity) {
                count(domains, term, node, delta);
            }
        }
        for (term, domains) in shape.anti_affinity.iter().zip(&mut self.anti_affinity) {
            if means(term) {
                count(domains, term, node, delta);
            }
        }
        for ((_, term), domains) in shape.preferred_pods.iter().zip(&mut self.preferred) {
            if means(term) {
                count(domains, term, node, delta);
            }
        }
    }

    /// Returns the smallest count of each hard spread constraint; 0 while there are fewer domains than `minDomains`.
    pub(crate) fn minima(&self, shape: &Shape) -> Vec<i64> {
        shape
            .spread
            .iter()
            .zip(&self.spread)
            .map(|(constraint, domains)| {
                let few = i64::try_from(domains.len()).unwrap_or(i64::MAX) < constraint.min_domains;
                if few {
                    0
                } else {
                    domains.values().copied().min().unwrap_or(0)
                }
            })
            .collect()
    }

    /// Returns why spread constraints exclude the node.
    pub(crate) fn spread_refuses(
        &self,
        shape: &Shape,
        minima: &[i64],
        node: &NodeInfo,
    ) -> Option<Reason> {
        let hard = || shape.spread.iter().enumerate().filter(|(_, c)| c.hard);
        if hard().any(|(_, c)| !node.facts.labels.contains_key(&c.key)) {
            return Some(Reason::SpreadLabel);
        }
        for (i, constraint) in hard() {
            let value = node.facts.labels.get(&constraint.key)?;
            let own = i64::from(constraint.selector.matches(&shape.labels));
            let count = self.spread[i].get(value.as_str()).copied().unwrap_or(0);
            if count + own - minima[i] > constraint.max_skew {
                return Some(Reason::Spread);
            }
        }
        None
    }

    /// Returns why the pod's own affinity terms exclude the node.
    pub(crate) fn affinity_refuses(
        &self,
        shape: &Shape,
        node: &NodeInfo,
        namespaces: &Namespaces,
    ) -> Option<Reason> {
        let label = |term: &PodTerm| node.facts.labels.get(&term.key);
        if !shape.affinity.is_empty() {
            if shape.affinity.iter().any(|t| label(t).is_none()) {
                return Some(Reason::Affinity);
            }
            let near = shape
                .affinity
                .iter()
                .zip(&self.affinity)
                .all(|(term, domains)| {
                    label(term).is_some_and(|v| domains.get(v.as_str()).is_some_and(|n| *n > 0))
                });
            // The first pod of a group with affinity to itself may go anywhere.
            let first = || {
                self.affinity.iter().all(|d| d.values().all(|n| *n == 0))
                    && shape
                        .affinity
                        .iter()
                        .all(|t| t.means(&shape.namespace, &shape.labels, namespaces))
            };
            if !near && !first() {
                return Some(Reason::Affinity);
            }
        }
        let close = shape
            .anti_affinity
            .iter()
            .zip(&self.anti_affinity)
            .any(|(term, domains)| {
                label(term).is_some_and(|v| domains.get(v.as_str()).is_some_and(|n| *n > 0))
            });
        close.then_some(Reason::AntiAffinity)
    }

    /// Returns the score of the soft terms for the node: preferred affinity minus soft spread.
    pub(crate) fn liking(&self, shape: &Shape, node: &NodeInfo) -> i64 {
        let count = |domains: &Domains, key: &String| {
            let value = node.facts.labels.get(key)?;
            domains.get(value.as_str()).copied()
        };
        let near: i64 = shape
            .preferred_pods
            .iter()
            .zip(&self.preferred)
            .map(|((weight, term), domains)| {
                i64::from(*weight) * count(domains, &term.key).unwrap_or(0)
            })
            .sum();
        let crowd: i64 = shape
            .spread
            .iter()
            .zip(&self.spread)
            .map(
                |(constraint, domains)| match count(domains, &constraint.key) {
                    Some(n) => n,
                    // A node outside of all domains has the lowest score.
                    None => domains.values().copied().max().unwrap_or(0) + 1,
                },
            )
            .sum();
        near - 100 * crowd
    }
}

fn bump(domains: &mut Domains, value: &str, delta: i64) {
    match domains.get_mut(value) {
        Some(n) => *n += delta,
        None => {
            domains.insert(value.into(), delta);
        }
    }
}

fn count(domains: &mut Domains, term: &PodTerm, node: &NodeInfo, delta: i64) {
    if let Some(value) = node.facts.labels.get(&term.key) {
        bump(domains, value, delta);
    }
}

/// Whether pods on the node, and the node's domain, count for the constraint.
fn counts_node(shape: &Shape, constraint: &Spread, node: &NodeInfo) -> bool {
    let labeled = shape
        .spread
        .iter()
        .filter(|c| c.hard == constraint.hard)
        .all(|c| node.facts.labels.contains_key(&c.key));
    labeled
        && (!constraint.honor_affinity || shape.selects_node(&node.name, &node.facts.labels))
        && (!constraint.honor_taints || node.untolerated(shape).is_none())
}

/// The pods with one required anti-affinity term, counted by domain: they exclude matching pods.
#[derive(Debug)]
pub(crate) struct AntiGroup {
    pub(crate) term: PodTerm,
    domains: Domains,
    pods: i64,
}

impl AntiGroup {
    pub(crate) fn new(term: PodTerm) -> Self {
        Self {
            term,
            domains: Domains::default(),
            pods: 0,
        }
    }

    /// Adds `delta` pods on `node`.
    pub(crate) fn count(&mut self, node: &NodeInfo, delta: i64) {
        self.pods += delta;
        count(&mut self.domains, &self.term, node, delta);
    }

    /// Whether no pod has the term any more.
    pub(crate) fn is_empty(&self) -> bool {
        self.pods <= 0
    }

    /// Whether a pod with the term is in the node's domain.
    pub(crate) fn near(&self, node: &NodeInfo) -> bool {
        node.facts
            .labels
            .get(&self.term.key)
            .is_some_and(|v| self.domains.get(v.as_str()).is_some_and(|n| *n > 0))
    }
}
