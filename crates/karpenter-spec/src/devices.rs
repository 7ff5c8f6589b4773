//! Whether the resource claims of pods can be served where the pods were put (section 17).
//!
//! A solution says where pods go, not which devices their claims get. So devices are looked for here, by trying all there
//! are: first which of the cluster's devices each machine, or each claim that several machines share, may use, then whether
//! those and the machine's own serve its claims, whichever of its instance types it becomes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeSelector, Pod};
use k8s_openapi::api::resource::v1 as wire;
use karpenter_core::dra::model::Attribute;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::quantity::Quantity;
use karpenter_core::requirements::{Requirements, Unaliased};

use crate::pod;
use crate::world::World;

/// Where pods with claims were put.
pub(crate) struct Place<'w> {
    /// What messages call it.
    pub(crate) subject: String,
    /// The Node, if it is one that is initialised: its published devices are its own.
    pub(crate) node: Option<String>,
    /// The pods.
    pub(crate) pods: Vec<&'w Pod>,
    /// Whether the place surely meets requirements.
    pub(crate) meets: Box<dyn Fn(&Requirements) -> bool + 'w>,
    /// What it brings: one entry for each instance type it may become, one without devices for a Node that runs.
    pub(crate) brings: Vec<Vec<Device>>,
}

/// A device, published or to be brought.
#[derive(Debug, Clone)]
pub(crate) struct Device {
    driver: String,
    pool: String,
    name: String,
    attributes: BTreeMap<String, String>,
    /// All there is of each capacity; None if it is not shared, and so taken whole.
    shared: bool,
    capacity: BTreeMap<String, i128>,
    reach: Reach,
}

#[derive(Debug, Clone)]
enum Reach {
    Everywhere,
    Node(String),
    Nodes(Vec<Requirements>),
}

/// A device as it is looked at for one place.
struct Slot<'d> {
    device: &'d Device,
    /// Somebody else has it. It still counts for who wants all.
    taken: bool,
    left: BTreeMap<String, i128>,
}

type ClaimKey = (String, String);

/// The devices that an instance type brings.
pub(crate) fn brought(instance_type: &InstanceType) -> Vec<Device> {
    let templates = instance_type.devices.iter();
    let device = |driver: &str, pool: &str, device: &karpenter_core::dra::Device| Device {
        driver: driver.to_owned(),
        pool: pool.to_owned(),
        name: device.name.clone(),
        attributes: (device.attributes.iter())
            .map(|(name, value)| (name.clone(), text(value)))
            .collect(),
        shared: device.shareable,
        capacity: (device.capacity.iter())
            .map(|(name, capacity)| (name.clone(), capacity.value.nanos()))
            .collect(),
        reach: Reach::Everywhere,
    };
    templates
        .flat_map(|template| {
            let devices = template.devices.iter();
            devices.map(move |d| device(&template.driver, &template.pool, d))
        })
        .collect()
}

fn text(value: &Attribute) -> String {
    match value {
        Attribute::Int(number) => number.to_string(),
        Attribute::Bool(truth) => truth.to_string(),
        Attribute::String(text) | Attribute::Version(text) => text.clone(),
    }
}

fn qualified(name: &str, driver: &str) -> String {
    if name.contains('/') {
        name.to_owned()
    } else {
        format!("{driver}/{name}")
    }
}

fn nanos(quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity) -> i128 {
    Quantity::try_from(quantity).map_or(0, |quantity| quantity.nanos())
}

fn terms(selector: &NodeSelector) -> Vec<Requirements> {
    let terms = selector.node_selector_terms.iter();
    terms
        .filter_map(|term| Requirements::from_node_selector_term(term, &Unaliased).ok())
        .collect()
}

/// The devices of all slices that count: those of Nodes that are there and initialised, and those of no Node.
fn published(world: &World, counts: &dyn Fn(&str) -> bool) -> Vec<Device> {
    let mut devices = Vec::new();
    for slice in &world.resource_slices {
        let owners = slice.metadata.owner_references.iter().flatten();
        let mut nodes = owners.filter(|owner| owner.kind == "Node");
        if nodes.next().is_some_and(|node| !counts(&node.name)) {
            continue;
        }
        let spec = &slice.spec;
        let reach = match (&spec.node_name, &spec.node_selector) {
            (Some(name), _) => Reach::Node(name.clone()),
            (None, Some(selector)) => Reach::Nodes(terms(selector)),
            (None, None) => Reach::Everywhere,
        };
        for device in spec.devices.iter().flatten() {
            let attributes = device.attributes.iter().flatten();
            let capacity = device.capacity.iter().flatten();
            devices.push(Device {
                driver: spec.driver.clone(),
                pool: spec.pool.name.clone(),
                name: device.name.clone(),
                attributes: attributes
                    .filter_map(|(name, value)| {
                        Some((qualified(name, &spec.driver), value.string.clone()?))
                    })
                    .collect(),
                shared: device.allow_multiple_allocations.unwrap_or_default(),
                capacity: capacity
                    .map(|(name, capacity)| (qualified(name, &spec.driver), nanos(&capacity.value)))
                    .collect(),
                reach: reach.clone(),
            });
        }
    }
    devices
}

