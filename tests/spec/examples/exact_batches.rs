//! Prints generated batches of pods without topology constraints, with the engine's plan of each: `exact_batches [BATCHES]`. One JSON
//! object per line, for `tests/spec/exact/solve.py`, which computes the cheapest plan there is.

use std::io::{Result, Write, stdout};

use karpenter_api::labels;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::resources::{CPU, MEMORY, PODS};
use karpenter_core::schedule::{Query, schedule};
use karpenter_spec::{SolveSettings, engine};
use serde_json::{Value, json};

#[path = "../benches/schedule-cost/mixes.rs"]
#[expect(dead_code, reason = "the mixes are those of the bench")]
mod mixes;

use mixes::{Deployment, Place};

/// A pseudo-random sequence (splitmix64).
struct Random(u64);

impl Random {
    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        values[((mixed ^ (mixed >> 31)) % values.len() as u64) as usize]
    }
}

/// Returns up to 40 pods of up to five kinds.
fn batch(seed: u64) -> Vec<Deployment> {
    let mut random = Random(seed);
    let kinds = random.of(&[1, 2, 3, 4, 5]);
    let most = 40 / kinds;
    let counts: Vec<usize> = (1..=most).collect();
    let kind = |_| Deployment {
        replicas: random.of(&counts),
        cpu: random.of(&[100, 250, 500, 900, 1500, 2000, 3500, 7000]),
        memory: random.of(&[128, 512, 1024, 2048, 4096, 7168, 15360, 30720]),
        gpus: 0,
        place: random.of(&[Place::Anywhere, Place::Amd64, Place::OnDemand]),
    };
    (0..kinds).map(kind).collect()
}

/// Returns what an instance type offers: room, architecture, and its lowest prices on demand and as spot.
fn offer(kind: &InstanceType) -> Value {
    let price = |capacity_type: &str| {
        let offerings = kind.offerings.iter().filter(|offering| {
            let requirement = offering.requirements.get(labels::CAPACITY_TYPE);
            requirement.is_some_and(|requirement| requirement.has(capacity_type))
        });
        offerings
            .map(|offering| offering.price)
            .min_by(f64::total_cmp)
    };
    let arch = kind.requirements.get(labels::ARCH);
    let room = kind.allocatable();
    json!({
        "name": kind.name,
        "arm": arch.is_some_and(|arch| arch.has(labels::ARCH_ARM64)),
        "room": [room.get(CPU), room.get(MEMORY), room.get(PODS)],
        "prices": [price(labels::CAPACITY_TYPE_ON_DEMAND), price(labels::CAPACITY_TYPE_SPOT)],
    })
}

fn main() -> Result<()> {
    let batches = std::env::args().nth(1);
    let batches: u64 = batches
        .and_then(|number| number.parse().ok())
        .unwrap_or(300);
    let mut out = stdout().lock();
    for seed in 0..batches {
        let deployments = batch(seed);
        let world = mixes::world(&deployments);
        let policy = engine::policy(SolveSettings::default());
        let query = Query::default().with_bounded_price();
        let plan = schedule(&engine::snapshot(&world), &policy, &query);
        let kinds = deployments.iter().map(|kind| {
            json!({
                "count": kind.replicas,
                "needs": [kind.cpu, kind.memory << 20, 1],
                "amd64": kind.place != Place::Anywhere,
                "onDemand": kind.place == Place::OnDemand,
            })
        });
        let line = json!({
            "seed": seed,
            "kinds": kinds.collect::<Vec<_>>(),
            "offers": world.instance_types["default"].iter().map(offer).collect::<Vec<_>>(),
            "nodeOverheadPrice": policy.node_overhead_price,
            "unplaced": plan.unplaced.len(),
            "price": plan.hourly_price(),
            "nodes": plan.new_node_claims.len(),
            "bound": plan.objective.map(|objective| objective.lowest),
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}
