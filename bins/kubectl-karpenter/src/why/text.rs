//! Explanations as text for a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::Value;

use super::{kept, launched};
use crate::output;
use crate::output::{Layout, Table, escaped, number};

/// Renders an answer. `wide` adds the patches and the text of each NodePool's reason.
pub(super) fn render(answer: &Value, wide: bool, layout: Layout) -> String {
    match answer["kind"].as_str() {
        Some("PodExplanation") => pod(answer, wide),
        Some("NodeExplanation" | "NodeClaimExplanation") => node(answer, wide),
        Some("NodePoolExplanation") => node_pool(answer, layout),
        Some("ReasonGroupList") => groups(&answer["items"], &answer["observed"], layout),
        _ => String::new(),
    }
}

/// Returns a string of the answer, escaped for a terminal.
pub(crate) fn text<'a>(value: &'a Value) -> Cow<'a, str> {
    escaped(value.as_str().unwrap_or_default())
}

pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Returns how long ago a time was, as kubectl writes ages.
pub(crate) fn age(since: &Value, answer: &Value) -> String {
    let time = |value: &Value| value.as_str()?.parse::<Timestamp>().ok();
    let (Some(since), Some(now)) = (time(since), time(&answer["observed"]["at"])) else {
        return String::new();
    };
    output::age(now.duration_since(since).as_secs().max(0))
}

/// Returns `reason ID since 3m, text`.
fn reason(answer: &Value) -> String {
    let reason = &answer["reason"];
    if reason.is_null() {
        return String::new();
    }
    let since = age(&reason["since"], answer);
    let least = if reason["atLeast"] == true {
        "at least "
    } else {
        ""
    };
    let mut line = format!("reason {}", text(&reason["id"]));
    if !since.is_empty() {
        let _ = write!(line, " for {least}{since}");
    }
    line
}

fn truncated(answer: &Value) -> &'static str {
    if answer["observed"]["truncated"] == true {
        "\nThe answer is incomplete: a bound was reached.\n"
    } else {
        ""
    }
}

fn pod(answer: &Value, wide: bool) -> String {
    let meta = &answer["metadata"];
    let created = list(&answer["stages"]).find(|stage| stage["stage"] == "Created");
    let pending = created.map_or_else(String::new, |stage| age(&stage["at"], answer));
    let mut out = format!(
        "{} {pending}  {}/{}",
        text(&answer["state"]),
        text(&meta["namespace"]),
        text(&meta["name"])
    );
    if let Some(pods) = answer["alike"]["pods"].as_u64().filter(|pods| *pods > 1) {
        let _ = write!(out, " (1 of {pods} alike)");
    }
    let why = reason(answer);
    if !why.is_empty() {
        let _ = write!(out, "  {why}");
    }
    out.push('\n');
    if let Some(node) = answer["node"].as_str() {
        let _ = writeln!(out, "  Node: {}", escaped(node));
    }
    if !answer["reason"]["text"].is_null() {
        let _ = writeln!(out, "  {}", text(&answer["reason"]["text"]));
    }
    blocking(answer, wide, &mut out);
    let pools: Vec<String> = list(&answer["pools"])
        .map(|pool| {
            let (name, id) = (text(&pool["name"]), text(&pool["reason"]["id"]));
            // The reason of the closest NodePool is that of the pod.
            match pool["reason"]["text"] == answer["reason"]["text"] {
                true => format!("{name} {id} (as above)"),
                false => format!("{name} {id} ({})", text(&pool["reason"]["text"])),
            }
        })
        .collect();
    if !pools.is_empty() {
        let _ = writeln!(out, "  NodePools: {}", pools.join("; "));
    }
    let existing = &answer["existing"];
    if let Some(looked) = existing["looked"].as_u64().filter(|looked| *looked > 0) {
        let reasons: Vec<String> = existing["reasons"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(reason, count)| format!("{count} {}", escaped(reason)))
            .collect();
        let _ = writeln!(
            out,
            "  Existing nodes: {looked} looked at: {}",
            reasons.join(", ")
        );
    }
    let records: Vec<Cow<'_, str>> = list(&answer["records"]).map(text).collect();
    if !records.is_empty() {
        let _ = writeln!(out, "  Decisions: {}", records.join(" "));
    }
    out.push_str(truncated(answer));
    out
}

