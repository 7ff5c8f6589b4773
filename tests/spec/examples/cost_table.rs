//! Prints the prices of plans for generated clusters relative to first fit: `cost_table [small|large] [FIRST] [CASES]`.
//!
//! First fit is the naive solver of this crate for small clusters; for large ones, for which that takes too long, it is the
//! engine's first fit without repacking. Only clusters count in which both place the same pods, some on new nodes, and
//! kube-scheduler binds all pods that first fit places.

use std::collections::BTreeSet;

use karpenter_core::schedule::{Packing, Query, schedule};
use karpenter_spec::clusters::{Shape, cluster};
use karpenter_spec::replay::{Launch, replay};
use karpenter_spec::{SolveSettings, World, check, cost, engine, solve};

struct Row {
    seed: u64,
    first_fit: f64,
    engine: f64,
    nodes: (usize, usize),
    /// The plan is dearer than first fit's, but not if preferences are ignored: what it costs more, it spends on preferences.
    is_for_preferences: bool,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let large = arguments.next().as_deref() == Some("large");
    let mut number = |usual: u64| {
        arguments
            .next()
            .and_then(|n| n.parse().ok())
            .unwrap_or(usual)
    };
    let (first, cases) = (number(0), number(1000));
    let mut rows = Vec::new();
    let (mut more, mut fewer, mut stuck, mut broken, mut refused) = (0, 0, 0, 0, 0);
    for seed in first..first + cases {
        let world = cluster(seed, if large { Shape::LARGE } else { Shape::SMALL });
        let snapshot = engine::snapshot(&world);
        let (policy, query) = (engine::policy(SolveSettings::default()), Query::default());
        let plan = schedule(&snapshot, &policy, &query);
        let ours = engine::solution(&plan);
        let theirs = if large {
            let policy = policy.clone().with_packing(Packing::FewestNodes);
            engine::solution(&schedule(&snapshot, &policy, &query))
        } else {
            solve(&world, SolveSettings::default())
        };
        let replayed = replay(&world, &ours, Launch::Cheapest);
        if !replayed.stuck.is_empty() || !replayed.empty.is_empty() {
            stuck += 1;
            let policy = policy.clone().with_packing(Packing::FewestNodes);
            let unpacked = engine::solution(&schedule(&snapshot, &policy, &query));
            println!(
                "seed {seed}: {replayed:?}\n    first fit's: {:?}",
                replay(&world, &unpacked, Launch::Cheapest)
            );
        }
        let violations = if large {
            vec![]
        } else {
            check(&world, SolveSettings::default(), &ours)
        };
        if !violations.is_empty() {
            broken += 1;
            println!("seed {seed}: {violations:?}");
        }
        if !replay(&world, &theirs, Launch::Cheapest).stuck.is_empty() {
            refused += 1;
            continue;
        }
        let placed = |all: &BTreeSet<_>| count(&world) - all.len();
        if ours.unplaced != theirs.unplaced {
            more += usize::from(placed(&ours.unplaced) > placed(&theirs.unplaced));
            if placed(&ours.unplaced) < placed(&theirs.unplaced) {
                fewer += 1;
                println!(
                    "seed {seed}: places {} of {}",
                    placed(&ours.unplaced),
                    placed(&theirs.unplaced)
                );
            }
            continue;
        }
        let (Some(first_fit), Some(engine)) = (cost(&world, &theirs), cost(&world, &ours)) else {
            continue;
        };
        if first_fit > 1e-6 {
            let nodes = (ours.claims.len(), theirs.claims.len());
            let is_for_preferences = engine > first_fit * 1.01
                && !large
                && without_preferences(&world).is_some_and(|ratio| ratio <= 1.01);
            rows.push(Row {
                seed,
                first_fit,
                engine,
                nodes,
                is_for_preferences,
            });
        }
    }
    report(&mut rows);
    println!(
        "places more pods in {more} clusters, fewer in {fewer}; stuck in {stuck}, rules broken in {broken}"
    );
    println!("kube-scheduler rejects a pod of first fit's plan in {refused}, which are left out");
}

/// What the engine's plan costs beside first fit's if preferences are ignored; `None` if they place other pods.
fn without_preferences(world: &World) -> Option<f64> {
    let settings = SolveSettings {
        respect_preferences: false,
        ..SolveSettings::default()
    };
    let plan = schedule(
        &engine::snapshot(world),
        &engine::policy(settings),
        &Query::default(),
    );
    let (ours, theirs) = (engine::solution(&plan), solve(world, settings));
    (ours.unplaced == theirs.unplaced)
        .then(|| Some(cost(world, &ours)? / cost(world, &theirs)?.max(1e-9)))
        .flatten()
}

fn count(world: &World) -> usize {
    world.pods.len()
}

fn report(rows: &mut [Row]) {
    let ratio = |row: &Row| row.engine / row.first_fit;
    rows.sort_by(|a, b| ratio(b).total_cmp(&ratio(a)));
    for row in rows.iter().take(25).filter(|row| ratio(row) > 1.01) {
        println!(
            "seed {}: {:.3} times first fit ({:.4} for {:.4}), {} nodes for {}{}",
            row.seed,
            ratio(row),
            row.engine,
            row.first_fit,
            row.nodes.0,
            row.nodes.1,
            if row.is_for_preferences {
                ", not dearer without preferences"
            } else {
                ""
            }
        );
    }
    let number = rows.len().max(1) as f64;
    let over = |limit: f64| rows.iter().filter(|row| ratio(row) > limit).count();
    let under = |limit: f64| rows.iter().filter(|row| ratio(row) < limit).count();
    let sum = |of: fn(&Row) -> f64| rows.iter().map(of).sum::<f64>();
    println!("clusters {}", rows.len());
    println!(
        "mean {:.4}, of totals {:.4}",
        rows.iter().map(ratio).sum::<f64>() / number,
        sum(|r| r.engine) / sum(|r| r.first_fit).max(1e-9)
    );
    println!("worst {:.3}", rows.first().map_or(1.0, ratio));
    println!(
        "more expensive by over 1 %: {} ({:.2} %), by over 5 %: {}, by over 10 %: {}",
        over(1.01),
        over(1.01) as f64 / number * 100.0,
        over(1.05),
        over(1.1)
    );
    let spent = rows.iter().filter(|row| row.is_for_preferences);
    println!(
        "of these not dearer if preferences are ignored: {}",
        spent.count()
    );
    println!(
        "cheaper by over 1 %: {}, by over 10 %: {}",
        under(0.99),
        under(0.9)
    );
    println!(
        "nodes {} for {}",
        rows.iter().map(|r| r.nodes.0).sum::<usize>(),
        rows.iter().map(|r| r.nodes.1).sum::<usize>()
    );
}
