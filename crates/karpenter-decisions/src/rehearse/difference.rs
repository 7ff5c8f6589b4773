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
    let name = |name: &'_ String| match is_planned(name) {
        true => "+".to_owned(),
        false => name.clone(),
    };
    let nodes: Vec<String> = step.nodes.iter().map(name).collect();
    let launch = |it: &Launch| {
        let kinds = [&it.node_pool, &it.instance_type, &it.capacity_type];
        (it.count, kinds.map(String::clone))
    };
    let launches: Vec<_> = step.launches.iter().map(launch).collect();
    format!("{:?} {} {nodes:?} {launches:?}", step.action, step.reason)
}