fn blocking(answer: &Value, wide: bool, out: &mut String) {
    let changes: Vec<Cow<'_, str>> = list(&answer["changes"]).map(text).collect();
    if !changes.is_empty() {
        let _ = writeln!(out, "  With {}:", changes.join(", "));
    }
    if answer["fitsAlone"] == true {
        if changes.is_empty() {
            out.push_str(
                "  Alone it would fit: pods that were placed before it took the resources.\n",
            );
            for taker in list(&answer["competition"]["takers"]) {
                let requests = taker["requests"].as_object().into_iter().flatten();
                let requests: Vec<String> = requests
                    .map(|(name, amount)| format!("{} {}", escaped(name), text(amount)))
                    .collect();
                let _ = writeln!(
                    out,
                    "    {} ({} pods: {})",
                    text(&taker["owner"]),
                    taker["pods"],
                    requests.join(", ")
                );
            }
        } else if !answer["effect"].is_null() {
            let price = number(&answer["deltaPerHour"]);
            let place = effect(&answer["effect"]);
            let _ = writeln!(out, "  It fits: +${price:.4}/h  ({place})");
        }
        return;
    }
    let atoms: Vec<&Value> = list(&answer["blocking"]["atoms"]).collect();
    if !atoms.is_empty() {
        let together = if atoms.len() > 1 {
            ", these together"
        } else {
            ""
        };
        let _ = writeln!(out, "  In the way{together}:");
    }
    for atom in &atoms {
        let _ = writeln!(
            out,
            "    {:<8} {}",
            side(&atom["side"]),
            text(&atom["text"])
        );
        if let Some(hint) = atom["hint"].as_str() {
            let _ = writeln!(out, "             {}", escaped(hint));
        }
    }
    let changes: Vec<&Value> = list(&answer["relaxations"]).collect();
    if changes.is_empty() {
        return;
    }
    let each = if changes.len() > 1 {
        ", each alone, cheapest first"
    } else {
        ""
    };
    let _ = writeln!(out, "  What would help{each}:");
    for change in changes {
        let price = number(&change["deltaPerHour"]);
        let _ = writeln!(
            out,
            "    +${price:.4}/h  {:<8} {}  ({})",
            side(&change["side"]),
            text(&change["text"]),
            effect(&change["effect"])
        );
        if let Some(affected) = change["affects"].as_str() {
            let _ = writeln!(out, "                        affects {}", escaped(affected));
        }
        if wide && !change["patch"].is_null() {
            let _ = writeln!(out, "                 {}", patch(&change["patch"]));
        }
    }
}

fn side(side: &Value) -> String {
    text(side).to_lowercase()
}

fn effect(effect: &Value) -> String {
    if let Some(node) = effect["node"].as_str() {
        return format!("joins {}", escaped(node));
    }
    let new = &effect["newNode"];
    format!(
        "new {} in NodePool {}",
        text(&new["instanceType"]),
        text(&new["nodePool"])
    )
}

/// Returns the `kubectl patch` that makes a change.
pub(super) fn patch(patch: &Value) -> String {
    let target = patch["target"].as_str().unwrap_or_default();
    let parts: Vec<&str> = target.split('/').collect();
    let object = match parts[..] {
        [kind, namespace, name] => format!(
            "{} -n {} {}",
            kind.to_lowercase(),
            quoted(namespace),
            quoted(name)
        ),
        [kind, name] => format!("{} {}", kind.to_lowercase(), quoted(name)),
        _ => quoted(target),
    };
    format!(
        "kubectl patch {object} --type {} -p {}",
        text(&patch["type"]),
        quoted(&patch["value"].to_string())
    )
}

/// Quotes an argument for a shell; control characters do not survive, as a pasted line would run them.
fn quoted(argument: &str) -> String {
    let safe = escaped(argument);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '/');
    if !safe.is_empty() && safe.chars().all(is_plain) {
        return safe.into_owned();
    }
    format!("'{}'", safe.replace('\'', r"'\''"))
}

