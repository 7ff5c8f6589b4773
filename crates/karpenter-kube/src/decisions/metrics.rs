//! Metrics of reasons: derived from model and history at each scrape.

use std::sync::Arc;

use karpenter_decisions::groups::{ReasonGroup, kept_nodes, pending_pods};

use crate::context::Context;
use crate::metrics::Emit;
use crate::observability::with;

/// Registers the metrics, if the feature gate is on.
pub fn register(cx: &Arc<Context>) {
    if cx.decisions.is_none() {
        return;
    }
    let registry = &cx.metrics.registry;
    registry.live(
        "karpenter_decisions_pods_pending",
        "Pending pods, by the reason why they are pending.",
        &["reason"],
        with(cx, pods),
    );
    registry.live(
        "karpenter_decisions_nodes_kept",
        "Nodes that are not disrupted, by the reason of the last disruption pass.",
        &["nodepool", "reason"],
        with(cx, |cx, emit| nodes(cx, emit, |group| group.count as f64)),
    );
    registry.live(
        "karpenter_decisions_nodes_kept_cost",
        "Price of nodes that are not disrupted in dollars per hour, by the reason of the last disruption pass.",
        &["nodepool", "reason"],
        with(cx, |cx, emit| {
            nodes(cx, emit, |group| group.price_per_hour.unwrap_or_default());
        }),
    );
    registry.live(
        "karpenter_blockers",
        "What blocks nodes, or may soon: the number of findings of each check of the latest report.",
        &["check"],
        with(cx, |cx, emit| blockers(cx, emit, |(count, _)| count as f64)),
    );
    registry.live(
        "karpenter_blockers_cost_per_day",
        "Savings in dollars per day that the findings of each check block, by the latest report.",
        &["check"],
        with(cx, |cx, emit| blockers(cx, emit, |(_, cost)| cost)),
    );
}

fn blockers(cx: &Context, emit: &mut Emit<'_>, value: impl Fn((usize, f64)) -> f64) {
    let decisions = cx.decisions.as_ref();
    let Some(report) = decisions.and_then(|decisions| decisions.doctor.latest()) else {
        return;
    };
    for (check, found) in report.by_check() {
        emit.set(&[check], value(found));
    }
}

fn pods(cx: &Context, emit: &mut Emit<'_>) {
    let Some(decisions) = &cx.decisions else {
        return;
    };
    let groups = pending_pods(&cx.view().snapshot, &decisions.so_far());
    for (reason, group) in groups {
        emit.set(&[reason], group.count as f64);
    }
}

fn nodes(cx: &Context, emit: &mut Emit<'_>, value: impl Fn(&ReasonGroup) -> f64) {
    let Some(decisions) = &cx.decisions else {
        return;
    };
    let groups = kept_nodes(&cx.view().snapshot, &decisions.so_far());
    for ((pool, reason), group) in groups {
        emit.set(&[&pool, reason], value(&group));
    }
}
