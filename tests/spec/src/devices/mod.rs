//! Checks whether devices satisfy the resource claims of pods where the pods are placed (section 17).
//!
//! A solution contains the nodes of pods, not the devices of their claims. So this module searches for an allocation by trying
//! all: first which of the shared devices each node, or each claim that several nodes use, may use, then whether those and the
//! node's local devices satisfy its claims for each of its instance types.

mod device;
mod request;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1 as wire;
use karpenter_core::requirements::Requirements;

use crate::pod;
use crate::world::World;
pub(crate) use device::{Device, of_type};
use device::{Reach, nanos, published, qualified, terms};
use request::{Alternative, Request, selects};

/// An existing or planned node with pods that use claims.
pub(crate) struct Place<'w> {
    /// Its name in messages.
    pub(crate) subject: String,
    /// The name of the node, if it is initialized: its published devices are local to it.
    pub(crate) node: Option<String>,
    /// The pods that use claims.
    pub(crate) pods: Vec<&'w Pod>,
    /// Returns whether every possible node of the place meets requirements.
    pub(crate) meets: Box<dyn Fn(&Requirements) -> bool + 'w>,
    /// The local devices: one entry per possible instance type, an empty one for an initialized node.
    pub(crate) devices: Vec<Vec<Device>>,
}

/// The state of a device for one place.
struct Slot<'d> {
    device: &'d Device,
    /// Whether another claim has it. It still counts for requests with the allocation mode `All`.
    taken: bool,
    left: BTreeMap<String, i128>,
}

type ClaimKey = (String, String);

/// Returns the claims that a pod uses, or None if one has not been created yet.
fn claims_of(pod: &Pod) -> Option<Vec<ClaimKey>> {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.resource_claim_statuses.as_ref());
    let mut names = Vec::new();
    for entry in pod::spec(pod).resource_claims.iter().flatten() {
        if let Some(name) = &entry.resource_claim_name {
            names.push(name.clone());
            continue;
        }
        let mut statuses = statuses.into_iter().flatten();
        let made = statuses.find(|status| status.name == entry.name)?;
        names.extend(made.resource_claim_name.clone());
    }
    let namespace = pod::namespace(pod).to_owned();
    Some(
        names
            .into_iter()
            .map(|name| (namespace.clone(), name))
            .collect(),
    )
}

/// Returns whether a pod uses claims.
pub(crate) fn has_claims(pod: &Pod) -> bool {
    pod::spec(pod)
        .resource_claims
        .is_some_and(|claims| !claims.is_empty())
}

/// Returns the pods whose claims are missing or cannot be satisfied where the pods are placed, as subject and rule.
///
/// `counts` selects the nodes whose devices count, `moves` the pods (by uid) to be moved: devices that only they hold are free.
pub(crate) fn unsatisfied(
    world: &World,
    places: &[Place<'_>],
    counts: &dyn Fn(&str) -> bool,
    moves: &dyn Fn(&str) -> bool,
) -> Vec<(String, String)> {
    let mut wrong = Vec::new();
    let mut open: BTreeMap<ClaimKey, (&wire::ResourceClaim, BTreeSet<usize>)> = BTreeMap::new();
    for (index, place) in places.iter().enumerate() {
        for pod in &place.pods {
            let name = pod::id(pod).name;
            let Some(keys) = claims_of(pod) else {
                wrong.push((
                    place.subject.clone(),
                    format!("{name} waits for a claim to be created"),
                ));
                continue;
            };
            for key in keys {
                let Some(claim) = find(world, &key) else {
                    wrong.push((
                        place.subject.clone(),
                        format!("{name} uses {key:?}, which does not exist"),
                    ));
                    continue;
                };
                match allocation(claim, moves) {
                    Some(held) => {
                        let selector = held.node_selector.as_ref().map(terms);
                        let here =
                            selector.is_none_or(|terms| terms.iter().any(|all| (place.meets)(all)));
                        if !here {
                            wrong.push((
                                place.subject.clone(),
                                format!("{name} uses {key:?}, which is not accessible there"),
                            ));
                        }
                    }
                    None => {
                        open.entry(key)
                            .or_insert_with(|| (claim, BTreeSet::new()))
                            .1
                            .insert(index);
                    }
                }
            }
        }
    }
    if !open.is_empty()
        && wrong.is_empty()
        && !Allocation::new(world, places, open, counts, moves).succeeds()
    {
        let subjects: Vec<&str> = places.iter().map(|place| place.subject.as_str()).collect();
        wrong.push((
            subjects.join(", "),
            "no devices satisfy all resource claims".to_owned(),
        ));
    }
    wrong
}

fn find<'w>(world: &'w World, key: &ClaimKey) -> Option<&'w wire::ResourceClaim> {
    world.resource_claims.iter().find(|claim| {
        (
            claim.metadata.namespace.as_ref(),
            claim.metadata.name.as_ref(),
        ) == (Some(&key.0), Some(&key.1))
    })
}

