//! Control plane, cloud and controllers, started together and stopped together.

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::crd;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::provider::CloudProvider;
use karpenter_kube::clock::Clock;
use karpenter_kube::context::Context;
use karpenter_kube::metrics::Registry;
use karpenter_kube::operator::{Operator, OperatorError};
use karpenter_kube::options::Options;
use karpenter_kwok::{Cloud, KwokProvider, catalogue, controllers, node_class};
use karpenter_testbed::loops::node_agent::NodeFaults;
use karpenter_testbed::loops::{self, Loops};
use karpenter_testbed::{Faults, Testbed};
use kube::Client;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// What a stack is made from.
#[derive(Debug)]
pub struct Settings {
    /// The time shown at the start.
    pub epoch: Timestamp,
    /// How many times faster than real time passes.
    pub speed: f64,
    /// Seeds names and faults.
    pub seed: u64,
    /// The controllers' options.
    pub options: Options,
    /// The control plane's loops.
    pub loops: loops::Options,
    /// The machines there are to buy.
    pub instance_types: Vec<InstanceType>,
}

impl Default for Settings {
    /// Real time, the generated instance types, no ports, no lease.
    fn default() -> Self {
        let types = catalogue::generate();
        Self {
            epoch: Timestamp::now(),
            speed: 1.0,
            seed: 0,
            options: Options {
                metrics_port: 0,
                health_probe_port: 0,
                disable_leader_election: true,
                ..Options::default()
            },
            loops: loops::Options::default(),
            instance_types: types
                .iter()
                .filter_map(|t| t.instance_type().ok())
                .collect(),
        }
    }
}

/// A running cluster with Karpenter in it.
pub struct Stack {
    /// The control plane.
    pub testbed: Testbed,
    /// The simulated cloud.
    pub cloud: Cloud,
    /// The controllers' clock.
    pub clock: Clock,
    /// The controllers' metrics.
    pub registry: Registry,
    /// What is wrong with single nodes.
    pub node_faults: NodeFaults,
    options: Options,
    instance_types: Vec<InstanceType>,
    loops: Option<Loops>,
    controllers: Option<Controllers>,
}

struct Controllers {
    stop: CancellationToken,
    running: JoinHandle<Result<(), OperatorError>>,
    context: Arc<Context>,
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stack").finish_non_exhaustive()
    }
}

impl Stack {
    /// Starts the control plane with Karpenter's resources, then the loops and the controllers.
    ///
    /// # Errors
    /// When the resources cannot be installed.
    pub async fn start(settings: Settings) -> kube::Result<Self> {
        let clock = Clock::new(settings.epoch, settings.speed);
        let testbed_clock = karpenter_testbed::Clock::new(settings.epoch, settings.speed);
        let faults = Faults::new(settings.seed);
        let testbed = Testbed::builder()
            .clock(testbed_clock)
            .faults(faults)
            .seed(settings.seed)
            .start()
            .await;
        let definitions = crd::all(&[], &[])
            .into_iter()
            .map(|(_, definition)| definition);
        testbed
            .apply_crds(definitions.chain([node_class::crd()]))
            .await?;
        let node_faults = settings
            .loops
            .node_agent
            .as_ref()
            .map(|agent| agent.faults.clone())
            .unwrap_or_default();
        let loops = Loops::start(testbed.client(), testbed_clock, settings.loops);
        let mut stack = Self {
            testbed,
            cloud: Cloud::new(),
            clock,
            registry: Registry::new(),
            node_faults,
            options: settings.options,
            instance_types: settings.instance_types,
            loops: Some(loops),
            controllers: None,
        };
        stack.start_controllers();
        Ok(stack)
    }

    /// Starts the controllers, if they do not run.
    pub fn start_controllers(&mut self) {
        if self.controllers.is_none() {
            self.start_controllers_as(self.testbed.client());
        }
    }

    /// Starts controllers that reach the cluster through `client`, in place of any that run.
    pub fn start_controllers_as(&mut self, client: Client) {
        self.start_controllers_with(client, |provider| provider);
    }

    /// Like [`Stack::start_controllers_as`], with a provider that may differ from the simulated cloud's.
    pub fn start_controllers_with(
        &mut self,
        client: Client,
        provider: impl FnOnce(Arc<dyn CloudProvider>) -> Arc<dyn CloudProvider>,
    ) {
        let change = provider;
        let provider = KwokProvider::new(
            client.clone(),
            self.clock,
            self.instance_types.clone(),
            self.cloud.clone(),
        );
        let provider = Arc::new(provider.machines_through(self.testbed.client()));
        let kwok = Arc::clone(&provider);
        let operator = Operator::builder(change(provider), client, self.options.clone())
            .clock(self.clock)
            .registry(self.registry.clone())
            .with(move |setup| controllers::add(setup, kwok))
            .build();
        let context = Arc::clone(operator.context());
        let stop = CancellationToken::new();
        let running = tokio::spawn(operator.run(stop.clone()));
        self.controllers = Some(Controllers {
            stop,
            running,
            context,
        });
    }

    /// What the controllers work with, while they run.
    #[must_use]
    pub fn context(&self) -> Option<&Arc<Context>> {
        self.controllers.as_ref().map(|running| &running.context)
    }

    /// Stops the controllers in order. The cluster and the cloud go on without them.
    pub async fn stop_controllers(&mut self) {
        if let Some(controllers) = self.controllers.take() {
            controllers.stop.cancel();
            // An operator that panicked has stopped, too.
            let _ = controllers.running.await;
        }
    }

    /// Drops the controllers where they stand, as when their process dies. Whoever kills them makes sure that their client
    /// reaches nothing any more.
    pub fn abandon_controllers(&mut self) {
        if let Some(controllers) = self.controllers.take() {
            controllers.running.abort();
        }
    }

    /// A client that no fault hits.
    #[must_use]
    pub fn client(&self) -> Client {
        self.testbed.admin_client()
    }

    /// Stops everything in order.
    pub async fn shutdown(mut self) {
        self.stop_controllers().await;
        if let Some(loops) = self.loops.take() {
            loops.shutdown().await;
        }
    }
}
