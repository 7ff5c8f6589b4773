//! Creation, deletion and counting of pods for workload controllers.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Resource;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::loops::cache::{Diff, Key, PodRecord, api};
use crate::loops::driver::{Context, after};
use crate::loops::outcome::ignore_not_found;

/// The controlling owner reference to `owner`.
pub(crate) fn owner_reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    let meta = owner.meta();
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Returns the pod of a template, named after its owner.
pub(crate) fn from_template<K: Resource<DynamicType = ()>>(
    template: &PodTemplateSpec,
    owner: &K,
    suffix: &str,
) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    let prefix = format!("{}-", owner.meta().name.as_deref().unwrap_or_default());
    Pod {
        metadata: ObjectMeta {
            name: Some(format!("{prefix}{suffix}")),
            generate_name: Some(prefix),
            namespace: owner.meta().namespace.clone(),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner_reference(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Writes the status of an object, if it has changed.
pub(crate) async fn report<K, S>(
    context: &Context,
    object: &K,
    old: Option<&S>,
    new: &S,
) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
    S: Serialize + PartialEq,
{
    if old == Some(new) {
        return Ok(());
    }
    let fields = |status: Option<&S>| match json!(status) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    // A merge patch removes what it has as null.
    let gone = fields(old).into_iter().map(|(name, _)| (name, Value::Null));
    let mut status: Map<String, Value> = gone.collect();
    status.extend(fields(Some(new)));
    let key = Key::of(object.meta());
    let patch = Patch::Merge(json!({"status": status}));
    let objects = api::<K>(&context.client(), &key);
    let params = PatchParams::default();
    let written = objects.patch_status(&key.name, &params, &patch).await;
    written.map(|_| ())
}

pub(crate) fn label(meta: &mut ObjectMeta, key: &str, value: &str) {
    meta.labels
        .get_or_insert_with(BTreeMap::new)
        .insert(key.to_owned(), value.to_owned());
}

pub(crate) fn labeled<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(key).map(String::as_str)
}

/// Returns a short hash of a template, in the alphabet of Kubernetes names.
pub(crate) fn template_hash(template: &PodTemplateSpec, collisions: i32) -> String {
    let mut text = serde_json::to_string(template).unwrap_or_default();
    if collisions > 0 {
        // Writing to a string cannot fail.
        let _infallible = write!(text, "#{collisions}").is_ok();
    }
    let hash = text.bytes().fold(0x811c_9dc5_u32, |h, b| {
        (h ^ u32::from(b)).wrapping_mul(0x0100_0193)
    });
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    hash.to_string()
        .bytes()
        .map(|b| char::from(ALPHABET[usize::from(b) % ALPHABET.len()]))
        .collect()
}

/// Returns an absolute number or a percentage of `total`.
pub(crate) fn scaled(value: &IntOrString, total: i32, round_up: bool) -> i32 {
    match value {
        IntOrString::Int(n) => *n,
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let product = percent * i64::from(total);
            let rounded = if round_up {
                (product + 99) / 100
            } else {
                product / 100
            };
            i32::try_from(rounded).unwrap_or(i32::MAX)
        }
    }
}

/// Returns when the pod has been ready for `min_ready` seconds, or `None` while it is not ready.
pub(crate) fn available_at(pod: &PodRecord, min_ready: i32) -> Option<Timestamp> {
    let condition = pod.condition("Ready").filter(|c| c.status == "True")?;
    let since = condition.last_transition_time.as_ref().map(|t| t.0);
    if min_ready <= 0 {
        return Some(Timestamp::MIN);
    }
    let seconds = Duration::from_secs(u64::from(min_ready.unsigned_abs()));
    Some(after(since?, seconds))
}

/// Counts of pods by progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) replicas: i32,
    pub(crate) ready: i32,
    pub(crate) available: i32,
    /// When the next ready pod becomes available.
    pub(crate) next: Option<Timestamp>,
}

pub(crate) fn tally<'a>(
    pods: impl Iterator<Item = &'a Arc<PodRecord>>,
    min_ready: i32,
    now: Timestamp,
) -> Tally {
    let mut tally = Tally::default();
    for pod in pods {
        tally.replicas += 1;
        let Some(at) = available_at(pod, min_ready) else {
            continue;
        };
        tally.ready += 1;
        if at <= now {
            tally.available += 1;
        } else {
            tally.next = Some(tally.next.map_or(at, |n| n.min(at)));
        }
    }
    tally
}

/// How long a controller waits until it observes its own writes.
const EXPECT_FOR: Duration = Duration::from_secs(300);

const AT_ONCE: usize = 32;

/// Creates and deletes pods for owners.
///
/// A controller with a stale cache would repeat its actions; it waits until it observes its own writes.
#[derive(Debug, Default)]
pub(crate) struct PodControl {
    /// Creations and deletions that are not in the cache yet and until when they are waited for, by owner UID.
    waiting: Mutex<FxHashMap<String, (FxHashSet<String>, Timestamp)>>,
}

impl PodControl {
    fn expect(&self, owner: &str, what: String, now: Timestamp) {
        let mut waiting = self.waiting.lock();
        let (writes, until) = waiting.entry(owner.to_owned()).or_default();
        writes.insert(what);
        *until = after(now, EXPECT_FOR);
    }

