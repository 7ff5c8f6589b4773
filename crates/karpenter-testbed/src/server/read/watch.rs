//! Watches: a cursor over a collection's changes, turned into lines of JSON.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::faults::Fault;
use crate::present::table::partial_metadata;
use crate::server::ApiServer;
use crate::server::catalog::Served;
use crate::server::wire::error::ApiError;
use crate::server::wire::reply::Reply;
use crate::server::wire::request::{Call, View};
use crate::server::wire::selector::Selectors;
use crate::store::{Change, ChangeKind, Cursor, Expired, Matcher, Object};

/// Maximum number of changes per chunk.
const BATCH: usize = 256;
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// Default duration of a watch.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1800);

struct Watch {
    server: ApiServer,
    served: Arc<Served>,
    call: Call,
    selectors: Selectors,
    cursor: Cursor,
    /// Objects to send as ADDED first.
    initial: std::vec::IntoIter<Arc<Object>>,
    deadline: Instant,
    next_bookmark: Instant,
    first_table: bool,
    ended: bool,
    /// When a fault drops the watch.
    dropped_after: Option<u64>,
    sent: u64,
}

impl ApiServer {
    /// GET with `watch=true`.
    pub(in crate::server) fn watch(
        &self,
        served: &Arc<Served>,
        call: Call,
    ) -> Result<Reply, ApiError> {
        let selectors = self.selectors(served, &call)?;
        let options = &call.options;
        let wanted = match options.resource_version.as_str() {
            "" => 0,
            text => self.revision(text)?,
        };
        let namespace = call.target.namespace.clone();
        let (initial, cursor) = if wanted == 0 {
            served
                .collection
                .list_and_follow(namespace.as_deref(), &selectors)
        } else {
            match served.collection.follow(wanted) {
                Ok(cursor) => (Vec::new(), cursor),
                Err(expired) => return Ok(Reply::bytes(200, expired_line(&expired))),
            }
        };
        let now = Instant::now();
        let timeout = options
            .timeout_seconds
            .map_or(DEFAULT_TIMEOUT, Duration::from_secs);
        let watch = Watch {
            server: self.clone(),
            served: Arc::clone(served),
            selectors,
            cursor,
            initial: initial.into_iter(),
            deadline: now + timeout,
            next_bookmark: now + BOOKMARK_INTERVAL,
            first_table: true,
            ended: false,
            dropped_after: call.faults.iter().find_map(|f| match f {
                Fault::DropWatch { after } => Some(*after),
                _ => None,
            }),
            sent: 0,
            call,
        };
        Ok(Reply::stream(stream::unfold(watch, |mut watch| async {
            let chunk = watch.next().await?;
            Some((chunk, watch))
        })))
    }
}

impl Watch {
    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        loop {
            if self.dropped_after.is_some_and(|n| self.sent >= n) {
                return None;
            }
            let mut out = BytesMut::new();
            self.write_initial(&mut out).await;
            if !out.is_empty() {
                return Some(out.freeze());
            }
            match self.cursor.take(BATCH) {
                Ok(changes) if changes.is_empty() => {}
                Ok(changes) => {
                    for change in &changes {
                        self.write_change(&mut out, change).await;
                    }
                    if out.is_empty() {
                        continue;
                    }
                    return Some(out.freeze());
                }
                Err(expired) => {
                    self.ended = true;
                    return Some(expired_line(&expired));
                }
            }
            let wake = if self.call.options.bookmarks {
                self.next_bookmark.min(self.deadline)
            } else {
                self.deadline
            };
            tokio::select! {
                biased;
                () = self.cursor.changed() => {}
                () = tokio::time::sleep_until(wake) => {
                    let now = Instant::now();
                    if now >= self.deadline {
                        return None;
                    }
                    self.next_bookmark = now + BOOKMARK_INTERVAL;
                    self.bookmark(&mut out);
                    return Some(out.freeze());
                }
            }
        }
    }

    async fn write_initial(&mut self, out: &mut BytesMut) {
        for _ in 0..BATCH {
            let Some(object) = self.initial.next() else {
                return;
            };
            self.write(out, "ADDED", &object).await;
        }
    }

    async fn write_change(&mut self, out: &mut BytesMut, change: &Change) {
        if let Some(namespace) = &self.call.target.namespace
            && change.object.namespace() != namespace
        {
            return;
        }
        let before = change
            .previous
            .as_ref()
            .is_some_and(|o| self.selectors.matches(o));
        let now = change.kind != ChangeKind::Deleted && self.selectors.matches(&change.object);
        match (before, now) {
            (false, true) => self.write(out, "ADDED", &change.object).await,
            (true, true) => self.write(out, "MODIFIED", &change.object).await,
            (true, false) if change.kind == ChangeKind::Deleted => {
                self.write(out, "DELETED", &change.object).await;
            }
            (true, false) => {
                // An object that no longer matches is reported as deleted, in its last matching state, at the new revision.
                if let Some(previous) = &change.previous {
                    let mut value = previous.value();
                    value["metadata"]["resourceVersion"] = change.revision.to_string().into();
                    let gone = Object::new(
                        Arc::clone(&previous.key),
                        change.revision,
                        previous.edition,
                        &value,
                        &[],
                    );
                    self.write(out, "DELETED", &gone).await;
                }
            }
            (false, false) => {}
        }
    }

    async fn write(&mut self, out: &mut BytesMut, kind: &str, object: &Object) {
        self.sent += 1;
        out.put_slice(b"{\"type\":\"");
        out.put_slice(kind.as_bytes());
        out.put_slice(b"\",\"object\":");
        if self.call.view == View::Plain {
            match self.server.present(&self.served, object).await {
                Ok(bytes) => out.put_slice(&bytes),
                Err(error) => out.put_slice(error.status().to_string().as_bytes()),
            }
        } else {
            let shown = match self.server.read(&self.served, object).await {
                Ok(value) if self.call.view == View::Table => {
                    let columns = std::mem::take(&mut self.first_table);
                    let rv = json!({"resourceVersion": value["metadata"]["resourceVersion"]});
                    self.server
                        .table(&self.served, &self.call, &[value], &rv, columns)
                }
                Ok(value) => partial_metadata(&value),
                Err(error) => error.status(),
            };
            out.put_slice(shown.to_string().as_bytes());
        }
        out.put_slice(b"}\n");
    }

    fn bookmark(&self, out: &mut BytesMut) {
        let metadata = json!({
            "resourceVersion": self.cursor.revision().to_string(),
            "creationTimestamp": Value::Null,
        });
        let object = match self.call.view {
            View::Metadata => json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
            }),
            View::Plain | View::Table => json!({
                "kind": self.served.kind,
                "apiVersion": self.served.api_version(),
                "metadata": metadata,
            }),
        };
        out.put_slice(
            json!({"type": "BOOKMARK", "object": object})
                .to_string()
                .as_bytes(),
        );
        out.put_u8(b'\n');
    }
}

fn expired_line(expired: &Expired) -> Bytes {
    let status = ApiError::expired(expired.to_string()).status();
    let mut line = json!({"type": "ERROR", "object": status}).to_string();
    line.push('\n');
    line.into()
}
