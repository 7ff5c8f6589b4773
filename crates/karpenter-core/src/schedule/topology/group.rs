//! Topology constraints: spread, affinity, anti-affinity and its inverse, as counters.
//!
//! A group is a constraint that several pods share: the pods it counts, and the label they are counted by. For
//! `kubernetes.io/hostname` a domain is a node and counters are kept per node; nodes that a pod can no longer go to are
//! bitsets, so that ten thousand of them are rejected a word at a time. For other labels counters are kept per domain.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/{topology,topologygroup}.go
//! DIFFERS: identity includes minDomains and the values of the node filter; the values of NotIn requirements are not domains;
//! a NodePool that a pod excludes adds no domains for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use index_vec::{Idx, IndexVec};
use karpenter_api::labels::HOSTNAME;
use karpenter_api::validation::WellKnown;
use rustc_hash::FxHashMap;

use crate::cluster::Snapshot;
use crate::pod::{AffinityTerm, LabelSelector, Pod, Toleration};
use crate::requirements::{LabelNames, Requirements};
use crate::schedule::compile::algebra::{KeyId, ReqId, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{AxisId, DomainId, NodeIdx, PlannedId, Target};
use crate::schedule::pods::class::Class;
use crate::schedule::report::reasons::TopologyConstraint;
use crate::schedule::topology::label_domains::{LabelDomains, TermDomains};

/// The kind of constraint of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum GroupKind {
    Spread,
    Affinity,
    Anti,
    Inverse,
}

impl GroupKind {
    /// Reports whether the pods of the group exclude others from their domain.
    pub(crate) fn keeps_away(self) -> bool {
        matches!(self, Self::Anti | Self::Inverse)
    }
}

/// Namespaces by name and by label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Namespaces {
    pub(crate) list: Vec<String>,
    pub(crate) selector: Option<LabelSelector>,
}

impl Namespaces {
    fn of(term: &AffinityTerm) -> Self {
        Self {
            list: term.namespaces.clone(),
            selector: term.namespace_selector.clone(),
        }
    }

    /// Reports whether `namespace` is in the list or matches the selector.
    pub(crate) fn contain(&self, namespace: &str, snapshot: &Snapshot) -> bool {
        if self.list.iter().any(|listed| listed == namespace) {
            return true;
        }
        self.selector.as_ref().is_some_and(|selector| {
            let labels = snapshot.namespace_labels(namespace);
            labels.map_or_else(
                || selector.matches(&BTreeMap::new()),
                |labels| selector.matches(labels),
            )
        })
    }
}

/// Filters the nodes that count for a spread constraint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct NodeFilter {
    /// Node selector with each alternative, if the node affinity policy is Honor; each with the labels of the pod's other spread
    /// constraints, which kube-scheduler requires of a node that it counts.
    pub(crate) terms: Option<Vec<Requirements>>,
    /// Whether the node affinity policy is Honor and the pod has a node selector or node affinity.
    pub(crate) honors_affinity: bool,
    /// Tolerations, if the node taints policy is Honor.
    pub(crate) tolerations: Option<Vec<Toleration>>,
}

/// The parts in which two constraints must be equal to share a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupIdentity {
    pub(crate) kind: GroupKind,
    pub(crate) key: String,
    pub(crate) namespaces: Namespaces,
    pub(crate) selector: LabelSelector,
    /// Namespaces and selectors that a counted pod must match as well: kube-scheduler lets pods count for a required affinity
    /// term only if they match all of them.
    pub(crate) also: Vec<(Namespaces, LabelSelector)>,
    pub(crate) max_skew: i32,
    pub(crate) min_domains: Option<i32>,
    pub(crate) filter: NodeFilter,
}

impl GroupIdentity {
    pub(crate) fn affinity(kind: GroupKind, term: &AffinityTerm, names: &WellKnown) -> Self {
        Self {
            kind,
            key: names.canonical_key(&term.topology_key).to_owned(),
            namespaces: Namespaces::of(term),
            selector: term.selector.clone(),
            also: Vec::new(),
            max_skew: 0,
            min_domains: None,
            filter: NodeFilter::default(),
        }
    }

