//! Metrics about the cluster model.

use std::sync::Arc;

use super::series::with;
use crate::context::Context;
use crate::metrics::Emit;

pub(super) fn register(cx: &Arc<Context>) {
    let registry = &cx.metrics.registry;
    let count = |cx: &Context, emit: &mut Emit<'_>| {
        emit.set(&[], cx.view().snapshot.nodes().count() as f64);
    };
    let synced = |cx: &Context, emit: &mut Emit<'_>| {
        emit.set(&[], f64::from(u8::from(cx.view().is_synced())));
    };
    let unsynced = |cx: &Context, emit: &mut Emit<'_>| {
        let since = cx.acting.since().filter(|_| !cx.view().is_synced());
        let waited = since.map_or(0.0, |since| cx.clock.since(since).as_secs_f64());
        emit.set(&[], waited);
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
