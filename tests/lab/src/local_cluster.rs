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
use karpenter_kube::shadow::Shadow;
use karpenter_kwok::{Cloud, KwokProvider, catalogue, controllers, node_class};
use karpenter_testbed::loops::Loops;
use karpenter_testbed::loops::node_agent::NodeFaults;
use karpenter_testbed::{Faults, Testbed, loops};
use kube::Client;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Settings of a local cluster.
#[derive(Debug)]
pub struct LocalClusterSettings {
    /// The initial time of the cluster.
    pub epoch: Timestamp,
    /// Speed of time in the cluster, relative to real time.
    pub speed: f64,
    /// Seed of names and faults.
    pub seed: u64,
    pub options: Options,
    /// The control plane's loops.
    pub loops: loops::Options,
    /// Instance types of the simulated cloud.
    pub instance_types: Vec<InstanceType>,
}

impl Default for LocalClusterSettings {
    /// Real time, the built-in instance types, no ports, no lease.
    fn default() -> Self {
        let types = catalogue::generate();
        Self {
            epoch: Timestamp::now(),
            speed: 1.0,
            seed: 0,
            options: Options {
                metrics_port: 0,
                decisions_port: 0,
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
pub struct LocalCluster {
    pub testbed: Testbed,
    pub cloud: Cloud,
    pub clock: Clock,
    pub registry: Registry,
    /// The faults of single nodes.
    pub node_faults: NodeFaults,
    options: Options,
    instance_types: Vec<InstanceType>,
    loops: Option<Loops>,
    controllers: Option<Replica>,
}

/// A running replica of the controllers.
#[derive(Debug)]
pub struct Replica {
    stop: CancellationToken,
    ended: CancellationToken,
    running: JoinHandle<Result<(), OperatorError>>,
    context: Arc<Context>,
    shadow: Option<Arc<Shadow>>,
}

impl Replica {
    /// The comparison with another Karpenter, if it is a shadow.
    #[must_use]
    pub fn shadow(&self) -> Option<&Arc<Shadow>> {
        self.shadow.as_ref()
    }

    /// The setup of its controllers.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Is canceled once the replica has ended, by itself or on request.
    #[must_use]
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Stops the replica gracefully.
    pub async fn stop(self) {
        self.stop.cancel();
        // A panicked operator has stopped, too.
        let _ = self.running.await;
    }

    /// Aborts the replica, as when its process is killed. The caller makes sure that its client reaches no API server any more.
    pub fn abandon(self) {
        self.running.abort();
    }
}

impl std::fmt::Debug for LocalCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalCluster").finish_non_exhaustive()
    }
}

impl LocalCluster {
    /// Starts the control plane with Karpenter's resources, then the loops and the controllers.
    ///
    /// # Errors
    /// If the resources cannot be installed.
    pub async fn start(settings: LocalClusterSettings) -> kube::Result<Self> {
        let mut cluster = Self::without_controllers(settings).await?;
        cluster.start_controllers();
        Ok(cluster)
    }

    /// Like [`LocalCluster::start`], without controllers; the caller starts them.
    ///
    /// # Errors
    /// If the resources cannot be installed.
    pub async fn without_controllers(settings: LocalClusterSettings) -> kube::Result<Self> {
        let clock = Clock::new(settings.epoch, settings.speed);
        let testbed_clock = karpenter_testbed::Clock::new(settings.epoch, settings.speed);
        let faults = Faults::new(settings.seed);
        let testbed = Testbed::builder()
            .clock(testbed_clock)
            .faults(faults)
            .seed(settings.seed)
            .garbage_collection()
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
        Ok(Self {
            testbed,
            cloud: Cloud::new(),
            clock,
            registry: Registry::new(),
            node_faults,
            options: settings.options,
            instance_types: settings.instance_types,
            loops: Some(loops),
            controllers: None,
        })
    }

    /// Starts the controllers, unless they run.
    pub fn start_controllers(&mut self) {
        if self.controllers.is_none() {
            self.start_controllers_as(self.testbed.client());
        }
    }

    /// Starts controllers that access the cluster through `client`, in place of running ones.
    pub fn start_controllers_as(&mut self, client: Client) {
        self.start_controllers_with(client, |provider| provider);
    }

    /// Like [`LocalCluster::start_controllers_as`], with a provider that may differ from the simulated cloud's.
    pub fn start_controllers_with(
        &mut self,
        client: Client,
        provider: impl FnOnce(Arc<dyn CloudProvider>) -> Arc<dyn CloudProvider>,
    ) {
        let options = self.options.clone();
        self.controllers = Some(self.run(client, &self.registry, provider, None, options));
    }

    /// Starts an additional replica, which competes for the lease as `name` if leader election is enabled.
    #[must_use]
    pub fn replica(&self, client: Client, name: &str) -> Replica {
        let same = |provider| provider;
        let options = self.options.clone();
        self.run(client, &Registry::new(), same, Some(name), options)
    }

    /// Starts a shadow beside the controllers, with their options as `change` leaves them. Its metrics are in `registry`.
    #[must_use]
    pub fn shadow(
        &self,
        client: Client,
        registry: &Registry,
        change: impl FnOnce(&mut Options),
    ) -> Replica {
        let mut options = Options {
            shadow: true,
            ..self.options.clone()
        };
        change(&mut options);
        self.run(client, registry, |provider| provider, None, options)
    }

    fn run(
        &self,
        client: Client,
        registry: &Registry,
        change: impl FnOnce(Arc<dyn CloudProvider>) -> Arc<dyn CloudProvider>,
        name: Option<&str>,
        options: Options,
    ) -> Replica {
        let provider = KwokProvider::new(
            client.clone(),
            self.clock,
            self.instance_types.clone(),
            self.cloud.clone(),
        );
        let provider = Arc::new(provider.instances_through(self.testbed.client()));
        let kwok = Arc::clone(&provider);
        let mut operator = Operator::builder(change(provider), client, options)
            .clock(self.clock)
            .registry(registry.clone())
            .with(move |controllers| controllers::add(controllers, kwok));
        if let Some(name) = name {
            operator = operator.identity(name);
        }
        let operator = operator.build();
        let (context, shadow) = (Arc::clone(operator.context()), operator.shadow().cloned());
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        let (stopping, end) = (stop.clone(), ended.clone().drop_guard());
        let running = tokio::spawn(async move {
            let _end = end;
            operator.run(stopping).await
        });
        Replica {
            stop,
            ended,
            running,
            context,
            shadow,
        }
    }

    /// Returns the setup of the controllers, while they run.
    #[must_use]
    pub fn context(&self) -> Option<&Arc<Context>> {
        self.controllers.as_ref().map(Replica::context)
    }

    /// Stops the controllers gracefully. The cluster and the cloud keep running.
    pub async fn stop_controllers(&mut self) {
        if let Some(controllers) = self.controllers.take() {
            controllers.stop().await;
        }
    }

    /// Returns a client without injected faults.
    #[must_use]
    pub fn client(&self) -> Client {
        self.testbed.admin_client()
    }

    /// Stops all parts gracefully.
    pub async fn shutdown(mut self) {
        self.stop_controllers().await;
        if let Some(loops) = self.loops.take() {
            loops.shutdown().await;
        }
    }
}
