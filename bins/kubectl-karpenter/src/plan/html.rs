//! A plan as one HTML page: no script, no request to anywhere, all text escaped.

use std::fmt::Write as _;

use karpenter_decisions::rehearse::plan::{Plan, Sample, Step, Totals};

use super::chart::Chart;
use super::text::{count, details, duration, plural, rate, signed, signed_rate, verdict};

/// The number of steps of a table; JSON has all.
const STEPS: usize = 500;

const STYLE: &str = "\
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#59636e;--line:#d8dee4;--card:#f6f8fa;--new:#0b62d6;--old:#8a939c;--good:#1a7f37;--bad:#b42318}
@media(prefers-color-scheme:dark){:root{--bg:#0f1318;--fg:#e6e9ed;--soft:#9aa4ae;--line:#2b323a;--card:#171c23;--new:#6cb0ff;--old:#77818b;--good:#4ac26b;--bad:#ff8a80}}
*{box-sizing:border-box}body{margin:0 auto;max-width:960px;padding:32px 24px 64px;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
h1{font-size:22px;margin:0 0 4px}h2{font-size:16px;margin:36px 0 8px}p{margin:4px 0}.soft{color:var(--soft)}
.verdict{font-size:18px;margin:16px 0}ul{margin:8px 0;padding-left:20px}code{font:13px/1.4 ui-monospace,monospace;overflow-wrap:anywhere}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(190px,1fr));gap:12px;margin:16px 0}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px}.card b{display:block;font-size:22px;font-variant-numeric:tabular-nums}
.good{color:var(--good)}.bad{color:var(--bad)}
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font:12px system-ui,sans-serif}.grid{stroke:var(--line)}
.changed,.unchanged{fill:none;stroke-width:2;stroke-linejoin:round}.changed{stroke:var(--new)}.unchanged{stroke:var(--old);stroke-dasharray:5 4}
.key{display:flex;gap:20px;font-size:13px;color:var(--soft)}.key i{display:inline-block;width:24px;vertical-align:middle;margin-right:6px;border-top:2px solid var(--new)}.key i.old{border-top:2px dashed var(--old)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:14px}th,td{text-align:left;padding:6px 10px;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600}.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.warn{border-left:3px solid var(--bad);padding:8px 12px;background:var(--card)}
";

/// Returns text that HTML shows as it is, in elements and attributes.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// Renders a plan.
pub(super) fn render(plan: &Plan) -> String {
    let mut out = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">");
    // Nothing is loaded, and no script runs, whatever the text of a cluster contains.
    out.push_str("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">");
    let _ = write!(
        out,
        "<title>Karpenter plan</title><style>{STYLE}</style></head><body>"
    );
    let _ = write!(
        out,
        "<h1>Karpenter plan</h1><p class=\"soft\">{} from {}, engine {}</p>",
        duration(plan.seconds),
        escape(&format!("{:.0}", plan.start)),
        escape(&plan.observed.engine)
    );
    let _ = write!(out, "<p class=\"verdict\">{}</p>", escape(&verdict(plan)));
    if !plan.changes.is_empty() {
        out.push_str("<ul>");
        for change in &plan.changes {
            let _ = write!(out, "<li><code>{}</code></li>", escape(change));
        }
        out.push_str("</ul>");
    }
    if plan.observed.truncated {
        out.push_str("<p class=\"warn\">The rehearsal ended early: the numbers are those of its last moment.</p>");
    }
    cards(&mut out, plan);
    charts(&mut out, plan);
    summary(&mut out, plan);
    match plan
        .difference
        .as_ref()
        .filter(|difference| difference.differs)
    {
        Some(difference) => {
            steps(
                &mut out,
                "Steps with the change only",
                &difference.only_changed,
            );
            steps(
                &mut out,
                "Steps without the change only",
                &difference.only_unchanged,
            );
        }
        None => steps(&mut out, "Steps", &plan.steps),
    }
    workloads(&mut out, plan);
    kept(&mut out, plan);
    out.push_str("<h2>What is approximate</h2><ul>");
    for note in &plan.approximate {
        let _ = write!(out, "<li>{}</li>", escape(note));
    }
    let _ = writeln!(
        out,
        "</ul><p class=\"soft\">Digest <code>{}</code></p></body></html>",
        escape(&plan.digest)
    );
    out
}

