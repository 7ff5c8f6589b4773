//! Writing a bundle, line by line.

use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::io::{self, Write};
use std::sync::Arc;

use karpenter_core::cluster::{DaemonSet, Snapshot};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::pod::{Owner, Pod, Shape};
use karpenter_core::resources::Resources;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::rows::{
    DaemonSetRow, Devices, Indexed, Line, Manifest, ManifestKind, PodRow, PoolTypes, Request,
    SECTIONS, Selector, Storage, Trailer, TrailerKind,
};
use super::{Bundle, SCHEMA, Settings, objects, recording};

/// The level of compression: a higher one takes twice as long for a tenth less.
const LEVEL: i32 = 3;

/// Writes a bundle. Memory beside the bundle is that of the compressor, and of the numbers of distinct shapes and instance types.
///
/// # Errors
/// Fails if the file cannot be written. The file is not valid then: its trailer is missing.
pub fn write(bundle: &Bundle, file: impl Write) -> io::Result<()> {
    let mut out = Lines {
        file: zstd::Encoder::new(file, LEVEL)?,
        hash: blake3::Hasher::new(),
        lines: 0,
        buffer: Vec::new(),
    };
    manifest(bundle, &mut out)?;
    if bundle.recording.is_empty() {
        sections(bundle, &mut |line| out.json(&line))?;
    } else {
        recording::sections(bundle, &mut |line| out.json(&line))?;
    }
    out.end()
}

/// Takes the lines of sections.
pub(super) type Sink<'a> = dyn FnMut(Line) -> io::Result<()> + 'a;

/// Passes on the lines of all sections but the changes, in their order.
pub(super) fn sections(bundle: &Bundle, out: &mut Sink<'_>) -> io::Result<()> {
    state(bundle, &bundle.snapshot, out).map(drop)
}

/// Passes on the lines of the sections with the state of `snapshot`, and with the settings and decisions of the bundle. Returns the
/// numbers that they refer to.
pub(super) fn state(
    bundle: &Bundle,
    snapshot: &Snapshot,
    out: &mut Sink<'_>,
) -> io::Result<Tables> {
    let settings = &bundle.settings;
    let mut tables = pods(snapshot, settings, out)?;
    nodes(snapshot, out)?;
    catalogue(snapshot, &mut tables.types, out)?;
    for (set, newest) in snapshot.daemon_sets() {
        let newest = newest.map(|pod| &**pod);
        let row = daemon_set(set, newest, &mut tables);
        out(Line::DaemonSets(Box::new(row)))?;
    }
    for budget in snapshot.pdbs() {
        out(Line::Pdbs(Box::new(objects::pdb(budget))))?;
    }
    selectors(snapshot, out)?;
    storage(snapshot, out)?;
    devices(snapshot, out)?;
    for marks in snapshot.marks() {
        out(Line::Marks(marks.into()))?;
    }
    out(Line::Requests(Box::new(request(settings, &mut tables))))?;
    for decision in &bundle.decisions {
        out(Line::Decisions(decision.clone()))?;
    }
    Ok(tables)
}

/// Lines that are counted, hashed and compressed.
struct Lines<W: Write> {
    file: zstd::Encoder<'static, W>,
    hash: blake3::Hasher,
    lines: u64,
    buffer: Vec<u8>,
}

impl<W: Write> Lines<W> {
    fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        self.buffer.clear();
        serde_json::to_writer(&mut self.buffer, value)?;
        self.buffer.push(b'\n');
        self.hash.update(&self.buffer);
        self.lines += 1;
        self.file.write_all(&self.buffer)
    }

    fn end(mut self) -> io::Result<()> {
        let trailer = Trailer {
            kind: TrailerKind::Trailer,
            lines: self.lines,
            blake3: self.hash.finalize().to_hex().to_string(),
        };
        serde_json::to_writer(&mut self.file, &trailer)?;
        self.file.write_all(b"\n")?;
        self.file.finish()?.flush()
    }
}

fn manifest<W: Write>(bundle: &Bundle, out: &mut Lines<W>) -> io::Result<()> {
    let manifest = Manifest {
        kind: ManifestKind::Manifest,
        schema: SCHEMA,
        engine: bundle.engine.clone(),
        at: bundle.at(),
        provider: bundle.provider.clone(),
        epoch: bundle.snapshot.epoch(),
        redact: bundle.redaction,
        sections: SECTIONS.iter().map(|name| (*name).to_owned()).collect(),
        config: bundle.snapshot.config().clone(),
    };
    out.json(&manifest)
}

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

