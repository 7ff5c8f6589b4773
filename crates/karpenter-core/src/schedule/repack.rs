//! Packing the pods of wasteful claims again, onto cheaper machines.
//!
//! First fit puts all it can on one machine. A pod that must not be interrupted then makes a hundred others run on demand with
//! it, a pod that needs amd64 keeps others off cheaper arm64, and a machine large enough for everything may cost more than
//! several that fit. Once all pods have a place:
//!
//! 1. A pod is worth what its share of the machine that suits it best costs. Claims that cost little more than their pods are
//!    worth stay as they are; the others are taken apart, most wasteful first.
//! 2. Their pods are packed anew: again and again the machine is opened that gets the most worth for its price, of machines
//!    alike within a hundredth the larger.
//! 3. What comes out replaces the claims if it saves a twentieth, and is within the limits of the NodePool. Each machine counts
//!    for the cheapest one more than its price, so that a fleet does not fall apart into many small machines.
//!
//! No pod changes its NodePool, nor its domain under a topology constraint; pods under a hostname constraint only stay with
//! pods they were with, so that constraints hold as they did. Claims with reservations, minValues, host ports, devices or
//! affinity to the host are left alone. The work is bounded by a count, not by time, so that equal inputs give equal plans.
//!
//! DIFFERS: upstream keeps what first fit found.

use std::{collections::BTreeMap, rc::Rc};

use rustc_hash::FxHashMap;

use super::{
    algebra::SetId,
    bits::Bits,
    claim::Claim,
    class::Class,
    fit::NO_ROW,
    request::{Packing, ReservedMode},
    run::{Fate, Run},
    topology::{GroupKind, Host},
    vectors::Vector,
};

/// How often a chunk is packed, with what each pod's place cost the time before as its worth.
const ROUNDS: usize = 4;
/// A claim that costs at most this many times what its pods are worth is good enough.
const GOOD_ENOUGH: f64 = 1.02;
/// What a new packing costs at most, relative to the old one.
const WORTH_IT: f64 = 0.95;
/// How much more worth for its price a smaller machine must get than a larger one.
const SMALLER_IF: f64 = 1.01;
/// What a machine costs beside its price, as a share of the cheapest one: its disk, its address, what runs on every machine.
const BESIDE: f64 = 1.0;
/// Machines of a market that are considered.
const MOST_OFFERS: usize = 64;
/// Different kinds of pods that are packed together.
const MOST_LOTS: usize = 64;
/// How often, in a run, pods of one kind are put on a machine for comparison.
const MOST_WORK: usize = 500_000;

/// Pods that are alike for packing.
struct Lot {
    set: SetId,
    requests: Vector,
    /// The claim it came from, if it is under a hostname constraint.
    origin: Option<usize>,
    items: Vec<u32>,
    worth: f64,
    /// What it is worth if others use what it leaves of a machine.
    balanced: f64,
}

/// What packing looks at of a lot.
#[derive(Clone)]
struct Kind {
    set: SetId,
    requests: Vector,
    origin: Option<usize>,
    count: usize,
    worth: f64,
}

impl Kind {
    fn of(lot: &Lot) -> Self {
        Self {
            set: lot.set,
            requests: lot.requests.clone(),
            origin: lot.origin,
            count: lot.items.len(),
            worth: lot.worth,
        }
    }

    /// With what it is worth if others use what it leaves of a machine.
    fn balanced(lot: &Lot) -> Self {
        Self {
            worth: lot.balanced,
            ..Self::of(lot)
        }
    }
}

/// What a set of requirements can be had on: prices and rows, dearest first.
type Market = Rc<Vec<(f64, u32)>>;

/// A machine of a new packing, and how many of each lot it holds.
#[derive(Clone)]
struct Bin {
    set: SetId,
    row: u32,
    price: f64,
    used: Vector,
    counts: Vec<(usize, usize)>,
}

/// A pod's class, what it asked for, what its volumes left, and what the claim it is on is.
type Asked = (usize, SetId, SetId, SetId);

