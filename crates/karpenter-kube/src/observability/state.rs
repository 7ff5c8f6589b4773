//! Metrics about the cluster model.

use std::sync::Arc;

use super::with;
use crate::context::Context;
use crate::metrics::Emit;

pub(super) fn register(cx: &Arc<Context>) {
    let registry = &cx.metrics.registry;
    let started = cx.clock.now();
    let count = |cx: &Context, emit: &mut Emit<'_>| {
        emit.set(&[], cx.view().snapshot.nodes().count() as f64);
    };
    let synced = |cx: &Context, emit: &mut Emit<'_>| {
        emit.set(&[], f64::from(u8::from(cx.view().is_synced())));
    };
    let unsynced = move |cx: &Context, emit: &mut Emit<'_>| {
        let waited = cx.clock.since(started).as_secs_f64();
        emit.set(&[], if cx.view().is_synced() { 0.0 } else { waited });
    };
    registry.live(
        "karpenter_cluster_state_node_count",
        "Nodes in the cluster model.",
        &[],
        with(cx, count),
    );
    registry.live(
        "karpenter_cluster_state_synced",
        "1 while the cluster model is in sync.",
        &[],
        with(cx, synced),
    );
    registry.live(
        "karpenter_cluster_state_unsynced_time_seconds",
        "How long the cluster model has been out of sync.",
        &[],
        with(cx, unsynced),
    );
}
