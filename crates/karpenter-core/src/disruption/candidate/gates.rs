//! Which methods consider a candidate, and why the others do not, as far as that is known without a simulation.

use karpenter_api::labels;
use karpenter_api::v1::ConsolidationPolicy;

use crate::disruption::candidate::{Candidate, NotConsolidatable};
use crate::disruption::command::Method;

impl Method {
    /// Reports whether the method considers the candidate; those with `eventual_only` are for the drift methods alone.
    pub(in crate::disruption) fn may_take(self, candidate: &Candidate) -> bool {
        let drifted = || candidate.drifted_at().is_some();
        (self.is_eventual() || !candidate.eventual_only)
            && match self {
                Self::Emptiness => candidate.is_empty() && candidate.not_empty().is_none(),
                Self::StaticDrift => candidate.node_pool.is_static() && drifted(),
                Self::Drift => !candidate.node_pool.is_static() && drifted(),
                Self::MultiNode | Self::SingleNode => candidate.unconsolidatable().is_none(),
            }
    }
}

impl Candidate {
    /// Returns why consolidation cannot act on the candidate, as far as that is known without a simulation.
    pub fn unconsolidatable(&self) -> Option<NotConsolidatable> {
        self.consolidation_gates().next()
    }

    /// Returns why emptiness cannot delete the candidate; `None` if it can.
    pub fn not_empty(&self) -> Option<NotConsolidatable> {
        self.emptiness_gates().next()
    }

    /// Reports whether the Node has the `do-not-consolidate` annotation of releases up to v0.32, which drift and expiration ignore.
    fn refuses_consolidation(&self) -> bool {
        self.node.facts().refuses_consolidation
    }

    /// Iterates over everything that keeps consolidation from considering the candidate, in the order of the checks.
    pub(in crate::disruption) fn consolidation_gates(
        &self,
    ) -> impl Iterator<Item = NotConsolidatable> {
        CONSOLIDATION_GATES
            .into_iter()
            .filter_map(move |gate| gate(self))
    }

    /// Iterates over everything that keeps emptiness from deleting the candidate, in the order of the checks.
    pub(in crate::disruption) fn emptiness_gates(&self) -> impl Iterator<Item = NotConsolidatable> {
        EMPTINESS_GATES
            .into_iter()
            .filter_map(move |gate| gate(self))
    }

    fn is_for_empty_nodes(&self) -> bool {
        let policy = &self.node_pool.spec.disruption.consolidation_policy;
        *policy == ConsolidationPolicy::WhenEmpty
    }

    fn when_empty(&self) -> NotConsolidatable {
        let node_pool = self.pool_name().to_owned();
        NotConsolidatable::WhenEmpty { node_pool }
    }

    fn is_static(&self) -> Option<NotConsolidatable> {
        self.node_pool
            .is_static()
            .then_some(NotConsolidatable::Static)
    }

    fn is_disabled(&self) -> Option<NotConsolidatable> {
        let after = self.node_pool.spec.disruption.consolidate_after.value();
        after.is_none().then(|| NotConsolidatable::Disabled {
            node_pool: self.pool_name().to_owned(),
        })
    }
}

/// A check of a candidate; the reason if it fails.
type Gate = fn(&Candidate) -> Option<NotConsolidatable>;

/// The checks of consolidation, in order.
const CONSOLIDATION_GATES: [Gate; 9] = [
    Candidate::is_static,
    |candidate| {
        candidate.instance_type.is_none().then(|| {
            let name = candidate.instance_type_name().unwrap_or_default();
            NotConsolidatable::InstanceTypeUnknown {
                name: name.to_owned(),
            }
        })
    },
    |candidate| no_label(candidate.capacity_type(), labels::CAPACITY_TYPE),
    |candidate| no_label(candidate.zone(), labels::ZONE),
    Candidate::is_disabled,
    |candidate| {
        candidate
            .refuses_consolidation()
            .then_some(NotConsolidatable::NodeDoNotConsolidate)
    },
    |candidate| {
        let empty = candidate.is_empty() && candidate.buffer_pods == 0;
        empty.then_some(NotConsolidatable::Empty)
    },
    |candidate| {
        let only_empty = candidate.is_for_empty_nodes();
        only_empty.then(|| candidate.when_empty())
    },
    |candidate| {
        let too_recent = !candidate.is_consolidatable() || candidate.is_recent_replacement;
        too_recent.then_some(NotConsolidatable::TooRecent)
    },
];

/// The checks of emptiness, in order.
const EMPTINESS_GATES: [Gate; 6] = [
    Candidate::is_static,
    Candidate::is_disabled,
    |candidate| {
        // The annotation has no effect in a NodePool with policy WhenEmpty.
        let refuses = candidate.refuses_consolidation() && !candidate.is_for_empty_nodes();
        refuses.then_some(NotConsolidatable::NodeDoNotConsolidate)
    },
    |candidate| {
        (candidate.buffer_pods > 0).then(|| {
            let node = candidate.name().to_owned();
            NotConsolidatable::BufferPods { node }
        })
    },
    |candidate| (!candidate.is_empty()).then(|| candidate.when_empty()),
    |candidate| {
        let too_recent = !candidate.is_consolidatable();
        too_recent.then_some(NotConsolidatable::TooRecent)
    },
];

fn no_label(value: Option<&str>, label: &'static str) -> Option<NotConsolidatable> {
    let lacks = value.is_none();
    lacks.then_some(NotConsolidatable::NoLabel { label })
}
