//! Cache of the instance types of each class.
//!
//! 1. A class with a new shape gets a new list; labels and sizes that it has in common with other classes are shared.
//! 2. If only the offering state has changed (a price, an unavailable pool, the count of a reservation), the offerings
//!    of the instance types concerned are recomputed and the rest is reused.
//! 3. If nothing has changed, the same list is returned, so that the engine compiles it once.
//!
//! DIFFERS: upstream caches by parts of the class and by a count per instance type, and returns offerings of one class
//! for another for up to five minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::{Offering, Offerings};
use karpenter_core::requirements::Requirements;
use karpenter_core::resources::MEMORY;
use rustc_hash::FxHashMap;

use super::capacity::{ResolvedKubelet, Size};
use super::compatibility::is_compatible;
use super::discovered::DiscoveredMemory;
use super::labels::{ClassLabels, Interner};
use super::offerings::{Grid, OfferingState};
use super::{InstanceTypeInfo, Shape, SizeSettings, capacity, labels, offerings};
use crate::api::{AmiFamily, BlockDeviceMapping, NetworkInterface};
use crate::kubelet::{Evaluator, ExpressionError, Kubelet};
use crate::providers::changes::Changed;

/// Inputs that the instance types of all classes depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolverSettings {
    pub region: String,
    /// Options that determine capacity and overhead.
    pub size: SizeSettings,
    /// The feature gate NodeClassCEL: expressions in kubelet settings are evaluated.
    pub expressions: bool,
}

/// The instance types of a class cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// DescribeInstanceTypes has not been answered yet.
    #[error("no instance types are known yet")]
    NoInstanceTypes,
    /// DescribeInstanceTypeOfferings has not been answered yet.
    #[error("no instance type offerings are known yet")]
    NoOfferings,
    /// The class has no subnets.
    #[error("no subnets found")]
    NoSubnets,
    /// Expressions in the kubelet settings do not compile, or fail for every instance type.
    #[error("cannot evaluate kubelet settings: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Expressions(Vec<ExpressionError>),
}

/// The instance types of a class.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// Instance types, ordered by name.
    pub types: Arc<[InstanceType]>,
    /// Kubelet settings of each instance type, in the same order.
    pub kubelets: Arc<[ResolvedKubelet]>,
    /// Expressions that failed for some instance type. A type without a number of pods is left out.
    pub problems: Arc<[ExpressionError]>,
    /// Number of recomputed instance types; zero if nothing has changed.
    pub refreshed: usize,
}

impl Resolved {
    /// Returns the instance type with this name and its kubelet settings.
    pub fn get(&self, name: &str) -> Option<(&InstanceType, &ResolvedKubelet)> {
        let index = self
            .types
            .binary_search_by(|known| known.name.as_str().cmp(name))
            .ok()?;
        Some((&self.types[index], &self.kubelets[index]))
    }
}

/// Adds offerings to those of EC2, for environments with further sources of instances.
pub trait ExtraOfferings: Send + Sync {
    /// Returns further offerings of an instance type in a class.
    fn offerings(&self, info: &InstanceTypeInfo, shape: &Shape) -> Vec<Offering>;
}

/// Resolves the instance types of classes.
pub struct Resolver {
    settings: ResolverSettings,
    infos: Vec<Arc<InstanceTypeInfo>>,
    offered: FxHashMap<String, BTreeSet<String>>,
    zones: BTreeSet<String>,
    version: u64,
    interner: Interner,
    labels: FxHashMap<ClassLabels, Weak<[Requirements]>>,
    sizes: FxHashMap<SizeKey, Weak<Sizes>>,
    snapshots: FxHashMap<String, Snapshot>,
    extra: Vec<Box<dyn ExtraOfferings>>,
}

/// The fields of a shape that sizes depend on.
#[derive(Clone, PartialEq, Eq, Hash)]
struct SizeKey {
    family: AmiFamily,
    kubelet: Kubelet,
    devices: Vec<BlockDeviceMapping>,
    raid0: bool,
    interfaces: Vec<NetworkInterface>,
}