/// The claims a pod uses; None if one has not been made yet.
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

/// Whether a pod uses claims at all.
pub(crate) fn has_claims(pod: &Pod) -> bool {
    pod::spec(pod)
        .resource_claims
        .is_some_and(|claims| !claims.is_empty())
}

/// What is wrong with where pods with claims were put: who cannot be served, or what claims are missing.
///
/// `counts` tells which Nodes' devices count, `moves` which pods (by uid) are to be moved: what only they hold is free.
pub(crate) fn unserved(
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
                    format!("{name} waits for a claim to be made"),
                ));
                continue;
            };
            for key in keys {
                let Some(claim) = find(world, &key) else {
                    wrong.push((
                        place.subject.clone(),
                        format!("{name} uses {key:?}, which is not there"),
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
                                format!("{name} uses {key:?}, which is elsewhere"),
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
        && !Stage::new(world, places, open, counts, moves).serves()
    {
        let subjects: Vec<&str> = places.iter().map(|place| place.subject.as_str()).collect();
        wrong.push((
            subjects.join(", "),
            "no devices serve all resource claims".to_owned(),
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

/// What a claim was given, unless only pods use it that are to be moved.
fn allocation<'c>(
    claim: &'c wire::ResourceClaim,
    moves: &dyn Fn(&str) -> bool,
) -> Option<&'c wire::AllocationResult> {
    let status = claim.status.as_ref()?;
    let users = status.reserved_for.as_deref().unwrap_or_default();
    let leaving = !users.is_empty() && users.iter().all(|user| moves(&user.uid));
    status.allocation.as_ref().filter(|_| !leaving)
}

/// All that must be served.
struct Stage<'a> {
    world: &'a World,
    places: &'a [Place<'a>],
    /// Claims by the place that alone uses them.
    local: Vec<Vec<&'a wire::ResourceClaim>>,
    /// Claims that several places use.
    roaming: Vec<(&'a wire::ResourceClaim, BTreeSet<usize>)>,
    devices: Vec<Device>,
    /// What of each device is left: None if it is not shared and somebody has it.
    left: Vec<Option<BTreeMap<String, i128>>>,
    /// Devices that no single Node owns and that are free.
    wide: Vec<usize>,
}

impl<'a> Stage<'a> {
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
        let mut roaming = Vec::new();
        for (claim, users) in open.into_values() {
            match users.first() {
                Some(only) if users.len() == 1 => local[*only].push(claim),
                _ => roaming.push((claim, users)),
            }
        }
        Self {
            world,
            places,
            local,
            roaming,
            devices,
            left,
            wide,
        }
    }

    /// Whether the free devices of the cluster can be dealt out so that everyone is served.
    fn serves(&self) -> bool {
        let users: Vec<User> = (0..self.places.len())
            .filter(|place| !self.local[*place].is_empty())
            .map(User::Place)
            .chain((0..self.roaming.len()).map(User::Claim))
            .collect();
        self.deal(&users, &mut vec![None; self.wide.len()], 0)
    }

    fn deal(&self, users: &[User], dealt: &mut Vec<Option<usize>>, next: usize) -> bool {
        if next == dealt.len() {
            return (0..users.len()).all(|user| {
                let own = |(place, _): &(usize, &usize)| dealt[*place] == Some(user);
                let own: BTreeSet<usize> = self
                    .wide
                    .iter()
                    .enumerate()
                    .filter(own)
                    .map(|(_, device)| *device)
                    .collect();
                self.content(&users[user], &own)
            });
        }
        let choices = std::iter::once(None).chain((0..users.len()).map(Some));
        for choice in choices {
            dealt[next] = choice;
            if self.deal(users, dealt, next + 1) {
                return true;
            }
        }
        false
    }

    /// Whether one user is served with these of the cluster's devices.
    fn content(&self, user: &User, own: &BTreeSet<usize>) -> bool {
        match user {
            User::Place(place) => {
                let brings = &self.places[*place].brings;
                brings
                    .iter()
                    .all(|brought| self.try_with(&self.local[*place], &[*place], own, brought))
            }
            // Nothing that one machine brings is of use on another.
            User::Claim(claim) => {
                let (claim, users) = &self.roaming[*claim];
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
        brought: &[Device],
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
        slots.extend(brought.iter().map(|device| Slot {
            device,
            taken: false,
            left: device.capacity.clone(),
        }));
        let mut wishes = Vec::new();
        for (claim, object) in claims.iter().enumerate() {
            let Some(devices) = &object.spec.devices else {
                continue;
            };
            for request in devices.requests.iter().flatten() {
                wishes.push(Wish {
                    claim,
                    constraints: devices.constraints.as_deref().unwrap_or_default(),
                    request,
                });
            }
        }
        self.grant(&wishes, &mut slots, &mut Vec::new())
    }

    fn grant<'s>(
        &'s self,
        wishes: &[Wish<'s>],
        slots: &mut Vec<Slot<'s>>,
        picked: &mut Vec<(usize, String, &'s Device)>,
    ) -> bool {
        let Some((wish, rest)) = wishes.split_first() else {
            return true;
        };
        wish.alternatives().iter().any(|alternative| {
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
                    &(wish, alternative, &selectors),
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
                            .all(|index| take(wish, alternative, &mut slots[*index], picked));
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
        asked: &(&Wish<'s>, &Alternative<'s>, &[&str]),
        count: usize,
        from: usize,
        rest: &[Wish<'s>],
        slots: &mut Vec<Slot<'s>>,
        picked: &mut Vec<(usize, String, &'s Device)>,
    ) -> bool {
        if count == 0 {
            return self.grant(rest, slots, picked);
        }
        for index in from..slots.len() {
            let (wish, alternative, selectors) = asked;
            if !selectors
                .iter()
                .all(|text| selects(text, slots[index].device))
            {
                continue;
            }
            let known = (slots[index].taken, slots[index].left.clone(), picked.len());
            if take(wish, alternative, &mut slots[index], picked)
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

/// Whether what a Node owns is of use: to one place only.
fn places_alone(places: &[usize]) -> bool {
    places.len() == 1
}

enum User {
    Place(usize),
    Claim(usize),
}

struct Wish<'c> {
    claim: usize,
    constraints: &'c [wire::DeviceConstraint],
    request: &'c wire::DeviceRequest,
}

/// One way to satisfy a request.
struct Alternative<'c> {
    name: String,
    class: &'c str,
    selectors: &'c [wire::DeviceSelector],
    /// None is all.
    count: Option<usize>,
    capacity: Option<&'c wire::CapacityRequirements>,
}

impl<'c> Wish<'c> {
    fn alternatives(&self) -> Vec<Alternative<'c>> {
        let number = |mode: &Option<String>, count: Option<i64>| {
            let one = count
                .and_then(|count| usize::try_from(count).ok())
                .unwrap_or(1);
            (mode.as_deref() != Some("All")).then_some(one)
        };
        if let Some(exactly) = &self.request.exactly {
            return vec![Alternative {
                name: self.request.name.clone(),
                class: &exactly.device_class_name,
                selectors: exactly.selectors.as_deref().unwrap_or_default(),
                count: number(&exactly.allocation_mode, exactly.count),
                capacity: exactly.capacity.as_ref(),
            }];
        }
        let alternatives = self.request.first_available.iter().flatten();
        alternatives
            .map(|sub| Alternative {
                name: format!("{}/{}", self.request.name, sub.name),
                class: &sub.device_class_name,
                selectors: sub.selectors.as_deref().unwrap_or_default(),
                count: number(&sub.allocation_mode, sub.count),
                capacity: sub.capacity.as_ref(),
            })
            .collect()
    }
}

/// Whether an expression selects a device; of CEL it knows what the generated clusters use.
fn selects(expression: &str, device: &Device) -> bool {
    let Some((left, right)) = expression.split_once(" == ") else {
        return false;
    };
    let value = right.trim_matches('\'');
    if left == "device.driver" {
        return device.driver == value;
    }
    let attribute = left
        .strip_prefix("device.attributes['")
        .and_then(|rest| rest.split_once("']."));
    attribute.is_some_and(|(domain, name)| {
        device
            .attributes
            .get(&format!("{domain}/{name}"))
            .is_some_and(|own| own == value)
    })
}

/// Takes a device, or what is asked of it, for a request; false if it cannot be.
fn take<'s>(
    wish: &Wish<'s>,
    alternative: &Alternative<'s>,
    slot: &mut Slot<'s>,
    picked: &mut Vec<(usize, String, &'s Device)>,
) -> bool {
    if slot.taken {
        return false;
    }
    let device = slot.device;
    for constraint in wish.constraints {
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
            .filter(|(claim, name, _)| *claim == wish.claim && covers(name));
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
    picked.push((wish.claim, alternative.name.clone(), device));
    true
}
