//! When NodePools may disrupt their nodes.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp, ToSpan};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::cron::Schedule;
use karpenter_api::duration::format as duration_text;
use karpenter_api::v1::{Budget, DisruptionReason};
use serde_json::json;

use super::check::{Check, Severity};
use super::finding::{Draft, Release, Subject};
use super::scan::{Pool, Scan};

/// How far ahead budgets are checked. A month has every weekly and daily window.
const DAYS: i64 = 32;
/// Windows that are checked; further ones are assumed to be like them.
const MAX_WINDOWS: usize = 50_000;
/// The least lifetime of a node, as a multiple of its start time.
const STARTS: i32 = 10;

pub(super) fn check(scan: &Scan<'_>, found: &mut Vec<Draft>) {
    for pool in scan.pools() {
        let nodes = scan.nodes();
        let nodes = nodes.filter(|(node, _)| node.node_pool() == Some(pool.name()));
        let nodes: BTreeSet<String> = nodes.map(|(node, _)| node.name().to_owned()).collect();
        found.extend(
            never_allows(scan, pool).map(|(draft, release)| draft.keeps(nodes.clone(), release)),
        );
        if pool
            .pool
            .spec
            .disruption
            .consolidate_after
            .value()
            .is_none()
            && !pool.pool.is_static()
        {
            found.push(never_consolidates(pool, nodes));
        }
        found.extend(expires_soon(scan, pool));
    }
}

/// Finds budgets that never allow a disruption, and returns what releases its nodes.
fn never_allows(scan: &Scan<'_>, pool: &Pool<'_>) -> Option<(Draft, Release)> {
    let budgets = &pool.pool.spec.disruption.budgets;
    let closed = REASONS
        .into_iter()
        .filter(|reason| never_opens(budgets, reason, scan.now));
    let closed: Vec<DisruptionReason> = closed.collect();
    let drifts = closed.contains(&DisruptionReason::Drifted);
    // A static NodePool does not consolidate.
    let consolidates = closed
        .iter()
        .any(|reason| *reason != DisruptionReason::Drifted);
    if !drifts && (!consolidates || pool.pool.is_static()) {
        return None;
    }
    let name = pool.name();
    let reasons: Vec<&str> = closed.iter().map(DisruptionReason::as_str).collect();
    let updates = match drifts {
        true => " Nodes are not updated to new images or settings either.",
        false => "",
    };
    let draft = Draft {
        severity: Severity::blocks_if(consolidates),
        what: format!("NodePool {name} never allows a disruption for {}", reasons.join(", ")),
        why: format!("Its disruption budgets allow 0 nodes now and at any time of the next {DAYS} days.{updates}"),
        fix: "Give a budget that allows 0 nodes a schedule and a duration, so that there is a window outside of it.".into(),
        subjects: [Subject::pool(pool)].into(),
        ..Draft::of(Check::BudgetNeverOpens, json!({ "nodePool": name, "reasons": reasons, "days": DAYS }))
    };
    let release = Release::Pool {
        pool: name.to_owned(),
        reasons: closed,
        is_policy: false,
    };
    Some((draft, release))
}

fn never_consolidates(pool: &Pool<'_>, nodes: BTreeSet<String>) -> Draft {
    let name = pool.name();
    let release = Release::Pool {
        pool: name.to_owned(),
        reasons: vec![DisruptionReason::Empty, DisruptionReason::Underutilized],
        is_policy: true,
    };
    let draft = Draft {
        what: format!("NodePool {name} never removes nodes that are not needed"),
        why: "It has consolidateAfter: Never. Empty nodes and nodes whose pods would fit elsewhere are kept and paid for.".into(),
        fix: "Set spec.disruption.consolidateAfter to a duration, such as 5m.".into(),
        subjects: [Subject::pool(pool)].into(),
        ..Draft::of(Check::ConsolidationNever, json!({ "nodePool": name }))
    };
    draft.keeps(nodes, release)
}