fn node(answer: &Value, wide: bool) -> String {
    let of = |key: &str| text(&answer[key]).into_owned();
    let price = number(&answer["pricePerHour"]);
    let share = |resource: &str| answer["usage"][resource]["share"].as_f64();
    let mut out = format!("{}  {}", of("state"), text(&answer["metadata"]["name"]));
    for part in [of("instanceType"), of("capacityType"), of("zone")]
        .iter()
        .filter(|part| !part.is_empty())
    {
        let _ = write!(out, "  {part}");
    }
    let _ = write!(out, "  ${price:.4}/h");
    for resource in ["cpu", "memory"] {
        if let Some(share) = share(resource) {
            let _ = write!(out, "  {resource} {:.0}%", share * 100.0);
        }
    }
    let _ = write!(out, "  pods {}", answer["pods"]);
    if let Some(pool) = answer["nodePool"].as_str() {
        let _ = write!(out, "  NodePool {}", escaped(pool));
    }
    out.push('\n');
    let why = reason(answer);
    if !why.is_empty() {
        let _ = writeln!(out, "  Kept: {why}: {}", text(&answer["reason"]["text"]));
    }
    out.push_str(&launched::removal(&answer["removal"]));
    out.push_str(&kept::render(answer, wide));
    out.push_str(&launched::render(answer, wide));
    let records: Vec<Cow<'_, str>> = list(&answer["records"]).map(text).collect();
    if !records.is_empty() {
        let _ = writeln!(out, "  Decisions: {}", records.join(" "));
    }
    out.push_str(truncated(answer));
    out
}

fn node_pool(answer: &Value, layout: Layout) -> String {
    let mut out = format!(
        "NodePool {}  {} nodes  ${:.4}/h",
        text(&answer["metadata"]["name"]),
        answer["nodes"],
        number(&answer["pricePerHour"]),
    );
    let why = &answer["reason"];
    if !why.is_null() {
        let _ = write!(out, "  {}: {}", text(&why["id"]), text(&why["text"]));
    }
    out.push('\n');
    for limit in list(&answer["limits"]) {
        let _ = writeln!(
            out,
            "  Limit {}: {} of {} in use",
            text(&limit["resource"]),
            text(&limit["used"]),
            text(&limit["limit"])
        );
    }
    for budget in list(&answer["budgets"]) {
        let _ = writeln!(
            out,
            "  Budget {}: {} of {} left",
            text(&budget["reason"]),
            budget["remaining"],
            budget["allowed"]
        );
    }
    if list(&answer["kept"]).next().is_some() {
        out.push_str("  Kept nodes:\n");
        out.push_str(&groups(&answer["kept"], &answer["observed"], layout));
    }
    out
}

