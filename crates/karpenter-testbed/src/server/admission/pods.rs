//! Pods, and the pod templates of workloads.
//!
//! UPSTREAM: pkg/apis/core/v1/defaults.go, pkg/apis/core/validation ValidatePodUpdate, pkg/apis/core/helper/qos

use std::cmp::Ordering;

use serde_json::{Map, Value, json};

use super::super::names;
use super::super::value::{map_of, object_of};
use crate::quantity;
use crate::server::wire::error::Cause;

const UNCHANGEABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`, `spec.initContainers[*].image`, `spec.activeDeadlineSeconds` or `spec.tolerations` (only additions to existing tolerations)";

/// Prepares a new pod: pending, with the default tolerations.
pub fn prepare(pod: &mut Value) {
    let spec = object_of(pod, "spec");
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    if let Some(list) = tolerations.as_array_mut() {
        for key in [
            "node.kubernetes.io/not-ready",
            "node.kubernetes.io/unreachable",
        ] {
            let tolerated = list.iter().any(|t| {
                let all = t["key"].as_str().unwrap_or_default();
                (all == key || (all.is_empty() && t["operator"] == "Exists"))
                    && matches!(t["effect"].as_str(), None | Some("" | "NoExecute"))
            });
            if !tolerated {
                list.push(json!({
                    "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
                }));
            }
        }
    }
    pod["status"] = json!({"phase": "Pending"});
    default_spec(&mut pod["spec"]);
    let class = qos(&pod["spec"]);
    pod["status"]["qosClass"] = class.into();
}

/// Sets `spec.priority` and the preemption policy from the priority class, found by `find`.
///
/// # Errors
/// The message, if the priority class does not exist.
pub fn resolve_priority(
    pod: &mut Value,
    find: impl Fn(&str) -> Option<Value>,
    default_class: impl FnOnce() -> Option<Value>,
) -> Result<(), String> {
    let spec = object_of(pod, "spec");
    let named = spec
        .get("priorityClassName")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let class = if named.is_empty() {
        default_class()
    } else {
        Some(find(&named).ok_or_else(|| format!("no PriorityClass with name {named} was found"))?)
    };
    let (priority, policy) = match &class {
        Some(class) => {
            spec.insert(
                "priorityClassName".into(),
                class["metadata"]["name"].clone(),
            );
            let policy = class["preemptionPolicy"]
                .as_str()
                .unwrap_or("PreemptLowerPriority");
            (class["value"].as_i64().unwrap_or(0), policy)
        }
        None => (0, "PreemptLowerPriority"),
    };
    if let Some(given) = spec.get("priority").and_then(Value::as_i64)
        && given != priority
    {
        return Err(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        ));
    }
    spec.insert("priority".into(), priority.into());
    spec.entry("preemptionPolicy")
        .or_insert_with(|| policy.into());
    Ok(())
}

pub fn default(pod: &mut Value) {
    default_spec(&mut pod["spec"]);
}

/// Defaults of a pod's spec, also in workload templates.
pub fn default_spec(spec: &mut Value) {
    let spec = map_of(spec);
    let mut put = |key: &str, value: Value| {
        spec.entry(key).or_insert(value);
    };
    put("restartPolicy", "Always".into());
    put("terminationGracePeriodSeconds", 30.into());
    put("dnsPolicy", "ClusterFirst".into());
    put("schedulerName", "default-scheduler".into());
    put("securityContext", json!({}));
    put("enableServiceLinks", true.into());
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        for container in list_mut(spec, "containers") {
            for port in list_mut(map_of(container), "ports") {
                let port = map_of(port);
                if let Some(number) = port.get("containerPort").cloned() {
                    port.entry("hostPort").or_insert(number);
                }
            }
        }
    }
    for key in ["containers", "initContainers"] {
        for container in list_mut(spec, key) {
            default_container(map_of(container));
        }
    }
    for volume in list_mut(spec, "volumes") {
        default_volume(map_of(volume));
    }
    for constraint in list_mut(spec, "topologySpreadConstraints") {
        let constraint = map_of(constraint);
        for key in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            // Absent means Honor and Ignore; the API keeps them absent.
            if constraint.get(key) == Some(&Value::Null) {
                constraint.remove(key);
            }
        }
    }
}

fn list_mut<'a>(map: &'a mut Map<String, Value>, key: &str) -> impl Iterator<Item = &'a mut Value> {
    map.get_mut(key)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

fn default_container(container: &mut Map<String, Value>) {
    container
        .entry("terminationMessagePath")
        .or_insert_with(|| "/dev/termination-log".into());
    container
        .entry("terminationMessagePolicy")
        .or_insert_with(|| "File".into());
    let image = container
        .get("image")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    let latest = !last.contains('@') && last.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    container
        .entry("imagePullPolicy")
        .or_insert_with(|| if latest { "Always" } else { "IfNotPresent" }.into());
    for port in list_mut(container, "ports") {
        map_of(port)
            .entry("protocol")
            .or_insert_with(|| "TCP".into());
    }
    for key in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(key) {
            let probe = map_of(probe);
            for (field, value) in [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ] {
                probe.entry(field).or_insert_with(|| value.into());
            }
            if let Some(get) = probe.get_mut("httpGet") {
                let get = map_of(get);
                get.entry("path").or_insert_with(|| "/".into());
                get.entry("scheme").or_insert_with(|| "HTTP".into());
            }
        }
    }
    for variable in list_mut(container, "env") {
        if let Some(field) = variable.pointer_mut("/valueFrom/fieldRef") {
            map_of(field)
                .entry("apiVersion")
                .or_insert_with(|| "v1".into());
        }
    }
    let resources = map_of(container.entry("resources").or_insert_with(|| json!({})));
    // A resource with only a limit is requested in full.
    if let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() {
        let requests = map_of(resources.entry("requests").or_insert_with(|| json!({})));
        for (name, amount) in limits {
            requests.entry(name).or_insert(amount);
        }
        if requests.is_empty() {
            resources.remove("requests");
        }
    }
}

fn default_volume(volume: &mut Map<String, Value>) {
    for (source, key, mode) in [
        ("configMap", "defaultMode", 420),
        ("secret", "defaultMode", 420),
        ("downwardAPI", "defaultMode", 420),
        ("projected", "defaultMode", 420),
    ] {
        if let Some(source) = volume.get_mut(source) {
            map_of(source).entry(key).or_insert_with(|| mode.into());
        }
    }
    if let Some(host) = volume.get_mut("hostPath") {
        map_of(host).entry("type").or_insert_with(|| "".into());
    }
    if volume.len() == 1 && volume.contains_key("name") {
        volume.insert("emptyDir".into(), json!({}));
    }
    if let Some(template) = volume
        .get_mut("ephemeral")
        .and_then(|e| e.get_mut("volumeClaimTemplate"))
    {
        let spec = object_of(template, "spec");
        spec.entry("volumeMode")
            .or_insert_with(|| "Filesystem".into());
    }
}

/// Returns the quality-of-service class.
fn qos(spec: &Value) -> &'static str {
    let (mut any, mut guaranteed) = (false, true);
    for key in ["containers", "initContainers"] {
        for container in spec[key].as_array().into_iter().flatten() {
            let resources = &container["resources"];
            for name in ["cpu", "memory"] {
                let (request, limit) = (&resources["requests"][name], &resources["limits"][name]);
                let has = |v: &Value| !v.is_null() && !quantity::is_zero(v);
                any |= has(request) || has(limit);
                guaranteed &= has(limit)
                    && (request.is_null() || quantity::compare(request, limit) == Ordering::Equal);
            }
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

pub fn validate(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    let containers = spec["containers"].as_array().map_or(&[][..], Vec::as_slice);
    if containers.is_empty() {
        causes.push(Cause::required(format!("{path}.containers"), ""));
    }
    let mut seen: Vec<&str> = Vec::new();
    for key in ["initContainers", "containers"] {
        for (i, container) in spec[key].as_array().into_iter().flatten().enumerate() {
            validate_container(container, &format!("{path}.{key}[{i}]"), &mut seen, causes);
        }
    }
    one_of(
        spec,
        path,
        "restartPolicy",
        &["Always", "OnFailure", "Never"],
        causes,
    );
    one_of(
        spec,
        path,
        "dnsPolicy",
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        causes,
    );
    if let Some(grace) = spec["terminationGracePeriodSeconds"].as_i64()
        && grace < 0
    {
        causes.push(Cause::invalid(
            format!("{path}.terminationGracePeriodSeconds"),
            &grace.into(),
            "must be greater than or equal to 0",
        ));
    }
    super::metadata::labels(
        &spec["nodeSelector"],
        &format!("{path}.nodeSelector"),
        causes,
    );
    for (i, toleration) in spec["tolerations"]
        .as_array()
        .into_iter()
        .flatten()
        .enumerate()
    {
        let path = format!("{path}.tolerations[{i}]");
        one_of(
            toleration,
            &path,
            "effect",
            &["NoSchedule", "PreferNoSchedule", "NoExecute", ""],
            causes,
        );
        one_of(
            toleration,
            &path,
            "operator",
            &["Equal", "Exists", "Lt", "Gt", ""],
            causes,
        );
    }
    let spread = spec["topologySpreadConstraints"].as_array();
    for (i, constraint) in spread.into_iter().flatten().enumerate() {
        let path = format!("{path}.topologySpreadConstraints[{i}]");
        if constraint["maxSkew"].as_i64().unwrap_or(0) <= 0 {
            causes.push(Cause::invalid(
                format!("{path}.maxSkew"),
                &constraint["maxSkew"],
                "must be greater than zero",
            ));
        }
        if constraint["topologyKey"]
            .as_str()
            .unwrap_or_default()
            .is_empty()
        {
            causes.push(Cause::required(
                format!("{path}.topologyKey"),
                "can not be empty",
            ));
        }
        one_of(
            constraint,
            &path,
            "whenUnsatisfiable",
            &["DoNotSchedule", "ScheduleAnyway"],
            causes,
        );
    }
}

fn one_of(object: &Value, path: &str, field: &str, allowed: &[&str], causes: &mut Vec<Cause>) {
    if let Some(value) = object[field].as_str()
        && !allowed.contains(&value)
    {
        let shown: Vec<&str> = allowed.iter().copied().filter(|a| !a.is_empty()).collect();
        causes.push(Cause::unsupported(
            format!("{path}.{field}"),
            &value.into(),
            &shown,
        ));
    }
}

fn validate_container<'a>(
    container: &'a Value,
    path: &str,
    seen: &mut Vec<&'a str>,
    causes: &mut Vec<Cause>,
) {
    let name = container["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        causes.push(Cause::required(format!("{path}.name"), ""));
    } else if let Some(why) = names::dns_label(name) {
        causes.push(Cause::invalid(format!("{path}.name"), &name.into(), &why));
    } else if seen.contains(&name) {
        causes.push(Cause::duplicate(format!("{path}.name"), &name.into()));
    }
    seen.push(name);
    if container["image"].as_str().unwrap_or_default().is_empty() {
        causes.push(Cause::required(format!("{path}.image"), ""));
    }
    one_of(
        container,
        path,
        "imagePullPolicy",
        &["Always", "IfNotPresent", "Never"],
        causes,
    );
    let resources = &container["resources"];
    for list in ["limits", "requests"] {
        for (name, amount) in resources[list].as_object().into_iter().flatten() {
            let path = format!("{path}.resources.{list}[{name}]");
            if quantity::is_negative(amount) {
                causes.push(Cause::invalid(
                    path,
                    &quantity::text(amount).into(),
                    "must be greater than or equal to 0",
                ));
            } else if !name.contains('/')
                && !matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage")
                && !name.starts_with("hugepages-")
            {
                causes.push(Cause::invalid(
                    path,
                    &name.as_str().into(),
                    "must be a standard resource for containers",
                ));
            }
        }
    }
    for (name, request) in resources["requests"].as_object().into_iter().flatten() {
        let limit = &resources["limits"][name];
        if !limit.is_null() && quantity::compare(request, limit) == Ordering::Greater {
            causes.push(Cause::invalid(
                format!("{path}.resources.requests"),
                &quantity::text(request).into(),
                &format!(
                    "must be less than or equal to {name} limit of {}",
                    quantity::text(limit)
                ),
            ));
        }
    }
}

pub fn validate_change(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let (was, mut is) = (&old["spec"], new["spec"].clone());
    if *was == is {
        return;
    }
    let count = |spec: &Value, key: &str| spec[key].as_array().map_or(0, Vec::len);
    for key in ["containers", "initContainers"] {
        if count(was, key) != count(&is, key) {
            causes.push(Cause::forbidden(
                format!("spec.{key}"),
                "pod updates may not add or remove containers",
            ));
            return;
        }
    }
    let gates = |spec: &Value| {
        spec["schedulingGates"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let (gates_were, gates_are) = (gates(was), gates(&is));
    let gates_shrink = gates_are.iter().all(|g| gates_were.contains(g));
    for key in ["containers", "initContainers"] {
        let images: Vec<Value> = was[key]
            .as_array()
            .into_iter()
            .flatten()
            .map(|c| c["image"].clone())
            .collect();
        for (container, image) in list_mut(map_of(&mut is), key).zip(images) {
            container["image"] = image;
        }
    }
    let additions = was["tolerations"]
        .as_array()
        .into_iter()
        .flatten()
        .all(|old| {
            is["tolerations"].as_array().is_some_and(|new| {
                new.iter().any(|t| {
                    // Only the seconds of a toleration may change.
                    let (mut a, mut b) = (t.clone(), old.clone());
                    map_of(&mut a).remove("tolerationSeconds");
                    map_of(&mut b).remove("tolerationSeconds");
                    a == b
                })
            })
        });
    let mut same = vec!["activeDeadlineSeconds"];
    if additions {
        same.push("tolerations");
    }
    if gates_shrink {
        same.push("schedulingGates");
    }
    if !gates_were.is_empty() {
        same.extend(["nodeSelector", "affinity"]);
    }
    for key in same {
        match was.get(key) {
            Some(value) => is[key] = value.clone(),
            None => {
                map_of(&mut is).remove(key);
            }
        }
    }
    if is != *was {
        causes.push(Cause::forbidden("spec", UNCHANGEABLE));
    }
}
