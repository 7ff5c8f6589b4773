//! Planned nodes that kube-scheduler counts, or not, by a label that only the launch decides.

use karpenter_spec::clusters::{self, Shape};
use karpenter_spec::replay::{Launch, Replay, replay};

use super::case;

/// The pods that are spread use nodes on demand alone, so that only those count; the other pod's node may be either.
#[test]
fn whether_a_spread_counts_a_planned_node_is_not_left_to_the_launch() {
    let world = case::world("filter-reads-the-capacity-type");
    let solution = super::plan(&world);
    assert_eq!(solution.unplaced.len(), 0, "{solution:#?}");
    super::assert_binds("filter reads the capacity type", &world, &solution);
}

/// In 7297 and 13134 the filter reads the capacity type, in 7795 the zone, in 10447 the architecture.
#[test]
fn pods_are_bound_whatever_label_the_filter_of_a_spread_reads() {
    for seed in [7297, 7795, 10447, 13134] {
        let world = clusters::cluster(seed, Shape::SMALL);
        let solution = super::plan(&world);
        for launch in [Launch::Cheapest, Launch::Drawn(seed)] {
            let replayed = replay(&world, &solution, launch);
            assert_eq!(replayed, Replay::default(), "{seed}: {solution:#?}");
        }
    }
}
