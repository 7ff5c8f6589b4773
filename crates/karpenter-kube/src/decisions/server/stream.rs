//! Records as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures::Stream;
use http_body::Frame;
use karpenter_decisions::record::DecisionRecord;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::query::Select;

/// The last line of a stream whose reader is too slow.
const LAGGED: &str = ": closed, the reader is 256 records behind\n\n";

/// The state of a stream.
struct Reader {
    select: Select,
    /// Records from before the stream began.
    earlier: VecDeque<Arc<DecisionRecord>>,
    new: Receiver<Arc<DecisionRecord>>,
    ended: bool,
    _permit: OwnedSemaphorePermit,
}

/// Returns the events of the selected records: first `earlier` ones, then new ones until the reader is too slow. Memory is bounded:
/// waiting records are shared by all readers.
pub(super) fn events(
    select: Select,
    earlier: VecDeque<Arc<DecisionRecord>>,
    new: Receiver<Arc<DecisionRecord>>,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    let reader = Reader {
        select,
        earlier,
        new,
        ended: false,
        _permit: permit,
    };
    futures::stream::unfold(reader, |mut reader| async move {
        let text = reader.next().await?;
        Some((Ok(Frame::data(Bytes::from(text))), reader))
    })
}

impl Reader {
    async fn next(&mut self) -> Option<String> {
        while !self.ended {
            let record = match self.earlier.pop_front() {
                Some(record) => Ok(record),
                None => self.new.recv().await,
            };
            match record {
                Ok(record) if self.select.matches(&record) => return Some(event(&record)),
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => {
                    self.ended = true;
                    return Some(LAGGED.to_owned());
                }
                Err(RecvError::Closed) => self.ended = true,
            }
        }
        None
    }
}

fn event(record: &DecisionRecord) -> String {
    let (id, json) = (record.id, record.to_json());
    format!("id: {id}\nevent: DecisionRecord\ndata: {json}\n\n")
}
