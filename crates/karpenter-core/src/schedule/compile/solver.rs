//! A snapshot, compiled: the part that all passes over it share.
//!
//! Compiling reads every object once; a pass afterwards costs what it touches. Disruption planning prepares one [`Solver`] per
//! snapshot and simulates the removal of many sets of nodes with it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use index_vec::IndexVec;
use rustc_hash::FxHashSet;

use crate::cluster::{NodeState, Snapshot};
use crate::dra::Inventory;
use crate::pod::{Shape, Toleration};
use crate::requirements::{Requirement, Requirements};
use crate::schedule::compile::algebra::{Algebra, ReqId};
use crate::schedule::compile::base_counts::BaseCounts;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::capacity_index::CapacityIndex;
use crate::schedule::compile::catalogue::{Catalogue, Reservations};
use crate::schedule::compile::group_identity::{GroupIdentity, GroupKind, NodeFilter, is_hostname};
use crate::schedule::compile::ids::{CatalogueId, NodeIdx, TemplateId};
use crate::schedule::compile::label_domains::{LabelDomains, TermDomains};
use crate::schedule::compile::memo::Memo;
use crate::schedule::compile::nodes::bound_pods::BoundPods;
use crate::schedule::compile::nodes::{ExistingNode, Nodes, existing_nodes};
use crate::schedule::compile::pools::daemons::{Daemon, daemons};
use crate::schedule::compile::pools::template::Template;
use crate::schedule::compile::pools::{Pools, Usage, is_soft};
use crate::schedule::compile::vectors::Dimensions;
use crate::schedule::reasons::PoolReport;
use crate::schedule::request::{Policy, Query};
use crate::taints::untolerated;

type NamedNodes = (Arc<[String]>, Arc<Bits<NodeIdx>>);

/// What passes need to know of the nodes and the bound pods.
#[derive(Default)]
struct Cache {
    meeting: Memo<Requirement, Arc<Bits<NodeIdx>>>,
    tolerating: Memo<Vec<Toleration>, Arc<Bits<NodeIdx>>>,
    counts: Memo<GroupIdentity, Arc<BaseCounts>>,
    /// The nodes of the last list of names: all simulations of a disruption pass share one list.
    named: Mutex<Option<NamedNodes>>,
}

/// The nodes by their free resources.
#[derive(Default)]
struct FreeRoom {
    /// How often nodes were looked for.
    asked: AtomicUsize,
    index: OnceLock<CapacityIndex<NodeIdx>>,
}

/// How often nodes with room are looked for one by one: sorting them all costs as much.
const SCANS: usize = 16;

/// Nodes that are open to a variant of a shape, by the address of the shape, which is kept alive here. Each entry has a bit for every
/// node.
type OpenNodes = Memo<(usize, usize), (Arc<Shape>, Arc<Bits<NodeIdx>>), 1024>;

/// A compiled [`Snapshot`] that answers any number of [`Query`]s, from any number of threads.
pub struct Solver {
    pub(crate) snapshot: Snapshot,
    pub(crate) policy: Policy,
    pub(crate) algebra: Algebra,
    pub(crate) dimensions: Dimensions,
    pub(crate) catalogues: IndexVec<CatalogueId, Arc<Catalogue>>,
    pub(crate) reservations: Reservations,
    pub(crate) templates: IndexVec<TemplateId, Template>,
    pub(crate) pools: Vec<PoolReport>,
    /// What the nodes of each NodePool use of its limits.
    pub(crate) usage: Arc<Usage>,
    /// The DaemonSets' pods.
    pub(crate) daemons: Arc<[Daemon]>,
    pub(crate) nodes: Arc<Nodes>,
    /// Nodes on which no resource is exceeded.
    pub(crate) sound: Arc<Bits<NodeIdx>>,
    room: Arc<FreeRoom>,
    pub(crate) bound: Arc<BoundPods>,
    /// Some node or NodePool has a taint with effect PreferNoSchedule.
    pub(crate) has_soft_taints: bool,
    /// Limits or reservations may be released during a pass.
    pub(crate) releases_capacity: bool,
    cache: Arc<Cache>,
    open: OpenNodes,
    /// The values of labels, of nodes and templates.
    domains: Memo<String, Arc<LabelDomains>>,
    /// The domains of new nodes for each term of a node filter, by label.
    pub(crate) term_domains: Memo<(String, NodeFilter), Arc<[TermDomains]>>,
    /// Resource claims, device classes and resource slices, parsed when the first pod with resource claims is scheduled.
    inventory: Arc<OnceLock<Inventory>>,
}

