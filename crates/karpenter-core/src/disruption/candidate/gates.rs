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
        let disruption = &self.node_pool.spec.disruption;
        let no_label = |value: Option<&str>, label: &'static str| {
            let lacks = value.is_none();
            lacks.then_some(NotConsolidatable::NoLabel { label })
        };
        let too_recent = || !self.is_consolidatable() || self.is_recent_replacement;
        [
            self.is_static(),
            self.instance_type.is_none().then(|| {
                let name = self.instance_type_name().unwrap_or_default().to_owned();
                NotConsolidatable::InstanceTypeUnknown { name }
            }),
            no_label(self.capacity_type(), labels::CAPACITY_TYPE),
            no_label(self.zone(), labels::ZONE),
            self.is_disabled(),
            self.refuses_consolidation()
                .then_some(NotConsolidatable::NodeDoNotConsolidate),
            (self.is_empty() && self.buffer_pods == 0).then_some(NotConsolidatable::Empty),
            (disruption.consolidation_policy == ConsolidationPolicy::WhenEmpty).then(|| {
                let node_pool = self.pool_name().to_owned();
                NotConsolidatable::WhenEmpty { node_pool }
            }),
            too_recent().then_some(NotConsolidatable::TooRecent),
        ]
        .into_iter()
        .flatten()
    }

    /// Iterates over everything that keeps emptiness from deleting the candidate, in the order of the checks.
    pub(in crate::disruption) fn emptiness_gates(&self) -> impl Iterator<Item = NotConsolidatable> {
        // The annotation has no effect in a NodePool with policy WhenEmpty.
        let only_empty =
            self.node_pool.spec.disruption.consolidation_policy == ConsolidationPolicy::WhenEmpty;
        [
            self.is_static(),
            self.is_disabled(),
            (self.refuses_consolidation() && !only_empty)
                .then_some(NotConsolidatable::NodeDoNotConsolidate),
            (self.buffer_pods > 0).then(|| {
                let node = self.name().to_owned();
                NotConsolidatable::BufferPods { node }
            }),
            (!self.is_empty()).then(|| {
                let node_pool = self.pool_name().to_owned();
                NotConsolidatable::WhenEmpty { node_pool }
            }),
            (!self.is_consolidatable()).then_some(NotConsolidatable::TooRecent),
        ]
        .into_iter()
        .flatten()
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
