//! Events, metrics and log lines about disruption.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use karpenter_api::v1::{ConsolidationPolicy, DisruptionReason, NodeClaim};
use karpenter_api::{events, labels};
use karpenter_core::cluster::NodeState;
use karpenter_core::disruption::consolidation::balanced::{K, PoolScore, THRESHOLD};
use karpenter_core::disruption::{
    Candidate, Command, CommandInvalidated, Decision, DisruptionPlan, Method, NotConsolidatable,
    NotDisruptable, VerdictKind,
};
use karpenter_core::lifecycle::disruption::{CommandEnd, Report};
use serde_json::json;

use crate::context::Context;
use crate::events::{Event, reference};
use crate::logging;
use crate::model::View;
use crate::node::protection;
use crate::nodeclaim::removal::termination_mode;

/// How long the same verdict on consolidation is not repeated.
const UNCONSOLIDATABLE_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// How long the same blocking budget is not repeated.
const BLOCKED_BUDGET_INTERVAL: Duration = Duration::from_secs(60);
/// How many instance types of a replacement a log line names.
const NAMED_TYPES: usize = 5;

/// Reports what the process reports.
pub(super) fn report(cx: &Context, view: &View, report: Report) {
    match report {
        Report::Proposed(command) => proposed(cx, view, &command),
        Report::Starting(command) => starting(&command),
        Report::Started(command, replacements) => {
            started(cx, &command);
            if let Some(listener) = &cx.listener {
                listener.started(&cx.view(), &command, &replacements);
            }
        }
        Report::Waiting(replacement, method) => waiting(cx, &replacement, method),
        Report::Terminating(command, candidate) => terminating(cx, view, &command, &candidate),
        Report::Ended(command, end) => {
            if !matches!(end, CommandEnd::Succeeded | CommandEnd::NotStarted) {
                failed(cx, &command, &end.to_string(), end.unready());
            }
            if let Some(listener) = &cx.listener {
                listener.ended(&command.id(), &end);
            }
        }
    }
}

/// Returns the reason in the spelling of the metrics: `Underutilized` is `underutilized`.
pub(super) fn reason(method: Method) -> &'static str {
    match method {
        Method::Emptiness => "empty",
        Method::StaticDrift | Method::Drift => "drifted",
        Method::MultiNode | Method::SingleNode => "underutilized",
    }
}

/// Returns the policy in the spelling of the metrics: `WhenEmptyOrUnderutilized` is `when_empty_or_underutilized`.
fn snake(policy: &str) -> String {
    let mut label = String::with_capacity(policy.len() + 4);
    for (at, c) in policy.char_indices() {
        if c.is_ascii_uppercase() && at > 0 {
            label.push('_');
        }
        label.push(c.to_ascii_lowercase());
    }
    label
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map(|first| first.to_uppercase().chain(chars).collect())
        .unwrap_or_default()
}

/// Returns references to the Node and the NodeClaim of a node.
fn objects(view: &View, node_state: &NodeState) -> Vec<ObjectReference> {
    let node = node_state.node.as_ref().and_then(|n| view.node(&n.name));
    let node = node.map(|node| reference(&**node));
    let claim = node_state.claim.as_ref().map(|claim| reference(&**claim));
    node.into_iter().chain(claim).collect()
}

fn publish(
    cx: &Context,
    view: &View,
    node_state: &NodeState,
    event: impl Fn(ObjectReference) -> Event,
) {
    for about in objects(view, node_state) {
        cx.recorder.publish(event(about).dedupe_by_message());
    }
}

/// Reports the result of a pass. Without `consolidated`, consolidation was not planned.
pub(super) fn planned(cx: &Context, view: &View, plan: &DisruptionPlan, consolidated: bool) {
    let metrics = &cx.metrics;
    for (method, took) in &plan.took {
        let consolidation = matches!(method, Method::MultiNode | Method::SingleNode);
        if consolidated || !consolidation {
            metrics
                .voluntary_disruption_decision_evaluation_duration_seconds
                .observe(
                    &[reason(*method), method.consolidation_type()],
                    took.as_secs_f64(),
                );
        }
    }
    for (method, eligible) in &plan.eligible {
        // Both kinds of drift share a series; so do both kinds of consolidation, with the same candidates.
        let eligible = match method {
            Method::StaticDrift => continue,
            Method::Drift => {
                eligible
                    + plan
                        .eligible
                        .get(&Method::StaticDrift)
                        .copied()
                        .unwrap_or(0)
            }
            _ => *eligible,
        };
        metrics
            .voluntary_disruption_eligible_nodes
            .set(&[reason(*method)], eligible as f64);
    }
    if consolidated {
        for method in &plan.timed_out {
            metrics
                .voluntary_disruption_consolidation_timeouts_total
                .inc(&[method.consolidation_type()]);
        }
    }
    budgets(cx, view, plan);
    for verdict in &plan.verdicts {
        match &verdict.kind {
            VerdictKind::NotDisruptable(why) if why.is_reported() => {
                if let NotDisruptable::PodDoNotDisrupt { .. } = why {
                    let pods = view.pods_on(verdict.node.name());
                    pods.iter().for_each(|pod| protection::report(cx, pod));
                }
                let message = capitalized(&why.to_string());
                publish(cx, view, &verdict.node, |about| {
                    Event::normal(about, events::DISRUPTION_BLOCKED, message.clone())
                });
            }
            VerdictKind::Kept(why) => {
                if let NotConsolidatable::Score { score, .. } = why {
                    let pool = verdict.node.node_pool().unwrap_or_default();
                    let policy = ConsolidationPolicy::Balanced;
                    count_move(cx, "rejected", pool, &policy, Some(*score));
                }
                if why.is_reported() {
                    let message = why.to_string();
                    publish(cx, view, &verdict.node, |about| {
                        Event::normal(about, events::UNCONSOLIDATABLE, message.clone())
                            .every(UNCONSOLIDATABLE_INTERVAL)
                    });
                }
            }
            _ => {}
        }
    }
}

