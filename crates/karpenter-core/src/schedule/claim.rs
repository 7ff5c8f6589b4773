//! A machine to be: what the pods placed on it so far leave open.

use std::{collections::BTreeSet, rc::Rc, sync::Arc};

use super::{algebra::SetId, bits::Bits, class::GroupId, vectors::Vector};
use crate::{dra::Allocation, pod::HostPort};

/// A claim of this run. Its requirements only narrow and its load only grows.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) template: usize,
    pub(super) set: SetId,
    pub(super) used: Vector,
    /// Items placed on it.
    pub(super) pods: Vec<u32>,
    /// A row that fits.
    pub(super) witness: u32,
    /// Rows that may still fit, roomiest first. May hold some that no longer do.
    pub(super) alive: Arc<Vec<u32>>,
    /// Rows that limits and host ports leave; `None` is all.
    pub(super) allowed: Option<Rc<Bits>>,
    pub(super) ports: Vec<HostPort>,
    /// Reservations it holds a machine of.
    pub(super) reservations: Rc<BTreeSet<usize>>,
    pub(super) min_values_relaxed: bool,
    /// What it counts against the limits of its NodePool.
    pub(super) charged: Vec<i64>,
    /// For each limit a row that takes this much of it.
    pub(super) charged_for: Vec<u32>,
    /// Pods counted by a group although their domain is still open: group and number.
    pub(super) pending: Vec<(GroupId, u32)>,
    /// Pods that a group does not count as long as the machine may be one that does not count for it: group and number.
    pub(super) uncounted: Vec<(GroupId, u32)>,
    /// Drivers of the devices its pods get, if some have claims.
    pub(super) drivers: Option<BTreeSet<String>>,
}

/// How a pod would fit on a claim.
#[derive(Clone, Debug)]
pub(super) struct Fit {
    pub(super) set: SetId,
    pub(super) witness: u32,
    pub(super) allowed: Option<Rc<Bits>>,
    /// Reservations it would hold; `None` if none are tracked.
    pub(super) reservations: Option<BTreeSet<usize>>,
    pub(super) min_values_relaxed: bool,
    pub(super) price: f64,
    /// What was taken of the alternatives that volumes leave.
    pub(super) volume: SetId,
    /// Devices the pod would get, if it has claims.
    pub(super) devices: Option<Rc<Allocation>>,
}

/// Why a pod does not fit on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It never will, in this run.
    Permanent,
    /// It may, when pods are counted elsewhere.
    Topology,
    /// Reserved capacity would do but is used up.
    Reserved,
}
