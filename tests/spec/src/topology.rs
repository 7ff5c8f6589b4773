//! Topology constraints (section 10), counted for each decision from the nodes of all pods.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, Taint, TopologySpreadConstraint};
use karpenter_api::labels::HOSTNAME;
use karpenter_core::offering::Offering;
use karpenter_core::requirements::{
    AllowUndefined, Operator, Requirement, Requirements, Unaliased,
};

use crate::pod;
use crate::world::World;

/// A bound or placed pod with its node.
pub(crate) struct Located<'a> {
    pub pod: &'a Pod,
    /// The labels of the node, or the possible values of a planned one.
    pub host: &'a Requirements,
    pub taints: &'a [Taint],
}

/// An existing node or a kind of node that can be launched, with its labels.
pub(crate) struct Source {
    pub labels: Requirements,
    pub taints: Vec<Taint>,
    /// The requirements of its NodePool; None for an existing node.
    pub pool: Option<Requirements>,
    /// The offerings of its instance type.
    pub offerings: Vec<Offering>,
}

/// The inputs of topology constraints.
pub(crate) struct Topology<'a> {
    pub world: &'a World,
    pub located: Vec<Located<'a>>,
    pub sources: &'a [Source],
    /// Whether a node is planned already.
    pub planned: bool,
    /// Whether preferences count as constraints until they are relaxed.
    pub respect_preferences: bool,
    /// Whether every pod tolerates `PreferNoSchedule`, as it does after all relaxations.
    pub tolerate_soft_taints: bool,
}

/// The options of one constraint: each of these requirements on the node satisfies it, the best first.
type Options = Vec<Requirement>;