/// Returns the allocation of a claim, unless all pods that use it are to be moved.
fn allocation<'c>(
    claim: &'c wire::ResourceClaim,
    moves: &dyn Fn(&str) -> bool,
) -> Option<&'c wire::AllocationResult> {
    let status = claim.status.as_ref()?;
    let users = status.reserved_for.as_deref().unwrap_or_default();
    let leaving = !users.is_empty() && users.iter().all(|user| moves(&user.uid));
    status.allocation.as_ref().filter(|_| !leaving)
}

/// The claims to satisfy and the devices.
struct Allocation<'a> {
    world: &'a World,
    places: &'a [Place<'a>],
    /// Claims that only one place uses, by place.
    local: Vec<Vec<&'a wire::ResourceClaim>>,
    /// Claims that several places use, with the places.
    shared_claims: Vec<(&'a wire::ResourceClaim, BTreeSet<usize>)>,
    devices: Vec<Device>,
    /// The capacity left of each device: None if it is not shared and another claim has it.
    left: Vec<Option<BTreeMap<String, i128>>>,
    /// Free devices that are not local to one node.
    wide: Vec<usize>,
}

impl<'a> Allocation<'a> {
    fn new(
        world: &'a World,
        places: &'a [Place<'a>],
        open: BTreeMap<ClaimKey, (&'a wire::ResourceClaim, BTreeSet<usize>)>,
        counts: &dyn Fn(&str) -> bool,
        moves: &dyn Fn(&str) -> bool,
    ) -> Self {
        let devices = published(world, counts);
        let mut left: Vec<_> = devices
            .iter()
            .map(|device| Some(device.capacity.clone()))
            .collect();
        for claim in &world.resource_claims {
            let held = allocation(claim, moves).and_then(|held| held.devices.as_ref());
            for result in held
                .and_then(|held| held.results.as_ref())
                .into_iter()
                .flatten()
            {
                let same = |device: &Device| {
                    (&device.driver, &device.pool, &device.name)
                        == (&result.driver, &result.pool, &result.device)
                };
                let Some(index) = devices.iter().position(same) else {
                    continue;
                };
                if !devices[index].shared {
                    left[index] = None;
                }
                for (name, amount) in result.consumed_capacity.iter().flatten() {
                    if let Some(left) = left[index]
                        .as_mut()
                        .and_then(|left| left.get_mut(&qualified(name, &result.driver)))
                    {
                        *left -= nanos(amount);
                    }
                }
            }
        }
        let wide = (0..devices.len()).filter(|index| {
            left[*index].is_some() && !matches!(devices[*index].reach, Reach::Node(_))
        });
        let wide = wide.collect();
        let mut local = vec![Vec::new(); places.len()];
        let mut shared_claims = Vec::new();
        for (claim, users) in open.into_values() {
            match users.first() {
                Some(only) if users.len() == 1 => local[*only].push(claim),
                _ => shared_claims.push((claim, users)),
            }
        }
        Self {
            world,
            places,
            local,
            shared_claims,
            devices,
            left,
            wide,
        }
    }

    /// Returns whether the free devices that are not local can be assigned so that every claim is satisfied.
    fn succeeds(&self) -> bool {
        let users: Vec<User> = (0..self.places.len())
            .filter(|place| !self.local[*place].is_empty())
            .map(User::Place)
            .chain((0..self.shared_claims.len()).map(User::Claim))
            .collect();
        self.assign(&users, &mut vec![None; self.wide.len()], 0)
    }