/// The values that other lines refer to by their numbers.
pub(super) struct Tables {
    shapes: Table<Shape>,
    limits: Table<Resources>,
    owners: Table<[Owner]>,
    types: FxHashMap<[u8; 32], u32>,
}

impl Tables {
    /// Passes on the values of a pod that were not referred to before.
    pub(super) fn introduce(&mut self, pod: &Arc<Pod>, out: &mut Sink<'_>) -> io::Result<()> {
        if let (i, true) = self.shapes.number(&pod.shape) {
            let v = Shape::clone(&pod.shape);
            out(Line::Shapes(Indexed { i, v }))?;
        }
        if let (i, true) = self.limits.number(&pod.limits) {
            let v = Resources::clone(&pod.limits);
            out(Line::Limits(Indexed { i, v }))?;
        }
        if let (i, true) = self.owners.number(&pod.owners) {
            let v = pod.owners.to_vec();
            out(Line::Owners(Indexed { i, v }))?;
        }
        Ok(())
    }

    pub(super) fn row(&mut self, pod: &Pod) -> PodRow {
        let (shape, _) = self.shapes.number(&pod.shape);
        let (limits, _) = self.limits.number(&pod.limits);
        let (owners, _) = self.owners.number(&pod.owners);
        PodRow::new(pod, shape, limits, owners)
    }
}

fn pods(snapshot: &Snapshot, settings: &Settings, out: &mut Sink<'_>) -> io::Result<Tables> {
    let mut sorted: Vec<&Arc<Pod>> = snapshot.pods().collect();
    sorted.sort_unstable_by(|a, b| {
        (&a.key.namespace, &a.key.name).cmp(&(&b.key.namespace, &b.key.name))
    });
    let mut all: Vec<&Arc<Pod>> = sorted.clone();
    for (set, newest) in snapshot.daemon_sets() {
        all.push(&set.template);
        all.extend(newest);
    }
    all.extend(settings.buffer_pods());
    let mut tables = Tables {
        shapes: Table::new(),
        limits: Table::new(),
        owners: Table::new(),
        types: FxHashMap::default(),
    };
    for pod in &all {
        if let (i, true) = tables.shapes.number(&pod.shape) {
            let v = Shape::clone(&pod.shape);
            out(Line::Shapes(Indexed { i, v }))?;
        }
    }
    for pod in &all {
        if let (i, true) = tables.limits.number(&pod.limits) {
            let v = Resources::clone(&pod.limits);
            out(Line::Limits(Indexed { i, v }))?;
        }
    }
    for pod in &all {
        if let (i, true) = tables.owners.number(&pod.owners) {
            let v = pod.owners.to_vec();
            out(Line::Owners(Indexed { i, v }))?;
        }
    }
    for pod in sorted {
        out(Line::Pods(Box::new(tables.row(pod))))?;
    }
    Ok(tables)
}

fn nodes(snapshot: &Snapshot, out: &mut Sink<'_>) -> io::Result<()> {
    for node in snapshot.node_objects() {
        out(Line::Nodes(Box::new(objects::node(node))))?;
    }
    for claim in snapshot.node_claims() {
        out(Line::NodeClaims(Box::new(objects::node_claim(claim))))?;
    }
    for pool in snapshot.node_pools() {
        out(Line::NodePools(Box::new(objects::node_pool(pool))))?;
    }
    for overlay in snapshot.node_overlays() {
        out(Line::Overlays(Box::new(objects::node_overlay(overlay))))?;
    }
    Ok(())
}

/// Writes each distinct instance type once, and then the instance types of each NodePool by their numbers.
fn catalogue(snapshot: &Snapshot, numbers: &mut Numbers, out: &mut Sink<'_>) -> io::Result<()> {
    let mut pools = Vec::new();
    for pool in snapshot.instance_type_pools() {
        if let Some(types) = snapshot.instance_types(pool) {
            pools.push(pool_types(pool, types, numbers, out)?);
        }
    }
    pools
        .into_iter()
        .try_for_each(|row| out(Line::Catalogue(row)))
}

/// Numbers of instance types by their digests.
type Numbers = FxHashMap<[u8; 32], u32>;

impl Tables {
    /// Returns the instance types of a NodePool by their numbers; passes on those without one.
    pub(super) fn pool_types(
        &mut self,
        pool: &str,
        types: &Result<Arc<[InstanceType]>, String>,
        out: &mut Sink<'_>,
    ) -> io::Result<PoolTypes> {
        pool_types(pool, types, &mut self.types, out)
    }
}

