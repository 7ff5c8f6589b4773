//! Bottlerocket: the user's settings with Karpenter's settings merged over them.
//!
//! Settings outside of `kubernetes` are passed through. Those inside are checked against the settings Bottlerocket
//! knows: an unknown one would keep the instance from booting, so it is left out and reported.
// UPSTREAM: pkg/providers/amifamily/bootstrap/bottlerocket.go, bottlerocketsettings.go

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::document::{UserData, UserDataError};
use super::kubelet::{max_pods, parse};
use super::settings::NodeSettings;

pub(super) fn generate(settings: &NodeSettings) -> Result<UserData, UserDataError> {
    let mut document: Table = settings
        .custom
        .as_deref()
        .unwrap_or_default()
        .parse()
        .map_err(|error| UserDataError::Toml(Box::new(error)))?;
    let mut ignored = Vec::new();

    let mut all = take_table(&mut document, "settings", "settings")?;
    for key in document.keys() {
        ignored.push(format!("`{key}` is outside of `settings`"));
    }
    let mut kubernetes = take_table(&mut all, "kubernetes", "settings.kubernetes")?;
    keep_known(&mut kubernetes, &mut ignored)?;
    overwrite(&mut kubernetes, settings)?;
    all.insert("kubernetes".to_owned(), kubernetes.into());
    leave_autoscaling(&mut all);
    if settings.raid0 {
        let mut commands = take_table(
            &mut all,
            "bootstrap-commands",
            "settings.bootstrap-commands",
        )?;
        commands.insert(
            "000-mount-instance-storage".to_owned(),
            mount_instance_storage(settings.default_mounts).into(),
        );
        all.insert("bootstrap-commands".to_owned(), commands.into());
    }

    let document = Table::from_iter([("settings".to_owned(), Value::Table(all))]);
    let text =
        toml::to_string(&document).map_err(|error| UserDataError::Render(Box::new(error)))?;
    Ok(UserData { text, ignored })
}

fn take_table(parent: &mut Table, key: &str, path: &str) -> Result<Table, UserDataError> {
    match parent.remove(key) {
        None => Ok(Table::new()),
        Some(Value::Table(table)) => Ok(table),
        Some(_) => Err(UserDataError::Setting {
            setting: path.to_owned(),
            expected: "a table",
        }),
    }
}

/// Overwrites the user's settings with Karpenter's.
fn overwrite(kubernetes: &mut Table, settings: &NodeSettings) -> Result<(), UserDataError> {
    let kubelet = parse(settings)?;
    let cluster = &settings.cluster;
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            kubernetes.insert(key.to_owned(), value);
        }
    };
    set("cluster-name", Some(cluster.name.clone().into()));
    set("api-server", Some(cluster.endpoint.clone().into()));
    set(
        "cluster-certificate",
        cluster.certificate_authority.clone().map(Value::from),
    );
    set(
        "cluster-dns-ip",
        kubelet.cluster_dns.first().cloned().map(Value::from),
    );
    set("max-pods", max_pods(&kubelet).map(Value::from));
    for (key, field, map) in [
        ("system-reserved", "systemReserved", kubelet.system_reserved),
        ("kube-reserved", "kubeReserved", kubelet.kube_reserved),
        ("eviction-hard", "evictionHard", kubelet.eviction_hard),
        ("eviction-soft", "evictionSoft", kubelet.eviction_soft),
        (
            "eviction-soft-grace-period",
            "evictionSoftGracePeriod",
            kubelet.eviction_soft_grace_period,
        ),
    ] {
        // An empty map, unlike none, replaces the user's.
        let given = settings.kubelet.get(field).filter(|map| !map.is_null());
        let entries = map.into_iter().map(|(name, value)| (name, value.into()));
        set(key, given.map(|_| Table::from_iter(entries).into()));
    }
    set(
        "eviction-max-pod-grace-period",
        kubelet.eviction_max_pod_grace_period.map(Value::from),
    );
    // Bottlerocket expects percentages as strings.
    let percent = |value: Option<i64>| value.map(|value| Value::from(value.to_string()));
    set(
        "image-gc-high-threshold-percent",
        percent(kubelet.image_gc_high_threshold_percent),
    );
    set(
        "image-gc-low-threshold-percent",
        percent(kubelet.image_gc_low_threshold_percent),
    );
    set(
        "cpu-cfs-quota-enforced",
        kubelet.cpu_cfs_quota.map(Value::from),
    );

    let mut labels = take_table(kubernetes, "node-labels", "settings.kubernetes.node-labels")?;
    for (key, value) in &settings.labels {
        labels.insert(key.clone(), value.clone().into());
    }
    if !labels.is_empty() {
        kubernetes.insert("node-labels".to_owned(), labels.into());
    }
    kubernetes.remove("node-taints");
    let mut taints: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for taint in &settings.taints {
        taints
            .entry(&taint.key)
            .or_default()
            .push(format!("{}:{}", taint.value, taint.effect).into());
    }
    if !taints.is_empty() {
        let taints: Table = taints
            .into_iter()
            .map(|(key, values)| (key.to_owned(), Value::Array(values)))
            .collect();
        kubernetes.insert("node-taints".to_owned(), taints.into());
    }
    Ok(())
}

