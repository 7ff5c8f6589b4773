//! The constraints of a question that can be relaxed one by one, and how.
//!
//! Not a [`Change`](crate::change::Change), which a user writes: an atom is one constraint of one pod, NodePool or instance type, and
//! relaxing it is only a question.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use karpenter_api::conditions::{Condition, HasConditions, types};
use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::labels;
use karpenter_api::v1::NodePool;
use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::Offering;
use karpenter_core::pod::{AffinityTerm, Pod, Shape, Toleration};
use karpenter_core::requirements::{Operator, Requirement, Requirements};
use karpenter_core::taints::{Effect, Taint};

use super::prepared::Prepared;
use super::wanted::is_wanted;
use crate::workload::Workload;

/// Where a constraint comes from, and who can change it. The order is that in which relaxations of one price are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub enum Side {
    Pod,
    Pool,
    /// What the cloud offers now.
    Offer,
    /// Other workloads of the cluster.
    Cluster,
}

/// A constraint that can be relaxed alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Atom {
    NodeSelector(String),
    /// Expression of a term of the required node affinity. Terms are alternatives: relaxing all expressions of one lifts all.
    NodeAffinity(usize, usize),
    Spread(usize),
    DefaultSpread,
    Affinity(usize),
    AntiAffinity(usize),
    HostPort(usize),
    Volume(usize),
    ResourceClaim(usize),
    Request(String),
    /// A taint that the pod does not tolerate.
    Toleration(Taint),
    PoolState(String, State),
    PoolRequirement(String, usize),
    PoolLabel(String, String),
    MinValues(String, usize),
    Limit(String, String),
    PoolTaint(String, usize),
    /// Offerings of a NodePool that are marked unavailable: NodePool, capacity type, zone.
    Unavailable(String, String, String),
    /// A DaemonSet's overhead on new nodes.
    DaemonSet(String, String),
    /// A required anti-affinity term of another workload that selects the pod.
    OtherAntiAffinity(Workload, usize),
}

/// Why a NodePool is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum State {
    Deleting,
    NotReady,
    Static,
}

/// Returns a taint that keeps pods from being scheduled; `None` if it does not.
fn hard(taint: Taint) -> Option<Taint> {
    let effect = taint.effect?;
    (effect != Effect::PreferNoSchedule).then_some(taint)
}

/// Returns the toleration of a taint alone.
pub(crate) fn toleration(taint: &Taint) -> Toleration {
    Toleration {
        key: taint.key.clone(),
        operator: "Equal".to_owned(),
        value: taint.value.clone(),
        effect: taint.effect,
        unknown_effect: false,
    }
}

/// Distinct taints of nodes that become constraints; those of NodePools always do.
const NODE_TAINTS: usize = 8;
/// DaemonSets that become constraints.
const DAEMON_SETS: usize = 16;

/// Lists the constraints of a pod in the order in which they are preferred in an answer: the pod's own first, then those of
/// NodePools, of the cluster, and of the offerings.
pub(super) fn atoms(prepared: &Prepared, pod: &Pod) -> Vec<Atom> {
    let snapshot = &prepared.snapshot;
    let mut all = of_pod(prepared, pod);
    for pool in snapshot.node_pools() {
        let of_pool = of_pool(pool);
        all.extend(
            of_pool
                .into_iter()
                .filter(|atom| !is_wanted(snapshot, pod, pool, atom)),
        );
    }
    all.extend(of_cluster(prepared, pod));
    for pool in snapshot.node_pools() {
        if let Some(Ok(types)) = snapshot.instance_types(pool.name()) {
            all.extend(of_offerings(pool.name(), types));
        }
    }
    all
}

