//! Counts pods by topology domain, for topology spread and inter-pod (anti-)affinity, for one attempt to place a pod.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::node::NodeInfo;
use super::reason::Reason;
use super::shape::{PodTerm, Shape, Spread};
use crate::selector::Labels;

type Domains<'a> = FxHashMap<&'a str, i64>;

pub(crate) type Namespaces = BTreeMap<String, Labels>;

/// The pods that count for pods of one shape.
#[derive(Debug)]
pub(crate) struct Counters<'a> {
    /// By spread constraint; a domain without pods has 0.
    spread: Vec<Domains<'a>>,
    /// The smallest count of each spread constraint; 0 while there are fewer domains than `minDomains`.
    minima: Vec<i64>,
    /// By required affinity term: pods that match all terms.
    affinity: Vec<Domains<'a>>,
    anti_affinity: Vec<Domains<'a>>,
    preferred: Vec<Domains<'a>>,
    /// Domains, by topology key, with a pod whose required anti-affinity matches the shape.
    excluded: FxHashMap<&'a str, FxHashSet<&'a str>>,
}

impl<'a> Counters<'a> {
    /// Counts the placed pods, which are given with whether they terminate and with their nodes.
    pub(crate) fn new(
        shape: &Shape,
        nodes: impl Iterator<Item = &'a NodeInfo>,
        placed: impl Iterator<Item = (&'a Shape, bool, &'a NodeInfo)>,
        namespaces: &Namespaces,
    ) -> Self {
        let mut counters = Self {
            spread: vec![Domains::default(); shape.spread.len()],
            minima: Vec::new(),
            affinity: vec![Domains::default(); shape.affinity.len()],
            anti_affinity: vec![Domains::default(); shape.anti_affinity.len()],
            preferred: vec![Domains::default(); shape.preferred_pods.len()],
            excluded: FxHashMap::default(),
        };
        if !shape.spread.is_empty() {
            for node in nodes {
                for (constraint, domains) in shape.spread.iter().zip(&mut counters.spread) {
                    if counts_node(shape, constraint, node) {
                        count(domains, &constraint.key, node, 0);
                    }
                }
            }
        }
        for (pod, terminating, node) in placed {
            // Terminating pods do not count for spread.
            if !terminating && pod.namespace == shape.namespace {
                for (constraint, domains) in shape.spread.iter().zip(&mut counters.spread) {
                    if constraint.selector.matches(&pod.labels)
                        && counts_node(shape, constraint, node)
                    {
                        count(domains, &constraint.key, node, 1);
                    }
                }
            }
            counters.count_affinity(shape, pod, node, namespaces);
        }
        let few = |constraint: &Spread, domains: &Domains<'_>| {
            i64::try_from(domains.len()).unwrap_or(i64::MAX) < constraint.min_domains
        };
        counters.minima = shape
            .spread
            .iter()
            .zip(&counters.spread)
            .map(|(constraint, domains)| match few(constraint, domains) {
                true => 0,
                false => domains.values().copied().min().unwrap_or(0),
            })
            .collect();
        counters
    }

    fn count_affinity(
        &mut self,
        shape: &Shape,
        pod: &'a Shape,
        node: &'a NodeInfo,
        namespaces: &Namespaces,
    ) {
        let matches = |term: &PodTerm| term.matches(&pod.namespace, &pod.labels, namespaces);
        if shape.affinity.iter().all(matches) {
            for (term, domains) in shape.affinity.iter().zip(&mut self.affinity) {
                count(domains, &term.key, node, 1);
            }
        }
        let preferred = shape.preferred_pods.iter().map(|(_, term)| term);
        let others = shape.anti_affinity.iter().zip(&mut self.anti_affinity);
        for (term, domains) in others.chain(preferred.zip(&mut self.preferred)) {
            if matches(term) {
                count(domains, &term.key, node, 1);
            }
        }
        for term in &pod.anti_affinity {
            if term.matches(&shape.namespace, &shape.labels, namespaces)
                && let Some(value) = node.facts.labels.get(&term.key)
            {
                self.excluded.entry(&term.key).or_default().insert(value);
            }
        }
    }

    /// Returns why spread constraints exclude the node.
    pub(crate) fn spread_refuses(&self, shape: &Shape, node: &NodeInfo) -> Option<Reason> {
        let hard = || shape.spread.iter().enumerate().filter(|(_, c)| c.hard);
        if hard().any(|(_, c)| !node.facts.labels.contains_key(&c.key)) {
            return Some(Reason::SpreadLabel);
        }
        for (i, constraint) in hard() {
            let value = node.facts.labels.get(&constraint.key)?;
            let own = i64::from(constraint.selector.matches(&shape.labels));
            let count = self.spread[i].get(value.as_str()).copied().unwrap_or(0);
            if count + own - self.minima[i] > constraint.max_skew {
                return Some(Reason::Spread);
            }
        }
        None
    }

    /// Returns why the pod's affinity terms, or the anti-affinity of existing pods, exclude the node.
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
            let mut own = shape.affinity.iter().zip(&self.affinity);
            let near = own.all(|(term, domains)| has_pods(domains, &term.key, node));
            // The first pod of a group with affinity to itself may go anywhere.
            let first = || {
                self.affinity.iter().all(FxHashMap::is_empty)
                    && shape
                        .affinity
                        .iter()
                        .all(|t| t.matches(&shape.namespace, &shape.labels, namespaces))
            };
            if !near && !first() {
                return Some(Reason::Affinity);
            }
        }
        let mut own = shape.anti_affinity.iter().zip(&self.anti_affinity);
        if own.any(|(term, domains)| has_pods(domains, &term.key, node)) {
            return Some(Reason::AntiAffinity);
        }
        let excludes = |(key, domains): (&&str, &FxHashSet<&str>)| {
            let value = node.facts.labels.get(*key);
            value.is_some_and(|value| domains.contains(value.as_str()))
        };
        let excluded = self.excluded.iter().any(excludes);
        excluded.then_some(Reason::ExistingAntiAffinity)
    }

    /// Returns the score of the soft terms for the node: preferred affinity minus soft spread.
    pub(crate) fn soft_score(&self, shape: &Shape, node: &NodeInfo) -> i64 {
        let count = |domains: &Domains<'_>, key: &String| {
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

/// Adds pods to the domain of the node, if it is in one.
fn count<'a>(domains: &mut Domains<'a>, key: &str, node: &'a NodeInfo, pods: i64) {
    if let Some(value) = node.facts.labels.get(key) {
        *domains.entry(value).or_default() += pods;
    }
}

fn has_pods(domains: &Domains<'_>, key: &str, node: &NodeInfo) -> bool {
    let value = node.facts.labels.get(key);
    value.is_some_and(|value| domains.contains_key(value.as_str()))
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
