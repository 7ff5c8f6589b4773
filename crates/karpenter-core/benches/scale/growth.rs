//! The factor by which a pass takes longer when one dimension of the cluster doubles.

use std::time::Duration;

use karpenter_bench::{Suite, cpu_time};
use karpenter_core::disruption::plan;

use crate::fleet::Fleet;
use crate::{add_pending, provision, request, simulated};

/// The number of doublings.
const DOUBLINGS: u32 = 3;

/// A dimension, the cluster from which it is doubled, and how.
type Dimension = (&'static str, Fleet, fn(&mut Fleet, usize));

pub fn cases(suite: &mut Suite) {
    let base = Fleet {
        pools: 5,
        types: 175,
        ..Fleet::of(2000, 10)
    };
    let constrained = Fleet {
        workloads: 100,
        constrained: true,
        ..base
    };
    let with_daemons = Fleet { daemons: 4, ..base };
    let dimensions: [Dimension; 6] = [
        ("nodes", base, |fleet, factor| fleet.nodes *= factor),
        ("pods", base, |fleet, factor| fleet.pods_per_node *= factor),
        ("types", base, |fleet, factor| fleet.types *= factor),
        ("pools", base, |fleet, factor| fleet.pools *= factor),
        ("daemons", with_daemons, |fleet, factor| {
            fleet.daemons *= factor;
        }),
        ("groups", constrained, |fleet, factor| {
            fleet.workloads *= factor;
        }),
    ];
    for (name, base, grow) in dimensions {
        let sizes = (0..=DOUBLINGS).map(|doubling| {
            let mut fleet = base;
            grow(&mut fleet, 1 << doubling);
            fleet
        });
        let sizes: Vec<Fleet> = sizes.collect();
        suite.case(&format!("growth-{name}"), |run| {
            let mut full = Vec::new();
            let mut pending = Vec::new();
            let mut kept = Vec::new();
            for fleet in &sizes {
                let mut cluster = fleet.build();
                let snapshot = cluster.snapshot();
                kept.push(simulated(&plan(&snapshot, &request())));
                full.push(fastest(|| plan(&snapshot, &request())));
                add_pending(&mut cluster, fleet, 5000);
                let snapshot = cluster.snapshot();
                pending.push(fastest(|| provision(&snapshot)));
            }
            run.sample(sizes.len(), full.iter().sum());
            run.record("simulated", kept);
            run.record("full_cpu_seconds", seconds(&full));
            run.record("full_factors", factors(&full));
            run.record("pending_cpu_seconds", seconds(&pending));
            run.record("pending_factors", factors(&pending));
        });
    }
}

/// Returns the least processor time of two runs.
fn fastest<T>(work: impl Fn() -> T) -> Duration {
    let one = || {
        let before = cpu_time().unwrap_or_default();
        std::hint::black_box(work());
        cpu_time().unwrap_or_default() - before
    };
    one().min(one())
}

fn seconds(times: &[Duration]) -> Vec<f64> {
    let round = |time: &Duration| (time.as_secs_f64() * 1e4).round() / 1e4;
    times.iter().map(round).collect()
}

fn factors(times: &[Duration]) -> Vec<f64> {
    let factor = |pair: &[Duration]| pair[1].as_secs_f64() / pair[0].as_secs_f64();
    let round = |factor: f64| (factor * 100.0).round() / 100.0;
    times.windows(2).map(factor).map(round).collect()
}
