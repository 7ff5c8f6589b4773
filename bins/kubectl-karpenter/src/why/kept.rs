//! What keeps a node, what it would save, and what would help, as text.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde_json::Value;

use super::text::{list, patch, text};
use crate::output::{escaped, plural};

/// Hours of a month of 30 days.
const MONTH: f64 = 720.0;

/// Renders blockers, what would be done without them, and what would help. `wide` adds the patches.
pub(super) fn render(answer: &Value, wide: bool) -> String {
    let mut out = String::new();
    let changes: Vec<Cow<'_, str>> = list(&answer["changes"]).map(text).collect();
    if !changes.is_empty() {
        let _ = writeln!(out, "  With {}:", changes.join(", "));
    }
    let blockers: Vec<&Value> = list(&answer["blockers"]).collect();
    for blocker in &blockers {
        let _ = write!(out, "  Blocked by {}", line(blocker));
        if let Some(owner) = blocker["owner"].as_str() {
            let _ = write!(out, "  ({})", escaped(owner));
        }
        if let Some(until) = blocker["until"].as_str() {
            let _ = write!(out, "  until {}", escaped(until));
        }
        out.push('\n');
        // That a node is kept with or without a blocker is printed once.
        let differs =
            !blocker["alone"]["command"].is_null() || !answer["whatIf"]["command"].is_null();
        if blockers.len() > 1 && !blocker["alone"].is_null() && differs {
            let _ = writeln!(
                out,
                "      without it alone: {}",
                outcome(&blocker["alone"])
            );
        }
    }
    if !answer["whatIf"].is_null() {
        let label = match blockers.is_empty() {
            true => "Now",
            false => "Otherwise",
        };
        let _ = writeln!(out, "  {label:<10} {}", outcome(&answer["whatIf"]));
    }
    help(&blockers, wide, &mut out);
    let ladder: Vec<String> = list(&answer["ladder"]).map(line).collect();
    if !blockers.is_empty() && !answer["whatIf"].is_null() {
        let mut next = ladder.join(", then ");
        if !answer["whatIf"]["command"].is_null() {
            next.push_str(if next.is_empty() {
                "nothing"
            } else {
                ", then nothing"
            });
        }
        if !next.is_empty() {
            let _ = writeln!(out, "  If that were gone, next: {next}");
        }
    }
    out
}

fn help(blockers: &[&Value], wide: bool, out: &mut String) {
    let mut printed: Vec<&Value> = Vec::new();
    for help in blockers.iter().flat_map(|blocker| list(&blocker["help"])) {
        if !printed.iter().any(|known| known["text"] == help["text"]) {
            printed.push(help);
        }
    }
    if printed.is_empty() {
        return;
    }
    out.push_str("  Would help:\n");
    for help in printed {
        let note = match (
            help["exact"] == true,
            help["savingsPerHour"]["list"].as_f64(),
        ) {
            (false, _) => "  (not run)".to_owned(),
            (true, None) => "  (the node would still be kept)".to_owned(),
            (true, Some(savings)) => format!("  ({})", money(savings)),
        };
        let _ = writeln!(out, "    {}{note}", text(&help["text"]));
        if wide && !help["patch"].is_null() {
            let _ = writeln!(out, "        {}", patch(&help["patch"]));
        }
    }
}

/// Returns `Id: text`; for a PodDisruptionBudget what it demands and allows.
fn line(reason: &Value) -> String {
    let pdb = &reason["pdb"];
    if pdb.is_null() {
        return format!("{}: {}", text(&reason["id"]), text(&reason["text"]));
    }
    let demand = match (pdb["minAvailable"].as_str(), pdb["maxUnavailable"].as_str()) {
        (Some(min), _) => format!("minAvailable {}", escaped(min)),
        (None, Some(max)) => format!("maxUnavailable {}", escaped(max)),
        (None, None) => String::new(),
    };
    let pods = plural(pdb["expected"].as_u64().unwrap_or_default(), "pod");
    let impossible = match pdb["impossible"] == true {
        true => ": can never allow one",
        false => "",
    };
    let pod = text(&reason["parameters"]["pod"]);
    format!(
        "{}: pod {pod}: PodDisruptionBudget {}/{} allows {} ({demand} of {pods}, {} healthy{impossible})",
        text(&reason["id"]),
        text(&pdb["namespace"]),
        text(&pdb["name"]),
        pdb["allowed"],
        pdb["healthy"],
    )
}