impl std::fmt::Debug for Solver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Solver")
            .field("nodes", &self.nodes.len())
            .field("templates", &self.templates.len())
            .finish_non_exhaustive()
    }
}

impl Solver {
    /// Compiles a snapshot; `policy` holds for all queries.
    ///
    /// ```
    /// use jiff::Timestamp;
    /// use karpenter_core::cluster::{Cluster, ClusterConfig};
    /// use karpenter_core::schedule::{PodSet, Policy, Query, Solver};
    ///
    /// let cluster = Cluster::new(ClusterConfig::default());
    /// let solver = Solver::prepare(&cluster.snapshot(), &Policy::at(Timestamp::UNIX_EPOCH));
    /// let today = solver.solve(&Query::new(PodSet::Waiting));
    /// let without = solver.solve(&Query::new(PodSet::Waiting).with_removed_nodes(["node-1".to_owned()]));
    /// assert_eq!(today, without);
    /// ```
    pub fn prepare(snapshot: &Snapshot, policy: &Policy) -> Self {
        Self::prepare_for(snapshot, policy, &Query::default())
    }

    /// Compiles a snapshot as [`prepare`](Self::prepare) does, for queries whose pods request resources that no pod of the snapshot
    /// requests: those of `query`. [`solve`](Self::solve) compiles the snapshot again for a query with other resources.
    pub fn prepare_for(snapshot: &Snapshot, policy: &Policy, query: &Query) -> Self {
        Self::compile(snapshot, policy, query, None)
    }

    /// Compiles a later snapshot as [`prepare_for`](Self::prepare_for) does, and shares the nodes that did not change.
    pub fn prepare_after(&self, later: &Snapshot, policy: &Policy, query: &Query) -> Self {
        Self::compile(later, policy, query, Some(self))
    }

    fn compile(
        snapshot: &Snapshot,
        policy: &Policy,
        query: &Query,
        earlier: Option<&Self>,
    ) -> Self {
        let daemons: Arc<[Daemon]> = daemons(snapshot, policy).into();
        let dimensions = dimensions(snapshot, query, &daemons);
        let pools = Pools::compile(snapshot, policy.min_values_policy, &daemons, &dimensions);
        let earlier = earlier.filter(|earlier| {
            earlier.daemons == daemons
                && earlier.dimensions.names == dimensions.names
                && earlier.snapshot.has_config_of(snapshot)
        });
        let earlier = earlier.map(|earlier| &*earlier.nodes);
        let nodes = existing_nodes(snapshot, &daemons, &dimensions, earlier);
        let bound = BoundPods::compile(snapshot, policy.now, &nodes);
        let mut nodes_are_soft = false;
        let mut sound = Bits::full(nodes.len());
        for (index, node) in nodes.iter() {
            nodes_are_soft |= is_soft(&node.taints);
            if node.broken {
                sound.remove(index);
            }
        }
        Self {
            has_soft_taints: nodes_are_soft || pools.has_soft_taints(),
            releases_capacity: pools.releases_capacity(),
            snapshot: snapshot.clone(),
            policy: policy.clone(),
            algebra: pools.algebra,
            dimensions,
            catalogues: pools.catalogues,
            reservations: pools.reservations,
            templates: pools.templates,
            pools: pools.reports,
            usage: pools.usage,
            sound: Arc::new(sound),
            room: Arc::default(),
            daemons,
            nodes: Arc::new(nodes),
            bound: Arc::new(bound),
            cache: Arc::default(),
            open: Memo::default(),
            domains: Memo::default(),
            term_domains: Memo::default(),
            inventory: Arc::default(),
        }
    }

