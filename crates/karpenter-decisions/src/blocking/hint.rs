//! A likely cause of a constraint that nothing can meet: a label that no node and no NodePool has, and the one that was meant.

use std::collections::BTreeSet;

use karpenter_core::cluster::Snapshot;

use super::atom::Atom;
use super::probe::Probe;

/// Letters in which a misspelt label differs from the one that was meant.
const NEAR: usize = 2;

/// Returns what is conspicuous about a constraint.
pub(super) fn hint(probe: &Probe<'_>, atom: &Atom) -> Option<String> {
    let shape = &probe.pod.shape;
    let key = match atom {
        Atom::NodeSelector(key) => key.as_str(),
        Atom::NodeAffinity(term, index) => {
            let expression = &shape.required_nodes[*term].expressions[*index];
            let needs_it = matches!(expression.operator.as_str(), "In" | "Exists" | "Gt" | "Lt");
            needs_it.then_some(expression.key.as_str())?
        }
        Atom::Spread(index) => shape.spread[*index].topology_key.as_str(),
        _ => return None,
    };
    let known = labels(probe.snapshot());
    if known.contains(key) {
        return None;
    }
    let near = known
        .into_iter()
        .map(|label| (strsim::osa_distance(&label, key), label))
        .filter(|(distance, label)| *distance <= NEAR && *distance < label.len())
        .min();
    let meant = near.map(|(_, label)| format!("; did you mean {label}?"));
    Some(format!(
        "no node and no NodePool has the label {key}{}",
        meant.unwrap_or_default()
    ))
}

/// Returns the labels of nodes, NodePools and instance types.
fn labels(snapshot: &Snapshot) -> BTreeSet<String> {
    let mut all: BTreeSet<String> = BTreeSet::new();
    let mut add = |key: &str| {
        if !all.contains(key) {
            all.insert(key.to_owned());
        }
    };
    snapshot.config().well_known.labels().for_each(&mut add);
    for node in snapshot.nodes() {
        node.labels().keys().for_each(&mut add);
    }
    for pool in snapshot.node_pools() {
        let template = &pool.spec.template;
        let own = template.metadata.labels.iter().flatten();
        own.for_each(|(key, _)| add(key));
        let requirements = template.spec.requirements.iter();
        requirements.for_each(|requirement| add(&requirement.key));
        if let Some(Ok(types)) = snapshot.instance_types(pool.name()) {
            let first = types.first();
            let keys = first.into_iter().flat_map(|kind| kind.requirements.keys());
            keys.for_each(&mut add);
        }
    }
    all
}
