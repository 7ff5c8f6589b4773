//! The pods of a pass and their classes.

use std::sync::Arc;

use index_vec::IndexVec;

use crate::pod::Pod;
use crate::schedule::compile::algebra::{ANYTHING, SetId};
use crate::schedule::compile::ids::{ClassId, PodIdx};
use crate::schedule::pods::class::{Class, PodState};

/// A pod of the pass.
#[derive(Clone, Debug)]
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

impl QueuedPod {
    /// Forgets where the pod was placed.
    pub(crate) fn reset(&mut self) {
        self.state = PodState::Waiting;
        (self.requirements, self.volumes) = (ANYTHING, ANYTHING);
        self.dropped = 0;
    }
}

/// The pods of a pass, in the order in which first fit places them.
#[derive(Debug, Default)]
pub(crate) struct PodQueue {
    pub(crate) pods: IndexVec<PodIdx, QueuedPod>,
    pub(crate) classes: IndexVec<ClassId, Class>,
}

impl PodQueue {
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
