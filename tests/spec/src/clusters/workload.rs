//! The pods of a workload: their constraints, preferences, ports and volumes.

use karpenter_api::labels;
use karpenter_core::resources::{CPU, MEMORY};
use serde_json::{Value, json};

use super::{Dice, FAMILY, Shape, TEAM, ZONES};

fn expression(dice: &mut Dice) -> Value {
    let (key, operator, values) = match dice.throw(8) {
        0..=2 => (labels::ZONE, "In", json!(dice.some(&ZONES))),
        3 => (labels::ZONE, "NotIn", json!([dice.of(&ZONES)])),
        4 => (
            labels::CAPACITY_TYPE,
            "In",
            json!([dice.of(&["spot", "on-demand"])]),
        ),
        5 => (FAMILY, "In", json!(dice.some(&["c", "m", "r"]))),
        6 => (
            TEAM,
            *dice.of(&["In", "NotIn"]),
            json!([dice.of(&["t1", "t2"])]),
        ),
        _ => ("example.com/pool", "In", json!([dice.of(&["p0", "p1"])])),
    };
    json!({ "key": key, "operator": operator, "values": values })
}

/// Returns an expression that part of the NodePools, offerings or instance types meet.
fn term_expression(dice: &mut Dice) -> Value {
    let (key, values) = match dice.throw(5) {
        0 => (labels::CAPACITY_TYPE, *dice.of(&["spot", "on-demand"])),
        1 => (labels::ARCH, *dice.of(&["amd64", "arm64"])),
        2 => (labels::NODE_POOL, *dice.of(&["pool-0", "pool-1"])),
        3 => (labels::ZONE, *dice.of(&ZONES)),
        _ => return expression(dice),
    };
    json!({ "key": key, "operator": *dice.of(&["In", "NotIn"]), "values": [values] })
}

/// Returns a selector on labels of the workload itself or of others.
fn selector(dice: &mut Dice, app: &str) -> Value {
    match dice.throw(7) {
        0..=2 => json!({ "matchLabels": { "app": app } }),
        3 => json!({ "matchLabels": { "app": format!("app-{}", dice.throw(4)) } }),
        4 => {
            json!({ "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": [format!("app-{}", dice.throw(4))] }] })
        }
        5 => json!({ "matchLabels": { "tier": *dice.of(&["front", "back"]) } }),
        _ => json!({ "matchExpressions": [{ "key": "tier", "operator": "Exists" }] }),
    }
}

fn affinity_term(dice: &mut Dice, app: &str, keys: &[&str]) -> Value {
    let mut term = json!({ "topologyKey": dice.of(keys), "labelSelector": selector(dice, app) });
    match dice.throw(8) {
        0 => term["namespaces"] = json!(["default", "other"]),
        1 => {
            term["namespaceSelector"] =
                json!({ "matchLabels": { "env": *dice.of(&["prod", "dev"]) } })
        }
        2 => term["namespaceSelector"] = json!({}),
        _ => {}
    }
    term
}

