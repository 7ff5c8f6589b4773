//! Kamera's scenarios: all orders of each hold, up to a bound.

use std::fs;
use std::path::PathBuf;

use karpenter_explore::scenarios::read;
use karpenter_explore::search::{Bounds, Order, explore, story};
use rayon::prelude::*;

/// The number of states of each scenario that are explored in the test suite.
const STATES: usize = 30;

#[test]
fn every_scenario_of_kamera_holds() {
    let bounds = Bounds {
        order: Order::Departures,
        depth: 40,
        states: STATES,
    };
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let files = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    let files: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|it| it == "json"))
        .collect();
    let counts = files.par_iter().map(|path| {
        let file = path.display().to_string();
        let scenarios = read(&fs::read_to_string(path).unwrap()).unwrap();
        for scenario in &scenarios {
            let first = scenario.world().unwrap();
            let outcome = explore(&first, bounds, |_| ());
            let found = outcome.counterexample.map(|it| story(&first, &it));
            assert_eq!(
                found,
                None,
                "{file}\n{}",
                found.as_deref().unwrap_or_default()
            );
        }
        scenarios.len()
    });
    assert_eq!(counts.sum::<usize>(), 54);
}
