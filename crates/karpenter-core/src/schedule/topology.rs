//! Topology constraints: spread, affinity, anti-affinity and its inverse, as counters.
//!
//! A group is what pods of the same constraint share: which pods are counted, over which label. For `kubernetes.io/hostname`
//! a domain is a machine and counters stand by machine; hosts that a pod can no longer go to are bitsets, so that ten
//! thousand of them are rejected a word at a time. For other labels counters stand by domain.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/{topology,topologygroup}.go
//! DIFFERS: identity includes minDomains and the values of the node filter; the values of NotIn requirements are no domains;
//! NodePools a pod excludes provide none to it.

use std::{collections::BTreeMap, sync::Arc};

use karpenter_api::{labels::HOSTNAME, validation::WellKnown};
use rustc_hash::FxHashMap;

use super::{
    algebra::{KeyId, ReqId, SetId},
    bits::Bits,
    prepare::canonical_key,
};
use crate::{
    cluster::Snapshot,
    pod::{AffinityTerm, LabelSelector, Pod, Toleration},
    requirements::Requirements,
};

/// What a group constrains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum GroupKind {
    Spread,
    Affinity,
    Anti,
    Inverse,
}

/// Namespaces by name and by label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(super) struct Namespaces {
    pub(super) list: Vec<String>,
    pub(super) selector: Option<LabelSelector>,
}

impl Namespaces {
    fn of(term: &AffinityTerm) -> Self {
        Self {
            list: term.namespaces.clone(),
            selector: term.namespace_selector.clone(),
        }
    }
}

/// Which nodes count for a spread constraint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct NodeFilter {
    /// Node selector with each alternative, if the node affinity policy is Honor.
    pub(super) terms: Option<Vec<Requirements>>,
    /// Tolerations, if the node taints policy is Honor.
    pub(super) tolerations: Option<Vec<Toleration>>,
}

/// What makes two constraints the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct GroupIdentity {
    pub(super) kind: GroupKind,
    pub(super) key: String,
    pub(super) namespaces: Namespaces,
    pub(super) selector: LabelSelector,
    /// Namespaces and selectors that a counted pod must match as well: kube-scheduler lets pods count for a required affinity
    /// term only if they match all of them.
    pub(super) also: Vec<(Namespaces, LabelSelector)>,
    pub(super) max_skew: i32,
    pub(super) min_domains: Option<i32>,
    pub(super) filter: NodeFilter,
}

impl GroupIdentity {
    pub(super) fn affinity(kind: GroupKind, term: &AffinityTerm, names: &WellKnown) -> Self {
        Self {
            kind,
            key: canonical_key(&term.topology_key, names),
            namespaces: Namespaces::of(term),
            selector: term.selector.clone(),
            also: Vec::new(),
            max_skew: 0,
            min_domains: None,
            filter: NodeFilter::default(),
        }
    }

    /// One of a pod's required affinity terms, for which those pods count that match all of them.
    ///
    /// DIFFERS: upstream counts pods that match the term, whatever the others ask for.
    pub(super) fn required_affinity(
        term: &AffinityTerm,
        all: &[AffinityTerm],
        names: &WellKnown,
    ) -> Self {
        let own = (Namespaces::of(term), term.selector.clone());
        let others = all
            .iter()
            .map(|other| (Namespaces::of(other), other.selector.clone()));
        let mut also: Vec<_> = others.filter(|other| *other != own).collect();
        also.sort();
        also.dedup();
        Self {
            also,
            ..Self::affinity(GroupKind::Affinity, term, names)
        }
    }

    pub(super) fn inverse(term: &AffinityTerm, names: &WellKnown) -> Self {
        Self::affinity(GroupKind::Inverse, term, names)
    }

    /// A total order of groups without a node filter.
    pub(super) fn order(&self, other: &Self) -> std::cmp::Ordering {
        (self.kind, &self.key, &self.namespaces, &self.selector).cmp(&(
            other.kind,
            &other.key,
            &other.namespaces,
            &other.selector,
        ))
    }

    /// Whether pods with these labels are counted (for Inverse: kept away).
    pub(super) fn selects(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        snapshot: &Snapshot,
    ) -> bool {
        self.selector.matches(labels)
            && self.namespaces.contain(namespace, snapshot)
            && self.also.iter().all(|(namespaces, selector)| {
                selector.matches(labels) && namespaces.contain(namespace, snapshot)
            })
    }

