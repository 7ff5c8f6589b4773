//! The latest overview, for all clients together: it is made once for a state of the cluster, and its changes are sent to streams.

use std::convert::Infallible;
use std::io::Write as _;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::Stream;
use http_body::Frame;
use karpenter_decisions::overview::{Curve, Overview};
use parking_lot::Mutex;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, broadcast};
use tokio::time::Instant;

/// How many records the reader of a stream may be behind.
pub(super) const MAX_LAG: usize = 256;
/// The last line of a stream whose reader is too slow.
const CLOSED: &str = ": closed, the reader is 256 events behind\n\n";

/// The current overview, and its streams.
pub(super) struct Feed {
    pub(super) current: Mutex<Option<Arc<Current>>>,
    pub(super) curve: Mutex<Curve>,
    pub(super) events: broadcast::Sender<Bytes>,
    /// Held while an overview is made.
    pub(super) making: tokio::sync::Mutex<()>,
}

pub(super) struct Current {
    /// The epoch of the model and the revision of the history that it was made of.
    pub(super) of: (u64, u64),
    pub(super) made: Instant,
    pub(super) overview: Overview,
    pub(super) curve: Curve,
    pub(super) json: OnceLock<Bytes>,
    pub(super) gzip: OnceLock<Bytes>,
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
        let (events, _) = broadcast::channel(MAX_LAG);
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
}

/// Returns a server-sent event. JSON has no line feeds.
pub(super) fn event(name: &str, json: &str) -> Bytes {
    Bytes::from(format!("event: {name}\ndata: {json}\n\n"))
}
