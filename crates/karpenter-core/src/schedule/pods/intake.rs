//! Collecting the pods of a pass: their order, their classes, and the groups that constrain or count the classes.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::pod::{
    InvalidPod, NodeTerm, Pod, Shape, SpreadConstraint, Toleration, UnixSecond, Weighted, validate,
};
use crate::requirements::{Operator, Requirement, Requirements};
use crate::schedule::compile::algebra::ANYTHING;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{ClassId, NodeIdx, TemplateId};
use crate::schedule::compile::node_affinity::{alternatives, with_term};
use crate::schedule::pass::SchedulingPass;
use crate::schedule::place::devices::{Devices, existing_claims};
use crate::schedule::pods::class::{Class, Owned, PodState, Soft, Variant};
use crate::schedule::pods::defaults::spread_of;
use crate::schedule::pods::queue::QueuedPod;
use crate::schedule::pods::volumes::Volumes;
use crate::schedule::report::reasons::Unschedulable;
use crate::schedule::request::{PodSet, PreferencePolicy};
use crate::schedule::topology::group::{GroupIdentity, GroupKind};
use crate::schedule::topology::identities::keys_of_counted_nodes;
use crate::taints::untolerated;

/// A pod with its sort keys.
struct Entrant {
    /// Its position in the queue: buffers' pods last, then by cpu and memory descending and by age.
    place: (bool, i64, i64, Option<UnixSecond>),
    /// The first bytes of its uid, which decide most comparisons of uids.
    uid: u128,
    pod: Arc<Pod>,
    waiting: bool,
}