fn of_pod(prepared: &Prepared, pod: &Pod) -> Vec<Atom> {
    let policy = &prepared.policy;
    let shape = &pod.shape;
    let selected = shape.node_selector.keys().cloned();
    let mut all: Vec<Atom> = selected.map(Atom::NodeSelector).collect();
    for (index, term) in shape.required_nodes.iter().enumerate() {
        let expressions = 0..term.expressions.len();
        all.extend(expressions.map(|expression| Atom::NodeAffinity(index, expression)));
    }
    let spread = shape.spread.iter().enumerate();
    let spread = spread.filter(|(_, spread)| spread.hard);
    all.extend(spread.map(|(index, _)| Atom::Spread(index)));
    if shape.spread.is_empty() && policy.default_spread.iter().any(|spread| spread.hard) {
        all.push(Atom::DefaultSpread);
    }
    all.extend((0..shape.required_affinity.len()).map(Atom::Affinity));
    all.extend((0..shape.required_anti_affinity.len()).map(Atom::AntiAffinity));
    all.extend((0..shape.host_ports.len()).map(Atom::HostPort));
    all.extend((0..shape.volumes.len()).map(Atom::Volume));
    all.extend((0..shape.resource_claims.len()).map(Atom::ResourceClaim));
    let asked = shape
        .requests
        .iter()
        .filter(|(name, amount)| *name != "pods" && *amount > 0);
    all.extend(asked.map(|(name, _)| Atom::Request(name.to_owned())));
    let mut taints = taints(prepared);
    taints.retain(|taint| !taint.is_tolerated_by(&shape.tolerations));
    all.extend(taints.into_iter().map(Atom::Toleration));
    all
}

/// The distinct taints of NodePools and, a few, of nodes.
fn taints(prepared: &Prepared) -> Vec<Taint> {
    let pools = prepared.snapshot.node_pools();
    let of_pools = pools
        .flat_map(|pool| pool.spec.template.spec.taints.iter().flatten())
        .filter_map(|taint| hard(Taint::parse(taint)));
    let mut all: BTreeSet<Taint> = of_pools.collect();
    let mut more = 0;
    for taint in &prepared.node_taints {
        if more < NODE_TAINTS && all.insert(taint.clone()) {
            more += 1;
        }
    }
    let mut all = Vec::from_iter(all);
    all.sort_by_cached_key(|taint| {
        let effect = taint.effect.map(Effect::as_str);
        (taint.key.clone(), taint.value.clone(), effect)
    });
    all
}

/// The distinct taints of nodes, in the order of the nodes; without those that Kubernetes and Karpenter set themselves.
pub(super) fn node_taints(snapshot: &Snapshot) -> Vec<Taint> {
    let own = [
        "karpenter.sh",
        "node.kubernetes.io",
        "node.cloudprovider.kubernetes.io",
    ];
    let is_own = |key: &str| {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        own.contains(&domain)
    };
    let mut seen: BTreeSet<Taint> = BTreeSet::new();
    let taints = snapshot.nodes().flat_map(|node| node.taints());
    let taints = taints.filter(|taint| !is_own(&taint.key)).filter_map(hard);
    taints.filter(|taint| seen.insert(taint.clone())).collect()
}

fn of_pool(pool: &NodePool) -> Vec<Atom> {
    let name = pool.name();
    let template = &pool.spec.template;
    let mut all = Vec::new();
    let state = |state| Atom::PoolState(name.to_owned(), state);
    if pool.is_deleting() {
        all.push(state(State::Deleting));
    }
    if pool.is_static() {
        all.push(state(State::Static));
    }
    if !pool.is_true(types::READY) {
        all.push(state(State::NotReady));
    }
    for (index, requirement) in template.spec.requirements.iter().enumerate() {
        all.push(Atom::PoolRequirement(name.to_owned(), index));
        if requirement.min_values.is_some() {
            all.push(Atom::MinValues(name.to_owned(), index));
        }
    }
    let labels = template.metadata.labels.iter().flatten();
    all.extend(labels.map(|(key, _)| Atom::PoolLabel(name.to_owned(), key.clone())));
    let limits = pool.spec.limits.keys();
    all.extend(limits.map(|resource| Atom::Limit(name.to_owned(), resource.clone())));
    let taints = template.spec.taints.iter().flatten().enumerate();
    let hard = taints.filter(|(_, taint)| hard(Taint::parse(taint)).is_some());
    all.extend(hard.map(|(index, _)| Atom::PoolTaint(name.to_owned(), index)));
    all
}

