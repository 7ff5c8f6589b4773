//! A snapshot, compiled: what all runs over it share.
//!
//! Compiling looks at everything once; a run afterwards costs what it touches. Disruption planning prepares one [`Solver`] a
//! snapshot and asks it many times what would happen without some machines.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, OnceLock},
};

use karpenter_api::{
    labels,
    v1::{NodePool, Operator},
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    algebra::Algebra,
    bits::Bits,
    catalogue::{Catalogue, Compiler, Reservations},
    plan::{Plan, PoolOutcome, PoolReport},
    portfolio,
    request::{PodSet, ScheduleRequest},
    template::{Daemon, Template, TemplateCompiler, alternatives},
    topology::{BaseCounts, GroupIdentity, Namespaces},
    vectors::{Dimensions, subtract},
};
use crate::{
    cluster::{NodeState, Snapshot},
    disruption::pdb::leaving_pods,
    dra::Inventory,
    limits::{Sizes, known_usage},
    overlay,
    pod::{HostPort, Pod, Shape, Toleration},
    requirements::{LabelNames, Requirement, Requirements},
    resources::Resources,
    taints::{Effect, Taint, untolerated},
};

/// A machine that exists.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) state: Arc<NodeState>,
    pub(super) name: String,
    pub(super) taints: Vec<Taint>,
    /// What a launching machine's NodeClaim requires; other machines have labels.
    pub(super) requirements: Option<Requirements>,
    /// Resources below zero: nothing fits.
    pub(super) broken: bool,
    /// Host ports of the DaemonSets that run on it, or will.
    pub(super) daemon_ports: Vec<HostPort>,
}

impl Machine {
    /// The value of a label, if it is known.
    pub(super) fn label(&self, key: &str) -> Option<&str> {
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

    /// Whether the machine surely meets a requirement.
    pub(super) fn meets(&self, requirement: &Requirement) -> bool {
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

    pub(super) fn meets_all(&self, requirements: &Requirements) -> bool {
        requirements
            .iter()
            .all(|requirement| self.meets(requirement))
    }
}

/// Pods of one shape that are bound, by machine.
#[derive(Clone, Debug)]
pub(super) struct BoundShape {
    pub(super) shape: Arc<Shape>,
    pub(super) places: Vec<(u32, u32)>,
}

/// Pods that stay on a machine that is going away: nothing is placed there, but the scheduler counts them.
#[derive(Clone, Debug)]
pub(super) struct Staying {
    pub(super) machine: Machine,
    pub(super) pods: Vec<Arc<Pod>>,
}

/// What is worked out on demand and kept for later runs. Each entry is a function of its key alone.
#[derive(Default)]
struct Memory {
    meeting: FxHashMap<Requirement, Arc<Bits>>,
    tolerating: FxHashMap<Vec<Toleration>, Arc<Bits>>,
    counts: FxHashMap<GroupIdentity, Arc<BaseCounts>>,
    domains: FxHashMap<String, Arc<MachineDomains>>,
    /// The reluctant machines last asked about: all what-ifs of a pass share one list.
    reluctant: Option<(Arc<[String]>, Arc<Bits>)>,
}

/// The values of one label over the machines.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineDomains {
    pub(super) names: Vec<Arc<str>>,
    /// Index into `names` for each machine; `u32::MAX` without the label.
    pub(super) of_machine: Vec<u32>,
}

/// A compiled snapshot. See the module documentation.
pub struct Solver {
    pub(super) snapshot: Snapshot,
    pub(super) algebra: Algebra,
    pub(super) dimensions: Dimensions,
    pub(super) catalogues: Vec<Catalogue>,
    pub(super) reservations: Reservations,
    pub(super) templates: Vec<Template>,
    pub(super) pools: Vec<PoolReport>,
    pub(super) machines: Vec<Machine>,
    pub(super) machine_of: FxHashMap<String, u32>,
    pub(super) remaining: Vec<i64>,
    pub(super) bound: Vec<BoundShape>,
    /// Pods of machines that are going away.
    pub(super) leaving: Vec<Arc<Pod>>,
    /// Pods that stay on such machines for now, and count where they are.
    pub(super) staying: Vec<Staying>,
    /// Required anti-affinity terms of bound pods, with where those pods are.
    pub(super) inverse: Vec<(GroupIdentity, Vec<(u32, u32)>)>,
    /// Some taint a pod may have to tolerate has effect PreferNoSchedule.
    pub(super) has_soft_taints: bool,
    /// Limits or reservations may be given back during a run.
    pub(super) gives_back: bool,
    memory: Mutex<Memory>,
    /// Claims, classes and slices, parsed when the first pod with claims is looked at.
    inventory: OnceLock<Inventory>,
}

impl std::fmt::Debug for Solver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Solver")
            .field("machines", &self.machines.len())
            .field("templates", &self.templates.len())
            .finish_non_exhaustive()
    }
}

