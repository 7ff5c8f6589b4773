//! A likely cause of a constraint that nothing can meet: a label that no node and no NodePool has, or a value that no node has, and the
//! one that was meant.

use std::collections::BTreeSet;

use karpenter_core::cluster::Snapshot;
use karpenter_core::spelling::{meant_value, nearest};

use super::atom::Atom;
use super::probe::Probe;

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
        return values(probe, atom).find_map(|value| {
            let meant = meant_value(key, value)?;
            Some(format!("{key} is never {value}; did you mean {meant}?"))
        });
    }
    let meant = nearest(key, known.iter().map(String::as_str));
    let meant = meant.map(|label| format!("; did you mean {label}?"));
    Some(format!(
        "no node and no NodePool has the label {key}{}",
        meant.unwrap_or_default()
    ))
}

/// Returns the values that a constraint admits, if it lists them.
fn values<'p>(probe: &'p Probe<'_>, atom: &Atom) -> impl Iterator<Item = &'p str> {
    let shape = &probe.pod.shape;
    let values = match atom {
        Atom::NodeSelector(key) => shape.node_selector.get(key).map(std::slice::from_ref),
        Atom::NodeAffinity(term, index) => {
            let expression = &shape.required_nodes[*term].expressions[*index];
            (expression.operator == "In").then_some(&expression.values[..])
        }
        _ => None,
    };
    values.into_iter().flatten().map(String::as_str)
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
