//! How long a plan of a bundle takes, reading included: `cargo xtask bench plan`.
//!
//! The cluster has 5,000 nodes and 100,000 pods; the change scales one Deployment, so that some hundred nodes are launched, and both
//! the changed and the unchanged cluster are rehearsed. The goals on two cores are 5 s for one pass (`pass`) and 45 s for an hour
//! (`hour`), and 96 MiB of memory beside the bundle (PLAN-08).

#![expect(clippy::unwrap_used, reason = "what fails here fails the benchmark")]

#[path = "fleet/churning.rs"]
mod churning;
mod fleet;

use fleet::{NODES, PODS, fleet, now};
use karpenter_bench::Suite;
use karpenter_core::cluster::Snapshot;
use karpenter_decisions::bundle::{self, Bundle, Settings as Captured};
use karpenter_decisions::rehearse::plan::Plan;
use karpenter_decisions::rehearse::request::{Intent, PlanRequest, Scale, VersionPair};
use karpenter_decisions::rehearse::{Settings, rehearse};

/// The replicas that a Deployment of 50 gets: more than the free room of all nodes.
const SCALED: u32 = 70_000;

fn file() -> Vec<u8> {
    let bundle = Bundle::new("fake", "bench", fleet(), Captured::at(now()));
    let mut file = Vec::new();
    bundle::write(&bundle, &mut file).unwrap();
    file
}

fn plan(bundle: &Bundle, length: &str) -> Plan {
    let request = PlanRequest {
        length: Some(length.to_owned()),
        changes: vec![Intent::Scale(Scale {
            kind: "Deployment".to_owned(),
            namespace: Some("team-01".to_owned()),
            name: "app-0001".to_owned(),
            replicas: SCALED,
        })],
        ..PlanRequest::default()
    };
    rehearse(&bundle.snapshot, &Settings::of_bundle(bundle), &request).unwrap()
}

/// Compares two versions.
fn versions(snapshot: &Snapshot, length: &str) -> Plan {
    let request = PlanRequest {
        length: Some(length.to_owned()),
        versions: Some(VersionPair {
            from: "karpenter-1.13".to_owned(),
            to: "karpenter-1.14".to_owned(),
            each_rule: false,
        }),
        churn: Some("20%/2h".to_owned()),
        ..PlanRequest::default()
    };
    rehearse(snapshot, &Settings::at(churning::now()), &request).unwrap()
}

fn main() {
    let mut suite = Suite::from_args("plan");
    for (name, length) in [("pass", "0s"), ("hour", "1h")] {
        suite.case(name, |run| {
            let file = file();
            run.parameter("nodes", NODES);
            run.parameter("pods", NODES * PODS);
            let rehearsal = run.measure_once(1, || {
                let bundle = bundle::read(file.as_slice()).unwrap();
                plan(&bundle, length)
            });
            assert!(!rehearsal.observed.truncated && rehearsal.differs());
            run.record("steps", rehearsal.steps.len() as u64);
            run.record("evictions", rehearsal.evictions.total as u64);
        });
    }
    // The goal on two cores is 10 s for six hours (issue 42).
    for (name, nodes, length) in [("versions-100", 100, "3h"), ("versions-1000", 1_000, "6h")] {
        suite.case(name, |run| {
            let snapshot = churning::fleet(nodes).unwrap();
            run.parameter("nodes", nodes);
            let plan = run.measure_once(1, || versions(&snapshot, length));
            run.record("truncated", u64::from(plan.observed.truncated));
            run.record("steps", plan.steps.len() as u64);
        });
    }
}
