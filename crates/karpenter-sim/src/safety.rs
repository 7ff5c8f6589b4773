//! What must hold at every moment, checked at each write of the controllers (invariant I8).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::annotations;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_kube::clock::Clock;
use kube::api::ListParams;
use kube::{Api, Client};

/// How long controllers may act on what they knew: watches break, and come back after a back-off of half a minute.
const STALENESS: Duration = Duration::from_secs(90);

/// The controller that gives machines back.
const DISRUPTION: &str = "disruption";
/// How long consolidation leaves a machine alone that it has bought, unless pods leave it.
const PEACE: Duration = Duration::from_secs(600);
/// How long a command may wait for its replacements.
const COMMAND: Duration = Duration::from_secs(3600);
/// How long every command waits for them, give or take what the conditions' whole seconds hide.
const PATIENCE: Duration = Duration::from_secs(590);
/// More writes than this within a minute lead nowhere: whole days take fewer.
const RUNAWAY: u32 = 5_000;
/// How long it takes until nothing follows any more from what happened to the cluster: pods of a dead machine are replaced
/// after minutes, and then others move.
const AFTERMATH: Duration = Duration::from_secs(1800);

/// Watches the controllers' writes.
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
    /// The NodeClaims that Karpenter has chosen to disrupt and that are not gone, by uid.
    marked: BTreeSet<String>,
    /// Since when something is protected: `node/NAME` or `pod/UID`.
    protected: BTreeMap<String, Timestamp>,
    /// When a pool's budgets were changed last.
    budgets_changed: BTreeMap<String, Timestamp>,
    /// When something happened to the cluster last that is not the controllers' doing.
    happened: Option<Timestamp>,
    /// Every NodeClaim, by uid: when it was bought, if consolidation is known to have bought it.
    bought: BTreeMap<String, Option<Timestamp>>,
    /// NodeClaims that disruption has bought, as far as can be told, and when.
    replacements: BTreeMap<String, Timestamp>,
    /// Those of them whose commands may have ended with their process.
    orphaned: BTreeSet<String>,
    /// NodeClaims that are being made, by disruption and by others.
    making: [usize; 2],
    /// Moves of consolidation that undid an earlier one.
    hasty: Vec<String>,
    /// When the current minute began, and how many writes it has seen.
    minute: Option<(Timestamp, u32)>,
}

/// Whether a path is that of all NodeClaims, where they are made.
fn makes_claim(method: &Method, path: &str) -> bool {
    *method == Method::POST && matches!(parse(path), Some(("nodeclaims", "", "", "")))
}

/// What was so before a write.
#[derive(Debug)]
pub struct Before {
    pod: Option<Box<Pod>>,
    claim: Option<Box<NodeClaim>>,
    /// Pods on a Node that is well and that must be drained before it or its NodeClaim may go.
    undrained: Vec<String>,
}

/// The object a path names: its plural, namespace, name and subresource.
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

