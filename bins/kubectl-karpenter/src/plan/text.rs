//! A plan as text for a terminal.

use std::fmt::Write as _;

use console::{measure_text_width, truncate_str};
use karpenter_decisions::rehearse::plan::{Action, EndedBy, Plan, Step, Totals};
use karpenter_decisions::rehearse::{MAX_EVENTS, MAX_RUNS, MAX_STATIC};

use crate::output::{Layout, escaped, grouped, plural};

/// The number of steps that are shown, unless all are asked for.
const STEPS: usize = 15;

/// Returns dollars per hour: `$61.20/h`.
pub(super) fn rate(dollars: f64) -> String {
    let sign = if dollars < 0.0 { "-" } else { "" };
    let amount = dollars.abs();
    let digits = if amount < 10.0 { 3 } else { 2 };
    let shown = format!("{amount:.digits$}");
    // Less than what is shown is nothing.
    let nothing = shown.bytes().all(|byte| matches!(byte, b'0' | b'.'));
    if nothing {
        "$0.00/h".to_owned()
    } else {
        format!("{sign}${shown}/h")
    }
}

/// Returns a difference with its sign: `+3`, `-1`, `0`.
fn signed(number: i64) -> String {
    match number {
        0 => "0".to_owned(),
        _ => format!("{number:+}"),
    }
}

/// Returns dollars per hour with a sign: `+$0.91/h`.
fn signed_rate(dollars: f64) -> String {
    let shown = rate(dollars);
    match dollars > 0.0 && shown != "$0.00/h" {
        true => format!("+{shown}"),
        false => shown,
    }
}

/// Returns a duration: `45s`, `1m20s`, `2h`, `0s`.
pub(super) fn duration(seconds: i64) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let mut out = String::new();
    for (amount, unit) in [(hours, "h"), (minutes, "m"), (rest, "s")] {
        if amount > 0 {
            let _ = write!(out, "{amount}{unit}");
        }
    }
    match out.is_empty() {
        true => "0s".to_owned(),
        false => out,
    }
}