impl SchedulingPass<'_> {
    /// Collects the pods, sorts them and forms their classes.
    pub(crate) fn collect(&mut self) {
        let solver = self.solver;
        let snapshot = &solver.snapshot;
        let mut pods: Vec<Entrant> = Vec::new();
        let mut enter = |pod: &Arc<Pod>, waiting: bool, buffer: bool| {
            let requests = &pod.shape.requests;
            let place = (
                buffer,
                requests.get("cpu").saturating_neg(),
                requests.get("memory").saturating_neg(),
                pod.created_at,
            );
            pods.push(Entrant {
                place,
                uid: first_bytes(&pod.key.uid),
                pod: pod.clone(),
                waiting,
            });
        };
        let query = self.query;
        if !matches!(query.pods, PodSet::Given(_)) {
            snapshot
                .unbound_pods()
                .filter(|pod| query.pods.includes(pod))
                .for_each(|pod| enter(pod, true, false));
            solver
                .bound
                .leaving
                .iter()
                .for_each(|pod| enter(pod, true, false));
        }
        let given = query.pods.given();
        given.iter().for_each(|pod| enter(pod, false, false));
        query
            .buffer_pods
            .iter()
            .for_each(|pod| enter(pod, false, true));
        pods.sort_unstable_by(|a, b| {
            (a.place.cmp(&b.place))
                .then_with(|| a.uid.cmp(&b.uid))
                .then_with(|| a.pod.key.uid.cmp(&b.pod.key.uid))
                .then_with(|| a.pod.key.cmp(&b.pod.key))
        });
        pods.dedup_by(|a, b| a.place.0 == b.place.0 && a.pod.key == b.pod.key);
        let mut class_of: FxHashMap<(*const Shape, bool), ClassId> = FxHashMap::default();
        for Entrant {
            place,
            pod,
            waiting,
            ..
        } in pods
        {
            let buffer = place.0;
            let validated = waiting && pod.node_name.is_none();
            let class = if pod.shape.volumes.is_empty() {
                let key = (Arc::as_ptr(&pod.shape), validated);
                match class_of.get(&key) {
                    Some(class) => *class,
                    None => {
                        let class = self.form_class(&pod, validated);
                        class_of.insert(key, class);
                        class
                    }
                }
            } else {
                self.form_class(&pod, validated)
            };
            self.queue.pods.push(QueuedPod {
                pod,
                class,
                buffer,
                waiting,
                state: PodState::Waiting,
                requirements: ANYTHING,
                volumes: ANYTHING,
                dropped: 0,
                scanned: false,
            });
        }
        self.devices = Devices::new(self.solver, &self.queue, &self.nodes.present);
        self.topology
            .count_existing_pods(&mut self.rows.algebra, &self.queue, &self.nodes);
        self.topology.link(&mut self.queue.classes);
        self.topology.order(&mut self.queue.classes);
        self.planned.least = self.queue.least_requests(self.solver.width());
    }

    fn form_class(&mut self, pod: &Pod, validated: bool) -> ClassId {
        let solver = self.solver;
        let snapshot = &solver.snapshot;
        let names = &snapshot.config().well_known;
        let shape = &pod.shape;
        let mut problems = if validated {
            validate(shape, names)
        } else {
            Vec::new()
        };
        let volumes = Volumes::resolve(snapshot, pod).unwrap_or_else(|problem| {
            problems.push(InvalidPod::Volume(problem));
            Volumes::default()
        });
        let mut claims = Ok(Vec::new());
        if !shape.resource_claims.is_empty() {
            if self.solver.policy.ignore_dra_requests {
                problems.push(InvalidPod::DynamicResources);
            } else {
                claims = existing_claims(self.solver, shape);
            }
        }
        let mut class = Class {
            shape: shape.clone(),
            requests: solver.dimensions.vector(&shape.requests),
            ports: shape.host_ports.clone(),
            volumes: Vec::new(),
            volume_requirements: volumes.alternatives,
            attached: volumes.attached,
            resource_claims: claims.as_ref().cloned().unwrap_or_default(),
            terms: alternatives(shape, &shape.required_nodes, names),
            term_sets: Vec::new(),
            hard: Vec::new(),
            bound_early: Vec::new(),
            relies_on: Vec::new(),
            seen_in_part: 0,
            counts_elsewhere: Vec::new(),
            soft: Soft::default(),
            kept_away: Vec::new(),
            counted: Vec::new(),
            keeps_away: Vec::new(),
            variants: Vec::new(),
            problem: None,
            unplaceable: false,
            refused_at: 0,
            refused_as: PodState::Refused,
            has_a_node: None,
            retryable: false,
        };
        self.unknown_resources |= solver.dimensions.misses(&shape.requests);
        class.volumes = class
            .volume_requirements
            .iter()
            .map(|all| self.rows.algebra.set(all, |key| names.contains(key)))
            .collect();
        class.term_sets = class
            .terms
            .iter()
            .map(|term| self.rows.algebra.set(term, |key| names.contains(key)))
            .collect();
        if class.volumes.is_empty() {
            class.volumes.push(ANYTHING);
        }
        match claims {
            _ if !problems.is_empty() => class.problem = Some(Unschedulable::Invalid(problems)),
            Err(failure) => class.problem = Some(Unschedulable::Devices(failure)),
            Ok(_) => self.constrain(&mut class),
        }
        class.variants.resize(class.variant_count(), None);
        self.queue.classes.push(class)
    }

    /// Finds or creates the groups that constrain a class.
    fn constrain(&mut self, class: &mut Class) {
        let names = &self.solver.snapshot.config().well_known;
        let shape = class.shape.clone();
        let respect = self.solver.policy.preference_policy == PreferencePolicy::Respect;
        let constraints = spread_of(
            &shape,
            &self.solver.policy.default_spread,
            &self.solver.snapshot,
        );
        let keys = self.missing_keys(&constraints);
        for constraint in constraints {
            if constraint.hard {
                let owned = self.spread_group(&shape, &class.terms, &constraint, &keys);
                class.hard.push(owned);
            } else if respect {
                let owned = self.spread_group(&shape, &class.terms, &constraint, &[]);
                class.soft.spread.push(owned.as_preference());
            }
        }
        for term in &shape.required_affinity {
            let owned = self.topology.group(
                &mut self.rows.algebra,
                &shape,
                GroupIdentity::required_affinity(term, &shape.required_affinity, names),
            );
            class.hard.push(owned);
        }
        for term in &shape.required_anti_affinity {
            let owned = self.topology.group(
                &mut self.rows.algebra,
                &shape,
                GroupIdentity::affinity(GroupKind::Anti, term, names),
            );
            class.hard.push(owned);
            let inverse = self.topology.group(
                &mut self.rows.algebra,
                &shape,
                GroupIdentity::inverse(term, names),
            );
            class.keeps_away.push(inverse.group);
        }
        if respect {
            for preferred in heaviest_first(&shape.preferred_affinity) {
                let owned = self.topology.group(
                    &mut self.rows.algebra,
                    &shape,
                    GroupIdentity::affinity(GroupKind::Affinity, &preferred.term, names),
                );
                class.soft.affinity.push(owned.as_preference());
            }
            for preferred in heaviest_first(&shape.preferred_anti_affinity) {
                let owned = self.topology.group(
                    &mut self.rows.algebra,
                    &shape,
                    GroupIdentity::affinity(GroupKind::Anti, &preferred.term, names),
                );
                class.soft.anti_affinity.push(owned.as_preference());
            }
            let preferred: Vec<&Weighted<NodeTerm>> = heaviest_first(&shape.preferred_nodes);
            class.soft.nodes = preferred
                .iter()
                .map(|preferred| with_term(&Requirements::new(), &preferred.term, names))
                .collect();
        }
        class.soft.tolerate = self.solver.has_soft_taints;
        let retryable = |owned: &Owned| {
            matches!(
                self.topology.groups[owned.group].kind(),
                GroupKind::Spread | GroupKind::Affinity
            )
        };
        class.retryable = class
            .hard
            .iter()
            .chain(&class.soft.spread)
            .chain(&class.soft.affinity)
            .any(retryable)
            || !class.resource_claims.is_empty();
    }

    /// Returns those labels that counted nodes have ([`keys_of_counted_nodes`]) and some nodes do not.
    fn missing_keys(&self, constraints: &[SpreadConstraint]) -> Vec<String> {
        let is_missing = |key: &str| {
            let exists = Requirement::new(key, Operator::Exists, [""; 0]);
            let with_label = self.solver.nodes_meeting(&exists);
            let mut nodes = self.solver.nodes.iter();
            let mut templates = self.solver.templates.iter();
            nodes.any(|(node, _)| !with_label.contains(node))
                || templates.any(|t| self.rows.algebra.requirements(t.set).get(key).is_none())
        };
        let names = &self.solver.snapshot.config().well_known;
        let keys = keys_of_counted_nodes(constraints, names);
        let missing = keys.into_iter().filter(|key| is_missing(key));
        missing.map(str::to_owned).collect()
    }

    /// Finds or creates the group of a spread constraint; `keys` are labels that counted nodes have.
    fn spread_group(
        &mut self,
        shape: &Shape,
        terms: &[Requirements],
        constraint: &SpreadConstraint,
        keys: &[String],
    ) -> Owned {
        let identity = GroupIdentity::spread(self.solver, shape, terms, constraint, keys);
        self.topology.group(&mut self.rows.algebra, shape, identity)
    }

    /// Returns the nodes that meet the requirements of a variant, with room for a pod of the class, before a pass.
    fn open_nodes(
        &self,
        class: ClassId,
        requirements: &Requirements,
        tolerations: &[Toleration],
    ) -> Bits<NodeIdx> {
        let class = &self.queue.classes[class];
        let mut nodes = self.solver.nodes_with_room(&class.requests);
        for requirement in requirements.iter() {
            nodes.intersect(&self.solver.nodes_meeting(requirement));
        }
        nodes.intersect(&self.solver.nodes_tolerated(tolerations));
        if !class.volume_requirements.is_empty() {
            let mut reachable = Bits::default();
            for alternative in &class.volume_requirements {
                reachable.unite(&self.solver.nodes_meeting_all(alternative));
            }
            nodes.intersect(&reachable);
        }
        nodes
    }

    /// Builds a variant: its requirements, and the nodes and templates that refuse it from the start.
    pub(crate) fn form_variant(&mut self, class: ClassId, index: usize) -> Box<Variant> {
        let names = &self.solver.snapshot.config().well_known;
        let known = |key: &str| names.contains(key);
        let (term, preferred, owned, tolerate) = self.queue.classes[class].demands(index);
        let strict = term.clone();
        let mut all = strict.clone();
        if let Some(preferred) = preferred {
            all.add_all(preferred);
        }
        let mut tolerations = self.queue.classes[class].shape.tolerations.clone();
        if tolerate {
            tolerations.push(Toleration::any_prefer_no_schedule());
        }
        let open = || self.open_nodes(class, &all, &tolerations);
        let pods = &self.queue.classes[class];
        let nodes = match pods.volume_requirements.is_empty() {
            // These nodes are the same for all pods of a shape.
            true => self.solver.open_nodes(&pods.shape, index, open),
            false => Arc::new(open()),
        };
        let templates = self.solver.templates.iter_enumerated();
        let tolerated_templates: Bits<TemplateId> = templates
            .filter(|(_, template)| untolerated(&template.taints, &tolerations).is_none())
            .map(|(index, _)| index)
            .collect();
        Box::new(Variant {
            set: self.rows.algebra.set(&all, known),
            strict: self.rows.algebra.set(&strict, known),
            alternative: index % self.queue.classes[class].terms.len(),
            tolerations: Arc::new(tolerations),
            owned,
            open_nodes: nodes,
            refused_planned: Bits::default(),
            refused_templates: Bits::default(),
            tolerated_templates,
        })
    }
}

/// Returns the first 16 bytes of a text as a number with the same order.
fn first_bytes(text: &str) -> u128 {
    let mut bytes = [0; 16];
    for (byte, first) in bytes.iter_mut().zip(text.bytes()) {
        *byte = first;
    }
    u128::from_be_bytes(bytes)
}

/// Sorts by weight, heaviest first; equal weights keep their order.
fn heaviest_first<T>(preferred: &[Weighted<T>]) -> Vec<&Weighted<T>> {
    let mut sorted: Vec<&Weighted<T>> = preferred.iter().collect();
    sorted.sort_by_key(|preferred| std::cmp::Reverse(preferred.weight));
    sorted
}
