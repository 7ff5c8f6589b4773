//! The second line of `FailedScheduling` events (feature gate `SchedulingHints`): what blocks the pod, in a sentence.
//!
//! The search runs the scheduler, so that it must not delay a pass: a pass hands its events over and goes on; if the last ones are
//! still being explained, they are published without a second line. Pods of one class with one message share a search.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use karpenter_core::cluster::Snapshot;
use karpenter_core::pod::Shape;
use karpenter_core::schedule::{Cancel, Policy};
use karpenter_decisions::blocking::Prepared;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::report::{Failed, WINDOW};
use crate::context::Context;
use crate::controller::compute;

/// Time limit of one search; its result is verified in any case.
const SEARCH_TIMEOUT: Duration = Duration::from_millis(100);
/// Searches for the events of one pass; further classes of pods have no second line until their event is repeated.
const MAX_SEARCHES: usize = 16;
/// Answers that are cached.
const MAX_ANSWERS: usize = 256;
/// The longest message of an event, in bytes.
const MAX_BYTES: usize = 1024;

/// The events of a pass.
struct Batch {
    snapshot: Snapshot,
    policy: Policy,
    failed: Vec<Failed>,
}

/// Hands events over to the task that explains them.
#[derive(Debug)]
pub(super) struct Hints {
    sender: mpsc::Sender<Batch>,
    receiver: Mutex<Option<mpsc::Receiver<Batch>>>,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

impl Default for Hints {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(1);
        Self {
            sender,
            receiver: Mutex::new(Some(receiver)),
        }
    }
}

/// What blocks the pods of a class.
struct Answer {
    /// Keeps the class, by whose address it is found, from being replaced by another.
    _shape: Arc<Shape>,
    message: String,
    at: Instant,
    sentence: Option<String>,
}

impl Hints {
    /// Publishes events, explained if there is time for it.
    pub(super) fn publish(
        &self,
        cx: &Context,
        snapshot: &Snapshot,
        policy: Policy,
        failed: Vec<Failed>,
    ) {
        if failed.is_empty() {
            return;
        }
        let batch = Batch {
            snapshot: snapshot.fork(),
            policy,
            failed,
        };
        if let Err(error) = self.sender.try_send(batch) {
            let (mpsc::error::TrySendError::Full(batch) | mpsc::error::TrySendError::Closed(batch)) =
                error;
            for failed in batch.failed {
                cx.recorder.publish(failed.event);
            }
        }
    }

    /// Explains and publishes events until `stop`.
    pub(super) async fn run(&self, cx: &Context, stop: CancellationToken) {
        let Some(mut receiver) = self.receiver.lock().take() else {
            return;
        };
        let mut answers: FxHashMap<usize, Answer> = FxHashMap::default();
        let mut published: FxHashMap<String, Instant> = FxHashMap::default();
        loop {
            let batch = tokio::select! {
                batch = receiver.recv() => batch,
                () = stop.cancelled() => return,
            };
            let Some(mut batch) = batch else { return };
            let window = cx.clock.real_duration(WINDOW);
            published.retain(|_, at| at.elapsed() < window);
            answers.retain(|_, answer| answer.at.elapsed() < window);
            if answers.len() > MAX_ANSWERS {
                answers.clear();
            }
            let mut searches = MAX_SEARCHES;
            // The searches of a batch are about one snapshot.
            let prepared: Arc<OnceLock<Prepared>> = Arc::default();
            for mut failed in std::mem::take(&mut batch.failed) {
                // The recorder drops a repetition: it needs no search.
                if published.contains_key(&failed.pod.uid) {
                    continue;
                }
                published.insert(failed.pod.uid.clone(), Instant::now());
                let sentence =
                    explain(&batch, &prepared, &failed, &mut answers, &mut searches).await;
                if let Some(sentence) = sentence {
                    append(&mut failed.event.message, &sentence);
                }
                cx.recorder.publish(failed.event);
            }
        }
    }
}

async fn explain(
    batch: &Batch,
    prepared: &Arc<OnceLock<Prepared>>,
    failed: &Failed,
    answers: &mut FxHashMap<usize, Answer>,
    searches: &mut usize,
) -> Option<String> {
    let (key, snapshot) = (&failed.pod, &batch.snapshot);
    let pod = snapshot.pod(&key.namespace, &key.name)?.clone();
    let class = Arc::as_ptr(&pod.shape) as usize;
    if let Some(answer) = answers.get(&class)
        && answer.message == failed.event.message
    {
        return answer.sentence.clone();
    }
    *searches = searches.checked_sub(1)?;
    let (snapshot, policy, shape) = (snapshot.fork(), batch.policy.clone(), pod.shape.clone());
    let prepared = Arc::clone(prepared);
    let found = compute("the explanation", move || {
        let prepared = prepared.get_or_init(|| Prepared::new(&snapshot, &policy));
        let began = Instant::now();
        let cancel: Cancel = Arc::new(move || began.elapsed() > SEARCH_TIMEOUT);
        prepared.blocking(Some(cancel), &pod).sentence()
    });
    let sentence = found.await.ok().flatten();
    let answer = Answer {
        _shape: shape,
        message: failed.event.message.clone(),
        at: Instant::now(),
        sentence: sentence.clone(),
    };
    answers.insert(class, answer);
    sentence
}

/// Appends a line, as far as the API server accepts it.
fn append(message: &mut String, line: &str) {
    let left = MAX_BYTES.saturating_sub(message.len() + 1);
    let mut end = line.len().min(left);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    if end > 0 {
        message.push('\n');
        message.push_str(&line[..end]);
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::api::core::v1::ObjectReference;
    use karpenter_core::cluster::{Cluster, ClusterConfig};
    use karpenter_fixtures::pod;

    use super::*;
    use crate::events::Event;

    #[tokio::test]
    async fn an_answer_is_known_without_a_search_for_the_same_message_and_class() {
        let mut cluster = Cluster::new(ClusterConfig::default());
        cluster.apply_pod(&pod("p").build());
        let snapshot = cluster.snapshot();
        let waits = snapshot.pod("default", "p").unwrap();
        let answer = Answer {
            _shape: Arc::clone(&waits.shape),
            message: "no room".into(),
            at: Instant::now(),
            sentence: Some("because".into()),
        };
        let mut answers = FxHashMap::from_iter([(Arc::as_ptr(&waits.shape) as usize, answer)]);
        let batch = Batch {
            snapshot: snapshot.fork(),
            policy: Policy::at(Timestamp::UNIX_EPOCH),
            failed: Vec::new(),
        };
        let mut explained = async |message: &str| {
            let about = ObjectReference::default();
            let failed = Failed {
                pod: waits.key.clone(),
                event: Event::warning(about, "FailedScheduling", message),
            };
            explain(&batch, &Arc::default(), &failed, &mut answers, &mut 0).await
        };
        assert_eq!(explained("no room").await.as_deref(), Some("because"));
        assert_eq!(explained("another").await, None);
    }

    #[test]
    fn a_second_line_is_cut_where_the_api_server_would_reject_it() {
        let appended = |first: usize, line: &str| {
            let mut message = "x".repeat(first);
            append(&mut message, line);
            message
        };
        assert_eq!(appended(3, "because"), "xxx\nbecause");
        assert_eq!(appended(MAX_BYTES, "because").len(), MAX_BYTES);
        assert_eq!(
            appended(MAX_BYTES - 4, "größe"),
            format!("{}\ngr", "x".repeat(MAX_BYTES - 4))
        );
    }
}
