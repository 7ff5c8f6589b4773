//! Invariants that hold at every moment, checked at each write of the controllers (invariant I8).

mod claims;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::annotations;
use karpenter_api::v1::NodeClaim;
use karpenter_kube::clock::Clock;
use kube::api::ListParams;
use kube::{Api, Client};
use parking_lot::Mutex;

/// How long controllers may act on an outdated view: watches break, and reconnect after a back-off of half a minute.
const STALENESS: Duration = Duration::from_secs(90);

/// The controller that disrupts nodes.
const DISRUPTION: &str = "disruption";
/// How long consolidation must not consolidate a node that it has launched, unless pods leave it.
const REPLACEMENT_PROTECTION: Duration = Duration::from_secs(600);
/// The longest time that a command may wait for its replacements.
const COMMAND: Duration = Duration::from_secs(3600);
/// The shortest time that a command waits for them, less the rounding of the conditions' whole seconds.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(590);
/// Number of writes per minute that shows an endless loop: whole days need fewer.
const RUNAWAY: u32 = 5_000;
/// How long a disturbance of the cluster may have consequences: pods of a terminated instance are replaced after minutes,
/// and then other pods are moved.
const AFTERMATH: Duration = Duration::from_secs(1800);

/// Checks the controllers' writes.
pub struct Safety {
    client: Client,
    clock: Clock,
    aftermath: Duration,
    state: Mutex<State>,
}

impl std::fmt::Debug for Safety {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Safety").finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    violations: Vec<String>,
    /// The NodeClaims with the condition DisruptionReason that exist, by uid.
    disrupted: BTreeSet<String>,
    /// Since when a node or pod is protected: `node/NAME` or `pod/UID`.
    protected: BTreeMap<String, Timestamp>,
    /// When the budgets of a NodePool were changed last.
    budgets_changed: BTreeMap<String, Timestamp>,
    /// When the last disturbance happened.
    last_disturbance: Option<Timestamp>,
    /// Every NodeClaim, by uid: when it was created, if consolidation is known to have created it.
    launched: BTreeMap<String, Option<Timestamp>>,
    /// NodeClaims that disruption may have created, and when.
    replacements: BTreeMap<String, Timestamp>,
    /// Replacements whose commands may have ended with their process.
    orphaned: BTreeSet<String>,
    /// Number of NodeClaims that are being created, by other controllers and by disruption.
    making: [usize; 2],
    /// Consolidations that undid an earlier one.
    undone: Vec<String>,
    /// Start of the current minute, and its number of writes.
    minute: Option<(Timestamp, u32)>,
}

/// Returns whether the request creates a NodeClaim.
fn makes_claim(method: &Method, path: &str) -> bool {
    *method == Method::POST && matches!(parse(path), Some(("nodeclaims", "", "", "")))
}

/// The state before a write.
#[derive(Debug)]
pub struct Before {
    pod: Option<Box<Pod>>,
    claim: Option<Box<NodeClaim>>,
    /// Pods on a healthy Node that must be drained before it or its NodeClaim may be deleted.
    undrained: Vec<String>,
}

/// Returns plural, namespace, name and subresource of a path.
fn parse(path: &str) -> Option<(&str, &str, &str, &str)> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let rest = match *parts.first()? {
        "api" => parts.get(2..)?,
        "apis" => parts.get(3..)?,
        _ => return None,
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        rest => ("", rest),
    };
    Some((
        rest.first()?,
        namespace,
        rest.get(1).copied().unwrap_or_default(),
        rest.get(2).copied().unwrap_or_default(),
    ))
}

/// Returns whether the annotation of a pod forbids its disruption at `now`.
fn is_protected(pod: &Pod, now: Timestamp) -> bool {
    let value = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(annotations::DO_NOT_DISRUPT));
    let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref());
    match value.map(String::as_str) {
        Some("true") => true,
        // The simulation uses minutes only.
        Some(text) => match text.strip_suffix('m').and_then(|m| m.parse::<u64>().ok()) {
            Some(minutes) => started.is_none_or(|at| {
                now.duration_since(at.0).as_secs() < i64::try_from(minutes * 60).unwrap_or(0)
            }),
            None => false,
        },
        None => false,
    }
}

