//! Schedules pods on a custom list of instance types, without Kubernetes: `cargo run --example own_instance_types`.

#![expect(
    clippy::disallowed_methods,
    reason = "a program knows the time and tells the engine"
)]

use jiff::Timestamp;
use karpenter_api::labels::{ARCH, CAPACITY_TYPE, INSTANCE_TYPE, ZONE};
use karpenter_core::cluster::{Cluster, ClusterConfig};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::Offering;
use karpenter_core::resources::Resources;
use karpenter_core::schedule::{ScheduleRequest, schedule};
use serde_json::json;

/// Returns an instance type with `cores` and four GiB per core, with one offering.
fn instance_type(name: &str, cores: i64, price: f64) -> InstanceType {
    let labels = [(INSTANCE_TYPE, name), (ARCH, "amd64"), (ZONE, "hall-1")];
    let offered = [(ZONE, "hall-1"), (CAPACITY_TYPE, "on-demand")];
    let capacity = Resources::new()
        .with("cpu", cores * 1000)
        .with("memory", cores << 32)
        .with("pods", 50);
    let mut instance_type = InstanceType::new(name, labels.into_iter().collect(), capacity);
    let offering = Offering::new(offered.into_iter().collect(), price);
    instance_type.offerings.push(offering);
    instance_type
}

fn main() -> Result<(), serde_json::Error> {
    let mut cluster = Cluster::new(ClusterConfig::default());
    let class = json!({ "group": "example.com", "kind": "Rack", "name": "any" });
    let ready = json!({ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    cluster.apply_node_pool(&serde_json::from_value(json!({
        "metadata": { "name": "halls" },
        "spec": { "template": { "spec": { "requirements": [], "nodeClassRef": class } } },
        "status": { "conditions": [ready] },
    }))?);
    let instance_types = [
        instance_type("small", 2, 0.10),
        instance_type("large", 8, 0.36),
    ];
    cluster.set_instance_types("halls", Ok(instance_types.into()));
    for (name, cpu) in [("web-1", 1), ("web-2", 1), ("batch", 5), ("giant", 64)] {
        let resources = json!({ "requests": { "cpu": cpu.to_string(), "memory": "1Gi" } });
        cluster.apply_pod(&serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "default", "uid": name },
            "spec": { "containers": [{ "name": "main", "resources": resources }] },
            "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] },
        }))?);
    }
    let plan = schedule(&cluster.snapshot(), &ScheduleRequest::at(Timestamp::now()));
    for draft in &plan.new_claims {
        let pods: Vec<String> = draft.pods.iter().map(ToString::to_string).collect();
        let (types, price) = (&draft.instance_types, draft.hourly_price);
        println!("launch {} for ${price}/h: {}", types[0], pods.join(", "));
    }
    for unplaced in &plan.unplaced {
        println!("cannot place {}: {}", unplaced.pod, unplaced.why);
    }
    Ok(())
}
