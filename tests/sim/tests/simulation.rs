//! A few simulations for every test run; `cargo xtask sim` runs any number.

use std::time::Duration;

use karpenter_sim::{Report, SimulationSettings, run};

fn minutes(minutes: u64) -> SimulationSettings {
    SimulationSettings {
        busy: Duration::from_secs(minutes * 60),
        ..SimulationSettings::default()
    }
}

fn survives(seed: u64, settings: &SimulationSettings) -> Report {
    let (report, failure) = match run(seed, settings) {
        Ok(report) => (report, None),
        Err(failure) => (Report::default(), Some(failure)),
    };
    let context = failure.as_ref().map(|f| f.context.join("\n"));
    let again = format!("cargo xtask sim --seeds 1 --seed {seed} --hours 1 -- --trace");
    assert!(
        failure.is_none(),
        "{}\n{}\nagain: {again}",
        context.unwrap_or_default(),
        failure.map(|f| f.to_string()).unwrap_or_default()
    );
    report
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
    let differs = once.iter().zip(&again).find(|(a, b)| a != b);
    assert_eq!(differs, None);
    assert_eq!(once.len(), again.len());
}
