//! Workloads, services, volumes and the other kinds with a few defaults.
//!
//! UPSTREAM: pkg/apis/{apps,batch,core,storage,scheduling,policy}/v1/defaults.go and their validation

use serde_json::{Map, Value, json};

use super::super::catalog::Served;
use super::super::value::{map_of, object_of};
use super::pods;
use crate::selector::Selector;
use crate::server::wire::error::Cause;

fn put(map: &mut Map<String, Value>, key: &str, value: Value) {
    map.entry(key).or_insert(value);
}

pub fn default(served: &Served, object: &mut Value) {
    match (served.group.as_str(), served.kind.as_str()) {
        ("apps", "Deployment") => {
            template(object);
            let spec = object_of(object, "spec");
            put(spec, "replicas", 1.into());
            put(spec, "revisionHistoryLimit", 10.into());
            put(spec, "progressDeadlineSeconds", 600.into());
            let strategy = map_of(spec.entry("strategy").or_insert_with(|| json!({})));
            put(strategy, "type", "RollingUpdate".into());
            if strategy.get("type") == Some(&"RollingUpdate".into()) {
                let rolling = map_of(strategy.entry("rollingUpdate").or_insert_with(|| json!({})));
                put(rolling, "maxUnavailable", "25%".into());
                put(rolling, "maxSurge", "25%".into());
            }
        }
        ("apps", "ReplicaSet") | ("", "ReplicationController") => {
            template(object);
            put(object_of(object, "spec"), "replicas", 1.into());
            put(object_of(object, "status"), "replicas", 0.into());
        }
        ("apps", "StatefulSet") => {
            template(object);
            let spec = object_of(object, "spec");
            put(spec, "replicas", 1.into());
            put(spec, "revisionHistoryLimit", 10.into());
            put(spec, "podManagementPolicy", "OrderedReady".into());
            put(
                spec,
                "updateStrategy",
                json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}),
            );
            put(
                spec,
                "persistentVolumeClaimRetentionPolicy",
                json!({"whenDeleted": "Retain", "whenScaled": "Retain"}),
            );
        }
        ("apps", "DaemonSet") => {
            template(object);
            let spec = object_of(object, "spec");
            put(spec, "revisionHistoryLimit", 10.into());
            put(
                spec,
                "updateStrategy",
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}),
            );
        }
        ("batch", "Job") => job(object),
        ("", "Service") => service(object),
        ("", "PersistentVolumeClaim") => {
            put(object_of(object, "spec"), "volumeMode", "Filesystem".into());
        }
        ("", "PersistentVolume") => {
            let spec = object_of(object, "spec");
            put(spec, "persistentVolumeReclaimPolicy", "Retain".into());
            put(spec, "volumeMode", "Filesystem".into());
        }
        ("", "Secret") => put(map_of(object), "type", "Opaque".into()),
        ("storage.k8s.io", "StorageClass") => {
            put(map_of(object), "reclaimPolicy", "Delete".into());
            put(map_of(object), "volumeBindingMode", "Immediate".into());
        }
        ("scheduling.k8s.io", "PriorityClass") => {
            put(
                map_of(object),
                "preemptionPolicy",
                "PreemptLowerPriority".into(),
            );
        }
        _ => {}
    }
}

fn template(object: &mut Value) {
    let template = map_of(
        object_of(object, "spec")
            .entry("template")
            .or_insert_with(|| json!({})),
    );
    map_of(template.entry("metadata").or_insert_with(|| json!({})));
    pods::default_spec(template.entry("spec").or_insert_with(|| json!({})));
}

fn job(object: &mut Value) {
    template(object);
    let uid = object["metadata"]["uid"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let name = object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let spec = object_of(object, "spec");
    // If neither is set, one pod has to succeed.
    if !spec.contains_key("completions") && !spec.contains_key("parallelism") {
        put(spec, "completions", 1.into());
    }
    put(spec, "parallelism", 1.into());
    put(spec, "backoffLimit", 6.into());
    put(spec, "completionMode", "NonIndexed".into());
    put(spec, "suspend", false.into());
    put(spec, "podReplacementPolicy", "TerminatingOrFailed".into());
    if spec.get("manualSelector") == Some(&true.into()) {
        return;
    }
    let labels = map_of(
        map_of(
            map_of(spec.entry("template").or_insert_with(|| json!({})))
                .entry("metadata")
                .or_insert_with(|| json!({})),
        )
        .entry("labels")
        .or_insert_with(|| json!({})),
    );
    for (key, value) in [
        ("batch.kubernetes.io/controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
        ("controller-uid", &uid),
        ("job-name", &name),
    ] {
        put(labels, key, value.as_str().into());
    }
    put(
        spec,
        "selector",
        json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}),
    );
}

