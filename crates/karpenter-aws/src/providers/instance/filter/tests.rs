//! Which instance types remain for a launch, filter by filter.

use karpenter_core::fake::offering;
use karpenter_core::requirements::{Operator, Requirement};
use karpenter_core::resources::{CPU, PODS};

use super::*;
use crate::logged::logged;

fn reserved(zone: &str, id: &str, left: u32, kind: &str, interruptible: bool) -> Offering {
    let mut offering = offering("reserved", zone, 0.000_001);
    for (key, value) in [
        (labels::CAPACITY_RESERVATION_ID, id),
        (labels::CAPACITY_RESERVATION_TYPE, kind),
        (
            labels::CAPACITY_RESERVATION_INTERRUPTIBLE,
            if interruptible { "true" } else { "false" },
        ),
    ] {
        offering
            .requirements
            .replace(Requirement::equal(key, value));
    }
    offering.reservation_capacity = left;
    offering
}

fn instance(name: &str, offerings: Vec<Offering>) -> InstanceType {
    let size = name.split_once('.').unwrap().1;
    let requirements = [
        Requirement::equal(core::INSTANCE_TYPE, name),
        Requirement::equal(labels::INSTANCE_SIZE, size),
    ];
    let capacity = Resources::new().with(CPU, 4000).with(PODS, 10);
    InstanceType {
        offerings: offerings.into(),
        ..InstanceType::new(name, requirements.into_iter().collect(), capacity)
    }
}

fn claim(requirements: &[Requirement]) -> Requirements {
    requirements.iter().cloned().collect()
}

fn capacity_types(values: &[&str]) -> Requirement {
    Requirement::new(core::CAPACITY_TYPE, Operator::In, values.iter().copied())
}

fn run(
    types: &[InstanceType],
    requirements: &Requirements,
) -> Result<Vec<InstanceType>, NothingLeft> {
    let resources = Resources::new().with(CPU, 1000);
    filter(
        types,
        Request {
            requirements,
            resources: &resources,
            strict_min_values: true,
        },
    )
}

fn names(types: &[InstanceType]) -> Vec<&str> {
    types.iter().map(|found| found.name.as_str()).collect()
}

fn kept(types: &[InstanceType], requirements: &[Requirement]) -> Vec<String> {
    let left = run(types, &claim(requirements)).unwrap();
    names(&left).into_iter().map(str::to_owned).collect()
}

fn ids(types: &[InstanceType]) -> Vec<&str> {
    let all = types.iter().flat_map(|found| &found.offerings);
    all.filter_map(|offering| offering.single(labels::CAPACITY_RESERVATION_ID))
        .collect()
}

/// Conformance: AWS-filter-01
#[test]
fn an_offering_with_more_capacity_left_keeps_its_type() {
    let small = |overridden: bool| {
        let mut found = instance("m5.small", vec![offering("on-demand", "a", 1.0)]);
        found.capacity.set(CPU, 500);
        if overridden {
            let mut large = offering("on-demand", "b", 1.0);
            large.capacity_override = Some(Resources::new().with(CPU, 4000));
            found.offerings.push(large);
        }
        found
    };
    assert_eq!(kept(&[small(true)], &[]), ["m5.small"]);
    let error = run(&[small(false)], &claim(&[])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no instance type is left after the filter `compatible-available-filter`"
    );
}

/// Conformance: AWS-launch-18
#[test]
fn unavailable_and_incompatible_offerings_are_dropped() {
    let mut gone = instance("c5.large", vec![offering("on-demand", "a", 1.0)]);
    gone.offerings[0].available = false;
    let types = [
        instance("m5.large", vec![offering("on-demand", "a", 1.0)]),
        gone,
    ];
    assert_eq!(kept(&types, &[]), ["m5.large"]);
    assert!(run(&types, &claim(&[Requirement::equal(core::ZONE, "b")])).is_err());
    assert!(
        run(
            &types,
            &claim(&[Requirement::equal(core::INSTANCE_TYPE, "x1.large")])
        )
        .is_err()
    );
}

