//! Compares the controllers' model with one that is built from the current objects.

use std::collections::BTreeSet;

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
    let wrong = known.difference(&actual);
    let wrong = wrong.filter(|fact| !fact.starts_with(REMEMBERED));
    let wrong = wrong.map(|fact| format!("the model has {fact}, which is not so"));
    let missing = actual.difference(&known);
    let missing = missing.map(|fact| format!("the model lacks {fact}"));
    wrong.chain(missing).collect()
}

fn facts(view: &View) -> BTreeSet<String> {
    let (snapshot, mut facts) = (&view.snapshot, BTreeSet::new());
    facts.extend(snapshot.pods().map(|it| format!("pod {it:?}")));
    facts.extend(snapshot.bound_pods().map(|it| format!("pods on {it:?}")));
    facts.extend(
        snapshot
            .unbound_pods()
            .map(|it| format!("unbound {}", it.key)),
    );
    facts.extend(snapshot.node_pools().map(|it| format!("pool {it:?}")));
    facts.extend(snapshot.pdbs().map(|it| format!("pdb {it:?}")));
    facts.extend(snapshot.nodes().map(|it| {
        // Nominations are the controllers' own.
        let (node, claim, marked) = (&it.node, &it.claim, it.marked_for_deletion);
        format!("node {node:?} {claim:?} {} {marked}", it.managed)
    }));
    for (set, pod) in snapshot.daemon_sets() {
        facts.insert(format!("daemonset {set:?}"));
        let pod = pod.map(|pod| {
            format!(
                "{REMEMBERED}{}/{}: {:?}",
                set.namespace, set.name, pod.shape
            )
        });
        facts.extend(pod);
    }
    for node in view.nodes() {
        let claims = view.node_claims_of(node);
        let claims: Vec<&str> = claims.iter().map(|it| it.name()).collect();
        facts.insert(format!("{node:?} of {claims:?}"));
    }
    for pool in snapshot.node_pools() {
        let claims = view.node_claims_of_pool(pool.name());
        let claims: Vec<&str> = claims.iter().map(|it| it.name()).collect();
        facts.insert(format!("pool {} with {claims:?}", pool.name()));
    }
    facts
}
