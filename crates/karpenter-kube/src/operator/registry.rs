//! The controllers and tasks of an operator.

use std::sync::Arc;

use karpenter_api::autoscaling::CapacityBuffer;
use karpenter_api::v1alpha1::NodeOverlay;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::capacity_buffer::{Resolution, Stores, Watches};
use crate::closed_gates;
use crate::context::Context;
use crate::controller::{Controller, Periodic, Queue, WorkQueue, run, run_periodic};
use crate::model::{Change, Model, View};
use crate::node::eviction::EvictionQueue;
use crate::node::health::Health;
use crate::node::protection;
use crate::node::termination::Termination;
use crate::nodeclaim::conditions::DisruptionConditions;
use crate::nodeclaim::consistency::Consistency;
use crate::nodeclaim::drift::Drift;
use crate::nodeclaim::expiration::Expiration;
use crate::nodeclaim::garbage_collection::GarbageCollection;
use crate::nodeclaim::hydration::{ClaimHydration, NodeHydration};
use crate::nodeclaim::lifecycle::Lifecycle;
use crate::nodeclaim::model_gc::ModelNodeClaimGc;
use crate::nodeclaim::pod_events::PodEvents;
use crate::nodepool::{Hash, RegistrationHealth, Status};
use crate::observability::Conditions;
use crate::provisioning::{PodLedger, Provisioner, Triggers};
use crate::{disruption, observability, static_capacity};

pub(super) type Start = Box<dyn FnOnce(&Tasks) + Send>;
pub(super) type Always = Box<dyn FnOnce(&TaskTracker, CancellationToken) + Send>;

/// The tasks of a leading replica.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    pub(super) tracker: TaskTracker,
    /// Asks the tasks to finish.
    pub(super) stop: CancellationToken,
    /// Drops the tasks immediately.
    pub(super) kill: CancellationToken,
}

impl Tasks {
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let kill = self.kill.clone();
        self.tracker.spawn(async move {
            tokio::select! {
                biased;
                () = kill.cancelled() => {}
                () = task => {}
            }
        });
    }

    pub(super) fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // Dropping a running operator stops it; after a regular end there is nothing left to stop.
        self.stop.cancel();
        self.kill.cancel();
    }
}

/// Collects the controllers and tasks of an operator: new controllers are added here.
pub struct ControllerRegistry {
    pub(super) cx: Arc<Context>,
    pub(super) model: Model,
    pub(super) starts: Vec<Start>,
    /// Tasks that run whether this replica leads or not.
    pub(super) always: Vec<Always>,
    /// The queues of per-object controllers, for metrics.
    pub(super) queues: Vec<(&'static str, Box<dyn WorkQueue>)>,
    pub(super) conditions: Option<Arc<Conditions>>,
    pub(super) converts: bool,
}

impl std::fmt::Debug for ControllerRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControllerRegistry")
            .field("context", &self.cx)
            .finish_non_exhaustive()
    }
}