/// What a pod asks for of a machine of its own, and whether it is under a hostname constraint.
type Own = (SetId, bool);

/// A machine as it is being filled.
#[derive(Default)]
struct Load {
    used: Vector,
    counts: Vec<(usize, usize)>,
}

/// What is remembered while claims are repacked.
#[derive(Default)]
struct Ledger {
    markets: FxHashMap<SetId, Market>,
    /// What pods ask for of machines of their own.
    sets: FxHashMap<Asked, Option<Own>>,
    work: usize,
    /// What a machine costs beside its price.
    beside: f64,
}

impl Run<'_> {
    /// See the module documentation.
    pub(super) fn repack(&mut self) {
        let Packing::LowestCost { from_pods } = self.request.packing else {
            return;
        };
        if self.request.cancel.as_ref().is_some_and(|cancel| cancel()) {
            return;
        }
        let mut replaced = Bits::default();
        let mut added: Vec<Claim> = Vec::new();
        let mut work = 0;
        for template in 0..self.solver.templates.len() {
            let mut ledger = Ledger {
                work,
                ..Ledger::default()
            };
            let compiled = &self.solver.templates[template];
            let tracked = self.request.reserved_mode != ReservedMode::Off
                && self.solver.catalogues[compiled.catalogue].has_reservations;
            if tracked || self.algebra.has_min_values(compiled.set) {
                continue;
            }
            let set = compiled.set;
            let mask = self.mask(template, set);
            let cheapest = self.by_price(template, set, &mask).first();
            ledger.beside = cheapest.map_or(0.0, |(price, _)| price * BESIDE);
            for chunk in self.wasteful(template, from_pods, &mut ledger) {
                if ledger.work > MOST_WORK {
                    break;
                }
                if let Some(claims) = self.repack_chunk(template, &chunk, &mut ledger) {
                    replaced.unite(&chunk.claims);
                    added.extend(claims);
                }
            }
            work = ledger.work;
        }
        if !added.is_empty() {
            self.replace_claims(&replaced, added);
        }
    }

    /// Claims of a template that cost clearly more than their pods are worth, in chunks to be packed together.
    fn wasteful(&mut self, template: usize, from_pods: usize, ledger: &mut Ledger) -> Vec<Chunk> {
        let mut found: Vec<(f64, usize, f64, Vec<Lot>)> = Vec::new();
        for index in 0..self.claims.len() {
            let claim = &self.claims[index];
            if claim.template != template || claim.pods.len() < from_pods {
                continue;
            }
            let Some(lots) = self.lots(index, ledger) else {
                continue;
            };
            let worth: f64 = lots
                .iter()
                .map(|lot| lot.worth * lot.items.len() as f64)
                .sum();
            let claim = &self.claims[index];
            let (set, used, allowed) = (claim.set, claim.used.clone(), claim.allowed.clone());
            let price = self.lowest_price(template, set, &used, allowed.as_deref());
            if price > worth * GOOD_ENOUGH {
                found.push((price - worth, index, price, lots));
            }
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut chunks: Vec<Chunk> = Vec::new();
        for (_, index, price, lots) in found {
            let last = chunks.len().wrapping_sub(1);
            match chunks.get_mut(last) {
                Some(chunk) if chunk.lots.len() + lots.len() <= MOST_LOTS => {
                    chunk.take(index, price, lots)
                }
                _ => {
                    let mut chunk = Chunk::default();
                    chunk.take(index, price, lots);
                    chunks.push(chunk);
                }
            }
        }
        chunks
    }

    /// The pods of a claim by kind; `None` if it is to be left alone.
    fn lots(&mut self, index: usize, ledger: &mut Ledger) -> Option<Vec<Lot>> {
        let claim = &self.claims[index];
        let (template, claim_set, width) = (claim.template, claim.set, self.width);
        if claim.min_values_relaxed || !claim.ports.is_empty() || !claim.reservations.is_empty() {
            return None;
        }
        let mut lots: Vec<Lot> = Vec::new();
        let mut place: FxHashMap<(SetId, &[i64], bool), usize> = FxHashMap::default();
        let classes = std::mem::take(&mut self.classes);
        let pods = std::mem::take(&mut self.claims[index].pods);
        let mut movable = true;
        for pod in &pods {
            let item = &self.items[*pod as usize];
            let key = (item.class, item.asked, item.volume, claim_set);
            let class = &classes[item.class];
            let Some((set, apart)) = self.own_set(template, class, key, ledger) else {
                movable = false;
                break;
            };
            let at = *place
                .entry((set, &class.requests, apart))
                .or_insert_with(|| {
                    lots.push(Lot {
                        set,
                        requests: class.requests.iter().copied().collect(),
                        origin: apart.then_some(index),
                        items: Vec::new(),
                        worth: 0.0,
                        balanced: 0.0,
                    });
                    lots.len() - 1
                });
            lots[at].items.push(*pod);
        }
        drop(place);
        self.classes = classes;
        self.claims[index].pods = pods;
        if !movable {
            return None;
        }
        for lot in &mut lots {
            let market = self.market(template, lot.set, ledger);
            let compiled = &self.solver.templates[template];
            (lot.worth, lot.balanced) = (f64::MAX, f64::MAX);
            for (price, row) in market.iter() {
                let room = compiled.row_room(*row as usize, width);
                if let Some((most, mean)) = shares(&lot.requests, room) {
                    lot.worth = lot.worth.min(price * most);
                    lot.balanced = lot.balanced.min(price * mean);
                }
            }
            if lot.worth == f64::MAX {
                return None;
            }
        }
        Some(lots)
    }

    /// What a pod asks for of a machine of its own; `None` if it has to stay where it is.
    fn own_set(
        &mut self,
        template: usize,
        class: &Class,
        key: Asked,
        ledger: &mut Ledger,
    ) -> Option<Own> {
        if let Some(known) = ledger.sets.get(&key) {
            return *known;
        }
        let set = self.work_out_own_set(template, class, key);
        ledger.sets.insert(key, set);
        set
    }

    fn work_out_own_set(
        &mut self,
        template: usize,
        class: &Class,
        (_, asked, volume, claim_set): Asked,
    ) -> Option<Own> {
        if !class.ports.is_empty() || !class.shape.resource_claims.is_empty() {
            return None;
        }
        let set = self
            .algebra
            .join(self.solver.templates[template].set, asked)?;
        let mut set = self.algebra.join(set, volume)?;
        let mut apart = false;
        for group in class.groups() {
            let group = &self.groups[group];
            let axis = &self.axes[group.axis];
            if axis.is_hostname {
                if group.kind() == GroupKind::Affinity {
                    return None;
                }
                apart = true;
                continue;
            }
            // Whether it counts may depend on what else the machine is.
            if group.filter_sets.is_some() {
                return None;
            }
            if let Some(req) = self.algebra.get(claim_set, axis.key) {
                set = self.algebra.narrow(set, req)?;
            }
        }
        Some((set, apart))
    }

    /// Machines that may be had under a set of requirements and are not beaten by another, some of them if there are many.
    fn market(&mut self, template: usize, set: SetId, ledger: &mut Ledger) -> Market {
        if let Some(market) = ledger.markets.get(&set) {
            return market.clone();
        }
        let mask = self.mask(template, set);
        let priced = self.by_price(template, set, &mask);
        let compiled = &self.solver.templates[template];
        let mut kept: Vec<(f64, u32)> = Vec::new();
        for (price, row) in priced {
            let room = compiled.row_room(*row as usize, self.width);
            let beaten = |(_, other): &(f64, u32)| {
                let more = compiled.row_room(*other as usize, self.width);
                room.iter().zip(more).all(|(own, more)| own <= more)
            };
            if !kept.iter().rev().any(beaten) {
                kept.push((*price, *row));
            }
        }
        let step = kept.len().div_ceil(MOST_OFFERS).max(1);
        let market: Vec<(f64, u32)> = kept.into_iter().rev().step_by(step).collect();
        let market = Rc::new(market);
        ledger.markets.insert(set, market.clone());
        market
    }

    /// Packs the pods of a chunk anew; `None` if that does not pay.
    fn repack_chunk(
        &mut self,
        template: usize,
        chunk: &Chunk,
        ledger: &mut Ledger,
    ) -> Option<Vec<Claim>> {
        let mut lots: Vec<Kind> = chunk.lots.iter().map(Kind::of).collect();
        let mut best: Option<(f64, Vec<(Bin, usize)>)> = None;
        for round in 0..ROUNDS {
            if round == ROUNDS / 2 {
                // From the start again, but seen otherwise.
                lots = chunk.lots.iter().map(Kind::balanced).collect();
            }
            let Some(mut bins) = self.pack(template, &lots, ledger) else {
                break;
            };
            let mut price = 0.0;
            for (bin, copies) in &mut bins {
                bin.price = self.lowest_price(template, bin.set, &bin.used, None);
                price += (bin.price + ledger.beside) * *copies as f64;
            }
            learn(&mut lots, &bins);
            if best.as_ref().is_none_or(|(least, _)| price < *least) {
                best = Some((price, bins));
            }
        }
        let (price, bins) = best?;
        let before = chunk.price + ledger.beside * chunk.claims.len() as f64;
        if price > before * WORTH_IT {
            return None;
        }
        let mut claims: Vec<Claim> = Vec::new();
        let mut next: Vec<usize> = vec![0; chunk.lots.len()];
        for (bin, copies) in bins {
            for _ in 0..copies {
                let mut pods: Vec<u32> = Vec::new();
                for (lot, count) in &bin.counts {
                    let from = next[*lot];
                    pods.extend(&chunk.lots[*lot].items[from..from + count]);
                    next[*lot] += count;
                }
                pods.sort_unstable();
                claims.push(self.claim_of(template, &bin, pods));
            }
        }
        self.charge_anew(template, chunk, &mut claims)
            .then_some(claims)
    }

    fn claim_of(&self, template: usize, bin: &Bin, pods: Vec<u32>) -> Claim {
        let compiled = &self.solver.templates[template];
        Claim {
            template,
            set: bin.set,
            used: bin.used.clone(),
            pods,
            witness: bin.row,
            alive: compiled.order.clone(),
            allowed: None,
            ports: Vec::new(),
            reservations: Rc::default(),
            min_values_relaxed: false,
            charged: vec![0; compiled.limit_names.len()],
            charged_for: vec![NO_ROW; compiled.limit_names.len()],
            pending: Vec::new(),
            drivers: None,
        }
    }

    /// Opens machine after machine, each the one that gets the most worth for its price.
    fn pack(
        &mut self,
        template: usize,
        lots: &[Kind],
        ledger: &mut Ledger,
    ) -> Option<Vec<(Bin, usize)>> {
        let mut left: Vec<usize> = lots.iter().map(|lot| lot.count).collect();
        // For each set, the lots a machine of it takes: its own first, then those worth most.
        let mut orders: BTreeMap<SetId, (Market, Vec<usize>)> = BTreeMap::new();
        for lot in lots {
            if orders.contains_key(&lot.set) {
                continue;
            }
            let mut order: Vec<usize> = (0..lots.len())
                .filter(|other| self.algebra.join(lot.set, lots[*other].set) == Some(lot.set))
                .collect();
            let rank = |other: &usize| (lots[*other].set != lot.set, -lots[*other].worth);
            order.sort_by(|a, b| {
                let (a, b) = (rank(a), rank(b));
                a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
            });
            let market = self.market(template, lot.set, ledger);
            orders.insert(lot.set, (market, order));
        }
        let mut bins: Vec<(Bin, usize)> = Vec::new();
        let mut load = Load::default();
        while left.iter().any(|left| *left > 0) {
            let mut best: Option<(f64, Bin)> = None;
            for (set, (market, order)) in &orders {
                let own = order
                    .iter()
                    .take_while(|lot| lots[**lot].set == *set)
                    .any(|lot| left[*lot] > 0);
                if !own {
                    continue;
                }
                for (price, row) in market.iter() {
                    ledger.work += order.len();
                    let room = self.solver.templates[template].row_room(*row as usize, self.width);
                    let gain =
                        fill(*set, room, lots, order, &left, &mut load) / (price + ledger.beside);
                    if gain > 0.0
                        && best
                            .as_ref()
                            .is_none_or(|(most, _)| gain > most * SMALLER_IF)
                    {
                        let bin = Bin {
                            set: *set,
                            row: *row,
                            price: *price,
                            used: load.used.clone(),
                            counts: load.counts.clone(),
                        };
                        best = Some((gain, bin));
                    }
                }
                if ledger.work > MOST_WORK {
                    return None;
                }
            }
            let (_, bin) = best?;
            let times = |(lot, count): &(usize, usize)| left[*lot] / count;
            let copies = bin.counts.iter().map(times).min().unwrap_or(0);
            for (lot, count) in &bin.counts {
                left[*lot] -= count * copies;
            }
            bins.push((bin, copies));
        }
        Some(bins)
    }

    /// Charges new claims instead of those of a chunk to the limits of the NodePool, if they are within them.
    fn charge_anew(&mut self, template: usize, chunk: &Chunk, claims: &mut [Claim]) -> bool {
        let compiled = &self.solver.templates[template];
        let count = compiled.limit_names.len();
        if count == 0 {
            return true;
        }
        let mut available = self.limits[template].clone();
        for index in chunk.claims.iter() {
            for (available, charged) in available.iter_mut().zip(&self.claims[index].charged) {
                *available = available.saturating_add(*charged);
            }
        }
        let number = claims.len() as i64;
        let costs = |row: usize| &compiled.limit_costs[row * count..(row + 1) * count];
        let mut left = available.clone();
        for claim in claims.iter_mut() {
            // Everyone gets an even share, or what its machine takes: larger machines are no option for it.
            let own = costs(claim.witness as usize);
            let within = |row: &usize| {
                (costs(*row).iter().zip(own).zip(&available))
                    .all(|((cost, own), available)| cost <= own || *cost <= available / number)
            };
            let allowed: Bits = compiled.rows.iter().filter(within).collect();
            let rows = self.rows_with_room(template, claim.set, &claim.used, Some(&allowed));
            for row in rows.iter() {
                for (charged, cost) in claim.charged.iter_mut().zip(costs(row)) {
                    *charged = (*charged).max(*cost);
                }
            }
            for (left, charged) in left.iter_mut().zip(&claim.charged) {
                *left = left.saturating_sub(*charged);
            }
            claim.allowed = Some(Rc::new(allowed));
        }
        if left.iter().any(|left| *left < 0) {
            return false;
        }
        self.limits[template] = left;
        self.refresh_limits(template);
        true
    }

    /// Puts new claims behind those that stay, and tells the pods.
    fn replace_claims(&mut self, replaced: &Bits, added: Vec<Claim>) {
        let old = std::mem::take(&mut self.claims);
        let stay = old.into_iter().enumerate();
        self.claims = stay
            .filter(|(index, _)| !replaced.contains(*index))
            .map(|(_, claim)| claim)
            .chain(added)
            .collect();
        self.levels.clear();
        for (index, claim) in self.claims.iter().enumerate() {
            for pod in &claim.pods {
                self.items[*pod as usize].fate = Fate::Placed(Host::Claim(index));
            }
        }
    }

    /// The price of the cheapest row that meets a set and has room.
    fn lowest_price(
        &mut self,
        template: usize,
        set: SetId,
        used: &[i64],
        allowed: Option<&Bits>,
    ) -> f64 {
        let mask = self.mask(template, set);
        let compiled = &self.solver.templates[template];
        let fits = |row: usize| {
            allowed.is_none_or(|allowed| allowed.contains(row))
                && used
                    .iter()
                    .zip(compiled.row_room(row, self.width))
                    .all(|(used, room)| used <= room)
        };
        self.by_price(template, set, &mask)
            .iter()
            .find(|(_, row)| fits(*row as usize))
            .map_or(f64::MAX, |(price, _)| *price)
    }
}

