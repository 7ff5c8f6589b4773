//! A snapshot, compiled: the part that all passes over it share.
//!
//! Compiling reads every object once; a pass afterwards costs what it touches. Disruption planning prepares one [`Solver`] per
//! snapshot and simulates the removal of many sets of nodes with it.

use crate::schedule::compile::ids::{CatalogueId, DomainId, NodeIdx, TemplateId};
use index_vec::IndexVec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};

use karpenter_api::labels;
use karpenter_api::v1::{NodePool, Operator};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::cluster::{NodeState, Snapshot};
use crate::disruption::pdb::leaving_pods;
use crate::dra::Inventory;
use crate::limits::{Sizes, known_usage};
use crate::overlay;
use crate::pod::{HostPort, Pod, Shape, Toleration};
use crate::requirements::{LabelNames, Requirement, Requirements};
use crate::resources::Resources;
use crate::schedule::compile::algebra::Algebra;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::catalogue::{Catalogue, Compiler, Reservations};
use crate::schedule::compile::template::{Daemon, Template, TemplateCompiler, alternatives};
use crate::schedule::compile::vectors::{Dimensions, subtract};
use crate::schedule::portfolio;
use crate::schedule::report::plan::{Plan, PoolReport};
use crate::schedule::report::reasons::PoolOutcome;
use crate::schedule::request::{PodSet, ScheduleRequest};
use crate::schedule::topology::group::{BaseCounts, GroupIdentity, Namespaces};
use crate::taints::{Effect, Taint, untolerated};

/// A node of the cluster, or a NodeClaim that is launching one.
#[derive(Clone, Debug)]
pub(crate) struct ExistingNode {
    pub(crate) state: Arc<NodeState>,
    pub(crate) name: String,
    pub(crate) taints: Vec<Taint>,
    /// The requirements of a NodeClaim that is launching; other nodes have labels.
    pub(crate) requirements: Option<Requirements>,
    /// Some available resource is negative: no pod fits.
    pub(crate) broken: bool,
    /// Host ports of the DaemonSets that run or will run on it.
    pub(crate) daemon_ports: Vec<HostPort>,
}

impl ExistingNode {
    /// Returns the value of a label, if it is known.
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        if key == labels::HOSTNAME {
            return Some(self.state.hostname());
        }
        match self.state.labels().get(key) {
            Some(value) => Some(value),
            None => self
                .requirements
                .as_ref()
                .and_then(|all| all.get(key))
                .and_then(Requirement::single),
        }
    }

    /// Reports whether the node meets a requirement, by its labels or by the requirements of its NodeClaim.
    pub(crate) fn meets(&self, requirement: &Requirement) -> bool {
        match self.label(requirement.key()) {
            Some(value) => requirement.has(value),
            None => match self
                .requirements
                .as_ref()
                .and_then(|all| all.get(requirement.key()))
            {
                Some(present) => requirement.has_intersection(present),
                None => requirement.allows_absent(),
            },
        }
    }

    pub(crate) fn meets_all(&self, requirements: &Requirements) -> bool {
        requirements
            .iter()
            .all(|requirement| self.meets(requirement))
    }
}

/// Bound pods of one shape, by node: index and number.
#[derive(Clone, Debug)]
pub(crate) struct BoundShape {
    pub(crate) shape: Arc<Shape>,
    pub(crate) places: Vec<(NodeIdx, u32)>,
}

/// Pods that stay on a deleting node: no pod is placed there, but kube-scheduler counts them.
#[derive(Clone, Debug)]
pub(crate) struct Staying {
    pub(crate) node: ExistingNode,
    pub(crate) pods: Vec<Arc<Pod>>,
}

