//! All orders of the small clusters, up to a bound: `cargo xtask explore` goes further.

use karpenter_explore::search::{Bounds, Order, explore, story};
use karpenter_explore::world::Faults;
use karpenter_explore::worlds;
use rayon::prelude::*;

/// The number of states of each cluster that are explored in the test suite.
const STATES: usize = 120;

#[test]
fn every_cluster_holds() {
    let bounds = Bounds {
        order: Order::Departures,
        depth: 40,
        states: STATES,
    };
    worlds::all().par_iter().for_each(|(name, build)| {
        let first = build().with_faults(Faults::one_of_each(1, 1));
        let outcome = explore(&first, bounds, |_| ());
        let found = outcome.counterexample.map(|it| story(&first, &it));
        assert_eq!(
            found,
            None,
            "{name}\n{}",
            found.as_deref().unwrap_or_default()
        );
        assert!(outcome.is_exhausted || outcome.states >= STATES, "{name}");
    });
}
