//! A snapshot, compiled: the part that all passes over it share.
//!
//! Compiling reads every object once; a pass afterwards costs what it touches. Disruption planning prepares one [`Solver`] per
//! snapshot and simulates the removal of many sets of nodes with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};

use index_vec::IndexVec;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::cluster::Snapshot;
use crate::dra::Inventory;
use crate::pod::{Pod, Shape, Toleration};
use crate::requirements::{Requirement, Requirements};
use crate::schedule::compile::algebra::Algebra;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::bound_pods::BoundPods;
use crate::schedule::compile::catalogue::{Catalogue, Reservations};
use crate::schedule::compile::daemons::{Daemon, daemons};
use crate::schedule::compile::ids::{CatalogueId, DomainId, NodeIdx, TemplateId};
use crate::schedule::compile::nodes::{ExistingNode, existing_nodes};
use crate::schedule::compile::pools::{Pools, Usage, is_soft};
use crate::schedule::compile::template::Template;
use crate::schedule::compile::vectors::Dimensions;
use crate::schedule::report::plan::PoolReport;
use crate::schedule::request::{PodSet, ScheduleRequest};
use crate::schedule::topology::group::{BaseCounts, GroupIdentity};
use crate::taints::untolerated;

/// Nodes by name.
type NamedNodes = (Arc<[String]>, Arc<Bits<NodeIdx>>);

/// Results computed on demand and kept for later passes. Each entry is a function of its key alone.
#[derive(Default)]
struct Cache {
    meeting: FxHashMap<Requirement, Arc<Bits<NodeIdx>>>,
    tolerating: FxHashMap<Vec<Toleration>, Arc<Bits<NodeIdx>>>,
    counts: FxHashMap<GroupIdentity, Arc<BaseCounts>>,
    domains: FxHashMap<String, Arc<NodeDomains>>,
    /// The nodes of the last `avoid` list: all simulations of a disruption pass share one list.
    avoid: Option<NamedNodes>,
}

/// The values of one label over the nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeDomains {
    pub(crate) names: IndexVec<DomainId, Arc<str>>,
    /// Index into `names` for each node; `None` without the label.
    pub(crate) of_node: IndexVec<NodeIdx, Option<DomainId>>,
}

/// A compiled [`Snapshot`] that answers any number of [`ScheduleRequest`]s.
pub struct Solver {
    pub(crate) snapshot: Snapshot,
    pub(crate) algebra: Algebra,
    pub(crate) dimensions: Dimensions,
    pub(crate) catalogues: IndexVec<CatalogueId, Arc<Catalogue>>,
    pub(crate) reservations: Reservations,
    pub(crate) templates: IndexVec<TemplateId, Template>,
    pub(crate) pools: Vec<PoolReport>,
    /// What the nodes of each NodePool use of its limits.
    pub(crate) usage: Arc<Usage>,
    pub(crate) nodes: Arc<IndexVec<NodeIdx, ExistingNode>>,
    pub(crate) node_index: Arc<FxHashMap<String, NodeIdx>>,
    pub(crate) remaining: Arc<Vec<i64>>,
    pub(crate) bound: Arc<BoundPods>,
    /// Some node or NodePool has a taint with effect PreferNoSchedule.
    pub(crate) has_soft_taints: bool,
    /// Limits or reservations may be released during a pass.
    pub(crate) releases_capacity: bool,
    /// Of the nodes and the bound pods.
    cache: Arc<Mutex<Cache>>,
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
    /// Compiles a snapshot. Uses the time, the policies and the resource names of the pods of `request`.
    pub fn prepare(snapshot: &Snapshot, request: &ScheduleRequest) -> Self {
        let daemons = daemons(snapshot, request);
        let dimensions = dimensions(snapshot, request, &daemons);
        let pools = Pools::compile(snapshot, request.min_values_policy, &daemons, &dimensions);
        let nodes = existing_nodes(snapshot, &daemons, &dimensions);
        let bound = BoundPods::compile(snapshot, request.now, &nodes.index);
        let nodes_are_soft = nodes.nodes.iter().any(|node| is_soft(&node.taints));
        Self {
            has_soft_taints: nodes_are_soft || pools.has_soft_taints(),
            releases_capacity: pools.releases_capacity(),
            snapshot: snapshot.clone(),
            algebra: pools.algebra,
            dimensions,
            catalogues: pools.catalogues,
            reservations: pools.reservations,
            templates: pools.templates,
            pools: pools.reports,
            usage: pools.usage,
            nodes: Arc::new(nodes.nodes),
            node_index: Arc::new(nodes.index),
            remaining: Arc::new(nodes.remaining),
            bound: Arc::new(bound),
            cache: Arc::default(),
            inventory: Arc::default(),
        }
    }

    /// Compiles a changed copy of the snapshot in which only NodePools and their instance types differ; nodes and pods are shared
    /// with this solver. `request` must have the same policies, and no pod with other resources.
    ///
    /// For questions about single pods: at 5,000 nodes it takes a hundredth of the time of [`Self::prepare`].
    #[must_use]
    pub fn with_node_pools_of(&self, copy: &Snapshot, request: &ScheduleRequest) -> Self {
        let daemons = daemons(copy, request);
        let policy = request.min_values_policy;
        let pools = Pools::recompile(self, copy, policy, &daemons);
        let nodes_are_soft = self.nodes.iter().any(|node| is_soft(&node.taints));
        Self {
            has_soft_taints: nodes_are_soft || pools.has_soft_taints(),
            releases_capacity: pools.releases_capacity(),
            snapshot: copy.clone(),
            algebra: pools.algebra,
            dimensions: self.dimensions.clone(),
            catalogues: pools.catalogues,
            reservations: pools.reservations,
            templates: pools.templates,
            pools: pools.reports,
            usage: pools.usage,
            nodes: self.nodes.clone(),
            node_index: self.node_index.clone(),
            remaining: self.remaining.clone(),
            bound: self.bound.clone(),
            cache: self.cache.clone(),
            inventory: self.inventory.clone(),
        }
    }

