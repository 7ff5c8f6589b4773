//! Runs controllers: per-object ones from a queue, periodic ones in a loop.

use std::fmt::Debug;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use rustc_hash::FxHasher;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use super::{Backoff, Queue, ReconcileError};
use crate::clock::Clock;
use crate::context::Context;
use crate::logging;
use crate::metrics::Outcome;
use crate::model::{Change, View};
use crate::options::Options;

tokio::task_local! {
    static CONTROLLER: &'static str;
}

/// Returns the name of the controller that runs this code; empty outside of controllers. It is a label of the provider metrics.
#[must_use]
pub fn current_controller() -> &'static str {
    CONTROLLER.try_with(|name| *name).unwrap_or_default()
}

/// A finished reconciliation: its key, its result unless it panicked, its duration, and its log span.
type Finished<K> = (K, Option<Result<Next, ReconcileError>>, Duration, Span);

/// Ids of the reconciliations of one controller for the log: unique among controllers and processes, and repeatable in a
/// simulation.
struct ReconcileIds {
    controller: u64,
    started: i128,
    count: u64,
}

impl ReconcileIds {
    fn new(controller: &str, started: Timestamp) -> Self {
        let mut hasher = FxHasher::default();
        controller.hash(&mut hasher);
        Self {
            controller: hasher.finish(),
            started: started.as_nanosecond(),
            count: 0,
        }
    }

    /// Returns the next id in upstream's format: a UUID.
    fn next(&mut self) -> String {
        self.count += 1;
        let (at, of, count) = (self.started, self.controller, self.count);
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            (at >> 32) & 0xffff_ffff,
            (at >> 16) & 0xffff,
            at & 0xffff,
            of & 0xffff,
            count & 0xffff_ffff_ffff
        )
    }
}

/// What follows a successful reconciliation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Waits for the next change.
    Wait,
    /// Requeues the key after this delay, even if nothing changes.
    After(Duration),
}

impl Next {
    /// Returns the earlier of two.
    #[must_use]
    pub fn sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::After(a), Self::After(b)) => Self::After(a.min(b)),
            (Self::After(a), Self::Wait) | (Self::Wait, Self::After(a)) => Self::After(a),
            (Self::Wait, Self::Wait) => Self::Wait,
        }
    }
}

/// A controller that works on one object at a time.
///
/// The framework guarantees: never two reconciliations of one key at once; a change during a reconciliation requeues the
/// key; an error is logged and retried with back-off; a conflict or a deleted object is not an error.
pub trait Controller: Send + Sync + 'static {
    /// Identifies a piece of work, usually an [`ObjectKey`](super::ObjectKey).
    type Key: Clone + Eq + Hash + Ord + Debug + Send + Sync + 'static;

    /// Upstream's name of the controller: the log key `controller` and the metric label.
    const NAME: &'static str;
    /// The kind under which the key is logged, such as `NodeClaim`.
    const KIND: &'static str;

    /// Returns the number of keys that are reconciled in parallel.
    fn concurrency(&self, options: &Options) -> usize {
        options.concurrency(10, 1000)
    }

    /// Returns the back-off of failing keys.
    fn backoff(&self) -> Backoff {
        Backoff::DEFAULT
    }

    /// Adds the keys that a change of the model makes due to the queue. `view` already contains the change.
    ///
    /// It is called on the model's task for every change: it must be quick.
    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<Self::Key>);

    /// Reconciles one object. Reads the view again each time; the view may lag behind.
    ///
    /// # Errors
    /// When the API server or the provider fails; the key is requeued.
    fn reconcile(
        &self,
        key: Self::Key,
    ) -> impl Future<Output = Result<Next, ReconcileError>> + Send;
}

/// A controller that reconciles all objects periodically.
pub trait Periodic: Send + Sync + 'static {
    /// Upstream's name of the controller.
    const NAME: &'static str;

    /// Performs one pass; returns the delay until the next.
    ///
    /// # Errors
    /// When the API server or the provider fails; the pass is repeated with back-off.
    fn pass(&mut self) -> impl Future<Output = Result<Duration, ReconcileError>> + Send;

    /// Returns the back-off after failures.
    fn backoff(&self) -> Backoff {
        Backoff::DEFAULT
    }
}

/// Reconciles the keys of a controller's queue until `stop`, then lets running reconciliations finish.
///
/// It begins when the model is in sync: in a partly listed cluster, objects look deleted and nodes whose pods are not
/// listed yet look drained.
pub async fn run<C: Controller>(
    controller: Arc<C>,
    queue: Queue<C::Key>,
    cx: &Context,
    stop: CancellationToken,
) {
    let concurrency = controller.concurrency(&cx.options).max(1);
    let metrics = cx.metrics.work.of(C::NAME, concurrency);
    let mut ids = ReconcileIds::new(C::NAME, cx.clock.now());
    let mut running: JoinSet<Finished<C::Key>> = JoinSet::new();
    tokio::select! {
        biased;
        () = stop.cancelled() => return,
        () = cx.model.synced() => {}
    }
    while !stop.is_cancelled() {
        while running.len() < concurrency
            && let Some((key, waited)) = queue.next_waited()
        {
            metrics.waited(waited);
            let controller = Arc::clone(&controller);
            // The span has the level error, so that the object is named at any `log-level`.
            let span = tracing::error_span!(
                "reconcile",
                controller = C::NAME,
                reconcileID = ids.next(),
                object.kind = C::KIND,
                object = object(&key),
            );
            let about = span.clone();
            let work = async move {
                // A panic is a bug in one reconciliation; it must not end the others.
                let outcome = AssertUnwindSafe(controller.reconcile(key.clone())).catch_unwind();
                let started = Instant::now();
                let outcome = outcome.await.ok();
                (key, outcome, started.elapsed(), about)
            };
            running.spawn(CONTROLLER.scope(C::NAME, work.instrument(span)));
            metrics.active(running.len());
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(finished) = running.join_next() => {
                metrics.active(running.len());
                if let Ok((key, outcome, took, span)) = finished {
                    metrics.ended(outcome_of(outcome.as_ref()), took);
                    span.in_scope(|| complete(&*controller, &queue, &cx.clock, key, outcome));
                }
            }
            () = queue.changed(), if running.len() < concurrency => {}
        }
    }
    while running.join_next().await.is_some() {}
}

