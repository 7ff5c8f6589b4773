//! The instance types of each class, kept until something about them changes.
//!
//! 1. A class whose shape is new gets a list of its own; what it has in common with other classes (labels, sizes) is shared.
//! 2. When only the market has moved (a price, a mark, a reservation's count), the offerings of the types concerned are made
//!    anew and the rest is taken over.
//! 3. When nothing has changed the same list is returned, so that the engine compiles it once.
//!
//! DIFFERS: upstream caches by parts of the class and by a count per instance type, and serves one class' offerings to
//! another for up to five minutes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use karpenter_core::{
    instance_type::InstanceType,
    offering::{Offering, Offerings},
    requirements::Requirements,
    resources::MEMORY,
};
use rustc_hash::FxHashMap;

use super::{
    InstanceTypeInfo, Shape, SizeSettings,
    capacity::{self, ResolvedKubelet, Size},
    compatibility::is_compatible,
    discovered::DiscoveredMemory,
    labels::{self, ClassLabels, Interner},
    offerings::{self, Grid, Market},
};
use crate::{
    api::{AmiFamily, BlockDeviceMapping, NetworkInterface},
    changes::Changed,
    kubelet::{Evaluator, ExpressionError, Kubelet},
};

/// What the instance types of all classes depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolverSettings {
    /// The region.
    pub region: String,
    /// Settings of the sizes.
    pub size: SizeSettings,
    /// The feature gate NodeClassCEL: expressions in kubelet settings are evaluated.
    pub expressions: bool,
}

/// Why a class has no instance types.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// EC2 has not been asked yet.
    #[error("no instance types are known yet")]
    NoInstanceTypes,
    /// EC2 has not been asked yet.
    #[error("no instance type offerings are known yet")]
    NoOfferings,
    /// The class has no subnets.
    #[error("no subnets found")]
    NoSubnets,
    /// Expressions in the kubelet settings do not compile, or fail for every type.
    #[error("kubelet settings cannot be evaluated: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Expressions(Vec<ExpressionError>),
}

/// The instance types of a class.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The types, ordered by name.
    pub types: Arc<[InstanceType]>,
    /// The kubelet's settings of each type.
    pub kubelets: Arc<[ResolvedKubelet]>,
    /// Expressions that failed for some type. A type whose number of pods is not known is left out.
    pub problems: Arc<[ExpressionError]>,
    /// How many types were looked at anew; zero when nothing has changed.
    pub refreshed: usize,
}

impl Resolved {
    /// The type of this name with its kubelet settings.
    pub fn get(&self, name: &str) -> Option<(&InstanceType, &ResolvedKubelet)> {
        let index = self
            .types
            .binary_search_by(|known| known.name.as_str().cmp(name))
            .ok()?;
        Some((&self.types[index], &self.kubelets[index]))
    }
}

/// Adds offerings to those of EC2, for environments that buy machines in further ways.
pub trait ExtraOfferings: Send + Sync {
    /// Further offerings of a type in a class.
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

/// What of a shape the sizes depend on.
#[derive(Clone, PartialEq, Eq, Hash)]
struct SizeKey {
    family: AmiFamily,
    kubelet: Kubelet,
    devices: Vec<BlockDeviceMapping>,
    raid0: bool,
    interfaces: Vec<NetworkInterface>,
}

/// The sizes of all types; none for a type whose number of pods cannot be evaluated.
struct Sizes {
    by_type: Vec<Option<Size>>,
    problems: Vec<ExpressionError>,
}

struct Snapshot {
    shape: Shape,
    seen: Seen,
    grid: Grid,
    /// For each type of the list its index among the infos.
    indices: Vec<usize>,
    resolved: Resolved,
    /// What classes share, kept alive.
    _shared: (Arc<[Requirements]>, Arc<Sizes>),
}

#[derive(Clone, PartialEq, Eq)]
struct Seen {
    resolver: u64,
    discovered: u64,
    shifted_zones: BTreeSet<String>,
    pricing: u64,
    unavailable: u64,
}

impl Seen {
    /// Whether at most prices and marks have changed.
    fn same_ground(&self, other: &Self) -> bool {
        self.resolver == other.resolver
            && self.discovered == other.discovered
            && self.shifted_zones == other.shifted_zones
    }
}

impl Resolver {
    /// A resolver that knows no instance types yet.
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

