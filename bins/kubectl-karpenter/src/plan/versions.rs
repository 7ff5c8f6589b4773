//! Two versions of Karpenter beside each other, as text for a terminal.

use std::fmt::Write as _;

use karpenter_decisions::rehearse::plan::{Plan, Step, VersionRun, Versions};

use super::text::{details, duration, rate};
use crate::output::grouped;

/// A row of the table: its name, the number, and how it is written.
type Row = (&'static str, fn(&VersionRun) -> f64, fn(f64) -> String);

/// Renders the numbers of both versions, their first difference, and what each rule does alone.
pub(super) fn render(out: &mut String, versions: &Versions, plan: &Plan) {
    for text in &versions.left_out {
        let _ = writeln!(out, "Left out        {text}");
    }
    let Versions {
        from,
        to,
        before,
        after,
        ..
    } = versions;
    let length = duration(plan.seconds);
    let _ = writeln!(
        out,
        "{:<22} {from:>16} {to:>16}",
        format!("Within {length}")
    );
    let rows: [Row; 6] = [
        (
            "Nodes, mean",
            |run| run.nodes,
            |nodes| format!("{nodes:.1}"),
        ),
        ("Price, mean", |run| run.price_per_hour, rate),
        ("Launches", |run| run.launches as f64, number),
        ("Reclaimed nodes", |run| run.reclaimed as f64, number),
        ("Evictions", |run| run.evictions as f64, number),
        (
            "Pending pod seconds",
            |run| run.pending_seconds as f64,
            number,
        ),
    ];
    for (name, value, shown) in rows {
        let (before, after) = (value(before), value(after));
        let change = match before > 0.0 {
            true => format!("{:>+9.1}%", (after / before - 1.0) * 100.0),
            false => String::new(),
        };
        let line = format!(
            "{name:<22} {:>16} {:>16}{change}",
            shown(before),
            shown(after)
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    match &versions.first_difference {
        None => out.push_str("First difference none: both do the same.\n"),
        Some(first) => {
            let rules = match first.rules.as_slice() {
                [] if plan.observed.truncated => "unknown rule".to_owned(),
                [] => "several rules together".to_owned(),
                rules => rules.join(", or "),
            };
            let _ = writeln!(out, "First difference {rules}");
            for (version, step) in [(from, &first.from), (to, &first.to)] {
                let _ = writeln!(
                    out,
                    "  {version:<16} {}",
                    step.as_ref().map_or("nothing more".to_owned(), line)
                );
            }
        }
    }
    let is_alone = versions.rules.iter().any(|rule| rule.run.is_some());
    if is_alone {
        let _ = writeln!(out, "{from} with one rule of {to} alone:");
    } else if !versions.rules.is_empty() {
        out.push_str("Rules in which they differ (--each-rule rehearses each alone):\n");
    }
    for rule in &versions.rules {
        let _ = write!(out, "  {:<42} {:>11} -> {}", rule.rule, rule.from, rule.to);
        if let Some(run) = &rule.run {
            let _ = write!(
                out,
                "{:1$} {2:>7.1} nodes {3:>11}  {4} reclaimed, {5} launched, {6} evictions",
                "",
                11_usize.saturating_sub(rule.to.len()),
                run.nodes,
                rate(run.price_per_hour),
                grouped(run.reclaimed),
                grouped(run.launches),
                grouped(run.evictions)
            );
        }
        out.push('\n');
    }
}

fn number(value: f64) -> String {
    grouped(value as usize)
}

fn line(step: &Step) -> String {
    let (object, more) = details(step);
    let after = duration(step.after);
    format!("+{after} {} {object}   {more}", step.action.as_str())
}