/// Claims that are packed anew together.
#[derive(Default)]
struct Chunk {
    claims: Bits,
    /// What they cost.
    price: f64,
    lots: Vec<Lot>,
}

impl Chunk {
    fn take(&mut self, claim: usize, price: f64, lots: Vec<Lot>) {
        self.claims.insert(claim);
        self.price += price;
        for lot in lots {
            let alike = |other: &&mut Lot| {
                (other.set, &other.requests, other.origin) == (lot.set, &lot.requests, lot.origin)
            };
            match self.lots.iter_mut().find(alike) {
                Some(other) => other.items.extend(lot.items),
                None => self.lots.push(lot),
            }
        }
    }
}

/// Makes a lot worth what its places cost, half and half with what it was worth: the price of each machine is shared by worth.
fn learn(lots: &mut [Kind], bins: &[(Bin, usize)]) {
    let mut paid = vec![0.0; lots.len()];
    for (bin, copies) in bins {
        let worth = |(lot, count): &(usize, usize)| lots[*lot].worth * *count as f64;
        let total: f64 = bin.counts.iter().map(worth).sum();
        for part in &bin.counts {
            paid[part.0] += bin.price * worth(part) / total * *copies as f64;
        }
    }
    for (lot, paid) in lots.iter_mut().zip(paid) {
        lot.worth = (lot.worth + paid / lot.count as f64) / 2.0;
    }
}