fn of_offerings(pool: &str, types: &[InstanceType]) -> BTreeSet<Atom> {
    let offerings = types.iter().flat_map(|kind| kind.offerings.iter());
    offerings
        .filter(|offering| !offering.is_launchable())
        .map(|offering| {
            let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
            Atom::Unavailable(
                pool.to_owned(),
                text(offering.capacity_type()),
                text(offering.zone()),
            )
        })
        .collect()
}

fn of_cluster(prepared: &Prepared, pod: &Pod) -> Vec<Atom> {
    let snapshot = &prepared.snapshot;
    let mut all: BTreeSet<Atom> = BTreeSet::new();
    for (owner, shape) in &prepared.anti_affinity {
        for (index, term) in shape.required_anti_affinity.iter().enumerate() {
            if selects(term, pod, snapshot) {
                all.insert(Atom::OtherAntiAffinity(owner.clone(), index));
            }
        }
    }
    let daemons = snapshot.daemon_sets().take(DAEMON_SETS);
    let daemons = daemons.map(|(set, _)| Atom::DaemonSet(set.namespace.clone(), set.name.clone()));
    all.into_iter().chain(daemons).collect()
}

/// Reports whether an affinity term of another pod selects the pod.
fn selects(term: &AffinityTerm, pod: &Pod, snapshot: &Snapshot) -> bool {
    let namespace = &pod.key.namespace;
    let of_namespace = term.namespaces.contains(namespace)
        || term.namespace_selector.as_ref().is_some_and(|selector| {
            let none = BTreeMap::new();
            selector.matches(snapshot.namespace_labels(namespace).unwrap_or(&none))
        });
    of_namespace && term.selector.matches(&pod.shape.labels)
}

impl Atom {
    pub(super) fn side(&self) -> Side {
        match self {
            Self::NodeSelector(_)
            | Self::NodeAffinity(..)
            | Self::Spread(_)
            | Self::DefaultSpread
            | Self::Affinity(_)
            | Self::AntiAffinity(_)
            | Self::HostPort(_)
            | Self::Volume(_)
            | Self::ResourceClaim(_)
            | Self::Request(_)
            | Self::Toleration(_) => Side::Pod,
            Self::PoolState(..)
            | Self::PoolRequirement(..)
            | Self::PoolLabel(..)
            | Self::MinValues(..)
            | Self::Limit(..)
            | Self::PoolTaint(..) => Side::Pool,
            Self::Unavailable(..) => Side::Offer,
            Self::DaemonSet(..) | Self::OtherAntiAffinity(..) => Side::Cluster,
        }
    }

    /// Returns the NodePool that the constraint belongs to; constraints of the pod and of the cluster concern all.
    pub(super) fn pool(&self) -> Option<&str> {
        match self {
            Self::PoolState(pool, _)
            | Self::PoolRequirement(pool, _)
            | Self::PoolLabel(pool, _)
            | Self::MinValues(pool, _)
            | Self::Limit(pool, _)
            | Self::PoolTaint(pool, _)
            | Self::Unavailable(pool, ..) => Some(pool),
            _ => None,
        }
    }

    /// Reports whether relaxing it changes the pod alone, so that a prepared solver can be asked again.
    pub(super) fn is_of_pod(&self) -> bool {
        self.side() == Side::Pod && *self != Self::DefaultSpread
    }
}

