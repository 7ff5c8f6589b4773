//! Bytes in pieces.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::body::Held;

/// The length from which on a piece is closed.
const PIECE: usize = 64 << 10;

/// Bytes in pieces: they grow without being copied into a larger buffer, and as the body of a response each is freed once it has
/// been sent.
#[derive(Debug, Default)]
pub struct Pieces {
    closed: VecDeque<Bytes>,
    last: Vec<u8>,
    length: usize,
    /// What counts them while they are sent.
    held: Option<Held>,
}

impl Pieces {
    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Reports whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Counts the bytes, instead of what was counted before, until they have been sent.
    #[must_use]
    pub fn held_by(mut self, held: Held) -> Self {
        held.is_sent(self.length);
        self.held = Some(held);
        self
    }

    /// Adds bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.length += bytes.len();
        self.last.extend_from_slice(bytes);
        if self.last.len() >= PIECE {
            self.close();
        }
    }

    fn close(&mut self) {
        let piece = std::mem::take(&mut self.last).into_boxed_slice();
        self.closed.push_back(Bytes::from(piece));
    }

    /// Returns the bytes in one piece. Meanwhile there are at most twice as many.
    pub(crate) fn join(mut self) -> Vec<u8> {
        if self.closed.is_empty() {
            return self.last;
        }
        let mut whole = Vec::with_capacity(self.length);
        while let Some(piece) = self.closed.pop_front() {
            whole.extend_from_slice(&piece);
        }
        whole.extend_from_slice(&self.last);
        whole
    }
}

impl From<String> for Pieces {
    fn from(text: String) -> Self {
        Self {
            length: text.len(),
            last: text.into_bytes(),
            ..Self::default()
        }
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.closed.is_empty() && !self.last.is_empty() {
            self.close();
        }
        let piece = self.closed.pop_front();
        self.length -= piece.as_ref().map_or(0, Bytes::len);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.length == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length as u64)
    }
}
