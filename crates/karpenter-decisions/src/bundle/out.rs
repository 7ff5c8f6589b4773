//! The lines of a bundle between manifest and trailer, with the numbers of the values that they share.

use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::io;
use std::sync::Arc;

use karpenter_core::cluster::DaemonSet;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::pod::{Owner, Pod, Shape};
use karpenter_core::resources::Resources;
use rustc_hash::FxHashMap;

use super::rows::{DaemonSetRow, Indexed, Line, PassRow, PodRow, PoolTypes, Request};
use super::{RecordedPass, Settings};

/// Takes the lines between manifest and trailer.
pub(super) type Sink<'a> = dyn FnMut(Line) -> io::Result<()> + 'a;

/// Numbers of distinct values in the order in which they are met. A value is looked up by its address first: pods share it.
struct Table<T: ?Sized> {
    by_address: FxHashMap<usize, u32>,
    by_value: FxHashMap<Arc<T>, u32>,
}

impl<T: ?Sized + Eq + Hash> Table<T> {
    fn new() -> Self {
        Self {
            by_address: FxHashMap::default(),
            by_value: FxHashMap::default(),
        }
    }

    /// Returns the number of a value, and whether it is new.
    fn number(&mut self, value: &Arc<T>) -> (u32, bool) {
        let address = Arc::as_ptr(value).cast::<u8>() as usize;
        if let Some(known) = self.by_address.get(&address) {
            return (*known, false);
        }
        let next = u32::try_from(self.by_value.len()).unwrap_or(u32::MAX);
        let (number, new) = match self.by_value.entry(Arc::clone(value)) {
            Entry::Occupied(known) => (*known.get(), false),
            Entry::Vacant(entry) => (*entry.insert(next), true),
        };
        // INVARIANT: the table or the snapshot holds the value, so that no other value gets its address.
        self.by_address.insert(address, number);
        (number, new)
    }
}

/// The lines so far, with the values that later ones refer to by their numbers.
pub(super) struct Out<'a, 'b> {
    sink: &'a mut Sink<'b>,
    shapes: Table<Shape>,
    limits: Table<Resources>,
    owners: Table<[Owner]>,
    /// Numbers of instance types by their digests.
    types: FxHashMap<[u8; 32], u32>,
}

impl<'a, 'b> Out<'a, 'b> {
    pub(super) fn new(sink: &'a mut Sink<'b>) -> Self {
        Self {
            sink,
            shapes: Table::new(),
            limits: Table::new(),
            owners: Table::new(),
            types: FxHashMap::default(),
        }
    }

    pub(super) fn line(&mut self, line: Line) -> io::Result<()> {
        (self.sink)(line)
    }

    /// Returns the row of a pod, after the lines of the values that it refers to.
    pub(super) fn pod(&mut self, pod: &Pod) -> io::Result<PodRow> {
        let (shape, new) = self.shapes.number(&pod.shape);
        if new {
            let v = Shape::clone(&pod.shape);
            self.line(Line::Shapes(Indexed { i: shape, v }))?;
        }
        let (limits, new) = self.limits.number(&pod.limits);
        if new {
            let v = Resources::clone(&pod.limits);
            self.line(Line::Limits(Indexed { i: limits, v }))?;
        }
        let (owners, new) = self.owners.number(&pod.owners);
        if new {
            let v = pod.owners.to_vec();
            self.line(Line::Owners(Indexed { i: owners, v }))?;
        }
        Ok(PodRow {
            i: shape,
            limits,
            owners,
            pod: pod.clone(),
        })
    }

    pub(super) fn daemon_set(
        &mut self,
        set: &DaemonSet,
        newest: Option<&Pod>,
    ) -> io::Result<DaemonSetRow> {
        Ok(DaemonSetRow {
            namespace: set.namespace.clone(),
            name: set.name.clone(),
            uid: set.uid.clone(),
            template: self.pod(&set.template)?,
            template_has_affinity: set.template_has_affinity,
            newest: newest.map(|pod| self.pod(pod)).transpose()?,
        })
    }

    /// Returns the instance types of a NodePool by their numbers, after the lines of those that are new.
    pub(super) fn pool_types(
        &mut self,
        pool: &str,
        types: &Result<Arc<[InstanceType]>, String>,
    ) -> io::Result<PoolTypes> {
        let (types, error) = match types {
            Ok(types) => {
                let numbers = types.iter().map(|it| self.instance_type(it));
                (Some(numbers.collect::<io::Result<_>>()?), None)
            }
            Err(error) => (None, Some(error.clone())),
        };
        Ok(PoolTypes {
            pool: pool.to_owned(),
            types,
            error,
        })
    }

    fn instance_type(&mut self, instance_type: &InstanceType) -> io::Result<u32> {
        let next = u32::try_from(self.types.len()).unwrap_or(u32::MAX);
        let digest = blake3::hash(&serde_json::to_vec(instance_type)?);
        match self.types.entry(*digest.as_bytes()) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(entry) => {
                entry.insert(next);
                let v = instance_type.clone();
                self.line(Line::Types(Indexed { i: next, v }))?;
                Ok(next)
            }
        }
    }

    pub(super) fn pass(&mut self, pass: &RecordedPass) -> io::Result<PassRow> {
        Ok(PassRow {
            decision: pass.decision.clone(),
            request: self.request(&pass.settings)?,
            nominated: pass.nominated.clone(),
            consolidates: pass.consolidates,
        })
    }

    pub(super) fn request(&mut self, settings: &Settings) -> io::Result<Request> {
        let of_disruption = settings.request();
        let buffer_pods = settings.buffer_pods().iter().map(|pod| self.pod(pod));
        Ok(Request {
            policy: settings.policy().clone(),
            disruption: of_disruption.policy,
            surroundings: of_disruption.surroundings,
            spot_to_spot: of_disruption.spot_to_spot,
            max_replacements: of_disruption.multi_node.max_replacements,
            max_commands: of_disruption.max_commands,
            unseen_pools: of_disruption.unseen_pools,
            cooling_down_pools: of_disruption.cooling_down_pools,
            static_headroom: of_disruption.static_headroom,
            buffer_pods: buffer_pods.collect::<io::Result<_>>()?,
            gates: settings.gates.clone(),
            options: settings.options.clone(),
        })
    }
}
