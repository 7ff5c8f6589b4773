//! Polling of the interruption queue.
//!
//! One poller waits at the queue with long polls. When it receives a full batch there are more messages, and the
//! helpers poll too until the queue is empty: an idle queue costs three calls per minute, and a burst is handled by all
//! pollers.
//!
//! UPSTREAM: pkg/controllers/interruption/controller.go, metrics.go

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use karpenter_api::v1::NodeClaim;
use karpenter_core::provider::CloudProviderError;
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Backoff, Periodic, ReconcileError};
use karpenter_kube::metrics::{Counter, DURATION_BUCKETS, Histogram, Registry};
use karpenter_kube::operator::ControllerRegistry;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::handler::{Handler, claims_of};
use super::message;
use super::message::Notice;
use super::queue::{BATCH, Queue, Received};
use crate::sdk::AwsError;

/// How long the first poller waits for a message: the maximum of SQS.
const LONG_POLL: Duration = Duration::from_secs(20);
/// Number of helpers that poll when there is more than one batch.
const HELPERS: usize = 3;
/// Delay of a pass while the model is not synced.
const SYNC_RETRY: Duration = Duration::from_secs(1);
/// How long IDs of handled messages are remembered: as long as the documented queue retains messages.
const HANDLED_TTL: SignedDuration = SignedDuration::from_mins(5);
/// Back-off after a failure; short, so that a repaired queue is read soon.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_secs(1),
    max: Duration::from_secs(30),
};

/// Adds the pollers of a queue to an operator.
pub fn add(setup: &mut ControllerRegistry, queue: Queue, handler: Handler) {
    let cx = Arc::clone(setup.context());
    let shared = Arc::new(Shared {
        metrics: QueueMetrics::new(&cx.metrics.registry),
        cx,
        queue,
        handler,
        more: Notify::new(),
        handled: Mutex::default(),
    });
    for role in std::iter::once(Role::First).chain([Role::Helper; HELPERS]) {
        let shared = Arc::clone(&shared);
        setup.periodic(Poller { shared, role });
    }
}

#[derive(Clone, Debug)]
struct QueueMetrics {
    received: Counter,
    deleted: Counter,
    latency: Histogram,
}

impl QueueMetrics {
    fn new(registry: &Registry) -> Self {
        Self {
            received: registry.counter(
                "karpenter_interruption_received_messages_total",
                "Count of messages received from the SQS queue. Broken down by message type and whether the message was actionable.",
                &["message_type"],
            ),
            deleted: registry.counter(
                "karpenter_interruption_deleted_messages_total",
                "Count of messages deleted from the SQS queue.",
                &[],
            ),
            latency: registry.histogram(
                "karpenter_interruption_message_queue_duration_seconds",
                "Amount of time an interruption message is on the queue before it is processed by karpenter.",
                &[],
                DURATION_BUCKETS,
            ),
        }
    }
}

/// IDs of handled messages.
#[derive(Debug, Default)]
struct HandledIds {
    ids: HashSet<String>,
    order: VecDeque<(Timestamp, String)>,
}

impl HandledIds {
    fn contains(&mut self, id: &str, now: Timestamp) -> bool {
        while let Some((at, oldest)) = self.order.front()
            && now.duration_since(*at) > HANDLED_TTL
        {
            self.ids.remove(oldest);
            self.order.pop_front();
        }
        self.ids.contains(id)
    }

    fn add(&mut self, id: String, now: Timestamp) {
        if self.ids.insert(id.clone()) {
            self.order.push_back((now, id));
        }
    }
}

struct Shared {
    cx: Arc<Context>,
    queue: Queue,
    handler: Handler,
    metrics: QueueMetrics,
    /// Signals that there are more messages than one batch.
    more: Notify,
    handled: Mutex<HandledIds>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Waits at the queue.
    First,
    /// Polls while there are more messages than one batch.
    Helper,
}

struct Poller {
    shared: Arc<Shared>,
    role: Role,
}

impl Periodic for Poller {
    const NAME: &'static str = "interruption";

    fn backoff(&self) -> Backoff {
        BACKOFF
    }

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        // A NodeClaim that the model does not know yet would be missed.
        if !self.shared.cx.view().is_synced() {
            return Ok(SYNC_RETRY);
        }
        match self.role {
            Role::First => {
                self.shared.round(LONG_POLL).await?;
            }
            Role::Helper => {
                self.shared.more.notified().await;
                while self.shared.round(Duration::ZERO).await? == BATCH {}
            }
        }
        Ok(Duration::ZERO)
    }
}

