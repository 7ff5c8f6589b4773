//! Packing pods of a few kinds onto planned nodes at low cost: the search itself, on numbers alone.
//!
//! In each step the search opens the node with the highest worth of pods per price. Each node is filled in two ways: the kinds
//! with the highest worth first, and evenly, where the next pod is the one with the highest worth for its share of the free
//! resources. Nodes with the same filling are merged into one larger node where that costs no more.

use smallvec::SmallVec;

use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::ids::{PlannedId, RowId};
use crate::schedule::compile::vectors::Vector;

/// The factor by which a smaller node's worth per price must exceed that of a larger one.
const SMALLER_NODE_FACTOR: f64 = 1.01;
/// Pods that are alike for packing.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) set: SetId,
    /// Requests of one pod: resource and amount, above zero.
    pub(crate) needs: SmallVec<[(usize, i64); 6]>,
    /// The planned node it came from, if it is under a hostname constraint.
    pub(crate) origin: Option<PlannedId>,
    pub(crate) count: usize,
    pub(crate) worth: f64,
}

impl Kind {
    /// Returns how many pods fit into the free resources.
    fn times(&self, free: impl Fn(usize) -> i64) -> usize {
        let times = self.needs.iter().map(|(place, need)| free(*place) / need);
        times
            .min()
            .map_or(usize::MAX, |times| times.max(0) as usize)
    }
}

/// An instance type with its price and its room for pods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer<'a> {
    pub(crate) price: f64,
    pub(crate) row: RowId,
    pub(crate) room: &'a [i64],
}

/// The offers under one set of requirements, and the kinds that can use them.
#[derive(Clone, Debug)]
pub(crate) struct RequirementGroup<'a> {
    pub(crate) set: SetId,
    /// Most expensive first.
    pub(crate) offers: Vec<Offer<'a>>,
    /// Kinds that nodes of this set accept.
    pub(crate) takes: Vec<usize>,
}

/// A planned node, and how many pods of each kind it holds.
#[derive(Clone, Debug)]
pub(crate) struct Bin {
    pub(crate) set: SetId,
    pub(crate) row: RowId,
    pub(crate) price: f64,
    pub(crate) used: Vector,
    pub(crate) counts: Vec<(usize, usize)>,
}

/// Planned nodes with the number of copies of each.
pub(crate) type Bins = Vec<(Bin, usize)>;

/// A possible content of a planned node.
#[derive(Clone, Debug, Default)]
struct Filling {
    worth: f64,
    used: Vector,
    counts: Vec<(usize, usize)>,
}

impl Filling {
    /// Reports whether enough pods are left for it.
    fn is_possible(&self, left: &[usize]) -> bool {
        self.counts
            .iter()
            .all(|(kind, count)| *count <= left[*kind])
    }
}

/// Packs pods, and counts the work.
#[derive(Clone, Debug)]
pub(crate) struct Packer<'a> {
    pub(crate) groups: Vec<RequirementGroup<'a>>,
    /// Cost added to the price of each node.
    pub(crate) node_overhead: f64,
    /// The number of resources.
    pub(crate) width: usize,
    /// How often a kind was tried on a node.
    pub(crate) work: usize,
    /// The limit of `work`.
    pub(crate) most_work: usize,
}

