//! Who asks the queue, how often, and what if it fails.
//!
//! One poller waits at the queue all the time. When it gets as many messages as fit into an answer there are more, and the
//! others help until the queue is empty: a quiet queue costs three calls a minute, a storm is worked off by all.
//!
//! UPSTREAM: pkg/controllers/interruption/controller.go, metrics.go

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use karpenter_api::v1::NodeClaim;
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Backoff, Periodic, ReconcileError};
use karpenter_kube::metrics::{Counter, DURATION_BUCKETS, Histogram, Registry};
use karpenter_kube::operator::Setup;
use tokio::sync::Notify;

use super::handler::{Handler, claims_of};
use super::message::{self, Notice};
use super::queue::{BATCH, Queue, Received};
use crate::sdk::AwsError;

/// How long the first poller waits for a message: the longest SQS allows.
const LONG_POLL: Duration = Duration::from_secs(20);
/// How many help when there is more than one answer's worth.
const HELPERS: usize = 3;
/// How long to wait for the model.
const UNSYNCED: Duration = Duration::from_secs(1);
/// How long the ids of messages are known: as long as a queue keeps them that was set up as documented.
const KNOWN: SignedDuration = SignedDuration::from_mins(5);
/// After a failure; it is not to take long until a queue that was mended is read again.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_secs(1),
    max: Duration::from_secs(30),
};

/// Adds the pollers of a queue to an operator.
pub fn add(setup: &mut Setup, queue: Queue, handler: Handler) {
    let cx = Arc::clone(setup.context());
    let shared = Arc::new(Shared {
        metrics: QueueMetrics::new(&cx.metrics.registry),
        cx,
        queue,
        handler,
        more: Notify::new(),
        known: Mutex::default(),
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

/// Ids of messages that are done with, for a while.
#[derive(Debug, Default)]
struct Known {
    ids: HashSet<String>,
    order: VecDeque<(Timestamp, String)>,
}

impl Known {
    fn contains(&mut self, id: &str, now: Timestamp) -> bool {
        while let Some((at, oldest)) = self.order.front()
            && now.duration_since(*at) > KNOWN
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
    /// There are more messages than one poller gets at once.
    more: Notify,
    known: Mutex<Known>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Waits at the queue.
    First,
    /// Helps to empty it.
    Helper,
}

struct Poller {
    shared: Arc<Shared>,
    role: Role,
}

impl Periodic for Poller {
    fn name(&self) -> &'static str {
        "interruption"
    }

    fn backoff(&self) -> Backoff {
        BACKOFF
    }

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        // A claim that is not known yet would be taken for nobody's.
        if !self.shared.cx.view().is_synced() {
            return Ok(UNSYNCED);
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

impl Shared {
    /// Receives, handles, deletes. How many messages there were.
    async fn round(&self, wait: Duration) -> Result<usize, ReconcileError> {
        let received = self.queue.receive(wait).await;
        let received = received.map_err(|error| self.unusable(&error))?;
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
        let deleted = deleted.map_err(|error| self.unusable(&error))?;
        self.metrics.deleted.add(&[], deleted as f64);
        ReconcileError::collect(outcomes.into_iter().filter_map(Result::err).collect())?;
        Ok(received.len())
    }

    /// Does what a message asks for. `Ok` means that it can be deleted.
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
            && self.known().contains(id, now)
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
            self.known().add(id.clone(), now);
        }
        Ok(())
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to do about a queue that cannot be used.
    fn unusable(&self, error: &AwsError) -> ReconcileError {
        let name = self.queue.name();
        let what = if error.is_not_found() {
            format!(
                "the interruption queue `{name}` does not exist in this account and region: create it, or change --interruption-queue"
            )
        } else if error.is_unauthorized() {
            format!(
                "the interruption queue `{name}` may not be used: allow sqs:GetQueueUrl, sqs:ReceiveMessage and sqs:DeleteMessage on it, see docs/getting-started/cloudformation.yaml"
            )
        } else {
            format!("the interruption queue `{name}` cannot be used")
        };
        ReconcileError::Internal(format!("{what}: {error}"))
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
    fn ids_are_known_as_long_as_a_message_can_come_again() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut known = Known::default();
        known.add("a".into(), at(0));
        known.add("b".into(), at(200));
        assert!(known.contains("a", at(300)));
        assert!(!known.contains("a", at(301)));
        assert!(known.contains("b", at(301)));
    }
}
