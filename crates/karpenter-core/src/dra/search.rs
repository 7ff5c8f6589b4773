//! Finds devices for resource claims: depth first over claims, requests, alternatives and slots.
//!
//! Existing devices are tried before those that an instance type will publish, each group in a fixed order, and the first
//! complete choice is used; the order of alternatives is therefore the order of preference. The number of steps is limited.

use std::collections::BTreeMap;

use super::capacity::{Amounts, taken};
use super::ledger::{DeviceIndex, Devices, Holds, Host, Ledger, TypeKey};
use super::model::{Access, Attribute, ClaimSpec, Count, MAX_DEVICES_PER_CLAIM, SubRequest};
use super::selector::Selectors;
use crate::requirements::{AllowUndefined, Requirements};

/// A claim to satisfy, with the expressions of the device class of each alternative combined with its own.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// Its requests and constraints.
    pub spec: &'a ClaimSpec,
    /// Expressions by request and alternative.
    pub expressions: Vec<Vec<Vec<String>>>,
}

/// The common value of devices under a `matchAttribute` constraint.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Agreed {
    /// A known value.
    Value(Attribute),
    /// The unknown value of a group of devices in a pool.
    Group(usize, usize),
}

/// A partial choice of devices.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The requirements of the candidate.
    pub requirements: Requirements,
    /// The amounts it holds of each device, for the instance type of the search.
    pub holds: Holds,
    /// Devices by claim.
    pub picked: Vec<Vec<DeviceIndex>>,
    agreed: BTreeMap<(usize, usize), Agreed>,
}

impl Choice {
    /// Creates an empty choice.
    pub fn start(requirements: Requirements, holds: Holds, claims: usize) -> Self {
        Self {
            requirements,
            holds,
            picked: vec![Vec::new(); claims],
            agreed: BTreeMap::new(),
        }
    }
}

/// The state of a search.
pub struct Search<'a> {
    /// All devices of the pass.
    pub devices: &'a Devices,
    /// The devices held by other hosts.
    pub ledger: &'a Ledger,
    /// Evaluates expressions.
    pub selectors: &'a mut Selectors,
    /// The candidate.
    pub host: &'a Host,
    /// Name of the candidate, if it exists.
    pub node: Option<&'a str>,
    /// Keys the candidate may still define.
    pub undefined: AllowUndefined<'a>,
    /// The instance type of the search.
    pub key: TypeKey,
    /// The claims.
    pub claims: &'a [Wanted<'a>],
    /// Steps left.
    pub steps: &'a mut usize,
}

/// A position in the claims: claim, request, alternative.
#[derive(Clone, Copy)]
struct At {
    claim: usize,
    request: usize,
    alternative: usize,
}

