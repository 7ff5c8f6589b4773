//! Prints a generated cluster with the engine's plan and first fit's: `compare [small|terms|large] SEED`.

use karpenter_core::schedule::{Packing, Query, schedule};
use karpenter_spec::clusters::{Shape, cluster};
use karpenter_spec::replay::{Launch, replay};
use karpenter_spec::{Solution, SolveSettings, World, cost, engine, solve};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next();
    let large = name.as_deref() == Some("large");
    let seed = arguments.next().and_then(|seed| seed.parse().ok());
    let shape = match name.as_deref() {
        Some("large") => Shape::LARGE,
        Some("terms") => Shape::TERMS,
        _ => Shape::SMALL,
    };
    let world = cluster(seed.unwrap_or(0), shape);
    println!("{world:?}");
    let (snapshot, query) = (engine::snapshot(&world), Query::default());
    let policy = engine::policy(SolveSettings::default());
    let plan = schedule(&snapshot, &policy, &query);
    print("engine", &world, &engine::solution(&plan));
    let policy = policy.with_packing(Packing::FewestNodes);
    let plan = schedule(&snapshot, &policy, &query);
    print("engine's first fit", &world, &engine::solution(&plan));
    if !large {
        let settings = SolveSettings::default();
        print("first fit", &world, &solve(&world, settings));
    }
}

fn print(name: &str, world: &World, solution: &Solution) {
    println!("\n{name}: {:?}", cost(world, solution));
    for (pod, node) in &solution.existing {
        println!("  {pod:?} on {node}");
    }
    for (index, claim) in solution.claims.iter().enumerate() {
        println!("  {index}: {claim:?}");
    }
    println!("  unplaced {:?}", solution.unplaced);
    println!("  {:?}", replay(world, solution, Launch::Cheapest));
}