    /// Compiles a changed copy of the snapshot in which only NodePools and their instance types differ; nodes and pods are shared
    /// with this solver, as are the settings that do not concern NodePools.
    ///
    /// For questions about single pods: at 5,000 nodes it takes a hundredth of the time of [`Self::prepare`].
    #[must_use]
    pub fn with_node_pools_of(&self, copy: &Snapshot, policy: &Policy) -> Self {
        let daemons = daemons(copy, policy);
        let pools = Pools::recompile(self, copy, policy.min_values_policy, &daemons);
        let nodes_are_soft = self.nodes.iter().any(|(_, node)| is_soft(&node.taints));
        Self {
            has_soft_taints: nodes_are_soft || pools.has_soft_taints(),
            releases_capacity: pools.releases_capacity(),
            snapshot: copy.clone(),
            policy: policy.clone(),
            algebra: pools.algebra,
            dimensions: self.dimensions.clone(),
            catalogues: pools.catalogues,
            reservations: pools.reservations,
            templates: pools.templates,
            pools: pools.reports,
            usage: pools.usage,
            sound: self.sound.clone(),
            room: self.room.clone(),
            daemons: self.daemons.clone(),
            nodes: self.nodes.clone(),
            bound: self.bound.clone(),
            cache: self.cache.clone(),
            open: Memo::default(),
            domains: Memo::default(),
            term_domains: Memo::default(),
            inventory: self.inventory.clone(),
        }
    }

    /// Returns the memory in bytes that the solver needs beside its snapshot, approximately.
    pub fn memory(&self) -> usize {
        let nodes = self.nodes.iter().map(|(_, node)| {
            let resources = self.width() * size_of::<i64>();
            size_of::<ExistingNode>() + node.name.len() + resources
        });
        let rows = self.catalogues.iter().map(|catalogue| catalogue.rows());
        let templates = self.templates.iter();
        let of_templates = templates.map(|template| {
            let rows = self.catalogues[template.catalogue].rows();
            rows * size_of::<i64>() * (self.width() + template.limit_names.len() + 1)
        });
        // A row has several offers, and an entry for each label.
        nodes.sum::<usize>()
            + rows.sum::<usize>() * 512
            + of_templates.sum::<usize>()
            + self.bound.memory()
    }

    /// Returns the number of resources.
    pub(crate) fn width(&self) -> usize {
        self.dimensions.len()
    }

    pub(crate) fn inventory(&self) -> &Inventory {
        self.inventory.get_or_init(|| Inventory::of(&self.snapshot))
    }

    /// Returns the nodes with room for `requests`, before a pass.
    pub(crate) fn nodes_with_room(&self, requests: &[i64]) -> Bits<NodeIdx> {
        if self.room.asked.fetch_add(1, Ordering::Relaxed) < SCANS {
            let free = |node: &NodeIdx| self.nodes.remaining_on(*node).iter();
            let has_room =
                |node: &NodeIdx| free(node).zip(requests).all(|(free, need)| free >= need);
            return self.sound.iter().filter(has_room).collect();
        }
        let index = || CapacityIndex::new(&self.sound, self.nodes.remaining(), self.width());
        self.room.index.get_or_init(index).with_room_for(requests)
    }

    /// Returns the nodes that are open to a variant of a shape before a pass: those that `compute` returns.
    pub(crate) fn open_nodes(
        &self,
        shape: &Arc<Shape>,
        variant: usize,
        compute: impl FnOnce() -> Bits<NodeIdx>,
    ) -> Arc<Bits<NodeIdx>> {
        let key = (Arc::as_ptr(shape).addr(), variant);
        let open = || (shape.clone(), Arc::new(compute()));
        self.open.get(&key, open).1
    }