/// Karpenter's instances are not in an Auto Scaling group: waiting for one would keep the kubelet from starting.
fn leave_autoscaling(settings: &mut Table) {
    if let Some(Value::Table(autoscaling)) = settings.get_mut("autoscaling")
        && let Some(wait) = autoscaling.get_mut("should-wait")
    {
        *wait = false.into();
    }
}

fn mount_instance_storage(default_mounts: bool) -> Table {
    const STORAGE: [&str; 2] = ["apiclient", "ephemeral-storage"];
    const DIRECTORIES: [&str; 4] = [
        "--dirs",
        "/var/lib/containerd",
        "/var/lib/kubelet",
        "/var/log/pods",
    ];
    let init = [&STORAGE[..], &["init"]].concat();
    let mut bind = [&STORAGE[..], &["bind"]].concat();
    if !default_mounts {
        bind.extend(DIRECTORIES);
    }
    let command = |words: Vec<&str>| Value::Array(words.into_iter().map(Value::from).collect());
    Table::from_iter([
        (
            "commands".to_owned(),
            Value::Array(vec![command(init), command(bind)]),
        ),
        ("essential".to_owned(), true.into()),
        ("mode".to_owned(), "always".into()),
    ])
}

/// Returns whether this version of Bottlerocket binds the directories of pods to instance storage by default.
///
/// `version` is `latest` or such as `v1.46.0`; an unknown version is treated like an old one.
#[must_use]
pub fn binds_instance_storage_by_default(version: Option<&str>) -> bool {
    let Some(version) = version else {
        return false;
    };
    if version == "latest" {
        return true;
    }
    let mut numbers = version
        .trim_start_matches('v')
        .split(['.', '-', '+'])
        .map(|number| number.parse::<u32>());
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (1, 46),
        _ => false,
    }
}

/// Type of a setting.
#[derive(Debug, Clone, Copy)]
enum Form {
    Text,
    Number,
    Flag,
    Texts,
    TextOrTexts,
    Table,
}

impl Form {
    fn admits(self, value: &Value) -> bool {
        match self {
            Form::Text => value.is_str(),
            Form::Number => value.is_integer(),
            Form::Flag => value.is_bool(),
            Form::Texts => value
                .as_array()
                .is_some_and(|list| list.iter().all(Value::is_str)),
            Form::TextOrTexts => Form::Text.admits(value) || Form::Texts.admits(value),
            Form::Table => value.is_table(),
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Form::Text => "a string",
            Form::Number => "a whole number",
            Form::Flag => "true or false",
            Form::Texts => "a list of strings",
            Form::TextOrTexts => "a string or a list of strings",
            Form::Table => "a table",
        }
    }
}

