//! The reason of each variant of the engine's types.

use super::{Reason, StayingPod};
use crate::disruption::{
    CommandInvalidated, NotConsolidatable, NotDisruptable, PodStays, StayingPods,
};
use crate::limits::LimitExceeded;
use crate::pod::PodIgnored;
use crate::requirements::Incompatible;
use crate::resources::{NODES, plain};
use crate::schedule::{
    ExceededLimit, Incompatibility, InstanceTypeMismatch, PoolIncompatibility, PoolOutcome,
    PoolReport, Unschedulable,
};

/// Returns the reason of a pod without a place; of several NodePools that of the one that came closest to launching a node.
pub fn pod_reason(why: &Unschedulable) -> Reason {
    match why {
        Unschedulable::Invalid(problems) => Reason::Invalid {
            problems: texts(problems),
        },
        Unschedulable::NoNodePools => Reason::NoNodePools {},
        Unschedulable::NoInstanceTypes => Reason::NoInstanceTypes {},
        Unschedulable::NoFit(pools) | Unschedulable::ReservationWait(pools) => {
            let mut closest: Option<&PoolIncompatibility> = None;
            for pool in pools.iter() {
                // Of equally close NodePools the first counts: the engine tries them by weight.
                if closest.is_none_or(|best| closeness(&pool.reason) > closeness(&best.reason)) {
                    closest = Some(pool);
                }
            }
            closest.map_or(Reason::NoNodePools {}, |pool| Reason::from(&pool.reason))
        }
        Unschedulable::UnknownNodePool { name, similar: _ } => Reason::NoNodePool {
            node_pool: name.clone(),
        },
        Unschedulable::Devices(failure) => Reason::DevicesUnavailable {
            problem: failure.to_string(),
        },
        Unschedulable::MinValuesAfterTruncation => Reason::MinValuesUnmet {
            key: None,
            min_values: 0,
            found: 0,
        },
    }
}

/// Returns the reason of each NodePool against a pod, in the order in which they were tried.
pub fn pool_reasons(why: &Unschedulable) -> impl Iterator<Item = (&str, Reason)> {
    let pools = match why {
        Unschedulable::NoFit(pools) | Unschedulable::ReservationWait(pools) => &pools[..],
        Unschedulable::Invalid(_)
        | Unschedulable::NoNodePools
        | Unschedulable::NoInstanceTypes
        | Unschedulable::UnknownNodePool { .. }
        | Unschedulable::Devices(_)
        | Unschedulable::MinValuesAfterTruncation => &[],
    };
    pools
        .iter()
        .map(|pool| (pool.node_pool.as_str(), Reason::from(&pool.reason)))
}

/// Returns the reason of a pod that a pass was not asked to place; `None` if it is not pending: bound, terminating, terminated or
/// static.
pub fn ignored_reason(why: &PodIgnored) -> Option<Reason> {
    Some(match why {
        PodIgnored::Bound { .. }
        | PodIgnored::Terminating
        | PodIgnored::Terminated
        | PodIgnored::Static => return None,
        PodIgnored::DaemonSet => Reason::DaemonSetPod {},
        PodIgnored::SchedulingGated => Reason::SchedulingGated {},
        PodIgnored::Preempting { node } => Reason::Preempting { node: node.clone() },
        PodIgnored::OtherScheduler { scheduler } => Reason::OtherScheduler {
            scheduler: scheduler.clone(),
        },
        PodIgnored::NotMarkedUnschedulable => Reason::NotMarkedUnschedulable {},
    })
}

/// Returns how many kinds of checks the pod has passed in a NodePool. A limit counts as a late one: without it, the NodePool might
/// launch a node.
fn closeness(reason: &Incompatibility) -> u8 {
    match reason {
        Incompatibility::Taints(_) => 0,
        Incompatibility::Requirements(_) => 1,
        Incompatibility::Volumes(_) => 2,
        Incompatibility::NodeLimit { .. } => 3,
        Incompatibility::Limits(_) => 4,
        Incompatibility::Topology { .. } => 5,
        Incompatibility::InstanceTypes(_) => 6,
        Incompatibility::MinValues { .. } => 7,
        Incompatibility::Devices(_) => 8,
        Incompatibility::Reserved => 9,
    }
}

fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn conflicts(incompatible: &Incompatible) -> Vec<String> {
    texts(&incompatible.conflicts)
}

impl From<&Incompatibility> for Reason {
    fn from(reason: &Incompatibility) -> Self {
        match reason {
            Incompatibility::Taints(taints) => Self::TaintNotTolerated {
                taints: texts(taints),
            },
            Incompatibility::Requirements(incompatible) => Self::RequirementMismatch {
                conflicts: conflicts(incompatible),
            },
            Incompatibility::Volumes(incompatible) => Self::VolumeMismatch {
                conflicts: conflicts(incompatible),
            },
            Incompatibility::Topology {
                constraint,
                key,
                domains,
            } => Self::TopologyUnsatisfiable {
                constraint: constraint.to_string(),
                key: key.clone(),
                domains: domains.clone(),
            },
            Incompatibility::NodeLimit { limit, used } => Self::NodeLimitReached {
                limit: *limit,
                used: *used,
            },
            Incompatibility::Limits(exceeded) => limit_reached(exceeded),
            Incompatibility::MinValues {
                key,
                min_values,
                found,
                requested: _,
            } => Self::MinValuesUnmet {
                key: Some(key.clone()),
                min_values: *min_values,
                found: *found,
            },
            Incompatibility::InstanceTypes(mismatch) => Self::from(mismatch),
            Incompatibility::Reserved => Self::ReservedUsedUp {},
            Incompatibility::Devices(problem) => Self::DevicesUnavailable {
                problem: problem.to_string(),
            },
        }
    }
}

/// Returns the reason for the limit that is exceeded by least, compared with itself.
fn limit_reached(exceeded: &[ExceededLimit]) -> Reason {
    let over = |it: &ExceededLimit| it.used.saturating_add(it.needed).saturating_sub(it.limit);
    let share = |it: &ExceededLimit| over(it) as f64 / it.limit.max(1) as f64;
    let nearest = exceeded.iter().min_by(|a, b| share(a).total_cmp(&share(b)));
    let amount = |of: fn(&ExceededLimit) -> i64| {
        nearest.map_or_else(String::new, |it| plain(&it.resource, of(it)))
    };
    Reason::LimitReached {
        resource: nearest.map_or_else(String::new, |it| it.resource.clone()),
        limit: amount(|it| it.limit),
        used: amount(|it| it.used),
        needed: amount(|it| it.needed),
        short_by: amount(|it| it.used.saturating_add(it.needed).saturating_sub(it.limit)),
    }
}

impl From<&InstanceTypeMismatch> for Reason {
    /// The first check that no instance type passes alone; a combination of checks, if each has instance types that pass it.
    fn from(mismatch: &InstanceTypeMismatch) -> Self {
        let requirements = mismatch.requested.requirements_text();
        let requests = mismatch.requested.resources.to_string();
        match (mismatch.requirements, mismatch.resources, mismatch.offering) {
            (false, _, _) => Self::NoMatchingType { requirements },
            (true, false, _) => Self::TooLarge {
                requests,
                suspicious_cpu: mismatch.suspicious_cpu,
                shortage: mismatch.shortage.clone(),
            },
            (true, true, false) => Self::OfferingUnavailable {
                requirements,
                until: None,
            },
            (true, true, true) => Self::CombinationUnavailable {
                requirements,
                requests,
            },
        }
    }
}

impl From<&PoolReport> for Reason {
    fn from(report: &PoolReport) -> Self {
        match &report.outcome {
            PoolOutcome::NotFound { similar: _ } => Self::NoNodePool {
                node_pool: report.node_pool.clone(),
            },
            PoolOutcome::Used => Self::Used {},
            PoolOutcome::Static => Self::Static {},
            PoolOutcome::Deleting => Self::Deleting {},
            PoolOutcome::NotReady => Self::NotReady {},
            PoolOutcome::Unknown(problem) => Self::Unknown {
                problem: problem.clone(),
            },
            PoolOutcome::Unevaluated => Self::Unevaluated {},
            PoolOutcome::NoCompatibleInstanceTypes { min_values } => {
                Self::NoCompatibleInstanceTypes {
                    min_values: *min_values,
                }
            }
            PoolOutcome::Invalid(problem) => Self::Invalid {
                problems: vec![problem.to_string()],
            },
        }
    }
}

