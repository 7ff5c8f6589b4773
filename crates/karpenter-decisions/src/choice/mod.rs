//! Why a NodeClaim has its instance type: what was offered to the cloud, what the cloud chose, and which cheaper instance types were
//! rejected, each with the first test that it fails.
//!
//! The tests are those of the scheduler, in the order in which a user would ask: the NodePool's requirements, those of the pods,
//! resources, availability, limits. [`choose`] runs them on the snapshot that the NodeClaim was planned on; [`Choices`] keeps the
//! results of the latest NodeClaims.

mod choices;
mod explanation;

use std::sync::Arc;

use karpenter_api::labels;
use karpenter_api::v1::{NodeClaim, NodePool, NodeSelectorRequirementWithMinValues, Operator};
use karpenter_core::cluster::{NodeState, Snapshot};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::limits::known_usage;
use karpenter_core::offering::Offering;
use karpenter_core::overlay;
use karpenter_core::pod::{Pod, PodKey};
use karpenter_core::reason::Reason;
use karpenter_core::requirements::{Requirement, Requirements};
use karpenter_core::resources::{NODES, Resources, plain};
use rustc_hash::FxHashSet;
use serde::Serialize;

pub use choices::{Choices, MAX_BYTES, MAX_CHOICES, Waiting};
pub use explanation::{ChoiceExplanation, Chosen, RejectedExplanation};

/// Offered instance types of an answer, cheapest first.
pub const OPTIONS: usize = 60;
/// Rejected instance types of an answer, cheapest first.
pub const REJECTED: usize = 10;
/// An instance type that was offered to the cloud.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Offered {
    pub instance_type: String,
    /// Its cheapest offering that the NodeClaim admits, in dollars per hour.
    pub price_per_hour: f64,
}

/// An instance type that was not offered.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rejected {
    pub instance_type: String,
    /// Its cheapest offering in dollars per hour; of those that would do, if there are any.
    pub price_per_hour: f64,
    /// The first test that it fails.
    pub reason: Reason,
}

/// What was offered for a NodeClaim, and what was not.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The offered instance types, cheapest first, at most [`OPTIONS`].
    pub options: Arc<[Offered]>,
    /// The number of further offered instance types.
    pub more_options: usize,
    /// The cheapest instance types that were not offered, at most [`REJECTED`].
    pub rejected: Arc<[Rejected]>,
}

/// The scheduler's input for a NodeClaim.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The NodeClaim as it was created.
    pub claim: &'a NodeClaim,
    /// The pods that it was planned for.
    pub pods: &'a [PodKey],
    /// What NodeClaims of the same NodePool, planned before it in the same pass, use of the NodePool's limits.
    pub earlier: &'a Resources,
}

/// Works out what was offered for a NodeClaim, and why the cheapest other instance types were not. `None` if its NodePool or the
/// instance types are not known.
pub fn choose(snapshot: &Snapshot, launch: Launch<'_>) -> Option<Choice> {
    let names = &snapshot.config().well_known;
    let claim = launch.claim;
    let pool = snapshot.node_pool(claim.node_pool()?)?;
    let types = overlay::offered(snapshot, pool)?;
    let template = &pool.spec.template;
    let mut of_pool = Requirements::from_api(&template.spec.requirements, names).ok()?;
    let pool_labels = template.metadata.labels.iter().flatten();
    of_pool.add_all(&Requirements::from_labels(pool_labels, names));
    let planned = claim.spec.requirements.iter();
    let planned: Vec<NodeSelectorRequirementWithMinValues> = planned
        .filter(|requirement| requirement.key != labels::INSTANCE_TYPE)
        .cloned()
        .collect();
    let listed = listed(claim);
    let tests = Tests {
        of_pool,
        of_pods: Requirements::from_api(&planned, names).ok()?,
        requests: Resources::allocatable_from(&claim.spec.resources.requests).unwrap_or_default(),
        type_selectors: type_selectors(snapshot, launch.pods),
        limits: Resources::allocatable_from(&pool.spec.limits).unwrap_or_default(),
        used: used(snapshot, pool, claim, launch.earlier),
    };
    let names: FxHashSet<&str> = listed.iter().map(String::as_str).collect();
    let mut offered: Vec<(f64, &InstanceType)> = types
        .iter()
        .filter(|kind| names.contains(kind.name.as_str()))
        .map(|kind| (tests.price(kind), kind))
        .collect();
    sort(&mut offered);
    let options = offered.iter().take(OPTIONS).map(|(price, kind)| Offered {
        instance_type: kind.name.clone(),
        price_per_hour: *price,
    });
    let options: Arc<[Offered]> = options.collect();
    let mut others: Vec<(f64, &InstanceType)> = types
        .iter()
        .filter(|kind| !names.contains(kind.name.as_str()))
        .map(|kind| (tests.price(kind), kind))
        .collect();
    sort(&mut others);
    let last = offered.last().map(|(price, _)| *price);
    let rejected = others.into_iter().filter_map(|(price, kind)| {
        Some(Rejected {
            instance_type: kind.name.clone(),
            price_per_hour: price,
            reason: tests.first_failure(kind).or_else(|| {
                // It passes all tests: the list was cut before it.
                let cut = last.is_some_and(|last| price >= last);
                cut.then_some(Reason::MinValuesTail {})
            })?,
        })
    });
    Some(Choice {
        more_options: offered.len() - options.len(),
        rejected: rejected.take(REJECTED).collect(),
        options,
    })
}

