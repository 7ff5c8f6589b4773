//! Kamera's scenarios: all orders of each hold, up to a bound.

use std::fs;
use std::path::PathBuf;

use karpenter_explore::scenarios::read;
use karpenter_explore::search::{Bounds, Order, explore, story};

/// The number of states of each scenario that are explored in the test suite.
const STATES: usize = 30;

#[test]
fn every_scenario_of_kamera_holds() {
    let (mut problems, mut count) = (Vec::new(), 0);
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let entries = fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|it| it == "json"));
    files.sort();
    for path in files {
        let file = path.file_stem().unwrap().to_string_lossy().into_owned();
        for scenario in read(&file, &fs::read_to_string(&path).unwrap()).unwrap() {
            count += 1;
            let first = scenario.world(&file).unwrap();
            let outcome = explore(
                &first,
                Bounds {
                    order: Order::Departures,
                    depth: 40,
                    states: STATES,
                },
                |_| (),
            );
            if let Some(found) = &outcome.counterexample {
                problems.push(format!("{file}:\n{}", story(&first, found)));
            }
        }
    }
    assert_eq!(count, 54);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