const REASONS: [DisruptionReason; 3] = [
    DisruptionReason::Drifted,
    DisruptionReason::Empty,
    DisruptionReason::Underutilized,
];

/// A budget that allows no node while it is active.
struct Closed {
    /// `None`: always active.
    window: Option<(Schedule, SignedDuration)>,
}

impl Closed {
    /// Returns the end of the window that is open at `time`, or `None` outside of windows. Windows merge.
    fn until(&self, time: Timestamp) -> Option<Timestamp> {
        let Some((schedule, duration)) = &self.window else {
            return Some(Timestamp::MAX);
        };
        let earliest = time.saturating_sub(*duration).unwrap_or(Timestamp::MIN);
        let hit = schedule.next(earliest).filter(|hit| *hit <= time)?;
        Some(hit.saturating_add(*duration).unwrap_or(Timestamp::MAX))
    }
}

/// Reports whether budgets allow no disruption for a reason from now on for a month.
fn never_opens(budgets: &[Budget], reason: &DisruptionReason, now: Timestamp) -> bool {
    // An invalid budget allows nothing for the reasons that it covers.
    let closed: Vec<Closed> = budgets
        .iter()
        .filter(|budget| budget.covers(reason))
        .filter(|budget| budget.value(100).unwrap_or(0) == 0)
        .map(|budget| {
            let schedule = budget.schedule.as_deref().map(str::parse::<Schedule>);
            let duration = budget.duration.as_ref().map(|it| it.value());
            let window = match (schedule, duration) {
                (Some(Ok(schedule)), duration) => Some((schedule, duration.unwrap_or_default())),
                _ => None,
            };
            Closed { window }
        })
        .collect();
    let end = now.saturating_add((24 * DAYS).hours());
    let end = end.unwrap_or(Timestamp::MAX);
    let mut time = now;
    for _ in 0..MAX_WINDOWS {
        let until = closed.iter().filter_map(|it| it.until(time)).max();
        match until {
            None => return false,
            Some(until) if until >= end => return true,
            Some(until) => time = until,
        }
    }
    true
}

/// Finds a lifetime that is shorter than the grace period of termination, or than ten starts of a node.
fn expires_soon(scan: &Scan<'_>, pool: &Pool<'_>) -> Option<Draft> {
    let spec = &pool.pool.spec.template.spec;
    let expires = spec.expire_after.value()?;
    let grace = spec.termination_grace_period.as_ref().map(|it| it.value());
    let starts = median_start(scan, pool.name()).map(|start| start * STARTS);
    let grace = grace.map(|grace| (grace, "the terminationGracePeriod"));
    let starts = starts.map(|starts| (starts, "ten times what a node takes to start"));
    let (than, of) = [grace, starts]
        .into_iter()
        .flatten()
        .filter(|(than, _)| expires < *than)
        .max_by_key(|(than, _)| *than)?;
    let (name, than, expires) = (pool.name(), duration_text(than), duration_text(expires));
    Some(Draft {
        what: format!("nodes of NodePool {name} live for {expires} only"),
        why: format!("That is shorter than {of} ({than}): its pods are restarted over and over."),
        fix: "Raise expireAfter.".into(),
        subjects: [Subject::pool(pool)].into(),
        ..Draft::of(
            Check::ExpireAfterShort,
            json!({ "nodePool": name, "expireAfter": expires, "than": than, "of": of }),
        )
    })
}

/// Returns the median time from the creation of a NodeClaim until its node is initialized.
fn median_start(scan: &Scan<'_>, pool: &str) -> Option<SignedDuration> {
    let claims = scan.snapshot.node_claims_of_pool(pool);
    let starts = claims.filter_map(|claim| {
        let initialized = claim.condition(types::INITIALIZED)?;
        let created = claim.metadata.creation_timestamp.as_ref()?;
        (initialized.status == "True")
            .then(|| initialized.last_transition_time.0.duration_since(created.0))
    });
    let mut starts: Vec<SignedDuration> = starts.collect();
    starts.sort();
    starts.get(starts.len() / 2).copied()
}