    /// Returns the nodes that meet a requirement.
    pub(crate) fn nodes_meeting(&self, requirement: &Requirement) -> Arc<Bits<NodeIdx>> {
        let meeting = || Arc::new(self.nodes_where(|node| node.meets(requirement)));
        self.cache.meeting.get(requirement, meeting)
    }

    /// Returns the nodes that meet all requirements.
    pub(crate) fn nodes_meeting_all(&self, requirements: &Requirements) -> Bits<NodeIdx> {
        let mut nodes = Bits::full(self.nodes.len());
        for requirement in requirements.iter() {
            nodes.intersect(&self.nodes_meeting(requirement));
        }
        nodes
    }

    /// Returns the nodes with these names.
    pub(crate) fn nodes_named(&self, names: &Arc<[String]>) -> Arc<Bits<NodeIdx>> {
        let last = self.cache.named.lock();
        let mut last = last.unwrap_or_else(PoisonError::into_inner);
        if let Some((of, nodes)) = &*last
            && Arc::ptr_eq(of, names)
        {
            return nodes.clone();
        }
        let index = |name: &String| self.nodes.find(name);
        let nodes: Arc<Bits<NodeIdx>> = Arc::new(names.iter().filter_map(index).collect());
        *last = Some((names.clone(), Arc::clone(&nodes)));
        nodes
    }

    /// Iterates over the initialized nodes that pods can be placed on, but for those with these names: their free cpu and memory before
    /// a pass.
    pub(crate) fn rooms(
        &self,
        but: &Arc<[String]>,
    ) -> impl Iterator<Item = (&Arc<NodeState>, [i64; 2])> {
        let but = self.nodes_named(but);
        let usable = move |(index, node): &(NodeIdx, &Arc<ExistingNode>)| {
            node.state.is_initialized() && self.sound.contains(*index) && !but.contains(*index)
        };
        self.nodes.iter().filter(usable).map(|(index, node)| {
            let remaining = self.nodes.remaining_on(index);
            (&node.state, [remaining[0], remaining[1]])
        })
    }

    /// Returns the nodes whose taints are tolerated.
    pub(crate) fn nodes_tolerated(&self, tolerations: &[Toleration]) -> Arc<Bits<NodeIdx>> {
        let test = |node: &ExistingNode| untolerated(&node.taints, tolerations).is_none();
        let tolerating = || Arc::new(self.nodes_where(test));
        self.cache.tolerating.get(tolerations, tolerating)
    }

    fn nodes_where(&self, test: impl Fn(&ExistingNode) -> bool) -> Bits<NodeIdx> {
        self.nodes
            .iter()
            .filter(|(_, node)| test(node))
            .map(|(index, _)| index)
            .collect()
    }

    /// Returns the values of a label.
    pub(crate) fn label_domains(&self, key: &str) -> Arc<LabelDomains> {
        self.domains.get(key, || Arc::new(self.find_domains(key)))
    }

    fn find_domains(&self, key: &str) -> LabelDomains {
        let mut domains = LabelDomains::default();
        for (node, existing) in self.nodes.iter() {
            let domain = existing.label(key).map(|value| domains.id(value));
            if let Some(domain) = domain {
                domains.nodes[domain].insert(node);
            }
            domains.of_node.push(domain);
        }
        for template in &self.templates {
            let values = self.values_of_template(template, key);
            let ids = values.into_iter().map(|value| domains.id(value)).collect();
            domains.of_template.push(ids);
        }
        domains
    }

    /// Returns the values of a label that nodes of a template can have.
    fn values_of_template(&self, template: &Template, key: &str) -> BTreeSet<&str> {
        let mut values: BTreeSet<&str> = BTreeSet::new();
        // No requirement is on another label.
        let Some(key) = self.algebra.find_key(key) else {
            return values;
        };
        let own = self.algebra.get(template.set, key);
        let own = own.map(|req| self.algebra.requirement(req));
        if let Some(own) = own.filter(|own| !own.is_complement()) {
            values.extend(own.values());
        }
        let catalogue = &self.catalogues[template.catalogue];
        let mut seen: FxHashSet<ReqId> = FxHashSet::default();
        for row in template.rows.iter() {
            let req = catalogue.requirement(row, key);
            let Some(req) = req.filter(|req| seen.insert(*req)) else {
                continue;
            };
            let requirement = self.algebra.requirement(req);
            if !requirement.is_complement() {
                let within = |value: &&str| own.is_none_or(|own| own.has(value));
                values.extend(requirement.values().filter(within));
            }
        }
        values
    }

