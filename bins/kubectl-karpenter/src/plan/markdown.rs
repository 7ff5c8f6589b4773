//! A plan as GitHub-flavored Markdown, for a comment on a pull request.

use std::fmt::Write as _;

use karpenter_decisions::rehearse::plan::{Plan, Step, Totals};

use super::text::{count, details, duration, plural, rate, verdict};

/// The number of steps of a table.
const STEPS: usize = 30;

/// Returns text that Markdown shows as it is: in a code span, which nothing ends early.
fn code(text: &str) -> String {
    let safe: String = text
        .chars()
        .map(|c| match c {
            '`' => '\'',
            '|' => '¦',
            c if c.is_control() => ' ',
            c => c,
        })
        .collect();
    match safe.trim() {
        "" => "-".to_owned(),
        shown => format!("`{shown}`"),
    }
}

pub(super) fn render(plan: &Plan) -> String {
    let mut out = String::from("### Karpenter plan\n\n");
    let _ = writeln!(out, "**{}**\n", verdict(plan));
    for change in &plan.changes {
        let _ = writeln!(out, "- {}", code(change));
    }
    if !plan.changes.is_empty() {
        out.push('\n');
    }
    out.push_str("| | Nodes | Price | Pods | Pending | Evictions |\n|---|--:|--:|--:|--:|--:|\n");
    let mut row = |name: &str, totals: &Totals, evictions: Option<usize>| {
        let evictions = evictions.map(count).unwrap_or_default();
        let _ = writeln!(
            out,
            "| {name} | {} | {} | {} | {} | {evictions} |",
            count(totals.nodes),
            rate(totals.price_per_hour),
            count(totals.pods),
            count(totals.pending)
        );
    };
    let after = duration(plan.seconds);
    row("now", &plan.before, None);
    if let Some(unchanged) = &plan.unchanged {
        row(
            &format!("after {after}, unchanged"),
            &unchanged.after,
            Some(unchanged.evictions),
        );
    }
    row(
        &format!("after {after}, with the change"),
        &plan.after,
        Some(plan.evictions.total),
    );
    let _ = writeln!(
        out,
        "\nPeak {}, {} at +{}.",
        plural(plan.peak.nodes, "node"),
        rate(plan.peak.price_per_hour),
        duration(plan.peak.after)
    );
    for used in &plan.budgets {
        let pool = code(&used.node_pool);
        let time = duration(used.seconds);
        let _ = writeln!(
            out,
            "The disruption budgets of NodePool {pool} are used up or closed for {time}."
        );
    }
    if let Some(difference) = plan.difference.as_ref().filter(|it| it.differs) {
        let changed = difference.only_changed.len();
        section(
            &mut out,
            &format!("{} with the change only", plural(changed, "step")),
            &difference.only_changed,
        );
        let unchanged = difference.only_unchanged.len();
        section(
            &mut out,
            &format!("{} without the change only", plural(unchanged, "step")),
            &difference.only_unchanged,
        );
    }
    if !plan.evictions.by_workload.is_empty() {
        let total = plural(plan.evictions.total, "eviction");
        let _ = writeln!(out, "\n<details><summary>{total} by workload</summary>\n");
        out.push_str("| Workload | Evictions | Pods |\n|---|--:|--:|\n");
        for row in plan.evictions.by_workload.iter().take(STEPS) {
            let _ = writeln!(
                out,
                "| {} | {} | {} |",
                code(&row.workload),
                row.evictions,
                row.pods
            );
        }
        out.push_str("\n</details>\n");
    }
    out.push_str("\n<details><summary>What is approximate</summary>\n\n");
    for note in &plan.approximate {
        let _ = writeln!(out, "- {}", code(note));
    }
    out.push_str("\n</details>\n");
    if plan.observed.truncated {
        out.push_str("\n> [!WARNING]\n> The rehearsal ended early: the numbers are those of its last moment.\n");
    }
    let digest = code(plan.digest.get(..16).unwrap_or_default());
    let _ = writeln!(out, "\n<sub>Digest {digest}</sub>");
    out
}

fn section(out: &mut String, title: &str, steps: &[Step]) {
    if steps.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n<details><summary>{title}</summary>\n");
    out.push_str("| After | Action | What | Details |\n|--:|---|---|---|\n");
    for step in steps.iter().take(STEPS) {
        let (object, details) = details(step);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} |",
            duration(step.after),
            step.action.as_str(),
            code(&object),
            code(&details)
        );
    }
    let more = steps.len().saturating_sub(STEPS);
    if more > 0 {
        let _ = writeln!(out, "\n… and {} more", plural(more, "step"));
    }
    out.push_str("\n</details>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_cluster_cannot_end_a_code_span_or_a_table_cell() {
        assert_eq!(code("a`b|c\nd"), "`a'b¦c d`");
        assert_eq!(code(" \n"), "-");
        assert_eq!(code("<img src=x>"), "`<img src=x>`");
    }
}
