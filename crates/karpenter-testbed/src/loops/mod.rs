//! The controllers of the control plane: scheduler, workload controllers, node agents, garbage collection.
//!
//! [`Loops::start`] starts them for any API server that a `kube::Client` can access. All share one cache of the cluster (one
//! watch per kind), use only the [`Clock`] for time, and retry after API errors, dropped watches and conflicts with back-off.
//! Every loop is a pure decision with a thin driver around it. No code is shared with the engine (invariant I5).
//!
//! | module | replaces |
//! |---|---|
//! | `scheduler` | kube-scheduler |
//! | `workloads` | the Deployment, ReplicaSet, StatefulSet, DaemonSet and Job controllers |
//! | `disruption` | the disruption controller: PodDisruptionBudget status |
//! | [`node_lifecycle`] | the node lifecycle controller, the taint manager, pod garbage collection |
//! | [`node_agent`] | the kubelets of simulated nodes |
//! | `volume_binder` | the persistent volume controller and a CSI provisioner |
//!
//! Namespaces are deleted by the server, and so are dependents: [`crate::Builder::garbage_collection`].

mod cache;
mod disruption;
mod driver;
mod events;
pub mod node_agent;
pub mod node_lifecycle;
mod outcome;
mod scheduler;
mod volume_binder;
mod workloads;

use std::sync::Arc;

use kube::Client;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use cache::Cache;
use driver::{Context, Controller, Names};
use events::Recorder;
use node_agent::NodeAgentOptions;
use node_lifecycle::NodeLifecycleOptions;

/// Settings of the loops.
#[derive(Debug, Clone)]
pub struct Options {
    /// Seed of the suffixes of pod names.
    pub seed: u64,
    pub scheduler: bool,
    /// Node taints, taint-based eviction, pods of deleted nodes.
    pub node_lifecycle: Option<NodeLifecycleOptions>,
    /// Simulated nodes (kubelets).
    pub node_agent: Option<NodeAgentOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            scheduler: true,
            node_lifecycle: Some(NodeLifecycleOptions::default()),
            node_agent: Some(NodeAgentOptions::default()),
        }
    }
}

/// Running loops, stopped on drop.
#[derive(Debug)]
pub struct Loops {
    token: CancellationToken,
    tasks: JoinSet<()>,
    cache: Arc<Cache>,
}

impl Loops {
    /// Starts the loops. Call it inside a tokio runtime. `client` should not retry by itself.
    #[must_use]
    pub fn start(client: Client, clock: Clock, options: Options) -> Self {
        let token = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let context = Context {
            client: client.clone(),
            clock,
            cache: Arc::new(Cache::default()),
            names: Arc::new(Names::new(options.seed)),
        };
        let mut launch = Launch {
            context: context.clone(),
            token: token.clone(),
            tasks: &mut tasks,
        };
        // Subscribers come before the watchers, so that they receive every change.
        launch.all(options);
        context.cache.start(&client, clock, &token, &mut tasks);
        Self {
            token,
            tasks,
            cache: context.cache,
        }
    }

    /// Waits until every kind has been listed once.
    pub async fn synced(&self) {
        self.cache.synced().await;
    }

    /// Stops the loops and waits for them.
    pub async fn shutdown(mut self) {
        self.token.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        self.token.cancel();
    }
}

struct Launch<'a> {
    context: Context,
    token: CancellationToken,
    tasks: &'a mut JoinSet<()>,
}

impl Launch<'_> {
    fn all(&mut self, options: Options) {
        let context = self.context.clone();
        if options.scheduler {
            let recorder = Recorder::start(
                context.client(),
                context.clock,
                "default-scheduler",
                self.token.clone(),
                self.tasks,
            );
            let changes = context.cache.subscribe();
            self.tasks.spawn(scheduler::run(
                context.clone(),
                recorder,
                changes,
                self.token.clone(),
            ));
        }
        self.controller(workloads::deployment::Deployments::new(context.clone()));
        self.controller(workloads::replica_set::ReplicaSets::new(context.clone()));
        self.controller(workloads::stateful_set::StatefulSets::new(context.clone()));
        self.controller(workloads::daemon_set::DaemonSets::new(context.clone()));
        self.controller(workloads::job::Jobs::new(context.clone()));
        self.controller(disruption::Budgets::new(context.clone()));
        self.controller(volume_binder::VolumeBinder::new(context.clone()));
        if let Some(lifecycle) = options.node_lifecycle {
            self.controller(node_lifecycle::NodeLifecycle::new(
                context.clone(),
                lifecycle.clone(),
            ));
            self.controller(node_lifecycle::PodEvictor::new(context.clone(), lifecycle));
        }
        if let Some(agent) = options.node_agent {
            self.controller(node_agent::Kubelets::new(context.clone(), agent.clone()));
            self.controller(node_agent::PodLifecycle::new(context.clone(), agent));
        }
    }

    fn controller<C: Controller>(&mut self, controller: C) {
        let changes = self.context.cache.subscribe();
        self.tasks.spawn(driver::run(
            Arc::new(controller),
            self.context.clone(),
            changes,
            self.token.clone(),
        ));
    }
}
