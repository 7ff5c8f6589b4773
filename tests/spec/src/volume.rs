//! The topology of a pod's volumes, and the volumes it attaches (section 9).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeSelectorTerm, Pod};
use karpenter_api::labels;
use karpenter_core::requirements::{Operator, Requirement, Requirements, Unaliased};

use crate::pod;
use crate::world::World;

/// The constraints of a pod's volumes on its node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Volumes {
    /// The alternative requirements under which all volumes are accessible.
    pub alternatives: Vec<Requirements>,
    /// The claims of attached volumes, by CSI driver.
    pub attached: BTreeMap<String, BTreeSet<String>>,
}

/// Reads the volumes of a pod; returns None if one of them makes the pod unschedulable.
pub(crate) fn volumes(world: &World, pod: &Pod) -> Option<Volumes> {
    let mut volumes = Volumes {
        alternatives: vec![Requirements::new()],
        attached: BTreeMap::new(),
    };
    for volume in pod::spec(pod).volumes.unwrap_or_default() {
        let claim = match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(source), _) => source.claim_name.clone(),
            (None, Some(_)) => format!(
                "{}-{}",
                pod.metadata.name.as_deref().unwrap_or_default(),
                volume.name
            ),
            (None, None) => continue,
        };
        let (alternatives, driver) = claim_topology(world, pod::namespace(pod), &claim)?;
        if let Some(driver) = driver {
            volumes
                .attached
                .entry(driver)
                .or_default()
                .insert(format!("{}/{claim}", pod::namespace(pod)));
        }
        if !alternatives.is_empty() {
            let pairs = volumes
                .alternatives
                .iter()
                .flat_map(|a| alternatives.iter().map(move |b| (a, b)));
            volumes.alternatives = pairs
                .map(|(a, b)| {
                    let mut both = a.clone();
                    both.add_all(b);
                    both
                })
                .collect();
        }
    }
    Some(volumes)
}

type Topology = (Vec<Requirements>, Option<String>);

fn claim_topology(world: &World, namespace: &str, name: &str) -> Option<Topology> {
    let claim = world.volume_claims.iter().find(|claim| {
        claim.metadata.namespace.as_deref() == Some(namespace)
            && claim.metadata.name.as_deref() == Some(name)
    })?;
    let lost = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        == Some("Lost");
    if lost || claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let spec = claim.spec.clone().unwrap_or_default();
    match spec.volume_name.filter(|name| !name.is_empty()) {
        Some(volume) => {
            let bound = claim
                .metadata
                .annotations
                .as_ref()
                .is_some_and(|all| all.contains_key("pv.kubernetes.io/bind-completed"));
            bound.then(|| volume_topology(world, &volume)).flatten()
        }
        None => class_topology(world, &spec.storage_class_name?),
    }
}

fn volume_topology(world: &World, name: &str) -> Option<Topology> {
    let volume = world
        .volumes
        .iter()
        .find(|volume| volume.metadata.name.as_deref() == Some(name))?;
    if volume.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let spec = volume.spec.clone().unwrap_or_default();
    let local = spec.local.is_some() || spec.host_path.is_some();
    let terms = spec
        .node_affinity
        .and_then(|affinity| affinity.required)
        .map(|required| required.node_selector_terms);
    let read = |term: NodeSelectorTerm| {
        let mut all = Requirements::from_node_selector_term(&term, &Unaliased).ok()?;
        let was_empty = all.is_empty();
        if local {
            all.remove(labels::HOSTNAME);
        }
        (!all.is_empty() || (local && !was_empty)).then_some(all)
    };
    let alternatives = terms.into_iter().flatten().filter_map(read).collect();
    let driver = spec.csi.map(|csi| csi.driver);
    Some((
        alternatives,
        driver.or_else(|| {
            spec.aws_elastic_block_store
                .map(|_| "ebs.csi.aws.com".to_owned())
        }),
    ))
}

fn class_topology(world: &World, name: &str) -> Option<Topology> {
    let class = world
        .storage_classes
        .iter()
        .find(|class| class.metadata.name.as_deref() == Some(name))?;
    if class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer") {
        return None;
    }
    let terms = class.allowed_topologies.iter().flatten();
    let alternatives = terms.map(|term| {
        let expressions = term.match_label_expressions.iter().flatten();
        expressions
            .map(|e| Requirement::new(&e.key, Operator::In, e.values.iter().map(String::as_str)))
            .collect()
    });
    let driver = match class.provisioner.as_str() {
        "kubernetes.io/aws-ebs" => "ebs.csi.aws.com",
        other => other,
    };
    Some((alternatives.collect(), Some(driver.to_owned())))
}