/// Capacity and overhead of all instance types; none for a type whose number of pods cannot be evaluated.
struct Sizes {
    by_type: Vec<Option<Size>>,
    problems: Vec<ExpressionError>,
}

struct Snapshot {
    shape: Shape,
    versions: InputVersions,
    grid: Grid,
    /// For each instance type of the list its index among the infos.
    indices: Vec<usize>,
    resolved: Resolved,
    /// Values that classes share, kept alive.
    _shared: (Arc<[Requirements]>, Arc<Sizes>),
}

#[derive(Clone, PartialEq, Eq)]
struct InputVersions {
    resolver: u64,
    discovered: u64,
    shifted_zones: BTreeSet<String>,
    pricing: u64,
    unavailable: u64,
}

impl InputVersions {
    /// Returns whether at most the offering state has changed.
    fn same_inputs(&self, other: &Self) -> bool {
        self.resolver == other.resolver
            && self.discovered == other.discovered
            && self.shifted_zones == other.shifted_zones
    }
}

impl Resolver {
    /// Creates a resolver without instance types.
    pub fn new(settings: ResolverSettings) -> Self {
        Self {
            settings,
            infos: Vec::new(),
            offered: FxHashMap::default(),
            zones: BTreeSet::new(),
            version: 0,
            interner: Interner::default(),
            labels: FxHashMap::default(),
            sizes: FxHashMap::default(),
            snapshots: FxHashMap::default(),
            extra: Vec::new(),
        }
    }

    /// Adds a source of offerings, which come after EC2's own.
    pub fn add_offerings(&mut self, extra: Box<dyn ExtraOfferings>) {
        self.extra.push(extra);
        self.forget();
    }

    /// Replaces the instance types of EC2; those without an architecture that Kubernetes runs on are left out. Returns
    /// whether anything changed.
    pub fn update_types(&mut self, infos: Vec<InstanceTypeInfo>) -> bool {
        let mut infos: Vec<InstanceTypeInfo> = infos
            .into_iter()
            .filter(|info| !info.architectures.is_empty())
            .collect();
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        infos.dedup_by(|a, b| a.name == b.name);
        if self.infos.iter().map(|info| &**info).eq(&infos) {
            return false;
        }
        self.infos = infos.into_iter().map(Arc::new).collect();
        self.forget();
        true
    }

    /// Replaces the zones that instance types are offered in. Returns whether anything changed.
    pub fn update_offered_zones(
        &mut self,
        offered: impl IntoIterator<Item = (String, BTreeSet<String>)>,
    ) -> bool {
        let offered: FxHashMap<String, BTreeSet<String>> = offered.into_iter().collect();
        if self.offered == offered {
            return false;
        }
        self.zones = offered.values().flatten().cloned().collect();
        self.offered = offered;
        self.forget();
        true
    }

    /// Returns the instance types of EC2, ordered by name.
    pub fn infos(&self) -> &[Arc<InstanceTypeInfo>] {
        &self.infos
    }

    /// Returns the zones that at least one instance type is offered in.
    pub fn zones(&self) -> &BTreeSet<String> {
        &self.zones
    }

    /// Removes the cached list of a deleted class.
    pub fn remove(&mut self, uid: &str) {
        self.snapshots.remove(uid);
    }

    fn forget(&mut self) {
        self.version += 1;
        self.interner = Interner::default();
        self.labels.clear();
        self.sizes.clear();
    }

