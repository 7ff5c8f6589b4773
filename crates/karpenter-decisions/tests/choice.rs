//! Why a NodeClaim has its instance type: each test that a type fails, and the bounds of what is stored.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::fake::{cluster_config, instance_type, offering};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::reason::Reason;
use karpenter_core::resources::Resources;
use karpenter_core::schedule::{PlannedNodeClaim, Policy, Query, schedule};
use karpenter_decisions::choice::{
    Choice, Choices, Launch, MAX_BYTES, MAX_CHOICES, Offered, Rejected, choose,
};
use karpenter_fixtures::{
    ARCH, INSTANCE_TYPE, NodePool, Object, Pod, Z1, Z2, ZONE, node_pool, pod,
};

fn kind(name: &str, cpu: i64, arch: &str) -> InstanceType {
    let price = 0.1 * cpu as f64;
    instance_type(name)
        .cpu(cpu)
        .gib(4 * cpu)
        .pods(20)
        .arch(arch)
        .offerings(vec![
            offering("on-demand", Z1, price),
            offering("on-demand", Z2, price),
        ])
        .build()
}

/// Plans a node for a pod; returns the NodeClaim that is created for it.
fn launch(
    pool: Object<NodePool>,
    types: Vec<InstanceType>,
    pod: Object<Pod>,
) -> (Snapshot, NodeClaim, PlannedNodeClaim) {
    let mut cluster = Cluster::new(cluster_config());
    let name = pool.name().to_owned();
    cluster.apply_node_pool(&pool.build());
    cluster.set_instance_types(&name, Ok(types.into()));
    cluster.apply_pod(&pod.build());
    let snapshot = cluster.snapshot();
    let policy = Policy::at(Timestamp::UNIX_EPOCH);
    let mut plan = schedule(&snapshot, &policy, &Query::default());
    assert_eq!(plan.new_node_claims.len(), 1, "{plan:#?}");
    let planned = plan.new_node_claims.remove(0);
    let mut claim = planned.to_node_claim();
    claim.metadata.name = Some("default-1".to_owned());
    (snapshot, claim, planned)
}

fn chosen(pool: Object<NodePool>, types: Vec<InstanceType>, pod: Object<Pod>) -> Choice {
    let (snapshot, claim, planned) = launch(pool, types, pod);
    let earlier = Resources::new();
    let launch = Launch {
        claim: &claim,
        pods: &planned.pods,
        earlier: &earlier,
    };
    let choice = choose(&snapshot, launch).unwrap();
    let offered = choice.options.iter().map(|it| &it.instance_type);
    assert!(offered.eq(planned.instance_types.iter()), "{choice:?}");
    assert_eq!(choice.options[0].price_per_hour, planned.hourly_price);
    choice
}

fn over_limit() -> Reason {
    let resource = "cpu".into();
    Reason::OverLimit { resource }
}

fn reason<'c>(choice: &'c Choice, name: &str) -> &'c Reason {
    let rejected = choice.rejected.iter().find(|it| it.instance_type == name);
    &rejected
        .unwrap_or_else(|| panic!("{name}: {choice:#?}"))
        .reason
}

#[test]
fn each_type_that_is_not_offered_has_the_first_test_that_it_fails() {
    let mut out = kind("out", 8, "amd64");
    let until: Timestamp = "2026-01-01T00:03:00Z".parse().unwrap();
    for offering in out.offerings.iter_mut() {
        offering.available = false;
        offering.unavailable_until = Some(until);
    }
    let mut far = kind("far", 8, "amd64");
    far.offerings = vec![offering("on-demand", Z2, 0.7)].into();
    let types = vec![
        kind("small", 2, "amd64"),
        kind("arm", 8, "arm64"),
        kind("fits", 8, "amd64"),
        kind("huge", 64, "amd64"),
        out,
        far,
    ];
    let pool = node_pool("default")
        .requires(ARCH, "In", &["amd64"])
        .limit("cpu", "32");
    let choice = chosen(pool, types, pod("web").cpu("4").select(ZONE, Z1));
    assert!(
        matches!(reason(&choice, "arm"), Reason::PoolRequirement { requirement } if requirement == "kubernetes.io/arch In [amd64]")
    );
    let zone = format!("{ZONE} In [{Z1}]");
    assert!(
        matches!(reason(&choice, "far"), Reason::PodRequirement { requirement } if *requirement == zone)
    );
    assert!(
        matches!(reason(&choice, "small"), Reason::TooSmall { resource, .. } if resource == "cpu")
    );
    assert_eq!(
        reason(&choice, "out"),
        &Reason::Unavailable {
            until: Some(until.to_string())
        }
    );
    assert_eq!(reason(&choice, "huge"), &over_limit());
    let prices: Vec<f64> = choice.rejected.iter().map(|it| it.price_per_hour).collect();
    assert!(prices.is_sorted(), "{prices:?}");
}

