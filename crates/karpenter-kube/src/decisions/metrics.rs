//! Metrics of reasons: derived from model and history at each scrape.

use std::sync::Arc;

use karpenter_decisions::groups::{ReasonGroup, kept_nodes, pending_pods};

use super::state::Decisions;
use crate::context::Context;
use crate::metrics::Emit;
use crate::observability::with;

/// Registers the metrics.
pub fn register(cx: &Arc<Context>, decisions: &Arc<Decisions>) {
    let registry = &cx.metrics.registry;
    let with = |show: fn(&Context, &Decisions, &mut Emit<'_>)| {
        let decisions = Arc::clone(decisions);
        with(cx, move |cx, emit| show(cx, &decisions, emit))
    };
    registry.live(
        "karpenter_decisions_pods_pending",
        "Pending pods, by the reason why they are pending.",
        &["reason"],
        with(pods),
    );
    registry.live(
        "karpenter_decisions_nodes_kept",
        "Nodes that are not disrupted, by the reason of the last disruption pass.",
        &["nodepool", "reason"],
        with(|cx, of, emit| nodes(cx, of, emit, |group| group.count as f64)),
    );
    registry.live(
        "karpenter_decisions_nodes_kept_cost",
        "Price of nodes that are not disrupted in dollars per hour, by the reason of the last disruption pass.",
        &["nodepool", "reason"],
        with(|cx, of, emit| {
            nodes(cx, of, emit, |group| group.price_per_hour.unwrap_or_default());
        }),
    );
    registry.live(
        "karpenter_blockers",
        "What blocks nodes, or may soon: the number of findings of each check of the latest report.",
        &["check"],
        with(|_, of, emit| blockers(of, emit, |(count, _)| count as f64)),
    );
    registry.live(
        "karpenter_blockers_cost_per_day",
        "Savings in dollars per day that the findings of each check block, by the latest report.",
        &["check"],
        with(|_, of, emit| blockers(of, emit, |(_, cost)| cost)),
    );
}

fn blockers(decisions: &Decisions, emit: &mut Emit<'_>, value: impl Fn((usize, f64)) -> f64) {
    let Some(report) = decisions.doctor.latest() else {
        return;
    };
    for (check, found) in report.by_check() {
        emit.set(&[check], value(found));
    }
}

fn pods(cx: &Context, decisions: &Decisions, emit: &mut Emit<'_>) {
    let groups = pending_pods(&cx.view().snapshot, &decisions.so_far());
    for (reason, group) in groups {
        emit.set(&[reason], group.count as f64);
    }
}

fn nodes(
    cx: &Context,
    decisions: &Decisions,
    emit: &mut Emit<'_>,
    value: impl Fn(&ReasonGroup) -> f64,
) {
    let groups = kept_nodes(&cx.view().snapshot, &decisions.so_far());
    for ((pool, reason), group) in groups {
        emit.set(&[&pool, reason], value(&group));
    }
}
