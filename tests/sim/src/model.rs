//! Compares the controllers' model with one that is built from the current objects.

use std::collections::BTreeMap;

use karpenter_core::cluster::Snapshot;
use karpenter_kube::model::{Kinds, Model, View, spawn_watchers};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::driver::Simulation;

/// The model keeps the newest pod of a DaemonSet even after it was deleted with the last node: the next node will run such a pod.
const REMEMBERED: &str = "newest pod of ";

/// Returns the differences between the two. The cluster must have converged.
pub(crate) async fn differs(sim: &Simulation) -> Vec<String> {
    let Some(cx) = sim.context().await else {
        return vec!["the controllers are not running".to_owned()];
    };
    let kinds = Kinds {
        node_classes: cx.provider.profile().node_classes.clone(),
        devices: !cx.options.ignore_dra_requests,
        ..Kinds::default()
    };
    let config = cx.view().snapshot.config().clone();
    let (model, handle) = Model::new(config, &kinds.awaited());
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    tasks.spawn(model.run(stop.clone()));
    spawn_watchers(&sim.client, &kinds, &handle, &cx.recorder, &tasks, &stop);
    let mut changes = handle.changes();
    while !handle.view().is_synced() {
        if changes.changed().await.is_err() {
            return vec!["the rebuilt model has stopped".to_owned()];
        }
    }
    let (known, actual) = (facts(&cx.view()), facts(&handle.view()));
    stop.cancel();
    let mut problems = Vec::new();
    for (what, fact) in &actual {
        match known.get(what) {
            None => problems.push(format!("the model lacks {what}")),
            Some(belief) if belief != fact => {
                problems.push(format!("the model has {what} as {belief}; actual: {fact}"));
            }
            Some(_) => {}
        }
    }
    let deleted = known.keys().filter(|what| !actual.contains_key(*what));
    for what in deleted.filter(|what| !what.starts_with(REMEMBERED)) {
        problems.push(format!("the model has {what}, which does not exist"));
    }
    problems
}

fn facts(view: &View) -> BTreeMap<String, String> {
    let mut facts = engine_facts(&view.snapshot);
    for node in view.nodes() {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        facts.insert(format!("object node {name}"), format!("{node:?}"));
        for claim in view.node_claims_of(node) {
            facts.insert(format!("claim of node {name}"), claim.name().to_owned());
        }
    }
    for pool in view.snapshot.node_pools() {
        let claims = view.node_claims_of_pool(pool.name());
        let names: Vec<&str> = claims.iter().map(|c| c.name()).collect();
        facts.insert(format!("claims of pool {}", pool.name()), names.join(" "));
    }
    facts
}

fn engine_facts(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    for pod in snapshot.pods() {
        facts.insert(format!("pod {}", pod.key), format!("{pod:?}"));
    }
    for (node, pods) in snapshot.bound_pods() {
        facts.insert(format!("pods on {node}"), format!("{pods:?}"));
    }
    for pod in snapshot.unbound_pods() {
        facts.insert(format!("unbound {}", pod.key), String::new());
    }
    for node_state in snapshot.nodes() {
        // Nominations and deletion marks are the controllers' own.
        let (node, claim) = (&node_state.node, &node_state.claim);
        let name = node_state.name().to_owned();
        facts.insert(
            format!("state of node {name}"),
            format!("{node:?} {claim:?} {}", node_state.managed),
        );
        if node_state.marked_for_deletion {
            facts.insert(format!("mark of {name}"), "marked".to_owned());
        }
    }
    for pool in snapshot.node_pools() {
        facts.insert(format!("pool {}", pool.name()), format!("{pool:?}"));
    }
    for pdb in snapshot.pdbs() {
        let name = pdb.metadata.name.as_deref().unwrap_or_default();
        facts.insert(format!("pdb {name}"), format!("{pdb:?}"));
    }
    for (set, pod) in snapshot.daemon_sets() {
        facts.insert(format!("daemonset {set:?}"), String::new());
        if let Some(pod) = pod {
            let what = format!("{REMEMBERED}{}/{}", set.namespace, set.name);
            facts.insert(what, format!("{:?}", pod.shape));
        }
    }
    facts
}