/// Removes settings that Bottlerocket does not know, and rejects those of the wrong type.
// DIFFERS: upstream's list lacks settings that Bottlerocket has, and drops them.
fn keep_known(kubernetes: &mut Table, ignored: &mut Vec<String>) -> Result<(), UserDataError> {
    let mut wrong = None;
    kubernetes.retain(|key, value| {
        let Some((_, form)) = KNOWN.iter().find(|(name, _)| *name == key) else {
            ignored.push(format!(
                "`settings.kubernetes.{key}` is not a setting of Bottlerocket"
            ));
            return false;
        };
        if !form.admits(value) && wrong.is_none() {
            wrong = Some(UserDataError::Setting {
                setting: format!("settings.kubernetes.{key}"),
                expected: form.expected(),
            });
        }
        true
    });
    wrong.map_or(Ok(()), Err)
}

/// Settings in `settings.kubernetes`, as of Bottlerocket 1.50.
const KNOWN: [(&str, Form); 66] = [
    ("allowed-unsafe-sysctls", Form::Texts),
    ("api-server", Form::Text),
    ("authentication-mode", Form::Text),
    ("bootstrap-token", Form::Text),
    ("cloud-provider", Form::Text),
    ("cluster-certificate", Form::Text),
    ("cluster-dns-ip", Form::TextOrTexts),
    ("cluster-domain", Form::Text),
    ("cluster-name", Form::Text),
    ("container-log-max-files", Form::Number),
    ("container-log-max-size", Form::Text),
    ("container-log-max-workers", Form::Number),
    ("container-log-monitor-interval", Form::Text),
    ("cpu-cfs-quota-enforced", Form::Flag),
    ("cpu-manager-policy", Form::Text),
    ("cpu-manager-policy-options", Form::Texts),
    ("cpu-manager-reconcile-period", Form::Text),
    ("credential-providers", Form::Table),
    ("device-ownership-from-security-context", Form::Flag),
    ("event-burst", Form::Number),
    ("event-qps", Form::Number),
    ("eviction-hard", Form::Table),
    ("eviction-max-pod-grace-period", Form::Number),
    ("eviction-soft", Form::Table),
    ("eviction-soft-grace-period", Form::Table),
    ("fail-cgroupv1", Form::Flag),
    ("hostname-override", Form::Text),
    ("hostname-override-source", Form::Text),
    ("ids-per-pod", Form::Number),
    ("image-gc-high-threshold-percent", Form::Text),
    ("image-gc-low-threshold-percent", Form::Text),
    ("image-maximum-gc-age", Form::Text),
    ("image-minimum-gc-age", Form::Text),
    ("kube-api-burst", Form::Number),
    ("kube-api-qps", Form::Number),
    ("kube-reserved", Form::Table),
    ("kubelet-extra-config", Form::Text),
    ("log-level", Form::Number),
    ("max-parallel-image-pulls", Form::Number),
    ("max-pods", Form::Number),
    ("memory-manager-policy", Form::Text),
    ("memory-manager-reserved-memory", Form::Table),
    ("memory-swap-behavior", Form::Text),
    ("node-ip", Form::Text),
    ("node-labels", Form::Table),
    ("node-taints", Form::Table),
    ("pod-infra-container-image", Form::Text),
    ("pod-pids-limit", Form::Number),
    ("provider-id", Form::Text),
    ("registry-burst", Form::Number),
    ("registry-qps", Form::Number),
    ("reserved-cpus", Form::Text),
    ("seccomp-default", Form::Flag),
    ("server-certificate", Form::Text),
    ("server-key", Form::Text),
    ("server-tls-bootstrap", Form::Flag),
    ("shutdown-grace-period", Form::Text),
    ("shutdown-grace-period-for-critical-pods", Form::Text),
    ("single-process-oom-kill", Form::Flag),
    ("standalone-mode", Form::Flag),
    ("static-pods", Form::Table),
    ("static-pods-enabled", Form::Flag),
    ("system-reserved", Form::Table),
    ("topology-manager-policy", Form::Text),
    ("topology-manager-policy-options", Form::Table),
    ("topology-manager-scope", Form::Text),
];
