//! Dumps figures of plans: `dump small|large|mix|case FIRST CASES [check]`.
fn cpu() -> f64 {
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .parse::<f64>()
        .unwrap()
        / 1e9
}

use karpenter_core::schedule::{Query, Solver, schedule};
use karpenter_spec::clusters::{Shape, cluster};
use karpenter_spec::replay::{Launch, replay};
use karpenter_spec::{SolveSettings, World, check, engine, quality};

#[path = "/tmp/h-search/case.rs"]
#[allow(dead_code)]
mod case;
#[path = "../benches/schedule-cost/mixes.rs"]
#[allow(dead_code)]
mod mixes;

fn one(name: &str, world: &World, checked: bool) {
    let snapshot = engine::snapshot(world);
    let (mut policy, query) = (engine::policy(SolveSettings::default()), Query::default());
    OVERHEAD(&mut policy);
    let solver = Solver::prepare(&snapshot, &policy);
    let mut best = f64::MAX;
    let mut plan = None;
    let timed = std::env::var("TIMED").is_ok();
    let start = cpu();
    let mut runs = 0;
    while runs == 0 || (timed && cpu() - start < 0.03) {
        plan = Some(solver.solve(&query));
        runs += 1;
    }
    best = best.min((cpu() - start) / f64::from(runs));
    let plan = plan.unwrap();
    let ours = engine::solution(&plan);
    let q = quality(world, &ours);
    let mut bad = String::new();
    if checked {
        let replayed = replay(world, &ours, Launch::Cheapest);
        if !replayed.stuck.is_empty() || !replayed.empty.is_empty() {
            bad += &format!(" stuck {replayed:?}");
        }
        if world.pods.len() < 100 {
            let violations = check(world, SolveSettings::default(), &ours);
            if !violations.is_empty() {
                bad += &format!(" broken {violations:?}");
            }
        }
    }
    println!(
        "{name} {} {} {:.5} {} {} {:.3}{bad}",
        world.pods.len(),
        plan.unplaced.len(),
        plan.hourly_price(),
        plan.new_node_claims.len(),
        q.preferences,
        best * 1e3
    );
}

#[allow(non_snake_case)]
fn OVERHEAD(policy: &mut karpenter_core::schedule::Policy) {
    if let Some(v) = std::env::var("OVERHEAD").ok().and_then(|v| v.parse().ok()) {
        policy.node_overhead_price = v;
    }
}
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, usual: u64| {
        arguments
            .get(place)
            .and_then(|n| n.parse().ok())
            .unwrap_or(usual)
    };
    let (first, cases) = (number(1, 0), number(2, 1000));
    let checked = arguments.iter().any(|a| a == "check");
    match arguments[0].as_str() {
        "mix" => {
            for (name, deployments) in mixes::MIXES {
                one(name, &mixes::world(deployments), checked);
            }
        }
        "case" => {
            let text = std::fs::read_to_string("/tmp/h-search/anti.json").unwrap();
            one("anti", &case::parse(&text), checked);
        }
        kind => {
            for seed in first..first + cases {
                let shape = if kind == "large" {
                    Shape::LARGE
                } else {
                    Shape::SMALL
                };
                one(&format!("{kind}-{seed}"), &cluster(seed, shape), checked);
            }
        }
    }
    let _ = schedule;
}
