//! Allocates devices to the resource claims of pods, on existing nodes and planned nodes.
//!
//! A pass creates one [`Allocator`]. For each pod with resource claims and each candidate:
//!
//! 1. The pod waits until all of its claims exist.
//! 2. [`Allocator::allocate`] finds which instance types of the candidate can satisfy the claims, and the requirements of that.
//! 3. [`Allocator::commit`] records the allocation once the pod is placed there.
//! 4. [`Allocator::retain`] releases devices whenever the candidate's instance types shrink.

use std::collections::{BTreeMap, BTreeSet};

use super::capacity::Amounts;
use super::ledger::{DeviceIndex, Devices, Holds, Host, Ledger, RUNNING, TypeKey};
use super::model::{
    Claim, ClaimSpec, Class, Count, DeviceTemplate, MAX_DEVICES_PER_CLAIM, Problem, Slice,
};
use super::pools;
use super::search::{Choice, Search, Wanted, narrowed};
use super::selector::Selectors;
use crate::requirements::{AllowUndefined, Requirements};

/// The maximum number of devices that one allocation tries, over all instance types. Upstream has a limit of five seconds.
pub const STEPS: usize = 200_000;

/// The resource claims, device classes and resource slices of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// ResourceSlices by name.
    pub slices: BTreeMap<String, Slice>,
    /// DeviceClasses by name.
    pub classes: BTreeMap<String, Class>,
    /// ResourceClaims by namespace and name.
    pub claims: BTreeMap<(String, String), Claim>,
}

/// Why a pod's resource claims cannot be satisfied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The pod refers to a ResourceClaim that does not exist.
    #[error("resource claim `{claim}` does not exist")]
    ClaimMissing {
        /// Name of the claim.
        claim: String,
    },
    /// The ResourceClaim of a template has not been created yet.
    #[error("resource claim of template entry `{entry}` has not been created yet")]
    ClaimNotMade {
        /// The entry in the pod's spec.
        entry: String,
    },
    /// The claim refers to a DeviceClass that does not exist.
    #[error("device class `{class}` does not exist")]
    ClassMissing {
        /// Name of the class.
        class: String,
    },
    /// The claim or its DeviceClass is invalid or not supported.
    #[error("resource claim `{claim}` cannot be used: {problem}")]
    Unusable {
        /// Name of the claim.
        claim: String,
        /// Why it cannot be used.
        problem: Problem,
    },
    /// A device selector is not a valid CEL expression.
    #[error("resource claim `{claim}` has an invalid device selector `{expression}`")]
    Selector {
        /// Name of the claim.
        claim: String,
        /// The expression.
        expression: String,
    },
    /// The claim requests more devices than a claim can have.
    #[error("resource claim `{claim}` requests more than {MAX_DEVICES_PER_CLAIM} devices")]
    TooManyDevices {
        /// Name of the claim.
        claim: String,
    },
    /// The claim is allocated to devices that this candidate cannot access.
    #[error("resource claim `{claim}` is allocated to devices that the node cannot access")]
    Elsewhere {
        /// Name of the claim.
        claim: String,
    },
    /// No matching devices are left.
    #[error("no devices left that satisfy the resource claims")]
    NoDevices,
    /// The search reached its limit.
    #[error("resource claims are too complex to allocate")]
    TooComplex,
}

/// An existing or planned node on which devices are searched for a pod.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// The identity of the node.
    pub host: Host,
    /// Its requirements, narrowed by the pod and its volumes.
    pub requirements: &'a Requirements,
    /// Keys it may still define: for a planned node those that any node has, for an existing node none.
    pub undefined: AllowUndefined<'a>,
    /// Its instance types, cheapest first; empty for an existing node.
    pub types: &'a [TypeKey],
}

/// Devices for a pod's resource claims on a candidate.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// The instance types that can satisfy the claims, in the candidate's order; empty for an existing node.
    pub types: Vec<TypeKey>,
    /// The requirements of the candidate with these devices.
    pub requirements: Requirements,
    /// Drivers of the devices.
    pub drivers: BTreeSet<String>,
    holds: BTreeMap<TypeKey, Holds>,
    /// The claims that this allocation decides, and whether their devices are only expected of the planned node.
    decided: Vec<((String, String), bool)>,
}

/// A claim that the pass has decided.
#[derive(Clone, Debug)]
struct Decided {
    host: Host,
    expected: bool,
    requirements: Requirements,
}

