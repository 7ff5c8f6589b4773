//! Schedules pods on a custom list of instance types, without Kubernetes: `cargo run --example own_instance_types`.

#![expect(
    clippy::disallowed_methods,
    reason = "a program passes the time to the engine"
)]

use jiff::Timestamp;
use karpenter_api::v1::{NodeClassReference, NodePool};
use karpenter_core::cluster::{Cluster, ClusterConfig};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::{Offering, Price};
use karpenter_core::pod::Pod;
use karpenter_core::resources::Resources;
use karpenter_core::schedule::{Policy, Query, schedule};

/// Returns an instance type with `cores` and four GiB per core, offered in one hall.
fn instance_type(name: &str, cores: i64, price: f64) -> InstanceType {
    let capacity = Resources::new()
        .with("cpu", cores * 1000)
        .with("memory", cores << 32)
        .with("pods", 50);
    InstanceType::linux(name, "amd64", capacity)
        .with_offering(Offering::on_demand("hall-1", Price::per_hour(price)))
}

fn main() {
    let class = NodeClassReference {
        group: "example.com".to_owned(),
        kind: "Rack".to_owned(),
        name: "any".to_owned(),
    };
    let mut cluster = Cluster::new(ClusterConfig::default());
    cluster.apply_node_pool(&NodePool::ready("halls", class));
    let instance_types = [
        instance_type("small", 2, 0.10),
        instance_type("large", 8, 0.36),
    ];
    cluster.set_instance_types("halls", Ok(instance_types.into()));
    for (name, cores) in [("web-1", 1), ("web-2", 1), ("batch", 5), ("giant", 64)] {
        let requests = Resources::new()
            .with("cpu", cores * 1000)
            .with("memory", 1 << 30);
        cluster.insert_pod(Pod::pending("default", name, requests));
    }
    let policy = Policy::at(Timestamp::now());
    let plan = schedule(&cluster.snapshot(), &policy, &Query::default());
    for planned in &plan.new_node_claims {
        let pods: Vec<String> = planned.pods.iter().map(ToString::to_string).collect();
        println!("launch a node for {}", pods.join(", "));
        if let Some(cheapest) = planned.cheapest() {
            println!("    {cheapest}");
        }
    }
    for unplaced in &plan.unplaced {
        println!("cannot place {}: {}", unplaced.pod, unplaced.why);
    }
    for ignored in &plan.ignored {
        println!("not asked to place {}: {}", ignored.pod, ignored.why);
    }
}