#[test]
fn a_pod_that_selects_an_instance_type_rejects_the_others() {
    let types = vec![kind("a", 4, "amd64"), kind("b", 8, "amd64")];
    let selecting = pod("web").cpu("1").select(INSTANCE_TYPE, "b");
    let choice = chosen(node_pool("default"), types, selecting);
    let expected = format!("{INSTANCE_TYPE} In [b]");
    assert!(
        matches!(reason(&choice, "a"), Reason::PodRequirement { requirement } if *requirement == expected)
    );
}

#[test]
fn nodes_that_were_planned_before_it_count_for_the_limit() {
    let types = vec![kind("a", 4, "amd64"), kind("b", 8, "amd64")];
    let pool = node_pool("default").limit("cpu", "12");
    let (snapshot, mut claim, planned) = launch(pool, types, pod("web").cpu("1"));
    // Both types were within the limit; after another node of 8 cores only the small one is.
    let mut required = claim.spec.requirements.iter_mut();
    let listed = required.find(|it| it.key == INSTANCE_TYPE);
    listed.expect("the list of types").values = vec!["a".to_owned()];
    let earlier = Resources::new().with("cpu", 8000);
    let launch = Launch {
        claim: &claim,
        pods: &planned.pods,
        earlier: &earlier,
    };
    let choice = choose(&snapshot, launch).unwrap();
    assert_eq!(reason(&choice, "b"), &over_limit());
}

/// Conformance: EXP-16
#[test]
fn choices_stay_within_1000_nodeclaims_and_1_mib() {
    let list = |salt: usize| -> Arc<[Offered]> {
        let of = |index: usize| Offered {
            instance_type: format!("type-{salt}-{index}"),
            price_per_hour: index as f64,
        };
        (0..60).map(of).collect()
    };
    let rejected = |salt: usize| -> Arc<[Rejected]> {
        let of = |index: usize| Rejected {
            instance_type: format!("type-{salt}-{index}"),
            price_per_hour: 0.0,
            reason: Reason::TooSmall {
                resource: "cpu".into(),
                short_by: "1".into(),
            },
        };
        (0..10).map(of).collect()
    };
    let choice = |salt| Choice {
        options: list(salt),
        more_options: 0,
        rejected: rejected(salt),
    };
    let mut same = Choices::default();
    for number in 0..2 * MAX_CHOICES {
        same.add(&format!("uid-{number}"), choice(0));
    }
    assert_eq!(same.len(), MAX_CHOICES);
    assert!(same.memory() < MAX_BYTES / 4, "{}", same.memory());
    assert!(same.get("uid-0").is_none() && same.get("uid-1999").is_some());

    let mut different = Choices::default();
    let measured = allocation_counter::measure(|| {
        for number in 0..2 * MAX_CHOICES {
            different.add(&format!("uid-{number}"), choice(number));
        }
    });
    assert!(different.memory() <= MAX_BYTES, "{}", different.memory());
    assert!(different.len() > 100, "{}", different.len());
    let held = usize::try_from(measured.bytes_current).unwrap();
    assert!(
        held <= MAX_BYTES * 3 / 2,
        "{held} bytes are held, {} are counted",
        different.memory()
    );
}
