//! What the changes of a rehearsal do: the rehearsal less its unchanged twin.

use std::collections::BTreeMap;

use super::plan::{Difference, Launch, Step, is_planned};
use super::stepper::Outcome;
use crate::prices::dollars;

/// Returns what the changes do.
pub(super) fn between(changed: &Outcome, unchanged: &Outcome) -> Difference {
    let less = |a: usize, b: usize| {
        let signed = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        signed(a) - signed(b)
    };
    let (after, before) = (&changed.after, &unchanged.after);
    let price = changed.micro_dollars - unchanged.micro_dollars;
    Difference {
        differs: changed.steps != unchanged.steps
            || changed.curve != unchanged.curve
            || changed.evictions != unchanged.evictions
            || after != before,
        nodes: less(after.nodes, before.nodes),
        price_per_hour: dollars(price),
        pending: less(after.pending, before.pending),
        evictions: less(changed.evictions.total, unchanged.evictions.total),
        only_changed: without(&changed.steps, &unchanged.steps),
        only_unchanged: without(&unchanged.steps, &changed.steps),
    }
}

/// Returns the steps of `these` that are not in `those`, whenever they happen.
fn without(these: &[Step], those: &[Step]) -> Vec<Step> {
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for step in those {
        *known.entry(signature(step)).or_default() += 1;
    }
    let is_new = |step: &&Step| match known.get_mut(&signature(step)) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    };
    these.iter().filter(is_new).cloned().collect()
}

/// Identifies a step without its time. Names that the rehearsal gave are left out, because they differ between two rehearsals.
fn signature(step: &Step) -> String {
    let nodes: Vec<&str> = step
        .nodes
        .iter()
        .map(|name| if is_planned(name) { "+" } else { name.as_str() })
        .collect();
    let launches: Vec<(&str, usize, &str, &str)> = step
        .launches
        .iter()
        .map(|launch| {
            let Launch {
                node_pool,
                count,
                instance_type,
                capacity_type,
                ..
            } = launch;
            (
                node_pool.as_str(),
                *count,
                instance_type.as_str(),
                capacity_type.as_str(),
            )
        })
        .collect();
    format!("{:?} {} {nodes:?} {launches:?}", step.action, step.reason)
}
