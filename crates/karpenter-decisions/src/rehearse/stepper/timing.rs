//! How long nodes and pods take to start: the medians of the cluster itself, else defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::Snapshot;
use karpenter_core::pod::Pod;

/// How long the cloud takes to launch an instance.
pub(in crate::rehearse) const LAUNCH: Duration = Duration::from_secs(3);
/// How long a node takes to register, if the cluster has no example.
const REGISTER: Duration = Duration::from_secs(45);
/// How long a node takes until it is initialized, if the cluster has no example.
const INITIALIZE: Duration = Duration::from_secs(60);
/// How long a pod takes until it is ready, if the cluster has no example.
const START: Duration = Duration::from_secs(5);
/// Longer times are not believed: the node or pod was not ready for another cause.
const LONGEST: Duration = Duration::from_secs(3600);
/// The grace period of a pod that has none.
const GRACE: i64 = 30;

/// Durations since the creation of a NodeClaim.
#[derive(Clone, Copy, Debug)]
pub(in crate::rehearse) struct Boot {
    pub(super) registered: Duration,
    pub(super) initialized: Duration,
}

/// The medians of a cluster.
#[derive(Clone, Debug, Default)]
pub(in crate::rehearse) struct Timing {
    boots: BTreeMap<String, Boot>,
    any_boot: Option<Boot>,
    starts: BTreeMap<(String, String), Duration>,
    any_start: Option<Duration>,
    drain: Option<Duration>,
    assumed: bool,
}

fn between(from: Timestamp, to: Timestamp) -> Option<Duration> {
    let duration = Duration::try_from(to.duration_since(from)).ok()?;
    (duration <= LONGEST).then_some(duration)
}

fn median(mut all: Vec<Duration>) -> Option<Duration> {
    all.sort_unstable();
    all.get(all.len() / 2).copied()
}

fn boot(claim: &NodeClaim) -> Option<(Duration, Duration)> {
    let created = claim.metadata.creation_timestamp.as_ref()?.0;
    let since = |condition| {
        let condition = claim.condition(condition)?;
        let is_true = condition.status == "True";
        is_true.then(|| between(created, condition.last_transition_time.0))?
    };
    Some((since(types::REGISTERED)?, since(types::INITIALIZED)?))
}

impl Timing {
    /// Measures a cluster. `boot` and `drain` are assumed instead if they are given.
    pub(super) fn of(
        snapshot: &Snapshot,
        boot_: Option<Duration>,
        drain: Option<Duration>,
    ) -> Self {
        let mut timing = Self {
            drain,
            assumed: boot_.is_some(),
            ..Self::default()
        };
        let mut boots: BTreeMap<&str, Vec<(Duration, Duration)>> = BTreeMap::new();
        for claim in snapshot.node_claims() {
            if let (Some(pool), Some(times)) = (claim.node_pool(), boot(claim)) {
                boots.entry(pool).or_default().push(times);
            }
        }
        let medians = |times: &mut dyn Iterator<Item = (Duration, Duration)>| {
            let (registered, initialized) = times.unzip();
            let (registered, initialized) = (median(registered)?, median(initialized)?);
            Some(Boot {
                registered: registered.max(LAUNCH),
                initialized: initialized.max(registered).max(LAUNCH),
            })
        };
        match boot_ {
            Some(boot) => {
                timing.any_boot = Some(Boot {
                    registered: boot,
                    initialized: boot,
                });
            }
            None => {
                timing.any_boot = medians(&mut boots.values().flatten().copied());
                let of_pools = boots.iter().filter_map(|(pool, times)| {
                    let boot = medians(&mut times.iter().copied())?;
                    Some(((*pool).to_owned(), boot))
                });
                timing.boots = of_pools.collect();
            }
        }
        let mut starts: BTreeMap<(String, String), Vec<Duration>> = BTreeMap::new();
        for pod in snapshot.pods() {
            let since = (pod.scheduled_since, pod.ready_since);
            if let (Some(bound), Some(ready)) = since
                && let Some(took) = between(bound.time(), ready.time())
            {
                starts.entry(owner(pod)).or_default().push(took);
            }
        }
        timing.any_start = median(starts.values().flatten().copied().collect());
        timing.starts = starts
            .into_iter()
            .filter_map(|(owner, times)| Some((owner, median(times)?)))
            .collect();
        timing
    }

    /// Returns how long a node of a NodePool takes.
    pub(super) fn boot(&self, pool: &str) -> Boot {
        let known = self.boots.get(pool).copied().or(self.any_boot);
        known.unwrap_or(Boot {
            registered: REGISTER,
            initialized: INITIALIZE,
        })
    }

    /// Returns how long a pod takes from its binding until it is ready.
    pub(super) fn start(&self, pod: &Pod) -> Duration {
        let known = self.starts.get(&owner(pod)).copied().or(self.any_start);
        known.unwrap_or(START)
    }

    /// Returns how long a pod takes from its eviction until it has ended.
    pub(super) fn end(&self, pod: &Pod) -> Duration {
        self.drain.unwrap_or_else(|| {
            let grace = pod.termination_grace_seconds.unwrap_or(GRACE);
            Duration::from_secs(u64::try_from(grace).unwrap_or_default()).min(LONGEST)
        })
    }

    /// Returns what is approximate in these times.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.assumed {
            notes.push(match self.any_boot {
                Some(_) => "Nodes start as fast as the median of their NodePool did.".to_owned(),
                None => "Nodes are initialized 60 seconds after their NodeClaim: the cluster has no example.".to_owned(),
            });
        }
        if self.drain.is_none() {
            notes
                .push("An evicted pod takes its whole termination grace period to end.".to_owned());
        }
        notes
    }
}

/// The owner of a pod: namespace and name of its controller; the pod's own name without one.
fn owner(pod: &Pod) -> (String, String) {
    let name = pod.shape.controller.as_ref().map(|owner| &owner.name);
    (
        pod.key.namespace.clone(),
        name.unwrap_or(&pod.key.name).clone(),
    )
}