/// Sorts instance types by price, and those of one price by name: a NodeClaim lists them by name only.
fn sort(types: &mut [(f64, &InstanceType)]) {
    types.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.name.cmp(&b.1.name)));
}

/// Returns the instance types that a NodeClaim lists.
fn listed(claim: &NodeClaim) -> &[String] {
    let mut requirements = claim.spec.requirements.iter();
    let of_types = requirements.find(|requirement| {
        requirement.key == labels::INSTANCE_TYPE && requirement.operator == Operator::In
    });
    of_types.map_or(&[], |requirement| &requirement.values)
}

/// Returns what the pods require of the instance type itself: the NodeClaim's list of instance types does not show it.
fn type_selectors(snapshot: &Snapshot, pods: &[PodKey]) -> Vec<Requirement> {
    let of_pod = |pod: &Arc<Pod>| {
        let shape = &pod.shape;
        let selected = shape.node_selector.get(labels::INSTANCE_TYPE);
        let selected = selected.map(|value| Requirement::equal(labels::INSTANCE_TYPE, value));
        // With several terms another one may hold.
        let only = match &shape.required_nodes[..] {
            [term] => term.expressions.as_slice(),
            _ => &[],
        };
        let expressions = only.iter().filter(|it| it.key == labels::INSTANCE_TYPE);
        let expressions =
            expressions.filter_map(|it| Requirement::parse(&it.key, &it.operator, &it.values).ok());
        selected.into_iter().chain(expressions).collect::<Vec<_>>()
    };
    let pods = pods
        .iter()
        .filter_map(|key| snapshot.pod(&key.namespace, &key.name));
    let mut all: Vec<Requirement> = Vec::new();
    for requirement in pods.flat_map(of_pod) {
        if !all.contains(&requirement) {
            all.push(requirement);
        }
    }
    all
}

/// Returns what the NodePool uses of its limits without the NodeClaim.
fn used(snapshot: &Snapshot, pool: &NodePool, claim: &NodeClaim, earlier: &Resources) -> Resources {
    let mut used = earlier.clone();
    if pool.spec.limits.is_empty() {
        return used;
    }
    let is_other = |node: &&Arc<NodeState>| {
        node.node_pool() == Some(pool.name())
            && !node.is_deleting()
            && node.claim_name() != Some(claim.name())
    };
    for node in snapshot.nodes().filter(is_other) {
        used.add_assign(&known_usage(node));
        used.set(NODES, used.get(NODES).saturating_add(1));
    }
    used
}

/// Returns what a NodeClaim that was just planned uses of its NodePool's limits: as much as the largest of its instance types.
pub fn largest(snapshot: &Snapshot, claim: &NodeClaim) -> Resources {
    let mut largest = Resources::new();
    let types = claim
        .node_pool()
        .and_then(|pool| snapshot.instance_types(pool));
    if let Some(Ok(types)) = types {
        let listed: FxHashSet<&str> = listed(claim).iter().map(String::as_str).collect();
        for kind in types
            .iter()
            .filter(|kind| listed.contains(kind.name.as_str()))
        {
            largest.max_assign(&kind.capacity);
        }
    }
    largest.set(NODES, 1);
    largest
}

/// The tests that an instance type must pass.
struct Tests {
    of_pool: Requirements,
    of_pods: Requirements,
    type_selectors: Vec<Requirement>,
    requests: Resources,
    limits: Resources,
    used: Resources,
}