    fn seen(&self, owner: &str, what: &str) {
        let mut waiting = self.waiting.lock();
        if let Some((writes, _)) = waiting.get_mut(owner) {
            writes.remove(what);
            if writes.is_empty() {
                waiting.remove(owner);
            }
        }
    }

    /// Whether all writes for the owner were observed, or have timed out.
    pub(crate) fn expectations_met(&self, owner: &str, now: Timestamp) -> bool {
        let waiting = self.waiting.lock();
        waiting.get(owner).is_none_or(|(_, until)| *until <= now)
    }

    /// Observes a change of a pod; returns the key of its controller, if that is of this kind.
    pub(crate) fn observe(&self, diff: &Diff<PodRecord>, kind: &str) -> Option<Key> {
        if let Some(pod) = diff.latest()
            && let Some(owner) = pod.controller()
        {
            self.seen(&owner.uid, &format!("+{}", pod.name()));
            if diff.new.is_none() || pod.is_terminating() {
                self.seen(&owner.uid, &format!("-{}", pod.uid()));
            }
            if let Some(old) = diff.old.as_ref().filter(|old| old.uid() != pod.uid()) {
                self.seen(&owner.uid, &format!("-{}", old.uid()));
            }
        }
        // A pod that is orphaned has lost its owner.
        let mut pods = [&diff.old, &diff.new].into_iter().flatten();
        pods.find_map(|pod| {
            let owner = pod.controller().filter(|owner| owner.kind == kind)?;
            Some(Key::new(pod.namespace(), &owner.name))
        })
    }

    /// Creates all of `pods`; returns the first error after all were tried.
    pub(crate) async fn create(
        &self,
        context: &Context,
        owner: &str,
        pods: Vec<Pod>,
    ) -> Result<(), kube::Error> {
        let now = context.clock.now();
        let created = pods.into_iter().map(|pod| async move {
            let key = Key::of(&pod.metadata);
            let expected = format!("+{}", key.name);
            self.expect(owner, expected.clone(), now);
            let result = api::<Pod>(&context.client(), &key)
                .create(&PostParams::default(), &pod)
                .await;
            if result.is_err() {
                self.seen(owner, &expected);
            }
            result.map(|_| ())
        });
        first_error(created).await
    }

    /// Deletes all of `pods`, unless they were replaced.
    pub(crate) async fn delete(
        &self,
        context: &Context,
        owner: &str,
        pods: &[Arc<PodRecord>],
    ) -> Result<(), kube::Error> {
        let now = context.clock.now();
        let deleted = pods.iter().map(|pod| async move {
            let expected = format!("-{}", pod.uid());
            self.expect(owner, expected.clone(), now);
            let result = delete_pod(context, pod, None).await;
            if result.is_err() {
                self.seen(owner, &expected);
            }
            result
        });
        first_error(deleted).await
    }
}

async fn first_error<F>(work: impl Iterator<Item = F>) -> Result<(), kube::Error>
where
    F: Future<Output = Result<(), kube::Error>>,
{
    let futures: Vec<F> = work.collect();
    let mut results = stream::iter(futures).buffer_unordered(AT_ONCE);
    let mut outcome = Ok(());
    while let Some(result) = results.next().await {
        if outcome.is_ok() {
            outcome = result;
        }
    }
    outcome
}

/// Deletes a pod, unless it was replaced; a missing pod is not an error.
pub(crate) async fn delete_pod(
    context: &Context,
    pod: &PodRecord,
    grace: Option<u32>,
) -> Result<(), kube::Error> {
    let params = DeleteParams {
        grace_period_seconds: grace,
        preconditions: Some(Preconditions {
            uid: pod.meta.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let pods = api::<Pod>(&context.client(), &pod.key());
    ignore_not_found(pods.delete(pod.name(), &params).await)
}

/// The order in which pods are deleted when there are too many. UPSTREAM: pkg/controller/controller_utils.go,
/// `ActivePodsWithRanks`.
pub(crate) fn deletion_order(pods: &mut [Arc<PodRecord>]) {
    let mut per_node: FxHashMap<Option<Arc<str>>, usize> = FxHashMap::default();
    for pod in pods.iter() {
        *per_node.entry(pod.node.clone()).or_default() += 1;
    }
    pods.sort_by_cached_key(|pod| {
        let phase = match pod.phase() {
            "Pending" => 0,
            "Running" => 2,
            _ => 1,
        };
        let cost: i64 = pod
            .meta
            .annotations
            .as_ref()
            .and_then(|a| a.get("controller.kubernetes.io/pod-deletion-cost"))
            .and_then(|c| c.parse().ok())
            .unwrap_or(0);
        let beside = per_node.get(&pod.node).copied().unwrap_or(0);
        let ready_since = pod
            .condition("Ready")
            .and_then(|c| c.last_transition_time.as_ref())
            .map_or(i64::MAX, |t| t.0.as_second());
        let created = pod
            .meta
            .creation_timestamp
            .as_ref()
            .map_or(0, |t| t.0.as_second());
        (
            pod.node.is_some(),
            phase,
            pod.is_ready(),
            cost,
            std::cmp::Reverse(beside),
            std::cmp::Reverse(ready_since),
            std::cmp::Reverse(created),
            pod.name().to_owned(),
        )
    });
}
