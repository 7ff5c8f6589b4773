//! The node lifecycle controller, the taint manager and pod garbage collection.
//!
//! - A node whose lease is not renewed becomes `Ready=Unknown`; its pods become not ready.
//! - Conditions become taints: `not-ready` and `unreachable` (NoSchedule at once, NoExecute after a pause), pressure,
//!   `unschedulable`.
//! - Pods that do not tolerate a NoExecute taint, or no longer do, are deleted.
//! - Pods on deleted nodes are force-deleted.
//!
//! Not implemented: zones with partial disruption (evictions are not slowed down), the out-of-service taint, the threshold of
//! terminated pods.
//!
//! UPSTREAM: pkg/controller/nodelifecycle, pkg/controller/tainteviction, pkg/controller/podgc

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::json;

use super::cache::{Cache, Change, Key, PodRecord, api};
use super::driver::{Context, Controller, Next, after, until};
use super::node_agent::{LEASES, readiness, write_taints};
use super::outcome::{ignore_not_found, is_not_found};
use super::workloads::pods::delete_pod;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Timeouts of the node lifecycle.
#[derive(Debug, Clone)]
pub struct NodeLifecycleOptions {
    /// Time without a heartbeat after which a node is unreachable.
    pub grace: Duration,
    /// The same for a node that has never had a heartbeat.
    pub startup_grace: Duration,
    /// Time between the NoSchedule taint and the NoExecute taint.
    pub no_execute_delay: Duration,
    /// How long after the deletion of a node its pods are deleted.
    pub orphan_grace: Duration,
}

impl Default for NodeLifecycleOptions {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(40),
            startup_grace: Duration::from_secs(60),
            no_execute_delay: Duration::from_secs(5),
            orphan_grace: Duration::from_secs(40),
        }
    }
}

fn taint(key: &str, effect: &str, since: Option<Timestamp>) -> Taint {
    Taint {
        key: key.to_owned(),
        effect: effect.to_owned(),
        value: None,
        time_added: since.map(Time),
    }
}

fn ours(key: &str, effect: &str) -> bool {
    match effect {
        "NoSchedule" => {
            matches!(key, NOT_READY | UNREACHABLE | UNSCHEDULABLE)
                || PRESSURES.iter().any(|(_, pressure)| *pressure == key)
        }
        "NoExecute" => matches!(key, NOT_READY | UNREACHABLE),
        _ => false,
    }
}

const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    (
        "NetworkUnavailable",
        "node.kubernetes.io/network-unavailable",
    ),
];

/// Returns the taints a node should have, and when they next change by time alone. Pure.
///
/// `ready` is the node's readiness; a node that has never reported keeps the taint it was created with.
fn taints(
    node: &Node,
    ready: Option<&(String, Option<Timestamp>)>,
    delay: Duration,
    now: Timestamp,
) -> (Vec<Taint>, Option<Timestamp>) {
    let spec = node.spec.clone().unwrap_or_default();
    let have = spec.taints.unwrap_or_default();
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    let mut change = None;
    let trouble = match ready.map(|(status, _)| status.as_str()) {
        Some("True") => None,
        Some("False") => Some(NOT_READY),
        Some(_) => Some(UNREACHABLE),
        None => {
            let first = have
                .iter()
                .any(|t| t.key == NOT_READY && t.effect == "NoSchedule");
            if first {
                wanted.push((NOT_READY, "NoSchedule"));
            }
            None
        }
    };
    if let Some(key) = trouble {
        wanted.push((key, "NoSchedule"));
        let since = ready.and_then(|(_, since)| *since).unwrap_or(now);
        let at = after(since, delay);
        if at <= now {
            wanted.push((key, "NoExecute"));
        } else {
            change = Some(at);
        }
    }
    if spec.unschedulable == Some(true) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    for condition in conditions
        .into_iter()
        .flatten()
        .filter(|c| c.status == "True")
    {
        if let Some((_, key)) = PRESSURES
            .iter()
            .find(|(type_, _)| *type_ == condition.type_)
        {
            wanted.push((key, "NoSchedule"));
        }
    }
    let is = |t: &Taint, (key, effect): &(&str, &str)| t.key == *key && t.effect == *effect;
    let mut result: Vec<Taint> = have
        .into_iter()
        .filter(|t| !ours(&t.key, &t.effect) || wanted.iter().any(|w| is(t, w)))
        .collect();
    for want in &wanted {
        if !result.iter().any(|t| is(t, want)) {
            result.push(taint(want.0, want.1, Some(now)));
        }
    }
    (result, change)
}

