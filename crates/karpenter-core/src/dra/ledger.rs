//! What a pass has given to whom.
//!
//! A claim that may still become one of several instance types holds devices for each of them; only one of the types comes
//! true. Against others it therefore counts with the *largest* amount over its types, and what a type held alone is free
//! again when the type is dropped. Devices that a machine would bring belong to that machine: they count against nobody else.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{capacity::Amounts, pools::Pool};

/// Identifies a device among all of a pass.
pub type DeviceIndex = u32;

/// Identifies an instance type to the allocator; the caller chooses.
pub type TypeKey = u32;

/// The type of a machine that runs: there is no choice any more.
pub const RUNNING: TypeKey = TypeKey::MAX;

/// Who holds devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// Claims allocated in the cluster, wherever they are.
    Cluster,
    /// A node that exists.
    Node(Arc<str>),
    /// A machine of the plan.
    Planned(u32),
}

/// What is held of each device: amounts of its capacities, empty for a device that is taken whole.
pub type Holds = BTreeMap<DeviceIndex, Amounts>;

/// A counter of a pool: pool, counter set, counter.
pub type CounterKey = (usize, String, String);

/// Amounts drawn from counters, in nano-units.
pub type Drawn = BTreeMap<CounterKey, i128>;

/// The devices of a pass: those that exist first, then those that instance types would bring.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    /// All pools.
    pub pools: Vec<Pool>,
    /// Pool and place in the pool of each device.
    places: Vec<(usize, usize)>,
    /// How many devices exist; the rest is expected.
    existing: usize,
    expected: BTreeMap<TypeKey, (DeviceIndex, DeviceIndex)>,
}

impl Devices {
    /// The devices that exist.
    pub fn new(pools: Vec<Pool>) -> Self {
        let mut devices = Self::default();
        pools.into_iter().for_each(|pool| devices.push(pool));
        devices.existing = devices.places.len();
        devices
    }

    fn push(&mut self, pool: Pool) {
        let index = self.pools.len();
        self.places
            .extend((0..pool.devices.len()).map(|place| (index, place)));
        self.pools.push(pool);
    }

    fn end(&self) -> DeviceIndex {
        DeviceIndex::try_from(self.places.len()).unwrap_or(DeviceIndex::MAX)
    }

    /// Adds the devices that machines of a type would bring; the first call for a type counts.
    pub fn expect(&mut self, key: TypeKey, pools: impl IntoIterator<Item = Pool>) {
        if self.expected.contains_key(&key) {
            return;
        }
        let start = self.end();
        pools.into_iter().for_each(|pool| self.push(pool));
        self.expected.insert(key, (start, self.end()));
    }

    /// The devices to look at for a machine of a type: existing ones, then its own.
    pub fn of_type(&self, key: TypeKey) -> impl Iterator<Item = DeviceIndex> + use<> {
        let (start, end) = self.expected.get(&key).copied().unwrap_or_default();
        (0..DeviceIndex::try_from(self.existing).unwrap_or(DeviceIndex::MAX)).chain(start..end)
    }

    /// Whether the device exists, rather than being expected of a machine.
    pub fn exists(&self, device: DeviceIndex) -> bool {
        (device as usize) < self.existing
    }

    /// The device's pool, the pool's index, and the device's place in it.
    pub fn at(&self, device: DeviceIndex) -> (&Pool, usize, usize) {
        let (pool, place) = self.places[device as usize];
        (&self.pools[pool], pool, place)
    }

    /// The existing device of this driver, pool and name.
    pub fn find(&self, driver: &str, pool: &str, name: &str) -> Option<DeviceIndex> {
        let found = self.places[..self.existing]
            .iter()
            .position(|(index, place)| {
                let candidate = &self.pools[*index];
                &*candidate.driver == driver
                    && &*candidate.name == pool
                    && candidate.devices[*place].name == name
            });
        found.and_then(|index| DeviceIndex::try_from(index).ok())
    }

    /// What a device draws from its pool's counters.
    pub fn draws(&self, device: DeviceIndex) -> impl Iterator<Item = (CounterKey, i128)> {
        let (pool, index, place) = self.at(device);
        pool.devices[place]
            .consumes
            .iter()
            .flat_map(move |(set, counters)| {
                counters.iter().map(move |(counter, value)| {
                    ((index, set.clone(), counter.clone()), value.nanos())
                })
            })
    }