/// Returns what would be done with the node.
fn outcome(outcome: &Value) -> String {
    let command = &outcome["command"];
    if command.is_null() {
        return format!("it would still be kept: {}", line(&outcome["reason"]));
    }
    let list_savings = command["savingsPerHour"]["list"]
        .as_f64()
        .unwrap_or_default();
    let pods = match command["podsMoved"].as_u64() {
        Some(1) => "1 pod fits".to_owned(),
        Some(count) => format!("{count} pods fit"),
        None => String::new(),
    };
    let nodes = command["nodes"].as_u64();
    let nodes = nodes.map(|count| plural(count, "node")).unwrap_or_default();
    let replacements: Vec<String> = list(&command["replacements"])
        .map(|new| {
            let types = new["instanceTypes"].as_u64().unwrap_or_default();
            let more = match types {
                0 | 1 => String::new(),
                _ => format!(" or {} other types", types - 1),
            };
            format!("{}{more}", text(&new["instanceType"]))
        })
        .collect();
    let verb = match command["decision"].as_str() {
        Some("replace") => "would be replaced",
        _ => "would be deleted",
    };
    let mut parts = Vec::new();
    match (command["podsMoved"].as_u64(), command["nodes"].as_u64()) {
        (Some(0), _) => parts.push("it is empty".to_owned()),
        (_, Some(0)) => {}
        _ if replacements.is_empty() => parts.push(format!("{pods} on {nodes}")),
        _ => parts.push(format!("{nodes} and a new one take its pods")),
    }
    if !replacements.is_empty() {
        parts.push(format!("new {}", replacements.join(" and ")));
    }
    let how = match parts.is_empty() {
        true => String::new(),
        false => format!(": {}", parts.join(", ")),
    };
    format!(
        "{verb}{how}, {} (${:.0}/month)",
        money(list_savings),
        (list_savings * MONTH).abs()
    )
}

/// Returns savings in dollars per hour; negative ones are costs.
fn money(savings: f64) -> String {
    match savings < 0.0 {
        true => format!("costs ${:.4}/h", -savings),
        false => format!("saves ${savings:.4}/h"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_kept_node_has_its_blockers_what_it_would_save_and_what_would_help() {
        let answer = json!({
            "blockers": [
                { "id": "Pdb", "text": "…", "parameters": { "pod": "shop/payments-0", "budget": "payments" },
                  "owner": "Deployment shop/payments",
                  "pdb": { "namespace": "shop", "name": "payments", "minAvailable": "1", "allowed": 0, "expected": 1, "healthy": 1, "desired": 1, "impossible": true },
                  "changes": ["without-pdb=shop/payments"],
                  "alone": { "changes": ["without-pdb=shop/payments"], "reason": { "id": "Budget", "text": "the disruption budget of NodePool default is used up" } },
                  "help": [
                      { "text": "Deployment shop/payments: replicas 1 -> 2", "exact": false },
                      { "text": "PodDisruptionBudget shop/payments: maxUnavailable 1", "exact": true, "savingsPerHour": { "list": 0.768, "marginal": 0.768 },
                        "patch": { "type": "merge", "target": "PodDisruptionBudget/shop/payments", "value": { "spec": { "maxUnavailable": 1 } } } },
                  ] },
                { "id": "Budget", "text": "the disruption budget of NodePool default is used up", "until": "2026-11-23T10:00:00Z",
                  "changes": ["budget.default=100%"], "help": [{ "text": "NodePool default: budget for Underutilized 0 -> 1 nodes", "exact": true }] },
            ],
            "whatIf": { "changes": [], "command": { "reason": "underutilized", "decision": "delete", "podsMoved": 14, "nodes": 3, "replacements": [],
                "savingsPerHour": { "list": 0.768, "marginal": 0.768 } } },
            "ladder": [{ "id": "Budget", "text": "the disruption budget of NodePool default is used up" }],
        });
        let expected = "\
\x20 Blocked by Pdb: pod shop/payments-0: PodDisruptionBudget shop/payments allows 0 (minAvailable 1 of 1 pod, 1 healthy: can never allow one)  (Deployment shop/payments)
      without it alone: it would still be kept: Budget: the disruption budget of NodePool default is used up
  Blocked by Budget: the disruption budget of NodePool default is used up  until 2026-11-23T10:00:00Z
  Otherwise  would be deleted: 14 pods fit on 3 nodes, saves $0.7680/h ($553/month)
  Would help:
    Deployment shop/payments: replicas 1 -> 2  (not run)
    PodDisruptionBudget shop/payments: maxUnavailable 1  (saves $0.7680/h)
        kubectl patch poddisruptionbudget -n shop payments --type merge -p '{\"spec\":{\"maxUnavailable\":1}}'
    NodePool default: budget for Underutilized 0 -> 1 nodes  (the node would still be kept)
  If that were gone, next: Budget: the disruption budget of NodePool default is used up, then nothing
";
        assert_eq!(render(&answer, true), expected);
    }

    #[test]
    fn a_replacement_is_printed_with_its_cheapest_type() {
        let outcome = outcome(
            &json!({ "command": { "decision": "replace", "podsMoved": 2, "nodes": 0,
            "replacements": [{ "nodePool": "default", "instanceType": "m-2", "instanceTypes": 3, "price": 0.1 }],
            "savingsPerHour": { "list": -0.1, "marginal": -0.1 } } }),
        );
        assert_eq!(
            outcome,
            "would be replaced: new m-2 or 2 other types, costs $0.1000/h ($72/month)"
        );
    }
}
