//! The model's task: it applies queued updates and publishes views.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use karpenter_core::cluster::ClusterConfig;
use tokio::sync::{SetOnce, mpsc, oneshot, watch};
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
        loop {
            let first = tokio::select! {
                biased;
                () = stop.cancelled() => return,
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
            self.publish();
        }
    }

    fn apply(&mut self, message: Message) {
        self.state.update(message.update);
        self.waiting.extend(message.published);
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
            // The caller may have been dropped while waiting; the update is applied all the same.
            let _ = published.send(());
        }
    }
}