impl Packer<'_> {
    /// Packs all pods; `None` if that is impossible or exceeds the work limit.
    pub(crate) fn pack(&mut self, kinds: &[Kind]) -> Option<Bins> {
        self.pack_on(kinds, |_| true)
    }

    /// Does the same with only the offers for which `considers` returns true.
    pub(crate) fn pack_on(
        &mut self,
        kinds: &[Kind],
        considers: impl Fn(&Offer<'_>) -> bool,
    ) -> Option<Bins> {
        let mut left: Vec<usize> = kinds.iter().map(|kind| kind.count).collect();
        // Kinds with pods left, the own kinds of a requirement group first, then those of highest worth.
        let takes: Vec<Vec<usize>> = (self.groups.iter())
            .map(|group| {
                let there = group.takes.iter().copied();
                let mut takes: Vec<usize> = there.filter(|kind| left[*kind] > 0).collect();
                let rank = |kind: &usize| (kinds[*kind].set != group.set, -kinds[*kind].worth);
                takes.sort_by(|a, b| {
                    let (a, b) = (rank(a), rank(b));
                    a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
                });
                takes
            })
            .collect();
        // A filling stays valid until too few pods are left for it.
        let offers = self.groups.iter().map(|group| group.offers.len());
        let mut fillings: Vec<Vec<[Option<Filling>; 2]>> =
            offers.map(|count| vec![[None, None]; count]).collect();
        let mut bins: Bins = Vec::new();
        while left.iter().any(|left| *left > 0) {
            let mut best: Option<(f64, [usize; 3])> = None;
            for (place, (group, fillings)) in self.groups.iter().zip(&mut fillings).enumerate() {
                let own = |kind: &&usize| kinds[**kind].set == group.set;
                if !(takes[place].iter().take_while(own)).any(|kind| left[*kind] > 0) {
                    continue;
                }
                for (index, (offer, tried)) in group.offers.iter().zip(fillings).enumerate() {
                    if !considers(offer) {
                        continue;
                    }
                    for (way, filling) in tried.iter_mut().enumerate() {
                        if !filling.as_ref().is_some_and(|f| f.is_possible(&left)) {
                            let fill = BinFill {
                                set: group.set,
                                takes: &takes[place],
                                room: offer.room,
                                kinds,
                                left: &left,
                                width: self.width,
                            };
                            let found = match way {
                                0 => fill.highest_worth_first(&mut self.work),
                                _ => fill.evenly(&mut self.work),
                            };
                            *filling = Some(found);
                        }
                        let worth = filling.as_ref().map_or(0.0, |filling| filling.worth);
                        let gain = worth / (offer.price + self.node_overhead);
                        let better = |(most, at): &(f64, [usize; 3])| {
                            let same = at[..2] == [place, index];
                            gain > if same {
                                *most
                            } else {
                                most * SMALLER_NODE_FACTOR
                            }
                        };
                        if gain > 0.0 && best.as_ref().is_none_or(better) {
                            best = Some((gain, [place, index, way]));
                        }
                    }
                }
                if self.work > self.most_work {
                    return None;
                }
            }
            let (_, [place, index, way]) = best?;
            let filling = fillings[place][index][way].clone()?;
            let times = |(kind, count): &(usize, usize)| left[*kind] / count;
            let copies = filling.counts.iter().map(times).min().unwrap_or(0);
            for (kind, count) in &filling.counts {
                left[*kind] -= count * copies;
            }
            let group = &self.groups[place];
            let bin = Bin {
                set: group.set,
                row: group.offers[index].row,
                price: group.offers[index].price,
                used: filling.used,
                counts: filling.counts,
            };
            bins.push((bin, copies));
        }
        Some(self.joined(bins))
    }

    /// Merges nodes with the same filling into larger ones where that costs no more.
    fn joined(&self, bins: Bins) -> Bins {
        let mut joined: Bins = Vec::with_capacity(bins.len());
        for (bin, copies) in bins {
            let mut left = copies;
            while left > 0 {
                let (times, offer) = match self.larger(&bin, left) {
                    Some((times, offer)) => (times, Some(offer)),
                    None => (1, None),
                };
                let number = left / times;
                left -= number * times;
                let mut one = bin.clone();
                if let Some(offer) = offer {
                    (one.row, one.price) = (offer.row, offer.price);
                    let used = one.used.iter_mut();
                    used.for_each(|used| *used = used.saturating_mul(times as i64));
                    one.counts.iter_mut().for_each(|(_, count)| *count *= times);
                }
                joined.push((one, number));
            }
        }
        joined
    }

    /// Returns the offer that holds the most copies of a node, at least two and at most `most`, for no more than they cost.
    fn larger(&self, bin: &Bin, most: usize) -> Option<(usize, Offer<'_>)> {
        let group = self.groups.iter().find(|group| group.set == bin.set)?;
        let mut best: Option<(usize, Offer<'_>)> = None;
        for offer in &group.offers {
            let room = offer.room.iter().zip(&bin.used);
            let times = room
                .filter(|(_, used)| **used > 0)
                .map(|(room, used)| (room / used).max(0) as usize)
                .min()
                .map_or(0, |times| times.min(most));
            let before = (bin.price + self.node_overhead) * times as f64;
            let pays = times > 1 && offer.price + self.node_overhead <= before;
            let better = |(known, kept): &(usize, Offer<'_>)| {
                times > *known || (times == *known && offer.price < kept.price)
            };
            if pays && best.as_ref().is_none_or(better) {
                best = Some((times, *offer));
            }
        }
        best
    }
}

/// Returns the number of nodes.
pub(crate) fn node_count(bins: &Bins) -> usize {
    bins.iter().map(|(_, copies)| copies).sum()
}

/// Returns the hourly price of all nodes, with the overhead of each.
pub(crate) fn cost(bins: &Bins, node_overhead: f64) -> f64 {
    let cost = |(bin, copies): &(Bin, usize)| (bin.price + node_overhead) * *copies as f64;
    bins.iter().map(cost).sum()
}

/// Adjusts the worth of each kind to the mean of its worth and the price paid for it: a node's price is shared by worth.
pub(crate) fn learn(kinds: &mut [Kind], bins: &Bins) {
    let mut paid = vec![0.0; kinds.len()];
    for (bin, copies) in bins {
        let worth = |(kind, count): &(usize, usize)| kinds[*kind].worth * *count as f64;
        let total: f64 = bin.counts.iter().map(worth).sum();
        for part in &bin.counts {
            paid[part.0] += bin.price * worth(part) / total * *copies as f64;
        }
    }
    for (kind, paid) in kinds.iter_mut().zip(paid) {
        kind.worth = (kind.worth + paid / kind.count as f64) / 2.0;
    }
}

/// A planned node to be filled.
struct BinFill<'s> {
    set: SetId,
    /// Kinds that it accepts.
    takes: &'s [usize],
    room: &'s [i64],
    kinds: &'s [Kind],
    left: &'s [usize],
    width: usize,
}

