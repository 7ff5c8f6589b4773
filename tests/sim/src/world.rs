//! The objects of a simulated cluster.

use std::time::Duration;

use jiff::Timestamp;
use karpenter_kube::options::{FeatureGates, Options};
use karpenter_kwok::catalogue;
use karpenter_lab::local_cluster::LocalClusterSettings;
use karpenter_testbed::loops;
use karpenter_testbed::loops::node_agent::NodeAgentOptions;
use karpenter_testbed::loops::node_lifecycle::NodeLifecycleOptions;
use serde_json::{Value, json};

use crate::chance::Chance;

/// Interval of the nodes' heartbeats: rare, because each costs simulation time.
const HEARTBEAT: Duration = Duration::from_secs(300);

/// The NodePool without requirements and limits, so that every pod can run.
pub const FALLBACK: &str = "fallback";
/// The NodePool with a fixed number of nodes.
pub const STATIC: &str = "static";
/// The NodePools that are created and deleted.
pub const OTHERS: [&str; 2] = ["alpha", "beta"];

/// Returns when every simulation begins: just before midnight.
pub fn epoch() -> Timestamp {
    Timestamp::from_second(1_767_225_600).unwrap_or_default()
}

/// Returns the settings of the simulated cluster.
pub fn settings(chance: &mut Chance, seed: u64, elects: Option<bool>) -> LocalClusterSettings {
    let types = catalogue::generate();
    let wanted = |name: &str| {
        name.ends_with("-amd64-linux")
            && ["1x", "2x", "4x", "8x", "16x"]
                .iter()
                .any(|size| name.contains(&format!("-{size}-")))
    };
    let gates = FeatureGates {
        node_repair: chance.happens(0.5),
        spot_to_spot_consolidation: chance.happens(0.3),
        static_capacity: true,
        capacity_buffer: chance.happens(0.4),
        node_overlay: chance.happens(0.3),
        ..FeatureGates::default()
    };
    // Renewing a lease costs a request every second: not in every simulation.
    let by_chance = chance.happens(0.15);
    let elects = elects.unwrap_or(by_chance);
    LocalClusterSettings {
        epoch: epoch(),
        seed,
        options: Options {
            metrics_port: 0,
            decisions_port: 0,
            health_probe_port: 0,
            disable_leader_election: !elects,
            leader_election_namespace: "default".into(),
            disable_controller_warmup: chance.happens(0.5),
            // One core: more threads have no work.
            cpu_requests: 1000,
            feature_gates: gates,
            ..Options::default()
        },
        loops: loops::Options {
            seed,
            node_agent: Some(NodeAgentOptions {
                boot_delay: Duration::from_secs(chance.between(1, 60)),
                start_delay: Duration::from_secs(chance.between(0, 20)),
                heartbeat: HEARTBEAT,
                ..NodeAgentOptions::default()
            }),
            node_lifecycle: Some(NodeLifecycleOptions {
                grace: HEARTBEAT * 2 + HEARTBEAT / 2,
                startup_grace: HEARTBEAT * 2,
                ..NodeLifecycleOptions::default()
            }),
            ..loops::Options::default()
        },
        instance_types: types
            .iter()
            .filter(|t| wanted(&t.name))
            .filter_map(|t| t.instance_type().ok())
            .collect(),
        ..LocalClusterSettings::default()
    }
}

/// Returns the budgets of a NodePool.
pub fn budgets(chance: &mut Chance) -> Value {
    let mut all = vec![json!({"nodes": chance.one(["1", "2", "10%", "30%", "100%", "100%"])})];
    if chance.happens(0.3) {
        let reason = chance.one(["Empty", "Drifted", "Underutilized"]);
        all.push(json!({"nodes": chance.one(["0", "1", "50%"]), "reasons": [reason]}));
    }
    json!(all)
}

fn requirement(key: &str, values: &[&str]) -> Value {
    json!({"key": key, "operator": "In", "values": values})
}

/// Returns the NodePool for all pods that no other NodePool takes.
pub fn fallback_pool(chance: &mut Chance) -> Value {
    pool(chance, FALLBACK, json!({}))
}

/// Returns a NodePool with random requirements.
pub fn other_pool(chance: &mut Chance, name: &str) -> Value {
    let mut spec = json!({"weight": chance.between(1, 100)});
    if chance.happens(0.5) {
        spec["limits"] = if chance.happens(0.5) {
            json!({"cpu": chance.between(4, 64).to_string()})
        } else {
            json!({"nodes": chance.between(1, 8).to_string()})
        };
    }
    pool(chance, name, spec)
}

/// Returns the NodePool of a fixed size.
pub fn static_pool(chance: &mut Chance) -> Value {
    let spec = json!({"replicas": chance.between(0, 3), "limits": {"nodes": chance.between(2, 4).to_string()}});
    pool(chance, STATIC, spec)
}