    fn assign(&self, users: &[User], assigned: &mut Vec<Option<usize>>, next: usize) -> bool {
        if next == assigned.len() {
            return (0..users.len()).all(|user| {
                let own = |(place, _): &(usize, &usize)| assigned[*place] == Some(user);
                let own: BTreeSet<usize> = self
                    .wide
                    .iter()
                    .enumerate()
                    .filter(own)
                    .map(|(_, device)| *device)
                    .collect();
                self.is_satisfied(&users[user], &own)
            });
        }
        let choices = std::iter::once(None).chain((0..users.len()).map(Some));
        for choice in choices {
            assigned[next] = choice;
            if self.assign(users, assigned, next + 1) {
                return true;
            }
        }
        false
    }

    /// Returns whether one user is satisfied with these devices.
    fn is_satisfied(&self, user: &User, own: &BTreeSet<usize>) -> bool {
        match user {
            User::Place(place) => {
                let by_type = &self.places[*place].devices;
                by_type
                    .iter()
                    .all(|local| self.try_with(&self.local[*place], &[*place], own, local))
            }
            // Local devices of one node are not accessible from another.
            User::Claim(claim) => {
                let (claim, users) = &self.shared_claims[*claim];
                let users: Vec<usize> = users.iter().copied().collect();
                self.try_with(&[*claim], &users, own, &[])
            }
        }
    }

    fn try_with(
        &self,
        claims: &[&wire::ResourceClaim],
        places: &[usize],
        own: &BTreeSet<usize>,
        local: &[Device],
    ) -> bool {
        let reaches = |device: &Device| {
            places.iter().all(|place| {
                let place = &self.places[*place];
                match &device.reach {
                    Reach::Everywhere => true,
                    Reach::Node(name) => places_alone(places) && place.node.as_ref() == Some(name),
                    Reach::Nodes(terms) => terms.iter().any(|all| (place.meets)(all)),
                }
            })
        };
        let published = (self.devices.iter().enumerate()).filter(|(_, device)| reaches(device));
        let mut slots: Vec<Slot<'_>> = published
            .map(|(index, device)| {
                let mine = matches!(device.reach, Reach::Node(_)) || own.contains(&index);
                Slot {
                    device,
                    taken: !mine || self.left[index].is_none(),
                    left: self.left[index].clone().unwrap_or_default(),
                }
            })
            .collect();
        slots.extend(local.iter().map(|device| Slot {
            device,
            taken: false,
            left: device.capacity.clone(),
        }));
        let mut requests = Vec::new();
        for (claim, object) in claims.iter().enumerate() {
            let Some(devices) = &object.spec.devices else {
                continue;
            };
            for request in devices.requests.iter().flatten() {
                requests.push(Request {
                    claim,
                    constraints: devices.constraints.as_deref().unwrap_or_default(),
                    request,
                });
            }
        }
        self.grant(&requests, &mut slots, &mut Vec::new())
    }