    /// What `holds` draw from counters; a shared device draws once.
    pub fn drawn(&self, holds: &Holds) -> Drawn {
        let mut drawn = Drawn::new();
        for (key, value) in holds.keys().flat_map(|device| self.draws(*device)) {
            *drawn.entry(key).or_default() += value;
        }
        drawn
    }
}

/// What one host counts with against others.
#[derive(Clone, Debug, Default, PartialEq)]
struct Peak {
    devices: BTreeSet<DeviceIndex>,
    amounts: BTreeMap<(DeviceIndex, String), i128>,
    drawn: Drawn,
}

impl Peak {
    fn over(by_type: &BTreeMap<TypeKey, Holds>, devices: &Devices) -> Self {
        let mut peak = Self::default();
        for holds in by_type.values() {
            let existing: Holds = holds
                .iter()
                .filter(|(device, _)| devices.exists(**device))
                .map(|(device, amounts)| (*device, amounts.clone()))
                .collect();
            for (key, value) in devices.drawn(&existing) {
                let most = peak.drawn.entry(key).or_default();
                *most = value.max(*most);
            }
            for (device, amounts) in existing {
                peak.devices.insert(device);
                for (name, value) in amounts {
                    let most = peak.amounts.entry((device, name)).or_default();
                    *most = value.max(*most);
                }
            }
        }
        peak
    }
}

/// Who holds what.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    by_host: BTreeMap<Host, BTreeMap<TypeKey, Holds>>,
    peaks: BTreeMap<Host, Peak>,
    holders: BTreeMap<DeviceIndex, usize>,
    amounts: BTreeMap<(DeviceIndex, String), i128>,
    drawn: Drawn,
}

impl Ledger {
    /// What the host holds for one of its types.
    pub fn holds(&self, host: &Host, key: TypeKey) -> Holds {
        self.by_host
            .get(host)
            .and_then(|types| types.get(&key))
            .cloned()
            .unwrap_or_default()
    }

    /// Whether another host holds (a share of) the device.
    pub fn held_by_others(&self, host: &Host, device: DeviceIndex) -> bool {
        let own = self
            .peaks
            .get(host)
            .is_some_and(|peak| peak.devices.contains(&device));
        self.holders.get(&device).copied().unwrap_or_default() > usize::from(own)
    }

    /// How much of a capacity other hosts hold.
    pub fn amount_of_others(&self, host: &Host, device: DeviceIndex, name: &str) -> i128 {
        let key = (device, name.to_owned());
        let own = self.peaks.get(host).and_then(|peak| peak.amounts.get(&key));
        self.amounts.get(&key).copied().unwrap_or_default() - own.copied().unwrap_or_default()
    }

    /// How much other hosts draw from a counter.
    pub fn drawn_by_others(&self, host: &Host, key: &CounterKey) -> i128 {
        let own = self.peaks.get(host).and_then(|peak| peak.drawn.get(key));
        self.drawn.get(key).copied().unwrap_or_default() - own.copied().unwrap_or_default()
    }

    /// Replaces what a host holds; types that are not listed hold nothing.
    pub fn set(&mut self, host: Host, by_type: BTreeMap<TypeKey, Holds>, devices: &Devices) {
        let peak = Peak::over(&by_type, devices);
        if let Some(old) = self.peaks.remove(&host) {
            self.count(&old, -1);
        }
        self.count(&peak, 1);
        self.peaks.insert(host.clone(), peak);
        self.by_host.insert(host, by_type);
    }

    /// Frees what a host held for types that `keep` does not hold for.
    pub fn retain(&mut self, host: &Host, keep: impl Fn(TypeKey) -> bool, devices: &Devices) {
        let Some(types) = self.by_host.get(host) else {
            return;
        };
        if types.keys().all(|key| keep(*key)) {
            return;
        }
        let mut types = types.clone();
        types.retain(|key, _| keep(*key));
        self.set(host.clone(), types, devices);
    }

    fn count(&mut self, peak: &Peak, sign: i128) {
        for device in &peak.devices {
            let holders = self.holders.entry(*device).or_default();
            *holders = if sign > 0 {
                *holders + 1
            } else {
                holders.saturating_sub(1)
            };
        }
        for (key, value) in &peak.amounts {
            *self.amounts.entry(key.clone()).or_default() += sign * value;
        }
        for (key, value) in &peak.drawn {
            *self.drawn.entry(key.clone()).or_default() += sign * value;
        }
    }
}
