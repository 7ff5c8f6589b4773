//! Packing the pods of wasteful claims again, onto cheaper machines.
//!
//! First fit puts all it can on one machine. A pod that must not be interrupted then makes a hundred others run on demand with
//! it, a pod that needs amd64 keeps others off cheaper arm64, and a machine large enough for everything may cost more than
//! several that fit. Once all pods have a place:
//!
//! 1. A pod is worth what its share of the machine that suits it best costs. Claims that cost little more than their pods are
//!    worth stay as they are; the others are taken apart, most wasteful first.
//! 2. Their pods are packed anew, several times (see [`packing`](super::packing)); of plans alike within a hundredth the one of
//!    fewest machines is taken, and made cheaper (see [`polish`](super::polish)).
//! 3. What comes out replaces the claims if it saves a twentieth, and is within the limits of the NodePool. Each machine counts
//!    for half the cheapest one more than its price, so that a fleet does not fall apart into many small machines. Claims of
//!    few pods are packed among themselves, and each node counts for a fifth of what theirs cost: ten pods that fit one
//!    node are not spread over two to save a sixth of its price.
//!
//! No pod changes its NodePool, nor its domain under a topology constraint; pods under a hostname constraint only stay with
//! pods they were with, so that constraints hold as they did. Claims with reservations, minValues, host ports, devices or
//! affinity to the host are left alone. The work is bounded by a count, not by time, so that equal inputs give equal plans.
//!
//! DIFFERS: upstream keeps what first fit found.

use std::{collections::BTreeSet, rc::Rc};

use rustc_hash::FxHashMap;

use super::{
    algebra::SetId,
    bits::Bits,
    claim::Claim,
    class::Class,
    fit::NO_ROW,
    packing::{Bin, Kind, Offer, Packer, Stall, choose, learn, machines, price},
    portfolio::MOST_PODS,
    request::{Packing, ReservedMode},
    run::{Fate, Run},
    topology::{GroupKind, Host},
    vectors::Vector,
};

/// How often a chunk is packed from each of two starts, with what each pod's place cost the time before as its worth.
const ROUNDS: usize = 3;
/// A claim that costs at most this many times what its pods are worth is good enough.
const GOOD_ENOUGH: f64 = 1.02;
/// What a new packing costs at most, relative to the old one.
const WORTH_IT: f64 = 0.95;
/// What a machine costs beside its price, as a share of the cheapest one: its disk, its address, what runs on every machine.
const BESIDE: f64 = 0.5;
/// Claims of fewer pods have few.
pub(super) const MANY_PODS: usize = 11;
/// What a node of few pods costs beside its price, as a share of what those of the plan cost on the mean.
pub(super) const BESIDE_FEW: f64 = 0.2;
/// Machines of a market that are considered.
const MOST_OFFERS: usize = 64;
/// Different kinds of pods that are packed together.
const MOST_LOTS: usize = 64;
/// How often, in a run, pods of one kind are put on a machine for comparison.
const MOST_WORK: usize = 2_000_000;
/// The same, to make plans of few machines cheaper.
const MOST_POLISHING: usize = 4_000_000;

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

impl Lot {
    /// What packing looks at; `worth` is what one of its pods is worth.
    fn kind(&self, worth: f64) -> Kind {
        let needs = self.requests.iter().copied().enumerate();
        Kind {
            set: self.set,
            needs: needs.filter(|(_, need)| *need > 0).collect(),
            origin: self.origin,
            count: self.items.len(),
            worth,
        }
    }
}

/// What a set of requirements can be had on: prices and rows, dearest first.
type Market = Rc<Vec<(f64, u32)>>;

/// A pod's class, what it asked for, what its volumes left, and what the claim it is on is.
type Asked = (usize, SetId, SetId, SetId);

/// What a pod asks for of a machine of its own, and whether it is under a hostname constraint.
type Own = (SetId, bool);

/// What is remembered while claims are repacked.
#[derive(Default)]
struct Ledger {
    /// Packs several rounds, and polishes.
    thorough: bool,
    markets: FxHashMap<SetId, Market>,
    /// What pods ask for of machines of their own.
    sets: FxHashMap<Asked, Option<Own>>,
    work: usize,
    polishing: usize,
    /// What a machine costs beside its price.
    beside: f64,
}

impl<'a> Run<'a> {
    /// See the module documentation. Returns whether pods were packed again, but not thoroughly.
    pub(super) fn repack(&mut self) -> bool {
        let Packing::LowestCost { from_pods } = self.request.packing else {
            return false;
        };
        if self.request.cancel.as_ref().is_some_and(|cancel| cancel()) {
            return false;
        }
        // Plans for more pods are made once; of several, the best one thoroughly.
        let thorough = self.strategy.thorough || self.items.len() > MOST_PODS;
        let mut replaced = Bits::default();
        let mut added: Vec<Claim> = Vec::new();
        let mut hasty = false;
        let (mut work, mut polishing) = (0, 0);
        for template in 0..self.solver.templates.len() {
            let mut ledger = Ledger {
                thorough,
                work,
                polishing,
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
                hasty |= !thorough;
                if let Some(claims) = self.repack_chunk(template, &chunk, &mut ledger) {
                    replaced.unite(&chunk.claims);
                    added.extend(claims);
                }
            }
            (work, polishing) = (ledger.work, ledger.polishing);
        }
        if !added.is_empty() {
            self.replace_claims(&replaced, added);
        }
        hasty
    }