fn service(object: &mut Value) {
    // A valid address that is stable for the object; it is not routed.
    let sum = object["metadata"]["uid"]
        .as_str()
        .unwrap_or_default()
        .bytes()
        .fold(1u16, |sum, b| sum.wrapping_mul(31).wrapping_add(b.into()));
    let address = format!("10.96.{}.{}", sum >> 8, sum & 0xff);
    let spec = object_of(object, "spec");
    put(spec, "type", "ClusterIP".into());
    put(spec, "sessionAffinity", "None".into());
    if spec["type"] != "ExternalName" {
        put(spec, "clusterIP", address.into());
        let ip = spec["clusterIP"].clone();
        put(spec, "clusterIPs", json!([ip]));
        put(spec, "ipFamilies", json!(["IPv4"]));
        put(spec, "ipFamilyPolicy", "SingleStack".into());
        put(spec, "internalTrafficPolicy", "Cluster".into());
    }
    for port in spec
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let port = map_of(port);
        put(port, "protocol", "TCP".into());
        if let Some(number) = port.get("port").cloned() {
            put(port, "targetPort", number);
        }
    }
    put(object_of(object, "status"), "loadBalancer", json!({}));
}

fn has_template(served: &Served) -> bool {
    matches!(
        (served.group.as_str(), served.kind.as_str()),
        (
            "apps",
            "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet"
        ) | ("batch", "Job")
    )
}

pub fn validate(served: &Served, object: &Value, causes: &mut Vec<Cause>) {
    let spec = &object["spec"];
    if let Some(replicas) = spec["replicas"].as_i64()
        && replicas < 0
        && served.group == "apps"
    {
        causes.push(Cause::invalid(
            "spec.replicas",
            &replicas.into(),
            "must be greater than or equal to 0",
        ));
    }
    if has_template(served) {
        pods::validate(&spec["template"]["spec"], "spec.template.spec", causes);
        let labels = &spec["template"]["metadata"]["labels"];
        super::metadata::labels(labels, "spec.template.metadata.labels", causes);
        match &spec["selector"] {
            Value::Null => causes.push(Cause::required("spec.selector", "")),
            selector => {
                let selector = Selector::of_json(selector);
                if !selector.matches_with(|key| labels[key].as_str()) {
                    causes.push(Cause::invalid(
                        "spec.template.metadata.labels",
                        labels,
                        "`selector` does not match template `labels`",
                    ));
                }
            }
        }
    }
    if served.is("policy", "PodDisruptionBudget")
        && !spec["minAvailable"].is_null()
        && !spec["maxUnavailable"].is_null()
    {
        causes.push(Cause::invalid(
            "spec",
            &Value::Object(Map::new()),
            "minAvailable and maxUnavailable cannot be both set",
        ));
    }
}

pub fn validate_change(served: &Served, old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let fixed: &[&str] = match (served.group.as_str(), served.kind.as_str()) {
        ("apps", "Deployment" | "ReplicaSet" | "DaemonSet") => &["selector"],
        ("batch", "Job") => &["selector", "completionMode"],
        _ => &[],
    };
    for field in fixed {
        let (was, is) = (&old["spec"][field], &new["spec"][field]);
        if was != is {
            causes.push(Cause::invalid(
                format!("spec.{field}"),
                is,
                "field is immutable",
            ));
        }
    }
    if served.is("", "Secret") || served.is("", "ConfigMap") {
        for field in ["data", "binaryData", "immutable"] {
            if old["immutable"] == true && old[field] != new[field] {
                causes.push(Cause::forbidden(
                    field,
                    "field is immutable when `immutable` is set",
                ));
            }
        }
    }
    let whole: &[&str] = match (served.group.as_str(), served.kind.as_str()) {
        ("storage.k8s.io", "StorageClass") => &[
            "provisioner",
            "parameters",
            "reclaimPolicy",
            "volumeBindingMode",
        ],
        ("scheduling.k8s.io", "PriorityClass") => &["value", "preemptionPolicy"],
        _ => &[],
    };
    for field in whole {
        if old[field] != new[field] {
            causes.push(Cause::forbidden(
                *field,
                &format!("updates to {field} are forbidden."),
            ));
        }
    }
}