/// Returns the pod without the relaxed constraints.
pub(super) fn relaxed_pod<'a>(pod: &Pod, relaxed: impl Iterator<Item = &'a Atom>) -> Arc<Pod> {
    let mut shape = Shape::clone(&pod.shape);
    let relaxed: BTreeSet<&Atom> = relaxed.collect();
    let is_relaxed = |atom: Atom| relaxed.contains(&atom);
    for atom in &relaxed {
        match atom {
            Atom::NodeSelector(key) => drop(shape.node_selector.remove(key)),
            Atom::Request(resource) => {
                shape.requests.remove(resource);
            }
            Atom::Toleration(taint) => shape.tolerations.push(toleration(taint)),
            _ => {}
        }
    }
    drop_terms(&mut shape, |term, expression| {
        is_relaxed(Atom::NodeAffinity(term, expression))
    });
    drop_if(&mut shape.spread, |at| is_relaxed(Atom::Spread(at)));
    drop_if(&mut shape.required_affinity, |at| {
        is_relaxed(Atom::Affinity(at))
    });
    drop_if(&mut shape.required_anti_affinity, |at| {
        is_relaxed(Atom::AntiAffinity(at))
    });
    drop_if(&mut shape.host_ports, |at| is_relaxed(Atom::HostPort(at)));
    drop_if(&mut shape.volumes, |at| is_relaxed(Atom::Volume(at)));
    drop_if(&mut shape.resource_claims, |at| {
        is_relaxed(Atom::ResourceClaim(at))
    });
    Arc::new(Pod {
        shape: Arc::new(shape),
        ..pod.clone()
    })
}

/// Removes expressions of the required node affinity. A term without expressions would match no node, where the user who deletes
/// the last one deletes the term and, with the last term, the affinity.
fn drop_terms(shape: &mut Shape, is_dropped: impl Fn(usize, usize) -> bool) {
    let mut unrestricted = false;
    for (index, term) in shape.required_nodes.iter_mut().enumerate() {
        let before = term.expressions.len();
        drop_if(&mut term.expressions, |at| is_dropped(index, at));
        unrestricted |= before > 0 && term.expressions.is_empty() && !term.has_fields;
    }
    if unrestricted {
        shape.required_nodes.clear();
    }
}

/// Removes the elements with some indices.
fn drop_if<T>(list: &mut Vec<T>, is_dropped: impl Fn(usize) -> bool) {
    let mut indices = 0..;
    list.retain(|_| !indices.next().is_some_and(&is_dropped));
}

/// Returns the NodePool without the relaxed constraints.
pub(super) fn relaxed_pool<'a>(
    pool: &NodePool,
    relaxed: impl Iterator<Item = &'a Atom>,
) -> NodePool {
    let mut changed = pool.clone();
    let name = pool.name();
    let relaxed: BTreeSet<&Atom> = relaxed.collect();
    let is_relaxed = |atom: Atom| relaxed.contains(&atom);
    let spec = &mut changed.spec;
    let template = &mut spec.template;
    for atom in &relaxed {
        match atom {
            Atom::PoolLabel(_, key) => {
                template.metadata.labels.get_or_insert_default().remove(key);
            }
            Atom::Limit(_, resource) => drop(spec.limits.remove(resource)),
            _ => {}
        }
    }
    let requirements = &mut template.spec.requirements;
    // minValues is a constraint of its own, with which the requirement stays.
    let mut kept = BTreeSet::new();
    for (index, requirement) in requirements.iter_mut().enumerate() {
        if is_relaxed(Atom::MinValues(name.to_owned(), index)) {
            requirement.min_values = None;
        }
        if requirement.min_values.is_some()
            && is_relaxed(Atom::PoolRequirement(name.to_owned(), index))
        {
            requirement.operator = Operator::Exists;
            requirement.values.clear();
            kept.insert(index);
        }
    }
    drop_if(requirements, |at| {
        !kept.contains(&at) && is_relaxed(Atom::PoolRequirement(name.to_owned(), at))
    });
    drop_if(template.spec.taints.get_or_insert_default(), |at| {
        is_relaxed(Atom::PoolTaint(name.to_owned(), at))
    });
    let is_lifted = |state| is_relaxed(Atom::PoolState(name.to_owned(), state));
    if is_lifted(State::Deleting) {
        changed.metadata.deletion_timestamp = None;
    }
    if is_lifted(State::Static) {
        changed.spec.replicas = None;
    }
    if is_lifted(State::NotReady) {
        set_ready(changed.conditions_mut());
    }
    changed
}