    /// Returns the instance types of the class with this uid and shape.
    ///
    /// # Errors
    /// See [`ResolveError`].
    pub fn resolve(
        &mut self,
        uid: &str,
        shape: &Shape,
        discovered: &DiscoveredMemory,
        state: &OfferingState<'_>,
    ) -> Result<Resolved, ResolveError> {
        if self.infos.is_empty() {
            return Err(ResolveError::NoInstanceTypes);
        }
        if self.offered.is_empty() {
            return Err(ResolveError::NoOfferings);
        }
        if shape.subnets.is_empty() {
            return Err(ResolveError::NoSubnets);
        }
        let versions = InputVersions {
            resolver: self.version,
            discovered: discovered.version(),
            shifted_zones: state.shifted_zones.clone(),
            pricing: state.pricing.changes().version(),
            unavailable: state.unavailable.changes().version(),
        };
        match self.snapshots.remove(uid) {
            Some(mut snapshot)
                if snapshot.shape == *shape && snapshot.versions.same_inputs(&versions) =>
            {
                self.refresh(&mut snapshot, versions, state);
                let resolved = snapshot.resolved.clone();
                self.snapshots.insert(uid.to_owned(), snapshot);
                Ok(resolved)
            }
            previous => {
                let mut snapshot = self.build(shape, versions, discovered, state)?;
                let resolved = snapshot.resolved.clone();
                // The spec may have changed without effect on the result; then the old list is reused.
                if let Some(previous) = previous
                    && previous.resolved.types == resolved.types
                {
                    snapshot.resolved.types = previous.resolved.types;
                }
                let types = Arc::clone(&snapshot.resolved.types);
                self.snapshots.insert(uid.to_owned(), snapshot);
                Ok(Resolved { types, ..resolved })
            }
        }
    }

    /// Recomputes the offerings whose state has changed.
    fn refresh(&self, snapshot: &mut Snapshot, versions: InputVersions, state: &OfferingState<'_>) {
        let types = &snapshot.resolved.types;
        // Counts of reservations are not tracked as changes.
        let mut names = snapshot.shape.reserved_types();
        let mut everything = false;
        for changed in [
            state.pricing.changes().since(snapshot.versions.pricing),
            state
                .unavailable
                .changes()
                .since(snapshot.versions.unavailable),
        ] {
            match changed {
                Changed::Everything => everything = true,
                Changed::These(more) => names.extend(more),
            }
        }
        let position_of = |name: &&str| types.binary_search_by(|t| t.name.as_str().cmp(name));
        let positions: Vec<usize> = match everything {
            true => (0..types.len()).collect(),
            false => names.iter().filter_map(|n| position_of(n).ok()).collect(),
        };
        let mut changed: BTreeMap<usize, Offerings> = BTreeMap::new();
        for position in positions {
            let info = &self.infos[snapshot.indices[position]];
            let offerings = self.offerings(info, &snapshot.shape, &snapshot.grid, state);
            if offerings != *types[position].offerings {
                changed.insert(position, offerings.into());
            }
        }
        snapshot.versions = versions;
        snapshot.resolved.refreshed = changed.len();
        if changed.is_empty() {
            return;
        }
        let anew = |(position, known): (usize, &InstanceType)| {
            let mut known = known.clone();
            if let Some(offerings) = changed.remove(&position) {
                known.offerings = offerings;
            }
            known
        };
        snapshot.resolved.types = types.iter().enumerate().map(anew).collect();
    }

