//! The cluster, arranged once for all checks.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::labels::{self, annotations};
use karpenter_api::v1::NodePool;
use karpenter_core::cluster::pdb::PdbLimits;
use karpenter_core::cluster::{NodeState, Snapshot};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::overlay::offered;
use karpenter_core::pod::{DoNotDisrupt, LabelSelector, Pod, SelectorOp, Shape, do_not_disrupt};
use karpenter_core::requirements::{Requirement, Requirements};
use karpenter_core::schedule::{Cancel, Policy};
use karpenter_core::taints::Taint;
use rustc_hash::FxHashMap;

use super::check::Installation;
use crate::workload::Workload;

/// The age at which a pod of a Job that is protected counts as protected without an end.
const JOB: SignedDuration = SignedDuration::from_hours(24);

#[derive(Clone)]
pub struct Examination<'a> {
    pub snapshot: &'a Snapshot,
    /// The settings of scheduling simulations. Their time is that of the examination.
    pub policy: &'a Policy,
    /// Ends the search for savings.
    pub cancel: Option<Cancel>,
    /// Whether spot nodes may be replaced by spot nodes (feature gate).
    pub spot_to_spot: bool,
    /// What is known about the installation.
    pub installation: &'a Installation,
}

/// The cluster, arranged for the checks.
pub(super) struct Scan<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) now: Timestamp,
    pdbs: Vec<Pdb<'a>>,
    namespaces: FxHashMap<&'a str, OfNamespace>,
    limits: PdbLimits,
    /// The PodDisruptionBudgets that select pods of a shape; shapes are shared, and live as long as the snapshot.
    selected: RefCell<FxHashMap<usize, Arc<[usize]>>>,
    pools: Vec<Pool<'a>>,
    blockers: BTreeMap<&'a str, BTreeSet<Blocker>>,
}

/// What keeps a node from being drained.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Blocker {
    /// A PodDisruptionBudget, by its number, that allows no eviction now.
    Pdb(usize),
    /// Several PodDisruptionBudgets that select the same pod.
    SeveralPdbs(Arc<[usize]>),
    /// The annotation of a workload's pods.
    Protected(Workload, Protection),
    /// The annotation of the node.
    ProtectedNode,
}

/// How long a pod is protected from disruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Protection {
    /// Until a duration is over, or a Job.
    Passing,
    /// Without an end, by the annotation of this name.
    Endless(&'static str),
}

pub(super) struct Pdb<'a> {
    pub(super) object: &'a Arc<PodDisruptionBudget>,
    pub(super) selector: LabelSelector,
}

/// The PodDisruptionBudgets of a namespace.
#[derive(Default)]
struct OfNamespace {
    /// Those that require a label to have one value.
    by_label: FxHashMap<(String, String), Vec<usize>>,
    others: Vec<usize>,
}

