//! Pods that keep their node from being deleted, because they can be scheduled nowhere else.

use std::fmt;
use std::sync::Arc;

use crate::pod::PodKey;
use crate::schedule::Unschedulable;

/// Why a pod cannot leave its node. [`fmt::Display`] gives upstream's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodStays {
    /// The simulation found no place for it.
    Unschedulable(Arc<Unschedulable>),
    /// Its only place is a node that is not initialized, and may never be.
    UninitializedNode {
        /// The node.
        node: String,
    },
    /// The simulation ended before it was scheduled.
    Undecided,
}

impl fmt::Display for PodStays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unschedulable(why) => why.fmt(f),
            Self::UninitializedNode { node } => {
                write!(f, "would schedule against uninitialized node \"{node}\"")
            }
            Self::Undecided => f.write_str("simulation ended before the pod was scheduled"),
        }
    }
}

/// Pods that cannot leave their node: all are counted, the first few are kept with their reasons. [`fmt::Display`] gives upstream's
/// text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StayingPods {
    named: Vec<(PodKey, PodStays)>,
    count: usize,
}

impl StayingPods {
    /// The number of pods that are kept with their reasons: upstream's events name as many.
    pub const NAMED: usize = 5;

    /// Adds a pod; `named` is called only if the pod is kept.
    pub(super) fn push(&mut self, named: impl FnOnce() -> (PodKey, PodStays)) {
        if self.named.len() < Self::NAMED {
            self.named.push(named());
        }
        self.count += 1;
    }

    /// Returns the first pods, each with its reason.
    pub fn named(&self) -> &[(PodKey, PodStays)] {
        &self.named
    }

    /// Returns the number of all pods.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Reports whether every pod can leave.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Display for StayingPods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Not all pods would schedule, ")?;
        for (index, (pod, why)) in self.named.iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            write!(f, "{separator}{pod} => {why}")?;
        }
        match self.count - self.named.len() {
            0 => Ok(()),
            others => write!(f, " and {others} other(s)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_pods_are_named_and_the_others_counted() {
        let mut pods = StayingPods::default();
        assert!(pods.is_empty());
        for number in 1..=7 {
            let key = PodKey::new("shop", &format!("web-{number}"), "");
            pods.push(|| {
                (
                    key,
                    PodStays::Unschedulable(Unschedulable::NoNodePools.into()),
                )
            });
        }
        assert_eq!((pods.len(), pods.named().len()), (7, 5));
        let text = pods.to_string();
        assert!(
            text.starts_with("Not all pods would schedule, shop/web-1 => no dynamic nodepools found shop/web-2 => "),
            "{text}"
        );
        assert!(
            text.ends_with("shop/web-5 => no dynamic nodepools found and 2 other(s)"),
            "{text}"
        );
    }
}
