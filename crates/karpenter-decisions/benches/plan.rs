//! How long a plan of a bundle takes, reading included: `cargo xtask bench plan`.
//!
//! The cluster has 5,000 nodes and 100,000 pods; the change opens the disruption budget of one of 20 NodePools, and both the
//! changed and the unchanged cluster are rehearsed. No node of it can be removed: what is measured is the work of each pass. The
//! goals on two cores are 5 s for one pass (`pass`) and 45 s for an hour (`hour`), and 96 MiB of memory beside the bundle (PLAN-08).

#![expect(clippy::unwrap_used, reason = "what fails here fails the benchmark")]

mod fleet;

use fleet::{NODES, PODS, fleet, now};
use karpenter_bench::Suite;
use karpenter_decisions::bundle::{self, Bundle, Settings as Captured};
use karpenter_decisions::rehearse::plan::Plan;
use karpenter_decisions::rehearse::request::{Intent, PlanRequest};
use karpenter_decisions::rehearse::{Settings, rehearse};

fn file() -> Vec<u8> {
    let bundle = Bundle::new("fake", "bench", fleet(), Captured::at(now()));
    let mut file = Vec::new();
    bundle::write(&bundle, &mut file).unwrap();
    file
}

fn plan(bundle: &Bundle, length: &str) -> Plan {
    let request = PlanRequest {
        length: Some(length.to_owned()),
        changes: vec![Intent::If("budget.pool-00=10%".to_owned())],
        ..PlanRequest::default()
    };
    rehearse(&bundle.snapshot, &Settings::of_bundle(bundle), &request).unwrap()
}

fn main() {
    let mut suite = Suite::from_args("plan");
    for (name, length) in [("pass", "0s"), ("hour", "1h")] {
        suite.case(name, |run| {
            let file = file();
            run.parameter("nodes", NODES);
            run.parameter("pods", NODES * PODS);
            let told = run.measure_once(1, || {
                let bundle = bundle::read(file.as_slice()).unwrap();
                plan(&bundle, length)
            });
            assert!(!told.observed.truncated);
            run.record("steps", told.steps.len() as u64);
            run.record("evictions", told.evictions.total as u64);
        });
    }
}
