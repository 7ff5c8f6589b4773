//! A planned node: the requirements and resources that the pods placed on it leave.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Index, IndexMut};
use std::rc::Rc;
use std::sync::Arc;

use index_vec::IndexVec;
use smallvec::smallvec;

use crate::dra::{Allocation, Failure};
use crate::pod::HostPort;
use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{
    GroupId, NO_ROW, PlannedId, PodIdx, ReservationId, RowId, TemplateId,
};
use crate::schedule::compile::pools::template::{Template, UnmetMinValues};
use crate::schedule::compile::vectors::Vector;
use crate::schedule::place::row_cache::RowCache;

/// A planned node of this pass. Its requirements only narrow and its load only grows.
#[derive(Clone, Debug)]
pub(crate) struct PlannedNode {
    pub(crate) template: TemplateId,
    pub(crate) set: SetId,
    pub(crate) used: Vector,
    /// The pods placed on it.
    pub(crate) pods: Vec<PodIdx>,
    /// A row that fits.
    pub(crate) witness: RowId,
    /// Rows that may still fit, roomiest first. May hold some that no longer do.
    pub(crate) alive: Arc<Vec<RowId>>,
    /// Rows that limits and host ports leave; `None` is all.
    pub(crate) allowed: Option<Rc<Bits<RowId>>>,
    pub(crate) ports: Vec<HostPort>,
    /// Reservations it holds an instance of.
    pub(crate) reservations: Rc<BTreeSet<ReservationId>>,
    pub(crate) min_values_relaxed: bool,
    /// Resources charged to the limits of its NodePool.
    pub(crate) charged: Vec<i64>,
    /// For each limit, a row that uses the charged amount.
    pub(crate) charged_for: Vec<RowId>,
    /// Pods of groups whose domain is still open: group and number.
    pub(crate) pending: Vec<(GroupId, u32)>,
    /// Pods that a group does not count yet, because the planned node may still fail its node filter: group and number.
    pub(crate) uncounted: Vec<(GroupId, u32)>,
    /// Drivers of the devices of its pods, if any pod has resource claims.
    pub(crate) drivers: Option<BTreeSet<String>>,
}

impl PlannedNode {
    /// Returns a planned node without pods.
    pub(crate) fn new(template: TemplateId, compiled: &Template, set: SetId, width: usize) -> Self {
        Self {
            template,
            set,
            used: smallvec![0; width],
            pods: Vec::new(),
            witness: NO_ROW,
            alive: compiled.order.clone(),
            allowed: None,
            ports: Vec::new(),
            reservations: Rc::default(),
            min_values_relaxed: false,
            charged: vec![0; compiled.limit_names.len()],
            charged_for: Vec::new(),
            pending: Vec::new(),
            uncounted: Vec::new(),
            drivers: None,
        }
    }

    /// Reports whether its pods need another row than before: it then is worth the time to look for others without room. Either
    /// answer is right, because rows are checked for room where they are used.
    pub(crate) fn moves_to(&self, witness: RowId) -> bool {
        self.witness != witness && self.witness != NO_ROW
    }

    /// Removes the rows that have no room for the pods already on it.
    pub(crate) fn prune(&mut self, rows: &mut RowCache<'_>) {
        let mask = rows.mask(self.template, self.set);
        let fits = |row: &RowId| {
            mask.rows.contains(*row) && rows.has_room(self.template, *row, &self.used)
        };
        self.alive = Arc::new(self.alive.iter().copied().filter(fits).collect());
    }

    /// Reports whether a request fits beside its pods.
    fn has_room_for(&self, requests: &[i64], rows: &RowCache<'_>) -> bool {
        let fits = |row: RowId| rows.row_fits(self.template, row, &self.used, requests);
        fits(self.witness) || self.alive.iter().copied().any(fits)
    }

    /// Returns the groups that do not count all its pods yet: its domain is open, or it might fail their node filter.
    pub(crate) fn not_counted(&self) -> impl Iterator<Item = GroupId> {
        let groups = self.pending.iter().chain(&self.uncounted);
        groups.map(|(group, _)| *group)
    }

    /// Returns the drivers of the devices of its pods, sorted and joined; empty without any.
    pub(crate) fn drivers(&self) -> Arc<str> {
        let drivers = self.drivers.iter().flatten();
        let drivers: Vec<&str> = drivers.map(String::as_str).collect();
        drivers.join(",").into()
    }
}

