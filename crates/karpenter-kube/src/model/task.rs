//! The model's task: it applies queued updates and publishes views.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use karpenter_core::cluster::ClusterConfig;
use tokio::sync::{SetOnce, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::handle::ModelHandle;
use super::state::State;
use super::update::Message;
use super::view::{Change, View};

/// Callback for every change, after the view that contains it is published. Called on the model's task: it must be quick.
pub type Subscriber = Box<dyn Fn(&Change, &View) + Send>;

/// The model's task, ready to run.
pub struct Model {
    state: State,
    updates: mpsc::Receiver<Message>,
    /// Callers that wait for the next view.
    waiting: Vec<oneshot::Sender<()>>,
    view: Arc<ArcSwap<View>>,
    version: watch::Sender<u64>,
    synced: Arc<SetOnce<()>>,
    subscribers: Vec<Subscriber>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Model {
    const QUEUE: usize = 4096;
    /// Most updates in one view: a burst is published together, but readers never starve.
    const BATCH: usize = 1024;
    /// Longest time until an update is in a view, before the model is in sync. Every view keeps its version of the trees, and the next
    /// changes copy the paths that they change: with a view for each page of a list, copies were a fifth of the time to sync.
    const LIST_INTERVAL: Duration = Duration::from_secs(1);

    /// Creates a model that is in sync once every kind of `awaited` has been listed.
    #[must_use]
    pub fn new(config: ClusterConfig, awaited: &[&'static str]) -> (Self, ModelHandle) {
        let (sender, updates) = mpsc::channel(Self::QUEUE);
        let state = State::new(config, awaited);
        let view = Arc::new(ArcSwap::from_pointee(state.view()));
        let (version, versions) = watch::channel(0);
        let synced = Arc::new(SetOnce::new());
        let handle = ModelHandle {
            updates: sender,
            view: Arc::clone(&view),
            version: versions,
            synced: Arc::clone(&synced),
        };
        (
            Self {
                state,
                updates,
                waiting: Vec::new(),
                view,
                version,
                synced,
                subscribers: Vec::new(),
            },
            handle,
        )
    }

    /// Calls `subscriber` for every change from now on.
    pub fn subscribe(&mut self, subscriber: Subscriber) {
        self.subscribers.push(subscriber);
    }

    /// Applies updates until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        // When the applied updates must be in a view, if they are not.
        let mut due: Option<Instant> = None;
        loop {
            let first = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.publish();
                    due = None;
                    continue;
                }
                update = self.updates.recv() => update,
            };
            let Some(first) = first else { return };
            self.apply(first);
            for _ in 1..Self::BATCH {
                match self.updates.try_recv() {
                    Ok(message) => self.apply(message),
                    Err(_) => break,
                }
            }
            if self.state.is_synced() || !self.waiting.is_empty() {
                self.publish();
                due = None;
            } else {
                due.get_or_insert_with(|| Instant::now() + Self::LIST_INTERVAL);
            }
        }
    }

    fn apply(&mut self, message: Message) {
        self.state.update(message.update);
        self.waiting.extend(message.published);
        if let Some(applied) = message.applied {
            // The caller may have been dropped while waiting; the update is applied all the same.
            let _ = applied.send(());
        }
    }

    fn publish(&mut self) {
        let view = Arc::new(self.state.view());
        self.view.store(Arc::clone(&view));
        for change in self.state.take_changes() {
            for subscriber in &self.subscribers {
                subscriber(&change, &view);
            }
        }
        self.version.send_modify(|version| *version += 1);
        if view.is_synced() {
            // Only the first call sets it.
            let _ = self.synced.set(());
        }
        for published in self.waiting.drain(..) {
            let _ = published.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use karpenter_fixtures::bare_node;

    use super::super::update::{Object, ObjectKind, Update};
    use super::*;

    /// Starts a model that awaits Nodes.
    fn start() -> ModelHandle {
        let (model, handle) = Model::new(ClusterConfig::default(), &["Node"]);
        tokio::spawn(model.run(CancellationToken::new()));
        handle
    }

    fn node(number: usize) -> Object {
        Object::Node(Arc::new(bare_node(&format!("n-{number}")).build()))
    }

    fn listed(objects: Vec<Object>) -> Update {
        Update::Listed {
            kind: ObjectKind::Node,
            deleted: Vec::new(),
            objects,
        }
    }

    /// Returns the number of Nodes in the view, and the number of views.
    fn seen(handle: &ModelHandle) -> (usize, u64) {
        (handle.view().nodes().count(), *handle.changes().borrow())
    }

    /// Waits for the next view; returns the time until it was published.
    async fn next(changes: &mut watch::Receiver<u64>) -> Duration {
        let before = Instant::now();
        changes.changed().await.unwrap();
        before.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn before_the_model_is_in_sync_one_view_has_all_updates_of_an_interval() {
        let handle = start();
        let mut changes = handle.changes();
        changes.mark_unchanged();
        for number in 0..10 {
            let portion = Update::Portion(vec![node(number)]);
            handle.apply(portion).await.unwrap();
        }
        assert_eq!(seen(&handle), (0, 0), "the list goes on without a view");
        assert_eq!(next(&mut changes).await, Model::LIST_INTERVAL);
        assert_eq!(seen(&handle), (10, 1));
        handle.queue(Update::Apply(node(10))).await.unwrap();
        assert_eq!(next(&mut changes).await, Model::LIST_INTERVAL);
        assert_eq!(seen(&handle), (11, 2), "nothing was published between");
    }

    #[tokio::test(start_paused = true)]
    async fn an_update_whose_caller_waits_is_published_with_those_before() {
        let handle = start();
        let portion = |number| Update::Portion(vec![node(number)]);
        handle.apply(portion(0)).await.unwrap();
        let before = Instant::now();
        handle.update(portion(1)).await.unwrap();
        assert_eq!(before.elapsed(), Duration::ZERO);
        assert_eq!(seen(&handle), (2, 1));
        tokio::time::sleep(Model::LIST_INTERVAL * 2).await;
        assert_eq!(seen(&handle), (2, 1), "nothing is published again");
    }

    #[tokio::test(start_paused = true)]
    async fn the_view_in_sync_and_all_updates_afterwards_are_published_at_once() {
        let handle = start();
        let mut changes = handle.changes();
        changes.mark_unchanged();
        handle.queue(listed(vec![node(0)])).await.unwrap();
        assert_eq!(next(&mut changes).await, Duration::ZERO);
        assert!(handle.view().is_synced());
        handle.queue(Update::Apply(node(1))).await.unwrap();
        assert_eq!(next(&mut changes).await, Duration::ZERO);
        assert_eq!(seen(&handle), (2, 2));
    }
}
