//! All orders of the small clusters, up to a bound: `cargo xtask explore` goes further.

use karpenter_explore::search::{Bounds, Order, explore, story};
use karpenter_explore::world::Faults;
use karpenter_explore::worlds;

/// The number of states of each cluster that are explored in the test suite.
const STATES: usize = 150;

fn holds(name: &str, faults: u8) {
    let mut all = worlds::all();
    all.retain(|named| named.name == name);
    let named = all.remove(0);
    let faults = Faults {
        stale: 1,
        answers: 1,
        crashes: 1,
        early: 1,
        all: faults,
        changes: 1,
    };
    let first = named.world.with_faults(faults);
    let outcome = explore(
        &first,
        Bounds {
            order: Order::Departures,
            depth: 40,
            states: STATES,
        },
        |_| (),
    );
    let found = outcome
        .counterexample
        .as_ref()
        .map(|found| story(&first, found));
    assert_eq!(found, None, "{}", found.as_deref().unwrap_or_default());
    assert!(
        outcome.is_exhausted || outcome.states >= STATES,
        "{outcome:?}"
    );
}

#[test]
fn pods_of_two_nodepools_with_limits_and_a_buffer_get_their_nodes() {
    holds("launch", 1);
}

#[test]
fn empty_nodes_go_within_the_budget_unless_a_pod_comes() {
    holds("empty", 1);
}

#[test]
fn nodes_are_consolidated_without_harm_to_guarded_or_protected_pods() {
    holds("consolidate", 1);
}

#[test]
fn drifted_nodes_are_replaced_within_budget_and_limit() {
    holds("drift", 1);
}

#[test]
fn two_nodepools_with_all_rules_together_hold() {
    holds("whole", 1);
}

#[test]
fn a_node_that_consolidation_launched_stays_unless_pods_leave_it() {
    holds("move", 1);
}

#[test]
fn an_expired_node_is_drained_until_its_grace_period_ends() {
    holds("expire", 1);
}
