//! Packing pods of a few kinds onto planned nodes at low cost, on numbers alone.
//!
//! Each step opens the node with the highest worth of pods per price. Nodes are filled evenly: the next pod is the one with the highest
//! worth for its share of the free resources.

use smallvec::{SmallVec, smallvec};

use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::ids::{PlannedId, PodIdx, RowId};
use crate::schedule::compile::vectors::Vector;

/// The factor by which a smaller node's worth per price must exceed that of a larger one.
const SMALLER_NODE_FACTOR: f64 = 1.01;

/// Pods that are alike for packing.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kind {
    pub(crate) set: SetId,
    /// Requests of one pod: resource and amount, above zero.
    pub(crate) needs: SmallVec<[(usize, i64); 6]>,
    /// The planned node it came from, if it is under a hostname constraint.
    pub(crate) origin: Option<PlannedId>,
    pub(crate) pods: Vec<PodIdx>,
    /// What a pod is worth, in dollars per hour.
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

    /// Reports whether it may share a node with pods of this origin.
    fn may_join(&self, origin: Option<PlannedId>) -> bool {
        self.origin.is_none() || origin.is_none() || self.origin == origin
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
        let mut counts = self.counts.iter();
        counts.all(|(kind, count)| *count <= left[*kind])
    }

    fn put(&mut self, kind: usize, of: &Kind, count: usize) {
        for (place, need) in &of.needs {
            let used = &mut self.used[*place];
            *used = used.saturating_add(need.saturating_mul(count as i64));
        }
        self.worth += of.worth * count as f64;
        match self.counts.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, known)) => *known += count,
            None => self.counts.push((kind, count)),
        }
    }
}

/// Packs pods, and counts the work.
#[derive(Clone, Debug)]
pub(crate) struct Packer<'a> {
    pub(crate) groups: Vec<RequirementGroup<'a>>,
    /// Cost added to the price of each node.
    pub(crate) node_overhead: f64,
    /// How often a kind was tried on a node.
    pub(crate) work: usize,
    /// The limit of `work`.
    pub(crate) most_work: usize,
}

impl Packer<'_> {
    /// Packs all pods; `None` if that is impossible or exceeds the work limit.
    pub(crate) fn pack(&mut self, kinds: &[Kind]) -> Option<Bins> {
        let mut left: Vec<usize> = kinds.iter().map(|kind| kind.pods.len()).collect();
        // A filling stays valid until too few pods are left for it.
        let offers = self.groups.iter().map(|group| group.offers.len());
        let mut fillings: Vec<Vec<Option<Filling>>> =
            offers.map(|count| vec![None; count]).collect();
        let mut bins: Bins = Vec::new();
        while left.iter().any(|left| *left > 0) {
            let mut best: Option<(f64, usize, usize)> = None;
            for (place, (group, fillings)) in self.groups.iter().zip(&mut fillings).enumerate() {
                let is_own = |kind: &&usize| kinds[**kind].set == group.set;
                let mut own = group.takes.iter().filter(is_own);
                if !own.any(|kind| left[*kind] > 0) {
                    continue;
                }
                for (index, (offer, filling)) in group.offers.iter().zip(fillings).enumerate() {
                    if !filling
                        .as_ref()
                        .is_some_and(|known| known.is_possible(&left))
                    {
                        *filling = Some(fill(group, offer, kinds, &left, &mut self.work));
                    }
                    let worth = filling.as_ref().map_or(0.0, |filling| filling.worth);
                    let gain = worth / (offer.price + self.node_overhead);
                    let most = best.map_or(0.0, |(most, ..)| most * SMALLER_NODE_FACTOR);
                    if gain > most {
                        best = Some((gain, place, index));
                    }
                }
                if self.work > self.most_work {
                    return None;
                }
            }
            let (_, place, index) = best?;
            let filling = fillings[place][index].clone()?;
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
        Some(bins)
    }
}

/// Fills a node with the kinds of highest worth for their share of the free resources; it stays empty without a pod of the group's set.
fn fill(
    group: &RequirementGroup<'_>,
    offer: &Offer<'_>,
    kinds: &[Kind],
    left: &[usize],
    work: &mut usize,
) -> Filling {
    let mut filling = Filling {
        used: smallvec![0; offer.room.len()],
        ..Filling::default()
    };
    let mut left: SmallVec<[usize; 64]> = left.into();
    let mut own = false;
    let mut origin = None;
    loop {
        *work += group.takes.len();
        let free = |place: usize| offer.room[place].saturating_sub(filling.used[place]);
        let mut best: Option<(f64, usize, usize)> = None;
        for index in &group.takes {
            let kind = &kinds[*index];
            if left[*index] == 0 || !kind.may_join(origin) {
                continue;
            }
            let times = kind.times(free).min(left[*index]);
            if times == 0 {
                continue;
            }
            let share = |(place, need): &(usize, i64)| *need as f64 / free(*place) as f64;
            let score = kind.worth / kind.needs.iter().map(share).sum::<f64>();
            if best.is_none_or(|(most, ..)| score > most) {
                best = Some((score, *index, times));
            }
        }
        let Some((_, index, times)) = best else {
            break;
        };
        // Half at a time, because the scarce resource changes.
        let count = (times / 2).max(1);
        filling.put(index, &kinds[index], count);
        left[index] -= count;
        own |= kinds[index].set == group.set;
        origin = origin.or(kinds[index].origin);
    }
    if own { filling } else { Filling::default() }
}

/// Adjusts the worth of each kind to the mean of its worth and the price paid for it: a node's price, with that of its own, is shared by
/// worth.
pub(crate) fn learn(kinds: &mut [Kind], bins: &Bins, node_overhead: f64) {
    let mut paid = vec![0.0; kinds.len()];
    for (bin, copies) in bins {
        let worth = |(kind, count): &(usize, usize)| kinds[*kind].worth * *count as f64;
        let total: f64 = bin.counts.iter().map(worth).sum();
        for part in &bin.counts {
            let price = bin.price + node_overhead;
            paid[part.0] += price * worth(part) / total * *copies as f64;
        }
    }
    for (kind, paid) in kinds.iter_mut().zip(paid) {
        kind.worth = (kind.worth + paid / kind.pods.len() as f64) / 2.0;
    }
}

#[cfg(test)]
mod tests;
