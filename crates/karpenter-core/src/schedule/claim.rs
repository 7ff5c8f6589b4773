//! A planned node: the requirements and resources that the pods placed on it leave.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use super::algebra::SetId;
use super::bits::Bits;
use super::class::GroupId;
use super::vectors::Vector;
use crate::dra::Allocation;
use crate::pod::HostPort;

/// A planned node of this pass. Its requirements only narrow and its load only grows.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) template: usize,
    pub(super) set: SetId,
    pub(super) used: Vector,
    /// Indices of the items placed on it.
    pub(super) pods: Vec<u32>,
    /// A row that fits.
    pub(super) witness: u32,
    /// Rows that may still fit, roomiest first. May hold some that no longer do.
    pub(super) alive: Arc<Vec<u32>>,
    /// Rows that limits and host ports leave; `None` is all.
    pub(super) allowed: Option<Rc<Bits>>,
    pub(super) ports: Vec<HostPort>,
    /// Reservations it holds an instance of.
    pub(super) reservations: Rc<BTreeSet<usize>>,
    pub(super) min_values_relaxed: bool,
    /// Resources charged to the limits of its NodePool.
    pub(super) charged: Vec<i64>,
    /// For each limit, a row that uses the charged amount.
    pub(super) charged_for: Vec<u32>,
    /// Pods of groups whose domain is still open: group and number.
    pub(super) pending: Vec<(GroupId, u32)>,
    /// Pods that a group does not count yet, because the planned node may still fail its node filter: group and number.
    pub(super) uncounted: Vec<(GroupId, u32)>,
    /// Drivers of the devices of its pods, if any pod has resource claims.
    pub(super) drivers: Option<BTreeSet<String>>,
}

/// The state of a planned node if a pod were placed on it.
#[derive(Clone, Debug)]
pub(super) struct Fit {
    pub(super) set: SetId,
    pub(super) witness: u32,
    pub(super) allowed: Option<Rc<Bits>>,
    /// Reservations it would hold; `None` if reservations are not tracked.
    pub(super) reservations: Option<BTreeSet<usize>>,
    pub(super) min_values_relaxed: bool,
    pub(super) price: f64,
    /// The alternative of the volume requirements that was chosen.
    pub(super) volume: SetId,
    /// Devices the pod would be allocated, if it has resource claims.
    pub(super) devices: Option<Rc<Allocation>>,
}

/// Why a pod does not fit on a planned node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The pod will not fit in this pass.
    Permanent,
    /// The pod may fit once pods are counted in other domains.
    Topology,
    /// Only reserved capacity is compatible, and it is used up.
    Reserved,
}