fn outcome_of(result: Option<&Result<Next, ReconcileError>>) -> Outcome {
    match result {
        None => Outcome::Panic,
        Some(Ok(Next::Wait)) => Outcome::Success,
        Some(Ok(Next::After(_))) => Outcome::RequeueAfter,
        Some(Err(error)) => outcome_of_error(error),
    }
}

fn outcome_of_error(error: &ReconcileError) -> Outcome {
    match error {
        ReconcileError::Stopping => Outcome::Success,
        error if error.is_not_found() => Outcome::Success,
        error if error.is_expected() => Outcome::Requeue,
        _ => Outcome::Error,
    }
}

fn complete<C: Controller>(
    controller: &C,
    queue: &Queue<C::Key>,
    clock: &Clock,
    key: C::Key,
    outcome: Option<Result<Next, ReconcileError>>,
) {
    let backoff = controller.backoff();
    let failed = |key: C::Key| {
        let of = key.clone();
        queue.failed(key, |failures| {
            clock.real_duration(backoff.of(&of, failures))
        })
    };
    match outcome {
        Some(Ok(Next::Wait)) => queue.done(key, None),
        Some(Ok(Next::After(wait))) => queue.done(key, Some(clock.instant_after(wait))),
        Some(Err(error)) if error.is_not_found() => queue.done(key, None),
        Some(Err(error)) if error.is_expected() => {
            failed(key);
        }
        Some(Err(ReconcileError::Stopping)) => queue.done(key, None),
        Some(Err(error)) => {
            let failures = failed(key);
            error.log(failures);
        }
        None => {
            failed(key);
            tracing::error!("reconciler panicked");
        }
    }
}

/// Returns the object of a key for the log; `None` if the controller has only one key.
fn object<K: Debug>(key: &K) -> Option<String> {
    if size_of::<K>() == 0 {
        return None;
    }
    let text = format!("{key:?}");
    Some(match text.split_once('/') {
        Some((namespace, name)) => logging::object(Some(namespace), name),
        None => logging::object(None, &text),
    })
}

/// Repeats the passes of a periodic controller until `stop`.
pub async fn run_periodic<P: Periodic>(mut periodic: P, cx: &Context, stop: CancellationToken) {
    let clock = cx.clock;
    let metrics = cx.metrics.work.of(P::NAME, 1);
    let backoff = periodic.backoff();
    let mut failures = 0;
    let mut ids = ReconcileIds::new(P::NAME, clock.now());
    loop {
        let span = tracing::error_span!("pass", controller = P::NAME, reconcileID = ids.next());
        let started = Instant::now();
        let pass = CONTROLLER.scope(P::NAME, periodic.pass().instrument(span.clone()));
        let outcome = AssertUnwindSafe(pass).catch_unwind();
        let outcome = tokio::select! {
            biased;
            outcome = outcome => outcome,
            () = stop.cancelled() => return,
        };
        let took = started.elapsed();
        let ended = outcome.as_ref().map(|result| match result {
            Ok(_) => Outcome::RequeueAfter,
            Err(error) => outcome_of_error(error),
        });
        metrics.ended(ended.unwrap_or(Outcome::Panic), took);
        let wait = match outcome {
            Ok(Ok(wait)) => {
                failures = 0;
                wait
            }
            Ok(Err(ReconcileError::Stopping)) => return,
            Ok(Err(error)) => {
                failures += 1;
                if !error.is_expected() {
                    span.in_scope(|| error.log(failures));
                }
                backoff.of(P::NAME, failures)
            }
            Err(_) => {
                failures += 1;
                span.in_scope(|| tracing::error!(failures, "reconciler panicked"));
                backoff.of(P::NAME, failures).max(Duration::from_secs(1))
            }
        };
        tokio::select! {
            biased;
            () = clock.sleep(wait) => {}
            () = stop.cancelled() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::ObjectKey;

    #[test]
    fn reconcile_ids_are_unique_and_repeat_in_a_repeated_simulation() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let ids = |controller, start| {
            let mut ids = ReconcileIds::new(controller, at(start));
            [ids.next(), ids.next()]
        };
        let all = [ids("a", 1), ids("b", 1), ids("a", 2)].concat();
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "{all:?}");
        assert_eq!(ids("a", 1), ids("a", 1));
        for id in &all {
            let lengths: Vec<_> = id.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
        }
    }

    #[test]
    fn a_key_is_logged_as_the_object_it_names() {
        let named = |key| object::<ObjectKey>(&key).unwrap();
        assert_eq!(named(ObjectKey::cluster("x")), r#"{"name":"x"}"#);
        assert_eq!(
            named(ObjectKey::namespaced("shop", "web")),
            r#"{"name":"web","namespace":"shop"}"#
        );
        assert_eq!(object(&()), None);
    }
}
