//! Publishes core/v1 Events with upstream's de-duplication and rate limits.
//!
//! - An event whose de-duplication values occurred within its window is dropped before it costs a request.
//! - Events of one reason may share a token bucket (`Nominated`: five per second, bursts of ten).
//! - Events about one object share a token bucket, too: 25 at once and then one every five minutes, as in client-go's
//!   recorder. Further events are dropped.
//! - A repetition after the window increments the count of the existing Event instead of creating another.
//! - Publishing never waits: the queue is bounded, and events that do not fit are dropped.
//!
//! UPSTREAM: pkg/events/recorder.go, client-go tools/record/events_cache.go (the spam filter)

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event as CoreEvent, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::client::RateLimit;
use crate::clock::Clock;

/// How many events about one object are written in a burst.
const BURST: u32 = 25;
/// Interval between further events about one object.
const REFILL_INTERVAL: Duration = Duration::from_secs(300);

/// Severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    /// Information.
    Normal,
    /// A problem that may need attention.
    Warning,
}

/// An event about one object.
#[derive(Debug, Clone)]
pub struct Event {
    /// The object of the event.
    pub about: ObjectReference,
    /// Severity.
    pub type_: EventType,
    /// Reason in CamelCase; see `karpenter_api::events`.
    pub reason: String,
    /// Message for users.
    pub message: String,
    /// Values that make two events equal; empty means never equal.
    pub dedupe: Vec<String>,
    /// How long an equal event is suppressed.
    pub window: Duration,
    /// Whether events of this reason share a token bucket of five per second and bursts of ten.
    pub limited: bool,
}

impl Event {
    /// Creates a Normal event, de-duplicated by object for two minutes.
    #[must_use]
    pub fn normal(about: ObjectReference, reason: &str, message: impl Into<String>) -> Self {
        let dedupe = vec![about.uid.clone().unwrap_or_default()];
        Self {
            about,
            type_: EventType::Normal,
            reason: reason.to_owned(),
            message: message.into(),
            dedupe,
            window: Duration::from_secs(120),
            limited: false,
        }
    }

    /// Creates a Warning, de-duplicated by object for two minutes.
    #[must_use]
    pub fn warning(about: ObjectReference, reason: &str, message: impl Into<String>) -> Self {
        Self {
            type_: EventType::Warning,
            ..Self::normal(about, reason, message)
        }
    }

    /// Suppresses equal events for `window`.
    #[must_use]
    pub fn every(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// Treats events with different messages as different.
    #[must_use]
    pub fn dedupe_by_message(mut self) -> Self {
        self.dedupe.push(self.message.clone());
        self
    }

    /// Disables de-duplication.
    #[must_use]
    pub fn always(mut self) -> Self {
        self.dedupe.clear();
        self
    }

    /// Applies the token bucket of the reason.
    #[must_use]
    pub fn limited(mut self) -> Self {
        self.limited = true;
        self
    }
}

/// Returns a reference to an object, for events about it.
#[must_use]
pub fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    object.object_ref(&())
}

/// Queues events of controllers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Recorder {
    clock: Clock,
    gate: Arc<Mutex<Gate>>,
    queue: mpsc::Sender<Event>,
}

/// Events and objects are known by a hash of 64 bits: their texts take megabytes in a cluster of thousands of nodes. Of a million
/// events in a window, two have the same hash once in 40 million clusters.
#[derive(Debug, Default)]
struct Gate {
    hashing: RandomState,
    seen: FxHashMap<u64, Instant>,
    limits: FxHashMap<String, RateLimit>,
    /// Token buckets by object.
    shares: FxHashMap<u64, RateLimit>,
    swept: Option<Instant>,
}

impl Recorder {
    /// As in client-go (`maxQueuedEvents`): a pass over thousands of nodes publishes more than are written in a minute.
    const QUEUE: usize = 1_000;

    /// Creates a recorder and the writer that runs next to it.
    #[must_use]
    pub fn new(client: Client, clock: Clock) -> (Self, EventWriter) {
        let (queue, events) = mpsc::channel(Self::QUEUE);
        let recorder = Self {
            clock,
            gate: Arc::default(),
            queue,
        };
        (
            recorder,
            EventWriter {
                client,
                clock,
                events,
                written: Written::default(),
            },
        )
    }