/// Conformance: AWS-filter-02
#[test]
fn plain_reservations_go_before_blocks_and_interruptible_ones_are_last() {
    let types = |kinds: &[(&str, &str, bool)]| {
        let ways = kinds
            .iter()
            .map(|(id, kind, interruptible)| reserved("a", id, 1, kind, *interruptible));
        vec![instance(
            "m5.large",
            ways.chain([offering("on-demand", "a", 1.0)]).collect(),
        )]
    };
    let plain = ("cr-plain", "default", false);
    let block = ("cr-block", "capacity-block", false);
    let interruptible = ("cr-interruptible", "default", true);
    assert_eq!(
        ids(&run(&types(&[interruptible, block, plain]), &claim(&[])).unwrap()),
        ["cr-plain"]
    );
    assert_eq!(
        ids(&run(&types(&[interruptible, block]), &claim(&[])).unwrap()),
        ["cr-block"]
    );
    assert_eq!(
        ids(&run(&types(&[interruptible]), &claim(&[])).unwrap()),
        ["cr-interruptible"]
    );
    let mut cheaper = types(&[interruptible, plain]);
    cheaper[0].offerings[0].price /= 2.0;
    assert_eq!(
        ids(&run(&cheaper, &claim(&[])).unwrap()),
        ["cr-interruptible"]
    );
}

/// Conformance: AWS-launch-16
#[test]
fn only_the_cheapest_capacity_block_is_kept() {
    let mut types = vec![
        instance(
            "p4.large",
            vec![
                reserved("a", "cr-1", 1, "capacity-block", false),
                reserved("b", "cr-2", 9, "capacity-block", false),
            ],
        ),
        instance(
            "p5.large",
            vec![reserved("a", "cr-3", 1, "capacity-block", false)],
        ),
    ];
    types[0].offerings[1].price = 0.000_000_5;
    let left = run(&types, &claim(&[])).unwrap();
    assert_eq!((names(&left), ids(&left)), (vec!["p4.large"], vec!["cr-2"]));
}

/// Conformance: AWS-filter-03
#[test]
fn the_largest_reservation_of_a_zone_is_kept() {
    let ways = vec![
        reserved("a", "cr-1", 1, "default", false),
        reserved("a", "cr-9", 9, "default", false),
        reserved("a", "cr-3", 3, "default", false),
        reserved("b", "cr-2", 2, "default", false),
    ];
    let types = [
        instance("m5.large", ways),
        instance("c5.large", vec![offering("on-demand", "a", 1.0)]),
    ];
    let left = run(&types, &claim(&[])).unwrap();
    assert_eq!(
        (names(&left), ids(&left)),
        (vec!["m5.large"], vec!["cr-9", "cr-2"])
    );
}

/// Conformance: AWS-filter-04
#[test]
fn a_claim_without_reserved_capacity_keeps_its_offerings() {
    let ways = vec![
        reserved("a", "cr-1", 1, "default", false),
        reserved("a", "cr-2", 2, "capacity-block", false),
        offering("on-demand", "a", 1.0),
    ];
    let types = [
        instance("m5.large", ways),
        instance("c5.large", vec![offering("on-demand", "a", 2.0)]),
    ];
    let left = run(&types, &claim(&[capacity_types(&["on-demand"])])).unwrap();
    assert_eq!(left, types);
}

/// Conformance: AWS-filter-05
#[test]
fn metal_and_accelerators_are_kept_only_if_nothing_else_is_left() {
    let mut gpu = instance("g5.large", vec![offering("on-demand", "a", 1.0)]);
    gpu.capacity.set(labels::resources::NVIDIA_GPU, 1);
    let mut neuron = instance("inf2.large", vec![offering("on-demand", "a", 1.5)]);
    neuron.capacity.set(labels::resources::AWS_NEURON, 1);
    let metal = instance("m5.metal", vec![offering("on-demand", "a", 2.0)]);
    let plain = instance("m5.large", vec![offering("on-demand", "a", 3.0)]);
    let all = [gpu.clone(), neuron.clone(), metal.clone(), plain];
    assert_eq!(kept(&all, &[]), ["m5.large"]);
    assert_eq!(
        kept(&[gpu, neuron, metal], &[]),
        ["g5.large", "inf2.large", "m5.metal"]
    );
    let least = Requirement::exists(core::INSTANCE_TYPE).with_min_values(Some(2));
    assert_eq!(kept(&all, &[least]).len(), 4);
}

/// Conformance: AWS-filter-06
#[test]
fn spot_that_costs_more_than_on_demand_is_dropped() {
    let types = [
        instance(
            "m5.large",
            vec![
                offering("on-demand", "a", 1.0),
                offering("spot", "a", 0.4),
                offering("spot", "b", 1.2),
            ],
        ),
        instance("m5.xlarge", vec![offering("spot", "a", 1.1)]),
    ];
    let left = run(&types, &claim(&[])).unwrap();
    assert_eq!(names(&left), ["m5.large"]);
    assert_eq!(left[0].offerings.len(), 2);
    for requirements in [
        vec![capacity_types(&["spot"])],
        vec![Requirement::exists(core::INSTANCE_TYPE).with_min_values(Some(1))],
    ] {
        assert_eq!(kept(&types, &requirements), ["m5.large", "m5.xlarge"]);
    }
    let mut without = types.clone();
    without[0].offerings[0].available = false;
    assert_eq!(kept(&without, &[]), ["m5.large", "m5.xlarge"]);
}

