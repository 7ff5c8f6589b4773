//! A lower bound of what the nodes for some pods cost: no plan for the same pods costs less.
//!
//! Every resource has a price here. A node is paid for by its resources: a unit of each costs the price of the unit, times the price of
//! the node over that of all its resources. A pod pays for its requests on the offer where they cost least, of those that it may use and
//! that have room for it. The pods of a node pay for no more than its resources, so that all pods pay at most what the nodes of any plan
//! cost. Any prices of resources give a bound; those that give a high one are searched.
//!
//! Nodes are whole, which counts where they are few: either one holds all pods, or there are two.
//!
//! What is left out makes plans only dearer: topology constraints, preferences, limits, minValues, devices. The room of an offer is what
//! DaemonSets leave.

use std::collections::BTreeMap;

use smallvec::smallvec;

use crate::pod::Toleration;
use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::ids::{ClassId, Target, TemplateId};
use crate::schedule::compile::vectors::{Vector, add};
use crate::schedule::pass::Pass;
use crate::schedule::pods::class::PodState;
use crate::taints::untolerated;

/// The factors by which the price of a resource is changed, as long as that raises the bound.
const FACTORS: [f64; 4] = [4.0, 1.5, 1.1, 1.02];

/// Pods with the same offers.
#[derive(Clone, Debug, Default)]
struct Group {
    /// What they request together.
    requests: Vec<f64>,
    offers: Vec<Offer>,
}

#[derive(Clone, Debug)]
struct Offer {
    price: f64,
    /// What pods can use of its room: no more than all of them request.
    room: Vec<f64>,
    /// It has room for all pods.
    holds_all: bool,
}

/// The template and the requirements of an offer, and its place among their offers.
type OfferId = (TemplateId, SetId, usize);

impl Pass<'_> {
    /// Returns a price per hour below which no nodes run the pods that are on planned nodes now, with the price of each node's own
    /// ([`Policy::node_overhead_price`](crate::schedule::request::Policy::node_overhead_price)).
    pub(crate) fn lowest_price(&mut self) -> f64 {
        let mut pods: BTreeMap<ClassId, usize> = BTreeMap::new();
        let mut total: Vector = smallvec![0; self.solver.width()];
        for queued in &self.queue.pods {
            if matches!(queued.state, PodState::Placed(Target::Planned(_))) {
                *pods.entry(queued.class).or_default() += 1;
                add(&mut total, &self.queue.classes[queued.class].requests);
            }
        }
        let mut groups: BTreeMap<Vec<OfferId>, Group> = BTreeMap::new();
        for (class, count) in pods {
            let offers = self.offers_for(class);
            let group = groups.entry(offers).or_default();
            group.requests.resize(total.len(), 0.0);
            let requests = self.queue.classes[class].requests.iter();
            for (sum, request) in group.requests.iter_mut().zip(requests) {
                *sum += *request as f64 * count as f64;
            }
        }
        for (ids, group) in &mut groups {
            for (template, set, place) in ids {
                let (price, row) = self.rows.offers(*template, *set)[*place];
                let room = self.solver.templates[*template].row_room(row).iter();
                let room = room.zip(&total);
                group.offers.push(Offer {
                    price,
                    holds_all: room.clone().all(|(room, total)| total <= room),
                    room: room.map(|(room, total)| *room.min(total) as f64).collect(),
                });
            }
        }
        let groups: Vec<Group> = groups.into_values().collect();
        lowest(&groups, self.solver.policy.node_overhead_price)
    }

    /// Returns the offers that pods of a class can use once all of its preferences are dropped.
    fn offers_for(&mut self, class: ClassId) -> Vec<OfferId> {
        let class = &self.queue.classes[class];
        let mut tolerations = class.shape.tolerations.clone();
        tolerations.push(Toleration::any_prefer_no_schedule());
        let mut found = Vec::new();
        for (template, compiled) in self.solver.templates.iter_enumerated() {
            if untolerated(&compiled.taints, &tolerations).is_some() {
                continue;
            }
            let terms = class.term_sets.iter();
            for (term, volume) in
                terms.flat_map(|term| class.volumes.iter().map(move |it| (term, it)))
            {
                let algebra = &mut self.rows.algebra;
                let joined = algebra.join(compiled.set, *term);
                let Some(set) = joined.and_then(|set| algebra.join(set, *volume)) else {
                    continue;
                };
                for (place, (_, row)) in self.rows.offers(template, set).iter().enumerate() {
                    let mut room = class.requests.iter().zip(compiled.row_room(*row));
                    if room.all(|(request, room)| request <= room) {
                        found.push((template, set, place));
                    }
                }
            }
        }
        found
    }
}

/// Returns a price below which no nodes run the pods of all groups; each node costs `node_price` beside its offer.
fn lowest(groups: &[Group], node_price: f64) -> f64 {
    if groups.is_empty() {
        return 0.0;
    }
    let cheapest = |group: &Group, holds_all: bool| {
        let offers = group.offers.iter();
        let offers = offers.filter(|offer| offer.holds_all || !holds_all);
        offers.map(|offer| offer.price).fold(f64::MAX, f64::min)
    };
    let on_one = groups.iter().map(|group| cheapest(group, true));
    let on_one = on_one.fold(0.0, f64::max) + node_price;
    let each = groups.iter().map(|group| cheapest(group, false));
    let least = each.clone().fold(f64::MAX, f64::min);
    let on_two = each.fold(0.0, f64::max) + least + 2.0 * node_price;
    let split_on_two = split(groups, 0.0) + 2.0 * node_price;
    on_one.min(on_two.max(split_on_two).max(split(groups, node_price)))
}

/// Returns what all pods pay at the prices of resources where that is most.
fn split(groups: &[Group], node_price: f64) -> f64 {
    let sum = |place: usize| {
        groups
            .iter()
            .map(|group| group.requests[place])
            .sum::<f64>()
    };
    let width = groups.first().map_or(0, |group| group.requests.len());
    // A resource that no pod requests has no price.
    let mut prices: Vec<f64> = (0..width).map(|place| sum(place).recip()).collect();
    prices
        .iter_mut()
        .filter(|price| price.is_infinite())
        .for_each(|price| *price = 0.0);
    let mut best = paid(groups, &prices, node_price);
    for factor in FACTORS {
        let mut improves = true;
        while std::mem::take(&mut improves) {
            for place in 0..width {
                for factor in [factor, factor.recip()] {
                    let before = prices[place];
                    prices[place] *= factor;
                    let found = paid(groups, &prices, node_price);
                    if found > best * 1.0001 {
                        (best, improves) = (found, true);
                    } else {
                        prices[place] = before;
                    }
                }
            }
        }
    }
    best
}

/// Returns what all pods pay at these prices of resources.
fn paid(groups: &[Group], prices: &[f64], node_price: f64) -> f64 {
    let value = |amounts: &[f64]| -> f64 {
        let amounts = amounts.iter().zip(prices);
        amounts.map(|(amount, price)| amount * price).sum()
    };
    let of_group = |group: &Group| {
        let offers = group.offers.iter();
        let rates = offers.map(|offer| (offer.price + node_price) / value(&offer.room));
        value(&group.requests) * rates.fold(f64::INFINITY, f64::min)
    };
    groups.iter().map(of_group).sum()
}

#[cfg(test)]
mod tests;
