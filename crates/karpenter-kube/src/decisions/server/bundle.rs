//! Bundles of the current state: written in a thread of their own, and sent while they are written.

use std::convert::Infallible;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::Stream;
use http_body::Frame;
use karpenter_core::schedule::Cancel;
use karpenter_decisions::bundle::{self, Bundle, Settings};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::context::Context;
use crate::decisions::state::{Decisions, ENGINE};

/// How long the decisions on the snapshot may take; those that take longer are marked as cut short.
const TIME_LIMIT: Duration = Duration::from_secs(2);
/// The size of the pieces that are sent.
const PIECE: usize = 64 << 10;
/// How many pieces may wait for the client.
const WAITING: usize = 16;

/// Returns the current state as a bundle, without decisions.
pub(super) fn current(cx: &Context, decisions: &Decisions) -> Bundle {
    let view = cx.view();
    let now = cx.clock.now();
    let never: Cancel = std::sync::Arc::new(|| false);
    let request = decisions.disruption(now, never);
    let policy = decisions.policy(now);
    let policy = policy.unwrap_or_else(|| crate::provisioning::policy(cx).with_now(now));
    let mut settings = Settings::new(policy, request);
    for gate in [
        "NodeRepair",
        "ReservedCapacity",
        "SpotToSpotConsolidation",
        "NodeOverlay",
        "StaticCapacity",
        "CapacityBuffer",
    ] {
        let is_on = cx.options.feature_gates.is_on(gate);
        settings.gates.insert(gate.to_owned(), is_on);
    }
    let seconds = |duration: Duration| format!("{}s", duration.as_secs_f64());
    let options = &mut settings.options;
    let idle = seconds(cx.options.batch_idle_duration);
    options.insert("batch-idle-duration".to_owned(), idle);
    let most = seconds(cx.options.batch_max_duration);
    options.insert("batch-max-duration".to_owned(), most);
    let provider = cx.provider.profile().name.clone();
    Bundle::new(&provider, ENGINE, view.snapshot.fork(), settings)
}

/// Writes a bundle while it is sent. It is decided on first, in the same thread, which ends the search; the permit is held until the
/// client has it all.
///
/// Once the client is gone, writing ends. If writing fails, the body ends without the bundle's trailer, which readers notice.
pub(super) fn sent(
    bundle: Bundle,
    search: OwnedSemaphorePermit,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + use<> {
    let (pieces, receiver) = channel(WAITING);
    tokio::task::spawn_blocking(move || {
        let began = Instant::now();
        let cancel: Cancel = std::sync::Arc::new(move || began.elapsed() > TIME_LIMIT);
        let bundle = bundle.decided(Some(&cancel));
        drop(search);
        let mut file = Pieces {
            pieces,
            piece: Vec::with_capacity(PIECE),
        };
        if let Err(error) = bundle::write(&bundle, &mut file).and_then(|()| file.flush()) {
            tracing::debug!(logger = "decisions", %error, "cannot send the bundle");
        }
    });
    stream(receiver, permit)
}

fn stream(
    receiver: Receiver<Bytes>,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    futures::stream::unfold((receiver, permit), |(mut receiver, permit)| async move {
        let piece = receiver.recv().await?;
        Some((Ok(Frame::data(piece)), (receiver, permit)))
    })
}

/// Sends what is written in pieces; waits while the client is slow.
struct Pieces {
    pieces: Sender<Bytes>,
    piece: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        let sent = self.pieces.blocking_send(piece.into());
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