impl ControllerRegistry {
    /// Returns the context that all controllers share.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.cx
    }

    /// Returns the observer of status conditions, unless it is switched off: a provider adds its kinds.
    #[must_use]
    pub fn conditions(&self) -> Option<&Arc<Conditions>> {
        self.conditions.as_ref()
    }

    /// Adds a per-object controller.
    pub fn controller<C: Controller>(&mut self, controller: C) {
        self.controller_with(Arc::new(controller), Queue::new());
    }

    /// Adds a per-object controller whose queue is shared with other writers.
    pub fn controller_with<C: Controller>(&mut self, controller: Arc<C>, queue: Queue<C::Key>) {
        let (triggered, keys) = (Arc::clone(&controller), queue.clone());
        self.observe(move |change, view| triggered.triggered_by(change, view, &keys));
        let cx = Arc::clone(&self.cx);
        self.queues.push((C::NAME, Box::new(queue.clone())));
        self.starts.push(Box::new(move |tasks| {
            let stop = tasks.stopping();
            tasks.spawn(async move { run(controller, queue, &cx, stop).await });
        }));
    }

    /// Adds a controller that runs periodically.
    pub fn periodic<P: Periodic>(&mut self, periodic: P) {
        let cx = Arc::clone(&self.cx);
        self.starts.push(Box::new(move |tasks| {
            let stop = tasks.stopping();
            tasks.spawn(async move { run_periodic(periodic, &cx, stop).await });
        }));
    }

    /// Calls `observe` for every change of the model, on the model's task: it must be quick.
    pub fn observe(&mut self, observe: impl Fn(&Change, &View) + Send + 'static) {
        self.model.subscribe(Box::new(observe));
    }

    /// Runs a task until the token is cancelled.
    pub fn task<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        start: impl FnOnce(CancellationToken) -> F + Send + 'static,
    ) {
        self.starts
            .push(Box::new(move |tasks| tasks.spawn(start(tasks.stopping()))));
    }

    /// Runs a task in every replica, from the start until everything else has stopped, such as a webhook server. It ends
    /// when the token is cancelled.
    pub fn always<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        start: impl FnOnce(CancellationToken) -> F + Send + 'static,
    ) {
        self.always.push(Box::new(move |tasks, stop| {
            tasks.spawn(start(stop));
        }));
    }

    /// Declares that every replica converts objects for the API server: it is ready before its model is in sync, because
    /// the objects of the cluster may have to be converted first.
    pub fn converts(&mut self) {
        self.converts = true;
    }

    fn capacity_buffers(
        &mut self,
        (stores, watches): (Stores, Watches),
        provisioner: Arc<Triggers>,
        conditions: Option<Arc<Conditions>>,
    ) {
        let cx = Arc::clone(&self.cx);
        let queue = Resolution::queue(&cx.buffers);
        let following = conditions.map(|all| {
            let stores = stores.clone();
            all.follow_buffers(move |visit| stores.each_buffer(visit))
        });
        let resolution = Resolution::new(Arc::clone(&cx), stores.clone(), provisioner, following);
        self.controller_with(Arc::new(resolution), queue.clone());
        self.task(move |stop| async move {
            watches
                .run(
                    cx.clients.api.clone(),
                    cx.recorder.clone(),
                    stores,
                    queue,
                    stop,
                )
                .await;
        });
    }

    /// Adds Karpenter's own controllers, one line each: new ones are added here.
    pub(super) fn built_in(&mut self) {
        let cx = Arc::clone(&self.cx);

        let pool_status = Queue::new();
        let health = Arc::new(RegistrationHealth::new(pool_status.clone()));
        self.controller_with(
            Arc::new(Status::new(Arc::clone(&cx), Arc::clone(&health))),
            pool_status,
        );
        self.controller(Hash {
            cx: Arc::clone(&cx),
        });

        let triggers = Arc::new(Triggers::new(&cx.options, cx.clock));
        let ledger = Arc::new(PodLedger::default());
        let provisioner =
            Provisioner::new(Arc::clone(&cx), Arc::clone(&triggers), Arc::clone(&ledger));
        let observing = provisioner.clone();
        self.observe(move |change, view| observing.observe(change, view));
        let watching = Arc::clone(&cx);
        self.observe(move |change, _| protection::observe(&watching, change));
        observability::register_state(&cx);
        let buffers = cx.options.feature_gates.capacity_buffer.then(Stores::new);
        let observed = !cx.options.disable_cluster_state_observability;
        let conditions = observed.then(|| {
            observability::register(&cx, &ledger);
            Arc::new(Conditions::register(&cx))
        });
        self.conditions.clone_from(&conditions);
        if let Some(conditions) = conditions.clone() {
            self.observe(move |change, view| conditions.observe(change, view));
        }
        if let Some(buffers) = buffers {
            self.capacity_buffers(buffers, Arc::clone(&triggers), conditions);
        }
        #[cfg(feature = "decisions")]
        if cx.options.feature_gates.scheduling_hints {
            let explaining = provisioner.clone();
            self.task(move |stop| async move { explaining.explain_events(stop).await });
        }
        self.periodic(provisioner);

        self.controller(Lifecycle::new(
            Arc::clone(&cx),
            health,
            Arc::clone(&triggers),
        ));
        self.controller(PodEvents {
            cx: Arc::clone(&cx),
        });
        self.controller(DisruptionConditions {
            cx: Arc::clone(&cx),
        });
        self.controller(Drift::new(Arc::clone(&cx)));
        self.controller(Expiration {
            cx: Arc::clone(&cx),
        });
        self.controller(Consistency {
            cx: Arc::clone(&cx),
        });
        self.controller(ModelNodeClaimGc {
            cx: Arc::clone(&cx),
        });
        self.controller(ClaimHydration {
            cx: Arc::clone(&cx),
        });
        self.controller(NodeHydration {
            cx: Arc::clone(&cx),
        });
        self.periodic(GarbageCollection::new(Arc::clone(&cx)));
        if cx.options.feature_gates.node_repair && !cx.provider.profile().repair_policies.is_empty()
        {
            self.controller(Health {
                cx: Arc::clone(&cx),
            });
        }
        if cx.static_capacity.is_enabled() {
            self.controller(static_capacity::Provisioning::new(Arc::clone(&cx)));
            self.controller(static_capacity::Deprovisioning {
                cx: Arc::clone(&cx),
            });
        }

        let gates = cx.options.feature_gates;
        if !gates.node_overlay {
            let cx = Arc::clone(&cx);
            self.task(|stop| closed_gates::warn::<NodeOverlay>(cx, "NodeOverlay", stop));
        }
        if !gates.capacity_buffer {
            let cx = Arc::clone(&cx);
            self.task(|stop| closed_gates::warn::<CapacityBuffer>(cx, "CapacityBuffer", stop));
        }

        let evictions = Queue::new();
        let eviction_queue = Arc::new(EvictionQueue::new(Arc::clone(&cx), evictions.clone()));
        self.controller_with(Arc::clone(&eviction_queue), evictions);
        self.controller(Termination::new(Arc::clone(&cx), eviction_queue));

        self.periodic(disruption::Disruption::new(cx));
    }
}
