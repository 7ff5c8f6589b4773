//! Spread constraints of pods with several node selector terms: which domains count that no node has yet.

use karpenter_spec::clusters::{self, Shape};
use karpenter_spec::replay::{Launch, Replay, replay};

use super::{assert_placed, plan};

#[test]
fn a_domain_that_no_term_reaches_with_an_offering_does_not_count() {
    assert_placed("ours-orterms-spread-zone", 1, 3.05423);
    assert_placed("ours-orterms-spread-arch", 1, 0.38208);
    assert_placed("ours-orterms-spread-capacity-type", 1, 0.73072);
    assert_placed("ours-orterms-spread-nodepool", 1, 0.59113);
}

/// Only another term reaches the capacity type, and no node has it.
#[test]
fn no_existing_node_is_passed_over_for_a_domain_of_another_term() {
    assert_placed("ours-orterms-spread-existing-node", 0, 0.0);
}

/// The place is within the skew once pods of planned nodes are bound, and a planned node opens another zone.
#[test]
fn a_place_on_an_existing_node_that_relies_on_a_launch_counts_later_zones() {
    for seed in [62043, 62846] {
        let world = clusters::cluster(seed, Shape::SMALL);
        let solution = plan(&world);
        let replayed = replay(&world, &solution, Launch::Cheapest);
        assert_eq!(replayed, Replay::default(), "{seed}: {solution:#?}");
    }
}

/// Two pods of existing nodes are bound before a launch adds a zone; others there must wait for pods of planned nodes.
#[test]
fn pods_that_need_the_domains_before_a_launch_are_bound_before_it() {
    let world = clusters::cluster(100_239, Shape::TERMS);
    let solution = plan(&world);
    let replayed = replay(&world, &solution, Launch::Cheapest);
    assert_eq!(replayed, Replay::default(), "{solution:#?}");
}

#[test]
fn no_pod_with_several_terms_is_stuck() {
    let mut wrong = Vec::new();
    for seed in super::seeds() {
        let world = clusters::cluster(seed, Shape::TERMS);
        let solution = plan(&world);
        for launch in [Launch::Cheapest, Launch::Drawn(seed)] {
            let replayed = replay(&world, &solution, launch);
            if replayed != Replay::default() {
                wrong.push((seed, launch, replayed));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