impl<'a> Scan<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, now: Timestamp) -> Self {
        let mut pdbs = Vec::new();
        let mut namespaces: FxHashMap<&str, OfNamespace> = FxHashMap::default();
        for object in snapshot.pdbs() {
            let selector = object.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            let selector = LabelSelector::parse(selector);
            let index = pdbs.len();
            let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
            let of = namespaces.entry(namespace).or_default();
            match &selector {
                LabelSelector::Nothing => {}
                LabelSelector::Matching(expressions) => {
                    let single = expressions
                        .iter()
                        .find(|it| it.op == SelectorOp::In && it.values.len() == 1);
                    match single {
                        Some(it) => {
                            let label = (it.key.clone(), it.values[0].clone());
                            of.by_label.entry(label).or_default().push(index);
                        }
                        None => of.others.push(index),
                    }
                }
            }
            pdbs.push(Pdb { object, selector });
        }
        let mut scan = Self {
            snapshot,
            now,
            pdbs,
            namespaces,
            limits: PdbLimits::new(snapshot),
            selected: RefCell::default(),
            pools: snapshot
                .node_pools()
                .map(|pool| Pool::new(snapshot, pool))
                .collect(),
            blockers: BTreeMap::new(),
        };
        let blockers = scan.nodes().filter_map(|(node, pods)| {
            let blockers = scan.blockers_of(node, pods);
            (!blockers.is_empty()).then_some((node.name(), blockers))
        });
        let blockers = blockers.collect();
        scan.blockers = blockers;
        scan
    }

    fn blockers_of(&self, node: &NodeState, pods: &[Arc<Pod>]) -> BTreeSet<Blocker> {
        let mut blockers = BTreeSet::new();
        if node.annotations().get(annotations::DO_NOT_DISRUPT) == Some("true") {
            blockers.insert(Blocker::ProtectedNode);
        }
        for pod in pods {
            blockers.extend(self.blocker_of(pod));
        }
        blockers
    }

    pub(super) fn blocker_of(&self, pod: &Pod) -> Option<Blocker> {
        if pod.is_active() && do_not_disrupt(pod, self.now) == DoNotDisrupt::Yes {
            return Some(Blocker::Protected(Workload::of(pod), self.protection(pod)));
        }
        let selecting = self.pdbs_of(pod);
        if selecting.is_empty() || !self.limits.is_evictable(pod, self.now) {
            return None;
        }
        let counts = |index: &&usize| pod.ready || !self.pdbs[**index].spares_unready();
        let covering: Vec<usize> = selecting.iter().filter(counts).copied().collect();
        match covering.as_slice() {
            [] => None,
            [one] => (!self.pdbs[*one].allows_now()).then_some(Blocker::Pdb(*one)),
            _ => Some(Blocker::SeveralPdbs(covering.into())),
        }
    }

    fn protection(&self, pod: &Pod) -> Protection {
        let is_true = |key: &str| {
            pod.annotations
                .get(key)
                .is_some_and(|value| value == "true")
        };
        let endless = [annotations::DO_NOT_DISRUPT, annotations::DO_NOT_EVICT];
        let owner = pod.shape.controller.as_ref();
        let young = pod
            .created_at
            .is_none_or(|created| self.now.duration_since(created.time()) < JOB);
        let by_job = owner.is_some_and(|owner| owner.kind == "Job") && young;
        match endless.into_iter().find(|key| is_true(key)) {
            Some(key) if !by_job => Protection::Endless(key),
            _ => Protection::Passing,
        }
    }

    /// Returns what keeps each node from being drained, by node.
    pub(super) fn blockers(&self) -> &BTreeMap<&'a str, BTreeSet<Blocker>> {
        &self.blockers
    }

    pub(super) fn blocked_by(&self, blocker: &Blocker) -> BTreeSet<String> {
        let blocked = self.blockers.iter();
        let blocked = blocked.filter(|(_, all)| all.contains(blocker));
        blocked.map(|(node, _)| (*node).to_owned()).collect()
    }

    /// All PodDisruptionBudgets, by namespace and name.
    pub(super) fn pdbs(&self) -> &[Pdb<'a>] {
        &self.pdbs
    }

    /// All NodePools that are not being deleted, by name.
    pub(super) fn pools(&self) -> impl Iterator<Item = &Pool<'a>> {
        self.pools.iter().filter(|pool| !pool.pool.is_deleting())
    }

    /// Returns the PodDisruptionBudgets that select a pod, by namespace and name.
    pub(super) fn pdbs_of(&self, pod: &Pod) -> Arc<[usize]> {
        let key = Arc::as_ptr(&pod.shape) as usize;
        if let Some(known) = self.selected.borrow().get(&key) {
            return known.clone();
        }
        let found = self.select(&pod.shape);
        self.selected.borrow_mut().insert(key, found.clone());
        found
    }

    fn select(&self, shape: &Shape) -> Arc<[usize]> {
        let Some(of) = self.namespaces.get(shape.namespace.as_str()) else {
            return Arc::from([]);
        };
        let by_label = shape
            .labels
            .iter()
            .filter_map(|(key, value)| of.by_label.get(&(key.clone(), value.clone())));
        let candidates = by_label.flatten().chain(&of.others).copied();
        let matching = candidates.filter(|index| self.pdbs[*index].selector.matches(&shape.labels));
        let distinct: BTreeSet<usize> = matching.collect();
        distinct.into_iter().collect()
    }

    /// Iterates over the nodes of Karpenter that have joined the cluster, with their pods.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (&'a Arc<NodeState>, &'a [Arc<Pod>])> {
        let snapshot = self.snapshot;
        snapshot
            .nodes()
            .filter(|node| node.claim.is_some() && node.node.is_some())
            .map(|node| (node, snapshot.pods_on(node.name())))
    }
}

