//! How far a plan agrees with what happened.
//!
//! The agreement of plan A and reality B is `2·|A ∩ B| / (|A| + |B|)` over multisets of actions.

use std::collections::BTreeMap;

use super::plan::{Action, Plan, is_planned};

/// Something that was done, without its time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Done {
    /// A node was disrupted. The name is empty for a node that did not exist at the start.
    Disrupt {
        node: String,
        /// `Empty`, `Drifted`, `Underutilized`, `Expired`, `Deleted`.
        reason: String,
    },
    /// A node was launched.
    Launch {
        node_pool: String,
        capacity_type: String,
        /// See [`size_class`].
        size_class: u64,
    },
}

/// Returns the size class of a node: its cores, or a quarter of its GiB of memory if that is more, rounded up to a power of two.
pub fn size_class(milli_cores: i64, bytes: i64) -> u64 {
    let cores = u64::try_from(milli_cores).unwrap_or_default();
    let cores = cores.div_ceil(1000);
    let memory = u64::try_from(bytes).unwrap_or_default().div_ceil(4 << 30);
    cores
        .max(memory)
        .max(1)
        .checked_next_power_of_two()
        .unwrap_or(u64::MAX)
}

/// Returns what a plan does.
pub fn actions(plan: &Plan) -> Vec<Done> {
    let mut done = Vec::new();
    for step in &plan.steps {
        if step.action != Action::Launch {
            done.extend(step.nodes.iter().map(|node| Done::Disrupt {
                node: if is_planned(node) {
                    String::new()
                } else {
                    node.clone()
                },
                reason: step.reason.clone(),
            }));
        }
        for launch in &step.launches {
            let one = Done::Launch {
                node_pool: launch.node_pool.clone(),
                capacity_type: launch.capacity_type.clone(),
                size_class: launch.size_class,
            };
            done.extend(std::iter::repeat_n(one, launch.count));
        }
    }
    done
}

/// Returns the agreement of two multisets of actions, from 0 to 1; 1 if nothing was done in both.
///
/// ```
/// use karpenter_decisions::rehearse::agreement::{Done, agreement};
///
/// let disrupt = |node: &str| Done::Disrupt { node: node.into(), reason: "Empty".into() };
/// assert_eq!(agreement(&[disrupt("a"), disrupt("b")], &[disrupt("b")]), 2.0 / 3.0);
/// assert_eq!(agreement(&[], &[]), 1.0);
/// ```
pub fn agreement(planned: &[Done], happened: &[Done]) -> f64 {
    let all = planned.len() + happened.len();
    if all == 0 {
        return 1.0;
    }
    let mut left: BTreeMap<&Done, usize> = BTreeMap::new();
    for done in planned {
        *left.entry(done).or_default() += 1;
    }
    let mut common = 0_usize;
    for done in happened {
        if let Some(count) = left.get_mut(done).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    2.0 * common as f64 / all as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_class_is_the_power_of_two_above_cores_or_a_quarter_of_the_memory() {
        assert_eq!(size_class(3920, 15 << 30), 4);
        assert_eq!(size_class(3920, 30 << 30), 8);
        assert_eq!(size_class(100, 0), 1);
        assert_eq!(size_class(-5, -5), 1);
        assert_eq!(size_class(15_890, 0), 16);
    }

    #[test]
    fn equal_actions_count_as_often_as_they_occur_on_both_sides() {
        let launch = |pool: &str| Done::Launch {
            node_pool: pool.into(),
            capacity_type: "spot".into(),
            size_class: 4,
        };
        assert_eq!(
            agreement(&[launch("a"), launch("a")], &[launch("a"), launch("a")]),
            1.0
        );
        assert_eq!(
            agreement(&[launch("a"), launch("a")], &[launch("a")]),
            2.0 / 3.0
        );
        assert_eq!(agreement(&[launch("a")], &[launch("b")]), 0.0);
        assert_eq!(agreement(&[], &[launch("b")]), 0.0);
    }
}