    fn grant<'s>(
        &'s self,
        requests: &[Request<'s>],
        slots: &mut Vec<Slot<'s>>,
        picked: &mut Vec<(usize, String, &'s Device)>,
    ) -> bool {
        let Some((request, rest)) = requests.split_first() else {
            return true;
        };
        request.alternatives().iter().any(|alternative| {
            let Some(class) = self
                .world
                .device_classes
                .iter()
                .find(|class| class.metadata.name.as_deref() == Some(alternative.class))
            else {
                return false;
            };
            let selectors = class
                .spec
                .selectors
                .iter()
                .flatten()
                .chain(alternative.selectors.iter());
            let selectors: Vec<&str> = selectors
                .filter_map(|selector| Some(selector.cel.as_ref()?.expression.as_str()))
                .collect();
            match alternative.count {
                Some(count) => self.some(
                    &(request, alternative, &selectors),
                    count,
                    0,
                    rest,
                    slots,
                    picked,
                ),
                None => {
                    let (kept, known) = (
                        picked.clone(),
                        slots
                            .iter()
                            .map(|slot| (slot.taken, slot.left.clone()))
                            .collect::<Vec<_>>(),
                    );
                    let matching: Vec<usize> = (0..slots.len())
                        .filter(|index| {
                            selectors
                                .iter()
                                .all(|text| selects(text, slots[*index].device))
                        })
                        .collect();
                    let all = !matching.is_empty()
                        && matching
                            .iter()
                            .all(|index| take(request, alternative, &mut slots[*index], picked));
                    if all && self.grant(rest, slots, picked) {
                        return true;
                    }
                    *picked = kept;
                    for (slot, (taken, left)) in slots.iter_mut().zip(known) {
                        (slot.taken, slot.left) = (taken, left);
                    }
                    false
                }
            }
        })
    }

    fn some<'s>(
        &'s self,
        asked: &(&Request<'s>, &Alternative<'s>, &[&str]),
        count: usize,
        from: usize,
        rest: &[Request<'s>],
        slots: &mut Vec<Slot<'s>>,
        picked: &mut Vec<(usize, String, &'s Device)>,
    ) -> bool {
        if count == 0 {
            return self.grant(rest, slots, picked);
        }
        for index in from..slots.len() {
            let (request, alternative, selectors) = asked;
            if !selectors
                .iter()
                .all(|text| selects(text, slots[index].device))
            {
                continue;
            }
            let known = (slots[index].taken, slots[index].left.clone(), picked.len());
            if take(request, alternative, &mut slots[index], picked)
                && self.some(asked, count - 1, index + 1, rest, slots, picked)
            {
                return true;
            }
            (slots[index].taken, slots[index].left) = (known.0, known.1);
            picked.truncate(known.2);
        }
        false
    }
}

/// Returns whether local devices of a node may be used: by one place only.
fn places_alone(places: &[usize]) -> bool {
    places.len() == 1
}

enum User {
    Place(usize),
    Claim(usize),
}

/// Allocates a device, or the requested capacity of it, for a request; returns false if it cannot.
fn take<'s>(
    request: &Request<'s>,
    alternative: &Alternative<'s>,
    slot: &mut Slot<'s>,
    picked: &mut Vec<(usize, String, &'s Device)>,
) -> bool {
    if slot.taken {
        return false;
    }
    let device = slot.device;
    for constraint in request.constraints {
        let Some(attribute) = &constraint.match_attribute else {
            return false;
        };
        let covers = |name: &str| {
            let requests = constraint.requests.as_deref().unwrap_or_default();
            let request = name.split('/').next().unwrap_or_default();
            requests.is_empty()
                || requests
                    .iter()
                    .any(|covered| covered == name || covered == request)
        };
        let value = device.attributes.get(attribute);
        let mut others = picked
            .iter()
            .filter(|(claim, name, _)| *claim == request.claim && covers(name));
        let agrees =
            value.is_some() && others.all(|(_, _, other)| other.attributes.get(attribute) == value);
        if covers(&alternative.name) && !agrees {
            return false;
        }
    }
    let asked: BTreeMap<String, i128> = (alternative.capacity.iter())
        .flat_map(|capacity| capacity.requests.iter().flatten())
        .map(|(name, amount)| (qualified(name, &device.driver), nanos(amount)))
        .collect();
    if asked.keys().any(|name| !device.capacity.contains_key(name)) {
        return false;
    }
    let amount = |name: &String, all: i128| asked.get(name).copied().unwrap_or(all);
    if device
        .capacity
        .iter()
        .any(|(name, all)| amount(name, *all) > *all)
    {
        return false;
    }
    if device.shared {
        let enough = |(name, all): (&String, &i128)| {
            slot.left
                .get(name)
                .is_some_and(|left| amount(name, *all) <= *left)
        };
        if !device.capacity.iter().all(enough) {
            return false;
        }
        for (name, all) in &device.capacity {
            if let Some(left) = slot.left.get_mut(name) {
                *left -= amount(name, *all);
            }
        }
    } else {
        slot.taken = true;
    }
    picked.push((request.claim, alternative.name.clone(), device));
    true
}