fn is_active(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Succeeded" | "Failed"))
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|all| {
        let ready = all.iter().find(|c| c.type_ == "Ready");
        ready.is_some_and(|c| c.status == "True")
    })
}

/// Returns whether a drain must wait for a pod. Pods of DaemonSets tolerate everything here; a pod that is overdue for a
/// minute does not block a drain.
fn must_be_drained(pod: &Pod, now: Timestamp) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    let due = pod.metadata.deletion_timestamp.as_ref();
    let stuck = due.is_some_and(|due| now.duration_since(due.0).as_secs() >= 60);
    let daemon = owners.into_iter().any(|owner| owner.kind == "DaemonSet");
    !daemon && !stuck && !matches!(phase, Some("Succeeded" | "Failed"))
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// Returns how many of `total` nodes a budget allows to disrupt.
fn allowed(nodes: &str, total: usize) -> usize {
    match nodes.strip_suffix('%') {
        Some(percent) => (percent.parse::<usize>().unwrap_or(0) * total).div_ceil(100),
        None => nodes.parse().unwrap_or(0),
    }
}

impl Safety {
    /// Creates a checker that reads the cluster through a client without faults.
    #[must_use]
    pub fn new(client: Client, clock: Clock) -> Self {
        Self {
            client,
            clock,
            aftermath: AFTERMATH,
            state: Mutex::default(),
        }
    }

    /// Sets how long a disturbance of the cluster may have consequences.
    #[must_use]
    pub fn quiet_after(mut self, aftermath: Duration) -> Self {
        self.aftermath = aftermath;
        self
    }