/// Results computed on demand and kept for later passes. Each entry is a function of its key alone.
#[derive(Default)]
struct Cache {
    meeting: FxHashMap<Requirement, Arc<Bits<NodeIdx>>>,
    tolerating: FxHashMap<Vec<Toleration>, Arc<Bits<NodeIdx>>>,
    counts: FxHashMap<GroupIdentity, Arc<BaseCounts>>,
    domains: FxHashMap<String, Arc<NodeDomains>>,
    /// The nodes of the last `avoid` list: all simulations of a disruption pass share one list.
    avoid: Option<(Arc<[String]>, Arc<Bits<NodeIdx>>)>,
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
    pub(crate) catalogues: IndexVec<CatalogueId, Catalogue>,
    pub(crate) reservations: Reservations,
    pub(crate) templates: IndexVec<TemplateId, Template>,
    pub(crate) pools: Vec<PoolReport>,
    pub(crate) nodes: IndexVec<NodeIdx, ExistingNode>,
    pub(crate) node_index: FxHashMap<String, NodeIdx>,
    pub(crate) remaining: Vec<i64>,
    pub(crate) bound: Vec<BoundShape>,
    /// Pods that are leaving deleting nodes.
    pub(crate) leaving: Vec<Arc<Pod>>,
    /// Pods that stay on such nodes for now, and are counted there.
    pub(crate) staying: Vec<Staying>,
    /// Required anti-affinity terms of bound pods, with the nodes of those pods.
    pub(crate) inverse: Vec<(GroupIdentity, Vec<(NodeIdx, u32)>)>,
    /// Some node or NodePool has a taint with effect PreferNoSchedule.
    pub(crate) has_soft_taints: bool,
    /// Limits or reservations may be released during a pass.
    pub(crate) releases_capacity: bool,
    cache: Mutex<Cache>,
    /// Resource claims, device classes and resource slices, parsed when the first pod with resource claims is scheduled.
    inventory: OnceLock<Inventory>,
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
        let well_known = &snapshot.config().well_known;
        let is_known = |key: &str| well_known.contains(key);
        let daemons = daemons(snapshot, request);
        let pools = instance_types(snapshot);
        let dimensions = dimensions(snapshot, request, &daemons);
        let mut algebra = Algebra::new();
        let mut reservations = Reservations::default();
        let mut catalogues: IndexVec<CatalogueId, Catalogue> = IndexVec::new();
        let mut templates = IndexVec::new();
        let mut reports = Vec::new();
        let usage = usage(snapshot, &pools);
        for (pool, types) in pools {
            let name = pool.metadata.name.clone().unwrap_or_default();
            let outcome = types.and_then(|types| {
                let found = catalogues.position(|catalogue| Arc::ptr_eq(&catalogue.types, &types));
                let index = found.unwrap_or_else(|| {
                    let mut compiler = Compiler {
                        algebra: &mut algebra,
                        dimensions: &dimensions,
                        reservations: &mut reservations,
                        reservation_label: &snapshot.config().reservation_id_label,
                        is_known: &is_known,
                    };
                    catalogues.push(Catalogue::compile(types, &mut compiler))
                });
                let mut compiler = TemplateCompiler {
                    algebra: &mut algebra,
                    dimensions: &dimensions,
                    well_known,
                    daemons: &daemons,
                    min_values: request.min_values_policy,
                };
                let none = Resources::new();
                Template::compile(
                    &pool,
                    (index, &catalogues[index]),
                    usage.get(&name).unwrap_or(&none),
                    &mut compiler,
                )
            });
            let outcome = match outcome {
                Ok(template) => {
                    templates.push(template);
                    PoolOutcome::Used
                }
                Err(outcome) => outcome,
            };
            reports.push(PoolReport {
                node_pool: name,
                outcome,
            });
        }
        promise_to_waiting(snapshot, &mut reservations);
        let (nodes, remaining) = existing_nodes(snapshot, &daemons, &dimensions);
        let node_index: FxHashMap<String, NodeIdx> = nodes
            .iter_enumerated()
            .map(|(index, node)| (node.name.clone(), index))
            .collect();
        let bound = bound_shapes(snapshot, &node_index);
        let soft = |taints: &[Taint]| {
            taints
                .iter()
                .any(|taint| taint.effect == Some(Effect::PreferNoSchedule))
        };
        let leaving = leaving_pods(snapshot, request.now);
        let mut solver = Self {
            snapshot: snapshot.clone(),
            algebra: algebra.freeze(),
            dimensions,
            reservations,
            has_soft_taints: templates.iter().any(|template| soft(&template.taints))
                || nodes.iter().any(|node| soft(&node.taints)),
            releases_capacity: templates.iter().any(|template| {
                !template.limit_names.is_empty() || catalogues[template.catalogue].has_reservations
            }),
            templates,
            catalogues,
            pools: reports,
            nodes,
            node_index,
            remaining,
            bound,
            staying: staying(snapshot, &leaving),
            leaving,
            inverse: Vec::new(),
            cache: Mutex::default(),
            inventory: OnceLock::new(),
        };
        solver.inverse = solver.inverse_of_bound();
        solver
    }

    /// Returns the number of resources.
    pub(crate) fn width(&self) -> usize {
        self.dimensions.len()
    }

    pub(crate) fn inventory(&self) -> &Inventory {
        self.inventory.get_or_init(|| Inventory::of(&self.snapshot))
    }

    /// Places the pods of `request`. May be called any number of times, from any number of threads.
    pub fn solve(&self, request: &ScheduleRequest) -> Plan {
        portfolio::solve(self, request)
    }

    fn inverse_of_bound(&self) -> Vec<(GroupIdentity, Vec<(NodeIdx, u32)>)> {
        let mut groups: FxHashMap<GroupIdentity, BTreeMap<NodeIdx, u32>> = FxHashMap::default();
        for bound in self
            .bound
            .iter()
            .filter(|bound| !bound.shape.required_anti_affinity.is_empty())
        {
            for term in &bound.shape.required_anti_affinity {
                let places = groups
                    .entry(GroupIdentity::inverse(
                        term,
                        &self.snapshot.config().well_known,
                    ))
                    .or_default();
                for (node, count) in &bound.places {
                    *places.entry(*node).or_default() += count;
                }
            }
        }
        for pod in self.staying.iter().flat_map(|place| &place.pods) {
            for term in &pod.shape.required_anti_affinity {
                let names = &self.snapshot.config().well_known;
                groups
                    .entry(GroupIdentity::inverse(term, names))
                    .or_default();
            }
        }
        let mut groups: Vec<_> = groups
            .into_iter()
            .map(|(identity, places)| (identity, places.into_iter().collect()))
            .collect();
        groups.sort_by(|a, b| a.0.order(&b.0));
        groups
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
                for node in &self.nodes {
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
                for bound in self.bound.iter().filter(|bound| selected(&bound.shape)) {
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

impl Namespaces {
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

/// Deducts from reservations the instances of NodeClaims that are not launched yet: the provider counts an instance when it
/// launches it. Upstream plans nothing in the meantime.
fn promise_to_waiting(snapshot: &Snapshot, reservations: &mut Reservations) {
    if reservations.ids.is_empty() {
        return;
    }
    let label = &snapshot.config().reservation_id_label;
    let claims = snapshot.node_claims();
    let waiting = claims.filter(|claim| claim.status.provider_id.is_none() && !claim.is_deleting());
    for requirement in waiting.flat_map(|claim| &claim.spec.requirements) {
        if requirement.key == *label && requirement.operator == Operator::In {
            requirement
                .values
                .iter()
                .for_each(|id| reservations.promise(id));
        }
    }
}

/// Returns the NodePools in the order they are tried, each with its instance types, or why it cannot be used.
fn instance_types(snapshot: &Snapshot) -> Vec<Pool> {
    let mut pools: Vec<Arc<NodePool>> = snapshot.node_pools().cloned().collect();
    pools.sort_by(|a, b| NodePool::scheduling_order(a, b));
    let mut overlays: Vec<_> = snapshot.node_overlays().cloned().collect();
    if !snapshot.config().node_overlays {
        overlays.clear();
    }
    pools
        .into_iter()
        .map(|pool| {
            let name = pool.metadata.name.clone().unwrap_or_default();
            let ready = pool
                .status
                .conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True");
            let types = if pool.is_static() {
                Err(PoolOutcome::Static)
            } else if pool.is_deleting() {
                Err(PoolOutcome::Deleting)
            } else if !ready {
                Err(PoolOutcome::NotReady)
            } else {
                match snapshot.instance_types(&name) {
                    None => Err(PoolOutcome::Unevaluated),
                    Some(Err(problem)) => Err(PoolOutcome::Unknown(problem.clone())),
                    Some(Ok(types)) if types.is_empty() => {
                        Err(PoolOutcome::Unknown("no instance types".to_owned()))
                    }
                    Some(Ok(types)) => Ok(if overlays.is_empty() {
                        types.clone()
                    } else {
                        overlay::apply(&overlays, &pool, types, &snapshot.config().well_known)
                    }),
                }
            };
            (pool, types)
        })
        .collect()
}

fn daemons(snapshot: &Snapshot, request: &ScheduleRequest) -> Vec<Daemon> {
    let well_known = &snapshot.config().well_known;
    snapshot
        .daemon_sets()
        .filter_map(|(set, newest)| {
            let live = newest.unwrap_or(&set.template);
            let terms = if set.template_has_affinity || newest.is_none() {
                &set.template.shape.required_nodes
            } else {
                &live.shape.required_nodes
            };
            if request.ignore_dra_requests && !live.shape.resource_claims.is_empty() {
                return None;
            }
            Some(Daemon::new(&live.shape, terms, well_known))
        })
        .collect()
}

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

/// A NodePool with its instance types, or why it is not used.
type Pool = (
    Arc<NodePool>,
    Result<Arc<[crate::instance_type::InstanceType]>, PoolOutcome>,
);

/// Returns the resources that the nodes of each NodePool use of its limits.
fn usage(snapshot: &Snapshot, pools: &[Pool]) -> BTreeMap<String, Resources> {
    let mut usage: BTreeMap<String, Resources> = BTreeMap::new();
    let mut sizes: FxHashMap<&str, Sizes<'_>> = FxHashMap::default();
    let types_of = |name: &str| {
        pools.iter().find_map(|(pool, types)| {
            let found = pool.name() == name && !pool.spec.limits.is_empty();
            types.as_ref().ok().filter(|_| found)
        })
    };
    for node in snapshot.nodes().filter(|node| !node.is_deleting()) {
        let Some(name) = node.node_pool() else {
            continue;
        };
        let types = node.is_launching().then(|| types_of(name)).flatten();
        let used = match types {
            Some(types) => {
                let sizes = sizes.entry(name).or_insert_with(|| Sizes::of(types));
                sizes.usage(node)
            }
            None => known_usage(node),
        };
        usage.entry(name.to_owned()).or_default().add_assign(&used);
    }
    usage
}

/// Returns the existing nodes, initialized ones first, then by name, with their free resources.
fn existing_nodes(
    snapshot: &Snapshot,
    daemons: &[Daemon],
    dimensions: &Dimensions,
) -> (IndexVec<NodeIdx, ExistingNode>, Vec<i64>) {
    let well_known = &snapshot.config().well_known;
    let mut states: Vec<&Arc<NodeState>> = snapshot
        .nodes()
        .filter(|node| !node.is_deleting())
        .collect();
    states.sort_by_cached_key(|node| (!node.is_initialized(), node.name().to_owned()));
    let mut remaining = Vec::with_capacity(states.len() * dimensions.len());
    let mut nodes = IndexVec::with_capacity(states.len());
    for state in states {
        let requirements = state
            .claim
            .as_ref()
            .filter(|_| state.is_launching())
            .map(|claim| {
                let mut requirements = Requirements::from_api(&claim.spec.requirements, well_known)
                    .unwrap_or_default();
                requirements.add_all(&Requirements::from_labels(state.labels(), well_known));
                requirements
            });
        let mut node = ExistingNode {
            state: state.clone(),
            name: state.name().to_owned(),
            taints: state.taints(),
            requirements,
            broken: false,
            daemon_ports: Vec::new(),
        };
        let pods = snapshot.node_pods(state.name());
        // Resources that the Node does not list are ignored, even if a pod requests them.
        let mut available = state.allocatable();
        if let Some(pods) = pods {
            let mut taken = pods.requests().clone();
            taken.retain(|name, _| available.contains(name));
            available.sub_assign(&taken);
        }
        node.broken = available.iter().any(|(_, value)| value < 0);
        let mut expected = Resources::new();
        for daemon in daemons {
            let runs = untolerated(&node.taints, &daemon.tolerations).is_none()
                && daemon
                    .sets
                    .iter()
                    .any(|alternative| node.meets_all(alternative));
            if runs {
                expected.add_assign(&daemon.shape.requests);
                let ports = daemon.shape.host_ports.iter().cloned();
                node.daemon_ports.extend(ports);
            }
        }
        expected.retain(|name, _| available.contains(name));
        let mut left = dimensions.vector(&available);
        let bound = pods.map(|pods| dimensions.vector(pods.daemon_requests()));
        let mut missing = dimensions.vector(&expected);
        if let Some(bound) = bound {
            subtract(&mut missing, &bound);
        }
        for missing in missing.iter_mut() {
            *missing = (*missing).max(0);
        }
        subtract(&mut left, &missing);
        remaining.extend_from_slice(&left);
        nodes.push(node);
    }
    (nodes, remaining)
}

/// Returns the active pods of deleting nodes, except those that are leaving.
fn staying(snapshot: &Snapshot, leaving: &[Arc<Pod>]) -> Vec<Staying> {
    let leaving: FxHashSet<_> = leaving.iter().map(|pod| &pod.key).collect();
    let places = snapshot.nodes().filter(|node| node.is_deleting());
    let places = places.filter_map(|state| {
        let node = state.node.as_ref()?;
        let stays = |pod: &&Arc<Pod>| pod.is_active() && !leaving.contains(&pod.key);
        let pods: Vec<_> = snapshot
            .pods_on(&node.name)
            .iter()
            .filter(stays)
            .cloned()
            .collect();
        (!pods.is_empty()).then(|| Staying {
            node: ExistingNode {
                state: state.clone(),
                name: state.name().to_owned(),
                taints: state.taints(),
                requirements: None,
                broken: false,
                daemon_ports: Vec::new(),
            },
            pods,
        })
    });
    places.collect()
}

fn bound_shapes(snapshot: &Snapshot, node_index: &FxHashMap<String, NodeIdx>) -> Vec<BoundShape> {
    let mut index: FxHashMap<*const Shape, usize> = FxHashMap::default();
    let mut bound: Vec<BoundShape> = Vec::new();
    for (name, pods) in snapshot.bound_pods() {
        let Some(node) = node_index.get(name) else {
            continue;
        };
        for pod in pods.pods().iter().filter(|pod| pod.is_active()) {
            let at = *index.entry(Arc::as_ptr(&pod.shape)).or_insert_with(|| {
                bound.push(BoundShape {
                    shape: pod.shape.clone(),
                    places: Vec::new(),
                });
                bound.len() - 1
            });
            let places = &mut bound[at].places;
            match places.last_mut().filter(|place| place.0 == *node) {
                Some(place) => place.1 += 1,
                None => places.push((*node, 1)),
            }
        }
    }
    bound
}

/// Returns the requirement sets of a pod's node selector with each alternative of its required node affinity.
pub(crate) fn node_filter_terms(
    shape: &Shape,
    names: &karpenter_api::validation::WellKnown,
) -> Vec<Requirements> {
    alternatives(shape, &shape.required_nodes, names)
}

/// Returns the canonical form of a topology key.
pub(crate) fn canonical_key(key: &str, names: &dyn LabelNames) -> String {
    names.canonical_key(key).to_owned()
}