impl Pdb<'_> {
    pub(super) fn namespace(&self) -> &str {
        let namespace = self.object.metadata.namespace.as_deref();
        namespace.unwrap_or_default()
    }

    pub(super) fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns `namespace/name`.
    pub(super) fn id(&self) -> String {
        format!("{}/{}", self.namespace(), self.name())
    }

    pub(super) fn created_at(&self) -> Option<Timestamp> {
        let created = self.object.metadata.creation_timestamp.as_ref();
        created.map(|time| time.0)
    }

    /// Reports whether its status allows an eviction now.
    pub(super) fn allows_now(&self) -> bool {
        let status = self.object.status.as_ref();
        status.is_some_and(|status| status.disruptions_allowed.unwrap_or_default() > 0)
    }

    /// Reports whether a pod that is not ready may be evicted in any case.
    pub(super) fn spares_unready(&self) -> bool {
        let spec = self.object.spec.as_ref();
        let policy = spec.and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref());
        policy == Some("AlwaysAllow")
    }
}

/// A NodePool, with what it can launch.
pub(super) struct Pool<'a> {
    pub(super) pool: &'a Arc<NodePool>,
    /// Its requirements with its labels; `None` if they are invalid.
    pub(super) requirements: Option<Requirements>,
    pub(super) taints: Vec<Taint>,
    /// The provider's instance types after overlays; `None` if they are not known yet.
    pub(super) types: Option<Result<Arc<[InstanceType]>, &'a str>>,
    /// Those that meet the requirements, with an offering that does, available or not.
    pub(super) compatible: Vec<usize>,
    /// The zones of these offerings.
    pub(super) zones: BTreeSet<String>,
}

impl<'a> Pool<'a> {
    fn new(snapshot: &'a Snapshot, pool: &'a Arc<NodePool>) -> Self {
        let template = &pool.spec.template;
        let names = &snapshot.config().well_known;
        let requirements = Requirements::from_api(&template.spec.requirements, names);
        let labels = template.metadata.labels.iter().flatten();
        let requirements = requirements.ok().map(|mut all| {
            all.add_all(&Requirements::from_labels(labels, names));
            all
        });
        let types = match snapshot.instance_types(pool.name()) {
            None => None,
            Some(Err(error)) => Some(Err(error.as_str())),
            Some(Ok(_)) => offered(snapshot, pool).map(Ok),
        };
        let (mut compatible, mut zones) = (Vec::new(), BTreeSet::new());
        if let (Some(requirements), Some(Ok(types))) = (&requirements, &types) {
            for (index, it) in types.iter().enumerate() {
                if it.requirements.intersects(requirements).is_err() {
                    continue;
                }
                let mut any = false;
                for offering in &it.offerings {
                    if offering.requirements.intersects(requirements).is_ok() {
                        any = true;
                        if let Some(zone) = offering.zone().filter(|zone| !zones.contains(*zone)) {
                            zones.insert(zone.to_owned());
                        }
                    }
                }
                if any {
                    compatible.push(index);
                }
            }
        }
        let taints = template.spec.taints.iter().flatten();
        Self {
            pool,
            requirements,
            taints: taints.map(Taint::parse).collect(),
            types,
            compatible,
            zones,
        }
    }

    pub(super) fn name(&self) -> &'a str {
        self.pool.name()
    }

    /// Returns the instance types that can be launched.
    pub(super) fn launchable(&self) -> impl Iterator<Item = &InstanceType> {
        let types: &[InstanceType] = match &self.types {
            Some(Ok(types)) => types,
            _ => &[],
        };
        self.compatible.iter().filter_map(|index| types.get(*index))
    }

    /// Returns the requirements of a new node, with the labels that Karpenter adds.
    pub(super) fn node_requirements(&self) -> Option<Requirements> {
        let mut all = self.requirements.clone()?;
        for (key, value) in [
            (labels::NODE_POOL, self.name()),
            (labels::REGISTERED, "true"),
            (labels::INITIALIZED, "true"),
        ] {
            all.add(Requirement::equal(key, value));
        }
        Some(all)
    }

    /// Returns message and time of the condition NodeClassReady, if it is False.
    pub(super) fn not_ready_class(&self) -> Option<(String, Option<Timestamp>)> {
        let condition = self.pool.condition(types::NODE_CLASS_READY)?;
        (condition.status == "False").then(|| {
            let since = Some(condition.last_transition_time.0);
            (condition.message.clone(), since)
        })
    }
}