/// Whether a pod says that it must not be disrupted, as of `now`.
fn is_protected(pod: &Pod, now: Timestamp) -> bool {
    let value = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(annotations::DO_NOT_DISRUPT));
    let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref());
    match value.map(String::as_str) {
        Some("true") => true,
        // The simulation writes minutes only.
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

/// Pods of DaemonSets tolerate everything here; one that should be gone since a minute holds up nobody.
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

/// How many of `total` machines a budget lets go.
fn allowed(nodes: &str, total: usize) -> usize {
    match nodes.strip_suffix('%') {
        Some(percent) => (percent.parse::<usize>().unwrap_or(0) * total).div_ceil(100),
        None => nodes.parse().unwrap_or(0),
    }
}

impl Safety {
    /// A watcher that looks at the cluster through a client that no fault hits.
    #[must_use]
    pub fn new(client: Client, clock: Clock) -> Self {
        Self {
            client,
            clock,
            aftermath: AFTERMATH,
            state: Mutex::default(),
        }
    }

    /// How long after the last that happened to the cluster nothing follows from it any more.
    #[must_use]
    pub fn quiet_after(mut self, aftermath: Duration) -> Self {
        self.aftermath = aftermath;
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was violated so far.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// Notes that something must not hold.
    pub fn violated(&self, what: String) {
        let at = self.clock.now();
        self.lock().violations.push(format!("{what} (at {at:.3})"));
    }

    /// Something happens to the cluster that is not the controllers' doing.
    pub fn something_happens(&self) {
        let now = self.clock.now();
        self.lock().happened = Some(now);
    }

    /// Moves of consolidation that took a machine back which consolidation had bought within the last ten minutes, though
    /// nothing had happened to the cluster for long: each undid what the one before had done.
    #[must_use]
    pub fn hasty_moves(&self) -> Vec<String> {
        self.lock().hasty.clone()
    }

    /// A Node is annotated not to be disrupted from now on, or no longer.
    pub fn protects_node(&self, name: &str, protected: bool) {
        let now = self.clock.now();
        let mut state = self.lock();
        let key = format!("node/{name}");
        if protected {
            state.protected.entry(key).or_insert(now);
        } else {
            state.protected.remove(&key);
        }
    }

    /// The process of the controllers has ended, and with it what it knew of commands under way.
    pub fn process_ends(&self) {
        let state = &mut *self.lock();
        let under_way = state.replacements.iter();
        let under_way = under_way.filter(|(_, at)| self.clock.since(**at) <= COMMAND);
        state.orphaned.extend(under_way.map(|(uid, _)| uid.clone()));
    }

    /// Replacements whose commands have ended without them, by uid of the NodeClaim: with their process, or because they did
    /// not become ready in time. Like upstream's, they stay until consolidation or liveness finds them.
    #[must_use]
    pub fn leftovers(&self, claims: &[NodeClaim]) -> BTreeSet<String> {
        let state = self.lock();
        let late = claims.iter().filter(|claim| {
            let bought = state.replacements.get(claim.uid());
            bought.is_some_and(|at| self.ready_after(claim, *at) >= PATIENCE)
        });
        let late = late.map(|claim| claim.uid().to_owned());
        late.chain(state.orphaned.iter().cloned()).collect()
    }

    /// How long it took a machine to become ready, or how long it has not.
    fn ready_after(&self, claim: &NodeClaim, bought: Timestamp) -> Duration {
        let ready = claim
            .condition(types::INITIALIZED)
            .filter(|c| c.status == "True");
        let ready = ready.map_or_else(|| self.clock.now(), |c| c.last_transition_time.0);
        Duration::try_from(ready.duration_since(bought)).unwrap_or_default()
    }

    /// A pool's budgets were changed.
    pub fn changes_budgets(&self, pool: &str) {
        let now = self.clock.now();
        self.lock().budgets_changed.insert(pool.to_owned(), now);
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

    /// Pods for which a Node on its way out must wait, if it lives and no deadline has passed.
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

    /// Looks at what a write is about to change.
    pub async fn before(&self, method: &Method, path: &str, controller: &str) -> Before {
        if makes_claim(method, path) {
            self.lock().making[usize::from(controller == DISRUPTION)] += 1;
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
                    // One whose node is gone is lost; whoever clears it away does no harm.
                    before.pod = pod;
                }
            }
            _ => {}
        }
        before
    }

    /// Counts a write; whether there are so many that the controllers run in circles, and time with them would not go on.
    pub fn runs_away(&self) -> bool {
        let now = self.clock.now();
        let count = {
            let mut state = self.lock();
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

    /// Only the holder of the lease may write.
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

    /// Judges what a write has done.
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
            // Any answer, from here on: the last ones of a dying process are lost.
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
                        "{kind}/{name} went while its node had pods: {pods}"
                    ));
                }
            }
            Some(("nodeclaims", _, name, "status")) => self.after_claim_status(name).await,
            _ => {}
        }
    }

    /// Notes who has bought a machine; if others are buying, too, it may be theirs.
    async fn after_claim_made(&self, controller: &str) {
        let claims = self.claims().await;
        let now = self.clock.now();
        let mut state = self.lock();
        let [others, disruption] = state.making;
        let bought = (controller == DISRUPTION && others == 0).then_some(now);
        for claim in claims {
            if disruption > 0 && !state.bought.contains_key(claim.uid()) {
                state.replacements.insert(claim.uid().to_owned(), now);
            }
            state.bought.entry(claim.uid().to_owned()).or_insert(bought);
        }
        state.making = if controller == DISRUPTION {
            [others, disruption.saturating_sub(1)]
        } else {
            [others.saturating_sub(1), disruption]
        };
    }

    /// Whether consolidation takes a machine back that it has just bought, for no reason but its own moves.
    fn check_haste(&self, claim: &NodeClaim) {
        let now = self.clock.now();
        let reason = claim.condition(types::DISRUPTION_REASON);
        let consolidated = reason.is_some_and(|r| r.reason == "Underutilized");
        let mut state = self.lock();
        let bought = state.bought.get(claim.uid()).copied().flatten();
        let age = |since: Timestamp| now.duration_since(since).unsigned_abs();
        let quiet = state.happened.is_none_or(|at| age(at) > self.aftermath);
        if let Some(bought) = bought.filter(|at| consolidated && quiet && age(*at) < PEACE) {
            let seconds = age(bought).as_secs();
            let name = claim.name();
            state.hasty.push(format!(
                "nodeclaim {name} is consolidated {seconds} s after consolidation has bought it"
            ));
        }
    }

    async fn after_claim_status(&self, name: &str) {
        let api: Api<NodeClaim> = Api::all(self.client.clone());
        let Ok(Some(claim)) = api.get_opt(name).await else {
            return;
        };
        let uid = claim.uid().to_owned();
        if !claim.is_true(types::DISRUPTION_REASON) {
            self.lock().marked.remove(&uid);
            return;
        }
        if self.lock().marked.contains(&uid) {
            return;
        }
        let claims = self.claims().await;
        let pool = claim.node_pool().unwrap_or_default().to_owned();
        {
            let mut state = self.lock();
            let alive: BTreeSet<&str> = claims.iter().map(|c| c.uid()).collect();
            state.marked.retain(|uid| alive.contains(uid.as_str()));
            state.marked.insert(uid);
        }
        self.check_haste(&claim);
        self.check_protection(&claim).await;
        self.check_budgets(&claim, &pool, &claims).await;
    }

    async fn check_protection(&self, claim: &NodeClaim) {
        let reason = claim
            .condition(types::DISRUPTION_REASON)
            .map(|c| c.reason.clone())
            .unwrap_or_default();
        let Some(node) = claim.status.node_name.as_deref() else {
            return;
        };
        let since = self.lock().protected.get(&format!("node/{node}")).copied();
        if since.is_some_and(|since| self.is_old(since)) {
            self.violated(format!(
                "node {node} is disrupted ({reason}) though its annotation forbids it"
            ));
        }
        let eventual = reason == "Drifted" && claim.spec.termination_grace_period.is_some();
        if eventual {
            return;
        }
        let pods = self.pods_on(node).await;
        let now = self.clock.now();
        for pod in pods.iter().filter(|p| is_active(p) && is_protected(p, now)) {
            let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref());
            if started.is_some_and(|at| self.is_old(at.0)) {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                self.violated(format!(
                    "node {node} is disrupted ({reason}) though its pod {name} must not be"
                ));
            }
        }
    }

    async fn check_budgets(&self, claim: &NodeClaim, name: &str, claims: &[NodeClaim]) {
        let changed = self.lock().budgets_changed.get(name).copied();
        if changed.is_some_and(|at| !self.is_old(at)) {
            return;
        }
        let pools: Api<NodePool> = Api::all(self.client.clone());
        let Ok(Some(pool)) = pools.get_opt(name).await else {
            return;
        };
        let reason = claim
            .condition(types::DISRUPTION_REASON)
            .map(|c| c.reason.clone())
            .unwrap_or_default();
        let nodes: Api<Node> = Api::all(self.client.clone());
        let Ok(nodes) = nodes.list(&ListParams::default()).await else {
            return;
        };
        let names = nodes.items.into_iter().filter_map(|n| n.metadata.name);
        let nodes: BTreeSet<String> = names.collect();
        // A machine that the provider is ending, or whose Node is gone, takes no part in budgets any more, as upstream.
        let is_counted = |claim: &&NodeClaim| {
            claim.node_pool() == Some(name)
                && !claim.is_true(types::INSTANCE_TERMINATING)
                && claim
                    .status
                    .node_name
                    .as_ref()
                    .is_some_and(|node| nodes.contains(node))
        };
        let counted: Vec<&NodeClaim> = claims.iter().filter(is_counted).collect();
        let total = counted
            .iter()
            .filter(|c| c.is_true(types::REGISTERED))
            .count();
        let marked = {
            let state = self.lock();
            let marked = counted.iter().filter(|c| state.marked.contains(c.uid()));
            marked.count()
        };
        for budget in &pool.spec.disruption.budgets {
            let concerned = budget
                .reasons
                .as_ref()
                .is_none_or(|r| r.iter().any(|r| r.as_str() == reason));
            if concerned && budget.schedule.is_none() && marked > allowed(&budget.nodes, total) {
                self.violated(format!(
                    "{marked} of {total} machines of pool {name} are disrupted ({reason}), which the budget {} forbids",
                    budget.nodes
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn controllers_that_run_in_circles_are_stopped() {
        let unreachable = tower::service_fn(async |_: http::Request<kube::client::Body>| {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("unreachable"))
        });
        let clock = Clock::new(Timestamp::UNIX_EPOCH, 1.0);
        let safety = Safety::new(Client::new(unreachable, "default"), clock);
        for _ in 0..3 {
            assert!((1..RUNAWAY).all(|_| !safety.runs_away()));
            clock.sleep(Duration::from_secs(60)).await;
        }
        assert!(safety.violations().is_empty());
        assert!((0..RUNAWAY).any(|_| safety.runs_away()));
        assert_eq!(safety.violations().len(), 1);
    }

    #[test]
    fn paths_name_what_they_change() {
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