fn cards(out: &mut String, plan: &Plan) {
    let Some(difference) = &plan.difference else {
        return;
    };
    out.push_str("<p class=\"soft\">Against the unchanged cluster:</p><div class=\"cards\">");
    let mut card = |name: &str, value: &str, sense: f64| {
        // Fewer dollars, evictions and pending pods are better.
        let class = match sense {
            sense if sense < 0.0 => " class=\"good\"",
            sense if sense > 0.0 => " class=\"bad\"",
            _ => "",
        };
        let _ = write!(
            out,
            "<div class=\"card\"><span class=\"soft\">{name}</span><b{class}>{value}</b></div>"
        );
    };
    card(
        "Price",
        &signed_rate(difference.price_per_hour),
        difference.price_per_hour,
    );
    card("Nodes", &signed(difference.nodes), 0.0);
    card(
        "Evictions",
        &signed(difference.evictions),
        difference.evictions as f64,
    );
    card(
        "Pending pods",
        &signed(difference.pending),
        difference.pending as f64,
    );
    out.push_str("</div>");
}

fn charts(out: &mut String, plan: &Plan) {
    let unchanged = plan.unchanged.as_ref().map(|it| it.curve.as_slice());
    out.push_str("<h2>Dollars per hour</h2><p class=\"key\"><span><i></i>with the change</span>");
    if unchanged.is_some() {
        out.push_str("<span><i class=\"old\"></i>unchanged</span>");
    }
    out.push_str("</p>");
    let chart = |title, value: fn(&Sample) -> f64, shown: fn(f64) -> String, whole| {
        Chart {
            title,
            seconds: plan.seconds,
            value,
            shown,
            whole,
            changed: &plan.curve,
            unchanged,
        }
        .render()
    };
    let dollars = |value: f64| match value > 0.0 && value < 10.0 {
        true => format!("${value:.2}"),
        false => format!("${value:.0}"),
    };
    let number = |value: f64| format!("{value:.0}");
    out.push_str(&chart(
        "Dollars per hour over time",
        |it| it.price_per_hour,
        dollars,
        false,
    ));
    out.push_str("<h2>Nodes</h2>");
    out.push_str(&chart(
        "Nodes over time",
        |it| it.nodes as f64,
        number,
        true,
    ));
    let waits = |samples: &[Sample]| samples.iter().any(|sample| sample.pending > 0);
    if waits(&plan.curve) || unchanged.is_some_and(waits) {
        out.push_str("<h2>Pending pods</h2>");
        out.push_str(&chart(
            "Pending pods over time",
            |it| it.pending as f64,
            number,
            true,
        ));
    }
}

fn summary(out: &mut String, plan: &Plan) {
    out.push_str("<h2>Before and after</h2><div class=\"scroll\"><table><tr><th></th><th class=\"num\">Nodes</th><th class=\"num\">Price</th><th class=\"num\">Pods</th><th class=\"num\">Pending</th><th class=\"num\">Evictions</th></tr>");
    let mut row = |name: &str, totals: &Totals, evictions: &str| {
        let _ = write!(
            out,
            "<tr><td>{name}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{evictions}</td></tr>",
            count(totals.nodes),
            rate(totals.price_per_hour),
            count(totals.pods),
            count(totals.pending)
        );
    };
    let after = duration(plan.seconds);
    row("Now", &plan.before, "");
    if let Some(unchanged) = &plan.unchanged {
        row(
            &format!("After {after}, unchanged"),
            &unchanged.after,
            &count(unchanged.evictions),
        );
    }
    row(
        &format!("After {after}, with the change"),
        &plan.after,
        &count(plan.evictions.total),
    );
    let _ = write!(
        out,
        "</table></div><p class=\"soft\">Peak {}, {} at +{}.</p>",
        plural(plan.peak.nodes, "node"),
        rate(plan.peak.price_per_hour),
        duration(plan.peak.after)
    );
    for used in &plan.budgets {
        let _ = write!(
            out,
            "<p class=\"soft\">The disruption budgets of NodePool <code>{}</code> are used up or closed for {}.</p>",
            escape(&used.node_pool),
            duration(used.seconds)
        );
    }
}