/// Returns when NoExecute taints evict a pod; `None` means never. Pure.
fn leaves_at(pod: &PodRecord, taints: &[Taint], now: Timestamp) -> Option<Timestamp> {
    let mut earliest: Option<Timestamp> = None;
    for taint in taints.iter().filter(|t| t.effect == "NoExecute") {
        let tolerations = pod.spec.tolerations.iter().flatten();
        let matching: Vec<_> = tolerations
            .filter(|t| super::scheduler::shape::tolerated(Some(&vec![(*t).clone()]), taint))
            .collect();
        if matching.is_empty() {
            return Some(Timestamp::MIN);
        }
        let shortest = matching.iter().filter_map(|t| t.toleration_seconds).min();
        let forever = matching.iter().any(|t| t.toleration_seconds.is_none());
        if let Some(seconds) = shortest
            && !forever
        {
            let since = taint.time_added.as_ref().map_or(now, |t| t.0);
            let at = after(
                since,
                Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
            );
            earliest = Some(earliest.map_or(at, |e| e.min(at)));
        }
    }
    earliest
}

/// The loop over nodes.
pub(crate) struct NodeLifecycle {
    context: Context,
    options: NodeLifecycleOptions,
    /// The last renewal of each lease and when it was observed, by our clock.
    seen: Mutex<FxHashMap<Key, (Option<Timestamp>, Timestamp)>>,
}

impl NodeLifecycle {
    pub(crate) fn new(context: Context, options: NodeLifecycleOptions) -> Self {
        Self {
            context,
            options,
            seen: Mutex::default(),
        }
    }

    /// Returns the time of the node's last heartbeat.
    fn alive_at(&self, key: &Key, now: Timestamp) -> Timestamp {
        let lease = self.context.cache.leases.get(&Key::new(LEASES, &key.name));
        let renewed = lease.and_then(|l| l.spec.as_ref()?.renew_time.as_ref().map(|t| t.0));
        let mut seen = self.seen.lock();
        let entry = seen.entry(key.clone()).or_insert((renewed, now));
        if entry.0 != renewed {
            *entry = (renewed, now);
        }
        entry.1
    }