    /// Asks `extra` for offerings, too, after EC2's own.
    pub fn add_offerings(&mut self, extra: Box<dyn ExtraOfferings>) {
        self.extra.push(extra);
        self.forget();
    }

    /// Takes over what EC2 says about instance types; those with no architecture Kubernetes runs on are left out. Whether that
    /// changed anything.
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

    /// Takes over in which zones instance types are offered. Whether that changed anything.
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

    /// What EC2 says about the types, ordered by name.
    pub fn infos(&self) -> &[Arc<InstanceTypeInfo>] {
        &self.infos
    }

    /// The zones some type is offered in.
    pub fn zones(&self) -> &BTreeSet<String> {
        &self.zones
    }

    /// Forgets a class that is gone.
    pub fn remove(&mut self, uid: &str) {
        self.snapshots.remove(uid);
    }

    fn forget(&mut self) {
        self.version += 1;
        self.interner = Interner::default();
        self.labels.clear();
        self.sizes.clear();
    }

    /// The instance types of the class with this uid and shape.
    ///
    /// # Errors
    /// See [`ResolveError`].
    pub fn resolve(
        &mut self,
        uid: &str,
        shape: &Shape,
        discovered: &DiscoveredMemory,
        market: &Market<'_>,
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
        let seen = Seen {
            resolver: self.version,
            discovered: discovered.version(),
            shifted_zones: market.shifted_zones.clone(),
            pricing: market.pricing.changes().version(),
            unavailable: market.unavailable.changes().version(),
        };
        match self.snapshots.remove(uid) {
            Some(mut snapshot) if snapshot.shape == *shape && snapshot.seen.same_ground(&seen) => {
                self.refresh(&mut snapshot, seen, market);
                let resolved = snapshot.resolved.clone();
                self.snapshots.insert(uid.to_owned(), snapshot);
                Ok(resolved)
            }
            previous => {
                let mut snapshot = self.build(shape, seen, discovered, market)?;
                let resolved = snapshot.resolved.clone();
                // What the class says may have changed without consequences: then the old list is as good as the new one.
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

    /// Makes the offerings anew that the market has moved.
    fn refresh(&self, snapshot: &mut Snapshot, seen: Seen, market: &Market<'_>) {
        let types = &snapshot.resolved.types;
        // What is left in reservations is not counted as a change.
        let mut names = snapshot.shape.reserved_types();
        let mut everything = false;
        for changed in [
            market.pricing.changes().since(snapshot.seen.pricing),
            market
                .unavailable
                .changes()
                .since(snapshot.seen.unavailable),
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
            let offerings = self.offerings(info, &snapshot.shape, &snapshot.grid, market);
            if offerings != *types[position].offerings {
                changed.insert(position, offerings.into());
            }
        }
        snapshot.seen = seen;
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
        seen: Seen,
        discovered: &DiscoveredMemory,
        market: &Market<'_>,
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
            let offerings = self.offerings(info, shape, &grid, market);
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
            seen,
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
        market: &Market<'_>,
    ) -> Vec<Offering> {
        let none = BTreeSet::new();
        let offered = self.offered.get(&info.name).unwrap_or(&none);
        let compatible = is_compatible(info, shape);
        let mut all = offerings::offerings(info, shape, grid, offered, compatible, market);
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

    /// The labels of all types, shared by the classes with the same zones, system and placement group.
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

    /// The sizes of all types, shared by the classes with the same disks, interfaces and kubelet settings.
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