fn budgets(cx: &Context, view: &View, plan: &DisruptionPlan) {
    let (mut allowed, mut consuming) = (Vec::new(), Vec::new());
    for (reason, budgets) in &plan.budgets {
        for (name, budget) in budgets.iter() {
            let series = vec![name.to_owned(), reason.clone()];
            allowed.push((series.clone(), f64::from(budget.allowed)));
            consuming.push((series, f64::from(budget.consuming)));
            // A pause has an event of its own.
            if budget.nodes > 0
                && budget.allowed == 0
                && budgets.pause(name).is_none()
                && let Some(pool) = view.node_pool(name)
            {
                let message = format!(
                    "No allowed disruptions for disruption reason {reason} due to blocking budget"
                );
                let event = Event::normal(reference(&**pool), events::DISRUPTION_BLOCKED, message);
                cx.recorder
                    .publish(event.dedupe_by_message().every(BLOCKED_BUDGET_INTERVAL));
            }
        }
    }
    let metrics = &cx.metrics;
    metrics.nodepools_allowed_disruptions.replace_all(allowed);
    metrics
        .nodepools_nodes_consuming_budgets
        .replace_all(consuming);
}

/// Counts a move that was evaluated in a NodePool; with its score if the pool's policy uses scores.
fn count_move(
    cx: &Context,
    decision: &str,
    pool: &str,
    policy: &ConsolidationPolicy,
    score: Option<f64>,
) {
    let series = [decision, pool, policy.as_str()];
    cx.metrics.consolidation_moves_total.inc(&series);
    if let Some(score) = score {
        cx.metrics.consolidation_score.observe(&series, score);
    }
}

/// Reports a proposed command, which is validated before it is executed.
fn proposed(cx: &Context, view: &View, command: &Command) {
    if command.decision() == Decision::Replace {
        let message = format!("{command} (savings: ${:.2})", command.savings);
        for candidate in &command.candidates {
            publish(cx, view, &candidate.node, |about| {
                Event::normal(about, events::CONSOLIDATION_CANDIDATE, message.clone())
            });
        }
    }
    if !matches!(command.method, Method::MultiNode | Method::SingleNode) {
        return;
    }
    let mut reported = BTreeSet::new();
    for candidate in &command.candidates {
        let pool = candidate.pool_name();
        if !reported.insert(pool) {
            continue;
        }
        let policy = &candidate.node_pool.spec.disruption.consolidation_policy;
        let score = command.scores.iter().find(|of| of.node_pool == pool);
        count_move(cx, "approved", pool, policy, score.map(|of| of.score));
        let Some(score) = score else { continue };
        let message = approval(score);
        let event = |about| Event::normal(about, events::CONSOLIDATION_APPROVED, message.clone());
        if command.method == Method::MultiNode {
            let pool = reference(&*candidate.node_pool);
            cx.recorder.publish(event(pool).dedupe_by_message());
        } else {
            publish(cx, view, &candidate.node, event);
        }
    }
}

/// Returns why a move is approved in a NodePool with the policy Balanced.
fn approval(of: &PoolScore) -> String {
    format!(
        "score {:.2} >= threshold {THRESHOLD:.2} (k: {K:.0}, savings: {:.1}%, disruption: {:.1}%)",
        of.score,
        of.savings * 100.0,
        of.disruption * 100.0
    )
}

/// Reports a proposal that is not valid any more.
pub(super) fn rejected(cx: &Context, view: &View, command: &Command, why: &CommandInvalidated) {
    dropped(cx, command.method, command.candidates.len());
    if command.method == Method::Emptiness {
        return;
    }
    let message = format!(
        "{command}, reason: {why} (savings: ${:.2})",
        command.savings
    );
    for candidate in &command.candidates {
        publish(cx, view, &candidate.node, |about| {
            Event::normal(about, events::CONSOLIDATION_REJECTED, message.clone())
        });
    }
}

/// Counts candidates of a proposal that failed validation.
pub(super) fn dropped(cx: &Context, method: Method, candidates: usize) {
    cx.metrics
        .voluntary_disruption_failed_validations_total
        .add(&[method.consolidation_type()], candidates as f64);
}