    /// Whether the group counts a bound pod: by its labels, or (for Inverse) by the terms it has itself.
    pub(super) fn counts(&self, pod: &Pod, snapshot: &Snapshot) -> bool {
        let shape = &pod.shape;
        match self.kind {
            GroupKind::Inverse => {
                let names = &snapshot.config().well_known;
                let mut terms = shape.required_anti_affinity.iter();
                terms.any(|term| Self::inverse(term, names) == *self)
            }
            _ => self.selects(&shape.namespace, &shape.labels, snapshot),
        }
    }
}

/// Where pods of a group are before the run: machine and number.
#[derive(Clone, Debug, Default)]
pub(super) struct BaseCounts {
    pub(super) places: Vec<(u32, u32)>,
}

/// A label whose values are domains.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) name: String,
    pub(super) key: KeyId,
    pub(super) is_hostname: bool,
    pub(super) domains: Vec<Arc<str>>,
    pub(super) ids: FxHashMap<Arc<str>, u32>,
    pub(super) of_machine: Vec<u32>,
    /// Machines of each domain.
    pub(super) machines: Vec<Bits>,
    /// Open claims that may still get into each domain.
    pub(super) claims: Vec<Bits>,
    /// Domains a requirement admits.
    pub(super) admitted: FxHashMap<ReqId, Arc<Bits>>,
    /// Domains of each template.
    pub(super) of_template: Vec<Bits>,
    /// Requirements that admit exactly some domains.
    pub(super) requirements: FxHashMap<Bits, ReqId>,
}

impl Axis {
    pub(super) fn domain(&mut self, name: &str) -> usize {
        if let Some(id) = self.ids.get(name) {
            return *id as usize;
        }
        let name: Arc<str> = name.into();
        let id = self.domains.len();
        self.domains.push(name.clone());
        self.ids.insert(name, id as u32);
        self.machines.push(Bits::default());
        self.claims.push(Bits::default());
        id
    }
}

/// Sets over the machines that exist and over the claims of this run.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts {
    pub(super) machines: Bits,
    pub(super) claims: Bits,
}

impl Hosts {
    fn insert(&mut self, host: Host) {
        match host {
            Host::Machine(index) => self.machines.insert(index),
            Host::Claim(index) => self.claims.insert(index),
        }
    }
}

/// A machine that exists, or a claim of this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    Machine(usize),
    Claim(usize),
}

/// What a group has to know of a pod to tell where it may go.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asker<'a> {
    /// The domains it may go to for other reasons; `None` is all.
    pub(super) reach: Option<&'a Bits>,
    /// The domains whose least load bounds a spread, as far as the pod's node affinity decides; `None` is all.
    pub(super) counted: Option<&'a Bits>,
    /// Whether it counts itself.
    pub(super) own: bool,
    /// How many others that count go with it: they are on a planned node whose domain is still open.
    pub(super) along: u32,
    /// Whether it may start the affinity group: no pod that it could join is anywhere.
    pub(super) starts: bool,
}

/// The counters of a group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) identity: Arc<GroupIdentity>,
    pub(super) axis: usize,
    /// By domain.
    pub(super) counts: Vec<u32>,
    /// Domains that exist for the group.
    pub(super) known: Bits,
    /// By machine and by claim, for hostname.
    on_machines: FxHashMap<u32, u32>,
    on_claims: Vec<u32>,
    /// Hosts with a count.
    pub(super) populated: Hosts,
    /// Hosts where one more counted pod is too many.
    pub(super) full: Hosts,
    /// Hosts where there are too many already.
    pub(super) over: Hosts,
    /// Whether anything was counted anywhere.
    pub(super) any: bool,
    /// Machines that pass the node filter; `None` is all.
    pub(super) machines: Option<Arc<Bits>>,
    /// Requirement sets of the node filter, one of which must be met; `None` is any.
    pub(super) filter_sets: Option<Arc<[SetId]>>,
}