/// The largest and the mean share of a machine's resources that a pod takes; `None` if it does not fit.
fn shares(requests: &[i64], room: &[i64]) -> Option<(f64, f64)> {
    let mut most: f64 = 0.0;
    let mut sum = 0.0;
    let mut number = 0.0;
    for (need, room) in requests.iter().zip(room) {
        if need > room {
            return None;
        }
        if *need > 0 {
            let share = *need as f64 / *room as f64;
            most = most.max(share);
            sum += share;
            number += 1.0;
        }
    }
    Some((most, if number > 0.0 { sum / number } else { 0.0 }))
}

/// Fills a machine in the given order; what its pods are worth, or nothing if none is of the set itself.
fn fill(
    set: SetId,
    room: &[i64],
    lots: &[Kind],
    order: &[usize],
    left: &[usize],
    load: &mut Load,
) -> f64 {
    load.used.clear();
    load.used.resize(room.len(), 0);
    load.counts.clear();
    let mut worth = 0.0;
    let mut own = false;
    let mut origin = None;
    for index in order {
        let lot = &lots[*index];
        if lot.set != set && !own {
            return 0.0;
        }
        if left[*index] == 0 || (lot.origin.is_some() && origin.is_some_and(|o| o != lot.origin)) {
            continue;
        }
        let free = room.iter().zip(&load.used).zip(&lot.requests);
        let times = free
            .filter(|(_, need)| **need > 0)
            .map(|((room, used), need)| (room.saturating_sub(*used) / need).max(0) as usize)
            .min()
            .unwrap_or(usize::MAX);
        let count = times.min(left[*index]);
        if count == 0 {
            continue;
        }
        for (used, need) in load.used.iter_mut().zip(&lot.requests) {
            *used = used.saturating_add(need.saturating_mul(count as i64));
        }
        load.counts.push((*index, count));
        worth += lot.worth * count as f64;
        own |= lot.set == set;
        if lot.origin.is_some() {
            origin = Some(lot.origin);
        }
    }
    worth
}