pub(crate) fn set_ready(conditions: &mut Vec<Condition>) {
    match conditions
        .iter_mut()
        .find(|condition| condition.type_ == types::READY)
    {
        Some(condition) => condition.status = "True".to_owned(),
        None => conditions.push(Condition {
            type_: types::READY.to_owned(),
            status: "True".to_owned(),
            reason: "Assumed".to_owned(),
            message: String::new(),
            last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
            observed_generation: None,
        }),
    }
}

/// Returns instance types whose relaxed offerings are available.
pub(super) fn relaxed_types(
    types: &[InstanceType],
    relaxed: &BTreeSet<(&str, &str)>,
) -> Vec<InstanceType> {
    let mut types = types.to_vec();
    for kind in &mut types {
        let mut lifted = false;
        for offering in kind.offerings.iter_mut() {
            let place = (
                offering.capacity_type().unwrap_or_default(),
                offering.zone().unwrap_or_default(),
            );
            if !offering.is_launchable() && relaxed.contains(&place) {
                make_available(offering);
                lifted = true;
            }
        }
        for (capacity_type, zone) in relaxed.iter().filter(|_| lifted) {
            admit_offering(&mut kind.requirements, capacity_type, zone);
        }
    }
    types
}

/// Makes an offering launchable.
pub(crate) fn make_available(offering: &mut Offering) {
    offering.available = true;
    offering.reservation_capacity = offering.reservation_capacity.max(1);
}

/// Adds the capacity type and zone of an offering to those that an instance type lists.
pub(crate) fn admit_offering(requirements: &mut Requirements, capacity_type: &str, zone: &str) {
    admit(requirements, labels::CAPACITY_TYPE, capacity_type);
    admit(requirements, labels::ZONE, zone);
}

/// Adds a value to those that an instance type lists: providers list what is available only.
fn admit(requirements: &mut Requirements, key: &str, value: &str) {
    let Some(requirement) = requirements
        .get(key)
        .filter(|requirement| !requirement.has(value))
    else {
        return;
    };
    let values = requirement
        .values()
        .map(str::to_owned)
        .chain([value.to_owned()])
        .collect::<Vec<_>>();
    requirements.replace(Requirement::new(key, Operator::In, values));
}

/// Removes relaxed constraints of other workloads from the cluster.
pub(super) fn relax_cluster<'a>(
    cluster: &mut Cluster,
    snapshot: &Snapshot,
    relaxed: impl Iterator<Item = &'a Atom>,
) {
    let mut terms: BTreeMap<&Workload, BTreeSet<usize>> = BTreeMap::new();
    for atom in relaxed {
        match atom {
            Atom::DaemonSet(namespace, name) => {
                cluster.remove_daemon_set(namespace, name);
            }
            Atom::OtherAntiAffinity(workload, term) => {
                terms.entry(workload).or_default().insert(*term);
            }
            _ => {}
        }
    }
    if terms.is_empty() {
        return;
    }
    for pod in snapshot.bound_pods().flat_map(|(_, pods)| pods.pods()) {
        if pod.shape.required_anti_affinity.is_empty() {
            continue;
        }
        if let Some(dropped) = terms.get(&Workload::of(pod)) {
            let mut shape = Shape::clone(&pod.shape);
            drop_if(&mut shape.required_anti_affinity, |at| {
                dropped.contains(&at)
            });
            cluster.insert_pod(Pod {
                shape: Arc::new(shape),
                ..Pod::clone(pod)
            });
        }
    }
}
