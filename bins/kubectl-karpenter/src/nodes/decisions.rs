//! The latest decisions, as text.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::output::{self, escaped, plural};
use crate::why::text::{list, text};

/// How far back decisions are asked for.
const WINDOW: SignedDuration = SignedDuration::from_hours(1);
/// Decisions that are shown: the latest.
const MAX_SHOWN: usize = 200;

/// Returns the question for the latest decisions.
pub(super) fn question(now: Timestamp) -> String {
    let since = now.checked_sub(WINDOW).unwrap_or(Timestamp::UNIX_EPOCH);
    // Colons need not be encoded in a query.
    format!("/decisions?limit=5000&since={since:.0}")
}

/// Renders records, the latest first: a line for the pass, and one for each of its items.
pub(super) fn lines(answer: &Value) -> Vec<String> {
    let records: Vec<&Value> = list(&answer["items"]).collect();
    if records.is_empty() {
        return vec!["No decision in the last hour.".to_owned()];
    }
    let mut lines = Vec::new();
    for record in records.into_iter().rev().take(MAX_SHOWN) {
        let (at, pass, id) = (
            text(&record["at"]),
            text(&record["pass"]),
            text(&record["id"]),
        );
        let at = at
            .split(['.', 'Z'])
            .next()
            .unwrap_or_default()
            .replace('T', " ");
        lines.push(format!("{at}  {pass}  {id}"));
        lines.extend(list(&record["items"]).map(|item| format!("    {}", self::item(item))));
    }
    lines
}

fn item(item: &Value) -> String {
    let of = |key: &str| text(&item[key]);
    let number = |key: &str| item[key].as_u64().unwrap_or_default();
    let price = |key: &str| format!("${:.4}/h", output::number(&item[key]));
    let named = |count: u64| {
        let names: Vec<_> = list(&item["names"]).map(text).collect();
        match count.saturating_sub(names.len() as u64) {
            0 => names.join(", "),
            more => format!("{} and {more} more", names.join(", ")),
        }
    };
    let (count, pods) = (number("count"), number("pods"));
    match item["type"].as_str() {
        Some("Launched") => format!(
            "launch {} of {} for {}: {}  from {}",
            item["nodeClaim"]
                .as_str()
                .map_or("no NodeClaim".into(), escaped),
            of("nodePool"),
            plural(pods, "pod"),
            named(pods),
            price("pricePerHour"),
        ),
        Some("Disrupted") => {
            let rejected = item["rejected"].as_str();
            let rejected = rejected.map(|why| format!("  not started: {}", escaped(why)));
            format!(
                "{} {} {}: {}  saves {}{}",
                of("decision"),
                count,
                of("reason"),
                named(count),
                price("savingsPerHour"),
                rejected.unwrap_or_default(),
            )
        }
        Some("Placed") => format!("place {}: {}", plural(count, "pod"), named(count)),
        Some("Unplaced") => format!(
            "no place for {}: {}  {}: {}",
            plural(count, "pod"),
            named(count),
            of("reason"),
            of("text")
        ),
        Some("Kept") => format!(
            "keep {} of {}: {}  {}  {}",
            plural(count, "node"),
            of("nodePool"),
            named(count),
            of("reason"),
            price("pricePerHour"),
        ),
        _ => of("type").into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_latest_decision_comes_first_with_its_items() {
        let answer = json!({ "items": [
            { "id": "mic0-7", "at": "2026-01-01T00:10:00.123Z", "pass": "Provisioning", "items": [
                { "type": "Launched", "nodePool": "default", "nodeClaim": "default-1", "pods": 4, "names": ["a/1", "a/2", "a/3"], "pricePerHour": 0.3 },
                { "type": "Unplaced", "count": 1, "names": ["a/5\u{1b}[2J"], "reason": "TooLarge", "text": "no instance type is large enough" },
                { "type": "Placed", "count": 2, "names": ["a/6", "a/7"], "nodes": ["n"] },
            ] },
            { "id": "mic0-8", "at": "2026-01-01T00:11:00Z", "pass": "Disruption", "items": [
                { "type": "Disrupted", "decision": "replace", "reason": "underutilized", "count": 1, "names": ["n"], "savingsPerHour": 0.1, "rejected": "PodsMoved" },
                { "type": "Kept", "nodePool": "default", "reason": "Pdb", "count": 2, "names": ["o", "p"], "pricePerHour": 0.4 },
            ] },
        ] });
        let expected = [
            "2026-01-01 00:11:00  Disruption  mic0-8",
            "    replace 1 underutilized: n  saves $0.1000/h  not started: PodsMoved",
            "    keep 2 nodes of default: o, p  Pdb  $0.4000/h",
            "2026-01-01 00:10:00  Provisioning  mic0-7",
            "    launch default-1 of default for 4 pods: a/1, a/2, a/3 and 1 more  from $0.3000/h",
            r"    no place for 1 pod: a/5\u{1b}[2J  TooLarge: no instance type is large enough",
            "    place 2 pods: a/6, a/7",
        ];
        assert_eq!(lines(&answer), expected);
        assert_eq!(
            lines(&json!({ "items": [] })),
            ["No decision in the last hour."]
        );
    }

    #[test]
    fn an_hour_is_asked_for() {
        let now = "2026-01-01T01:10:00.5Z".parse().unwrap();
        assert_eq!(
            question(now),
            "/decisions?limit=5000&since=2026-01-01T00:10:00Z"
        );
    }
}
