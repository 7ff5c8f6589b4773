//! Prints the prices of plans for generated clusters relative to first fit: `cost_table [small|large] [FIRST] [CASES]`. `cost_table steps`
//! prints those of six mixes after some steps of the search.
//!
//! First fit is the naive solver of this crate for small clusters; for large ones, for which that takes too long, it is the
//! engine's first fit without repacking. Only clusters count in which both place the same pods, some on new nodes, and
//! kube-scheduler binds all pods that first fit places.
//!
//! A costlier plan is accepted if it meets more preferences, or uses higher-weight NodePools for the same pods (see [`quality`]), and is
//! otherwise no worse and no less evenly spread.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use karpenter_bench::cpu_time;
use karpenter_core::schedule::{Packing, Policy, Query, schedule};
use karpenter_spec::clusters::{Shape, cluster};
use karpenter_spec::replay::{Launch, replay};
use karpenter_spec::{Quality, SolveSettings, World, check, cost, engine, quality, solve};

#[path = "../benches/schedule-cost/mixes.rs"]
mod mixes;

struct Row {
    seed: u64,
    first_fit: f64,
    engine: f64,
    nodes: (usize, usize),
    /// Why the plan may cost more than first fit's.
    better: Option<Better>,
    /// Whether the plan meets fewer preferences than first fit's.
    fewer_preferences: bool,
}

/// What a plan does better than another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    Preferences,
    Weights,
}

impl Better {
    const ALL: [Self; 2] = [Self::Preferences, Self::Weights];

