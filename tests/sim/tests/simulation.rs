//! A few simulations for every test run; `cargo xtask sim` runs any number.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::time::Duration;

use karpenter_sim::{Report, SimulationSettings, run};

fn minutes(minutes: u64) -> SimulationSettings {
    SimulationSettings {
        busy: Duration::from_secs(minutes * 60),
        ..SimulationSettings::default()
    }
}

fn survives(seed: u64, settings: &SimulationSettings) -> Report {
    let outcome = run(seed, settings);
    let failure = outcome.as_ref().err().map(|failure| {
        let again = format!("cargo xtask sim --seeds 1 --seed {seed} --hours 1 -- --trace");
        format!("{}\n{failure}\nagain: {again}", failure.context.join("\n"))
    });
    assert!(failure.is_none(), "{}", failure.unwrap_or_default());
    outcome.unwrap()
}

/// Compares the lines of two runs.
fn are_same(seed: u64, one: &[String], other: &[String]) {
    let differs = one.iter().zip(other).find(|(a, b)| a != b);
    assert_eq!(differs, None, "seed {seed}");
    assert_eq!(one.len(), other.len(), "seed {seed}");
}

macro_rules! seeds {
    ($($name:ident: $seed:literal,)*) => {
        $(#[test]
        fn $name() {
            survives($seed, &minutes(60));
        })*
    };
}

seeds! {
    the_cluster_of_seed_1_survives: 1,
    the_cluster_of_seed_2_survives: 2,
    the_cluster_of_seed_4_survives: 4,
    the_cluster_of_seed_7_survives: 7,
}

#[test]
fn a_replica_that_loses_the_lease_stops_writing_and_another_takes_over() {
    let settings = SimulationSettings {
        elects: Some(true),
        keep_trace: true,
        ..minutes(30)
    };
    let trace = survives(11, &settings).trace;
    let cut = trace
        .iter()
        .position(|l| l.contains("does not reach the lease"));
    let after = &trace[cut.unwrap()..];
    assert!(after.iter().any(|line| line.contains("has ended")));
}

#[test]
fn the_same_seed_gives_the_same_events() {
    let settings = SimulationSettings {
        keep_trace: true,
        ..minutes(30)
    };
    let trace = |seed| run(seed, &settings).unwrap().trace;
    let (once, again) = (trace(5), trace(5));
    are_same(5, &once, &again);
}

/// The requests of a simulation and its metrics, with or without records of decisions.
fn observable(seed: u64, decision_records: bool) -> (Vec<String>, u64, Vec<String>) {
    let settings = SimulationSettings {
        keep_trace: true,
        decision_records,
        ..minutes(20)
    };
    let report = run(seed, &settings).unwrap();
    let lines = report.metrics.lines();
    // What a process measures of itself differs in any two runs.
    let excluded = [
        "process_",
        "tokio_",
        "karpenter_decisions_",
        "karpenter_blockers",
    ];
    let measured = |line: &str| excluded.iter().any(|name| line.contains(name));
    let upstream = lines.filter(|line| !measured(line)).map(str::to_owned);
    (report.trace, report.launched, upstream.collect())
}

/// The first seeds; `KARPENTER_SIM_SEEDS=N` compares N.
///
/// Conformance: EXP-15
#[test]
fn records_of_decisions_change_no_request_event_launch_or_metric() {
    let seeds = std::env::var("KARPENTER_SIM_SEEDS").ok();
    let seeds = seeds.map_or(2, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        let (with, without) = (observable(seed, true), observable(seed, false));
        are_same(seed, &with.0, &without.0);
        assert_eq!(with.1, without.1, "seed {seed}");
        are_same(seed, &with.2, &without.2);
        assert!(!with.2.is_empty(), "seed {seed}");
    }
}
