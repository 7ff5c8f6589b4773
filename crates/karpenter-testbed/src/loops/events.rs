//! Records the actions of a loop as core/v1 `Event`s.
//!
//! Not implemented of client-go's correlator: aggregation of similar messages. Implemented: repeated events increase `count`, and
//! each source has a token bucket, so that ten thousand pods do not cause ten thousand requests.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rustc_hash::FxHashMap;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

const BURST: f64 = 300.0;
const PER_SECOND: f64 = 50.0;
const CAPACITY: usize = 4096;

#[derive(Debug, Clone)]
pub(crate) struct Note {
    pub(crate) about: ObjectReference,
    pub(crate) warning: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Publishes events. Never blocks; events beyond the limits are dropped.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    sender: mpsc::Sender<Note>,
}

impl Recorder {
    /// Starts the writer of one source.
    pub(crate) fn start(
        client: Client,
        clock: Clock,
        source: &'static str,
        token: CancellationToken,
        tasks: &mut tokio::task::JoinSet<()>,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(1024);
        tasks.spawn(write_all(client, clock, source, token, receiver));
        Self { sender }
    }

    /// Publishes `note`, unless the queue is full.
    pub(crate) fn publish(&self, note: Note) {
        // Events are best effort, as in Kubernetes.
        let _dropped = self.sender.try_send(note).is_err();
    }
}

struct Bucket {
    tokens: f64,
    filled_at: Timestamp,
}

impl Bucket {
    fn take(&mut self, now: Timestamp) -> bool {
        let passed = now.duration_since(self.filled_at).as_secs_f64().max(0.0);
        self.tokens = (self.tokens + passed * PER_SECOND).min(BURST);
        self.filled_at = now;
        let ok = self.tokens >= 1.0;
        if ok {
            self.tokens -= 1.0;
        }
        ok
    }
}

async fn write_all(
    client: Client,
    clock: Clock,
    source: &'static str,
    token: CancellationToken,
    mut notes: mpsc::Receiver<Note>,
) {
    let mut bucket = Bucket {
        tokens: BURST,
        filled_at: clock.now(),
    };
    let mut known: FxHashMap<(String, &'static str, String), (Arc<str>, i32)> =
        FxHashMap::default();
    let mut serial = 0u64;
    loop {
        let note = tokio::select! {
            biased;
            () = token.cancelled() => return,
            note = notes.recv() => note,
        };
        let Some(note) = note else {
            return;
        };
        let now = clock.now();
        if !bucket.take(now) {
            continue;
        }
        let namespace = note.about.namespace.clone().filter(|n| !n.is_empty());
        let namespace = namespace.unwrap_or_else(|| "default".to_owned());
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let identity = (
            note.about.uid.clone().unwrap_or_default(),
            note.reason,
            note.message.clone(),
        );
        let written = match known.get_mut(&identity) {
            Some((name, count)) => {
                *count += 1;
                let patch = json!({"count": *count, "lastTimestamp": Time(now)});
                api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
                    .await
                    .map(|_| ())
            }
            None => {
                serial += 1;
                let name = format!(
                    "{}.{:x}{serial:04x}",
                    note.about.name.as_deref().unwrap_or_default(),
                    now.as_nanosecond()
                );
                let event = event(&note, source, &name, &namespace, now);
                if known.len() >= CAPACITY {
                    known.clear();
                }
                known.insert(identity, (name.as_str().into(), 1));
                api.create(&PostParams::default(), &event).await.map(|_| ())
            }
        };
        if let Err(error) = written {
            tracing::debug!(source, %error, "event not written");
            // A failing API server must not get more events.
            clock.sleep(Duration::from_millis(100)).await;
        }
    }
}

fn event(note: &Note, source: &str, name: &str, namespace: &str, now: Timestamp) -> Event {
    Event {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: note.about.clone(),
        type_: Some(if note.warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(note.reason.to_owned()),
        message: Some(note.message.clone()),
        source: Some(EventSource {
            component: Some(source.to_owned()),
            host: None,
        }),
        reporting_component: Some(source.to_owned()),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        ..Event::default()
    }
}