    /// Returns the pods that a group counts on all nodes before a pass.
    pub(crate) fn base_counts(&self, identity: &GroupIdentity) -> Arc<BaseCounts> {
        let count = || {
            let places = match identity.kind {
                GroupKind::Inverse => self.bound.places_of_term(identity),
                _ => {
                    let (bound, snapshot) = (&self.bound, &self.snapshot);
                    bound.places_of_selected(identity, &self.nodes, snapshot)
                }
            };
            let filter = &identity.filter;
            let passes_all = filter.terms.is_none() && filter.tolerations.is_none();
            let passing = (!passes_all).then(|| Arc::new(self.nodes_passing(filter)));
            let domains = (!is_hostname(&identity.key)).then(|| self.label_domains(&identity.key));
            let (domains, skew) = (domains.as_deref(), identity.max_skew);
            Arc::new(BaseCounts::new(places, passing, domains, skew))
        };
        self.cache.counts.get(identity, count)
    }

    /// Returns the nodes that pass the node filter of a spread constraint.
    pub(crate) fn nodes_passing(&self, filter: &NodeFilter) -> Bits<NodeIdx> {
        let mut nodes = Bits::full(self.nodes.len());
        if let Some(terms) = &filter.terms {
            let mut any = Bits::default();
            for term in terms {
                any.unite(&self.nodes_meeting_all(term));
            }
            nodes.intersect(&any);
        }
        if let Some(tolerations) = &filter.tolerations {
            nodes.intersect(&self.nodes_tolerated(tolerations));
        }
        nodes
    }
}

/// Returns the resources that pods request, which are the only ones that are compared.
fn dimensions(snapshot: &Snapshot, query: &Query, daemons: &[Daemon]) -> Dimensions {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    let mut seen: FxHashSet<*const Shape> = FxHashSet::default();
    let bound = snapshot.node_table().iter().flat_map(|row| &row.pods);
    for pods in bound.filter(|pods| pods.requests_others()) {
        for (name, _) in pods.requests().iter() {
            if !names.contains(name) {
                names.insert(name);
            }
        }
    }
    for pod in snapshot
        .unbound_pods()
        .filter(|pod| seen.insert(Arc::as_ptr(&pod.shape)))
    {
        names.extend(pod.shape.requests.iter().map(|(name, _)| name));
    }
    for pod in query.own_pods() {
        names.extend(pod.shape.requests.iter().map(|(name, _)| name));
    }
    for daemon in daemons {
        names.extend(daemon.shape.requests.iter().map(|(name, _)| name));
    }
    Dimensions::new(&names)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use karpenter_fixtures::{node, pod};

    use super::*;
    use crate::cluster::{Cluster, ClusterConfig};

    #[test]
    fn nodes_with_room_are_the_same_however_often_they_are_looked_for() {
        let mut cluster = Cluster::new(ClusterConfig::default());
        for (name, cpu) in [("a", "1"), ("b", "4"), ("c", "2"), ("over", "4")] {
            cluster.apply_node(&node(name).cpu(cpu).memory("8Gi").pods("10").build());
        }
        cluster.apply_pod(&pod("p").cpu("5").on("over").build());
        let solver = Solver::prepare(&cluster.snapshot(), &Policy::at(Timestamp::UNIX_EPOCH));
        for _ in 0..2 * SCANS {
            let found = solver.nodes_with_room(&[2000, 1 << 30, 1]);
            let names = found.iter().map(|node| solver.nodes[node].name.as_str());
            assert_eq!(names.collect::<Vec<_>>(), ["b", "c"]);
        }
    }
}
