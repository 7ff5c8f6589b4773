//! Putting pods of a few kinds on machines for little money: the search itself, on numbers alone.
//!
//! Again and again the machine is opened that gets the most worth for its price. Each is filled in two ways: with what is worth
//! most first, and evenly, where the next pod is the one that is worth most for its share of the room that is left. Machines
//! filled alike that cost no more as one become one.

use smallvec::SmallVec;

use super::{algebra::SetId, vectors::Vector};

/// How much more worth for its price a smaller machine must get than a larger one.
const SMALLER_IF: f64 = 1.01;
/// A plan of fewer machines may have this much higher a price.
const FEWER_IF: f64 = 1.01;

/// Pods that are alike for packing.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    pub(super) set: SetId,
    /// What one asks for: resource and amount, above zero.
    pub(super) needs: SmallVec<[(usize, i64); 6]>,
    /// The claim it came from, if it is under a hostname constraint.
    pub(super) origin: Option<usize>,
    pub(super) count: usize,
    pub(super) worth: f64,
}

impl Kind {
    /// How many fit into what is free.
    fn times(&self, free: impl Fn(usize) -> i64) -> usize {
        let times = self.needs.iter().map(|(place, need)| free(*place) / need);
        times
            .min()
            .map_or(usize::MAX, |times| times.max(0) as usize)
    }
}

/// A machine on offer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer<'a> {
    pub(super) price: f64,
    pub(super) row: u32,
    pub(super) room: &'a [i64],
}

/// What can be had under one set of requirements, and who can use it.
#[derive(Clone, Debug)]
pub(super) struct Stall<'a> {
    pub(super) set: SetId,
    /// Dearest first.
    pub(super) offers: Vec<Offer<'a>>,
    /// Kinds that machines of this set take.
    pub(super) takes: Vec<usize>,
}

/// A machine that is opened, and how many of each kind it holds.
#[derive(Clone, Debug)]
pub(super) struct Bin {
    pub(super) set: SetId,
    pub(super) row: u32,
    pub(super) price: f64,
    pub(super) used: Vector,
    pub(super) counts: Vec<(usize, usize)>,
}

/// Machines with how many there are of each.
pub(super) type Bins = Vec<(Bin, usize)>;

/// What a machine may be filled with.
#[derive(Clone, Debug, Default)]
struct Filling {
    worth: f64,
    used: Vector,
    counts: Vec<(usize, usize)>,
}

impl Filling {
    /// Whether there are still pods for it.
    fn is_possible(&self, left: &[usize]) -> bool {
        self.counts
            .iter()
            .all(|(kind, count)| *count <= left[*kind])
    }
}

/// Packs pods, and counts what that takes.
#[derive(Debug)]
pub(super) struct Packer<'a> {
    pub(super) stalls: Vec<Stall<'a>>,
    /// What a machine costs beside its price.
    pub(super) beside: f64,
    /// How many resources there are.
    pub(super) width: usize,
    /// How often a kind was tried on a machine.
    pub(super) work: usize,
    /// How often it may be.
    pub(super) most_work: usize,
}