/// Conformance: AWS-filter-07
#[test]
fn the_sixty_cheapest_types_are_requested() {
    let types: Vec<InstanceType> = (0..200)
        .map(|n| {
            instance(
                &format!("m5.x{n:03}"),
                vec![offering("on-demand", "a", f64::from(200 - n))],
            )
        })
        .collect();
    let left = run(&types, &claim(&[])).unwrap();
    assert_eq!(left.len(), MAX_INSTANCE_TYPES);
    assert_eq!((names(&left)[0], names(&left)[59]), ("m5.x199", "m5.x140"));
}

/// Conformance: AWS-launch-15
#[test]
fn min_values_must_hold_after_truncation() {
    let types: Vec<InstanceType> = (0..100)
        .map(|n| {
            let mut found = instance(
                &format!("m5.x{n:03}"),
                vec![offering("on-demand", "a", f64::from(n))],
            );
            let family = if n < 60 { "m5" } else { "c5" };
            found
                .requirements
                .replace(Requirement::equal(labels::INSTANCE_FAMILY, family));
            found
        })
        .collect();
    let least = claim(&[Requirement::exists(labels::INSTANCE_FAMILY).with_min_values(Some(2))]);
    let error = run(&types, &least).unwrap_err();
    assert!(
        matches!(&error, NothingLeft::MinValues { key, .. } if key == labels::INSTANCE_FAMILY),
        "{error}"
    );
    let lenient = Request {
        requirements: &least,
        resources: &Resources::new(),
        strict_min_values: false,
    };
    assert_eq!(filter(&types, lenient).unwrap().len(), 60);
}

/// Conformance: AWS-launch-15
#[test]
fn min_values_must_hold_for_few_instance_types_too() {
    let types = ["m5.large", "m5.xlarge", "m5.2xlarge"]
        .map(|name| instance(name, vec![offering("on-demand", "a", 1.0)]));
    let least = |n| claim(&[Requirement::exists(core::INSTANCE_TYPE).with_min_values(Some(n))]);
    assert_eq!(run(&types, &least(3)).unwrap().len(), 3);
    let error = run(&types[..2], &least(3)).unwrap_err();
    assert!(
        matches!(&error, NothingLeft::MinValues { count: 2, .. }),
        "{error}"
    );
    let best_effort = Request {
        requirements: &least(3),
        resources: &Resources::new(),
        strict_min_values: false,
    };
    assert_eq!(filter(&types[..2], best_effort).unwrap().len(), 2);
}

/// Conformance: AWS-launch-17
#[test]
fn reserved_goes_before_spot_and_spot_before_on_demand() {
    let ways = |ways: &[&str]| {
        vec![instance(
            "m5.large",
            ways.iter().map(|way| offering(way, "a", 1.0)).collect(),
        )]
    };
    let all = claim(&[]);
    assert_eq!(
        capacity_type(&ways(&["on-demand", "spot", "reserved"]), &all),
        CapacityType::Reserved
    );
    assert_eq!(
        capacity_type(&ways(&["on-demand", "spot"]), &all),
        CapacityType::Spot
    );
    assert_eq!(
        capacity_type(&ways(&["on-demand"]), &all),
        CapacityType::OnDemand
    );
    let mut gone = ways(&["on-demand", "spot"]);
    gone[0].offerings[1].available = false;
    assert_eq!(capacity_type(&gone, &all), CapacityType::OnDemand);
    let on_demand = claim(&[capacity_types(&["on-demand"])]);
    assert_eq!(
        capacity_type(&ways(&["on-demand", "spot"]), &on_demand),
        CapacityType::OnDemand
    );
}

#[test]
fn instance_types_that_a_filter_rejects_are_logged() {
    let on_demand = |name: &str| instance(name, vec![offering("on-demand", "a", 1.0)]);
    let mut types = vec![on_demand("m5.large")];
    types.extend((1..=7).map(|n| on_demand(&format!("m{n}.metal"))));
    let lines = logged(|| assert_eq!(kept(&types, &[]), ["m5.large"]));
    let [line] = lines.as_slice() else {
        panic!("{lines:?}");
    };
    for part in [
        "filtered out instance types from launch",
        "filter=\"exotic-instance-filter\"",
        "m1.metal, m2.metal, m3.metal, m4.metal, m5.metal and 2 other(s)",
    ] {
        assert!(line.contains(part), "{line}");
    }
}