/// The planned nodes of a pass.
#[derive(Default)]
pub(crate) struct PlannedNodes {
    pub(crate) nodes: IndexVec<PlannedId, PlannedNode>,
    /// Planned nodes with free resources, by number of pods.
    pub(crate) levels: BTreeMap<u32, Bits<PlannedId>>,
    /// Planned nodes whose pods one required spread counts and a related one by another label does not yet, in the order in which pods
    /// joined them, so that a node may be listed several times.
    pub(crate) counted_in_part: Vec<PlannedId>,
    /// Planned nodes whose domain is fixed before a pod with a required spread is placed, because the spread counts pods on them that
    /// may have to be bound before.
    pub(crate) early: BTreeMap<GroupId, BTreeSet<PlannedId>>,
    /// Planned nodes with pods that a group does not count, because the planned node may still fail its node filter.
    pub(crate) unfiltered: BTreeSet<PlannedId>,
    /// The smallest request of any class, by resource: a planned node without this much room is closed.
    pub(crate) least: Box<[i64]>,
}

impl PlannedNodes {
    /// Adds a planned node without pods.
    pub(crate) fn push(&mut self, node: PlannedNode) -> PlannedId {
        let index = self.nodes.push(node);
        self.levels.entry(0).or_default().insert(index);
        index
    }

    /// Moves a planned node that got one more pod to the next level; closes it if nothing more fits.
    pub(crate) fn relevel(&mut self, index: PlannedId, rows: &RowCache<'_>) {
        let node = &self.nodes[index];
        let level = node.pods.len() as u32;
        let open = node.has_room_for(&self.least, rows);
        if let Some(before) = self.levels.get_mut(&(level - 1)) {
            before.remove(index);
            if before.is_empty() {
                self.levels.remove(&(level - 1));
            }
        }
        if open {
            self.levels.entry(level).or_default().insert(index);
        }
    }

    /// Returns the planned nodes with pods that a group counts once their domain is known.
    pub(crate) fn undecided(&self, group: GroupId) -> Vec<PlannedId> {
        let nodes = self.nodes.iter_enumerated();
        nodes
            .filter(|(_, node)| node.pending.iter().any(|(waiting, _)| *waiting == group))
            .map(|(index, _)| index)
            .collect()
    }
}

impl Index<PlannedId> for PlannedNodes {
    type Output = PlannedNode;

    #[inline]
    fn index(&self, id: PlannedId) -> &PlannedNode {
        &self.nodes[id]
    }
}

impl IndexMut<PlannedId> for PlannedNodes {
    #[inline]
    fn index_mut(&mut self, id: PlannedId) -> &mut PlannedNode {
        &mut self.nodes[id]
    }
}

/// The state of a planned node if a pod were placed on it.
#[derive(Clone, Debug)]
pub(crate) struct Fit {
    pub(crate) set: SetId,
    pub(crate) witness: RowId,
    pub(crate) allowed: Option<Rc<Bits<RowId>>>,
    /// Reservations it would hold; `None` if reservations are not tracked.
    pub(crate) reservations: Option<BTreeSet<ReservationId>>,
    pub(crate) min_values_relaxed: bool,
    pub(crate) price: f64,
    /// The alternative of the volume requirements that was chosen.
    pub(crate) volume: SetId,
    /// Devices the pod would be allocated, if it has resource claims.
    pub(crate) devices: Option<Rc<Allocation>>,
}

/// Why a pod does not fit on a planned node. Ids only: the report turns them into values for the pods that end unplaced.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Refusal {
    /// The NodePool's limit on `nodes` is reached.
    NodeLimit,
    /// No instance type is within the NodePool's limits.
    Limits,
    /// A taint is not tolerated.
    Taints,
    /// The requirements are incompatible.
    Requirements,
    /// A host port is in use.
    HostPorts,
    /// The requirements of the volumes are incompatible with the others.
    Volumes,
    /// No row that is left meets these requirements and has room.
    InstanceTypes(SetId),
    /// The rows that are left have fewer different values than minValues requires.
    MinValues(UnmetMinValues),
    /// A topology constraint leaves no domain for the pod, wherever it is placed.
    NoDomain(GroupId),
    /// A topology constraint leaves only domains, or no others, in which the pod does not fit.
    Topology(GroupId),
    /// No devices can be allocated.
    Devices(Box<Failure>),
    /// Only reserved capacity is compatible, and it is used up.
    Reserved,
}

impl Refusal {
    /// Reports whether the planned node, or a new one of the NodePool, refuses the pod in the rest of the pass too. Domains,
    /// devices and reservations can become available again.
    pub(crate) fn is_permanent(&self) -> bool {
        !matches!(
            self,
            Self::NoDomain(_) | Self::Topology(_) | Self::Devices(_) | Self::Reserved
        )
    }
}