impl Packer<'_> {
    /// Places all pods; `None` if they cannot be, or that takes too long.
    pub(super) fn pack(&mut self, kinds: &[Kind]) -> Option<Bins> {
        self.pack_on(kinds, |_| true)
    }

    /// The same, on those machines on offer that `considers` holds for.
    pub(super) fn pack_on(
        &mut self,
        kinds: &[Kind],
        considers: impl Fn(&Offer<'_>) -> bool,
    ) -> Option<Bins> {
        let mut left: Vec<usize> = kinds.iter().map(|kind| kind.count).collect();
        // Who is left to be placed, the own kinds of a stall first, then those worth most.
        let takes: Vec<Vec<usize>> = (self.stalls.iter())
            .map(|stall| {
                let there = stall.takes.iter().copied();
                let mut takes: Vec<usize> = there.filter(|kind| left[*kind] > 0).collect();
                let rank = |kind: &usize| (kinds[*kind].set != stall.set, -kinds[*kind].worth);
                takes.sort_by(|a, b| {
                    let (a, b) = (rank(a), rank(b));
                    a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
                });
                takes
            })
            .collect();
        // A filling stays what it is until there are no pods for it any more.
        let offers = self.stalls.iter().map(|stall| stall.offers.len());
        let mut fillings: Vec<Vec<[Option<Filling>; 2]>> =
            offers.map(|count| vec![[None, None]; count]).collect();
        let mut bins: Bins = Vec::new();
        while left.iter().any(|left| *left > 0) {
            let mut best: Option<(f64, [usize; 3])> = None;
            for (place, (stall, fillings)) in self.stalls.iter().zip(&mut fillings).enumerate() {
                let own = |kind: &&usize| kinds[**kind].set == stall.set;
                if !(takes[place].iter().take_while(own)).any(|kind| left[*kind] > 0) {
                    continue;
                }
                for (index, (offer, tried)) in stall.offers.iter().zip(fillings).enumerate() {
                    if !considers(offer) {
                        continue;
                    }
                    for (way, filling) in tried.iter_mut().enumerate() {
                        if !filling.as_ref().is_some_and(|f| f.is_possible(&left)) {
                            let scene = Scene {
                                set: stall.set,
                                takes: &takes[place],
                                room: offer.room,
                                kinds,
                                left: &left,
                                width: self.width,
                            };
                            let found = match way {
                                0 => scene.dearest_first(&mut self.work),
                                _ => scene.evenly(&mut self.work),
                            };
                            *filling = Some(found);
                        }
                        let worth = filling.as_ref().map_or(0.0, |filling| filling.worth);
                        let gain = worth / (offer.price + self.beside);
                        let better = |(most, at): &(f64, [usize; 3])| {
                            let same = at[..2] == [place, index];
                            gain > if same { *most } else { most * SMALLER_IF }
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
            let stall = &self.stalls[place];
            let bin = Bin {
                set: stall.set,
                row: stall.offers[index].row,
                price: stall.offers[index].price,
                used: filling.used,
                counts: filling.counts,
            };
            bins.push((bin, copies));
        }
        Some(self.joined(bins))
    }

    /// Makes one machine of several alike where that costs no more.
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

    /// The machine that holds most machines like this one, two at least and `most` at most, for no more than they cost.
    fn larger(&self, bin: &Bin, most: usize) -> Option<(usize, Offer<'_>)> {
        let stall = self.stalls.iter().find(|stall| stall.set == bin.set)?;
        let mut best: Option<(usize, Offer<'_>)> = None;
        for offer in &stall.offers {
            let room = offer.room.iter().zip(&bin.used);
            let times = room
                .filter(|(_, used)| **used > 0)
                .map(|(room, used)| (room / used).max(0) as usize)
                .min()
                .map_or(0, |times| times.min(most));
            let before = (bin.price + self.beside) * times as f64;
            let pays = times > 1 && offer.price + self.beside <= before;
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

/// How many machines there are.
pub(super) fn machines(bins: &Bins) -> usize {
    bins.iter().map(|(_, copies)| copies).sum()
}

/// What all machines cost an hour.
pub(super) fn price(bins: &Bins) -> f64 {
    bins.iter()
        .map(|(bin, copies)| bin.price * *copies as f64)
        .sum()
}

/// Of plans, the one of fewest machines among those of the lowest price.
pub(super) fn choose(plans: Vec<Bins>) -> Option<Bins> {
    let plans: Vec<(f64, Bins)> = plans.into_iter().map(|bins| (price(&bins), bins)).collect();
    let least = plans
        .iter()
        .map(|(price, _)| *price)
        .min_by(f64::total_cmp)?;
    let cheap = plans
        .into_iter()
        .filter(|(price, _)| *price <= least * FEWER_IF);
    let best = cheap.min_by(|a, b| {
        machines(&a.1)
            .cmp(&machines(&b.1))
            .then(a.0.total_cmp(&b.0))
    });
    best.map(|(_, bins)| bins)
}

/// Makes a kind worth what its places cost, half and half with what it was worth: the price of each machine is shared by worth.
pub(super) fn learn(kinds: &mut [Kind], bins: &Bins) {
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

/// A machine to be filled.
struct Scene<'s> {
    set: SetId,
    /// Kinds that may be put on it.
    takes: &'s [usize],
    room: &'s [i64],
    kinds: &'s [Kind],
    left: &'s [usize],
    width: usize,
}

impl Scene<'_> {
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

    /// Fills it with the set's own kinds first, then with those worth most; nothing, if none is of the set itself.
    fn dearest_first(&self, work: &mut usize) -> Filling {
        *work += self.takes.len();
        let mut filling = self.empty();
        let mut own = false;
        let mut origin = None;
        for index in self.takes {
            let kind = &self.kinds[*index];
            if kind.set != self.set && !own {
                break;
            }
            if self.left[*index] == 0 || !suits(kind, origin) {
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

    /// Fills it with what is worth most for its share of what is left; nothing, if none is of the set itself.
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
                if left[*index] == 0 || !suits(kind, origin) {
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
            // Not all at once: what is scarce changes.
            let count = (times / 2).max(1);
            self.put(&mut filling, index, count);
            left[index] -= count;
            own |= self.kinds[index].set == self.set;
            origin = origin.or(self.kinds[index].origin);
        }
        if own { filling } else { Filling::default() }
    }
}

/// Whether a kind may join pods of this origin.
fn suits(kind: &Kind, origin: Option<usize>) -> bool {
    kind.origin.is_none() || origin.is_none() || kind.origin == origin
}

#[cfg(test)]
mod tests {
    use super::super::algebra::ANYTHING;
    use super::*;

    fn kind(cpu: i64, memory: i64, count: usize, worth: f64) -> Kind {
        let needs = [(0, cpu), (1, memory)].into_iter();
        Kind {
            set: ANYTHING,
            needs: needs.filter(|(_, need)| *need > 0).collect(),
            origin: None,
            count,
            worth,
        }
    }

    fn packer(machines: &[(f64, [i64; 2])], kinds: usize) -> Packer<'_> {
        let offers = machines.iter().enumerate();
        let offers = offers.map(|(row, (price, room))| Offer {
            price: *price,
            row: row as u32,
            room,
        });
        let stall = Stall {
            set: ANYTHING,
            offers: offers.collect(),
            takes: (0..kinds).collect(),
        };
        Packer {
            stalls: vec![stall],
            beside: 0.0,
            width: 2,
            work: 0,
            most_work: 100_000,
        }
    }

    /// Row, number and contents of machines.
    type Found = Vec<(u32, usize, Vec<(usize, usize)>)>;

    fn read(bins: Bins) -> Found {
        let mut found: Found = bins
            .into_iter()
            .map(|(mut bin, copies)| {
                bin.counts.sort_unstable();
                (bin.row, copies, bin.counts)
            })
            .collect();
        found.sort();
        found
    }

    fn pack(machines: &[(f64, [i64; 2])], kinds: &[Kind]) -> Found {
        let bins = packer(machines, kinds.len()).pack(kinds);
        read(bins.unwrap_or_default())
    }

    #[test]
    fn pods_that_need_different_things_share_machines() {
        // Dearest first, four of the one and a lonely two of the other would go on each machine.
        let kinds = [kind(3, 1, 20, 3.1), kind(1, 3, 20, 3.0)];
        assert_eq!(
            pack(&[(4.0, [8, 8])], &kinds),
            [(0, 10, vec![(0, 2), (1, 2)])]
        );
    }

    #[test]
    fn machines_alike_become_fewer_that_cost_no_more() {
        let machines = [(40.0, [64, 64]), (8.0, [16, 16]), (2.0, [4, 4])];
        let small = Bin {
            set: ANYTHING,
            row: 2,
            price: 2.0,
            used: [4, 3].into_iter().collect(),
            counts: vec![(0, 2)],
        };
        let found = read(packer(&machines, 1).joined(vec![(small, 9)]));
        assert_eq!(found, [(1, 2, vec![(0, 8)]), (2, 1, vec![(0, 2)])]);
    }

    #[test]
    fn pods_of_different_claims_under_a_hostname_constraint_stay_apart() {
        let of = |origin| Kind {
            origin: Some(origin),
            ..kind(1, 1, 2, 1.0)
        };
        let found = pack(&[(4.0, [4, 4])], &[of(0), of(1)]);
        assert_eq!(found, [(0, 1, vec![(0, 2)]), (0, 1, vec![(1, 2)])]);
    }

    #[test]
    fn what_fits_nowhere_is_not_packed() {
        assert_eq!(pack(&[(4.0, [4, 4])], &[kind(5, 1, 1, 1.0)]), []);
    }

    #[test]
    fn of_plans_that_cost_nearly_the_same_the_one_of_fewest_machines_is_chosen() {
        let plan = |machines: usize, price: f64| {
            let bin = Bin {
                set: ANYTHING,
                row: 0,
                price,
                used: Vector::new(),
                counts: Vec::new(),
            };
            vec![(bin, machines)]
        };
        let chosen = |plans| choose(plans).map(|bins| machines(&bins));
        assert_eq!(chosen(vec![plan(10, 1.0), plan(2, 5.04)]), Some(2));
        assert_eq!(chosen(vec![plan(10, 1.0), plan(2, 5.06)]), Some(10));
        assert_eq!(chosen(vec![]), None);
    }
}