    /// Returns the identity of one of a pod's required affinity terms; it counts pods that match all of those terms.
    ///
    /// DIFFERS: upstream counts pods that match this term, whether or not they match the others.
    pub(crate) fn required_affinity(
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

    pub(crate) fn inverse(term: &AffinityTerm, names: &WellKnown) -> Self {
        Self::affinity(GroupKind::Inverse, term, names)
    }

    /// Compares groups without a node filter, as a total order.
    pub(crate) fn order(&self, other: &Self) -> std::cmp::Ordering {
        (self.kind, &self.key, &self.namespaces, &self.selector).cmp(&(
            other.kind,
            &other.key,
            &other.namespaces,
            &other.selector,
        ))
    }

    /// Reports whether pods with these labels are counted (for Inverse: excluded).
    pub(crate) fn selects(
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

    /// Reports whether the group counts a bound pod: by its labels, or (for Inverse) by the pod's own anti-affinity terms.
    pub(crate) fn counts(&self, pod: &Pod, snapshot: &Snapshot) -> bool {
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

/// The pods that a group counts before a pass, on all nodes. Passes share it and keep what they change.
#[derive(Debug, Default)]
pub(crate) struct BaseCounts {
    /// Nodes with counted pods, ascending, and how many.
    places: Vec<(NodeIdx, u32)>,
    /// Existing nodes that pass the node filter; `None` is all.
    pub(crate) passing: Option<Arc<Bits<NodeIdx>>>,
    /// Counts by domain of the nodes' labels; empty for hostname.
    counts: IndexVec<DomainId, u32>,
    /// For hostname: the nodes with a count, those at the skew, and those over it.
    populated: Arc<Bits<NodeIdx>>,
    full: Arc<Bits<NodeIdx>>,
    over: Arc<Bits<NodeIdx>>,
}

impl BaseCounts {
    /// Counts pods in `places`, ascending, of which nodes that do not pass are left out. Without `domains` the nodes are the
    /// domains.
    pub(crate) fn new(
        mut places: Vec<(NodeIdx, u32)>,
        passing: Option<Arc<Bits<NodeIdx>>>,
        domains: Option<&LabelDomains>,
        max_skew: i32,
    ) -> Self {
        if let Some(passing) = &passing {
            places.retain(|(node, _)| passing.contains(*node));
        }
        let mut base = Self {
            passing,
            ..Self::default()
        };
        match domains {
            Some(domains) => {
                base.counts = index_vec::index_vec![0; domains.names.len()];
                for (node, number) in &places {
                    if let Some(domain) = domains.of_node[*node] {
                        base.counts[domain] += number;
                    }
                }
            }
            None => {
                let nodes = |counts: &dyn Fn(i64) -> bool| {
                    let there = places.iter().filter(|(_, count)| counts(i64::from(*count)));
                    Arc::new(there.map(|(node, _)| *node).collect::<Bits<NodeIdx>>())
                };
                let skew = i64::from(max_skew);
                base.populated = nodes(&|_| true);
                base.full = nodes(&|count| count >= skew);
                base.over = nodes(&|count| count > skew);
            }
        }
        base.places = places;
        base
    }

    /// Returns how many pods are counted on a node.
    fn on(&self, node: NodeIdx) -> u32 {
        let place = self.places.binary_search_by_key(&node, |(node, _)| *node);
        place.map_or(0, |place| self.places[place].1)
    }
}

/// A label whose values are domains.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) name: String,
    pub(crate) key: KeyId,
    pub(crate) is_hostname: bool,
    /// The domains; none for hostname, where they are the nodes.
    pub(crate) labels: Arc<LabelDomains>,
    /// Planned nodes that may still be in each domain.
    pub(crate) planned: IndexVec<DomainId, Bits<PlannedId>>,
    /// Domains a requirement admits.
    pub(crate) admitted: FxHashMap<ReqId, Arc<Bits<DomainId>>>,
    /// Requirements that admit exactly some domains.
    pub(crate) requirements: FxHashMap<Bits<DomainId>, ReqId>,
}

impl Axis {
    /// Returns the domains.
    pub(crate) fn domains(&self) -> &IndexVec<DomainId, Arc<str>> {
        &self.labels.names
    }

    /// Returns the domain of an existing node.
    pub(crate) fn domain_of(&self, node: NodeIdx) -> Option<DomainId> {
        self.labels.of_node.get(node).copied().flatten()
    }
}

/// Sets of existing nodes and of planned nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Targets {
    pub(crate) nodes: Arc<Bits<NodeIdx>>,
    pub(crate) planned: Bits<PlannedId>,
}

impl Targets {
    fn insert(&mut self, target: Target) {
        match target {
            Target::Node(index) if self.nodes.contains(index) => {}
            Target::Node(index) => Arc::make_mut(&mut self.nodes).insert(index),
            Target::Planned(index) => self.planned.insert(index),
        }
    }
}

/// Whether a pod asks for existing nodes or for planned ones: a spread may count other domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    Existing,
    Planned,
}

/// A pod that asks in which domains of a group it may be placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DomainQuery<'a> {
    pub(crate) class: &'a Class,
    /// The alternative of its node affinity.
    pub(crate) alternative: usize,
    pub(crate) among: Among,
    /// Whether the group counts the pod itself.
    pub(crate) own: bool,
    /// The number of counted pods on the same planned node whose domain is still open.
    pub(crate) along: u32,
    /// Whether it may start the affinity group: there is no pod that it could join.
    pub(crate) starts: bool,
}

