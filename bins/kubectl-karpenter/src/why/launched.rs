//! What a NodeClaim was launched for, and why it has its instance type, as text.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde_json::Value;

use super::text::{list, text};
use crate::output::{escaped, number, plural};

/// Offered instance types that are printed; `-o wide` prints all in the answer.
const OPTIONS: usize = 3;

/// Renders the decision to launch a NodeClaim, what was offered to the cloud, what it chose, and what was rejected.
pub(super) fn render(answer: &Value, wide: bool) -> String {
    let mut out = String::new();
    let planned = &answer["launch"]["planned"];
    let record = text(&answer["launch"]["record"]);
    let names: Vec<Cow<'_, str>> = list(&planned["names"]).map(text).collect();
    let named = |count: u64| match count.saturating_sub(names.len() as u64) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    };
    match planned["type"].as_str() {
        Some("Launched") => {
            let pods = planned["pods"].as_u64().unwrap_or_default();
            let (of, names) = (plural(pods, "pod"), named(pods));
            let _ = writeln!(out, "  Launched for {of}: {names}  record {record}");
        }
        Some("Disrupted") => {
            let count = planned["count"].as_u64().unwrap_or_default();
            let of = if count == 1 { "node" } else { "nodes" };
            let _ = writeln!(
                out,
                "  Launched to replace {count} {} {of}: {}, which saves ${:.4}/h  record {record}",
                text(&planned["reason"]),
                named(count),
                number(&planned["savingsPerHour"]),
            );
            outcome(&planned["outcome"], &mut out);
        }
        _ => {}
    }
    choice(answer, wide, &mut out);
    out
}

/// Renders the decision to delete a node.
pub(super) fn removal(removal: &Value) -> String {
    let disrupted = &removal["disrupted"];
    let Some(reason) = disrupted["reason"].as_str() else {
        return String::new();
    };
    let (reason, record) = (escaped(reason), text(&removal["record"]));
    let mut out = format!("  Deleted, because it is {reason}  record {record}\n");
    outcome(&disrupted["outcome"], &mut out);
    out
}

/// Appends how a command has ended.
fn outcome(outcome: &Value, out: &mut String) {
    let state = match outcome["state"].as_str() {
        Some("Succeeded") => "the nodes are being deleted",
        Some("RolledBack") => "rolled back",
        Some("TimedOut") => "timed out, and rolled back",
        Some("NotStarted") => "not started",
        Some("Started") => "waiting for the replacements",
        _ => return,
    };
    let _ = write!(out, "      {state} since {}", text(&outcome["at"]));
    if let Some(why) = outcome["why"].as_str() {
        let _ = write!(out, ": {}", escaped(why));
    }
    out.push('\n');
}

