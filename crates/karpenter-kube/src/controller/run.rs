//! Running controllers: per-object ones from a queue, periodic ones in a loop.

use std::fmt::{self, Debug};
use std::future::Future;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Backoff, Queue, ReconcileError};
use crate::clock::Clock;
use crate::context::Context;
use crate::metrics::Outcome;
use crate::model::{Change, View};
use crate::options::Options;

tokio::task_local! {
    static CONTROLLER: &'static str;
}

/// The name of the controller this code runs for; empty outside of controllers. A label of the provider metrics.
#[must_use]
pub fn current_controller() -> &'static str {
    CONTROLLER.try_with(|name| *name).unwrap_or_default()
}

/// A reconciliation that has ended: its key, what came of it unless it panicked, and how long it took.
type Finished<K> = (K, Option<Result<Next, ReconcileError>>, Duration);

/// What is to happen after a reconciliation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing until something changes.
    Wait,
    /// The same again after this long, even if nothing changes.
    After(Duration),
}

impl Next {
    /// The sooner of two.
    #[must_use]
    pub fn sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::After(a), Self::After(b)) => Self::After(a.min(b)),
            (Self::After(a), Self::Wait) | (Self::Wait, Self::After(a)) => Self::After(a),
            (Self::Wait, Self::Wait) => Self::Wait,
        }
    }
}

/// The name of an object; the namespace is empty for cluster-scoped ones.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Namespace, or empty.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// The key of a cluster-scoped object.
    #[must_use]
    pub fn cluster(name: &str) -> Self {
        Self::namespaced("", name)
    }

    /// The key of an object in a namespace.
    #[must_use]
    pub fn namespaced(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

impl Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A controller that works on one object at a time.
///
/// The framework guarantees: never two reconciliations of one key at once; a change during a reconciliation leads to
/// another one; an error is logged and retried with back-off; a conflict or a vanished object is not an error.
pub trait Controller: Send + Sync + 'static {
    /// What identifies a piece of work, usually an [`ObjectKey`].
    type Key: Clone + Eq + Hash + Ord + Debug + Send + Sync + 'static;

    /// Upstream's name of the controller: the log key `controller` and the metric label.
    fn name(&self) -> &'static str;

    /// The kind under which the key is logged, such as `NodeClaim`.
    fn kind(&self) -> &'static str;

    /// How many keys are worked on at a time.
    fn concurrency(&self, options: &Options) -> usize {
        options.concurrency(10, 1000)
    }

    /// How failing keys are delayed.
    fn backoff(&self) -> Backoff {
        Backoff::DEFAULT
    }

    /// Adds the keys that a change of the model makes due to the queue. `view` already contains the change.
    ///
    /// It is called on the model's task for every change: be quick.
    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<Self::Key>);

    /// Brings one object closer to what it should be. Reads the view again each time; the view may be a little old.
    ///
    /// # Errors
    /// When the API server or the provider fails; the key comes again.
    fn reconcile(
        &self,
        key: Self::Key,
    ) -> impl Future<Output = Result<Next, ReconcileError>> + Send;
}

/// A controller that looks at everything, again and again.
pub trait Periodic: Send + Sync + 'static {
    /// Upstream's name of the controller.
    fn name(&self) -> &'static str;

    /// One pass; says how long until the next.
    ///
    /// # Errors
    /// When the API server or the provider fails; the pass is repeated with back-off.
    fn pass(&mut self) -> impl Future<Output = Result<Duration, ReconcileError>> + Send;

    /// How long to wait after failures.
    fn backoff(&self) -> Backoff {
        Backoff::DEFAULT
    }
}

/// Works off a controller's queue until `stop`, then lets running reconciliations finish.
///
/// It begins when the model is in sync: a cluster of which half is listed looks like one of which half is gone, and a machine
/// whose pods are not listed yet looks drained.
pub async fn run<C: Controller>(
    controller: Arc<C>,
    queue: Queue<C::Key>,
    cx: &Context,
    stop: CancellationToken,
) {
    let concurrency = controller.concurrency(&cx.options).max(1);
    let metrics = cx.metrics.work.of(controller.name(), concurrency);
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
            let name = controller.name();
            let object = format!("{}/{}", controller.kind(), key_text(&key));
            let span = tracing::info_span!("reconcile", controller = name, object);
            let work = async move {
                // A panic is a bug in one reconciliation; it must not take the others with it.
                let outcome = AssertUnwindSafe(controller.reconcile(key.clone())).catch_unwind();
                let started = Instant::now();
                let outcome = outcome.await.ok();
                (key, outcome, started.elapsed())
            };
            running.spawn(CONTROLLER.scope(name, work.instrument(span)));
            metrics.active(running.len());
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(finished) = running.join_next() => {
                metrics.active(running.len());
                if let Ok((key, outcome, took)) = finished {
                    metrics.ended(outcome_of(outcome.as_ref()), took);
                    settle(&*controller, &queue, &cx.clock, key, outcome);
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

fn settle<C: Controller>(
    controller: &C,
    queue: &Queue<C::Key>,
    clock: &Clock,
    key: C::Key,
    outcome: Option<Result<Next, ReconcileError>>,
) {
    let backoff = controller.backoff();
    let again = |failures| clock.real_duration(backoff.after(failures));
    match outcome {
        Some(Ok(Next::Wait)) => queue.done(key, None),
        Some(Ok(Next::After(wait))) => queue.done(key, Some(clock.instant_after(wait))),
        Some(Err(error)) if error.is_not_found() => queue.done(key, None),
        Some(Err(error)) if error.is_expected() => {
            queue.failed(key, again);
        }
        Some(Err(ReconcileError::Stopping)) => queue.done(key, None),
        Some(Err(error)) => {
            let object = key_text(&key);
            let failures = queue.failed(key, again);
            tracing::error!(
                controller = controller.name(),
                object = format!("{}/{object}", controller.kind()),
                error = %error,
                failures,
                "Reconciler error"
            );
        }
        None => {
            let object = key_text(&key);
            queue.failed(key, again);
            tracing::error!(
                controller = controller.name(),
                object = format!("{}/{object}", controller.kind()),
                "reconciler panicked"
            );
        }
    }
}

fn key_text<K: Debug>(key: &K) -> String {
    format!("{key:?}")
}

/// Repeats a periodic controller's passes until `stop`.
pub async fn run_periodic<P: Periodic>(mut periodic: P, cx: &Context, stop: CancellationToken) {
    let clock = cx.clock;
    let metrics = cx.metrics.work.of(periodic.name(), 1);
    let backoff = periodic.backoff();
    let mut failures = 0;
    let name = periodic.name();
    loop {
        let span = tracing::info_span!("pass", controller = name);
        let started = Instant::now();
        let pass = CONTROLLER.scope(name, periodic.pass().instrument(span));
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
                    tracing::error!(controller = name, error = %error, failures, "Reconciler error");
                }
                backoff.after(failures)
            }
            Err(_) => {
                failures += 1;
                tracing::error!(controller = name, failures, "reconciler panicked");
                backoff.after(failures).max(Duration::from_secs(1))
            }
        };
        tokio::select! {
            biased;
            () = clock.sleep(wait) => {}
            () = stop.cancelled() => return,
        }
    }
}