    /// Returns the number of resources.
    pub(crate) fn width(&self) -> usize {
        self.dimensions.len()
    }

    pub(crate) fn inventory(&self) -> &Inventory {
        self.inventory.get_or_init(|| Inventory::of(&self.snapshot))
    }

    /// Returns the cached result, or runs `compute` and caches its result. A poisoned lock only disables the cache.
    fn cached<T: Clone>(
        &self,
        look: impl Fn(&Cache) -> Option<T>,
        compute: impl FnOnce() -> T,
        keep: impl FnOnce(&mut Cache, T),
    ) -> T {
        if let Ok(cache) = self.cache.lock()
            && let Some(known) = look(&cache)
        {
            return known;
        }
        let value = compute();
        if let Ok(mut cache) = self.cache.lock() {
            keep(&mut cache, value.clone());
        }
        value
    }

    /// Returns the nodes that meet a requirement.
    pub(crate) fn nodes_meeting(&self, requirement: &Requirement) -> Arc<Bits<NodeIdx>> {
        self.cached(
            |cache| cache.meeting.get(requirement).cloned(),
            || Arc::new(self.nodes_where(|node| node.meets(requirement))),
            |cache, bits| {
                cache.meeting.insert(requirement.clone(), bits);
            },
        )
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
        let known = |cache: &Cache| {
            let (of, bits) = cache.avoid.as_ref()?;
            Arc::ptr_eq(of, names).then(|| bits.clone())
        };
        let index = |name: &String| self.node_index.get(name).copied();
        self.cached(
            known,
            || Arc::new(names.iter().filter_map(index).collect()),
            |cache, bits| cache.avoid = Some((names.clone(), bits)),
        )
    }

    /// Returns the nodes whose taints are tolerated.
    pub(crate) fn nodes_tolerated(&self, tolerations: &[Toleration]) -> Arc<Bits<NodeIdx>> {
        self.cached(
            |cache| cache.tolerating.get(tolerations).cloned(),
            || Arc::new(self.nodes_where(|node| untolerated(&node.taints, tolerations).is_none())),
            |cache, bits| {
                cache.tolerating.insert(tolerations.to_vec(), bits);
            },
        )
    }

    fn nodes_where(&self, test: impl Fn(&ExistingNode) -> bool) -> Bits<NodeIdx> {
        self.nodes
            .iter_enumerated()
            .filter(|(_, node)| test(node))
            .map(|(index, _)| index)
            .collect()
    }

    /// Returns the values of a label over the nodes.
    pub(crate) fn node_domains(&self, key: &str) -> Arc<NodeDomains> {
        self.cached(
            |cache| cache.domains.get(key).cloned(),
            || {
                let mut ids: FxHashMap<Arc<str>, DomainId> = FxHashMap::default();
                let mut domains = NodeDomains::default();
                for node in self.nodes.iter() {
                    let index = node.label(key).map(|value| {
                        *ids.entry(value.into())
                            .or_insert_with(|| domains.names.push(value.into()))
                    });
                    domains.of_node.push(index);
                }
                Arc::new(domains)
            },
            |cache, domains| {
                cache.domains.insert(key.to_owned(), domains);
            },
        )
    }

    /// Returns the nodes of the bound pods that a group selects.
    pub(crate) fn base_counts(&self, identity: &GroupIdentity) -> Arc<BaseCounts> {
        self.cached(
            |cache| cache.counts.get(identity).cloned(),
            || {
                let mut places: BTreeMap<NodeIdx, u32> = BTreeMap::new();
                let selected = |shape: &Shape| {
                    identity.selects(&shape.namespace, &shape.labels, &self.snapshot)
                };
                for bound in self
                    .bound
                    .shapes
                    .iter()
                    .filter(|bound| selected(&bound.shape))
                {
                    for (node, count) in &bound.places {
                        *places.entry(*node).or_default() += count;
                    }
                }
                Arc::new(BaseCounts {
                    places: places.into_iter().collect(),
                })
            },
            |cache, counts| {
                cache.counts.insert(identity.clone(), counts);
            },
        )
    }
}

/// Returns the resources that pods request, which are the only ones that are compared.
fn dimensions(snapshot: &Snapshot, request: &ScheduleRequest, daemons: &[Daemon]) -> Dimensions {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    let mut seen: FxHashSet<*const Shape> = FxHashSet::default();
    for (_, pods) in snapshot.bound_pods() {
        names.extend(pods.requests().iter().map(|(name, _)| name));
    }
    for pod in snapshot
        .unbound_pods()
        .filter(|pod| seen.insert(Arc::as_ptr(&pod.shape)))
    {
        names.extend(pod.shape.requests.iter().map(|(name, _)| name));
    }
    let given: &[Arc<Pod>] = match &request.pods {
        PodSet::Waiting => &[],
        PodSet::Given(pods) | PodSet::WaitingAnd(pods) => pods,
    };
    for pod in given.iter().chain(&request.buffer_pods) {
        names.extend(pod.shape.requests.iter().map(|(name, _)| name));
    }
    for daemon in daemons {
        names.extend(daemon.shape.requests.iter().map(|(name, _)| name));
    }
    Dimensions::new(&names)
}
