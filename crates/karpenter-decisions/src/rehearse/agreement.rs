//! How far a plan agrees with what happened.

use karpenter_core::resources::Resources;

use super::plan::{Action, Plan, is_planned};
use crate::shadow::action::{self, Agreement};

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

/// Returns the [size class](crate::shadow::action::size_class) of a node.
pub fn size_class(milli_cores: i64, bytes: i64) -> u64 {
    let resources = Resources::new().with("cpu", milli_cores);
    action::size_class(&resources.with("memory", bytes))
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

/// Returns the [`Agreement`] of two multisets of actions, from 0 to 1; 1 if nothing was done in both.
///
/// ```
/// use karpenter_decisions::rehearse::agreement::{Done, agreement};
///
/// let disrupt = |node: &str| Done::Disrupt { node: node.into(), reason: "Empty".into() };
/// assert_eq!(agreement(&[disrupt("a"), disrupt("b")], &[disrupt("b")]), 2.0 / 3.0);
/// assert_eq!(agreement(&[], &[]), 1.0);
/// ```
pub fn agreement(planned: &[Done], happened: &[Done]) -> f64 {
    Agreement::of(planned, happened).ratio()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_class_is_a_power_of_two_of_cores_or_a_quarter_of_memory() {
        assert_eq!(size_class(3920, 15 << 30), 4);
        assert_eq!(size_class(3920, 30 << 30), 8);
        assert_eq!(size_class(100, 0), 1);
        assert_eq!(size_class(-5, -5), 1);
        assert_eq!(size_class(15_890, 0), 16);
    }
}