fn groups(items: &Value, observed: &Value, layout: Layout) -> String {
    let answer = serde_json::json!({ "observed": observed });
    let priced = list(items).any(|group| !group["pricePerHour"].is_null());
    let mut table = match priced {
        true => Table::new(&[
            "REASON",
            "COUNT",
            "$/H",
            "RELEASABLE $/H",
            "OLDEST",
            "EXAMPLES",
        ]),
        false => Table::new(&["REASON", "COUNT", "OLDEST", "EXAMPLES"]),
    };
    for group in list(items) {
        let examples: Vec<String> = list(&group["samples"])
            .map(|sample| match sample["namespace"].as_str() {
                Some(namespace) => format!(
                    "{namespace}/{}",
                    sample["name"].as_str().unwrap_or_default()
                ),
                None => sample["name"].as_str().unwrap_or_default().to_owned(),
            })
            .collect();
        let mut cells = vec![
            group["reason"].as_str().unwrap_or_default().to_owned(),
            group["count"].to_string(),
        ];
        if priced {
            cells.push(format!("{:.4}", number(&group["pricePerHour"])));
            let releasable = group["releasablePerHour"].as_f64();
            cells.push(releasable.map_or_else(|| "-".to_owned(), |sum| format!("{sum:.4}")));
        }
        cells.push(age(&group["oldest"], &answer));
        cells.push(examples.join(", "));
        table.row(cells.into_iter().map(Cow::Owned));
    }
    if list(items).next().is_none() {
        return "None.\n".to_owned();
    }
    table.render(layout)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PIPED: Layout = Layout::PIPED;

    fn pending() -> Value {
        json!({
            "kind": "PodExplanation", "metadata": { "namespace": "shop", "name": "web-7c9-x2" },
            "observed": { "at": "2026-11-23T09:14:02Z", "truncated": false }, "state": "Pending",
            "reason": { "id": "LimitReached", "since": "2026-11-23T09:11:02Z", "text": "cpu 96 of 100 in use, needs 8, short by 4" },
            "stages": [{ "stage": "Created", "at": "2026-11-23T09:00:02Z" }], "alike": { "class": "9c1e", "pods": 3 },
            "pools": [{ "name": "default", "reason": { "id": "LimitReached", "text": "cpu 96 of 100 in use, needs 8, short by 4" } }],
            "records": ["mic0-7"], "fitsAlone": false,
            "blocking": { "exact": true, "minimal": true, "minimum": true, "atoms": [
                { "id": "pool[default].limits[cpu]", "side": "Pool", "text": "NodePool default: limits cpu 100" },
                { "id": "pod.requests[cpu]", "side": "Pod", "text": "requests cpu 8" },
            ] },
            "relaxations": [
                { "atoms": ["pool[default].limits[cpu]"], "side": "Pool", "text": "NodePool default: limits cpu 100 -> 104", "deltaPerHour": 0.0412,
                  "effect": { "newNode": { "nodePool": "default", "instanceType": "m-8", "instanceTypes": 3, "price": 0.0412 } }, "exact": true,
                  "patch": { "type": "merge", "target": "NodePool/default", "value": { "spec": { "limits": { "cpu": "104" } } } } },
                { "atoms": ["x"], "side": "Cluster", "text": "drop the anti-affinity of StatefulSet shop/db", "deltaPerHour": 0.0,
                  "effect": { "node": "n1" }, "exact": true, "affects": "StatefulSet shop/db" },
            ],
            "existing": { "looked": 41, "reasons": { "InsufficientResources/cpu": 36, "Taint": 5 } },
        })
    }

    #[test]
    fn a_pending_pod_is_explained_with_what_is_in_the_way_and_what_would_help() {
        let expected = "\
Pending 14m  shop/web-7c9-x2 (1 of 3 alike)  reason LimitReached for 3m
  cpu 96 of 100 in use, needs 8, short by 4
  In the way, these together:
    pool     NodePool default: limits cpu 100
    pod      requests cpu 8
  What would help, each alone, cheapest first:
    +$0.0412/h  pool     NodePool default: limits cpu 100 -> 104  (new m-8 in NodePool default)
    +$0.0000/h  cluster  drop the anti-affinity of StatefulSet shop/db  (joins n1)
                        affects StatefulSet shop/db
  NodePools: default LimitReached (as above)
  Existing nodes: 41 looked at: 36 InsufficientResources/cpu, 5 Taint
  Decisions: mic0-7
";
        assert_eq!(render(&pending(), false, PIPED), expected);
    }

    #[test]
    fn the_patch_of_a_change_can_be_pasted_into_a_shell() {
        let wide = render(&pending(), true, PIPED);
        let patch =
            r#"kubectl patch nodepool default --type merge -p '{"spec":{"limits":{"cpu":"104"}}}'"#;
        assert!(wide.contains(patch), "{wide}");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted("a\nb"), r"'a\u{a}b'");
    }

    #[test]
    fn names_from_the_cluster_do_not_reach_the_terminal_as_control_sequences() {
        let mut answer = pending();
        answer["metadata"]["name"] = json!("web\u{1b}[31m");
        answer["pools"][0]["reason"]["text"] = json!("\u{1b}]0;title\u{7}");
        let text = render(&answer, true, PIPED);
        assert!(
            !text.contains('\u{1b}') && !text.contains('\u{7}'),
            "{text:?}"
        );
    }

    #[test]
    fn nodes_are_counted_by_reason_with_their_price() {
        let answer = json!({
            "kind": "ReasonGroupList", "of": "nodes", "observed": { "at": "2026-11-23T09:14:02Z" },
            "items": [
                { "reason": "Pdb", "count": 12, "pricePerHour": 9.216, "releasablePerHour": 7.104, "oldest": "2026-11-14T09:14:02Z", "samples": [{ "name": "ip-10-0-3-7" }] },
                { "reason": "PodsStay", "count": 31, "pricePerHour": 22.4, "oldest": "2026-11-23T07:14:02Z", "samples": [{ "name": "ip-10-0-9-1" }] },
            ],
        });
        let expected = "\
REASON     COUNT   $/H       RELEASABLE $/H   OLDEST   EXAMPLES
Pdb        12      9.2160    7.1040           9d       ip-10-0-3-7
PodsStay   31      22.4000   -                120m     ip-10-0-9-1
";
        assert_eq!(render(&answer, false, PIPED), expected);
        let none = json!({ "kind": "ReasonGroupList", "of": "pods", "observed": { "at": "2026-11-23T09:14:02Z" }, "items": [] });
        assert_eq!(render(&none, false, PIPED), "None.\n");
    }
}