fn choice(answer: &Value, wide: bool, out: &mut String) {
    let price = |value: &Value| format!("${:.4}/h", number(value));
    let options: Vec<&Value> = list(&answer["options"]).collect();
    if !options.is_empty() {
        let more = answer["moreOptions"].as_u64().unwrap_or_default();
        let all = options.len() as u64 + more;
        let shown = if wide { options.len() } else { OPTIONS };
        let first = options.iter().take(shown);
        let first: Vec<String> = first
            .map(|it| {
                format!(
                    "{} {}",
                    text(&it["instanceType"]),
                    price(&it["pricePerHour"])
                )
            })
            .collect();
        let types = plural(all, "instance type");
        let rest = if first.len() < all as usize {
            ", ..."
        } else {
            ""
        };
        let _ = writeln!(
            out,
            "  Offered to the cloud: {types}: {}{rest}",
            first.join(", ")
        );
    }
    let chosen = &answer["chosen"];
    if !chosen.is_null() {
        let place = [&chosen["capacityType"], &chosen["zone"]];
        let place: Vec<Cow<'_, str>> = place
            .into_iter()
            .filter(|it| it.is_string())
            .map(text)
            .collect();
        let _ = write!(
            out,
            "  Chosen by the cloud: {} {}  {}",
            text(&chosen["instanceType"]),
            place.join(" "),
            price(&chosen["pricePerHour"]),
        );
        if let Some(rank) = chosen["rank"].as_u64() {
            let _ = write!(out, "  number {rank} by price");
        }
        match chosen["premium"].as_f64() {
            Some(premium) if premium > 0.00005 => {
                let _ = write!(out, ", ${premium:.4}/h more than the cheapest");
            }
            _ => {}
        }
        out.push('\n');
    }
    let rejected: Vec<&Value> = list(&answer["rejected"]).collect();
    if !rejected.is_empty() {
        let cheaper = if chosen.is_null() { "" } else { " and cheaper" };
        let _ = writeln!(out, "  Not offered{cheaper}:");
        for one in rejected {
            let _ = writeln!(
                out,
                "    {:<24} {}  {}",
                text(&one["instanceType"]),
                price(&one["pricePerHour"]),
                text(&one["text"]),
            );
        }
    } else if !options.is_empty() && !chosen.is_null() {
        let _ = writeln!(out, "  No cheaper instance type was rejected.");
    }
    if answer["recomputed"] == true {
        let _ = writeln!(
            out,
            "  Worked out now: the record of the launch is gone, so that prices and limits are those of now."
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer() -> Value {
        json!({
            "launch": { "record": "mic0-7", "planned": { "type": "Launched", "nodePool": "default", "pods": 5,
                "names": ["shop/web-1", "shop/web-2", "shop/web-3"], "instanceTypes": ["m-8"], "moreInstanceTypes": 0, "pricePerHour": 0.3 } },
            "options": [{ "instanceType": "m-8", "pricePerHour": 0.3 }, { "instanceType": "m-16", "pricePerHour": 0.6 }],
            "chosen": { "instanceType": "m-16", "zone": "a", "capacityType": "spot", "rank": 2, "pricePerHour": 0.6, "premium": 0.3 },
            "rejected": [
                { "instanceType": "a-8", "pricePerHour": 0.2, "id": "PoolRequirement", "text": "the NodePool requires kubernetes.io/arch In [amd64]" },
                { "instanceType": "m-4", "pricePerHour": 0.15, "id": "TooSmall", "text": "cpu is short by 1" },
            ],
        })
    }

    #[test]
    fn a_nodeclaim_says_what_was_offered_and_why_cheaper_types_were_not() {
        let expected =
            "  Launched for 5 pods: shop/web-1, shop/web-2, shop/web-3 and 2 more  record mic0-7
  Offered to the cloud: 2 instance types: m-8 $0.3000/h, m-16 $0.6000/h
  Chosen by the cloud: m-16 spot a  $0.6000/h  number 2 by price, $0.3000/h more than the cheapest
  Not offered and cheaper:
    a-8                      $0.2000/h  the NodePool requires kubernetes.io/arch In [amd64]
    m-4                      $0.1500/h  cpu is short by 1
";
        assert_eq!(render(&answer(), false), expected);
    }

    #[test]
    fn a_node_that_is_deleted_shows_the_decision() {
        let outcome = json!({ "state": "Succeeded", "at": "2026-01-01T00:10:00Z", "why": "Ready is Unknown" });
        let disrupted = json!({ "type": "Disrupted", "reason": "unhealthy", "names": ["a"], "outcome": outcome });
        let expected = "  Deleted, because it is unhealthy  record mic0-9
      the nodes are being deleted since 2026-01-01T00:10:00Z: Ready is Unknown
";
        let printed = removal(&json!({ "record": "mic0-9", "disrupted": disrupted }));
        assert_eq!(printed, expected);
        assert_eq!(removal(&Value::Null), "");
    }

    #[test]
    fn a_replacement_names_its_nodes_and_how_the_command_ended() {
        let answer = json!({ "launch": { "record": "mic0-9", "planned": { "type": "Disrupted", "reason": "underutilized", "count": 2,
            "names": ["ip-1", "ip-2"], "savingsPerHour": 0.25,
            "outcome": { "state": "RolledBack", "at": "2026-11-23T09:14:02Z", "why": "replacement was deleted, default-\u{1b}x" } } } });
        let expected = "  Launched to replace 2 underutilized nodes: ip-1, ip-2, which saves $0.2500/h  record mic0-9
      rolled back since 2026-11-23T09:14:02Z: replacement was deleted, default-\\u{1b}x
";
        assert_eq!(render(&answer, false), expected);
    }
}
