//! The values of a label in the cluster: the domains of topology constraints.

use std::sync::Arc;

use index_vec::IndexVec;
use rustc_hash::FxHashMap;

use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{DomainId, NodeIdx, TemplateId};

/// The values of one label: those of nodes first, then those that only new nodes can have.
#[derive(Clone, Debug, Default)]
pub(crate) struct LabelDomains {
    pub(crate) names: IndexVec<DomainId, Arc<str>>,
    pub(crate) ids: FxHashMap<Arc<str>, DomainId>,
    /// The nodes with each value.
    pub(crate) nodes: IndexVec<DomainId, Bits<NodeIdx>>,
    /// The value of each node; `None` without the label.
    pub(crate) of_node: IndexVec<NodeIdx, Option<DomainId>>,
    /// The values that new nodes of each template can have.
    pub(crate) of_template: IndexVec<TemplateId, Bits<DomainId>>,
}

/// The domains that new nodes can be in if they meet a node selector term: where an instance type has an offering with which it
/// meets the term.
///
/// DIFFERS: upstream takes all values that a NodePool and its instance types list, whether or not an offering has them.
#[derive(Debug, Default)]
pub(crate) struct TermDomains {
    /// Those of all offerings: what is not available now may be later.
    pub(crate) offered: Bits<DomainId>,
    /// Those of the available offerings.
    pub(crate) launchable: Bits<DomainId>,
}

impl LabelDomains {
    /// Returns the id of a value, which is added if it is new.
    pub(crate) fn id(&mut self, value: &str) -> DomainId {
        if let Some(id) = self.ids.get(value) {
            return *id;
        }
        let value: Arc<str> = value.into();
        self.nodes.push(Bits::default());
        let id = self.names.push(value.clone());
        self.ids.insert(value, id);
        id
    }
}
