//! Bodies of requests that are read into memory, with a budget for all of them.

use std::collections::BTreeMap;
use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use http::Request;
use http_body::Body;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::connections::Closing;
use crate::pieces::Pieces;

/// Why a body is not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// It is longer than one body may be.
    #[error("the body is longer than {0} bytes")]
    TooLarge(usize),
    /// With the others it is longer than all may be.
    #[error("the bodies of concurrent requests are too large")]
    TooLargeTogether,
    /// It did not arrive in time.
    #[error("the body did not arrive within {}s", .0.as_secs())]
    TooSlow(Duration),
    /// The connection is broken.
    #[error("cannot read the body: {0}")]
    Broken(Box<dyn Error + Send + Sync>),
}

/// A budget of bytes for the bodies of all concurrent requests. Clones share it.
///
/// If there is no room for a body, the connection of the oldest one that is still being read or sent is closed: clients that stall
/// do not keep others out. A body that is being worked on keeps its room.
#[derive(Clone, Debug)]
pub struct Bodies(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    most: usize,
    held: Mutex<AllHeld>,
}

#[derive(Debug, Default)]
struct AllHeld {
    next: u64,
    bytes: usize,
    all: BTreeMap<u64, Room>,
}

/// The room of a body.
#[derive(Debug)]
struct Room {
    bytes: usize,
    closing: CancellationToken,
    /// Whether the server is waiting for the client (to send the body or to take the response).
    waits: bool,
}

/// A body that counts until this is dropped.
#[derive(Debug)]
pub struct Held {
    budget: Arc<Budget>,
    number: u64,
}

impl Bodies {
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Budget {
            most,
            held: Mutex::default(),
        }))
    }

    /// Returns the bytes of all bodies.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.held.lock().bytes
    }

    /// Reads a body of at most `longest` bytes.
    ///
    /// # Errors
    /// If it is too long, has no room, or does not arrive `within` the time.
    pub async fn read<B>(
        &self,
        request: Request<B>,
        longest: usize,
        within: Duration,
    ) -> Result<(Vec<u8>, Held), Refused>
    where
        B: Body<Error: Into<Box<dyn Error + Send + Sync>>>,
    {
        let (head, body) = request.into_parts();
        let closing = head.extensions.get::<Closing>();
        let closing = closing.map_or_else(CancellationToken::new, |it| it.0.clone());
        let held = self.hold(closing.clone());
        let reading = async {
            let mut body = pin!(body);
            let mut read = Pieces::default();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| Refused::Broken(error.into()))?;
                let Ok(mut data) = frame.into_data() else {
                    continue;
                };
                if read.len() + data.remaining() > longest {
                    return Err(Refused::TooLarge(longest));
                }
                held.grow(data.remaining())?;
                while data.has_remaining() {
                    let chunk = data.chunk();
                    read.push(chunk);
                    let taken = chunk.len();
                    data.advance(taken);
                }
            }
            Ok(read)
        };
        let read = tokio::select! {
            biased;
            () = closing.cancelled() => Err(Refused::TooLargeTogether),
            read = tokio::time::timeout(within, reading) => {
                read.unwrap_or(Err(Refused::TooSlow(within)))
            }
        }?;
        held.waits(false);
        Ok((read.join(), held))
    }

    fn hold(&self, closing: CancellationToken) -> Held {
        let mut held = self.0.held.lock();
        let number = held.next;
        held.next += 1;
        let room = Room {
            bytes: 0,
            closing,
            waits: true,
        };
        held.all.insert(number, room);
        Held {
            budget: Arc::clone(&self.0),
            number,
        }
    }
}

impl AllHeld {
    fn remove(&mut self, number: u64) -> Option<Room> {
        let room = self.all.remove(&number)?;
        self.bytes -= room.bytes;
        Some(room)
    }
}

impl Held {
    /// Adds bytes. Others make room, the oldest first.
    ///
    /// # Errors
    /// If there is no room.
    pub fn grow(&self, bytes: usize) -> Result<(), Refused> {
        let mut held = self.budget.held.lock();
        while held.bytes + bytes > self.budget.most {
            let waits = |(number, room): &(&u64, &Room)| room.waits && **number != self.number;
            let oldest = held.all.iter().find(waits).map(|(number, _)| *number);
            let oldest = oldest.ok_or(Refused::TooLargeTogether)?;
            if let Some(room) = held.remove(oldest) {
                room.closing.cancel();
            }
        }
        // Another body may have taken the room of this one.
        let room = held.all.get_mut(&self.number);
        room.ok_or(Refused::TooLargeTogether)?.bytes += bytes;
        held.bytes += bytes;
        Ok(())
    }

    fn waits(&self, waits: bool) {
        if let Some(room) = self.budget.held.lock().all.get_mut(&self.number) {
            room.waits = waits;
        }
    }

    /// Counts a response in place of the body that was read.
    pub(crate) fn is_sent(&self, bytes: usize) {
        let mut held = self.budget.held.lock();
        if let Some(mut room) = held.remove(self.number) {
            room.bytes = bytes;
            room.waits = true;
            held.bytes += bytes;
            held.all.insert(self.number, room);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.held.lock().remove(self.number);
    }
}