impl Solver {
    /// Compiles a snapshot. Of the request, the time, the policies and the resource names of its pods are looked at.
    pub fn prepare(snapshot: &Snapshot, request: &ScheduleRequest) -> Self {
        let well_known = &snapshot.config().well_known;
        let is_known = |key: &str| well_known.contains(key);
        let daemons = daemons(snapshot, request);
        let pools = instance_types(snapshot);
        let dimensions = dimensions(snapshot, request, &daemons);
        let mut algebra = Algebra::new();
        let mut reservations = Reservations::default();
        let mut catalogues: Vec<Catalogue> = Vec::new();
        let mut templates = Vec::new();
        let mut reports = Vec::new();
        let usage = usage(snapshot, &pools);
        for (pool, types) in pools {
            let name = pool.metadata.name.clone().unwrap_or_default();
            let outcome = types.and_then(|types| {
                let found = catalogues
                    .iter()
                    .position(|catalogue| Arc::ptr_eq(&catalogue.types, &types));
                let index = found.unwrap_or_else(|| {
                    let mut compiler = Compiler {
                        algebra: &mut algebra,
                        dimensions: &dimensions,
                        reservations: &mut reservations,
                        reservation_label: &snapshot.config().reservation_id_label,
                        is_known: &is_known,
                    };
                    catalogues.push(Catalogue::compile(types, &mut compiler));
                    catalogues.len() - 1
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
        let (machines, remaining) = machines(snapshot, &daemons, &dimensions);
        let machine_of: FxHashMap<String, u32> = machines
            .iter()
            .enumerate()
            .map(|(index, machine)| (machine.name.clone(), index as u32))
            .collect();
        let bound = bound_shapes(snapshot, &machine_of);
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
                || machines.iter().any(|machine| soft(&machine.taints)),
            gives_back: templates.iter().any(|template| {
                !template.limit_names.is_empty() || catalogues[template.catalogue].has_reservations
            }),
            templates,
            catalogues,
            pools: reports,
            machines,
            machine_of,
            remaining,
            bound,
            staying: staying(snapshot, &leaving),
            leaving,
            inverse: Vec::new(),
            memory: Mutex::default(),
            inventory: OnceLock::new(),
        };
        solver.inverse = solver.inverse_of_bound();
        solver
    }

    pub(super) fn inventory(&self) -> &Inventory {
        self.inventory.get_or_init(|| Inventory::of(&self.snapshot))
    }

    /// Places pods. May be called any number of times, from any number of threads.
    pub fn solve(&self, request: &ScheduleRequest) -> Plan {
        portfolio::solve(self, request)
    }

    fn inverse_of_bound(&self) -> Vec<(GroupIdentity, Vec<(u32, u32)>)> {
        let mut groups: FxHashMap<GroupIdentity, BTreeMap<u32, u32>> = FxHashMap::default();
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
                for (machine, count) in &bound.places {
                    *places.entry(*machine).or_default() += count;
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

    /// Runs `compute` unless its result is remembered. A poisoned lock only loses the memory.
    fn remember<T: Clone>(
        &self,
        look: impl Fn(&Memory) -> Option<T>,
        compute: impl FnOnce() -> T,
        keep: impl FnOnce(&mut Memory, T),
    ) -> T {
        if let Ok(memory) = self.memory.lock()
            && let Some(known) = look(&memory)
        {
            return known;
        }
        let value = compute();
        if let Ok(mut memory) = self.memory.lock() {
            keep(&mut memory, value.clone());
        }
        value
    }

    /// Machines that surely meet a requirement.
    pub(super) fn machines_meeting(&self, requirement: &Requirement) -> Arc<Bits> {
        self.remember(
            |memory| memory.meeting.get(requirement).cloned(),
            || Arc::new(self.machines_that(|machine| machine.meets(requirement))),
            |memory, bits| {
                memory.meeting.insert(requirement.clone(), bits);
            },
        )
    }

    /// The machines of these names.
    pub(super) fn machines_named(&self, names: &Arc<[String]>) -> Arc<Bits> {
        let known = |memory: &Memory| {
            let (of, bits) = memory.reluctant.as_ref()?;
            Arc::ptr_eq(of, names).then(|| bits.clone())
        };
        let index = |name: &String| self.machine_of.get(name).map(|index| *index as usize);
        self.remember(
            known,
            || Arc::new(names.iter().filter_map(index).collect()),
            |memory, bits| memory.reluctant = Some((names.clone(), bits)),
        )
    }

    /// Machines whose taints are tolerated.
    pub(super) fn machines_tolerated(&self, tolerations: &[Toleration]) -> Arc<Bits> {
        self.remember(
            |memory| memory.tolerating.get(tolerations).cloned(),
            || {
                Arc::new(
                    self.machines_that(|machine| {
                        untolerated(&machine.taints, tolerations).is_none()
                    }),
                )
            },
            |memory, bits| {
                memory.tolerating.insert(tolerations.to_vec(), bits);
            },
        )
    }

    fn machines_that(&self, test: impl Fn(&Machine) -> bool) -> Bits {
        self.machines
            .iter()
            .enumerate()
            .filter(|(_, machine)| test(machine))
            .map(|(index, _)| index)
            .collect()
    }

    /// The values of a label over the machines.
    pub(super) fn machine_domains(&self, key: &str) -> Arc<MachineDomains> {
        self.remember(
            |memory| memory.domains.get(key).cloned(),
            || {
                let mut ids: FxHashMap<Arc<str>, u32> = FxHashMap::default();
                let mut domains = MachineDomains::default();
                for machine in &self.machines {
                    let index = machine.label(key).map_or(u32::MAX, |value| {
                        *ids.entry(value.into()).or_insert_with(|| {
                            domains.names.push(value.into());
                            domains.names.len() as u32 - 1
                        })
                    });
                    domains.of_machine.push(index);
                }
                Arc::new(domains)
            },
            |memory, domains| {
                memory.domains.insert(key.to_owned(), domains);
            },
        )
    }

    /// Where bound pods that a group selects are.
    pub(super) fn base_counts(&self, identity: &GroupIdentity) -> Arc<BaseCounts> {
        self.remember(
            |memory| memory.counts.get(identity).cloned(),
            || {
                let mut places: BTreeMap<u32, u32> = BTreeMap::new();
                let selected = |shape: &Shape| {
                    identity.selects(&shape.namespace, &shape.labels, &self.snapshot)
                };
                for bound in self.bound.iter().filter(|bound| selected(&bound.shape)) {
                    for (machine, count) in &bound.places {
                        *places.entry(*machine).or_default() += count;
                    }
                }
                Arc::new(BaseCounts {
                    places: places.into_iter().collect(),
                })
            },
            |memory, counts| {
                memory.counts.insert(identity.clone(), counts);
            },
        )
    }
}

impl Namespaces {
    /// Whether pods of `namespace` are meant.
    pub(super) fn contain(&self, namespace: &str, snapshot: &Snapshot) -> bool {
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

/// Takes off reservations what was promised to NodeClaims that are not launched yet: the provider counts a machine when it
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

/// Usable NodePools in the order they are tried, each with its instance types, or why it cannot be used.
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

/// A NodePool with the instance types there are for it, or why it is not used.
type Pool = (
    Arc<NodePool>,
    Result<Arc<[crate::instance_type::InstanceType]>, PoolOutcome>,
);

/// What the machines of each NodePool count against its limits.
fn usage(snapshot: &Snapshot, pools: &[Pool]) -> BTreeMap<String, Resources> {
    let mut usage: BTreeMap<String, Resources> = BTreeMap::new();
    let mut sizes: FxHashMap<&str, Sizes<'_>> = FxHashMap::default();
    let types_of = |name: &str| {
        pools.iter().find_map(|(pool, types)| {
            let found = pool.name() == name && !pool.spec.limits.is_empty();
            types.as_ref().ok().filter(|_| found)
        })
    };
    for machine in snapshot.nodes().filter(|machine| !machine.is_deleting()) {
        let Some(name) = machine.node_pool() else {
            continue;
        };
        let types = machine.is_launching().then(|| types_of(name)).flatten();
        let used = match types {
            Some(types) => {
                let sizes = sizes.entry(name).or_insert_with(|| Sizes::of(types));
                sizes.usage(machine)
            }
            None => known_usage(machine),
        };
        usage.entry(name.to_owned()).or_default().add_assign(&used);
    }
    usage
}

/// Targets: initialised ones first, then by name.
fn machines(
    snapshot: &Snapshot,
    daemons: &[Daemon],
    dimensions: &Dimensions,
) -> (Vec<Machine>, Vec<i64>) {
    let well_known = &snapshot.config().well_known;
    let mut states: Vec<&Arc<NodeState>> = snapshot
        .nodes()
        .filter(|machine| !machine.is_deleting())
        .collect();
    states.sort_by_cached_key(|machine| (!machine.is_initialized(), machine.name().to_owned()));
    let mut remaining = Vec::with_capacity(states.len() * dimensions.len());
    let mut machines = Vec::with_capacity(states.len());
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
        let mut machine = Machine {
            state: state.clone(),
            name: state.name().to_owned(),
            taints: state.taints(),
            requirements,
            broken: false,
            daemon_ports: Vec::new(),
        };
        let pods = snapshot.node_pods(state.name());
        // What a Node does not list is of no account, whoever asks for it already.
        let mut available = state.allocatable();
        if let Some(pods) = pods {
            let mut taken = pods.requests().clone();
            taken.retain(|name, _| available.contains(name));
            available.sub_assign(&taken);
        }
        machine.broken = available.iter().any(|(_, value)| value < 0);
        let mut expected = Resources::new();
        for daemon in daemons {
            let runs = untolerated(&machine.taints, &daemon.tolerations).is_none()
                && daemon
                    .sets
                    .iter()
                    .any(|alternative| machine.meets_all(alternative));
            if runs {
                expected.add_assign(&daemon.shape.requests);
                let ports = daemon.shape.host_ports.iter().cloned();
                machine.daemon_ports.extend(ports);
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
        machines.push(machine);
    }
    (machines, remaining)
}

/// The active pods of machines that are going away, but for those that are leaving.
fn staying(snapshot: &Snapshot, leaving: &[Arc<Pod>]) -> Vec<Staying> {
    let leaving: FxHashSet<_> = leaving.iter().map(|pod| &pod.key).collect();
    let places = snapshot.nodes().filter(|machine| machine.is_deleting());
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
            machine: Machine {
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

fn bound_shapes(snapshot: &Snapshot, machine_of: &FxHashMap<String, u32>) -> Vec<BoundShape> {
    let mut index: FxHashMap<*const Shape, usize> = FxHashMap::default();
    let mut bound: Vec<BoundShape> = Vec::new();
    for (node, pods) in snapshot.bound_pods() {
        let Some(machine) = machine_of.get(node) else {
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
            match places.last_mut().filter(|place| place.0 == *machine) {
                Some(place) => place.1 += 1,
                None => places.push((*machine, 1)),
            }
        }
    }
    bound
}

/// The requirement sets a pod can meet on a node: node selector with each alternative.
pub(super) fn node_filter_terms(
    shape: &Shape,
    names: &karpenter_api::validation::WellKnown,
) -> Vec<Requirements> {
    alternatives(shape, &shape.required_nodes, names)
}

/// The canonical form of a topology key.
pub(super) fn canonical_key(key: &str, names: &dyn LabelNames) -> String {
    names.canonical_key(key).to_owned()
}