fn pool(chance: &mut Chance, name: &str, mut spec: Value) -> Value {
    let mut requirements = vec![
        requirement("kubernetes.io/arch", &["amd64"]),
        requirement("kubernetes.io/os", &["linux"]),
    ];
    if name != FALLBACK {
        if chance.happens(0.4) {
            requirements.push(requirement(
                "karpenter.sh/capacity-type",
                &[chance.one(["spot", "on-demand"])],
            ));
        }
        if chance.happens(0.4) {
            let zone = chance.one(catalogue::ZONES);
            requirements.push(requirement("topology.kubernetes.io/zone", &[zone]));
        }
        if chance.happens(0.3) {
            requirements.push(
                json!({"key": "karpenter.kwok.sh/instance-cpu", "operator": "Lt", "values": ["9"]}),
            );
        }
    }
    let mut template = json!({
        "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
        "requirements": requirements,
        "expireAfter": chance.one(["Never", "Never", "3h", "12h"]),
    });
    if chance.happens(0.4) {
        template["terminationGracePeriod"] = json!(chance.one(["60s", "10m", "1h"]));
    }
    spec["template"] = json!({"metadata": {"labels": {"sim/generation": "0"}}, "spec": template});
    spec["disruption"] = json!({"budgets": budgets(chance)});
    if name != STATIC {
        spec["disruption"]["consolidateAfter"] =
            json!(chance.one(["0s", "30s", "5m", "30m", "Never"]));
        spec["disruption"]["consolidationPolicy"] = json!(chance.one([
            "WhenEmpty",
            "WhenEmptyOrUnderutilized",
            "WhenEmptyOrUnderutilized",
        ]));
    }
    json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name}, "spec": spec})
}

/// Returns a Deployment whose pods can run on some NodePool.
pub fn deployment(chance: &mut Chance, name: &str) -> Value {
    let labels = json!({"app": name});
    let mut template = json!({
        "metadata": {"labels": labels},
        "spec": {
            "terminationGracePeriodSeconds": chance.one([0, 5, 30, 120]),
            "containers": [{"name": "main", "image": "pause", "resources": {"requests": {
                "cpu": chance.one(["50m", "250m", "500m", "1", "2", "3500m"]),
                "memory": chance.one(["64Mi", "512Mi", "2Gi", "6Gi"]),
            }}}],
        },
    });
    match chance.between(0, 9) {
        0 => template["metadata"]["annotations"] = json!({"karpenter.sh/do-not-disrupt": "true"}),
        1 => {
            let minutes = chance.one(["10m", "90m"]);
            template["metadata"]["annotations"] = json!({"karpenter.sh/do-not-disrupt": minutes});
        }
        _ => {}
    }
    let spec = &mut template["spec"];
    match chance.between(0, 7) {
        0 | 1 => {
            spec["topologySpreadConstraints"] = json!([{
                "maxSkew": chance.between(1, 2),
                "topologyKey": chance.one(["topology.kubernetes.io/zone", "kubernetes.io/hostname"]),
                "whenUnsatisfiable": chance.one(["DoNotSchedule", "ScheduleAnyway"]),
                "labelSelector": {"matchLabels": labels},
            }]);
        }
        2 => {
            spec["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels},
            }]}});
        }
        3 => {
            let zone = chance.one(catalogue::ZONES);
            spec["nodeSelector"] = json!({"topology.kubernetes.io/zone": zone});
        }
        4 => {
            spec["nodeSelector"] =
                json!({"karpenter.sh/capacity-type": chance.one(["spot", "on-demand"])});
        }
        _ => {}
    }
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": chance.between(0, 12), "selector": {"matchLabels": labels}, "template": template},
    })
}

/// Returns a PodDisruptionBudget for the pods of a Deployment.
pub fn pdb(chance: &mut Chance, name: &str) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"app": name}}});
    if chance.happens(0.5) {
        spec["maxUnavailable"] = chance
            .one([json!(0), json!(1), json!("50%")].each_ref())
            .clone();
    } else {
        spec["minAvailable"] = chance
            .one([json!(1), json!("50%"), json!("90%")].each_ref())
            .clone();
    }
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

/// Returns the storage class of all volumes: a volume is created in the zone of its first pod, and stays there.
pub fn storage_class() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "zonal"},
        "provisioner": "csi.sim", "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete",
    })
}

/// Returns a StatefulSet of pods with a volume each.
pub fn stateful_set(chance: &mut Chance, name: &str) -> Value {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": chance.between(0, 4), "serviceName": name, "selector": {"matchLabels": labels},
            "podManagementPolicy": chance.one(["OrderedReady", "Parallel"]),
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": chance.one([0, 30]),
                    "containers": [{"name": "main", "image": "pause", "resources": {"requests": {
                        "cpu": chance.one(["250m", "1", "2"]), "memory": chance.one(["512Mi", "2Gi"]),
                    }}}],
                },
            },
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "zonal", "resources": {"requests": {"storage": "1Gi"}},
            }}],
        },
    })
}

/// Returns a CapacityBuffer for more pods of a Deployment.
pub fn capacity_buffer(chance: &mut Chance, name: &str) -> Value {
    let mut spec = json!({"scalableRef": {"apiGroup": "apps", "kind": "Deployment", "name": name}});
    if chance.happens(0.5) {
        spec["replicas"] = json!(chance.between(0, 6));
    } else {
        spec["percentage"] = json!(chance.one([20, 100]));
    }
    json!({"apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer", "metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

/// Returns an overlay that raises or lowers the price of some instance types.
pub fn overlay(chance: &mut Chance, name: &str) -> Value {
    let chosen = match chance.between(0, 2) {
        0 => requirement(
            "karpenter.kwok.sh/instance-family",
            &[chance.one(["c", "s", "m"])],
        ),
        1 => requirement(
            "karpenter.sh/capacity-type",
            &[chance.one(["spot", "on-demand"])],
        ),
        _ => requirement(
            "topology.kubernetes.io/zone",
            &[chance.one(catalogue::ZONES)],
        ),
    };
    let adjustment = chance.one(["-50%", "-10%", "+25%", "+300%"]);
    json!({
        "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": name},
        "spec": {"requirements": [chosen], "priceAdjustment": adjustment, "weight": chance.between(1, 100)},
    })
}

/// Returns a DaemonSet with small requests.
pub fn daemon_set() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "template": {
                "metadata": {"labels": {"app": "agent"}},
                "spec": {
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}}}],
                },
            },
        },
    })
}
