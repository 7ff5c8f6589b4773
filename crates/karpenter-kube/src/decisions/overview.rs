//! The overview, for all clients together: it is made once for a state of the cluster, and its changes are sent to streams.

use std::convert::Infallible;
use std::io::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::Stream;
use http_body::Frame;
use karpenter_decisions::explain::Question;
use karpenter_decisions::overview::{Curve, Overview};
use parking_lot::Mutex;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, broadcast};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::answers::ENGINE;
use super::status::Failure;
use super::{BEHIND, Decisions};
use crate::context::Context;
use crate::controller::compute;

/// The shortest time between two overviews: a stream has at most two events a second.
const TICK: Duration = Duration::from_millis(500);
/// The longest age of an overview: budgets open and close with time.
const OLD: Duration = Duration::from_secs(10);
/// The last line of a stream whose reader is too slow.
const CLOSED: &str = ": closed, the reader is 256 events behind\n\n";

/// The current overview, and its streams.
pub(super) struct Feed {
    current: Mutex<Option<Arc<Current>>>,
    curve: Mutex<Curve>,
    events: broadcast::Sender<Bytes>,
    /// Held while an overview is made.
    making: tokio::sync::Mutex<()>,
}

/// An overview.
pub(super) struct Current {
    /// The epoch of the model and the revision of the history that it was made of.
    of: (u64, u64),
    made: Instant,
    overview: Overview,
    curve: Curve,
    json: OnceLock<Bytes>,
    gzip: OnceLock<Bytes>,
}

impl Current {
    /// Returns the overview as JSON, which is written once.
    pub(super) fn json(&self) -> Bytes {
        let json = self
            .json
            .get_or_init(|| Bytes::from(self.overview.to_json(&self.curve)));
        json.clone()
    }

    /// Returns the JSON compressed, which is done once.
    pub(super) fn gzip(&self) -> Bytes {
        let gzip = self.gzip.get_or_init(|| {
            let mut writer = GzEncoder::new(Vec::new(), Compression::fast());
            // Writing to memory does not fail.
            let _ = writer.write_all(&self.json());
            Bytes::from(writer.finish().unwrap_or_default())
        });
        gzip.clone()
    }
}

impl Default for Feed {
    fn default() -> Self {
        let (events, _) = broadcast::channel(BEHIND);
        Self {
            current: Mutex::default(),
            curve: Mutex::default(),
            events,
            making: tokio::sync::Mutex::default(),
        }
    }
}

impl Feed {
    /// Forgets everything: another leader's time ends, or this one's begins.
    pub(super) fn begin(&self) {
        *self.current.lock() = None;
        *self.curve.lock() = Curve::default();
    }

    /// Returns the overview of the current state; one that is half a second old will do.
    pub(super) async fn current(
        &self,
        cx: &Context,
        decisions: &Decisions,
    ) -> Result<Arc<Current>, Failure> {
        let _making = self.making.lock().await;
        let (view, revision) = (cx.view(), decisions.revision());
        let of = (view.snapshot.epoch(), revision);
        let earlier = self.current.lock().clone();
        if let Some(earlier) = &earlier {
            let age = earlier.made.elapsed();
            if age < TICK || (earlier.of == of && age < OLD) {
                return Ok(Arc::clone(earlier));
            }
        }
        let (history, now, made) = (decisions.so_far(), cx.clock.now(), Instant::now());
        let mut curve = self.curve.lock().clone();
        let making = compute("the overview", move || {
            let messages = |_: &str| None;
            let overview = Overview::of(&Question {
                snapshot: &view.snapshot,
                history: &history,
                messages: &messages,
                now,
                engine: ENGINE,
            });
            curve.add(overview.point());
            let delta = earlier
                .as_ref()
                .and_then(|earlier| Some(overview.since(&earlier.overview)?.to_json()));
            let current = Current {
                of,
                made,
                overview,
                curve,
                json: OnceLock::new(),
                gzip: OnceLock::new(),
            };
            (Arc::new(current), delta)
        });
        let (current, delta) = making.await.map_err(|error| Failure::internal(&error))?;
        self.curve.lock().clone_from(&current.curve);
        // Under the lock: a stream that begins now gets the change either with its first event or from here.
        let mut latest = self.current.lock();
        *latest = Some(Arc::clone(&current));
        if let Some(delta) = delta {
            let _ = self.events.send(event("change", &delta));
        }
        Ok(current)
    }

    /// Returns the events of a stream: `reset` with the whole overview, and `change` from then on, until the reader is too slow.
    /// Memory is bounded: waiting events are shared by all readers.
    pub(super) fn stream(
        &self,
        permit: OwnedSemaphorePermit,
    ) -> Option<impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + use<>> {
        let current = self.current.lock();
        let changes = self.events.subscribe();
        let first = Arc::clone(current.as_ref()?);
        drop(current);
        let state = (Some(first), Some(changes), permit);
        Some(futures::stream::unfold(
            state,
            |(first, changes, permit)| async {
                let mut changes: Receiver<Bytes> = changes?;
                let (text, changes) = match first {
                    Some(first) => {
                        let json = first.json();
                        let json = std::str::from_utf8(&json).unwrap_or_default();
                        (event("reset", json), Some(changes))
                    }
                    None => match changes.recv().await {
                        Ok(text) => (text, Some(changes)),
                        Err(RecvError::Lagged(_)) => (Bytes::from_static(CLOSED.as_bytes()), None),
                        Err(RecvError::Closed) => return None,
                    },
                };
                Some((Ok(Frame::data(text)), (None, changes, permit)))
            },
        ))
    }

    /// Makes overviews for streams, and for the curve, until `stop`.
    pub(super) async fn keep(&self, cx: &Context, decisions: &Decisions, stop: CancellationToken) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = stop.cancelled() => return,
            }
            let acts = cx.acting.since().is_some() && cx.view().is_synced();
            let due = || self.curve.lock().is_due(cx.clock.now().as_second());
            if acts
                && (self.events.receiver_count() > 0 || due())
                && let Err(failure) = self.current(cx, decisions).await
            {
                tracing::error!(logger = "decisions", ?failure, "cannot make the overview");
            }
        }
    }
}

/// Returns a server-sent event. JSON has no line feeds.
fn event(name: &str, json: &str) -> Bytes {
    Bytes::from(format!("event: {name}\ndata: {json}\n\n"))
}