    /// Queues an event unless it is a repetition or over its rate; never waits.
    pub fn publish(&self, event: Event) {
        if self.gate.lock().admits(&event, &self.clock) && self.queue.try_send(event).is_err() {
            tracing::debug!(
                logger = "events",
                "dropped an event because the queue is full"
            );
        }
    }
}

impl Gate {
    fn admits(&mut self, event: &Event, clock: &Clock) -> bool {
        let now = Instant::now();
        if self
            .swept
            .is_none_or(|at| now.duration_since(at) > clock.real_duration(Duration::from_secs(60)))
        {
            self.seen.retain(|_, until| *until > now);
            self.shares.retain(|_, share| !share.is_full());
            self.swept = Some(now);
        }
        if !event.dedupe.is_empty() {
            let reason = event.reason.to_lowercase();
            let key = self.hashing.hash_one((reason, &event.dedupe));
            if self.seen.get(&key).is_some_and(|until| *until > now) {
                return false;
            }
            self.seen.insert(key, clock.instant_after(event.window));
        }
        let limited = event.limited
            && !self
                .limits
                .entry(event.reason.clone())
                .or_insert_with(|| RateLimit::new(5, 10))
                .try_acquire();
        !limited && self.has_share(&event.about, clock)
    }

    fn has_share(&mut self, about: &ObjectReference, clock: &Clock) -> bool {
        let object = (&about.kind, &about.namespace, &about.name, &about.uid);
        let object = self.hashing.hash_one(object);
        let share = self.shares.entry(object);
        let period = clock.real_duration(REFILL_INTERVAL);
        share
            .or_insert_with(|| RateLimit::every(period, BURST))
            .try_acquire()
    }
}

/// Writes events to the API server, one at a time.
pub struct EventWriter {
    client: Client,
    clock: Clock,
    events: mpsc::Receiver<Event>,
    written: Written,
}

/// The latest Events written, to increment the count of repetitions.
#[derive(Debug, Default)]
struct Written {
    by_content: FxHashMap<String, (String, i32)>,
    order: VecDeque<String>,
}

impl Written {
    const CAPACITY: usize = 4096;

    fn remember(&mut self, content: String, name: String, count: i32) {
        if self
            .by_content
            .insert(content.clone(), (name, count))
            .is_none()
        {
            self.order.push_back(content);
        }
        while self.order.len() > Self::CAPACITY {
            if let Some(oldest) = self.order.pop_front() {
                self.by_content.remove(&oldest);
            }
        }
    }
}

impl std::fmt::Debug for EventWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventWriter")
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

impl EventWriter {
    /// Drops the events that are queued before [`run`](Self::run), if `forget` is set.
    #[must_use]
    pub fn forgetful(mut self, forget: bool) -> Self {
        while forget && self.events.try_recv().is_ok() {}
        self
    }