    /// Claims of a template that cost clearly more than their pods are worth, in chunks to be packed together.
    fn wasteful(&mut self, template: usize, from_pods: usize, ledger: &mut Ledger) -> Vec<Chunk> {
        let mut found: Vec<(bool, f64, usize, f64, Vec<Lot>)> = Vec::new();
        for index in 0..self.claims.len() {
            let claim = &self.claims[index];
            if claim.template != template || claim.pods.len() < from_pods {
                continue;
            }
            let few = claim.pods.len() < MANY_PODS;
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
                found.push((few, price - worth, index, price, lots));
            }
        }
        found.sort_by(|a, b| (a.0.cmp(&b.0).then(b.1.total_cmp(&a.1))).then(a.2.cmp(&b.2)));
        let mut chunks: Vec<Chunk> = Vec::new();
        for (few, _, index, price, lots) in found {
            let last = chunks.len().wrapping_sub(1);
            match chunks.get_mut(last) {
                Some(chunk) if chunk.few == few && chunk.lots.len() + lots.len() <= MOST_LOTS => {
                    chunk.take(index, price, lots)
                }
                _ => {
                    let mut chunk = Chunk {
                        few,
                        ..Chunk::default()
                    };
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
        let beside = chunk.beside(ledger.beside);
        let mut packer = Packer {
            stalls: self.stalls(template, chunk, ledger),
            beside,
            width: self.width,
            work: ledger.work,
            most_work: MOST_WORK,
        };
        let rounds = if ledger.thorough { ROUNDS } else { 1 };
        let mut plans = Vec::new();
        for balanced in [false, true] {
            let worth = |lot: &Lot| if balanced { lot.balanced } else { lot.worth };
            let lots = chunk.lots.iter();
            let mut kinds: Vec<Kind> = lots.map(|lot| lot.kind(worth(lot))).collect();
            for _ in 0..rounds {
                let Some(mut bins) = packer.pack(&kinds) else {
                    break;
                };
                for (bin, _) in &mut bins {
                    bin.price = self.lowest_price(template, bin.set, &bin.used, None);
                }
                learn(&mut kinds, &bins);
                plans.push(bins);
            }
        }
        ledger.work = packer.work;
        let mut bins = choose(plans)?;
        if ledger.thorough {
            let mut kinds: Vec<Kind> = chunk.lots.iter().map(|lot| lot.kind(lot.worth)).collect();
            learn(&mut kinds, &bins);
            let left = MOST_POLISHING.saturating_sub(ledger.polishing);
            bins = packer.polish(&kinds, bins, left);
            ledger.polishing += packer.work - ledger.work;
            for (bin, _) in &mut bins {
                bin.price = self.lowest_price(template, bin.set, &bin.used, None);
            }
        }
        let price = price(&bins) + beside * machines(&bins) as f64;
        let before = chunk.price + beside * chunk.claims.len() as f64;
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
            uncounted: Vec::new(),
            drivers: None,
        }
    }

    /// What the pods of a chunk can be had on.
    fn stalls(&mut self, template: usize, chunk: &Chunk, ledger: &mut Ledger) -> Vec<Stall<'a>> {
        let (solver, width) = (self.solver, self.width);
        let compiled = &solver.templates[template];
        let sets: BTreeSet<SetId> = chunk.lots.iter().map(|lot| lot.set).collect();
        let mut stalls = Vec::with_capacity(sets.len());
        for set in sets {
            let offer = |(price, row): &(f64, u32)| Offer {
                price: *price,
                row: *row,
                room: compiled.row_room(*row as usize, width),
            };
            let market = self.market(template, set, ledger);
            let offers = market.iter().map(offer).collect();
            let lots = chunk.lots.iter().enumerate();
            let takes = lots
                .filter(|(_, lot)| self.algebra.join(set, lot.set) == Some(set))
                .map(|(index, _)| index)
                .collect();
            stalls.push(Stall { set, offers, takes });
        }
        stalls
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
    pub(super) fn lowest_price(
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
    /// Its claims have few pods each.
    few: bool,
    claims: Bits,
    /// What they cost.
    price: f64,
    lots: Vec<Lot>,
}

impl Chunk {
    /// What a node counts for beside its price; `usual` is what it does where nodes have many pods.
    fn beside(&self, usual: f64) -> f64 {
        if !self.few {
            return usual;
        }
        let mean = self.price / self.claims.len().max(1) as f64;
        usual.max(mean * BESIDE_FEW)
    }

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