    fn build(
        &mut self,
        shape: &Shape,
        versions: InputVersions,
        discovered: &DiscoveredMemory,
        state: &OfferingState<'_>,
    ) -> Result<Snapshot, ResolveError> {
        let class = ClassLabels {
            windows_build: shape.family.windows_build(),
            zones: shape
                .zones()
                .into_iter()
                .map(|(zone, id)| (zone.to_owned(), id.map(str::to_owned)))
                .collect(),
            placement_group: shape.placement_group.clone(),
        };
        let sizes = self.sizes(shape)?;
        let requirements = self.requirements(&class);
        let grid = Grid::new(&self.zones, shape);
        let reserved = shape.reserved_types();
        let mut types = Vec::with_capacity(self.infos.len());
        let mut kubelets = Vec::with_capacity(self.infos.len());
        let mut indices = Vec::with_capacity(self.infos.len());
        let infos = self.infos.clone();
        for (index, info) in infos.iter().enumerate() {
            let Some(size) = &sizes.by_type[index] else {
                continue;
            };
            let requirements = if reserved.contains(info.name.as_str()) {
                let offered = self.offered_in(&info.name);
                let reservations = shape.reservations.iter();
                let of_type: Vec<_> = reservations
                    .filter(|one| one.instance_type == info.name)
                    .collect();
                labels::requirements(
                    info,
                    &self.settings.region,
                    &class,
                    &offered,
                    &of_type,
                    &mut self.interner,
                )
            } else {
                requirements[index].clone()
            };
            let mut capacity = size.capacity.clone();
            if let Some(memory) = discovered.of(&shape.amis, &info.name, &requirements) {
                capacity.set(MEMORY, memory);
            }
            let offerings = self.offerings(info, shape, &grid, state);
            types.push(InstanceType {
                offerings: offerings.into(),
                overhead: size.overhead.clone(),
                ..InstanceType::new(&info.name, requirements, capacity)
            });
            kubelets.push(size.kubelet.clone());
            indices.push(index);
        }
        if types.is_empty() {
            return Err(ResolveError::Expressions(sizes.problems.clone()));
        }
        let refreshed = types.len();
        Ok(Snapshot {
            shape: shape.clone(),
            versions,
            grid,
            indices,
            resolved: Resolved {
                types: types.into(),
                kubelets: kubelets.into(),
                problems: sizes.problems.as_slice().into(),
                refreshed,
            },
            _shared: (requirements, sizes),
        })
    }

    fn offerings(
        &self,
        info: &InstanceTypeInfo,
        shape: &Shape,
        grid: &Grid,
        state: &OfferingState<'_>,
    ) -> Vec<Offering> {
        let none = BTreeSet::new();
        let offered = self.offered.get(&info.name).unwrap_or(&none);
        let compatible = is_compatible(info, shape);
        let mut all = offerings::offerings(info, shape, grid, offered, compatible, state);
        for extra in &self.extra {
            all.extend(extra.offerings(info, shape));
        }
        all
    }

    fn offered_in(&self, name: &str) -> Vec<String> {
        self.offered
            .get(name)
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Returns the labels of all instance types, shared by classes with the same zones, operating system and placement
    /// group.
    fn requirements(&mut self, class: &ClassLabels) -> Arc<[Requirements]> {
        if let Some(known) = self.labels.get(class).and_then(Weak::upgrade) {
            return known;
        }
        let infos = self.infos.clone();
        let mut all = Vec::with_capacity(infos.len());
        for info in &infos {
            let offered = self.offered_in(&info.name);
            all.push(labels::requirements(
                info,
                &self.settings.region,
                class,
                &offered,
                &[],
                &mut self.interner,
            ));
        }
        let all: Arc<[Requirements]> = all.into();
        self.labels.retain(|_, known| known.strong_count() > 0);
        self.labels.insert(class.clone(), Arc::downgrade(&all));
        all
    }

    /// Returns the sizes of all instance types, shared by classes with the same disks, interfaces and kubelet settings.
    fn sizes(&mut self, shape: &Shape) -> Result<Arc<Sizes>, ResolveError> {
        let key = SizeKey {
            family: shape.family,
            kubelet: shape.kubelet.clone(),
            devices: shape.devices.clone(),
            raid0: shape.raid0,
            interfaces: shape.interfaces.clone(),
        };
        if let Some(known) = self.sizes.get(&key).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let kubelet = Evaluator::new(&shape.kubelet, self.settings.expressions)
            .map_err(ResolveError::Expressions)?;
        let mut sizes = Sizes {
            by_type: Vec::with_capacity(self.infos.len()),
            problems: Vec::new(),
        };
        for info in &self.infos {
            match capacity::size(info, shape, &kubelet, self.settings.size) {
                Ok((size, problems)) => {
                    sizes.by_type.push(Some(size));
                    sizes.problems.extend(problems);
                }
                Err(problem) => {
                    sizes.by_type.push(None);
                    sizes.problems.push(problem);
                }
            }
        }
        let sizes = Arc::new(sizes);
        self.sizes.retain(|_, known| known.strong_count() > 0);
        self.sizes.insert(key, Arc::downgrade(&sizes));
        Ok(sizes)
    }
}