impl Tests {
    /// Returns the price of an instance type: of its cheapest offering that would do now; else that would do if it were available;
    /// else of any.
    fn price(&self, kind: &InstanceType) -> f64 {
        let cheapest = |filter: &dyn Fn(&&Offering) -> bool| {
            let prices = kind.offerings.iter().filter(filter).map(|it| it.price);
            prices
                .filter(|price| price.is_finite())
                .min_by(f64::total_cmp)
        };
        let admitted = |it: &&Offering| admits(&self.of_pods, it);
        cheapest(&|it| admitted(it) && it.is_launchable())
            .or_else(|| cheapest(&admitted))
            .or_else(|| cheapest(&|_| true))
            .unwrap_or(f64::MAX)
    }

    /// Returns the first test that the instance type fails.
    fn first_failure(&self, kind: &InstanceType) -> Option<Reason> {
        let of_pool = |requirement: String| Reason::PoolRequirement { requirement };
        let of_pods = |requirement: String| Reason::PodRequirement { requirement };
        if let Some(requirement) = conflict(&self.of_pool, kind) {
            return Some(of_pool(requirement.to_string()));
        }
        if let Some(requirement) = unoffered(&self.of_pool, kind) {
            return Some(of_pool(requirement));
        }
        if let Some(requirement) = conflict(&self.of_pods, kind) {
            return Some(of_pods(requirement.to_string()));
        }
        let mut selectors = self.type_selectors.iter();
        if let Some(requirement) = selectors.find(|it| !it.has(&kind.name)) {
            return Some(of_pods(requirement.to_string()));
        }
        if let Some(requirement) = unoffered(&self.of_pods, kind) {
            return Some(of_pods(requirement));
        }
        let admitted = || kind.offerings.iter().filter(|it| admits(&self.of_pods, it));
        let too_small = |allocatable: &Resources| {
            let mut requests = self.requests.iter();
            let short = |(name, amount): (&str, i64)| {
                let missing = amount.saturating_sub(allocatable.get(name));
                (missing > 0).then(|| Reason::TooSmall {
                    resource: name.to_owned(),
                    short_by: plain(name, missing),
                })
            };
            requests.find_map(short)
        };
        // An offering may have resources of its own.
        let mut small = admitted().map(|it| too_small(&kind.allocatable_of(it)));
        let first = small.next().flatten();
        if let Some(reason) = first
            && small.all(|reason| reason.is_some())
        {
            return Some(reason);
        }
        let fits = |it: &&Offering| too_small(&kind.allocatable_of(it)).is_none();
        if !admitted().filter(fits).any(Offering::is_launchable) {
            let until = admitted()
                .filter(fits)
                .filter_map(|it| it.unavailable_until);
            return Some(Reason::Unavailable {
                until: until.min().map(|until| until.to_string()),
            });
        }
        let over = self.limits.iter().find(|(name, limit)| {
            let needed = if *name == NODES {
                1
            } else {
                kind.capacity.get(name)
            };
            self.used.get(name).saturating_add(needed) > *limit
        });
        over.map(|(resource, _)| Reason::OverLimit {
            resource: resource.to_owned(),
        })
    }
}

/// Returns the first requirement that no node of the instance type can meet.
fn conflict<'r>(requirements: &'r Requirements, kind: &InstanceType) -> Option<&'r Requirement> {
    requirements.iter().find(|requirement| {
        let own = kind.requirements.get(requirement.key());
        own.is_some_and(|own| !own.has_intersection(requirement))
    })
}

/// Reports whether an offering meets the requirements.
fn admits(requirements: &Requirements, offering: &Offering) -> bool {
    offering.requirements.iter().all(|own| {
        let required = requirements.get(own.key());
        required.is_none_or(|required| required.has_intersection(own))
    })
}

/// Returns the requirements that no offering meets: one that none meets, else all on the labels of offerings.
fn unoffered(requirements: &Requirements, kind: &InstanceType) -> Option<String> {
    if kind.offerings.iter().any(|it| admits(requirements, it)) {
        return None;
    }
    let on_offerings = || {
        requirements.iter().filter(|requirement| {
            let mut offerings = kind.offerings.iter();
            offerings.any(|it| it.requirements.contains(requirement.key()))
        })
    };
    let met_by_none = |requirement: &&Requirement| {
        let mut offerings = kind.offerings.iter();
        !offerings.any(|it| {
            let own = it.requirements.get(requirement.key());
            own.is_none_or(|own| own.has_intersection(requirement))
        })
    };
    if let Some(requirement) = on_offerings().find(met_by_none) {
        return Some(requirement.to_string());
    }
    let all: Vec<String> = on_offerings().map(ToString::to_string).collect();
    Some(all.join(", "))
}