impl<'a> DomainQuery<'a> {
    /// Returns the query of a pod that the group does not count, on a node of its own.
    pub(crate) fn new(class: &'a Class, alternative: usize, among: Among) -> Self {
        Self {
            class,
            alternative,
            among,
            own: false,
            along: 0,
            starts: false,
        }
    }
}

/// The counters of a group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) identity: Arc<GroupIdentity>,
    pub(crate) axis: AxisId,
    pub(crate) counts: IndexVec<DomainId, u32>,
    /// Domains that the group knows.
    pub(crate) known: Bits<DomainId>,
    /// The pods counted before the pass.
    base: Arc<BaseCounts>,
    /// Counts by node, for hostname, where they differ from those before the pass.
    on_nodes: FxHashMap<NodeIdx, u32>,
    /// Counts by planned node, for hostname.
    on_planned: IndexVec<PlannedId, u32>,
    /// Nodes with a count. This and the next two may contain nodes treated as deleted.
    pub(crate) populated: Targets,
    /// Nodes where one more counted pod would exceed the skew.
    pub(crate) full: Targets,
    /// Nodes that exceed the skew.
    pub(crate) over: Targets,
    /// Whether any pod was counted.
    pub(crate) any: bool,
    /// Requirement sets of the node filter, one of which must be met; `None` is any.
    pub(crate) filter_sets: Option<Arc<[SetId]>>,
    /// The domains of new nodes, by term of the node filter; none for hostname.
    pub(crate) terms: Arc<[TermDomains]>,
}

impl Group {
    pub(crate) fn new(identity: Arc<GroupIdentity>, axis: AxisId, base: Arc<BaseCounts>) -> Self {
        Self {
            identity,
            axis,
            base,
            counts: IndexVec::new(),
            known: Bits::default(),
            on_nodes: FxHashMap::default(),
            on_planned: IndexVec::new(),
            populated: Targets::default(),
            full: Targets::default(),
            over: Targets::default(),
            any: false,
            filter_sets: None,
            terms: Arc::default(),
        }
    }

    pub(crate) fn kind(&self) -> GroupKind {
        self.identity.kind
    }

    /// Existing nodes that pass the node filter; `None` is all.
    pub(crate) fn passing(&self) -> Option<&Arc<Bits<NodeIdx>>> {
        self.base.passing.as_ref()
    }

    /// Counts the pods that the group counts before the pass, except those on the nodes `deleted`.
    pub(crate) fn count_base(&mut self, axis: &Axis, deleted: &[NodeIdx]) {
        let base = self.base.clone();
        let gone = deleted.iter().map(|node| (*node, base.on(*node)));
        let gone = gone.filter(|(_, number)| *number > 0);
        if axis.is_hostname {
            self.populated.nodes = base.populated.clone();
            self.full.nodes = base.full.clone();
            self.over.nodes = base.over.clone();
            self.any |= base.places.len() > gone.count();
            return;
        }
        let mut counts = base.counts.clone();
        for (node, number) in gone {
            if let Some(domain) = axis.domain_of(node) {
                counts[domain] -= number;
            }
        }
        for (domain, number) in counts.iter_enumerated().filter(|(_, number)| **number > 0) {
            self.count_in(domain, *number);
        }
    }

