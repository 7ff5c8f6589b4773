//! What an embedder relies on: objects without JSON, and a reason for everything that does not happen.

use jiff::Timestamp;
use karpenter_api::labels;
use karpenter_api::v1::{NodeClassReference, NodePool};
use karpenter_core::cluster::{Cluster, ClusterConfig};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::{Offering, Price};
use karpenter_core::pod::{Pod, PodIgnored};
use karpenter_core::resources::Resources;
use karpenter_core::schedule::{
    Plan, PodSet, Policy, PoolOutcome, Query, Solver, Unschedulable, schedule,
};

fn cpu(cores: i64) -> Resources {
    Resources::new().with("cpu", cores * 1000)
}

fn pod(name: &str) -> Pod {
    Pod::pending("default", name, cpu(1))
}

fn instance_type(name: &str, cores: i64, offerings: &[Offering]) -> InstanceType {
    let capacity = cpu(cores).with("memory", cores << 32).with("pods", 50);
    offerings.iter().cloned().fold(
        InstanceType::linux(name, "amd64", capacity),
        InstanceType::with_offering,
    )
}

fn pool(name: &str) -> NodePool {
    let class = NodeClassReference {
        group: "example.com".to_owned(),
        kind: "Rack".to_owned(),
        name: "any".to_owned(),
    };
    NodePool::ready(name, class)
}

/// Returns a cluster with one NodePool, `halls`, and two instance types for the NodePool of this name.
fn cluster(instance_types_for: &str) -> Cluster {
    let mut cluster = Cluster::new(ClusterConfig::default());
    cluster.apply_node_pool(&pool("halls"));
    let small = [
        Offering::on_demand("hall-1", Price::per_hour(0.10)),
        Offering::spot("hall-2", Price::per_hour(0.04)),
    ];
    let large = [Offering::on_demand("hall-1", Price::per_hour(0.36))];
    let all = [
        instance_type("small", 2, &small),
        instance_type("large", 8, &large),
    ];
    cluster.set_instance_types(instance_types_for, Ok(all.into()));
    cluster
}

fn policy() -> Policy {
    Policy::at(Timestamp::UNIX_EPOCH)
}

fn plan(cluster: &Cluster, pods: PodSet) -> Plan {
    schedule(&cluster.snapshot(), &policy(), &Query::new(pods))
}

fn ignored(plan: &Plan) -> Vec<(&str, &PodIgnored)> {
    let ignored = plan.ignored.iter();
    ignored
        .map(|ignored| (ignored.pod.name.as_str(), &ignored.why))
        .collect()
}

#[test]
fn a_pod_that_is_not_placed_is_listed_with_the_reason() {
    let mut cluster = cluster("halls");
    let mut gated = pod("gated");
    (gated.unschedulable, gated.gated) = (false, true);
    let mut elsewhere = pod("elsewhere");
    elsewhere.unschedulable = false;
    elsewhere.scheduler_name = Some("batch".to_owned());
    let mut unmarked = pod("unmarked");
    unmarked.unschedulable = false;
    let mut terminating = pod("terminating");
    terminating.deleted_at = Some(Timestamp::UNIX_EPOCH.into());
    let mut bound = pod("bound");
    bound.node_name = Some("node-1".into());
    for pod in [gated, elsewhere, unmarked, terminating, bound, pod("web")] {
        cluster.insert_pod(pod);
    }
    let other = PodIgnored::OtherScheduler {
        scheduler: "batch".to_owned(),
    };
    let expected = [
        ("elsewhere", &other),
        ("gated", &PodIgnored::SchedulingGated),
        ("terminating", &PodIgnored::Terminating),
        ("unmarked", &PodIgnored::NotMarkedUnschedulable),
    ];
    let waiting = plan(&cluster, PodSet::Waiting);
    assert_eq!(waiting.new_node_claims[0].pods.len(), 1);
    assert_eq!(ignored(&waiting), expected);
    assert_eq!(waiting.bound_pods, 1);

    // Without a kube-scheduler no pod is marked.
    let unbound = plan(&cluster, PodSet::Unbound);
    assert_eq!(unbound.new_node_claims[0].pods.len(), 2);
    assert_eq!(ignored(&unbound), expected[..3]);
}