    /// Writes events until `stop`; events that are queued then are dropped.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                event = self.events.recv() => event,
            };
            let Some(event) = event else { return };
            tokio::select! {
                biased;
                written = self.write(&event) => {
                    if let Err(error) = written {
                        tracing::debug!(logger = "events", reason = event.reason, %error, "failed to write an event");
                    }
                }
                () = stop.cancelled() => return,
            }
        }
    }

    async fn write(&mut self, event: &Event) -> Result<(), kube::Error> {
        let about = &event.about;
        // Events about cluster-scoped objects are in the namespace `default`, as in client-go.
        let namespace = about
            .namespace
            .clone()
            .filter(|n| !n.is_empty())
            .unwrap_or_else(|| "default".into());
        let api: Api<CoreEvent> = Api::namespaced(self.client.clone(), &namespace);
        let now = self.clock.now();
        let content = format!(
            "{}/{}/{}/{:?}/{}/{}",
            about.kind.as_deref().unwrap_or_default(),
            about
                .uid
                .as_deref()
                .or(about.name.as_deref())
                .unwrap_or_default(),
            namespace,
            event.type_,
            event.reason,
            event.message
        );
        if let Some((name, count)) = self.written.by_content.get(&content).cloned() {
            let patch = json!({"count": count + 1, "lastTimestamp": Time(now)});
            match api
                .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await
            {
                Ok(_) => {
                    self.written.remember(content, name, count + 1);
                    return Ok(());
                }
                // Events expire after an hour; then a new one is created.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let name = event_name(about.name.as_deref().unwrap_or("unknown"), &content, now);
        let object = CoreEvent {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            involved_object: about.clone(),
            type_: Some(match event.type_ {
                EventType::Normal => "Normal".into(),
                EventType::Warning => "Warning".into(),
            }),
            reason: Some(event.reason.clone()),
            message: Some(event.message.clone()),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            source: Some(EventSource {
                component: Some("karpenter".into()),
                host: None,
            }),
            reporting_component: Some("karpenter".into()),
            ..CoreEvent::default()
        };
        api.create(&PostParams::default(), &object).await?;
        self.written.remember(content, name, 1);
        Ok(())
    }
}

/// Returns `<object>.<hex>` as client-go names Events; the hexadecimal part encodes content and time.
fn event_name(object: &str, content: &str, now: Timestamp) -> String {
    use std::hash::{Hash, Hasher};
    let mut hasher = rustc_hash::FxHasher::default();
    content.hash(&mut hasher);
    now.as_nanosecond().hash(&mut hasher);
    // Event names have at most 253 characters, as all object names.
    let object: String = object.chars().take(230).collect();
    format!("{object}.{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(uid: &str, reason: &str, message: &str) -> Event {
        let about = ObjectReference {
            kind: Some("Pod".into()),
            name: Some("p".into()),
            uid: Some(uid.into()),
            ..ObjectReference::default()
        };
        Event::normal(about, reason, message)
    }

    impl Gate {
        fn takes(&mut self, event: &Event) -> bool {
            self.admits(event, &Clock::new(Timestamp::UNIX_EPOCH, 1.0))
        }
    }

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    /// Conformance: API-187
    #[tokio::test(start_paused = true)]
    async fn an_equal_event_is_dropped_within_its_window() {
        let mut gate = Gate::default();
        let failed = event("1", "FailedScheduling", "no").every(Duration::from_secs(300));
        assert!(gate.takes(&failed) && !gate.takes(&failed));
        assert!(gate.takes(&event("2", "FailedScheduling", "no")));
        pass(301).await;
        assert!(gate.takes(&failed));
    }

    /// Conformance: API-189
    #[tokio::test(start_paused = true)]
    async fn nominations_share_a_bucket_of_ten_and_five_per_second() {
        let mut gate = Gate::default();
        let mut admitted = |from: usize| {
            let events = (from..from + 100).map(|i| event(&i.to_string(), "Nominated", "x"));
            let events = events.map(Event::limited);
            events.filter(|event| gate.takes(event)).count()
        };
        assert_eq!(admitted(0), 10);
        pass(1).await;
        assert_eq!(admitted(100), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_has_25_events_at_once_and_then_one_every_five_minutes() {
        let mut gate = Gate::default();
        let admitted = |gate: &mut Gate, object: &str| {
            let events = (0..100).map(|i| event(object, "X", &i.to_string()).always());
            events.filter(|event| gate.takes(event)).count()
        };
        assert_eq!(admitted(&mut gate, "1"), 25);
        assert_eq!(admitted(&mut gate, "2"), 25);
        pass(299).await;
        assert_eq!(admitted(&mut gate, "1"), 0);
        pass(302).await;
        assert_eq!(admitted(&mut gate, "1"), 2);
        pass(25 * 300).await;
        assert_eq!(admitted(&mut gate, "3"), 25);
        assert_eq!(gate.shares.len(), 1, "full buckets are removed");
    }

    #[tokio::test(start_paused = true)]
    async fn events_without_dedupe_values_always_pass() {
        let mut gate = Gate::default();
        let finalized = event("1", "Finalized", "x").always();
        assert!(gate.takes(&finalized) && gate.takes(&finalized));
        for message in ["a", "b"] {
            assert!(gate.takes(&event("1", "X", message).dedupe_by_message()));
        }
    }

    /// Conformance: API-187
    #[tokio::test(start_paused = true)]
    async fn reasons_that_differ_in_case_alone_are_the_same() {
        let mut gate = Gate::default();
        assert!(gate.takes(&event("1", "Evicted", "x")));
        assert!(!gate.takes(&event("1", "evicted", "y")));
        assert!(gate.takes(&event("1", "Disrupted", "x")));
        pass(119).await;
        assert!(!gate.takes(&event("1", "Evicted", "x")));
        pass(2).await;
        assert!(gate.takes(&event("1", "Evicted", "x")));
    }
}
