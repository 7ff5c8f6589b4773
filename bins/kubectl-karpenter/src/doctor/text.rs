//! The report as text: a paragraph for each finding, for readers who do not know Karpenter, or a table.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde_json::Value;

use crate::output::{Layout, Table, escaped, number, plural};
use crate::why::text::{age, list, text};

pub(super) fn findings(report: &Value) -> impl Iterator<Item = &Value> {
    list(&report["checks"])
}

/// Reports whether a finding blocks nodes.
pub(super) fn blocks(finding: &Value) -> bool {
    finding["severity"] == "Blocks"
}

/// Returns dollars a day: `$18.43`, `at least $18.43`; empty if they are not known.
fn dollars(finding: &Value) -> String {
    let Some(cost) = finding["costPerDay"].as_f64() else {
        return String::new();
    };
    let least = if finding["atLeast"] == true {
        "at least "
    } else {
        ""
    };
    format!("{least}${cost:.2}")
}

/// Returns the first lines: how much there is of what.
fn summary(report: &Value) -> String {
    let blocking = findings(report).filter(|finding| blocks(finding)).count();
    let warnings = findings(report).count() - blocking;
    let ran = list(&report["ran"]).count();
    let cost = number(&report["costPerDay"]);
    let cost = match cost >= 0.005 {
        true => format!(" (about ${cost:.2} a day)"),
        false => String::new(),
    };
    let blocked = match blocking {
        0 => "Nothing blocks".to_owned(),
        1 => "1 problem blocks".to_owned(),
        _ => format!("{blocking} problems block"),
    };
    let warned = match warnings {
        0 => String::new(),
        _ => format!(", {}", plural(warnings, "warning")),
    };
    let mut text = format!("{blocked} nodes{warned}{cost}. {ran} checks.\n");
    if report["observed"]["truncated"] == true {
        text.push_str("The list is incomplete: only the worst findings are shown.\n");
    }
    text
}

/// Renders a paragraph for each finding.
pub(super) fn paragraphs(report: &Value) -> String {
    let mut out = summary(report);
    for finding in findings(report) {
        let severity = text(&finding["severity"]).to_uppercase();
        let _ = writeln!(out, "\n{severity:<7} {}", text(&finding["what"]));
        let mut line = |name: &str, value: &str| {
            if !value.is_empty() {
                let _ = writeln!(out, "  {name:<6} {value}");
            }
        };
        let dollars = dollars(finding);
        if !dollars.is_empty() {
            let also = finding["alsoBlocked"].as_u64().unwrap_or_default();
            let also = match also {
                0 => String::new(),
                1 => "; 1 of its nodes is also blocked by something else, and not counted".into(),
                n => format!(
                    "; {n} of its nodes are also blocked by something else, and not counted"
                ),
            };
            let cost = number(&finding["costPerDay"]);
            let cost = match cost >= 0.005 {
                true => format!("{dollars} a day{also}"),
                false if also.is_empty() => {
                    "nothing now: its pods fit on no other node, and on no cheaper one".to_owned()
                }
                false => format!("nothing by a fix of this alone{also}"),
            };
            line("cost", &cost);
        }
        line("since", &age(&finding["since"], report));
        line("nodes", &nodes(finding));
        line("pods", &pods(finding));
        line("owner", &text(&finding["owner"]));
        line("why", &text(&finding["evidence"]["text"]));
        line("fix", &text(&finding["fix"]));
    }
    out
}