impl Group {
    pub(super) fn new(identity: Arc<GroupIdentity>, axis: usize) -> Self {
        Self {
            identity,
            axis,
            counts: Vec::new(),
            known: Bits::default(),
            on_machines: FxHashMap::default(),
            on_claims: Vec::new(),
            populated: Hosts::default(),
            full: Hosts::default(),
            over: Hosts::default(),
            any: false,
            machines: None,
            filter_sets: None,
        }
    }

    pub(super) fn kind(&self) -> GroupKind {
        self.identity.kind
    }

    /// Counts `number` more on a host.
    pub(super) fn count_on_host(&mut self, host: Host, number: u32) {
        let count = match host {
            Host::Machine(index) => self.on_machines.entry(index as u32).or_default(),
            Host::Claim(index) => {
                if self.on_claims.len() <= index {
                    self.on_claims.resize(index + 1, 0);
                }
                &mut self.on_claims[index]
            }
        };
        *count += number;
        let count = i64::from(*count);
        let skew = i64::from(self.identity.max_skew);
        self.any = true;
        self.populated.insert(host);
        if count >= skew {
            self.full.insert(host);
        }
        if count > skew {
            self.over.insert(host);
        }
    }

    /// How many are counted on a host.
    pub(super) fn on_host(&self, host: Host) -> u32 {
        let count = match host {
            Host::Machine(index) => self.on_machines.get(&(index as u32)),
            Host::Claim(index) => self.on_claims.get(index),
        };
        count.copied().unwrap_or(0)
    }

    /// Counts in a domain.
    pub(super) fn count_in(&mut self, domain: usize, number: u32) {
        if self.counts.len() <= domain {
            self.counts.resize(domain + 1, 0);
        }
        self.counts[domain] += number;
        self.known.insert(domain);
        self.any = true;
    }

    pub(super) fn uncount_in(&mut self, domain: usize, number: u32) {
        if let Some(count) = self.counts.get_mut(domain) {
            *count = count.saturating_sub(number);
        }
    }

    pub(super) fn in_domain(&self, domain: usize) -> u32 {
        self.counts.get(domain).copied().unwrap_or(0)
    }

    /// Domains a pod may go to, before the node is looked at.
    pub(super) fn valid_domains(&self, asker: &Asker<'_>) -> Bits {
        let mut reachable = self.known.clone();
        if let Some(reach) = asker.reach {
            reachable.intersect(reach);
        }
        match self.kind() {
            GroupKind::Spread => {
                let mut counted = self.known.clone();
                if let Some(included) = asker.counted {
                    counted.intersect(included);
                }
                let fewest = counted
                    .iter()
                    .map(|domain| self.in_domain(domain))
                    .min()
                    .unwrap_or(0);
                let too_few = self
                    .identity
                    .min_domains
                    .is_some_and(|least| (counted.len() as i64) < i64::from(least));
                let fewest = i64::from(if too_few { 0 } else { fewest });
                let more = i64::from(asker.along) + i64::from(asker.own) - fewest;
                let fits = |domain: &usize| {
                    i64::from(self.in_domain(*domain)) + more <= i64::from(self.identity.max_skew)
                };
                reachable.iter().filter(fits).collect()
            }
            GroupKind::Affinity => {
                let populated: Bits = reachable
                    .iter()
                    .filter(|domain| self.in_domain(*domain) > 0)
                    .collect();
                if asker.starts { reachable } else { populated }
            }
            GroupKind::Anti | GroupKind::Inverse => reachable
                .iter()
                .filter(|domain| self.in_domain(*domain) == 0)
                .collect(),
        }
    }

    /// Whether a pod is counted somewhere, in a domain or on a host.
    pub(super) fn is_populated(&self) -> bool {
        self.counts.iter().any(|count| *count > 0)
            || self.populated.machines.iter().next().is_some()
            || self.populated.claims.iter().next().is_some()
    }

    /// The name upstream gives the constraint in messages.
    pub(super) fn description(&self) -> &'static str {
        match self.kind() {
            GroupKind::Spread => "topology spread",
            GroupKind::Affinity => "pod affinity",
            GroupKind::Anti | GroupKind::Inverse => "pod anti-affinity",
        }
    }
}

/// Whether a key's domains are the machines themselves.
pub(super) fn is_hostname(key: &str) -> bool {
    key == HOSTNAME
}