impl Search<'_> {
    /// Returns the first complete choice.
    pub fn run(&mut self, start: Choice) -> Option<Choice> {
        self.request(0, 0, start)
    }

    fn request(&mut self, claim: usize, request: usize, choice: Choice) -> Option<Choice> {
        let Some(wanted) = self.claims.get(claim) else {
            return Some(choice);
        };
        let Some(asked) = wanted.spec.requests.get(request) else {
            return self.request(claim + 1, 0, choice);
        };
        (0..asked.alternatives.len()).find_map(|alternative| {
            let at = At {
                claim,
                request,
                alternative,
            };
            match asked.alternatives[alternative].count {
                Count::Exactly(count) => self.slots(at, count, None, choice.clone()),
                Count::All => {
                    let all = self.all(at, choice.clone())?;
                    self.request(claim, request + 1, all)
                }
            }
        })
    }

    fn slots(
        &mut self,
        at: At,
        left: usize,
        last: Option<DeviceIndex>,
        choice: Choice,
    ) -> Option<Choice> {
        if left == 0 {
            return self.request(at.claim, at.request + 1, choice);
        }
        for device in self.devices.of_type(self.key) {
            // Slots of one request are interchangeable: other orders of the same devices are the same choice.
            if last.is_some_and(|last| device <= last) || !self.usable_pool(device) {
                continue;
            }
            for next in self.take(at, device, &choice) {
                if let Some(found) = self.slots(at, left - 1, Some(device), next) {
                    return Some(found);
                }
            }
            if *self.steps == 0 {
                return None;
            }
        }
        None
    }

    fn usable_pool(&self, device: DeviceIndex) -> bool {
        let (pool, ..) = self.devices.at(device);
        pool.valid && pool.complete
    }

    /// Chooses every matching device that the candidate can access, all of which must be free.
    fn all(&mut self, at: At, mut choice: Choice) -> Option<Choice> {
        if self
            .devices
            .pools
            .iter()
            .any(|pool| !pool.valid || !pool.complete)
        {
            return None;
        }
        let mut found = false;
        for device in self.devices.of_type(self.key) {
            if !self.matches(at, device) || self.reach(device, &choice.requirements).is_empty() {
                continue;
            }
            choice = self.take(at, device, &choice).into_iter().next()?;
            found = true;
        }
        found.then_some(choice)
    }

    fn alternative(&self, at: At) -> &SubRequest {
        &self.claims[at.claim].spec.requests[at.request].alternatives[at.alternative]
    }

    fn matches(&mut self, at: At, index: DeviceIndex) -> bool {
        let (pool, _, place) = self.devices.at(index);
        let expressions = &self.claims[at.claim].expressions[at.request][at.alternative];
        self.selectors
            .matches(expressions, index, &pool.devices[place], &pool.driver)
    }

    /// Returns the alternative requirements of the candidate to access the device.
    fn reach(&self, device: DeviceIndex, current: &Requirements) -> Vec<Requirements> {
        let (pool, _, place) = self.devices.at(device);
        if !self.devices.exists(device) {
            return vec![current.clone()];
        }
        match &pool.devices[place].access {
            Access::AllNodes => vec![current.clone()],
            Access::Node(name) if self.node == Some(name) => vec![current.clone()],
            Access::Node(_) => vec![],
            Access::Selector(terms) => narrowed(current, terms, self.undefined),
        }
    }

    /// Returns the choices that use the device for a slot; none if it is not available.
    fn take(&mut self, at: At, device: DeviceIndex, choice: &Choice) -> Vec<Choice> {
        let Some(left) = self.steps.checked_sub(1) else {
            return vec![];
        };
        *self.steps = left;
        if choice.picked[at.claim].len() >= MAX_DEVICES_PER_CLAIM {
            return vec![];
        }
        let (pool, _, place) = self.devices.at(device);
        let taken = taken(&pool.devices[place], &pool.driver, self.alternative(at));
        let Some(amounts) = taken.filter(|amounts| self.free(device, amounts, &choice.holds))
        else {
            return vec![];
        };
        if !self.matches(at, device) {
            return vec![];
        }
        let Some(agreed) = self.agree(at, device, &choice.agreed) else {
            return vec![];
        };
        let mut next = choice.clone();
        next.agreed = agreed;
        next.picked[at.claim].push(device);
        let held = next.holds.entry(device).or_default();
        for (name, amount) in amounts {
            let held = held.entry(name).or_default();
            *held = held.saturating_add(amount);
        }
        self.reach(device, &choice.requirements)
            .into_iter()
            .map(|requirements| Choice {
                requirements,
                ..next.clone()
            })
            .collect()
    }

    /// Reports whether the device, the amounts of its capacities and its counters are free.
    fn free(&self, index: DeviceIndex, amounts: &Amounts, holds: &Holds) -> bool {
        let (pool, _, place) = self.devices.at(index);
        let device = &pool.devices[place];
        let own = holds.get(&index);
        let others = self.ledger.held_by_others(self.host, index);
        if !device.shareable {
            if own.is_some() || others {
                return false;
            }
        } else {
            let room = amounts.iter().all(|(name, amount)| {
                let own = own.and_then(|own| own.get(name)).copied();
                let others = self.ledger.amount_of_others(self.host, index, name);
                let held = own.unwrap_or_default().saturating_add(others);
                device
                    .capacity
                    .get(name)
                    .is_some_and(|c| held.saturating_add(*amount) <= c.value.nanos())
            });
            if !room {
                return false;
            }
        }
        if own.is_some() || others {
            // A shared device consumes its counters once.
            return true;
        }
        let drawn = self.devices.drawn(holds);
        self.devices.draws(index).all(|(key, value)| {
            let own = drawn.get(&key).copied().unwrap_or_default();
            let used = own.saturating_add(self.ledger.drawn_by_others(self.host, &key));
            let all = pool.counters.get(&key.1).and_then(|set| set.get(&key.2));
            all.is_some_and(|all| used.saturating_add(value) <= all.nanos())
        })
    }

    /// Returns the common values of the constraints including the device; `None` if it has another value.
    fn agree(
        &self,
        at: At,
        device: DeviceIndex,
        agreed: &BTreeMap<(usize, usize), Agreed>,
    ) -> Option<BTreeMap<(usize, usize), Agreed>> {
        let spec = self.claims[at.claim].spec;
        let request = &spec.requests[at.request];
        let (pool, pool_index, place) = self.devices.at(device);
        let mut agreed = agreed.clone();
        for (index, constraint) in spec.constraints.iter().enumerate() {
            if !constraint.covers(&request.name, &request.alternatives[at.alternative].name) {
                continue;
            }
            let known = pool.devices[place].attributes.get(&constraint.attribute);
            let group = || pool.bindings.get(&(place, constraint.attribute.clone()));
            let value = match known {
                Some(value) => Agreed::Value(value.clone()),
                None => Agreed::Group(pool_index, *group()?),
            };
            if agreed
                .entry((at.claim, index))
                .or_insert_with(|| value.clone())
                != &value
            {
                return None;
            }
        }
        Some(agreed)
    }
}

/// Returns `current` combined with each of the terms it is compatible with.
pub fn narrowed(
    current: &Requirements,
    terms: &[Requirements],
    undefined: AllowUndefined<'_>,
) -> Vec<Requirements> {
    terms
        .iter()
        .filter(|term| current.is_compatible(term, undefined))
        .map(|term| {
            let mut narrowed = current.clone();
            narrowed.add_all(term);
            narrowed
        })
        .collect()
}
