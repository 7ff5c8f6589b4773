//! Events, of the core group and of `events.k8s.io`.
//!
//! UPSTREAM: pkg/printers/internalversion/printers.go printEvent

use serde_json::{Value, json};

use super::column::{Column, NAME, View, computed, field, string};
use crate::present::age::age;

pub(super) const EVENT: &[Column] = &[
    computed("Last Seen", "lastTimestamp", |view| json!(last_seen(view))),
    field("Type", "type"),
    field("Reason", "reason"),
    computed("Object", "involvedObject", |view| json!(target(view))),
    computed("Subobject", "involvedObject.fieldPath", |view| {
        json!(object(view).map_or_else(String::new, |object| string(object, "fieldPath")))
    })
    .wide(),
    computed("Source", "source", |view| json!(source(view))).wide(),
    computed("Message", "message", |view| {
        json!(either_text(view, "/message", "/note").trim())
    }),
    computed("First Seen", "firstTimestamp", |view| {
        json!(first_seen(view))
    })
    .wide(),
    computed("Count", "count", |view| json!(count(view))).wide(),
    NAME.wide(),
];

/// Events of both groups: `regarding`, `note`, `deprecated…` are the new names of the same fields.
fn either<'a>(view: &View<'a>, old: &str, new: &str) -> Option<&'a Value> {
    view.at(old).or_else(|| view.at(new))
}

fn either_text<'a>(view: &View<'a>, old: &str, new: &str) -> &'a str {
    let found = either(view, old, new);
    found.and_then(Value::as_str).unwrap_or_default()
}

fn first_seen(view: &View<'_>) -> String {
    let first = either(view, "/firstTimestamp", "/deprecatedFirstTimestamp");
    let first = first.or_else(|| view.at("/eventTime"));
    age(first.and_then(Value::as_str), view.now)
}

fn last_seen(view: &View<'_>) -> String {
    let last = view
        .at("/series/lastObservedTime")
        .or_else(|| either(view, "/lastTimestamp", "/deprecatedLastTimestamp"));
    last.map_or_else(|| first_seen(view), |last| age(last.as_str(), view.now))
}

fn object<'a>(view: &View<'a>) -> Option<&'a Value> {
    either(view, "/involvedObject", "/regarding")
}

fn target(view: &View<'_>) -> String {
    let Some(object) = object(view) else {
        return String::new();
    };
    let (kind, name) = (
        string(object, "kind").to_lowercase(),
        string(object, "name"),
    );
    if kind.is_empty() {
        name
    } else {
        format!("{kind}/{name}")
    }
}

fn source(view: &View<'_>) -> String {
    let first = |texts: [&'static str; 4]| {
        let [old, deprecated, new, newest] = texts;
        Some(either_text(view, old, deprecated))
            .filter(|text| !text.is_empty())
            .unwrap_or_else(|| either_text(view, new, newest))
    };
    let component = first([
        "/source/component",
        "/deprecatedSource/component",
        "/reportingComponent",
        "/reportingController",
    ]);
    let instance = "/reportingInstance";
    match first(["/source/host", "/deprecatedSource/host", instance, instance]) {
        "" => component.to_owned(),
        host => format!("{component}, {host}"),
    }
}

fn count(view: &View<'_>) -> i64 {
    let count = view
        .at("/series/count")
        .or_else(|| either(view, "/count", "/deprecatedCount"));
    count
        .and_then(Value::as_i64)
        .filter(|count| *count > 0)
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::present::rows::column::tests::cells;

    #[test]
    fn events_of_both_groups_show_the_same() {
        let core = json!({"metadata": {"name": "e"}, "type": "Normal", "reason": "Launched", "message": "hello\n", "count": 2,
            "involvedObject": {"kind": "NodeClaim", "name": "c"}, "source": {"component": "karpenter"},
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:59:30Z"});
        assert_eq!(
            cells(EVENT, &core),
            "30s | Normal | Launched | nodeclaim/c |  | karpenter | hello | 60m | 2 | e"
        );
        let new = json!({"metadata": {"name": "e"}, "type": "Normal", "reason": "Launched", "note": "hello", "reportingController": "karpenter",
            "regarding": {"kind": "NodeClaim", "name": "c"}, "eventTime": "2026-01-01T00:59:00.000000Z"});
        assert_eq!(
            cells(EVENT, &new),
            "60s | Normal | Launched | nodeclaim/c |  | karpenter | hello | 60s | 1 | e"
        );
    }
}
