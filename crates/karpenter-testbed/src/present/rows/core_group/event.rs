//! Events, of the core group and of `events.k8s.io`.
//!
//! UPSTREAM: pkg/printers/internalversion/printers.go printEvent

use serde_json::{Value, json};

use crate::present::age::age;
use crate::present::rows::{Column, Painting, View, painting_of, string, text, wide};

pub(super) static EVENT: Painting = painting_of(
    &[
        text("Last Seen", "lastTimestamp"),
        text("Type", "type"),
        text("Reason", "reason"),
        text("Object", "involvedObject"),
        wide("Subobject", "involvedObject.fieldPath"),
        wide("Source", "source"),
        text("Message", "message"),
        wide("First Seen", "firstTimestamp"),
        wide("Count", "count"),
        Column {
            format: "name",
            ..wide("Name", "metadata.name")
        },
    ],
    event_cells,
);

/// Events of both groups: `regarding`, `note`, `deprecated…` are the new names of the same fields.
fn event_cells(view: &View<'_>) -> Vec<Value> {
    let either = |old: &str, new: &str| view.at(old).or_else(|| view.at(new));
    let either_text =
        |old: &str, new: &str| either(old, new).and_then(Value::as_str).unwrap_or_default();
    let time = |value: Option<&Value>| age(value.and_then(Value::as_str), view.now);
    let event_time = view.at("/eventTime");
    let first = either("/firstTimestamp", "/deprecatedFirstTimestamp");
    let first_seen = time(first.or(event_time));
    let last = view
        .at("/series/lastObservedTime")
        .or_else(|| either("/lastTimestamp", "/deprecatedLastTimestamp"));
    let last_seen = match last {
        Some(last) => time(Some(last)),
        None => first_seen.clone(),
    };
    let object = either("/involvedObject", "/regarding")
        .cloned()
        .unwrap_or_default();
    let kind = string(&object, "kind").to_lowercase();
    let target = if kind.is_empty() {
        string(&object, "name")
    } else {
        format!("{kind}/{}", string(&object, "name"))
    };
    let component = Some(either_text(
        "/source/component",
        "/deprecatedSource/component",
    ))
    .filter(|text| !text.is_empty());
    let component =
        component.unwrap_or_else(|| either_text("/reportingComponent", "/reportingController"));
    let host =
        Some(either_text("/source/host", "/deprecatedSource/host")).filter(|text| !text.is_empty());
    let source = match host.or(Some(view.str("/reportingInstance")).filter(|text| !text.is_empty()))
    {
        Some(host) => format!("{component}, {host}"),
        None => component.to_owned(),
    };
    let count = match view
        .at("/series/count")
        .or_else(|| either("/count", "/deprecatedCount"))
        .and_then(Value::as_i64)
    {
        Some(count) if count > 0 => count,
        _ => 1,
    };
    vec![
        json!(last_seen),
        json!(view.str("/type")),
        json!(view.str("/reason")),
        json!(target),
        json!(string(&object, "fieldPath")),
        json!(source),
        json!(either_text("/message", "/note").trim()),
        json!(first_seen),
        json!(count),
        json!(view.name()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::present::rows::core_group::tests::cells;

    #[test]
    fn events_of_both_groups_show_the_same() {
        let core = json!({"metadata": {"name": "e"}, "type": "Normal", "reason": "Launched", "message": "hello\n", "count": 2,
            "involvedObject": {"kind": "NodeClaim", "name": "c"}, "source": {"component": "karpenter"},
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:59:30Z"});
        assert_eq!(
            cells(&EVENT, &core),
            "30s | Normal | Launched | nodeclaim/c |  | karpenter | hello | 60m | 2 | e"
        );
        let new = json!({"metadata": {"name": "e"}, "type": "Normal", "reason": "Launched", "note": "hello", "reportingController": "karpenter",
            "regarding": {"kind": "NodeClaim", "name": "c"}, "eventTime": "2026-01-01T00:59:00.000000Z"});
        assert_eq!(
            cells(&EVENT, &new),
            "60s | Normal | Launched | nodeclaim/c |  | karpenter | hello | 60s | 1 | e"
        );
    }
}
