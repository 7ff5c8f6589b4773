//! Invariants of every moment that only the complete controllers can violate, checked at each of their writes.
//!
//! What the processes of core decide (commands, budgets, limits, drains) is checked by `karpenter-explore`, in every order. Here is what
//! the eviction queue does with the pods of a drain, who writes, and how much.

use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::labels::annotations;
use karpenter_api::v1::NodeClaim;
use karpenter_kube::clock::Clock;
use kube::api::ListParams;
use kube::{Api, Client};
use parking_lot::Mutex;

/// Number of writes per minute that shows an endless loop: whole days need fewer.
const RUNAWAY: u32 = 5_000;

/// Checks the controllers' writes.
pub struct Safety {
    client: Client,
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    violations: Vec<String>,
    /// Start of the current minute, and its number of writes.
    minute: Option<(Timestamp, u32)>,
}

/// A pod on a Node before it is evicted or deleted.
pub struct Before {
    pod: Pod,
    /// Whether its NodeClaim has a time by which its instance is terminated at the latest.
    has_deadline: bool,
}

/// Returns namespace and name of the pod that a request evicts or deletes, and whether it evicts.
fn target<'a>(method: &Method, path: &'a str) -> Option<(&'a str, &'a str, bool)> {
    let rest = path.strip_prefix("/api/v1/namespaces/")?;
    match rest.split('/').collect::<Vec<_>>()[..] {
        [namespace, "pods", name, "eviction"] => Some((namespace, name, true)),
        [namespace, "pods", name] if *method == Method::DELETE => Some((namespace, name, false)),
        _ => None,
    }
}

/// Returns whether the annotation of a pod forbids its eviction at `now`.
fn is_protected(pod: &Pod, now: Timestamp) -> bool {
    let status = pod.status.as_ref();
    let phase = status.and_then(|it| it.phase.as_deref());
    if pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Succeeded" | "Failed")) {
        return false;
    }
    let annotations = pod.metadata.annotations.as_ref();
    let value = annotations.and_then(|all| all.get(annotations::DO_NOT_DISRUPT));
    let value = value.map_or("", String::as_str);
    // The simulation uses minutes only.
    let minutes = value
        .strip_suffix('m')
        .and_then(|it| it.parse::<u64>().ok());
    let age = status
        .and_then(|it| it.start_time.as_ref())
        .map_or(Duration::ZERO, |at| now.duration_since(at.0).unsigned_abs());
    value == "true" || minutes.is_some_and(|it| age < Duration::from_secs(it * 60))
}

impl Safety {
    /// Creates a checker that reads the cluster through a client without faults.
    pub fn new(client: Client, clock: Clock) -> Self {
        Self {
            client,
            clock,
            state: Mutex::default(),
        }
    }

    /// Returns the violations so far.
    pub fn violations(&self) -> Vec<String> {
        self.state.lock().violations.clone()
    }

    pub fn violated(&self, what: String) {
        let what = format!("{what} (at {:.3})", self.clock.now());
        self.state.lock().violations.push(what);
    }

    /// Returns whether the NodeClaim of a Node has a deadline; `None` without the Node, whose pods are lost.
    async fn has_deadline(&self, node: &str) -> Option<bool> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let id = nodes.get_opt(node).await.ok()??.spec?.provider_id;
        let claims: Api<NodeClaim> = Api::all(self.client.clone());
        let claims = claims.list(&ListParams::default()).await.ok()?;
        let mut its = claims.iter().filter(|it| it.status.provider_id == id);
        Some(its.any(|it| it.annotation(annotations::TERMINATION_TIMESTAMP).is_some()))
    }

    /// Reads the pod that a write is about to evict or delete, if it is on a Node.
    pub async fn before(&self, method: &Method, path: &str) -> Option<Before> {
        let (namespace, name, _) = target(method, path)?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let pod = pods.get_opt(name).await.ok()??;
        let node = pod.spec.as_ref()?.node_name.as_deref()?;
        let has_deadline = self.has_deadline(node).await?;
        Some(Before { pod, has_deadline })
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

    /// Checks a write that has succeeded.
    pub fn after(&self, method: &Method, path: &str, before: &Before) {
        match target(method, path) {
            Some((_, name, true)) if is_protected(&before.pod, self.clock.now()) => {
                self.violated(format!(
                    "pod {name} was evicted though it must not be disrupted"
                ));
            }
            Some((_, name, false)) if !before.has_deadline => {
                let what = "was deleted past its budgets on a node without a deadline";
                self.violated(format!("pod {name} {what}"));
            }
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
    fn evictions_and_deletions_of_pods_are_told_from_other_requests() {
        let pod = "/api/v1/namespaces/default/pods/a";
        let eviction = format!("{pod}/eviction");
        let of =
            |method, path| target(&method, path).map(|(_, name, evicts)| (name.to_owned(), evicts));
        assert_eq!(of(Method::POST, &eviction), Some(("a".to_owned(), true)));
        assert_eq!(of(Method::DELETE, pod), Some(("a".to_owned(), false)));
        assert_eq!(of(Method::PATCH, pod), None);
        assert_eq!(
            of(Method::DELETE, "/apis/karpenter.sh/v1/nodeclaims/a"),
            None
        );
    }
}
