//! The compiled cluster that questions share while the cluster does not change.
//!
//! Compiling is most of what a question costs. The result is cached for [`CACHE_TTL`], for the next questions about the same
//! epoch, if it is not larger than [`MAX_BYTES`]; then its memory is freed.

use std::sync::Arc;
use std::time::Duration;

use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::DisruptionRequest;
use karpenter_core::schedule::Policy;
use karpenter_decisions::answer::Compile;
use karpenter_decisions::blocking::Prepared;
use karpenter_decisions::what_if::WhatIf;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

const CACHE_TTL: Duration = Duration::from_secs(30);
/// The largest compiled cluster that is cached.
const MAX_BYTES: usize = 40 << 20;

struct Slot {
    made: jiff::Timestamp,
    pods: Arc<Prepared>,
    /// Shares the compiled nodes and pods with `pods`.
    nodes: Option<Arc<WhatIf>>,
}

#[derive(Default)]
pub(super) struct CompiledCache {
    slot: Mutex<Option<Slot>>,
    made: Notify,
}

impl Compile for CompiledCache {
    fn prepared(&self, snapshot: &Snapshot, policy: &Policy) -> Arc<Prepared> {
        let now = policy.now;
        let known = self.slot.lock().as_ref().and_then(|slot| {
            let same = slot.pods.snapshot().epoch() == snapshot.epoch() && slot.pods.is_for(policy);
            (same && !slot.is_old(now)).then(|| slot.pods.clone())
        });
        if let Some(known) = known {
            return known;
        }
        let pods = Arc::new(Prepared::new(snapshot, policy));
        let slot = (pods.memory() <= MAX_BYTES).then(|| Slot {
            made: now,
            pods: pods.clone(),
            nodes: None,
        });
        *self.slot.lock() = slot;
        self.made.notify_one();
        pods
    }

    fn what_if(&self, snapshot: &Snapshot, policy: &Policy, request: DisruptionRequest) -> WhatIf {
        let pods = self.prepared(snapshot, policy);
        let known = self.slot.lock().as_ref().and_then(|slot| {
            let same = Arc::ptr_eq(&slot.pods, &pods);
            slot.nodes.clone().filter(|_| same)
        });
        if let Some(again) = known.and_then(|known| known.again(request.clone())) {
            return again;
        }
        let nodes = WhatIf::sharing(&pods, request.clone());
        if let Some(again) = nodes.again(request)
            && let Some(slot) = self.slot.lock().as_mut()
            && Arc::ptr_eq(&slot.pods, &pods)
        {
            slot.nodes = Some(Arc::new(nodes));
            return again;
        }
        nodes
    }
}

impl CompiledCache {
    pub(super) fn free(&self) {
        *self.slot.lock() = None;
    }

    /// Frees the expired cluster, until `stop`.
    pub(super) async fn expire(&self, clock: &Clock, stop: CancellationToken) {
        loop {
            let left = self.slot.lock().as_ref().map(|slot| {
                let age = clock.since(slot.made);
                CACHE_TTL.saturating_sub(age)
            });
            let due = async {
                match left {
                    Some(left) if left.is_zero() => self.free(),
                    Some(left) => clock.sleep(left).await,
                    None => self.made.notified().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = stop.cancelled() => return,
            }
        }
    }
}

impl Slot {
    fn is_old(&self, now: jiff::Timestamp) -> bool {
        now.duration_since(self.made).unsigned_abs() >= CACHE_TTL
    }
}

#[cfg(test)]
mod tests {
    use karpenter_core::cluster::{Cluster, ClusterConfig};
    use karpenter_core::pod::Pod;
    use karpenter_core::resources::Resources;
    use karpenter_core::schedule::PreferencePolicy;

    use super::*;

    fn pod(name: &str) -> Pod {
        Pod::pending("default", name, Resources::new().with("cpu", 100))
    }

    /// Conformance: DEC-017
    #[tokio::test(start_paused = true)]
    async fn questions_about_one_epoch_share_what_was_compiled_for_30_seconds() {
        let clock = Clock::new(jiff::Timestamp::UNIX_EPOCH, 1.0);
        let (cache, stop) = (Arc::new(CompiledCache::default()), CancellationToken::new());
        let (keeping, until) = (Arc::clone(&cache), stop.clone());
        let expiring = tokio::spawn(async move { keeping.expire(&clock, until).await });
        let mut cluster = Cluster::new(ClusterConfig::default());
        cluster.insert_pod(pod("one"));
        let snapshot = cluster.snapshot();
        let policy = |seconds| {
            let later = jiff::Timestamp::from_second(seconds).unwrap();
            Policy::at(later)
        };

        let first = cache.prepared(&snapshot, &policy(0));
        let again = cache.prepared(&snapshot, &policy(20));
        assert!(Arc::ptr_eq(&first, &again), "only the time differs");
        let ignored = policy(20).with_preference_policy(PreferencePolicy::Ignore);
        let other = cache.prepared(&snapshot, &ignored);
        assert!(!Arc::ptr_eq(&first, &other), "another policy");
        let before = cache.prepared(&snapshot, &policy(20));
        cluster.insert_pod(pod("two"));
        let changed = cache.prepared(&cluster.snapshot(), &policy(20));
        assert!(!Arc::ptr_eq(&before, &changed), "another epoch");

        let weak = Arc::downgrade(&changed);
        drop(changed);
        clock.sleep(CACHE_TTL / 2).await;
        assert!(weak.upgrade().is_some());
        clock.sleep(CACHE_TTL + Duration::from_secs(20)).await;
        assert!(weak.upgrade().is_none(), "its memory is freed");
        stop.cancel();
        expiring.await.unwrap();
    }

    #[test]
    fn questions_about_nodes_share_the_nodes_and_pods_of_questions_about_pods() {
        let cache = CompiledCache::default();
        let mut cluster = Cluster::new(ClusterConfig::default());
        cluster.insert_pod(pod("one"));
        let (snapshot, now) = (cluster.snapshot(), jiff::Timestamp::UNIX_EPOCH);
        let policy = Policy::at(now);
        cache.what_if(&snapshot, &policy, DisruptionRequest::at(now));
        let nodes = || {
            let slot = cache.slot.lock();
            slot.as_ref().unwrap().nodes.clone().unwrap()
        };
        let first = nodes();
        cache.what_if(&snapshot, &policy, DisruptionRequest::at(now));
        assert!(Arc::ptr_eq(&first, &nodes()));
        cache.free();
        assert!(cache.slot.lock().is_none());
    }
}
