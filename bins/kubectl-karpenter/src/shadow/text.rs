//! The report as text, for people.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::Value;

use crate::output::{number, plural};
use crate::why::text::{list, text};

/// Renders the report: totals, the largest differences, and what the dollars mean.
pub(super) fn render(report: &Value) -> String {
    let mut out = String::new();
    let (since, until) = (time(&report["since"]), time(&report["until"]));
    let agreement = percent(&report["agreement"]);
    let _ = writeln!(
        out,
        "Shadow since {since}, until {until}: agreement {agreement}"
    );
    let changes: Vec<_> = list(&report["changes"]).map(text).collect();
    if !changes.is_empty() {
        let _ = writeln!(out, "The shadow decides as if {}.", changes.join(", "));
    }
    let refused = count(&report["refused"]);
    if refused > 0 {
        let _ = writeln!(
            out,
            "DEFECT: the shadow tried to change something {refused} times, and was refused: see its log."
        );
    }
    provisioning(&mut out, &report["provisioning"]);
    disruption(&mut out, &report["disruption"]);
    let dollars = number(&report["dollars"]);
    let _ = match dollars >= 0.0 {
        true => writeln!(
            out,
            "\nFollowing the shadow would have saved ${dollars:.2} so far."
        ),
        false => writeln!(
            out,
            "\nFollowing the shadow would have cost ${:.2} more so far.",
            -dollars
        ),
    };
    out.push_str(
        "Each decision is counted on its own, on the state of the Karpenter that runs the cluster: they are added up, not compounded.\n",
    );
    let differences: Vec<&Value> = list(&report["differences"]).collect();
    match differences.len() {
        0 => out.push_str("No differences.\n"),
        1 => out.push_str("The largest difference:\n"),
        n => {
            let _ = writeln!(out, "The {n} largest differences:");
        }
    }
    for difference in differences {
        one(&mut out, difference);
    }
    out
}

fn provisioning(out: &mut String, totals: &Value) {
    let _ = writeln!(
        out,
        "\nProvisioning   agreement {}   {}, {} for {}",
        percent(&totals["agreement"]),
        plural(count(&totals["windows"]), "window"),
        match count(&totals["waiting"]) {
            0 => "all compared".to_owned(),
            waiting => format!("{waiting} more not compared yet"),
        },
        plural(count(&totals["pods"]), "pod"),
    );
    let sides = |name: &str, of: &dyn Fn(&Value) -> String| {
        let both = &totals[name];
        (of(&both["ours"]), of(&both["theirs"]))
    };
    let latency = |side: &Value| match side.is_null() {
        true => "-".to_owned(),
        false => format!(
            "{:.1}s (max {:.1}s)",
            number(&side["mean"]),
            number(&side["max"])
        ),
    };
    row(out, "", ("SHADOW".to_owned(), "CLUSTER".to_owned()));
    row(
        out,
        "nodes",
        sides("nodes", &|side| count(side).to_string()),
    );
    row(
        out,
        "$/h",
        sides("pricePerHour", &|side| format!("{:.4}", number(side))),
    );
    row(
        out,
        "pods placed / bound",
        sides("covered", &|side| count(side).to_string()),
    );
    row(
        out,
        "first pod to decision",
        sides("latencySeconds", &latency),
    );
}

fn disruption(out: &mut String, totals: &Value) {
    let waiting = match count(&totals["waiting"]) {
        0 => String::new(),
        waiting => format!(", {waiting} not compared yet"),
    };
    let _ = writeln!(
        out,
        "\nDisruption     agreement {}   {} by both{waiting}",
        percent(&totals["agreement"]),
        plural(count(&totals["both"]), "node"),
    );
    let sides = |name: &str, of: &dyn Fn(&Value) -> String| {
        let both = &totals[name];
        (of(&both["ours"]), of(&both["theirs"]))
    };
    row(out, "", ("SHADOW".to_owned(), "CLUSTER".to_owned()));
    row(
        out,
        "nodes",
        sides("nodes", &|side| count(side).to_string()),
    );
    row(
        out,
        "evicted pods",
        sides("evictions", &|side| count(side).to_string()),
    );
    row(
        out,
        "$/h saved",
        sides("savingsPerHour", &|side| format!("{:.4}", number(side))),
    );
}

fn row(out: &mut String, name: &str, (ours, theirs): (String, String)) {
    let line = format!("  {name:<22} {ours:<20} {theirs}");
    let _ = writeln!(out, "{}", line.trim_end());
}