impl From<&LimitExceeded> for Reason {
    fn from(exceeded: &LimitExceeded) -> Self {
        if exceeded.resource == NODES {
            let count = |text: &str| text.parse::<i64>().unwrap_or_default();
            Self::NodeLimitReached {
                limit: count(&exceeded.limit),
                // Without the node that would exceed the limit.
                used: count(&exceeded.usage).saturating_sub(1),
            }
        } else {
            Self::OverLimit {
                resource: exceeded.resource.clone(),
            }
        }
    }
}

impl From<&StayingPods> for Reason {
    fn from(pods: &StayingPods) -> Self {
        let staying = pods.named().iter().map(|(pod, why)| StayingPod {
            pod: pod.to_string(),
            reason: match why {
                PodStays::Unschedulable(why) => pod_reason(why).id(),
                PodStays::UninitializedNode { .. } => Reason::NotInitialized {}.id(),
                PodStays::Undecided => Reason::Undecided {}.id(),
            },
            text: why.to_string(),
        });
        Self::PodsStay {
            count: pods.len(),
            pods: staying.collect(),
        }
    }
}

impl From<&NotDisruptable> for Reason {
    fn from(why: &NotDisruptable) -> Self {
        match why {
            NotDisruptable::InFlight => Self::InFlight {},
            NotDisruptable::NotManaged => Self::NotManaged {},
            NotDisruptable::NoNode => Self::NoNode {},
            NotDisruptable::NotInitialized => Self::NotInitialized {},
            NotDisruptable::Deleting => Self::Deleting {},
            NotDisruptable::Nominated => Self::Nominated {},
            NotDisruptable::NodeDoNotDisrupt => Self::NodeDoNotDisrupt {},
            NotDisruptable::NoNodePoolLabel => Self::NoNodePoolLabel {},
            NotDisruptable::NoNodePool { node_pool } => Self::NoNodePool {
                node_pool: node_pool.clone(),
            },
            NotDisruptable::PodDoNotDisrupt { pod } => Self::PodDoNotDisrupt {
                pod: pod.to_string(),
            },
            NotDisruptable::SeveralPdbs { pod, budgets } => Self::SeveralPdbs {
                pod: pod.to_string(),
                budgets: budgets.clone(),
            },
            NotDisruptable::Pdb { pod, budget } => Self::Pdb {
                pod: pod.to_string(),
                budget: budget.clone(),
            },
            NotDisruptable::PodsStay { pods } => Self::from(pods),
        }
    }
}

impl From<&NotConsolidatable> for Reason {
    fn from(why: &NotConsolidatable) -> Self {
        match why {
            NotConsolidatable::Paused {
                node_pool: _,
                pause,
            } => Self::Paused {
                until: pause.until.to_string(),
                reasons: pause
                    .reasons
                    .iter()
                    .map(|reason| reason.as_str().to_owned())
                    .collect(),
                by: pause.by.clone(),
                why: pause.why.clone(),
            },
            NotConsolidatable::Static => Self::Static {},
            NotConsolidatable::InstanceTypeUnknown { name } => Self::InstanceTypeUnknown {
                instance_type: name.clone(),
            },
            NotConsolidatable::NoLabel { label } => Self::NoLabel {
                label: (*label).to_owned(),
            },
            NotConsolidatable::Disabled { node_pool: _ } => Self::Disabled {},
            NotConsolidatable::Empty => Self::Empty {},
            NotConsolidatable::WhenEmpty { node_pool: _ } => Self::WhenEmpty {},
            NotConsolidatable::NodeDoNotConsolidate => Self::NodeDoNotConsolidate {},
            NotConsolidatable::TooRecent => Self::TooRecent {},
            NotConsolidatable::BufferPods { node: _ } => Self::BufferPods {},
            NotConsolidatable::PodsStay { pods } => Self::from(pods),
            NotConsolidatable::SeveralReplacements { count } => {
                Self::SeveralReplacements { count: *count }
            }
            NotConsolidatable::NotCheaper => Self::NotCheaper {},
            NotConsolidatable::MinValues(unmet) => Self::MinValues {
                problem: unmet.to_string(),
            },
            NotConsolidatable::SpotToSpotDisabled => Self::SpotToSpotDisabled {},
            NotConsolidatable::SpotToSpotFlexibility { needed, found } => {
                Self::SpotToSpotFlexibility {
                    needed: *needed,
                    found: *found,
                }
            }
            NotConsolidatable::Score { score, threshold } => Self::Score {
                score: *score,
                threshold: *threshold,
            },
            NotConsolidatable::Budget { node_pool } => Self::Budget {
                node_pool: node_pool.clone(),
            },
            NotConsolidatable::NotEvaluated => Self::NotEvaluated {},
        }
    }
}