/// Returns names, and how many more there are.
fn listed(named: &[Cow<'_, str>], more: u64) -> String {
    match more {
        0 => named.join(", "),
        _ => format!("{} and {more} more", named.join(", ")),
    }
}

fn nodes(finding: &Value) -> String {
    let named: Vec<Cow<'_, str>> = list(&finding["nodes"]).map(text).collect();
    match finding["nodeCount"].as_u64().unwrap_or_default() {
        0 => String::new(),
        count => listed(&named, count.saturating_sub(named.len() as u64)),
    }
}

/// Returns the pods among the subjects; other subjects are named in the first line.
fn pods(finding: &Value) -> String {
    let pods = list(&finding["subjects"]).filter(|subject| subject["kind"] == "Pod");
    let named: Vec<Cow<'_, str>> = pods.map(|subject| text(&subject["name"])).collect();
    let more = finding["moreSubjects"].as_u64().unwrap_or_default();
    match named.is_empty() {
        true => String::new(),
        false => listed(&named, more),
    }
}

/// Renders a table, one finding a line.
pub(super) fn table(report: &Value, layout: Layout) -> String {
    let mut table = Table::new(&[
        "SEVERITY", "CHECK", "WHAT", "NODES", "$/DAY", "SINCE", "OWNER", "FIX",
    ]);
    let of = |value: &Value| Cow::Owned(value.as_str().unwrap_or_default().to_owned());
    for finding in findings(report) {
        let nodes = finding["nodeCount"].as_u64().filter(|count| *count > 0);
        let nodes = nodes.map_or_else(String::new, |count| count.to_string());
        table.row([
            Cow::Owned(text(&finding["severity"]).to_lowercase()),
            of(&finding["id"]),
            of(&finding["what"]),
            Cow::Owned(nodes),
            Cow::Owned(dollars(finding).replace('$', "")),
            Cow::Owned(age(&finding["since"], report)),
            of(&finding["owner"]),
            of(&finding["fix"]),
        ]);
    }
    match findings(report).next() {
        None => summary(report),
        Some(_) => table.render(layout),
    }
}

/// Returns the subjects of all findings, one a line.
pub(super) fn names(report: &Value) -> String {
    let subjects = findings(report).flat_map(|finding| list(&finding["subjects"]));
    let lines = subjects.map(|subject| {
        let kind = subject["kind"].as_str().unwrap_or_default();
        let group = match kind {
            "NodePool" | "NodeClaim" => ".karpenter.sh",
            "PodDisruptionBudget" => ".policy",
            "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => ".apps",
            "Job" => ".batch",
            "CustomResourceDefinition" => ".apiextensions.k8s.io",
            _ => "",
        };
        let kind = kind.to_lowercase();
        format!("{}{group}/{}\n", escaped(&kind), text(&subject["name"]))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> Value {
        json!({
            "kind": "BlockerReport", "observed": { "at": "2026-01-10T00:00:00Z" }, "ran": ["PdbImpossible", "LimitNearlyReached"], "costPerDay": 18.432,
            "checks": [
                {
                    "id": "PdbImpossible", "severity": "Blocks", "what": "PodDisruptionBudget shop/payments can never allow an eviction",
                    "subjects": [{ "kind": "PodDisruptionBudget", "namespace": "shop", "name": "payments" }],
                    "evidence": { "parameters": {}, "text": "It demands minAvailable 1 of 1." }, "nodes": ["ip-10-0-3-7"], "nodeCount": 1,
                    "costPerDay": 18.432, "since": "2026-01-01T00:00:00Z", "owner": "Deployment shop/payments", "fix": "Run 2 replicas.",
                },
                {
                    "id": "StuckTerminating", "severity": "Warns", "what": "7 pods in namespace shop stuck terminating",
                    "subjects": [{ "kind": "Pod", "namespace": "shop", "name": "a\u{1b}[31m" }, { "kind": "Pod", "namespace": "shop", "name": "b" }],
                    "moreSubjects": 5, "evidence": { "parameters": {}, "text": "They still exist." }, "nodeCount": 0,
                    "owner": "namespace shop", "fix": "Look.",
                },
            ],
        })
    }

    #[test]
    fn a_paragraph_says_what_it_costs_whose_it_is_and_what_to_do() {
        let expected = r"1 problem blocks nodes, 1 warning (about $18.43 a day). 2 checks.

BLOCKS  PodDisruptionBudget shop/payments can never allow an eviction
  cost   $18.43 a day
  since  9d
  nodes  ip-10-0-3-7
  owner  Deployment shop/payments
  why    It demands minAvailable 1 of 1.
  fix    Run 2 replicas.

WARNS   7 pods in namespace shop stuck terminating
  pods   a\u{1b}[31m, b and 5 more
  owner  namespace shop
  why    They still exist.
  fix    Look.
";
        assert_eq!(paragraphs(&report()), expected);
    }

    #[test]
    fn a_table_has_a_line_for_each_finding() {
        let text = table(&report(), Layout::PIPED);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("SEVERITY   CHECK"), "{text}");
        for (line, part) in [
            (1, "PdbImpossible"),
            (1, "18.43"),
            (2, "   -       -       -       namespace shop"),
        ] {
            assert!(lines[line].contains(part), "{text}");
        }
    }

    #[test]
    fn names_are_those_of_the_subjects_and_escaped() {
        let expected = "poddisruptionbudget.policy/payments\npod/a\\u{1b}[31m\npod/b\n";
        assert_eq!(names(&report()), expected);
    }

    #[test]
    fn no_finding_is_said_in_words() {
        let report = json!({ "observed": { "at": "2026-01-10T00:00:00Z" }, "ran": ["A", "B"], "costPerDay": 0.0, "checks": [] });
        let expected = "Nothing blocks nodes. 2 checks.\n";
        assert_eq!(paragraphs(&report), expected);
        assert_eq!(table(&report, Layout::PIPED), expected);
    }
}