#[test]
fn a_node_pool_that_a_pod_misspells_is_named() {
    for (wanted, told) in [
        ("hals", "nodepool \"hals\" not found, typo of \"halls\"?"),
        ("kitchen", "nodepool \"kitchen\" not found"),
    ] {
        let mut cluster = cluster("halls");
        cluster.insert_pod(pod("web").with_node_selector(labels::NODE_POOL, wanted));
        let why = plan(&cluster, PodSet::Waiting).unplaced[0].why.to_string();
        assert!(why.ends_with(&format!(" ({told})")), "{why}");
    }
    let mut cluster = cluster("halls");
    cluster.apply_node_pool(&pool("kitchen"));
    cluster.insert_pod(pod("web").with_node_selector(labels::NODE_POOL, "kitchen"));
    let why = plan(&cluster, PodSet::Waiting).unplaced[0].why.to_string();
    assert!(!why.contains("not found"), "the NodePool exists: {why}");
}

#[test]
fn a_misspelt_node_pool_whose_instance_types_are_set_is_named() {
    let mut cluster = cluster("hals");
    cluster.insert_pod(pod("web"));
    let plan = plan(&cluster, PodSet::Waiting);
    let pools = plan.pools.iter();
    let outcomes: Vec<_> = pools.map(|it| (&*it.node_pool, &it.outcome)).collect();
    let similar = Some("halls".to_owned());
    let not_found = PoolOutcome::NotFound {
        similar: similar.clone(),
    };
    assert_eq!(
        outcomes,
        [("halls", &PoolOutcome::Unevaluated), ("hals", &not_found)]
    );
    let name = "hals".to_owned();
    assert_eq!(
        plan.unplaced[0].why,
        Unschedulable::UnknownNodePool { name, similar }
    );
    assert_eq!(
        plan.unplaced[0].why.to_string(),
        "instance types were set for nodepool \"hals\", which does not exist (typo of \"halls\"?)"
    );
}

#[test]
fn a_planned_node_says_where_it_may_be_launched_and_its_cheapest_type() {
    let mut cluster = cluster("halls");
    cluster.insert_pod(pod("web"));
    let plan = plan(&cluster, PodSet::Waiting);
    let planned = &plan.new_node_claims[0];
    assert_eq!(planned.zones(), ["hall-1", "hall-2"]);
    assert_eq!(planned.capacity_types(), ["on-demand", "spot"]);
    let cheapest = planned.cheapest().unwrap();
    assert_eq!(cheapest.zone.as_deref(), Some("hall-2"));
    assert_eq!(
        cheapest.to_string(),
        "small at $0.04 per hour (spot, hall-2) is the cheapest of 2 instance types that fit; the next is large at $0.36"
    );

    let mut cluster = self::cluster("halls");
    cluster.insert_pod(Pod::pending("default", "large", cpu(5)));
    let snapshot = cluster.snapshot();
    let plan = schedule(&snapshot, &policy(), &Query::default());
    assert_eq!(
        plan.new_node_claims[0].cheapest().unwrap().to_string(),
        "large at $0.36 per hour (on-demand, hall-1) is the only instance type that fits"
    );
}

#[test]
fn a_solver_answers_queries_about_resources_that_it_was_not_compiled_for() {
    let mut cluster = cluster("halls");
    let capacity = cpu(8).with("pods", 50).with("example.com/laser", 2);
    let laser = InstanceType::linux("laser", "amd64", capacity)
        .with_offering(Offering::on_demand("hall-1", Price::per_hour(2.0)));
    cluster.set_instance_types("halls", Ok([laser].into()));
    let solver = Solver::prepare(&cluster.snapshot(), &policy());
    let asking = |lasers: i64| {
        let requests = cpu(1).with("example.com/laser", lasers);
        let pod = Pod::pending("default", "cutter", requests);
        solver.solve(&Query::new(PodSet::Given(vec![pod.into()])))
    };
    assert_eq!(asking(2).new_node_claims.len(), 1);
    assert_eq!(asking(3).unplaced.len(), 1);
}

#[test]
fn a_plan_tells_on_which_existing_node_a_pod_is_placed() {
    let mut cluster = cluster("halls");
    cluster.apply_node(&karpenter_fixtures::node("rack-1").cpu("2").build());
    cluster.insert_pod(pod("first"));
    let plan = plan(&cluster, PodSet::Waiting);
    let (first, other) = (pod("first").key, pod("other").key);
    assert_eq!(plan.node_of(&first), Some("rack-1"));
    assert_eq!(plan.node_of(&other), None);
}
