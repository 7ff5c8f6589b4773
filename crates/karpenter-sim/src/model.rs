//! The controllers' model against one made from the objects as they are now.

use std::collections::BTreeMap;

use karpenter_core::cluster::Snapshot;
use karpenter_kube::model::{Kinds, Model, View, spawn_watchers};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::driver::Simulation;

/// The newest pod of a DaemonSet is known even after it has gone with the last machine: the next machine will carry its like.
const REMEMBERED: &str = "newest pod of ";

/// Says how the two differ. The cluster must be at rest.
pub(crate) async fn differs(sim: &Simulation) -> Vec<String> {
    let Some(cx) = sim.context().await else {
        return vec!["the controllers do not run".to_owned()];
    };
    let kinds = Kinds {
        node_classes: cx.provider.node_classes(),
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
            return vec!["the model made anew has stopped".to_owned()];
        }
    }
    let (known, actual) = (facts(&cx.view()), facts(&handle.view()));
    stop.cancel();
    let mut problems = Vec::new();
    for (what, fact) in &actual {
        match known.get(what) {
            None => problems.push(format!("the model does not know {what}")),
            Some(belief) if belief != fact => {
                problems.push(format!(
                    "the model believes of {what}: {belief}; true is: {fact}"
                ));
            }
            Some(_) => {}
        }
    }
    let gone = known.keys().filter(|what| !actual.contains_key(*what));
    for what in gone.filter(|what| !what.starts_with(REMEMBERED)) {
        problems.push(format!("the model knows {what}, which is gone"));
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
    for machine in snapshot.nodes() {
        // Nominations and marks are the controllers' own.
        let (node, claim) = (&machine.node, &machine.claim);
        let name = machine.name().to_owned();
        facts.insert(
            format!("machine {name}"),
            format!("{node:?} {claim:?} {}", machine.managed),
        );
        if machine.marked_for_deletion {
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
