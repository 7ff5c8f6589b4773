//! Events.
//!
//! UPSTREAM: pkg/printers/internalversion/printers.go printEvent

use serde_json::{Value, json};

use super::column::{Column, NAME, View, computed, field, string};
use crate::present::age::age;

pub(super) const EVENT: &[Column] = &[
    computed("Last Seen", |view| json!(last_seen(view))),
    field("Type", "type"),
    field("Reason", "reason"),
    computed("Object", |view| json!(target(view))),
    computed("Message", |view| json!(view.str("/message").trim())),
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