/// Returns the nodes of a step: at most three names.
fn names(step: &Step) -> String {
    let shown: Vec<&str> = step.nodes.iter().take(3).map(String::as_str).collect();
    match step.nodes.len().saturating_sub(3) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns what a step launches: `2x m7a.4xlarge spot (60 types from $0.22/h)`.
fn launches(step: &Step) -> String {
    let one = |launch: &karpenter_decisions::rehearse::plan::Launch| {
        let types = match launch.instance_types {
            0 | 1 => String::new(),
            more => format!("{more} types from "),
        };
        let place = [launch.capacity_type.as_str(), launch.zone.as_str()];
        let place = place.into_iter().filter(|text| !text.is_empty());
        let place: Vec<&str> = place.collect();
        format!(
            "{}x {} {} ({types}{})",
            launch.count,
            launch.instance_type,
            place.join(" "),
            rate(launch.price_per_hour)
        )
    };
    let all: Vec<String> = step.launches.iter().map(one).collect();
    all.join(", ")
}

/// Returns what a step does, without its time: object and details.
pub(super) fn details(step: &Step) -> (String, String) {
    let launched: usize = step.launches.iter().map(|launch| launch.count).sum();
    match step.action {
        Action::Launch => {
            let pools: Vec<&str> = step
                .launches
                .iter()
                .map(|it| it.node_pool.as_str())
                .collect();
            let mut pools = pools;
            pools.dedup();
            let pods = match step.pods {
                0 => String::new(),
                pods => format!("for {}, ", plural(pods, "pod")),
            };
            let object = format!("{} of {}", plural(launched, "node"), pools.join(", "));
            (object, format!("{pods}{}", launches(step)))
        }
        Action::Delete | Action::Replace => {
            let saves = step.savings_per_hour.unwrap_or_default();
            let saves = match saves < 0.0 {
                true => format!("costs {}", rate(-saves)),
                false => format!("saves {}", rate(saves)),
            };
            let with = match step.launches.is_empty() {
                true => String::new(),
                false => format!(", with {}", launches(step)),
            };
            let pods = plural(step.pods, "pod");
            (
                names(step),
                format!("{}, {pods}, {saves}{with}", step.reason),
            )
        }
    }
}

fn totals(out: &mut String, name: &str, totals: &Totals, more: &str) {
    let line = format!(
        "{name:<15} {:>11}   {:>12}   {:>13}   {} pending{more}",
        plural(totals.nodes, "node"),
        rate(totals.price_per_hour),
        plural(totals.pods, "pod"),
        grouped(totals.pending)
    );
    let _ = writeln!(out, "{}", line.trim_end());
}

/// Returns the first lines: the cluster before and after, and what the change causes.
fn verdict(plan: &Plan) -> String {
    let Some(difference) = &plan.difference else {
        return "Not compared with the unchanged cluster.".to_owned();
    };
    if !difference.differs {
        return match plan.changes.is_empty() {
            true => "No change was given: this is what happens anyway.".to_owned(),
            false => format!("No difference within {}.", duration(plan.seconds)),
        };
    }
    let unchanged = plan.unchanged.as_ref().map(|it| it.after.price_per_hour);
    let share = unchanged.filter(|price| *price > 0.0).map(|price| {
        let percent = difference.price_per_hour / price * 100.0;
        format!(" ({percent:+.1}%)")
    });
    let pending = match difference.pending {
        0 => String::new(),
        more => format!(", {} pending pods", signed(more)),
    };
    format!(
        "{} nodes, {}{}, {} evictions{pending} against the unchanged cluster after {}.",
        signed(difference.nodes),
        signed_rate(difference.price_per_hour),
        share.unwrap_or_default(),
        signed(difference.evictions),
        duration(plan.seconds)
    )
}

/// Renders a plan. `diff` shows only the steps that differ, `wide` all of them.
pub(super) fn render(plan: &Plan, diff: bool, wide: bool, layout: Layout) -> String {
    let mut out = String::new();
    for change in &plan.changes {
        let _ = writeln!(out, "Change          {change}");
    }
    match &plan.versions {
        Some(versions) => super::versions::render(&mut out, versions, plan),
        None => summary(&mut out, plan, wide),
    }
    match (&plan.difference, diff) {
        (Some(difference), true) => {
            let added = difference.only_changed.iter().map(|step| ('+', step));
            let gone = difference.only_unchanged.iter().map(|step| ('-', step));
            let mut all: Vec<(char, &Step)> = added.chain(gone).collect();
            all.sort_by_key(|(_, step)| step.after);
            steps(&mut out, &all, wide);
        }
        // Of two versions, the numbers and the first difference are enough.
        _ if plan.versions.is_some() && !wide => {}
        _ => {
            let all: Vec<(char, &Step)> = plan.steps.iter().map(|step| (' ', step)).collect();
            steps(&mut out, &all, wide);
        }
    }
    for note in &plan.approximate {
        let _ = writeln!(out, "Approximate: {note}");
    }
    if plan.observed.truncated {
        let why = match plan.ended_by {
            Some(EndedBy::Timeout) => "; a longer --timeout may help".to_owned(),
            Some(EndedBy::Runs) => after("runs of the engine", MAX_RUNS),
            Some(EndedBy::Events) => after("events", MAX_EVENTS),
            Some(EndedBy::StaticNodes) => {
                let most = grouped(MAX_STATIC as usize);
                format!(": a static NodePool lacks more than {most} nodes")
            }
            None => String::new(),
        };
        let _ = writeln!(out, "Truncated: the rehearsal ended early{why}.");
    }
    let _ = writeln!(out, "Digest {}", plan.digest.get(..16).unwrap_or_default());
    lines(&out, layout)
}

/// Returns that a rehearsal has at most so much work.
fn after(work: &str, most: usize) -> String {
    let most = grouped(most);
    format!(", after {most} {work}, the most that one may take; a shorter --for may help")
}

/// Renders what a change does, and the nodes that are kept.
fn summary(out: &mut String, plan: &Plan, wide: bool) {
    totals(out, "Now", &plan.before, "");
    if let Some(unchanged) = &plan.unchanged
        && plan.differs()
    {
        totals(out, "Without it", &unchanged.after, "");
    }
    let peak = format!(
        "   peak {}, {} at +{}",
        plural(plan.peak.nodes, "node"),
        rate(plan.peak.price_per_hour),
        duration(plan.peak.after)
    );
    totals(
        out,
        &format!("After {}", duration(plan.seconds)),
        &plan.after,
        &peak,
    );
    let _ = writeln!(out, "The change      {}", verdict(plan));
    if let Some(launched) = &plan.launched {
        let above = launched.price_per_hour / launched.lowest_price_per_hour - 1.0;
        let _ = writeln!(
            out,
            "Launched        {} with --node-overhead-price, at most {:.1}% above the cheapest possible",
            rate(launched.price_per_hour),
            above.max(0.0) * 100.0
        );
    }
    let evictions = &plan.evictions;
    let most = evictions.by_workload.first().map(|most| {
        format!(
            " (p95 per workload {}; most: {} {} of {})",
            evictions.p95, most.workload, most.evictions, most.pods
        )
    });
    let _ = writeln!(
        out,
        "Evictions       {}{}",
        grouped(evictions.total),
        most.unwrap_or_default()
    );
    if !plan.blocked.is_empty() {
        let blocked: Vec<String> = plan
            .blocked
            .iter()
            .take(if wide { usize::MAX } else { 4 })
            .map(|it| {
                format!(
                    "{} {} ({})",
                    it.reason,
                    grouped(it.nodes),
                    rate(it.price_per_hour)
                )
            })
            .collect();
        let _ = writeln!(out, "Kept nodes      {}", blocked.join(", "));
    }
    for used in &plan.budgets {
        let _ = writeln!(
            out,
            "Budgets         NodePool {}: used up or closed for {}",
            used.node_pool,
            duration(used.seconds)
        );
    }
}

fn steps(out: &mut String, all: &[(char, &Step)], wide: bool) {
    let shown = if wide { all.len() } else { STEPS };
    let objects: Vec<String> = all
        .iter()
        .take(shown)
        .map(|(_, step)| details(step).0)
        .collect();
    let width = objects
        .iter()
        .map(|object| measure_text_width(object))
        .max();
    let width = width.unwrap_or_default().min(48);
    for ((sign, step), object) in all.iter().zip(&objects) {
        let padding = width.saturating_sub(measure_text_width(object));
        let _ = writeln!(
            out,
            "{sign} {:>8}  {:<7}  {object}{:padding$}   {}",
            format!("+{}", duration(step.after)),
            step.action.as_str(),
            "",
            details(step).1
        );
    }
    let more = all.len().saturating_sub(shown);
    if more > 0 {
        let _ = writeln!(
            out,
            "  ...       ({} steps; -o wide or -o json for all)",
            grouped(all.len())
        );
    }
}

/// Returns lines without what a terminal would interpret, cut to its width.
fn lines(text: &str, layout: Layout) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let safe = escaped(line);
        match layout.width {
            Some(width) => out.push_str(&truncate_str(&safe, width, "…")),
            None => out.push_str(&safe),
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short_and_have_their_units() {
        assert_eq!(rate(61.2), "$61.20/h");
        assert_eq!(rate(0.2212), "$0.221/h");
        assert_eq!(rate(-0.0001), "$0.00/h");
        assert_eq!(signed_rate(-16.35), "-$16.35/h");
        assert_eq!(signed_rate(0.5), "+$0.500/h");
        assert_eq!(duration(80), "1m20s");
        assert_eq!(duration(7200), "2h");
        assert_eq!(duration(0), "0s");
    }
}