impl From<&CommandInvalidated> for Reason {
    fn from(why: &CommandInvalidated) -> Self {
        match why {
            CommandInvalidated::Budget => Self::BudgetChanged {},
            CommandInvalidated::Scheduling => Self::SchedulingChanged {},
            CommandInvalidated::Churn => Self::NodesChanged {},
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Requested;
    use crate::taints::Taint;

    fn pool(name: &str, reason: Incompatibility) -> PoolIncompatibility {
        PoolIncompatibility {
            node_pool: name.to_owned(),
            daemon_overhead: crate::resources::Resources::new(),
            reason,
        }
    }

    fn tainted(key: &str) -> Incompatibility {
        Incompatibility::Taints(vec![Taint {
            key: key.to_owned(),
            value: String::new(),
            effect: None,
        }])
    }

    #[test]
    fn the_reason_of_a_pod_is_that_of_the_pool_that_came_closest() {
        let why = Unschedulable::NoFit(
            vec![
                pool("gpu", tainted("gpu")),
                pool(
                    "batch",
                    Incompatibility::Limits(vec![ExceededLimit {
                        resource: "cpu".to_owned(),
                        limit: 100_000,
                        used: 96_000,
                        needed: 8_000,
                    }]),
                ),
                pool("full", Incompatibility::NodeLimit { limit: 1, used: 1 }),
            ]
            .into(),
        );
        assert_eq!(pod_reason(&why).id(), "LimitReached");
        assert_eq!(
            pod_reason(&why).to_string(),
            "cpu 96 of 100 in use, needs 8, short by 4"
        );
        let ids: Vec<_> = pool_reasons(&why)
            .map(|(pool, why)| (pool, why.id()))
            .collect();
        let expected = [
            ("gpu", "TaintNotTolerated"),
            ("batch", "LimitReached"),
            ("full", "NodeLimitReached"),
        ];
        assert_eq!(ids, expected);
        let why =
            Unschedulable::NoFit(vec![pool("a", tainted("x")), pool("b", tainted("y"))].into());
        assert_eq!(pod_reason(&why).to_string(), "does not tolerate x");
    }

    #[test]
    fn a_mismatch_of_types_is_named_by_the_first_check_that_none_passes() {
        let id = |requirements, resources, offering| {
            Reason::from(&InstanceTypeMismatch {
                requirements,
                resources,
                offering,
                requested: Requested::default(),
                ..InstanceTypeMismatch::default()
            })
            .id()
        };
        assert_eq!(id(false, false, false), "NoMatchingType");
        assert_eq!(id(true, false, false), "TooLarge");
        assert_eq!(id(true, true, false), "OfferingUnavailable");
        assert_eq!(id(true, true, true), "CombinationUnavailable");
    }

    #[test]
    fn ids_are_unique_and_camel_case() {
        let mut ids = Reason::IDS.to_vec();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), Reason::IDS.len());
        for id in ids {
            assert!(
                id.starts_with(|c: char| c.is_ascii_uppercase())
                    && id.chars().all(|c| c.is_ascii_alphanumeric()),
                "{id}"
            );
        }
    }
}
