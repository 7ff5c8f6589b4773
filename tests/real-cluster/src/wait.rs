//! Waits for the objects of a watch.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, pin_mut};
use kube::Api;
use kube::api::DynamicObject;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::Value;
use tokio::time::Instant;

/// Longer than any wait here.
pub(crate) const FOREVER: Duration = Duration::from_secs(24 * 3600);

/// The objects of a watch, by namespace and name.
pub(crate) type Seen = BTreeMap<(String, String), Value>;

/// Watches objects with these labels, and calls `look` with all of them after each change, until it returns a result or the time
/// is over.
pub(crate) async fn until<T>(
    what: &str,
    api: &Api<DynamicObject>,
    labels: &str,
    within: Duration,
    mut look: impl FnMut(&Seen) -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + within;
    let config = watcher::Config::default().labels(labels);
    let events = watcher::watcher(api.clone(), config).default_backoff();
    pin_mut!(events);
    let mut seen = Seen::new();
    let mut complete = false;
    loop {
        let event = match tokio::time::timeout_at(deadline, events.next()).await {
            Ok(event) => event.context("the watch has ended")?,
            Err(_) => bail!(
                "timed out after {} s: {what}; last objects: {}",
                within.as_secs(),
                brief(&seen)
            ),
        };
        let key = |object: &DynamicObject| {
            let name = object.metadata.name.clone().unwrap_or_default();
            (object.metadata.namespace.clone().unwrap_or_default(), name)
        };
        match event {
            Ok(Event::Init) => {
                seen.clear();
                complete = false;
            }
            Ok(Event::InitDone) => complete = true,
            Ok(Event::InitApply(object) | Event::Apply(object)) => {
                seen.insert(key(&object), serde_json::to_value(object)?);
            }
            Ok(Event::Delete(object)) => {
                seen.remove(&key(&object));
            }
            // It is retried, with a back-off.
            Err(_) => continue,
        }
        if complete && let Some(found) = look(&seen)? {
            return Ok(found);
        }
    }
}

/// Returns names and phases of some of them.
fn brief(seen: &Seen) -> String {
    let lines = seen.iter().take(12).map(|((_, name), object)| {
        let phase = object["status"]["phase"].as_str().unwrap_or_default();
        let bad: Vec<String> = object["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|c| c["status"] != "True")
            .map(|c| {
                let text = |field: &str| c[field].as_str().unwrap_or_default().to_owned();
                format!("{}={} {}", text("type"), text("status"), text("message"))
            })
            .collect();
        format!("{name} {phase} {}", bad.join(", "))
            .trim()
            .to_owned()
    });
    format!(
        "{} object(s): {}",
        seen.len(),
        lines.collect::<Vec<_>>().join("; ")
    )
}