/// An error of the interruption queue, with what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
struct Unusable {
    what: String,
    source: AwsError,
}

impl Shared {
    /// Receives, handles and deletes a batch of messages; returns their number.
    async fn round(&self, wait: Duration) -> Result<usize, ReconcileError> {
        let received = self.queue.receive(wait).await;
        let received = received.map_err(|error| self.unusable(error))?;
        if received.len() == BATCH {
            self.more.notify_waiters();
        }
        let notices: Vec<Option<Notice>> = received.iter().map(read).collect();
        let instances: BTreeSet<&str> = notices
            .iter()
            .flatten()
            .flat_map(|notice| notice.instances.iter().map(String::as_str))
            .collect();
        let claims = claims_of(&self.cx, &self.cx.view(), &instances);
        let outcomes = join_all(notices.iter().map(|notice| self.handle(notice, &claims))).await;
        let done: Vec<&str> = received
            .iter()
            .zip(&outcomes)
            .filter(|(_, outcome)| outcome.is_ok())
            .map(|(message, _)| message.handle.as_str())
            .collect();
        let deleted = self.queue.delete(&done).await;
        let deleted = deleted.map_err(|error| self.unusable(error))?;
        self.metrics.deleted.add(&[], deleted as f64);
        ReconcileError::collect(outcomes.into_iter().filter_map(Result::err).collect())?;
        Ok(received.len())
    }

    /// Handles a message. `Ok` means that it can be deleted.
    async fn handle(
        &self,
        notice: &Option<Notice>,
        claims: &BTreeMap<String, Vec<Arc<NodeClaim>>>,
    ) -> Result<(), ReconcileError> {
        let Some(notice) = notice else {
            return Ok(());
        };
        self.metrics.received.inc(&[notice.kind.as_str()]);
        let now = self.cx.clock.now();
        if let Some(id) = &notice.id
            && self.handled().contains(id, now)
        {
            return Ok(());
        }
        let concerned = notice.instances.iter().filter_map(|id| claims.get(id));
        let handled = concerned
            .flatten()
            .map(|claim| self.handler.handle(notice.kind, claim));
        let failed = join_all(handled).await.into_iter().filter_map(Result::err);
        ReconcileError::collect(failed.collect())?;
        if let Some(sent) = notice.sent {
            let waited = self.cx.clock.since(sent);
            self.metrics.latency.observe(&[], waited.as_secs_f64());
        }
        if let Some(id) = &notice.id {
            self.handled().add(id.clone(), now);
        }
        Ok(())
    }

    fn handled(&self) -> parking_lot::MutexGuard<'_, HandledIds> {
        self.handled.lock()
    }

    /// Returns an error with how to repair the queue or its permissions.
    fn unusable(&self, source: AwsError) -> ReconcileError {
        let (name, error) = (self.queue.name(), &source);
        let what = if error.is_not_found() {
            format!(
                "cannot use the interruption queue `{name}`, it does not exist in this account and region: create it, or change --interruption-queue"
            )
        } else if error.is_unauthorized() {
            format!(
                "cannot use the interruption queue `{name}`, access is denied: allow sqs:GetQueueUrl, sqs:ReceiveMessage and sqs:DeleteMessage on it, see docs/getting-started/cloudformation.yaml"
            )
        } else {
            format!("cannot use the interruption queue `{name}`")
        };
        ReconcileError::Provider {
            action: "receiving messages",
            source: CloudProviderError::other(Unusable { what, source }),
        }
    }
}

fn read(message: &Received) -> Option<Notice> {
    match message::parse(&message.body) {
        Ok(notice) => Some(notice),
        Err(error) => {
            tracing::error!(logger = "interruption", error = %error, "failed parsing interruption message");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_remembered_as_long_as_a_message_can_be_redelivered() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut handled = HandledIds::default();
        handled.add("a".into(), at(0));
        handled.add("b".into(), at(200));
        assert!(handled.contains("a", at(300)));
        assert!(!handled.contains("a", at(301)));
        assert!(handled.contains("b", at(301)));
    }
}
