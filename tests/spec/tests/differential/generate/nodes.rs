//! Nodes with NodeClaims, storage and DaemonSets.

use karpenter_api::labels;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::resources::{CPU, MEMORY};
use karpenter_spec::World;
use serde_json::{Value, json};

use super::TEAM;
use super::devices::Devices;
use super::numbers::Numbers;
use super::objects::{Pool, object, taint, terms};

pub(super) fn add_node(
    world: &mut World,
    index: usize,
    mut numbers: Numbers<'_>,
    types: &[(InstanceType, Devices)],
    pools: &[Pool],
) {
    let (instance_type, devices) = &types[numbers.below(types.len())];
    let pool = numbers.below(pools.len());
    let offering = &instance_type.offerings[numbers.below(instance_type.offerings.len())];
    // 0: initialized, 1: registered, 2: launched, without a Node, 3: unmanaged, 4: deleting.
    let state = numbers.rarely(2, 4);
    let name = format!("node-{index}");
    let mut labels = instance_type
        .requirements
        .labels(|key| key != labels::ZONE && key != labels::CAPACITY_TYPE);
    labels.extend(offering.requirements.labels(|_| true));
    labels.insert(labels::HOSTNAME.into(), name.clone());
    let capacity = instance_type.capacity.to_quantities();
    let allocatable = instance_type.allocatable().to_quantities();
    let taints: Vec<Value> = taint(numbers.rarely(4, 2)).into_iter().collect();
    let unmanaged = state == 3;
    if !unmanaged {
        labels.insert(labels::NODE_POOL.into(), format!("pool-{pool}"));
        labels.insert("karpenter.test.sh/testnodeclass".into(), "default".into());
        labels.insert("example.com/pool".into(), format!("p{pool}"));
        if pools[pool].has_team {
            labels.insert(TEAM.into(), "t1".into());
        }
        let mut metadata = json!({ "name": format!("claim-{index}"), "uid": format!("claim-{index}"), "labels": labels });
        if state == 4 {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            metadata["finalizers"] = json!(["karpenter.sh/termination"]);
        }
        world.node_claims.push(object(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": metadata,
            "spec": {
                "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" },
                "requirements": [], "taints": taints, "startupTaints": [],
            },
            "status": { "providerID": format!("test:///{name}"), "capacity": capacity, "allocatable": allocatable, "conditions": [] },
        })));
        if state == 2 {
            return;
        }
        labels.insert(labels::REGISTERED.into(), "true".into());
        if state != 1 {
            labels.insert(labels::INITIALIZED.into(), "true".into());
        }
    }
    let mut node_taints = taints;
    if state == 1 {
        node_taints.push(json!({ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" }));
    }
    world.nodes.push(object(json!({
        "metadata": { "name": name, "uid": name, "labels": labels },
        "spec": { "providerID": format!("test:///{name}"), "taints": node_taints },
        "status": { "capacity": capacity, "allocatable": allocatable, "conditions": [{ "type": "Ready", "status": "True" }] },
    })));
    world.csi_nodes.push(object(json!({
        "metadata": { "name": name },
        "spec": { "drivers": [{ "name": "ebs.csi.aws.com", "nodeID": name, "allocatable": { "count": 1 } }] },
    })));
    // In one of five cases its drivers have not published its devices.
    if !numbers.one_in(5) {
        devices.publish(world, &name);
    }
}

/// Adds volume claims: 1 is bound in z1, 2 in z1 or z2, 3 waits for a consumer in z2 or z3, 4 has a class with immediate binding.
pub(super) fn add_storage(world: &mut World) {
    for (index, zones) in [(1, json!(["z1"])), (2, json!(["z1", "z2"]))] {
        world.volumes.push(object(json!({
            "metadata": { "name": format!("volume-{index}") },
            "spec": {
                "csi": { "driver": "ebs.csi.aws.com", "volumeHandle": "x" },
                "nodeAffinity": { "required": { "nodeSelectorTerms": [
                    { "matchExpressions": [{ "key": labels::ZONE, "operator": "In", "values": zones }] },
                ] } },
            },
        })));
    }
    for (name, mode) in [("late", "WaitForFirstConsumer"), ("early", "Immediate")] {
        world.storage_classes.push(object(json!({
            "metadata": { "name": name }, "provisioner": "ebs.csi.aws.com", "volumeBindingMode": mode,
            "allowedTopologies": [{ "matchLabelExpressions": [{ "key": labels::ZONE, "values": ["z2", "z3"] }] }],
        })));
    }
    for index in 1..=4 {
        let mut claim = json!({ "metadata": { "namespace": "default", "name": format!("claim-{index}") }, "spec": {} });
        match index {
            1 | 2 => {
                claim["spec"]["volumeName"] = json!(format!("volume-{index}"));
                claim["metadata"]["annotations"] =
                    json!({ "pv.kubernetes.io/bind-completed": "yes" });
            }
            3 => claim["spec"]["storageClassName"] = json!("late"),
            _ => claim["spec"]["storageClassName"] = json!("early"),
        }
        world.volume_claims.push(object(claim));
    }
}

pub(super) fn build_daemon(index: usize, mut numbers: Numbers<'_>) -> Value {
    let cpu = numbers.of(&["100m", "50m", "500m", "1"]);
    let mut container = json!({ "name": "main", "resources": { "requests": { CPU: cpu }, "limits": { MEMORY: "128Mi" } } });
    let port = numbers.rarely(4, 2);
    if port > 0 {
        container["ports"] = json!([{ "containerPort": 80, "hostPort": 8000 + port }]);
    }
    let mut spec = json!({ "containers": [container] });
    if numbers.one_in(2) {
        spec["tolerations"] = json!([{ "operator": "Exists" }]);
    }
    let count = numbers.rarely(2, 1);
    if count > 0 {
        let terms = terms(&mut numbers, count);
        spec["affinity"] = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } });
    }
    let name = format!("daemon-{index}");
    json!({
        "metadata": { "namespace": "kube-system", "name": name, "uid": name },
        "spec": { "selector": { "matchLabels": { "daemon": name } }, "template": { "metadata": { "labels": { "daemon": name } }, "spec": spec } },
    })
}