/// Logs a command that is being started. Older versions put its text into the message: `disrupting via drift replace,
/// terminating …`.
fn starting(command: &Command) {
    let disrupted: Vec<_> = command
        .candidates
        .iter()
        .map(|c| {
            json!({
                "Node": {"name": c.name()},
                "NodeClaim": {"name": c.claim_name()},
                "capacity-type": c.capacity_type(),
                "instance-type": c.instance_type_name(),
            })
        })
        .collect();
    let replacements: Vec<_> = command
        .replacements
        .iter()
        .map(|planned| {
            json!({
                "NodePool": {"name": planned.node_pool},
                "instance-types": logging::shortened(&planned.instance_types, NAMED_TYPES),
            })
        })
        .collect();
    tracing::info!(
        command = %command,
        reason = reason(command.method),
        decision = command.decision().as_str(),
        "disrupted-node-count" = disrupted.len(),
        "replacement-node-count" = replacements.len(),
        "pod-count" = command.pods().count(),
        "disrupted-nodes" = logging::json(&disrupted),
        "replacement-nodes" = logging::json(&replacements),
        "disrupting node(s)"
    );
}

/// Counts a command that was started.
fn started(cx: &Context, command: &Command) {
    let (decision, reason) = (command.decision().as_str(), reason(command.method));
    let kind = command.method.consolidation_type();
    cx.metrics
        .voluntary_disruption_decisions_total
        .inc(&[decision, reason, kind]);
    let mut pools: Vec<&str> = command
        .candidates
        .iter()
        .map(Candidate::pool_name)
        .collect();
    pools.sort_unstable();
    pools.dedup();
    for pool in pools {
        cx.metrics
            .voluntary_disruption_decisions_by_nodepool_total
            .inc(&[decision, reason, kind, pool]);
    }
}

/// Publishes that a command waits for a replacement.
fn waiting(cx: &Context, replacement: &NodeClaim, method: Method) {
    let why: DisruptionReason = method.reason();
    let launching = format!("Launching NodeClaim: {}", why.as_str());
    let waiting = "Waiting on readiness to continue disruption".to_owned();
    for (reason, message) in [
        (events::DISRUPTION_LAUNCHING, launching),
        (events::DISRUPTION_WAITING_READINESS, waiting),
    ] {
        let event = Event::normal(reference(replacement), reason, message);
        cx.recorder.publish(event.dedupe_by_message());
    }
}

/// Publishes that the NodeClaim of a candidate was deleted.
fn terminating(cx: &Context, view: &View, command: &Command, candidate: &Candidate) {
    let why = command.method.reason();
    for about in objects(view, &candidate.node) {
        let kind = about.kind.clone().unwrap_or_default();
        let message = format!("Disrupting {kind}: {}", why.as_str());
        let event = Event::normal(about, events::DISRUPTION_TERMINATING, message);
        cx.recorder.publish(event.dedupe_by_message());
    }
    let policy = if command.method.is_eventual() {
        String::new()
    } else {
        let policy = &candidate.node_pool.spec.disruption.consolidation_policy;
        snake(policy.as_str())
    };
    let capacity_type = candidate.claim.label(labels::CAPACITY_TYPE);
    let series = [
        reason(command.method),
        candidate.pool_name(),
        capacity_type.unwrap_or_default(),
        &policy,
        termination_mode(&candidate.claim),
    ];
    cx.metrics.nodeclaims_disrupted_total.inc(&series);
    cx.metrics
        .pods_disruption_initiated_total
        .add(&series, candidate.reschedulable().count() as f64);
}

/// Logs and counts a command that was rolled back: `unready` of its replacements were never initialized.
fn failed(cx: &Context, command: &Command, why: &str, unready: usize) {
    tracing::error!(
        command = %command,
        reason = reason(command.method),
        error = why,
        "failed terminating nodes while executing a disruption command"
    );
    let series = [
        command.decision().as_str(),
        reason(command.method),
        command.method.consolidation_type(),
    ];
    cx.metrics
        .voluntary_disruption_queue_failures_total
        .add(&series, unready as f64);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: API-173
    #[test]
    fn policies_are_spelt_in_snake_case() {
        assert_eq!(
            snake("WhenEmptyOrUnderutilized"),
            "when_empty_or_underutilized"
        );
        assert_eq!(snake("Balanced"), "balanced");
    }

    #[test]
    fn messages_of_blocked_nodes_are_capitalized() {
        assert_eq!(
            capitalized("node isn't initialized"),
            "Node isn't initialized"
        );
        assert_eq!(capitalized(""), "");
    }

    /// Conformance: API-193
    #[test]
    fn an_approval_shows_score_savings_and_disruption() {
        let of = PoolScore {
            node_pool: "default".into(),
            score: 1.6,
            savings: 0.4,
            disruption: 0.25,
        };
        assert_eq!(
            approval(&of),
            "score 1.60 >= threshold 0.50 (k: 2, savings: 40.0%, disruption: 25.0%)"
        );
    }
}