    /// Returns the violations so far.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.state.lock().violations.clone()
    }

    pub fn violated(&self, what: String) {
        let at = self.clock.now();
        self.state
            .lock()
            .violations
            .push(format!("{what} (at {at:.3})"));
    }

    /// Records a disturbance of the cluster.
    pub fn disturbed(&self) {
        let now = self.clock.now();
        self.state.lock().last_disturbance = Some(now);
    }

    /// Returns consolidations of nodes that consolidation had launched within the last ten minutes, though the last
    /// disturbance was long ago: each undid an earlier move.
    #[must_use]
    pub fn undone_moves(&self) -> Vec<String> {
        self.state.lock().undone.clone()
    }

    /// Records whether a Node has the annotation `do-not-disrupt`.
    pub fn protects_node(&self, name: &str, protected: bool) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let key = format!("node/{name}");
        if protected {
            state.protected.entry(key).or_insert(now);
        } else {
            state.protected.remove(&key);
        }
    }

    /// Records that the controllers' process has ended, and with it its running commands.
    pub fn process_ends(&self) {
        let state = &mut *self.state.lock();
        let under_way = state.replacements.iter();
        let under_way = under_way.filter(|(_, at)| self.clock.since(**at) <= COMMAND);
        state.orphaned.extend(under_way.map(|(uid, _)| uid.clone()));
    }

    /// Returns replacements whose commands have ended without them, by uid of the NodeClaim: with their process, or because
    /// they were not ready in time. Like upstream's, they stay until consolidation or liveness deletes them.
    #[must_use]
    pub fn leftovers(&self, claims: &[NodeClaim]) -> BTreeSet<String> {
        let state = self.state.lock();
        let late = claims.iter().filter(|claim| {
            let launched = state.replacements.get(claim.uid());
            launched.is_some_and(|at| self.ready_after(claim, *at) >= COMMAND_TIMEOUT)
        });
        let late = late.map(|claim| claim.uid().to_owned());
        late.chain(state.orphaned.iter().cloned()).collect()
    }

    /// Returns how long a node took to become ready, or how long it has not been ready.
    fn ready_after(&self, claim: &NodeClaim, launched: Timestamp) -> Duration {
        let ready = claim
            .condition(types::INITIALIZED)
            .filter(|c| c.status == "True");
        let ready = ready.map_or_else(|| self.clock.now(), |c| c.last_transition_time.0);
        Duration::try_from(ready.duration_since(launched)).unwrap_or_default()
    }

    /// Records a change of a NodePool's budgets.
    pub fn changes_budgets(&self, pool: &str) {
        let now = self.clock.now();
        self.state
            .lock()
            .budgets_changed
            .insert(pool.to_owned(), now);
    }

    fn is_old(&self, since: Timestamp) -> bool {
        self.clock.since(since) > STALENESS
    }

    async fn pod(&self, namespace: &str, name: &str) -> Option<Pod> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        api.get_opt(name).await.ok().flatten()
    }

    async fn claims(&self) -> Vec<NodeClaim> {
        let api: Api<NodeClaim> = Api::all(self.client.clone());
        api.list(&ListParams::default())
            .await
            .map(|list| list.items)
            .unwrap_or_default()
    }

    async fn claim_of_node(&self, node: &str) -> Option<NodeClaim> {
        let api: Api<Node> = Api::all(self.client.clone());
        let node = api.get_opt(node).await.ok().flatten()?;
        let id = node.spec.and_then(|s| s.provider_id)?;
        self.claims()
            .await
            .into_iter()
            .find(|c| c.status.provider_id.as_deref() == Some(&id))
    }

    async fn get<K>(&self, name: &str) -> Option<K>
    where
        K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned + Clone + std::fmt::Debug,
    {
        let api: Api<K> = Api::all(self.client.clone());
        api.get_opt(name).await.ok().flatten()
    }

    async fn pods_on(&self, node: &str) -> Vec<Pod> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let here = ListParams::default().fields(&format!("spec.nodeName={node}"));
        pods.list(&here).await.map(|l| l.items).unwrap_or_default()
    }

    /// Returns the pods for which a terminating Node must wait, if it is healthy and no deadline has passed.
    async fn undrained(&self, kind: &str, name: &str) -> Vec<String> {
        let (node, claim) = if kind == "nodes" {
            (self.get::<Node>(name).await, self.claim_of_node(name).await)
        } else {
            let claim = self.get::<NodeClaim>(name).await;
            let node = claim.as_ref().and_then(|c| c.status.node_name.clone());
            match node {
                Some(node) => (self.get::<Node>(&node).await, claim),
                None => (None, claim),
            }
        };
        let deadline = claim
            .as_ref()
            .and_then(|c| c.annotation(annotations::TERMINATION_TIMESTAMP))
            .and_then(|text| text.parse::<Timestamp>().ok());
        let now = self.clock.now();
        let Some(node) = node.filter(|node| is_ready(node) && deadline.is_none_or(|at| now < at))
        else {
            return Vec::new();
        };
        let leaves = match kind {
            "nodes" => node.metadata.deletion_timestamp.is_some(),
            _ => claim.is_some_and(|claim| claim.is_deleting()),
        };
        if !leaves {
            return Vec::new();
        }
        let pods = self.pods_on(&node.metadata.name.unwrap_or_default()).await;
        let waits = pods.into_iter().filter(|pod| must_be_drained(pod, now));
        waits.filter_map(|pod| pod.metadata.name).collect()
    }

    /// Reads the state that a write is about to change.
    pub async fn before(&self, method: &Method, path: &str, controller: &str) -> Before {
        if makes_claim(method, path) {
            self.state.lock().making[usize::from(controller == DISRUPTION)] += 1;
        }
        let mut before = Before {
            pod: None,
            claim: None,
            undrained: Vec::new(),
        };
        match parse(path) {
            Some((kind @ ("nodes" | "nodeclaims"), _, name, "")) if *method == Method::PATCH => {
                before.undrained = self.undrained(kind, name).await;
            }
            Some(("pods", namespace, name, subresource))
                if *method == Method::DELETE || subresource == "eviction" =>
            {
                let pod = self.pod(namespace, name).await.map(Box::new);
                if let Some(node) = pod.as_deref().and_then(node_of)
                    && self.get::<Node>(node).await.is_some()
                {
                    before.claim = self.claim_of_node(node).await.map(Box::new);
                    // A pod whose node is deleted is lost; deleting it does no harm.
                    before.pod = pod;
                }
            }
            _ => {}
        }
        before
    }

    /// Counts a write; returns whether there are so many that the controllers are in an endless loop, in which time would
    /// not advance.
    pub fn is_runaway(&self) -> bool {
        let now = self.clock.now();
        let count = {
            let mut state = self.state.lock();
            let minute = state.minute.get_or_insert((now, 0));
            if now.duration_since(minute.0).as_secs() >= 60 {
                *minute = (now, 0);
            }
            minute.1 += 1;
            minute.1
        };
        if count == RUNAWAY {
            self.violated(format!("{count} writes within a minute"));
        }
        count >= RUNAWAY
    }

    /// Checks that only the holder of the lease writes.
    pub async fn after_write_of(&self, replica: &str, path: &str) {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "default");
        let Ok(lease) = leases.get_opt("karpenter-leader-election").await else {
            return;
        };
        let holder = lease.and_then(|l| l.spec).and_then(|s| s.holder_identity);
        if holder.as_deref() != Some(replica) {
            let holder = holder.unwrap_or_default();
            self.violated(format!("{replica} wrote {path} while `{holder}` led"));
        }
    }

    /// Checks the result of a write.
    pub async fn after(
        &self,
        method: &Method,
        path: &str,
        controller: &str,
        status: u16,
        before: Before,
    ) {
        let done = (200..300).contains(&status);
        if makes_claim(method, path) {
            self.after_claim_made(controller).await;
        }
        match parse(path) {
            Some(("pods", namespace, name, "eviction")) if done => {
                let Some(pod) = before.pod else { return };
                if is_protected(&pod, self.clock.now()) && is_active(&pod) {
                    self.violated(format!(
                        "pod {namespace}/{name} was evicted though it must not be disrupted"
                    ));
                }
            }
            Some(("pods", namespace, name, "")) if done && *method == Method::DELETE => {
                let deadline = before
                    .claim
                    .as_deref()
                    .and_then(|c| c.annotation(annotations::TERMINATION_TIMESTAMP));
                if before.pod.is_some() && deadline.is_none() {
                    self.violated(format!("pod {namespace}/{name} was deleted past its budgets on a node without a deadline"));
                }
            }
            // Any answer, from here on: the last answers of a killed process are lost.
            Some((kind @ ("nodes" | "nodeclaims"), _, name, ""))
                if *method == Method::PATCH && !before.undrained.is_empty() =>
            {
                let there = match kind {
                    "nodes" => self.get::<Node>(name).await.is_some(),
                    _ => self.get::<NodeClaim>(name).await.is_some(),
                };
                if !there {
                    let pods = before.undrained.join(", ");
                    self.violated(format!(
                        "{kind}/{name} was deleted while its node had pods: {pods}"
                    ));
                }
            }
            Some(("nodeclaims", _, name, "status")) => self.after_claim_status(name).await,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn controllers_in_an_endless_loop_are_stopped() {
        let unreachable = tower::service_fn(async |_: http::Request<kube::client::Body>| {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("unreachable"))
        });
        let clock = Clock::new(Timestamp::UNIX_EPOCH, 1.0);
        let safety = Safety::new(Client::new(unreachable, "default"), clock);
        for _ in 0..3 {
            assert!((1..RUNAWAY).all(|_| !safety.is_runaway()));
            clock.sleep(Duration::from_secs(60)).await;
        }
        assert!(safety.violations().is_empty());
        assert!((0..RUNAWAY).any(|_| safety.is_runaway()));
        assert_eq!(safety.violations().len(), 1);
    }

    #[test]
    fn a_path_is_parsed_into_plural_namespace_name_and_subresource() {
        assert_eq!(
            parse("/api/v1/namespaces/default/pods/a/eviction"),
            Some(("pods", "default", "a", "eviction"))
        );
        assert_eq!(
            parse("/apis/karpenter.sh/v1/nodeclaims/a/status"),
            Some(("nodeclaims", "", "a", "status"))
        );
        assert_eq!(
            parse("/api/v1/namespaces"),
            Some(("namespaces", "", "", ""))
        );
    }

    #[test]
    fn a_budget_in_percent_is_rounded_up() {
        assert_eq!(allowed("10%", 11), 2);
        assert_eq!(allowed("3", 100), 3);
        assert_eq!(allowed("0", 100), 0);
    }
}
