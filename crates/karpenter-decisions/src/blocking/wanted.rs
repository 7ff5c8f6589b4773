//! What a pod asks for and only a NodePool gives.

use karpenter_api::v1::NodePool;
use karpenter_core::cluster::Snapshot;
use karpenter_core::pod::Pod;
use karpenter_core::requirements::{Requirement, Requirements};

use super::atom::Atom;

/// Reports whether a label of a NodePool's nodes, or a requirement on one that only NodePools define, is what the pod asks for.
/// Without it the nodes would not have the label: to lift it is no relaxation.
pub(super) fn is_wanted(snapshot: &Snapshot, pod: &Pod, pool: &NodePool, atom: &Atom) -> bool {
    let names = &snapshot.config().well_known;
    let template = &pool.spec.template;
    let defined = match atom {
        Atom::PoolRequirement(_, index) => {
            let requirement = &template.spec.requirements[*index];
            Requirements::from_api(std::slice::from_ref(requirement), names).ok()
        }
        Atom::PoolLabel(_, key) => {
            let labels = template.metadata.labels.iter().flatten();
            let named = labels.filter(|(label, _)| *label == key);
            Some(Requirements::from_labels(named, names))
        }
        _ => None,
    };
    let Some(defined) = defined else {
        return false;
    };
    let mut custom = defined.iter().filter(|it| !names.contains(it.key()));
    custom.any(|defined| {
        let selected = pod.shape.node_selector.iter();
        let selected = selected.map(|(key, value)| Requirement::equal(key, value));
        let terms = pod.shape.required_nodes.iter();
        let expressions = terms.flat_map(|term| &term.expressions).filter_map(|it| {
            let parsed = Requirement::parse(&it.key, &it.operator, &it.values);
            parsed.ok()
        });
        let mut on_key = selected
            .chain(expressions)
            .map(|wanted| wanted.canonical(names))
            .filter(|wanted| wanted.key() == defined.key())
            .peekable();
        on_key.peek().is_some()
            && on_key.all(|wanted| !wanted.allows_absent() && wanted.has_intersection(defined))
    })
}
