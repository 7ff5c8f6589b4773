//! Improving a packing: a few of its nodes at a time are dissolved and their pods packed again.
//!
//! Most waste of a plan is in few of its nodes, those that were filled with leftover pods. Such a node and some others, drawn
//! at random, are packed again with slightly varied worths of each kind, and the result is kept if it costs less. The random
//! sequence is fixed, and the work is bounded by a count, so that equal inputs give equal plans.

use crate::schedule::random::Random;
use crate::schedule::repack::packing::{Bin, Bins, Kind, Offer, Packer, node_count};

/// Plans with more nodes are not improved: the waste of a few nodes is a small share of their price.
const MOST_NODES: usize = 100;
/// The number of failed attempts in a row after which the search ends.
const MOST_FAILURES: usize = 300;
/// The largest number of nodes that are dissolved at once; the smallest is two.
const MOST_DISSOLVED: usize = 6;
/// The largest relative change of the worth of a kind.
const MOST_VARIATION: f64 = 0.2;

impl Packer<'_> {
    /// Searches for a cheaper packing of the same pods, within at most `work`.
    pub(crate) fn improve(&mut self, kinds: &[Kind], mut bins: Bins, work: usize) -> Bins {
        if node_count(&bins) > MOST_NODES {
            return bins;
        }
        let most_work = self.most_work;
        self.most_work = self.work.saturating_add(work);
        let mut random = Random::new(1);
        let mut in_vain = 0;
        while in_vain < MOST_FAILURES && self.work < self.most_work && node_count(&bins) > 1 {
            in_vain += 1;
            let number = 2 + random.below(MOST_DISSOLVED - 1);
            let taken = self.draw(&bins, kinds, number, &mut random);
            let mut some: Vec<Kind> = kinds.to_vec();
            some.iter_mut().for_each(|kind| kind.count = 0);
            let mut before = 0.0;
            for (place, copies) in &taken {
                let bin = &bins[*place].0;
                before += self.cost(bin) * *copies as f64;
                for (kind, count) in &bin.counts {
                    some[*kind].count += count * copies;
                }
            }
            for kind in &mut some {
                kind.worth *= random.near_one(MOST_VARIATION);
            }
            let affordable = |offer: &Offer<'_>| offer.price <= before;
            let Some(mut found) = self.pack_on(&some, affordable) else {
                continue;
            };
            found.iter_mut().for_each(|(bin, _)| self.reprice(bin));
            let costs = found
                .iter()
                .map(|(bin, copies)| self.cost(bin) * *copies as f64);
            if costs.sum::<f64>() >= before - 1e-9 {
                continue;
            }
            in_vain = 0;
            for (place, copies) in &taken {
                bins[*place].1 -= copies;
            }
            bins.retain(|(_, copies)| *copies > 0);
            bins.extend(found);
        }
        self.most_work = most_work;
        bins
    }

    fn cost(&self, bin: &Bin) -> f64 {
        bin.price + self.node_overhead
    }

    /// Draws nodes to dissolve: first the most wasteful of three, then any. Returns indices in the plan, and copies of each.
    fn draw(
        &self,
        bins: &Bins,
        kinds: &[Kind],
        number: usize,
        random: &mut Random,
    ) -> Vec<(usize, usize)> {
        let waste = |bin: &Bin| {
            let worth = |(kind, count): &(usize, usize)| kinds[*kind].worth * *count as f64;
            let worth: f64 = bin.counts.iter().map(worth).sum();
            self.cost(bin) - worth
        };
        let mut left: Vec<usize> = bins.iter().map(|(_, copies)| *copies).collect();
        let mut taken: Vec<(usize, usize)> = Vec::with_capacity(number);
        for turn in 0..number {
            let total: usize = left.iter().sum();
            if total == 0 {
                break;
            }
            let mut any = || {
                let mut at = random.below(total);
                let here = |copies: &usize| {
                    let here = at < *copies;
                    at = at.wrapping_sub(*copies);
                    here
                };
                left.iter().position(here).unwrap_or(0)
            };
            let mut place = any();
            if turn == 0 {
                for other in [any(), any()] {
                    if waste(&bins[other].0) > waste(&bins[place].0) {
                        place = other;
                    }
                }
            }
            left[place] -= 1;
            match taken.iter_mut().find(|(known, _)| *known == place) {
                Some((_, copies)) => *copies += 1,
                None => taken.push((place, 1)),
            }
        }
        taken
    }

    /// Moves a bin to the cheapest offer that holds its pods.
    fn reprice(&self, bin: &mut Bin) {
        let group = self.groups.iter().find(|group| group.set == bin.set);
        for offer in group.iter().flat_map(|group| &group.offers) {
            let mut amounts = bin.used.iter().zip(offer.room);
            if offer.price < bin.price && amounts.all(|(used, room)| used <= room) {
                (bin.price, bin.row) = (offer.price, offer.row);
            }
        }
    }
}

#[cfg(test)]
mod tests;
