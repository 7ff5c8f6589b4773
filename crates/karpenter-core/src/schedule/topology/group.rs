//! Topology constraints: spread, affinity, anti-affinity and its inverse, as counters.
//!
//! A group is a constraint that several pods share: the pods it counts, and the label they are counted by. For
//! `kubernetes.io/hostname` a domain is a node and counters are kept per node; nodes that a pod can no longer go to are
//! bitsets, so that ten thousand of them are rejected a word at a time. For other labels counters are kept per domain.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/{topology,topologygroup}.go
//! DIFFERS: identity includes minDomains and the values of the node filter; the values of NotIn requirements are not domains;
//! a NodePool that a pod excludes adds no domains for it.

use std::sync::Arc;

use index_vec::{Idx, IndexVec};
use rustc_hash::FxHashMap;

use crate::schedule::compile::algebra::{KeyId, ReqId, SetId};
use crate::schedule::compile::base_counts::BaseCounts;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::group_identity::{GroupIdentity, GroupKind, is_hostname};
use crate::schedule::compile::ids::{AxisId, DomainId, NodeIdx, PlannedId, Target};
use crate::schedule::compile::label_domains::{LabelDomains, TermDomains};
use crate::schedule::pods::class::Class;
use crate::schedule::reasons::TopologyConstraint;

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
