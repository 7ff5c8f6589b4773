//! The pods of a pass and their classes.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;

use index_vec::IndexVec;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::pod::Pod;
use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::ids::{ClassId, PodIdx};
use crate::schedule::pods::class::{Class, PodState};
use crate::schedule::strategy::{Order, shuffled_rank};

/// What a plan leaves undone for some of its pods.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// How many preferences of the pods are not met in total.
    pub(crate) dropped: usize,
    pub(crate) unplaced: usize,
    /// Unplaced pods of each class. Pods of a class are interchangeable.
    pub(crate) left_out: BTreeMap<ClassId, usize>,
}

impl Outcome {
    /// Reports whether no more pods of any class are left out than in another plan.
    pub(crate) fn leaves_out_no_more_than(&self, other: &Self) -> bool {
        let mut left_out = self.left_out.iter();
        left_out.all(|(class, number)| other.left_out.get(class) >= Some(number))
    }
}

/// A pod of the pass.
#[derive(Debug)]
pub(crate) struct QueuedPod {
    pub(crate) pod: Arc<Pod>,
    pub(crate) class: ClassId,
    pub(crate) buffer: bool,
    /// It is pending or leaves a deleting node.
    pub(crate) waiting: bool,
    pub(crate) state: PodState,
    /// Its requirements at the variant at which it was placed: node selector and affinity.
    pub(crate) requirements: SetId,
    /// The requirements of its volumes there.
    pub(crate) volumes: SetId,
    /// How many of its preferences it dropped to be placed; once all pods are placed, how many are not met.
    pub(crate) dropped: usize,
}

/// The pods of a pass, in the order in which first fit places them.
#[derive(Debug, Default)]
pub(crate) struct PodQueue {
    pub(crate) pods: IndexVec<PodIdx, QueuedPod>,
    pub(crate) classes: IndexVec<ClassId, Class>,
}

impl PodQueue {
    /// Returns the pods in an order. `pods` is sorted by size.
    pub(crate) fn order(&self, order: Order) -> Vec<PodIdx> {
        let mut queue: Vec<PodIdx> = self.pods.indices().collect();
        let class = |pod: &PodIdx| &self.classes[self.pods[*pod].class];
        match order {
            Order::Size => {}
            Order::Memory => queue.sort_by_cached_key(|pod| {
                let requests = &class(pod).shape.requests;
                let memory = requests.get("memory").saturating_neg();
                (self.pods[*pod].buffer, memory, *pod)
            }),
            Order::Shuffled(number) => {
                self.shuffle(&mut queue, number, |pod| self.pods[pod].class);
            }
            Order::ShuffledShapes(number) => {
                self.shuffle(&mut queue, number, |pod| {
                    Arc::as_ptr(&self.classes[self.pods[pod].class].shape)
                });
            }
        }
        queue
    }

    /// Sorts pods kind by kind, in a pseudo-random order of the kinds.
    fn shuffle<K: Hash + Eq>(&self, queue: &mut [PodIdx], number: u32, kind: impl Fn(PodIdx) -> K) {
        let mut first: FxHashMap<K, PodIdx> = FxHashMap::default();
        for pod in queue.iter() {
            first.entry(kind(*pod)).or_insert(*pod);
        }
        queue.sort_by_cached_key(|pod| {
            let largest = first.get(&kind(*pod)).unwrap_or(pod);
            let rank = shuffled_rank(largest.0, number);
            (self.pods[*pod].buffer, rank, *pod)
        });
    }

    /// Returns the number of shapes. Only pods with volumes have classes of their own, so that without them it is that of the classes.
    pub(crate) fn shapes(&self) -> usize {
        let mut shapes = self.classes.iter().map(|class| &class.shape);
        if shapes.all(|shape| shape.volumes.is_empty()) {
            return self.classes.len();
        }
        let shapes = self.classes.iter().map(|class| Arc::as_ptr(&class.shape));
        shapes.collect::<FxHashSet<_>>().len()
    }

    /// Returns the outcome of the pods of capacity buffers, or of the others.
    pub(crate) fn outcome(&self, buffers: bool) -> Outcome {
        let mut outcome = Outcome::default();
        for queued in self.pods.iter().filter(|queued| queued.buffer == buffers) {
            outcome.dropped += queued.dropped;
            if !matches!(queued.state, PodState::Placed(_)) {
                outcome.unplaced += 1;
                *outcome.left_out.entry(queued.class).or_default() += 1;
            }
        }
        outcome
    }

    /// Returns the smallest request of any class, by resource; `width` is the number of resources.
    pub(crate) fn least_requests(&self, width: usize) -> Box<[i64]> {
        let least = |place: usize| {
            let classes = self.classes.iter();
            let requests = classes.filter(|class| class.problem.is_none());
            requests.map(|class| class.requests[place]).min()
        };
        (0..width).map(|place| least(place).unwrap_or(0)).collect()
    }
}
