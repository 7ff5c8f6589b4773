//! When disruption passes are made, and when another one cannot find more.

use std::time::Duration;

use jiff::Timestamp;

use crate::cluster::Snapshot;
use crate::disruption::{DisruptionPlan, NotDisruptable, Verdict, VerdictKind};
use crate::pod::protected_until;

/// Interval between passes when there is nothing to do.
pub(super) const INTERVAL: Duration = Duration::from_secs(10);
/// How long until a proposal is validated: pods may be about to be bound.
pub(super) const VALIDATION_DELAY: Duration = Duration::from_secs(15);
/// How long no pass is made after one that found nothing, while nothing changes.
pub(super) const FRUITLESS_PAUSE: Duration = Duration::from_secs(300);

/// Returns whether only a change of the cluster or of the budgets can give another pass something to do, until [`next_chance`].
pub(super) fn is_fruitless(plan: &DisruptionPlan) -> bool {
    let in_flight =
        |verdict: &Verdict| verdict.kind == VerdictKind::NotDisruptable(NotDisruptable::InFlight);
    plan.commands.is_empty() && plan.timed_out.is_empty() && !plan.verdicts.iter().any(in_flight)
}

/// Returns when time alone unblocks the first of the nodes: the end of a nomination, or of a pod's temporary protection. A
/// node that is blocked permanently, or until a pod has started, is unblocked by a change of the cluster.
pub(super) fn next_chance(plan: &DisruptionPlan, snapshot: &Snapshot) -> Option<Timestamp> {
    let ends = plan.verdicts.iter().filter_map(|verdict| {
        let VerdictKind::NotDisruptable(why) = &verdict.kind else {
            return None;
        };
        match why {
            NotDisruptable::Nominated => verdict.node.nominated_until,
            NotDisruptable::PodDoNotDisrupt { pod } => {
                protected_until(snapshot.pod(&pod.namespace, &pod.name)?)
            }
            _ => None,
        }
    });
    ends.min()
}
