//! Events.
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
        json!(view.str("/involvedObject/fieldPath"))
    })
    .wide(),
    computed("Source", "source", |view| json!(source(view))).wide(),
    computed("Message", "message", |view| {
        json!(view.str("/message").trim())
    }),
    computed("First Seen", "firstTimestamp", |view| {
        json!(first_seen(view))
    })
    .wide(),
    computed("Count", "count", |view| json!(count(view))).wide(),
    NAME.wide(),
];

fn first_seen(view: &View<'_>) -> String {
    let first = view.at("/firstTimestamp").or_else(|| view.at("/eventTime"));
    age(first.and_then(Value::as_str), view.now)
}

fn last_seen(view: &View<'_>) -> String {
    let last = view.at("/series/lastObservedTime");
    let last = last.or_else(|| view.at("/lastTimestamp"));
    last.map_or_else(|| first_seen(view), |last| age(last.as_str(), view.now))
}

fn target(view: &View<'_>) -> String {
    let Some(object) = view.at("/involvedObject") else {
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
    let first = |source: &'static str, reporting: &'static str| match view.str(source) {
        "" => view.str(reporting),
        source => source,
    };
    let component = first("/source/component", "/reportingComponent");
    match first("/source/host", "/reportingInstance") {
        "" => component.to_owned(),
        host => format!("{component}, {host}"),
    }
}

fn count(view: &View<'_>) -> i64 {
    let count = view.at("/series/count").or_else(|| view.at("/count"));
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
    fn an_event_shows_its_object_source_and_count() {
        let event = json!({"metadata": {"name": "e"}, "type": "Normal", "reason": "Launched", "message": "hello\n", "count": 2,
            "involvedObject": {"kind": "NodeClaim", "name": "c"}, "source": {"component": "karpenter"},
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:59:30Z"});
        assert_eq!(
            cells(EVENT, &event),
            "30s | Normal | Launched | nodeclaim/c |  | karpenter | hello | 60m | 2 | e"
        );
    }
}
