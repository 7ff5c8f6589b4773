//! All orders of the small clusters and of Kamera's scenarios that differ from the fair course by one event: `cargo xtask explore` goes
//! further.

use std::fs;
use std::path::PathBuf;

use karpenter_explore::scenarios::read;
use karpenter_explore::search::{Bounds, Order, explore, story};
use karpenter_explore::world::{Faults, World};
use karpenter_explore::worlds;
use rayon::prelude::*;

/// Explores a cluster; `courses` of the states at the bound are followed to their end.
fn holds(name: &str, first: &World, courses: usize) {
    let bounds = Bounds {
        order: Order::Departures,
        depth: 1,
        states: 5_000,
        courses,
    };
    let outcome = explore(first, bounds, |_, _, _| ());
    let counterexample = outcome.counterexample.map(|found| story(first, &found));
    let story = counterexample.as_deref().unwrap_or_default();
    assert!(counterexample.is_none(), "{name}\n{story}");
    assert_eq!(outcome.depth, 1, "{name}: the bound was not reached");
}

#[test]
fn every_cluster_holds() {
    worlds::all().par_iter().for_each(|(name, build)| {
        holds(name, &build().with_faults(Faults::one_of_each(1, 1)), 60);
    });
}

#[test]
fn every_scenario_of_kamera_holds() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let files = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    let files: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|it| it == "json"))
        .collect();
    let counts = files.par_iter().map(|path| {
        let scenarios = read(&fs::read_to_string(path).unwrap()).unwrap();
        for scenario in &scenarios {
            holds(&scenario.name, &scenario.world().unwrap(), 3);
        }
        scenarios.len()
    });
    assert_eq!(counts.sum::<usize>(), 54);
}
