//! The open connections of listeners: which one makes room, and which one has had its time.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{HEADER_TIMEOUT, IDLE_TIMEOUT};

/// A limited number of open connections. Clones share it.
#[derive(Clone, Debug)]
pub struct Connections {
    most: usize,
    open: Arc<Mutex<Numbered<Arc<Connection>>>>,
}

/// Values in the order in which they came.
#[derive(Debug)]
struct Numbered<T> {
    next: u64,
    all: BTreeMap<u64, T>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self {
            next: 0,
            all: BTreeMap::new(),
        }
    }
}

impl<T> Numbered<T> {
    fn add(&mut self, value: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.all.insert(number, value);
        number
    }
}

/// Closes the connection of a request, which finds it in its extensions.
#[derive(Clone, Debug)]
pub(crate) struct Closing(pub(crate) CancellationToken);

#[derive(Debug)]
pub(crate) struct Connection {
    closing: CancellationToken,
    requests: Mutex<Requests>,
}

/// The requests of a connection.
#[derive(Debug)]
struct Requests {
    /// When each request in flight began.
    in_flight: Numbered<Instant>,
    /// When the last one ended; before the first one, when the connection was accepted.
    since: Instant,
}

impl Requests {
    /// Returns whether a request is in flight, and since when that is so, or not so.
    fn state(&self) -> (bool, Instant) {
        match self.in_flight.all.first_key_value() {
            Some((_, began)) => (true, *began),
            None => (false, self.since),
        }
    }
}

impl Connection {
    fn new() -> Self {
        Self {
            closing: CancellationToken::new(),
            requests: Mutex::new(Requests {
                in_flight: Numbered::default(),
                since: Instant::now(),
            }),
        }
    }

    /// Counts a request until the result is dropped.
    pub(crate) fn request(self: &Arc<Self>) -> InFlight {
        let number = self.requests.lock().in_flight.add(Instant::now());
        InFlight {
            connection: Arc::clone(self),
            number,
        }
    }

    pub(crate) fn closing(&self) -> Closing {
        Closing(self.closing.clone())
    }
}

/// A request in flight.
#[derive(Debug)]
pub(crate) struct InFlight {
    connection: Arc<Connection>,
    number: u64,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut requests = self.connection.requests.lock();
        requests.in_flight.all.remove(&self.number);
        requests.since = Instant::now();
    }
}

impl Connections {
    /// Creates a limit of open connections.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            open: Arc::default(),
        }
    }

    /// Returns how many connections are open.
    #[must_use]
    pub fn count(&self) -> usize {
        self.open.lock().all.len()
    }

    /// Counts a connection until the result is dropped. If there are too many, that without a request for the longest time is
    /// closed; if all have requests, that with the oldest one.
    pub(crate) fn open(&self) -> Open {
        let mut open = self.open.lock();
        while open.all.len() >= self.most {
            let state = |(_, it): &(&u64, &Arc<Connection>)| it.requests.lock().state();
            let Some((&number, _)) = open.all.iter().min_by_key(state) else {
                break;
            };
            if let Some(connection) = open.all.remove(&number) {
                connection.closing.cancel();
            }
        }
        let connection = Arc::new(Connection::new());
        let number = open.add(Arc::clone(&connection));
        Open {
            all: self.clone(),
            connection,
            number,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Open {
    all: Connections,
    connection: Arc<Connection>,
    number: u64,
}

impl Open {
    pub(crate) fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.connection)
    }

    /// Returns what is canceled when the connection has to make room.
    pub(crate) fn closed(&self) -> CancellationToken {
        self.connection.closing.clone()
    }

    /// Waits until the connection has been idle for too long, or a request has taken longer than `request`.
    pub(crate) async fn overdue(&self, request: Duration) {
        loop {
            let (until, now) = {
                let requests = self.connection.requests.lock();
                let (is_busy, since) = requests.state();
                let first = requests.in_flight.next == 0;
                let longest = match (is_busy, first) {
                    (true, _) => request,
                    (false, true) => HEADER_TIMEOUT,
                    (false, false) => IDLE_TIMEOUT,
                };
                (since.checked_add(longest), Instant::now())
            };
            if until.is_some_and(|until| until <= now) {
                return;
            }
            // The state may change meanwhile.
            let look = now + HEADER_TIMEOUT;
            tokio::time::sleep_until(until.map_or(look, |until| until.min(look))).await;
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.all.open.lock().all.remove(&self.number);
    }
}

/// The body of a response, whose request is in flight until the body is dropped.
#[derive(Debug)]
pub(crate) struct Counted<B> {
    body: B,
    _request: InFlight,
}

impl<B> Counted<B> {
    pub(crate) fn new(body: B, request: InFlight) -> Self {
        Self {
            body,
            _request: request,
        }
    }
}

impl<B: Body + Unpin> Body for Counted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
