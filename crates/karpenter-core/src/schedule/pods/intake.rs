//! Collecting the pods of a pass: their order, and their classes.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::dra::Failure;
use crate::pod::{InvalidPod, Pod, Shape, UnixSecond, validate};
use crate::schedule::compile::algebra::{ANYTHING, Algebra};
use crate::schedule::compile::ids::ClassId;
use crate::schedule::compile::node_affinity::alternatives;
use crate::schedule::compile::solver::Solver;
use crate::schedule::pods::class::{Class, Links, PodState};
use crate::schedule::pods::queue::{PodQueue, QueuedPod};
use crate::schedule::pods::volumes::Volumes;
use crate::schedule::reasons::Unschedulable;
use crate::schedule::request::{PodSet, Query};

/// A pod with its sort keys.
struct Entrant {
    /// Its position in the queue: buffers' pods last, then by cpu and memory descending and by age.
    place: (bool, i64, i64, Option<UnixSecond>),
    /// The first bytes of its uid, which decide most comparisons of uids.
    uid: u128,
    pod: Arc<Pod>,
    waiting: bool,
}

impl PodQueue {
    /// Collects the pods of a query, sorts them and forms their classes, each of which `link` completes. Returns `None` if a pod
    /// requests a resource that the solver was not compiled for, so that no node was checked for it.
    pub(crate) fn collect(
        solver: &Solver,
        query: &Query,
        algebra: &mut Algebra,
        mut link: impl FnMut(&mut Algebra, &mut Class),
    ) -> Option<Self> {
        let mut queue = Self::default();
        let mut class_of: FxHashMap<(*const Shape, bool), ClassId> = FxHashMap::default();
        for entrant in sorted(solver, query) {
            let (pod, waiting) = (entrant.pod, entrant.waiting);
            let validated = waiting && pod.node_name.is_none();
            // Pods of one shape have different volumes.
            let key = (Arc::as_ptr(&pod.shape), validated);
            let known = class_of.get(&key);
            let class = match known.filter(|_| pod.shape.volumes.is_empty()) {
                Some(class) => *class,
                None => {
                    if solver.dimensions.misses(&pod.shape.requests) {
                        return None;
                    }
                    let mut class = Class::of(solver, algebra, &pod, validated);
                    if class.problem.is_none() {
                        link(algebra, &mut class);
                    }
                    let class = queue.classes.push(class);
                    class_of.insert(key, class);
                    class
                }
            };
            queue.pods.push(QueuedPod {
                pod,
                class,
                buffer: entrant.place.0,
                waiting,
                state: PodState::Waiting,
                requirements: ANYTHING,
                volumes: ANYTHING,
                dropped: 0,
            });
        }
        Some(queue)
    }
}

/// Returns the pods of a query in the order of the queue.
fn sorted(solver: &Solver, query: &Query) -> Vec<Entrant> {
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
    if !matches!(query.pods, PodSet::Given(_)) {
        let pending = solver.snapshot.unbound_pods();
        let pending = pending.filter(|pod| query.pods.includes(pod));
        let leaving = solver.bound.leaving.iter();
        pending
            .chain(leaving)
            .for_each(|pod| enter(pod, true, false));
    }
    let given = query.pods.given().iter();
    given.for_each(|pod| enter(pod, false, false));
    let buffers = query.buffer_pods.iter();
    buffers.for_each(|pod| enter(pod, false, true));
    pods.sort_unstable_by(|a, b| {
        (a.place.cmp(&b.place))
            .then_with(|| a.uid.cmp(&b.uid))
            .then_with(|| a.pod.key.uid.cmp(&b.pod.key.uid))
            .then_with(|| a.pod.key.cmp(&b.pod.key))
    });
    pods.dedup_by(|a, b| a.place.0 == b.place.0 && a.pod.key == b.pod.key);
    pods
}

impl Class {
    /// Forms the class of a pod, without its links.
    fn of(solver: &Solver, algebra: &mut Algebra, pod: &Pod, validated: bool) -> Self {
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
            if solver.policy.ignore_dra_requests {
                problems.push(InvalidPod::DynamicResources);
            } else {
                claims = existing_claims(solver, shape);
            }
        }
        let (resource_claims, failure) = match claims {
            Ok(claims) => (claims, None),
            Err(failure) => (Vec::new(), Some(failure)),
        };
        let problem = match problems.is_empty() {
            true => failure.map(Unschedulable::Devices),
            false => Some(Unschedulable::Invalid(problems)),
        };
        let terms = alternatives(shape, &shape.required_nodes, names);
        let mut interned = |all: &[_]| {
            let sets = all.iter();
            sets.map(|all| algebra.set(all, |key| names.contains(key)))
                .collect::<Vec<_>>()
        };
        let mut sets = interned(&volumes.alternatives);
        let term_sets = interned(&terms);
        if sets.is_empty() {
            sets.push(ANYTHING);
        }
        Self {
            shape: shape.clone(),
            requests: solver.dimensions.vector(&shape.requests),
            volumes: sets,
            volume_requirements: volumes.alternatives,
            attached: volumes.attached,
            resource_claims,
            terms,
            term_sets,
            problem,
            links: Links::default(),
        }
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

/// Returns the names of the resource claims that pods of a shape use.
///
/// For an entry with a template, the pod's status has the name of the created claim; an entry that the status lists without a
/// name needs no claim. DIFFERS: a pod waits if the status does not list an entry yet; upstream ignores the entry.
fn claims_of(shape: &Shape) -> Result<Vec<String>, Failure> {
    let names = shape.resource_claims.iter().filter_map(|entry| {
        if entry.claim.is_none() && !entry.made {
            let entry = entry.name.clone();
            return Some(Err(Failure::ClaimNotMade { entry }));
        }
        entry.claim.clone().map(Ok)
    });
    names.collect()
}

/// Returns the resource claims that pods of a shape use; an error if one does not exist.
fn existing_claims(solver: &Solver, shape: &Shape) -> Result<Vec<String>, Failure> {
    let claims = claims_of(shape)?;
    let known = &solver.inventory().claims;
    let exists = |claim: &&String| {
        let key = (shape.namespace.clone(), (*claim).clone());
        known.contains_key(&key)
    };
    match claims.iter().find(|claim| !exists(claim)) {
        Some(claim) => Err(Failure::ClaimMissing {
            claim: claim.clone(),
        }),
        None => Ok(claims),
    }
}
