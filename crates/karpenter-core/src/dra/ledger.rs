//! The device allocations of a pass.
//!
//! A planned node that may still become one of several instance types holds devices for each of them; only one of the types is
//! launched. Against other nodes it therefore counts with the *largest* amount over its types, and devices held for one type
//! alone are free again when the type is dropped. Devices that an instance will publish count only against its own planned node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::capacity::Amounts;
use super::pools::Pool;

/// Identifies a device among all devices of a pass.
pub type DeviceIndex = u32;

/// Identifies an instance type; chosen by the caller.
pub type TypeKey = u32;

/// The key of an existing node, whose instance type is fixed.
pub const RUNNING: TypeKey = TypeKey::MAX;

/// A holder of devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// Claims allocated in the cluster, on any node.
    Cluster,
    /// An existing node.
    Node(Arc<str>),
    /// A planned node.
    Planned(u32),
}

/// The amounts held of each device's capacities; empty for a device that is held as a whole.
pub type Holds = BTreeMap<DeviceIndex, Amounts>;

/// The key of a pool's counter: pool, counter set, counter.
pub type CounterKey = (usize, String, String);

/// Amounts consumed from counters, in nano-units.
pub type Drawn = BTreeMap<CounterKey, i128>;

/// The devices of a pass: existing ones first, then those expected of instance types.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    /// All pools.
    pub pools: Vec<Pool>,
    /// Pool, and index in the pool, of each device.
    places: Vec<(usize, usize)>,
    /// The number of existing devices; the others are expected.
    existing: usize,
    expected: BTreeMap<TypeKey, (DeviceIndex, DeviceIndex)>,
}

impl Devices {
    /// Creates the set of existing devices.
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

    /// Adds the devices that nodes of an instance type will publish; only the first call for a type has an effect.
    pub fn expect(&mut self, key: TypeKey, pools: impl IntoIterator<Item = Pool>) {
        if self.expected.contains_key(&key) {
            return;
        }
        let start = self.end();
        pools.into_iter().for_each(|pool| self.push(pool));
        self.expected.insert(key, (start, self.end()));
    }

    /// Iterates over the devices available to an instance type: existing ones, then those it will publish.
    pub fn of_type(&self, key: TypeKey) -> impl Iterator<Item = DeviceIndex> + use<> {
        let (start, end) = self.expected.get(&key).copied().unwrap_or_default();
        (0..DeviceIndex::try_from(self.existing).unwrap_or(DeviceIndex::MAX)).chain(start..end)
    }

    /// Reports whether the device exists, as opposed to being expected of an instance type.
    pub fn exists(&self, device: DeviceIndex) -> bool {
        (device as usize) < self.existing
    }

    /// Returns the device's pool, the index of the pool, and the index of the device in it.
    pub fn at(&self, device: DeviceIndex) -> (&Pool, usize, usize) {
        let (pool, place) = self.places[device as usize];
        (&self.pools[pool], pool, place)
    }

    /// Returns the existing device with this driver, pool and name.
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

    /// Iterates over the amounts that a device consumes from its pool's counters.
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

    /// Returns the amounts that `holds` consume from counters; a shared device consumes once.
    pub fn drawn(&self, holds: &Holds) -> Drawn {
        let mut drawn = Drawn::new();
        for (key, value) in holds.keys().flat_map(|device| self.draws(*device)) {
            add(&mut drawn, key, value);
        }
        drawn
    }
}

/// Adds to the amount of a key. Drivers may publish any amount: a sum saturates, which leaves nothing free.
fn add<K: Ord>(amounts: &mut BTreeMap<K, i128>, key: K, value: i128) {
    let amount = amounts.entry(key).or_default();
    *amount = amount.saturating_add(value);
}

/// Returns an amount less a part of it.
fn without(all: Option<&i128>, part: Option<&i128>) -> i128 {
    let (all, part) = (all.copied(), part.copied());
    all.unwrap_or_default()
        .saturating_sub(part.unwrap_or_default())
}

/// The amounts with which one host counts against others.
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

/// The devices held by each host.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    by_host: BTreeMap<Host, BTreeMap<TypeKey, Holds>>,
    peaks: BTreeMap<Host, Peak>,
    holders: BTreeMap<DeviceIndex, usize>,
    amounts: BTreeMap<(DeviceIndex, String), i128>,
    drawn: Drawn,
}

impl Ledger {
    /// Returns the devices that the host holds for one of its instance types.
    pub fn holds(&self, host: &Host, key: TypeKey) -> Holds {
        self.by_host
            .get(host)
            .and_then(|types| types.get(&key))
            .cloned()
            .unwrap_or_default()
    }

    /// Reports whether another host holds the device or a share of it.
    pub fn held_by_others(&self, host: &Host, device: DeviceIndex) -> bool {
        let own = self
            .peaks
            .get(host)
            .is_some_and(|peak| peak.devices.contains(&device));
        self.holders.get(&device).copied().unwrap_or_default() > usize::from(own)
    }

    /// Returns the amount of a capacity that other hosts hold.
    pub fn amount_of_others(&self, host: &Host, device: DeviceIndex, name: &str) -> i128 {
        let key = (device, name.to_owned());
        let own = self.peaks.get(host).and_then(|peak| peak.amounts.get(&key));
        without(self.amounts.get(&key), own)
    }

    /// Returns the amount that other hosts consume from a counter.
    pub fn drawn_by_others(&self, host: &Host, key: &CounterKey) -> i128 {
        let own = self.peaks.get(host).and_then(|peak| peak.drawn.get(key));
        without(self.drawn.get(key), own)
    }

    /// Replaces the devices that a host holds; types that are not listed hold nothing.
    pub fn set(&mut self, host: Host, by_type: BTreeMap<TypeKey, Holds>, devices: &Devices) {
        let peak = Peak::over(&by_type, devices);
        if let Some(old) = self.peaks.remove(&host) {
            self.count(&old, -1);
        }
        self.count(&peak, 1);
        self.peaks.insert(host.clone(), peak);
        self.by_host.insert(host, by_type);
    }

    /// Releases devices held for types for which `keep` returns false.
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
            add(&mut self.amounts, key.clone(), value.saturating_mul(sign));
        }
        for (key, value) in &peak.drawn {
            add(&mut self.drawn, key.clone(), value.saturating_mul(sign));
        }
    }
}
