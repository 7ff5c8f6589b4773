//! Schedules pods on a machine catalogue of one's own, without Kubernetes: `cargo run --example own_machines`.

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::labels;
use karpenter_core::cluster::{Cluster, ClusterConfig};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::Offering;
use karpenter_core::requirements::{Requirement, Requirements};
use karpenter_core::resources::Resources;
use karpenter_core::schedule::{ScheduleRequest, schedule};
use serde_json::json;

/// A machine with `cores` and four GiB a core, sold by the hour in one hall.
fn machine(name: &str, cores: i64, price: f64) -> InstanceType {
    let only = |key: &str, value: &str| Requirement::equal(key, value);
    let labels: Requirements = [
        only(labels::INSTANCE_TYPE, name),
        only(labels::ARCH, "amd64"),
        only(labels::ZONE, "hall-1"),
    ]
    .into_iter()
    .collect();
    let capacity = Resources::new()
        .with("cpu", cores * 1000)
        .with("memory", cores << 32)
        .with("pods", 50);
    let mut machine = InstanceType::new(name, labels, capacity);
    let sold = [
        only(labels::ZONE, "hall-1"),
        only(labels::CAPACITY_TYPE, "on-demand"),
    ];
    machine
        .offerings
        .push(Offering::new(sold.into_iter().collect(), price));
    machine
}

fn main() -> Result<(), serde_json::Error> {
    let mut cluster = Cluster::new(ClusterConfig::default());
    cluster.apply_node_pool(&serde_json::from_value(json!({
        "metadata": { "name": "halls" },
        "spec": { "template": { "spec": { "requirements": [], "nodeClassRef": { "group": "example.com", "kind": "Rack", "name": "any" } } } },
        "status": { "conditions": [
            { "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" },
        ] },
    }))?);
    let machines: Arc<[InstanceType]> =
        [machine("small", 2, 0.10), machine("large", 8, 0.36)].into();
    cluster.set_instance_types("halls", Ok(machines));
    for (name, cpu) in [
        ("web-1", "1"),
        ("web-2", "1"),
        ("batch", "5"),
        ("giant", "64"),
    ] {
        cluster.apply_pod(&serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "default", "uid": name },
            "spec": { "containers": [{ "name": "main", "resources": { "requests": { "cpu": cpu, "memory": "1Gi" } } }] },
            "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] },
        }))?);
    }
    let plan = schedule(&cluster.snapshot(), &ScheduleRequest::at(Timestamp::now()));
    for draft in &plan.new_claims {
        let pods: Vec<String> = draft.pods.iter().map(ToString::to_string).collect();
        println!(
            "launch {} for ${}/h: {}",
            draft.instance_types[0],
            draft.hourly_price,
            pods.join(", ")
        );
    }
    for unplaced in &plan.unplaced {
        println!("cannot place {}: {}", unplaced.pod, unplaced.why);
    }
    Ok(())
}