impl Topology<'_> {
    /// Returns the options of each constraint of a pod, and of each constraint of other pods that applies to it. The pod's strict
    /// requirements bound the domains it may use.
    pub(crate) fn options(
        &self,
        pod: &Pod,
        strict: &Requirements,
        candidate: &Requirements,
    ) -> Vec<Options> {
        let soft = self.respect_preferences;
        let spread = pod::spread_constraints(pod, soft);
        let near = pod::affinity_terms(pod, soft);
        let apart = pod::anti_affinity_terms(pod, soft);
        let mut all = Vec::new();
        all.extend(
            spread
                .iter()
                .map(|constraint| self.spread(pod, constraint, strict, candidate)),
        );
        all.extend(
            near.iter()
                .map(|term| self.affinity(pod, term, strict, candidate)),
        );
        all.extend(apart.iter().map(|term| {
            let others = self
                .located
                .iter()
                .filter(|located| self.concerns(pod, term, located.pod));
            self.apart(pod, &term.topology_key, others, strict, candidate)
        }));
        // The pod cannot share a domain with pods whose anti-affinity matches it.
        for located in &self.located {
            for term in pod::anti_affinity_terms(located.pod, false) {
                if self.concerns(located.pod, &term, pod) {
                    all.push(self.apart(
                        pod,
                        &term.topology_key,
                        [located].into_iter(),
                        strict,
                        candidate,
                    ));
                }
            }
        }
        all
    }

    /// Returns the domains in which the skew stays within its limit, that with the fewest pods first.
    fn spread(
        &self,
        pod: &Pod,
        constraint: &TopologySpreadConstraint,
        strict: &Requirements,
        candidate: &Requirements,
    ) -> Options {
        let key = &constraint.topology_key;
        let selector = pod::with_label_keys(
            constraint.label_selector.as_ref(),
            constraint.match_label_keys.as_ref(),
            None,
            pod,
        );
        let matches = |other: &Pod| {
            pod::namespace(other) == pod::namespace(pod)
                && pod::selects(selector.as_ref(), &pod::labels(other))
        };
        let honor_affinity = constraint.node_affinity_policy.as_deref() != Some("Ignore");
        let honor_taints = constraint.node_taints_policy.as_deref() == Some("Honor");
        // The node affinity as written: alternatives dropped meanwhile do not matter for where other pods count.
        let written = self
            .world
            .pods
            .iter()
            .find(|other| pod::id(other) == pod::id(pod));
        let written = written.unwrap_or(pod);
        // kube-scheduler counts only nodes with the labels of all hard constraints of the pod; planned nodes have all well-known ones and
        // the hostname.
        let keys: Vec<String> = pod::spread_constraints(written, false)
            .into_iter()
            .map(|other| other.topology_key)
            .filter(|other| {
                other != key && other != HOSTNAME && !self.world.well_known.contains(other)
            })
            .collect();
        let is_hard = constraint.when_unsatisfiable != "ScheduleAnyway";
        let has_keys = |host: &Requirements| {
            !is_hard || key == HOSTNAME || keys.iter().all(|key| host.get(key).is_some())
        };
        let counts_on = |host: &Requirements, taints: &[Taint]| {
            has_keys(host)
                && (!honor_affinity || accepts(written, host, AllowUndefined::Nothing))
                && (!honor_taints || tolerates_hard(pod, taints))
        };
        let (mut load, mut along): (BTreeMap<String, usize>, usize) = (BTreeMap::new(), 0);
        for located in self
            .located
            .iter()
            .filter(|located| matches(located.pod) && counts_on(located.host, located.taints))
        {
            match located.host.get(key).and_then(Requirement::single) {
                Some(domain) => *load.entry(domain.to_owned()).or_default() += 1,
                // Pods on the candidate itself share its domain, whichever it is.
                None if located.host.get(HOSTNAME) == candidate.get(HOSTNAME) => along += 1,
                None => {}
            }
        }
        let load_of = |domain: &str| load.get(domain).copied().unwrap_or(0);
        let alternatives = alternatives(written);
        let by_term = honor_affinity && alternatives.iter().any(|term| !term.is_empty());
        let may_count = |source: &Source| match &source.pool {
            None => counts_on(&source.labels, &source.taints),
            Some(pool) => has_keys(pool) && (!honor_taints || tolerates_hard(pod, &source.taints)),
        };
        // Where a node selector or affinity counts, new nodes are those that have an offering together with one of its terms.
        let offered = |term: &Requirements, available: bool| -> BTreeSet<String> {
            let new = self.sources.iter().filter(|source| source.pool.is_some());
            new.filter(|source| may_count(source))
                .flat_map(|source| self.offered(source, term, key, available))
                .collect()
        };
        let mut known = self.domains(key, candidate, |source| {
            may_count(source) && (source.pool.is_none() || !by_term)
        });
        if by_term && key != HOSTNAME {
            known.extend(alternatives.iter().flat_map(|term| offered(term, false)));
        }
        let (own, there) = (strict.get_or_exists(key), candidate.get_or_exists(key));
        let eligible: Vec<&String> = known.iter().filter(|domain| own.has(domain)).collect();
        // The skew counts the domains with a node and those that the alternative in use offers. A later pod may open what the other
        // alternatives can launch, unless the pod is bound to an existing node before any node is planned. Under the policy Ignore
        // it counts all domains that an alternative admits.
        let mut nodes = self.sources.iter().filter(|source| source.pool.is_none());
        let is_first = !self.planned && nodes.any(|source| source.labels == *candidate);
        let potential: BTreeSet<String> = if by_term && key != HOSTNAME {
            let others = alternatives.iter().filter(|_| !is_first);
            let others = others.flat_map(|term| offered(term, true));
            offered(strict, false).into_iter().chain(others).collect()
        } else {
            let mut known = known.clone();
            known.retain(|domain| {
                alternatives
                    .iter()
                    .any(|term| term.get_or_exists(key).has(domain))
            });
            known
        };
        let occupied = |domain: &str| {
            let is_here = |host: &Requirements, taints: &[Taint]| {
                counts_on(host, taints)
                    && host.get(key).and_then(Requirement::single) == Some(domain)
            };
            let there = self.sources.iter().filter(|source| source.pool.is_none());
            let mut there = there.map(|source| (&source.labels, source.taints.as_slice()));
            let mut planned = self.located.iter().map(|l| (l.host, l.taints));
            there.any(|(host, taints)| is_here(host, taints))
                || planned.any(|(host, taints)| is_here(host, taints))
        };
        let counted: Vec<&String> = known
            .iter()
            .filter(|domain| potential.contains(*domain) || occupied(domain.as_str()))
            .collect();
        let few = constraint
            .min_domains
            .is_some_and(|least| (counted.len() as i64) < i64::from(least));
        let least = if key == HOSTNAME || few {
            0
        } else {
            counted
                .iter()
                .map(|domain| load_of(domain))
                .min()
                .unwrap_or(0)
        };
        let itself = usize::from(matches(pod));
        let max_skew = usize::try_from(constraint.max_skew).unwrap_or(0);
        let mut valid: Vec<&String> = eligible
            .into_iter()
            .filter(|domain| there.has(domain))
            .collect();
        valid.retain(|domain| load_of(domain) + along + itself <= max_skew + least);
        valid.sort_by_key(|domain| (load_of(domain), domain.to_string()));
        valid
            .into_iter()
            .map(|domain| Requirement::equal(key, domain))
            .collect()
    }

    /// Returns the domains with pods that match the term; any domain, if there is none in reach and the pod itself matches.
    fn affinity(
        &self,
        pod: &Pod,
        term: &PodAffinityTerm,
        strict: &Requirements,
        candidate: &Requirements,
    ) -> Options {
        let key = &term.topology_key;
        let (own, there) = (strict.get_or_exists(key), candidate.get_or_exists(key));
        // Pods count for a required term only if they match all of them.
        let required = pod::affinity_terms(pod, false);
        let together = if required.contains(term) {
            required
        } else {
            vec![term.clone()]
        };
        let matches_all = |other: &Pod| together.iter().all(|term| self.concerns(pod, term, other));
        let concerned = || {
            let located = self.located.iter();
            located.filter(|located| matches_all(located.pod))
        };
        let populated: BTreeSet<&str> = concerned()
            .filter_map(|located| located.host.get(key)?.single())
            .collect();
        let reachable: Vec<&str> = populated
            .iter()
            .copied()
            .filter(|domain| own.has(domain) && there.has(domain))
            .collect();
        if !reachable.is_empty() {
            return vec![Requirement::new(key, Operator::In, reachable)];
        }
        let counted = |located: &Located<'_>| {
            let single = |term: &PodAffinityTerm| {
                let value = located.host.get(&term.topology_key);
                value.is_some_and(|value| value.single().is_some())
            };
            together.iter().any(single)
        };
        if !matches_all(pod) || concerned().any(counted) {
            return Options::new();
        }
        let known = self.domains(key, candidate, |source| self.tolerates(pod, &source.taints));
        known
            .iter()
            .filter(|domain| own.has(domain) && there.has(domain))
            .map(|domain| Requirement::equal(key, domain))
            .collect()
    }

    /// Returns the domains without the other pods.
    fn apart<'b>(
        &self,
        pod: &Pod,
        key: &str,
        others: impl Iterator<Item = &'b Located<'b>>,
        strict: &Requirements,
        candidate: &Requirements,
    ) -> Options {
        let hosts: Vec<&Requirements> = others.map(|located| located.host).collect();
        let (own, there) = (strict.get_or_exists(key), candidate.get_or_exists(key));
        let mut free = self.domains(key, candidate, |source| self.tolerates(pod, &source.taints));
        free.retain(|domain| there.has(domain) && (key == HOSTNAME || own.has(domain)));
        free.retain(|domain| !hosts.iter().any(|host| host.get_or_exists(key).has(domain)));
        if free.is_empty() {
            Options::new()
        } else {
            vec![Requirement::new(
                key,
                Operator::In,
                free.iter().map(String::as_str),
            )]
        }
    }

    /// Returns the values of a topology key that the sources have. The host name is that of the candidate alone.
    fn domains(
        &self,
        key: &str,
        candidate: &Requirements,
        counts: impl Fn(&Source) -> bool,
    ) -> BTreeSet<String> {
        let here = |requirements: &Requirements| -> Vec<String> {
            let listed = requirements
                .get(key)
                .filter(|requirement| !requirement.is_complement());
            listed
                .into_iter()
                .flat_map(|requirement| requirement.values().map(str::to_owned))
                .collect()
        };
        if key == HOSTNAME {
            return here(candidate).into_iter().collect();
        }
        self.sources
            .iter()
            .filter(|source| counts(source))
            .flat_map(|source| here(&source.labels))
            .collect()
    }

    /// Returns the values of a topology key with which new nodes of a source meet a term and have an offering.
    fn offered(
        &self,
        source: &Source,
        term: &Requirements,
        key: &str,
        available: bool,
    ) -> BTreeSet<String> {
        let undefined = AllowUndefined::Keys(&self.world.well_known);
        let pool = source.pool.as_ref().unwrap_or(&source.labels);
        let mut values = BTreeSet::new();
        if !pool.is_compatible(term, undefined) || source.labels.intersects(term).is_err() {
            return values;
        }
        let mut labels = source.labels.clone();
        labels.add_all(term);
        for offering in &source.offerings {
            if (offering.available || !available)
                && labels.is_compatible(&offering.requirements, undefined)
            {
                let mut labels = labels.clone();
                labels.add_all(&offering.requirements);
                let listed = labels.get(key).filter(|listed| !listed.is_complement());
                values.extend(
                    listed
                        .into_iter()
                        .flat_map(Requirement::values)
                        .map(str::to_owned),
                );
            }
        }
        values
    }

    fn tolerates(&self, pod: &Pod, taints: &[Taint]) -> bool {
        let hard: Vec<Taint> = taints
            .iter()
            .filter(|t| !self.tolerate_soft_taints || t.effect != "PreferNoSchedule")
            .cloned()
            .collect();
        pod::tolerates(pod, &hard)
    }

    /// Returns whether a term of `owner` matches `other`.
    fn concerns(&self, owner: &Pod, term: &PodAffinityTerm, other: &Pod) -> bool {
        let listed = term.namespaces.clone().unwrap_or_default();
        let namespace = pod::namespace(other);
        let in_namespace = match &term.namespace_selector {
            None if listed.is_empty() => namespace == pod::namespace(owner),
            None => listed.iter().any(|name| name == namespace),
            Some(selector) => {
                listed.iter().any(|name| name == namespace)
                    || pod::selects(Some(selector), &self.world.namespace_labels(namespace))
            }
        };
        let keys = (
            term.match_label_keys.as_ref(),
            term.mismatch_label_keys.as_ref(),
        );
        let selector = pod::with_label_keys(term.label_selector.as_ref(), keys.0, keys.1, owner);
        in_namespace && pod::selects(selector.as_ref(), &pod::labels(other))
    }
}

/// Returns whether a pod tolerates all taints except those with `PreferNoSchedule`.
fn tolerates_hard(pod: &Pod, taints: &[Taint]) -> bool {
    let hard = taints
        .iter()
        .filter(|taint| taint.effect != "PreferNoSchedule");
    pod::tolerates(pod, &hard.cloned().collect::<Vec<_>>())
}

/// Returns the node selector with each term of the required node affinity.
fn alternatives(pod: &Pod) -> Vec<Requirements> {
    let selector = pod::selector_requirements(pod);
    let terms = pod::required_terms(pod);
    if terms.is_empty() {
        return vec![selector];
    }
    let of = |term| {
        let mut all = Requirements::from_node_selector_term(term, &Unaliased).ok()?;
        all.add_all(&selector);
        Some(all)
    };
    terms.iter().filter_map(of).collect()
}

/// Returns whether the pod's node selector and some required term match a node with these labels.
fn accepts(pod: &Pod, host: &Requirements, undefined: AllowUndefined<'_>) -> bool {
    pod::accepts(pod, &|wanted| host.is_compatible(wanted, undefined))
}