/// Allocates devices to resource claims during one pass.
pub struct Allocator<'a> {
    inventory: &'a Inventory,
    devices: Devices,
    ledger: Ledger,
    selectors: Selectors,
    decided: BTreeMap<(String, String), Decided>,
    /// Claims reserved only for pods that the pass moves: their devices are free.
    released: BTreeSet<(String, String)>,
}

impl<'a> Allocator<'a> {
    /// Creates the allocator of a pass.
    ///
    /// `usable_node` reports whether a node that owns slices takes part in the pass and is initialized; `moving` reports whether a
    /// pod (by uid) is on a node that the pass removes.
    pub fn new(
        inventory: &'a Inventory,
        usable_node: impl Fn(&str) -> bool,
        moving: impl Fn(&str) -> bool,
    ) -> Self {
        let devices = Devices::new(pools::assemble(inventory.slices.values(), usable_node));
        let mut released = BTreeSet::new();
        let mut seeded = Holds::new();
        for (key, claim) in &inventory.claims {
            let Some(held) = &claim.held else { continue };
            if !claim.reserved_for.is_empty() && claim.reserved_for.iter().all(|uid| moving(uid)) {
                released.insert(key.clone());
                continue;
            }
            for held in &held.devices {
                let id = &held.id;
                let Some(index) = devices.find(&id.driver, &id.pool, &id.name) else {
                    continue;
                };
                let amounts: &mut Amounts = seeded.entry(index).or_default();
                for (name, amount) in &held.consumed {
                    let held = amounts.entry(name.clone()).or_default();
                    *held = held.saturating_add(amount.nanos());
                }
            }
        }
        let mut ledger = Ledger::default();
        ledger.set(Host::Cluster, BTreeMap::from([(RUNNING, seeded)]), &devices);
        let (selectors, decided) = (Selectors::default(), BTreeMap::new());
        Self {
            inventory,
            devices,
            ledger,
            selectors,
            decided,
            released,
        }
    }

    /// Registers the devices that nodes of an instance type will publish. Only the first call for a key has an effect.
    pub fn expect(&mut self, key: TypeKey, templates: &[DeviceTemplate]) {
        self.devices
            .expect(key, templates.iter().map(pools::expected));
    }

    /// Finds devices for the named claims of a namespace on the candidate. Nothing is allocated until [`commit`](Self::commit).
    pub fn allocate(
        &mut self,
        candidate: &Candidate<'_>,
        namespace: &str,
        claims: &[String],
    ) -> Result<Allocation, Failure> {
        let mut starts = vec![candidate.requirements.clone()];
        let mut open = Vec::new();
        let mut wanted = Vec::new();
        let inventory = self.inventory;
        for name in claims {
            let key = (namespace.to_owned(), name.clone());
            let missing = || Failure::ClaimMissing {
                claim: name.clone(),
            };
            let claim = inventory.claims.get(&key).ok_or_else(missing)?;
            if let Some(decided) = self.decided.get(&key) {
                if decided.host == candidate.host {
                    continue;
                }
                let terms = if decided.expected {
                    &[][..]
                } else {
                    std::slice::from_ref(&decided.requirements)
                };
                starts = self.narrow(starts, terms, candidate, name)?;
            } else if let Some(held) = claim
                .held
                .as_ref()
                .filter(|_| !self.released.contains(&key))
            {
                if let Some(terms) = &held.nodes {
                    starts = self.narrow(starts, terms, candidate, name)?;
                }
            } else {
                wanted.push(self.resolve(name, claim)?);
                open.push(key);
            }
        }
        self.search(candidate, starts, open, &wanted)
    }

    fn narrow(
        &self,
        starts: Vec<Requirements>,
        terms: &[Requirements],
        candidate: &Candidate<'_>,
        claim: &str,
    ) -> Result<Vec<Requirements>, Failure> {
        let narrowed: Vec<Requirements> = starts
            .iter()
            .flat_map(|start| narrowed(start, terms, candidate.undefined))
            .collect();
        let elsewhere = || Failure::Elsewhere {
            claim: claim.to_owned(),
        };
        if narrowed.is_empty() {
            Err(elsewhere())
        } else {
            Ok(narrowed)
        }
    }