/// Writes a difference: when, how much, both decisions, and why.
fn one(out: &mut String, difference: &Value) {
    let rate = number(&difference["savingsPerHour"]);
    let (word, rate) = match rate >= 0.0 {
        true => ("saves", rate),
        false => ("costs", -rate),
    };
    let what = match difference.get("node") {
        Some(node) => format!("node {}", text(node)),
        None => {
            let pods: Vec<_> = list(&difference["pods"]).map(text).collect();
            match pods.is_empty() {
                true => "nodes without new pods".to_owned(),
                false => format!("pods {}", pods.join(", ")),
            }
        }
    };
    let _ = writeln!(
        out,
        "\n{}  {what}  the shadow {word} ${rate:.4}/h, ${:.2} so far",
        time(&difference["at"]),
        number(&difference["dollars"]).abs(),
    );
    let side = |side: &str| match difference.get("launches") {
        Some(launches) => launched(&launches[side]),
        None => disrupted(&difference["disrupts"][side]),
    };
    let _ = writeln!(out, "  shadow   {}", side("ours"));
    let _ = writeln!(out, "  cluster  {}", side("theirs"));
    let _ = writeln!(out, "  why      {}", text(&difference["text"]));
}

/// Returns a time to the second.
fn time(value: &Value) -> String {
    let time: Result<Timestamp, _> = text(value).parse();
    time.map_or_else(|_| text(value).into_owned(), |time| format!("{time:.0}"))
}

fn launched(launches: &Value) -> String {
    let each = list(launches).map(|launch| {
        format!(
            "{} x {} {} ({}) at ${:.4}/h",
            count(&launch["count"]),
            text(&launch["instanceType"]),
            text(&launch["capacityType"]),
            text(&launch["nodePool"]),
            number(&launch["pricePerHour"]),
        )
    });
    let all: Vec<String> = each.collect();
    match all.is_empty() {
        true => "launches no node".to_owned(),
        false => format!("launches {}", all.join(", ")),
    }
}

fn disrupted(decided: &Value) -> String {
    if decided.is_null() {
        return "keeps the node".to_owned();
    }
    let replacements = match number(&decided["replacements"]) {
        n if n <= 0.0 => "deletes".to_owned(),
        1.0 => "replaces".to_owned(),
        n => format!("replaces (by {n:.2} nodes)"),
    };
    format!(
        "{replacements} it, {}: evicts {}, saves ${:.4}/h",
        text(&decided["reason"]),
        plural(count(&decided["evictions"]), "pod"),
        number(&decided["savingsPerHour"]),
    )
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// Returns a share rounded down: 100 % means that there is no difference.
fn percent(value: &Value) -> String {
    format!("{:.1} %", (number(value) * 1000.0).floor() / 10.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_report_has_totals_and_both_decisions_of_a_difference() {
        let report = json!({
            "since": "2026-01-01T00:00:00.187595971Z", "until": "2026-01-02T00:00:00Z", "agreement": 0.98765, "dollars": 12.5, "refused": 0,
            "changes": ["policy.default=Balanced"],
            "provisioning": {
                "windows": 1, "waiting": 0, "pods": 12, "covered": {"ours": 12, "theirs": 11}, "nodes": {"ours": 1, "theirs": 2},
                "pricePerHour": {"ours": 0.1, "theirs": 0.2}, "agreement": 0.5,
                "latencySeconds": {"ours": {"mean": 1.04, "max": 1.2}, "theirs": null},
            },
            "disruption": {
                "nodes": {"ours": 0, "theirs": 1}, "both": 0, "waiting": 2, "evictions": {"ours": 0, "theirs": 3},
                "savingsPerHour": {"ours": 0.0, "theirs": 0.05}, "agreement": 0.0,
            },
            "differences": [
                {"at": "2026-01-01T01:00:00Z", "pods": ["shop/web-1"], "savingsPerHour": 0.1, "dollars": 2.3, "text": "packed otherwise",
                 "launches": {"ours": [{"count": 1, "instanceType": "m5.large", "capacityType": "spot", "nodePool": "default", "pricePerHour": 0.1}], "theirs": []}},
                {"at": "2026-01-01T02:00:00Z", "node": "ip-10-0-0-1\u{1b}[31m", "savingsPerHour": -0.05, "dollars": -0.01, "text": "we keep the node",
                 "disrupts": {"ours": null, "theirs": {"reason": "underutilized", "evictions": 3, "savingsPerHour": 0.05, "replacements": 1.0}}},
            ],
        });
        let text = render(&report);
        for line in [
            "Shadow since 2026-01-01T00:00:00Z, until 2026-01-02T00:00:00Z: agreement 98.7 %",
            "The shadow decides as if policy.default=Balanced.",
            "  nodes                  1                    2",
            "  first pod to decision  1.0s (max 1.2s)      -",
            "Following the shadow would have saved $12.50 so far.",
            "2026-01-01T01:00:00Z  pods shop/web-1  the shadow saves $0.1000/h, $2.30 so far",
            "  shadow   launches 1 x m5.large spot (default) at $0.1000/h",
            "  cluster  launches no node",
            "  shadow   keeps the node",
            "  cluster  replaces it, underutilized: evicts 3 pods, saves $0.0500/h",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        assert!(
            text.contains("not compounded") && !text.contains('\u{1b}'),
            "{text}"
        );
        assert!(!text.contains("DEFECT"));
        let mut defect = report;
        defect["refused"] = json!(1);
        assert!(render(&defect).contains("DEFECT"));
    }
}