fn steps(out: &mut String, title: &str, steps: &[Step]) {
    if steps.is_empty() {
        return;
    }
    let _ = write!(
        out,
        "<h2>{title} ({})</h2><div class=\"scroll\"><table><tr><th class=\"num\">After</th><th>Action</th><th>What</th><th>Details</th></tr>",
        count(steps.len())
    );
    for step in steps.iter().take(STEPS) {
        let (object, details) = details(step);
        let _ = write!(
            out,
            "<tr><td class=\"num\">+{}</td><td>{}</td><td><code>{}</code></td><td>{}</td></tr>",
            duration(step.after),
            step.action.as_str(),
            escape(&object),
            escape(&details)
        );
    }
    out.push_str("</table></div>");
    let more = steps.len().saturating_sub(STEPS);
    if more > 0 {
        let _ = write!(
            out,
            "<p class=\"soft\">and {} more: -o json has all.</p>",
            count(more)
        );
    }
}

fn workloads(out: &mut String, plan: &Plan) {
    if plan.evictions.by_workload.is_empty() {
        return;
    }
    let _ = write!(
        out,
        "<h2>Evictions by workload</h2><p class=\"soft\">95th percentile {}.</p><div class=\"scroll\"><table><tr><th>Workload</th><th class=\"num\">Evictions</th><th class=\"num\">Pods</th></tr>",
        plan.evictions.p95
    );
    for row in &plan.evictions.by_workload {
        let _ = write!(
            out,
            "<tr><td><code>{}</code></td><td class=\"num\">{}</td><td class=\"num\">{}</td></tr>",
            escape(&row.workload),
            count(row.evictions),
            count(row.pods)
        );
    }
    out.push_str("</table></div>");
}

fn kept(out: &mut String, plan: &Plan) {
    if plan.blocked.is_empty() {
        return;
    }
    out.push_str("<h2>Kept nodes at the end</h2><div class=\"scroll\"><table><tr><th>Reason</th><th class=\"num\">Nodes</th><th class=\"num\">Price</th><th>For example</th></tr>");
    for row in &plan.blocked {
        let _ = write!(
            out,
            "<tr><td>{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td><code>{}</code></td></tr>",
            escape(&row.reason),
            count(row.nodes),
            rate(row.price_per_hour),
            escape(&row.names.join(", "))
        );
    }
    out.push_str("</table></div>");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a plan whose every name tries to break out of its place.
    fn hostile() -> Plan {
        let name = "</style><script>alert(1)</script>\"'\u{1b}[31m|`";
        serde_json::from_value(serde_json::json!({
            "apiVersion": "v", "kind": "Plan",
            "observed": { "at": "2026-01-01T00:00:00Z", "epoch": 1, "engine": name, "truncated": true },
            "start": "2026-01-01T00:00:00Z", "seconds": 3600, "changes": [name],
            "before": { "nodes": 2, "pricePerHour": 1.0, "pods": 3, "pending": 1 },
            "after": { "nodes": 1, "pricePerHour": 0.5, "pods": 3, "pending": 0 },
            "peak": { "after": 0, "nodes": 2, "pricePerHour": 1.0 },
            "steps": [{ "after": 15, "action": "Delete", "reason": name, "nodes": [name], "pods": 1, "savingsPerHour": 0.5, "pricePerHour": 1.0 }],
            "evictions": { "total": 1, "p95": 1, "byWorkload": [{ "workload": name, "evictions": 1, "pods": 3 }] },
            "blocked": [{ "reason": name, "nodes": 1, "pricePerHour": 0.5, "names": [name] }],
            "budgets": [{ "nodePool": name, "seconds": 60 }],
            "curve": [{ "after": 0, "nodes": 2, "pricePerHour": 1.0, "pending": 1 }, { "after": 30, "nodes": 1, "pricePerHour": 0.5, "pending": 0 }],
            "approximate": [name], "digest": name,
        }))
        .unwrap()
    }

    #[test]
    fn names_of_the_cluster_are_text_and_the_page_loads_nothing() {
        let page = render(&hostile());
        assert!(
            !page.contains("<script") && page.matches("</style>").count() == 1,
            "{page}"
        );
        assert!(!page.contains('\u{1b}'));
        for outside in ["src=", "href=", "http://", "https://", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("default-src 'none'"));
        assert!(page.contains("&lt;script&gt;"));
    }

    #[test]
    fn both_curves_are_drawn() {
        let mut plan = hostile();
        let curve = plan.curve.clone();
        plan.unchanged = Some(karpenter_decisions::rehearse::plan::Unchanged {
            after: plan.before,
            peak: plan.peak,
            steps: 0,
            evictions: 0,
            curve,
        });
        let page = render(&plan);
        assert_eq!(page.matches("<path class=\"changed\"").count(), 3);
        assert_eq!(page.matches("<path class=\"unchanged\"").count(), 3);
    }
}