    /// Adds `number` pods to the count of a node.
    pub(crate) fn count_on(&mut self, target: Target, number: u32) {
        let count = match target {
            Target::Node(index) => {
                let before = || self.base.on(index);
                self.on_nodes.entry(index).or_insert_with(before)
            }
            Target::Planned(index) => {
                if self.on_planned.len() <= index.index() {
                    self.on_planned.resize(index.index() + 1, 0);
                }
                &mut self.on_planned[index]
            }
        };
        *count += number;
        let count = i64::from(*count);
        let skew = i64::from(self.identity.max_skew);
        self.any = true;
        self.populated.insert(target);
        if count >= skew {
            self.full.insert(target);
        }
        if count > skew {
            self.over.insert(target);
        }
    }

    /// Returns the count of a node.
    pub(crate) fn count_of(&self, target: Target) -> u32 {
        match target {
            Target::Node(index) => match self.on_nodes.get(&index) {
                Some(count) => *count,
                None => self.base.on(index),
            },
            Target::Planned(index) => self.on_planned.get(index).copied().unwrap_or(0),
        }
    }

    /// Adds `number` pods to the count of a domain.
    pub(crate) fn count_in(&mut self, domain: DomainId, number: u32) {
        if self.counts.len() <= domain.index() {
            self.counts.resize(domain.index() + 1, 0);
        }
        self.counts[domain] += number;
        self.known.insert(domain);
        self.any = true;
    }

    pub(crate) fn uncount_in(&mut self, domain: DomainId, number: u32) {
        if let Some(count) = self.counts.get_mut(domain) {
            *count = count.saturating_sub(number);
        }
    }

    pub(crate) fn in_domain(&self, domain: DomainId) -> u32 {
        self.counts.get(domain).copied().unwrap_or(0)
    }

    /// Returns the domains that a pod may be placed in, before a particular node is considered: of those that it can `reach`, where the
    /// lowest count among the `counted` domains bounds a spread, or zero if `assumes_empty`. `None` is all domains.
    pub(crate) fn valid_domains(
        &self,
        query: &DomainQuery<'_>,
        reach: Option<&Bits<DomainId>>,
        counted: Option<&Bits<DomainId>>,
        assumes_empty: bool,
    ) -> Bits<DomainId> {
        let mut reachable = self.known.clone();
        if let Some(reach) = reach {
            reachable.intersect(reach);
        }
        match self.kind() {
            GroupKind::Spread => {
                let mut bounding = self.known.clone();
                if let Some(counted) = counted {
                    bounding.intersect(counted);
                }
                let counts = bounding.iter().map(|domain| self.in_domain(domain));
                let too_few = self
                    .identity
                    .min_domains
                    .is_some_and(|least| (bounding.len() as i64) < i64::from(least));
                let fewest = match too_few || assumes_empty {
                    true => 0,
                    false => i64::from(counts.min().unwrap_or(0)),
                };
                let more = i64::from(query.along) + i64::from(query.own) - fewest;
                let fits = |domain: &DomainId| {
                    i64::from(self.in_domain(*domain)) + more <= i64::from(self.identity.max_skew)
                };
                reachable.iter().filter(fits).collect()
            }
            GroupKind::Affinity => {
                let is_populated = |domain: &DomainId| self.in_domain(*domain) > 0;
                match query.starts {
                    true => reachable,
                    false => reachable.iter().filter(is_populated).collect(),
                }
            }
            GroupKind::Anti | GroupKind::Inverse => reachable
                .iter()
                .filter(|domain| self.in_domain(*domain) == 0)
                .collect(),
        }
    }

    /// Reports whether a pod is counted in any domain or on any node.
    pub(crate) fn is_populated(&self) -> bool {
        match is_hostname(&self.identity.key) {
            true => self.any,
            false => self.counts.iter().any(|count| *count > 0),
        }
    }

    /// Returns the constraint, for messages.
    pub(crate) fn constraint(&self) -> TopologyConstraint {
        match self.kind() {
            GroupKind::Spread => TopologyConstraint::Spread,
            GroupKind::Affinity => TopologyConstraint::Affinity,
            GroupKind::Anti | GroupKind::Inverse => TopologyConstraint::AntiAffinity,
        }
    }
}

/// Reports whether the domains of a key are the nodes themselves.
pub(crate) fn is_hostname(key: &str) -> bool {
    key == HOSTNAME
}