    async fn mark_unknown(&self, node: &Node, name: &str, never: bool) -> Result<(), kube::Error> {
        let now = Time(self.context.clock.now());
        let (reason, message) = if never {
            (
                "NodeStatusNeverUpdated",
                "Kubelet never posted node status.",
            )
        } else {
            ("NodeStatusUnknown", "Kubelet stopped posting node status.")
        };
        let conditions: Vec<_> = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
            .into_iter()
            .map(|type_| {
                json!({"type": type_, "status": "Unknown", "reason": reason, "message": message,
                       "lastTransitionTime": now})
            })
            .collect();
        let nodes: Api<Node> = Api::all(self.context.client());
        let patch = Patch::Strategic(json!({
            "metadata": {"uid": node.metadata.uid},
            "status": {"conditions": conditions},
        }));
        nodes
            .patch_status(name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    async fn mark_pods(&self, name: &str) -> Result<(), kube::Error> {
        for pod in self.context.cache.pods_on(name) {
            if !pod.is_ready() {
                continue;
            }
            let pods: Api<Pod> = api(&self.context.client(), &pod.key());
            let patch = Patch::Strategic(json!({"status": {"conditions": [{
                "type": "Ready", "status": "False", "lastTransitionTime": Time(self.context.clock.now()),
            }]}}));
            ignore_not_found(
                pods.patch_status(pod.name(), &PatchParams::default(), &patch)
                    .await,
            )?;
        }
        Ok(())
    }
}

impl Controller for NodeLifecycle {
    const NAME: &'static str = "node-lifecycle";

    fn keys(&self, change: &Change, keys: &mut Vec<Key>) {
        match change {
            Change::Node(diff) => {
                if diff.new.is_none()
                    && let Some(old) = &diff.old
                {
                    let mut seen = self.seen.lock();
                    seen.remove(&Key::of(&old.metadata));
                }
                keys.extend(diff.new.as_ref().map(|n| Key::of(&n.metadata)));
            }
            // A renewal is recorded with its time of arrival; the node itself is reconciled at its timeout.
            Change::Lease(diff) => {
                if let Some(lease) = &diff.new
                    && lease.metadata.namespace.as_deref() == Some(LEASES)
                {
                    let name = lease.metadata.name.as_deref().unwrap_or_default();
                    self.alive_at(&Key::new("", name), self.context.clock.now());
                }
            }
            _ => {}
        }
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, kube::Error> {
        let Some(node) = self.context.cache.nodes.get(key) else {
            return Ok(Next::Wait);
        };
        let now = self.context.clock.now();
        let alive_at = self.alive_at(key, now);
        let ready = readiness(&node);
        let never = ready.is_none();
        let grace = if never {
            self.options.startup_grace
        } else {
            self.options.grace
        };
        let silent_at = after(alive_at, grace);
        let unknown = ready
            .as_ref()
            .is_some_and(|(status, _)| status == "Unknown");
        if silent_at <= now && !unknown {
            self.mark_unknown(&node, &key.name, never).await?;
            // The taints follow when the change is observed.
            return Ok(Next::Wait);
        }
        if ready.as_ref().is_some_and(|(status, _)| status != "True") {
            self.mark_pods(&key.name).await?;
        }
        let (wanted, change) = taints(&node, ready.as_ref(), self.options.no_execute_delay, now);
        let have = node
            .spec
            .as_ref()
            .and_then(|s| s.taints.clone())
            .unwrap_or_default();
        if wanted != have {
            write_taints(&self.context, &node, &key.name, &wanted).await?;
        }
        let mut next = if unknown { None } else { Some(silent_at) };
        if let Some(at) = change {
            next = Some(next.map_or(at, |n| n.min(at)));
        }
        Ok(match next {
            Some(at) => Next::After(until(now, at).max(Duration::from_millis(10))),
            None => Next::Wait,
        })
    }
}

/// The loop over pods: taint-based eviction and pods of vanished nodes.
pub(crate) struct PodEvictor {
    context: Context,
    options: NodeLifecycleOptions,
    /// When each missing node was first found missing.
    missing: Mutex<FxHashMap<Arc<str>, Timestamp>>,
}

impl PodEvictor {
    pub(crate) fn new(context: Context, options: NodeLifecycleOptions) -> Self {
        Self {
            context,
            options,
            missing: Mutex::default(),
        }
    }

    fn missing_since(&self, node: &Arc<str>, now: Timestamp) -> Timestamp {
        let mut missing = self.missing.lock();
        *missing.entry(node.clone()).or_insert(now)
    }

    /// Deletes a pod whose node does not exist. UPSTREAM: podgc, `markFailedAndDeletePodWithCondition`.
    async fn remove_orphan(&self, pod: &PodRecord, node: &str) -> Result<(), kube::Error> {
        let nodes: Api<Node> = Api::all(self.context.client());
        if nodes.get_opt(node).await?.is_some() {
            return Ok(());
        }
        if !pod.is_terminal() {
            let pods: Api<Pod> = api(&self.context.client(), &pod.key());
            let patch = Patch::Strategic(json!({"metadata": {"uid": pod.meta.uid}, "status": {
                "phase": "Failed",
                "conditions": [{
                    "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                    "message": "PodGC: node no longer exists",
                    "lastTransitionTime": Time(self.context.clock.now()),
                }],
            }}));
            match pods
                .patch_status(pod.name(), &PatchParams::default(), &patch)
                .await
            {
                Err(error) if !is_not_found(&error) => return Err(error),
                _ => {}
            }
        }
        delete_pod(&self.context, pod, Some(0)).await
    }
}

fn pods_of_node(cache: &Cache, name: &str, keys: &mut Vec<Key>) {
    keys.extend(cache.pods_on(name).iter().map(|p| p.key()));
}

impl Controller for PodEvictor {
    const NAME: &'static str = "pod-evictor";

    fn keys(&self, change: &Change, keys: &mut Vec<Key>) {
        match change {
            Change::Pod(diff) => {
                if let Some(pod) = &diff.new
                    && pod.node.is_some()
                    && diff
                        .old
                        .as_ref()
                        .is_none_or(|o| o.node != pod.node || o.spec != pod.spec)
                {
                    keys.push(pod.key());
                }
            }
            Change::Node(diff) => {
                let evicting = |n: &Arc<Node>| -> Vec<Taint> {
                    let taints = n.spec.as_ref().and_then(|s| s.taints.clone());
                    let mut taints = taints.unwrap_or_default();
                    taints.retain(|t| t.effect == "NoExecute");
                    taints
                };
                let Some(node) = diff.latest() else {
                    return;
                };
                let name = node.metadata.name.as_deref().unwrap_or_default();
                if diff.new.is_some() {
                    let mut missing = self.missing.lock();
                    missing.remove(name);
                }
                let new = diff.new.as_ref().map(evicting);
                if new.is_none()
                    || diff.old.as_ref().map(evicting).unwrap_or_default()
                        != new.unwrap_or_default()
                {
                    pods_of_node(&self.context.cache, name, keys);
                }
            }
            _ => {}
        }
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, kube::Error> {
        let Some(pod) = self.context.cache.pod(key) else {
            return Ok(Next::Wait);
        };
        let Some(name) = pod.node.clone() else {
            return Ok(Next::Wait);
        };
        let now = self.context.clock.now();
        let Some(node) = self.context.cache.nodes.named(&name) else {
            let at = after(self.missing_since(&name, now), self.options.orphan_grace);
            if at > now {
                return Ok(Next::After(until(now, at)));
            }
            self.remove_orphan(&pod, &name).await?;
            return Ok(Next::Wait);
        };
        let taints = node
            .spec
            .as_ref()
            .and_then(|s| s.taints.clone())
            .unwrap_or_default();
        if pod.is_terminating() || pod.is_terminal() {
            return Ok(Next::Wait);
        }
        match leaves_at(&pod, &taints, now) {
            None => Ok(Next::Wait),
            Some(at) if at > now => Ok(Next::After(until(now, at))),
            Some(_) => {
                delete_pod(&self.context, &pod, None).await?;
                Ok(Next::Wait)
            }
        }
    }
}
