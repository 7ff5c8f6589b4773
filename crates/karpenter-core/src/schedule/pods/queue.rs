//! The pods of a pass and their classes.

use crate::pod::Pod;
use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::ids::{ClassId, PodIdx};
use crate::schedule::pods::class::{Class, PodState};
use index_vec::IndexVec;
use std::sync::Arc;

/// A pod of the pass.
#[derive(Debug)]
pub(crate) struct QueuedPod {
    pub(crate) pod: Arc<Pod>,
    pub(crate) class: ClassId,
    pub(crate) buffer: bool,
    /// It is pending or leaves a deleting node.
    pub(crate) waiting: bool,
    pub(crate) state: PodState,
    /// Its requirements at the variant at which it was placed: node selector and affinity; `volume` has those of its volumes.
    pub(crate) asked: SetId,
    pub(crate) volume: SetId,
    /// How many of its preferences it dropped to be placed.
    pub(crate) dropped: usize,
}

/// The pods of a pass, in the order in which first fit places them.
#[derive(Debug, Default)]
pub(crate) struct PodQueue {
    pub(crate) pods: IndexVec<PodIdx, QueuedPod>,
    pub(crate) classes: IndexVec<ClassId, Class>,
}
