//! The domains that a spread counts for the node selector and the terms of the node affinity, by the offerings there.

use karpenter_core::fake::{instance_type, offering};
use karpenter_core::offering::Offering;
use karpenter_core::requirements::{Operator, Requirement};

use super::{spread, zones};
use crate::fixture::*;

/// Spot in zone 1 and on-demand in zone 2.
fn spot_or_on_demand() -> World {
    with([offering("spot", Z1, 1.0), offering("on-demand", Z2, 2.0)])
}

/// One instance type with these offerings, which lists both zones whether or not they are available.
fn with<const N: usize>(offerings: [Offering; N]) -> World {
    let types = instance_type("t")
        .offerings(offerings.into())
        .requires(Requirement::new(ZONE, Operator::In, [Z1, Z2]));
    zones(&[Z1, Z2]).with_types(types)
}

fn unavailable(capacity_type: &str, zone: &str) -> Offering {
    let mut offering = offering(capacity_type, zone, 1.0);
    offering.available = false;
    offering
}

/// Returns how many of four such pods are placed.
fn placed(world: World, pod: &Object<Pod>) -> usize {
    4 - world.with(copies(pod, 4)).plan().unplaced.len()
}

#[test]
fn a_zone_without_an_offering_for_the_node_selector_does_not_count() {
    let spot = spread("p", ZONE).select(CAPACITY_TYPE, "spot");
    assert_eq!(placed(spot_or_on_demand(), &spot), 4);
}

#[test]
fn a_zone_without_an_offering_for_any_term_does_not_count() {
    let asked = spread("p", ZONE)
        .require(CAPACITY_TYPE, "In", &["spot"])
        .require(ARCH, "In", &["arm64"]);
    assert_eq!(placed(spot_or_on_demand(), &asked), 4);
}

#[test]
fn a_zone_with_an_offering_for_another_term_counts() {
    let asked = spread("p", ZONE)
        .require(CAPACITY_TYPE, "In", &["spot"])
        .require(ZONE, "In", &[Z2]);
    let mut world = spot_or_on_demand().with(copies(&asked, 4));
    assert!(all_placed(&world.launch_and_bind()));
    assert_eq!(world.skew(ZONE, APP), [2, 2]);
}

/// The pod waits for it, as without a node selector.
#[test]
fn a_zone_whose_offering_is_not_available_counts() {
    let world = || with([offering("spot", Z1, 1.0), unavailable("spot", Z2)]);
    let spot = spread("p", ZONE).select(CAPACITY_TYPE, "spot");
    assert_eq!(placed(world(), &spot), 1);
    assert_eq!(placed(world(), &spread("p", ZONE)), 1);
}

#[test]
fn a_zone_whose_offering_is_not_available_does_not_count_for_another_term() {
    let world = with([offering("spot", Z1, 1.0), unavailable("on-demand", Z2)]);
    let asked = spread("p", ZONE)
        .require(ZONE, "In", &[Z1])
        .require(CAPACITY_TYPE, "Exists", &[]);
    assert_eq!(placed(world, &asked), 4);
}

/// No node has the capacity type that only the second term opens: kube-scheduler binds the pods to the node that is there.
#[test]
fn a_domain_that_another_term_would_open_does_not_count_on_existing_nodes() {
    let asked = member("p")
        .cpu("1")
        .spread(CAPACITY_TYPE, 1, APP)
        .require(CAPACITY_TYPE, "In", &["spot"])
        .require(ZONE, "In", &[Z2]);
    let there = node("n").zone(Z1).label(CAPACITY_TYPE, "spot");
    let plan = spot_or_on_demand()
        .with((there, member("e").on("n")))
        .with(copies(&asked, 2))
        .plan();
    assert!(all_placed(&plan));
    assert_eq!(sizes(&plan), [0; 0]);
}