impl BinFill<'_> {
    fn empty(&self) -> Filling {
        Filling {
            used: smallvec::smallvec![0; self.width],
            ..Filling::default()
        }
    }

    fn put(&self, filling: &mut Filling, kind: usize, count: usize) {
        for (place, need) in &self.kinds[kind].needs {
            let used = &mut filling.used[*place];
            *used = used.saturating_add(need.saturating_mul(count as i64));
        }
        filling.worth += self.kinds[kind].worth * count as f64;
        match filling.counts.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, known)) => *known += count,
            None => filling.counts.push((kind, count)),
        }
    }

    /// Fills the node with the set's own kinds first, then with those of highest worth; stays empty without a pod of the set.
    fn highest_worth_first(&self, work: &mut usize) -> Filling {
        *work += self.takes.len();
        let mut filling = self.empty();
        let mut own = false;
        let mut origin = None;
        for index in self.takes {
            let kind = &self.kinds[*index];
            if kind.set != self.set && !own {
                break;
            }
            if self.left[*index] == 0 || !may_join(kind, origin) {
                continue;
            }
            let free = |place: usize| self.room[place].saturating_sub(filling.used[place]);
            let count = kind.times(free).min(self.left[*index]);
            if count == 0 {
                continue;
            }
            self.put(&mut filling, *index, count);
            own |= kind.set == self.set;
            origin = origin.or(kind.origin);
        }
        filling
    }

    /// Fills the node with the kinds of highest worth for their share of the free resources; stays empty without a pod of the set.
    fn evenly(&self, work: &mut usize) -> Filling {
        let mut filling = self.empty();
        let mut left: SmallVec<[usize; 64]> = self.left.into();
        let mut own = false;
        let mut origin = None;
        loop {
            *work += self.takes.len();
            let mut best: Option<(f64, usize, usize)> = None;
            for index in self.takes {
                let kind = &self.kinds[*index];
                if left[*index] == 0 || !may_join(kind, origin) {
                    continue;
                }
                let free = |place: usize| self.room[place].saturating_sub(filling.used[place]);
                let times = kind.times(free).min(left[*index]);
                if times == 0 {
                    continue;
                }
                let share = |(place, need): &(usize, i64)| *need as f64 / free(*place) as f64;
                let score = kind.worth / kind.needs.iter().map(share).sum::<f64>();
                if best.as_ref().is_none_or(|(most, ..)| score > *most) {
                    best = Some((score, *index, times));
                }
            }
            let Some((_, index, times)) = best else {
                break;
            };
            // Half at a time, because the scarce resource changes.
            let count = (times / 2).max(1);
            self.put(&mut filling, index, count);
            left[index] -= count;
            own |= self.kinds[index].set == self.set;
            origin = origin.or(self.kinds[index].origin);
        }
        if own { filling } else { Filling::default() }
    }
}

/// Reports whether a kind may share a node with pods of this origin.
fn may_join(kind: &Kind, origin: Option<PlannedId>) -> bool {
    kind.origin.is_none() || origin.is_none() || kind.origin == origin
}

#[cfg(test)]
mod tests;