pub(super) fn workload_pod(
    dice: &mut Dice,
    index: usize,
    theme: &[bool],
    plain: bool,
    shape: Shape,
) -> Value {
    let Shape { extras, terms, .. } = shape;
    let app = format!("app-{}", dice.throw(4));
    let cpu = *dice.of(&["100m", "250m", "500m", "900m", "1", "2", "3900m"]);
    let memory = *dice.of(&["64Mi", "200Mi", "512Mi", "1Gi", "2Gi", "6Gi", "14Gi"]);
    let mut container =
        json!({ "name": "main", "resources": { "requests": { CPU: cpu, MEMORY: memory } } });
    let mut spec = json!({});
    let mut affinity = json!({});
    let has = |kind: usize| !plain && theme.get(kind).is_some_and(|on| *on);
    if has(0) && dice.one_in(4) {
        spec["nodeSelector"] = match dice.throw(3) {
            0 => json!({ labels::ZONE: dice.of(&ZONES) }),
            1 => json!({ labels::ARCH: *dice.of(&["amd64", "arm64"]) }),
            _ => json!({ labels::CAPACITY_TYPE: *dice.of(&["spot", "on-demand"]) }),
        };
    }
    if terms && !dice.one_in(4) {
        let terms: Vec<Value> = (0..2 + dice.throw(2))
            .map(|_| json!({ "matchExpressions": [term_expression(dice)] }))
            .collect();
        affinity["nodeAffinity"] = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } });
    } else if has(1) && dice.one_in(3) {
        let terms: Vec<Value> = (0..1 + dice.throw(3))
            .map(|_| json!({ "matchExpressions": [expression(dice)] }))
            .collect();
        affinity["nodeAffinity"] = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } });
    }
    if has(2) && dice.one_in(4) {
        let preferred = json!([{ "weight": 1 + dice.throw(50), "preference": { "matchExpressions": [expression(dice)] } }]);
        affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = preferred;
    }
    if (terms || has(3)) && dice.one_in(2) {
        let constraints: Vec<Value> = (0..1 + dice.throw(2))
            .map(|_| {
                let hard = !dice.one_in(3);
                let key = *dice.of(&[labels::ZONE, labels::ZONE, labels::HOSTNAME, labels::CAPACITY_TYPE, TEAM]);
                let mut constraint = json!({
                    "topologyKey": key, "maxSkew": 1 + dice.throw(3), "labelSelector": selector(dice, &app),
                    "whenUnsatisfiable": if hard { "DoNotSchedule" } else { "ScheduleAnyway" },
                });
                if hard && dice.one_in(6) {
                    constraint["minDomains"] = json!(1 + dice.throw(3));
                }
                if dice.one_in(4) {
                    constraint["nodeTaintsPolicy"] = json!("Honor");
                }
                if dice.one_in(5) {
                    constraint["nodeAffinityPolicy"] = json!("Ignore");
                }
                if dice.one_in(6) {
                    constraint["matchLabelKeys"] = json!(["hash"]);
                }
                constraint
            })
            .collect();
        spec["topologySpreadConstraints"] = json!(constraints);
    }
    let keys = [labels::ZONE, labels::HOSTNAME, labels::CAPACITY_TYPE];
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    if has(4) && dice.one_in(3) {
        let terms: Vec<Value> = (0..if dice.one_in(4) { 2 } else { 1 })
            .map(|_| affinity_term(dice, &app, &keys))
            .collect();
        affinity["podAffinity"][required] = json!(terms);
    }
    if has(5) && dice.one_in(3) {
        affinity["podAntiAffinity"][required] = json!([affinity_term(dice, &app, &keys)]);
    }
    if has(6) && dice.one_in(3) {
        let kind = *dice.of(&["podAffinity", "podAntiAffinity", "podAntiAffinity"]);
        let term = json!({ "weight": 1 + dice.throw(100), "podAffinityTerm": affinity_term(dice, &app, &keys) });
        affinity[kind][preferred] = json!([term]);
    }
    if has(7) && dice.one_in(4) {
        let port = 9100 + dice.throw(2);
        container["ports"] = json!([{ "containerPort": port, "hostPort": port }]);
    }
    let mut tolerations = vec![];
    if dice.one_in(3) {
        tolerations.push(json!({ "key": "dedicated", "operator": "Equal", "value": "x", "effect": "NoSchedule" }));
    }
    if dice.one_in(5) {
        tolerations.push(json!({ "key": "soft", "operator": "Exists" }));
    }
    if extras && has(8) && dice.one_in(4) {
        let claim = format!("claim-{}", 1 + dice.throw(4));
        spec["volumes"] =
            json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]);
    }
    spec["containers"] = json!([container]);
    spec["tolerations"] = json!(tolerations);
    spec["affinity"] = affinity;
    let namespace = if extras && has(8) || !dice.one_in(6) {
        "default"
    } else {
        "other"
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": namespace, "labels": {
            "app": app, "tier": *dice.of(&["front", "back"]), "hash": format!("h{}", index % 3),
        } },
        "spec": spec,
    })
}
