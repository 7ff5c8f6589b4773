//! The price of the engine's plans, compared with those of the naive solver and with a lower bound.

mod bound;
mod mixes;

use karpenter_core::schedule::{Query, schedule};
use karpenter_spec::{SolveSettings, check, cost, engine, solve};

fn main() {
    let mut suite = karpenter_bench::Suite::from_args("schedule-cost");
    for (name, deployments) in mixes::MIXES {
        suite.case(name, |run| {
            let world = mixes::world(deployments);
            run.parameter("pods", world.pods.len());
            run.parameter("instance_types", world.instance_types["default"].len());
            let bound = bound::lower_bound(&world, deployments).unwrap_or(f64::NAN);
            let naive = solve(&world, SolveSettings::default());
            let snapshot = engine::snapshot(&world);
            let (policy, query) = (engine::policy(SolveSettings::default()), Query::default());
            let plan = schedule(&snapshot, &policy, &query.clone().with_bounded_price());
            let solution = engine::solution(&plan);
            let violations = check(&world, SolveSettings::default(), &solution);
            let (naive_cost, engine_cost) = (
                cost(&world, &naive).unwrap_or(f64::NAN),
                cost(&world, &solution).unwrap_or(f64::NAN),
            );
            run.record("lower_bound", bound);
            if let Some(objective) = plan.objective {
                run.record("objective", objective.price);
                run.record("objective_bound", objective.lowest);
            }
            run.record("naive_cost", naive_cost);
            run.record("engine_cost", engine_cost);
            run.record("engine_over_bound", engine_cost / bound);
            run.record("naive_over_bound", naive_cost / bound);
            run.record("engine_over_naive", engine_cost / naive_cost);
            run.record("unplaced", solution.unplaced.len());
            run.record("violations", violations.len());
            run.record("nodes", solution.claims.len());
            run.measure(world.pods.len(), || schedule(&snapshot, &policy, &query));
        });
    }
}