    /// Returns the first criterion by which our plan is better, if it is worse by none. Weights are compared only if both plans have the
    /// same pods on planned nodes.
    fn of(ours: Quality, theirs: Quality, same_pods: bool) -> Option<Self> {
        let same = Quality {
            weight: ours.weight,
            ..theirs
        };
        let theirs = if same_pods { theirs } else { same };
        if ours.preferences < theirs.preferences
            || ours.weight < theirs.weight
            || ours.skew > theirs.skew
        {
            None
        } else if ours.preferences > theirs.preferences {
            Some(Self::Preferences)
        } else if ours.weight > theirs.weight {
            Some(Self::Weights)
        } else {
            None
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Preferences => "meets more preferences",
            Self::Weights => "uses NodePools of higher weight",
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let shape = arguments.next();
    if shape.as_deref() == Some("steps") {
        return print_steps();
    }
    let large = shape.as_deref() == Some("large");
    let mut number = |usual: u64| {
        arguments
            .next()
            .and_then(|n| n.parse().ok())
            .unwrap_or(usual)
    };
    let (first, cases) = (number(0), number(1000));
    let mut rows = Vec::new();
    let mut times = Vec::new();
    let (mut more, mut fewer, mut stuck, mut broken, mut refused) = (0, 0, 0, 0, 0);
    for seed in first..first + cases {
        let world = cluster(seed, if large { Shape::LARGE } else { Shape::SMALL });
        let snapshot = engine::snapshot(&world);
        let (policy, query) = (engine::policy(SolveSettings::default()), Query::default());
        let before = cpu_time();
        let plan = schedule(&snapshot, &policy, &query);
        times.extend(cpu_time().zip(before).map(|(after, before)| after - before));
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
            let is_dearer = engine > first_fit * 1.01;
            let same_pods = ours.existing.keys().eq(theirs.existing.keys());
            let qualities =
                (!large || is_dearer).then(|| (quality(&world, &ours), quality(&world, &theirs)));
            let better = qualities.filter(|_| is_dearer);
            let fewer = |(ours, theirs): (Quality, Quality)| ours.preferences < theirs.preferences;
            rows.push(Row {
                seed,
                first_fit,
                engine,
                nodes,
                better: better.and_then(|(a, b)| Better::of(a, b, same_pods)),
                fewer_preferences: qualities.is_some_and(fewer),
            });
        }
    }
    report(&mut rows);
    times.sort();
    if let Some(median) = times.get(times.len() / 2) {
        println!(
            "processor time of a plan: median {median:.1?}, longest {:.1?}",
            times[times.len() - 1]
        );
    }
    println!(
        "places more pods in {more} clusters, fewer in {fewer}; stuck in {stuck}, rules broken in {broken}"
    );
    println!("kube-scheduler rejects a pod of first fit's plan in {refused}, which are left out");
}

/// Prints the price of the plan of each mix after some steps, with that of each node's own, relative to first fit's; last of generated
/// clusters in total.
fn print_steps() {
    for (name, deployments) in mixes::MIXES {
        print_row(name, &[prices(&mixes::world(deployments))]);
    }
    let small = (1000..1150).map(|seed| cluster(seed, Shape::SMALL));
    let placed = |world: &World| {
        let policy = engine::policy(SolveSettings::default()).with_packing(Packing::FewestNodes);
        let plan = schedule(&engine::snapshot(world), &policy, &Query::default());
        plan.unplaced.is_empty()
    };
    let all: Vec<_> = small.filter(placed).map(|world| prices(&world)).collect();
    print_row("small clusters", &all);
}

/// The price of first fit's plan, and those after some steps.
type Prices = (f64, [f64; 9]);

fn print_row(name: &str, all: &[Prices]) {
    let first_fit: f64 = all.iter().map(|prices| prices.0).sum();
    let cells = (0..9).map(|place| {
        let sum: f64 = all.iter().map(|prices| prices.1[place]).sum();
        format!("{:.3}", sum / first_fit)
    });
    println!("| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
}

/// Returns the prices of a cluster whose pods all have a place. A search that is cancelled keeps the best plan.
fn prices(world: &World) -> Prices {
    let policy = engine::policy(SolveSettings::default());
    let snapshot = engine::snapshot(world);
    let price = |policy: &Policy, query: &Query| {
        let plan = schedule(&snapshot, policy, query);
        let nodes = plan.new_node_claims.len() as f64;
        plan.hourly_price() + policy.node_overhead_price * nodes
    };
    // The engine asks whether it is to stop for each 128 pods that it places, and twice in each step.
    let placing = count(world).div_ceil(128);
    let after = |steps: usize| {
        let (asked, most) = (AtomicUsize::new(0), placing + steps * (placing + 2));
        let cancel = move || asked.fetch_add(1, Ordering::Relaxed) >= most;
        price(&policy, &Query::default().with_cancel(Arc::new(cancel)))
    };
    let one_by_one = policy.clone().with_packing(Packing::FewestNodes);
    let first_fit = price(&one_by_one, &Query::default());
    (first_fit, [0, 1, 2, 5, 10, 20, 50, 100, 100_000].map(after))
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
            row.better
                .map_or(String::new(), |better| format!(", {}", better.name()))
        );
    }
    summary("clusters", rows.iter());
    for better in Better::ALL {
        let marked = rows.iter().filter(|row| row.better == Some(better));
        println!(
            "  excused, more expensive by over 1 %, and {}: {}",
            better.name(),
            marked.count()
        );
    }
    summary(
        "not excused",
        rows.iter().filter(|row| row.better.is_none()),
    );
    let equal = |row: &&Row| row.better.is_none() && !row.fewer_preferences;
    summary("  and as many preferences met", rows.iter().filter(equal));
}

fn summary<'r>(name: &str, rows: impl Iterator<Item = &'r Row>) {
    let ratio = |row: &Row| row.engine / row.first_fit;
    let rows: Vec<&Row> = rows.collect();
    let number = rows.len().max(1) as f64;
    let over = |limit: f64| rows.iter().filter(|row| ratio(row) > limit).count();
    let under = |limit: f64| rows.iter().filter(|row| ratio(row) < limit).count();
    let sum = |of: fn(&Row) -> f64| rows.iter().map(|row| of(row)).sum::<f64>();
    println!(
        "{name}: {}, mean {:.4}, of totals {:.4}, worst {:.3}",
        rows.len(),
        rows.iter().map(|row| ratio(row)).sum::<f64>() / number,
        sum(|r| r.engine) / sum(|r| r.first_fit).max(1e-9),
        rows.iter().map(|row| ratio(row)).fold(0.0, f64::max)
    );
    println!(
        "  more expensive by over 1 %: {} ({:.2} %), by over 5 %: {}, by over 10 %: {}; cheaper by over 1 %: {}, by over 10 %: {}",
        over(1.01),
        over(1.01) as f64 / number * 100.0,
        over(1.05),
        over(1.1),
        under(0.99),
        under(0.9)
    );
    println!(
        "  nodes {} for {}",
        rows.iter().map(|r| r.nodes.0).sum::<usize>(),
        rows.iter().map(|r| r.nodes.1).sum::<usize>()
    );
}