fn pool_types(
    pool: &str,
    types: &Result<Arc<[InstanceType]>, String>,
    numbers: &mut Numbers,
    out: &mut Sink<'_>,
) -> io::Result<PoolTypes> {
    let listed = types.as_ref().map(|types| {
        let numbered = types.iter().map(|it| number(it, numbers, out));
        numbered.collect::<io::Result<Vec<u32>>>()
    });
    let (types, error) = match listed {
        Ok(listed) => (Some(listed?), None),
        Err(error) => (None, Some(error.clone())),
    };
    Ok(PoolTypes {
        pool: pool.to_owned(),
        types,
        error,
    })
}

fn number(
    instance_type: &InstanceType,
    numbers: &mut Numbers,
    out: &mut Sink<'_>,
) -> io::Result<u32> {
    let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
    let digest = blake3::hash(&serde_json::to_vec(instance_type)?);
    match numbers.entry(*digest.as_bytes()) {
        Entry::Occupied(known) => Ok(*known.get()),
        Entry::Vacant(entry) => {
            entry.insert(next);
            let v = instance_type.clone();
            out(Line::Types(Indexed { i: next, v }))?;
            Ok(next)
        }
    }
}

pub(super) fn daemon_set(
    set: &DaemonSet,
    newest: Option<&Pod>,
    tables: &mut Tables,
) -> DaemonSetRow {
    DaemonSetRow {
        namespace: set.namespace.clone(),
        name: set.name.clone(),
        uid: set.uid.clone(),
        template: tables.row(&set.template),
        template_has_affinity: set.template_has_affinity,
        newest: newest.map(|pod| tables.row(pod)),
    }
}

fn selectors(snapshot: &Snapshot, out: &mut Sink<'_>) -> io::Result<()> {
    for (namespace, name, selector) in snapshot.all_service_selectors() {
        out(Line::Selectors(Selector::Service {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            selector: selector.clone(),
        }))?;
    }
    for (kind, namespace, name, selector) in snapshot.controller_selectors() {
        out(Line::Selectors(Selector::Controller {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            selector: selector.clone(),
        }))?;
    }
    for (name, labels) in snapshot.namespaces() {
        out(Line::Selectors(Selector::Namespace {
            name: name.clone(),
            labels: labels.clone(),
        }))?;
    }
    Ok(())
}

fn storage(snapshot: &Snapshot, out: &mut Sink<'_>) -> io::Result<()> {
    let claims = snapshot.volume_claims().cloned().map(Storage::Claim);
    let volumes = snapshot.volumes().cloned().map(Storage::Volume);
    let classes = snapshot.storage_classes().cloned().map(Storage::Class);
    let limits = snapshot.all_attach_limits();
    let limits = limits.map(|(node, drivers)| Storage::AttachLimits {
        node: node.to_owned(),
        drivers: drivers.clone(),
    });
    let attachments = snapshot.volume_attachments().cloned();
    let all = claims.chain(volumes).chain(classes).chain(limits);
    let mut all = all.chain(attachments.map(Storage::Attachment));
    all.try_for_each(|row| out(Line::Storage(row)))
}

fn devices(snapshot: &Snapshot, out: &mut Sink<'_>) -> io::Result<()> {
    let slices = snapshot.resource_slices();
    let claims = snapshot.resource_claims();
    let classes = snapshot.device_classes();
    let mut all = slices
        .map(|slice| Devices::Slice(objects::resource_slice(slice)))
        .chain(claims.map(|claim| Devices::Claim(objects::resource_claim(claim))))
        .chain(classes.map(|class| Devices::Class(objects::device_class(class))));
    all.try_for_each(|row| out(Line::Devices(Box::new(row))))
}

pub(super) fn request(settings: &Settings, tables: &mut Tables) -> Request {
    let of_disruption = settings.request();
    let buffer_pods = settings.buffer_pods().iter();
    Request {
        policy: settings.policy().clone(),
        disruption: of_disruption.policy,
        surroundings: of_disruption.surroundings,
        spot_to_spot: of_disruption.spot_to_spot,
        max_replacements: of_disruption.multi_node.max_replacements,
        max_commands: of_disruption.max_commands,
        unseen_pools: of_disruption.unseen_pools,
        cooling_down_pools: of_disruption.cooling_down_pools,
        static_headroom: of_disruption.static_headroom,
        buffer_pods: buffer_pods.map(|pod| tables.row(pod)).collect(),
        gates: settings.gates.clone(),
        options: settings.options.clone(),
    }
}