    /// Checks a claim and combines the expressions of its device classes with its own.
    fn resolve<'c>(&mut self, name: &str, claim: &'c Claim) -> Result<Wanted<'c>, Failure> {
        let unusable = |problem: &Problem| Failure::Unusable {
            claim: name.to_owned(),
            problem: problem.clone(),
        };
        let spec = claim.spec.as_ref().map_err(unusable)?;
        if least_devices(spec) > MAX_DEVICES_PER_CLAIM {
            return Err(Failure::TooManyDevices {
                claim: name.to_owned(),
            });
        }
        let mut expressions = Vec::new();
        for request in &spec.requests {
            let mut by_alternative = Vec::new();
            for alternative in &request.alternatives {
                let missing = || Failure::ClassMissing {
                    class: alternative.class.clone(),
                };
                let class = self
                    .inventory
                    .classes
                    .get(&alternative.class)
                    .ok_or_else(missing)?;
                let class = class.as_ref().map_err(unusable)?;
                let all: Vec<String> = class
                    .iter()
                    .chain(&alternative.selectors)
                    .cloned()
                    .collect();
                if let Some(invalid) = all.iter().find(|text| !self.selectors.compiles(text)) {
                    let (claim, expression) = (name.to_owned(), invalid.clone());
                    return Err(Failure::Selector { claim, expression });
                }
                by_alternative.push(all);
            }
            expressions.push(by_alternative);
        }
        Ok(Wanted { spec, expressions })
    }

    fn search(
        &mut self,
        candidate: &Candidate<'_>,
        starts: Vec<Requirements>,
        open: Vec<(String, String)>,
        wanted: &[Wanted<'_>],
    ) -> Result<Allocation, Failure> {
        let running = [RUNNING];
        let types = if candidate.types.is_empty() {
            &running[..]
        } else {
            candidate.types
        };
        let node = match &candidate.host {
            Host::Node(name) => Some(&**name),
            Host::Cluster | Host::Planned(_) => None,
        };
        let mut allocation = Allocation {
            types: Vec::new(),
            requirements: candidate.requirements.clone(),
            drivers: BTreeSet::new(),
            holds: BTreeMap::new(),
            decided: open.into_iter().map(|key| (key, false)).collect(),
        };
        let mut steps = STEPS;
        // The requirements set by one instance type apply to the next: the planned node becomes one of them.
        let mut starts = starts;
        for key in types {
            let found = starts.iter().find_map(|start| {
                let holds = self.ledger.holds(&candidate.host, *key);
                let choice = Choice::start(start.clone(), holds, wanted.len());
                let mut search = Search {
                    devices: &self.devices,
                    ledger: &self.ledger,
                    selectors: &mut self.selectors,
                    host: &candidate.host,
                    node,
                    undefined: candidate.undefined,
                    key: *key,
                    claims: wanted,
                    steps: &mut steps,
                };
                search.run(choice)
            });
            let Some(choice) = found else { continue };
            let picked: Vec<(usize, DeviceIndex)> = (choice.picked.iter().enumerate())
                .flat_map(|(claim, picked)| picked.iter().map(move |device| (claim, *device)))
                .collect();
            for (claim, device) in picked {
                let (pool, ..) = self.devices.at(device);
                allocation.drivers.insert(pool.driver.to_string());
                allocation.decided[claim].1 |= !self.devices.exists(device);
            }
            allocation.types.extend((*key != RUNNING).then_some(*key));
            allocation.holds.insert(*key, choice.holds);
            starts = vec![choice.requirements];
        }
        match starts.pop() {
            _ if allocation.holds.is_empty() && steps == 0 => Err(Failure::TooComplex),
            Some(requirements) if !allocation.holds.is_empty() => {
                allocation.requirements = requirements;
                Ok(allocation)
            }
            _ => Err(Failure::NoDevices),
        }
    }

    /// Records an allocation, once the pod is placed.
    pub fn commit(&mut self, host: &Host, allocation: Allocation) {
        self.ledger
            .set(host.clone(), allocation.holds, &self.devices);
        for (key, expected) in allocation.decided {
            let requirements = allocation.requirements.clone();
            self.decided.insert(
                key,
                Decided {
                    host: host.clone(),
                    expected,
                    requirements,
                },
            );
        }
    }

    /// Releases devices that the host holds for instance types it can no longer become.
    pub fn retain(&mut self, host: &Host, keep: impl Fn(TypeKey) -> bool) {
        self.ledger
            .retain(host, |key| key == RUNNING || keep(key), &self.devices);
    }
}

/// Returns the smallest number of devices that satisfies the claim's exact counts.
fn least_devices(spec: &ClaimSpec) -> usize {
    let of_request = |alternatives: &[super::model::SubRequest]| {
        let counts = alternatives
            .iter()
            .map(|alternative| match alternative.count {
                Count::Exactly(count) => count,
                Count::All => 1,
            });
        counts.min().unwrap_or_default()
    };
    spec.requests.iter().fold(0, |sum: usize, request| {
        sum.saturating_add(of_request(&request.alternatives))
    })
}
