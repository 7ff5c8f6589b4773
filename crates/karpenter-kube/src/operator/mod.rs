//! The operator: assembles all parts, starts them in order and stops them in order.
//!
//! 1. Every replica serves probes, metrics and other endpoints from the start.
//! 2. The replica waits for the lease, unless leader election is off.
//! 3. The model starts, then the watchers that feed it, then the controllers that it triggers. With
//!    `--disable-controller-warmup=false` model and watchers start before the lease is acquired, so that a new leader has
//!    the state of the cluster at once.
//! 4. On a stop, controllers finish their current reconciliations, then the lease is released.
//! 5. When the lease is lost, all tasks are dropped immediately: another replica acts from now on. The same happens when the
//!    future of [`Operator::run`] is dropped.

#[cfg(feature = "decisions")]
mod explanations;
mod registry;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use karpenter_core::cluster::ClusterConfig;
use karpenter_core::lifecycle::static_pools::Settings;
use karpenter_core::provider::CloudProvider;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin;
use crate::admin::{Certificate, CertificateError, Probe, Profiler, Site};
use crate::capacity_buffer::Buffers;
use crate::client::Clients;
use crate::client::writes::Writes;
use crate::clock::Clock;
use crate::context::{Acting, Context};
use crate::events::{EventWriter, Recorder};
use crate::lease::{Elector, Leadership, LeaseConfig};
use crate::metrics::{Metrics, Registry, show_build, show_process, show_queues};
use crate::model::{Kinds, Model, spawn_watchers, trim_node};
use crate::options::Options;
use crate::overlay::{Accepted, Evaluation};
use crate::provider::Provider;
use crate::readiness::Readiness;
use crate::static_capacity::StaticCapacity;

#[cfg(feature = "decisions")]
use explanations::Explanations;
pub use registry::ControllerRegistry;
use registry::Tasks;

/// How long controllers may take to finish their current reconciliations.
const GRACE: Duration = Duration::from_secs(20);

/// Adds a provider's own controllers to the operator's.
type Extension = Box<dyn FnOnce(&mut ControllerRegistry) + Send>;

/// Assembles an [`Operator`].
pub struct Builder {
    provider: Arc<dyn CloudProvider>,
    clients: Clients,
    options: Options,
    clock: Clock,
    registry: Registry,
    identity: String,
    profiler: Option<Profiler>,
    extensions: Vec<Extension>,
    shadow_extensions: Vec<Extension>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("provider", &self.provider.profile().name)
            .finish_non_exhaustive()
    }
}

/// Why an operator ended before it was stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// Metrics cannot be served over TLS as configured.
    #[error("cannot serve metrics with --metrics-cert-dir: {0}")]
    Certificate(#[from] CertificateError),
    /// A port is in use.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address of the listener.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// Another replica leads now, or may do so at any time.
    #[error("leader election lost")]
    LeaseLost,
}

/// A complete operator, ready to run.
pub struct Operator {
    controllers: ControllerRegistry,
    #[cfg(feature = "decisions")]
    explanations: Explanations,
    elector: Option<Elector>,
    leadership: watch::Sender<Leadership>,
    readiness: Arc<Readiness>,
    /// Whether the readiness probe was taken by [`Operator::readiness`].
    probed: bool,
    /// Absent in a shadow, which publishes no events.
    events: Option<EventWriter>,
    kinds: Kinds,
    profiler: Option<Profiler>,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator")
            .field("context", &self.controllers.cx)
            .finish_non_exhaustive()
    }
}

impl Operator {
    /// Returns the builder of an operator for a provider and a cluster.
    #[must_use]
    pub fn builder(
        provider: Arc<dyn CloudProvider>,
        clients: impl Into<Clients>,
        options: Options,
    ) -> Builder {
        Builder {
            provider,
            clients: clients.into(),
            options,
            clock: Clock::real(),
            registry: Registry::new(),
            identity: random_identity(),
            profiler: None,
            extensions: Vec::new(),
            shadow_extensions: Vec::new(),
        }
    }
}

impl Builder {
    /// Sets the clock; by default the wall clock.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Registers metrics in an existing registry.
    #[must_use]
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// Sets the identity of the lease holder; by default a random one.
    #[must_use]
    pub fn identity(mut self, identity: &str) -> Self {
        identity.clone_into(&mut self.identity);
        self
    }

    /// Sets the profiler behind `--enable-profiling` on the metrics port.
    #[must_use]
    pub fn profiler(mut self, profiler: Profiler) -> Self {
        self.profiler = Some(profiler);
        self
    }

    /// Adds controllers, such as those of the provider's NodeClass. They do not run in a shadow (`--shadow`).
    #[must_use]
    pub fn with(
        mut self,
        extension: impl FnOnce(&mut ControllerRegistry) + Send + 'static,
    ) -> Self {
        self.extensions.push(Box::new(extension));
        self
    }

    /// Adds what a shadow (`--shadow`) needs: tasks that read only. They run in a shadow alone.
    #[must_use]
    pub fn with_in_shadow(
        mut self,
        extension: impl FnOnce(&mut ControllerRegistry) + Send + 'static,
    ) -> Self {
        self.shadow_extensions.push(Box::new(extension));
        self
    }

    /// Builds the operator. Must be called within a tokio runtime.
    #[must_use]
    pub fn build(self) -> Operator {
        #[cfg(feature = "decisions")]
        let (this, refusals) = explanations::restricted(self);
        #[cfg(not(feature = "decisions"))]
        let this = self;
        let metrics = Metrics::new(&this.registry);
        show_process(&this.registry);
        show_build(&this.registry);
        let profiler = this.profiler.filter(|_| this.options.enable_profiling);
        let provider = Provider::new(this.provider, metrics.clone());
        #[cfg(feature = "decisions")]
        let provider = match &refusals {
            Some(refusals) => provider.read_only(refusals),
            None => provider,
        };
        let without_overlays = provider.clone();
        let accepted = Accepted::default();
        let provider: Arc<dyn CloudProvider> = match this.options.feature_gates.node_overlay {
            true => Arc::new(provider.with_overlays(accepted.clone())),
            false => Arc::new(provider),
        };
        let kinds = Kinds {
            node_classes: provider.profile().node_classes.clone(),
            node_overlays: this.options.feature_gates.node_overlay,
            devices: !this.options.ignore_dra_requests,
            workload_selectors: !this.options.scheduler_config.default_spread.is_empty(),
        };
        // NodeOverlays stay off in the model: the provider's instance types already have them applied.
        let config = ClusterConfig::of(provider.profile());
        let (model, handle) = Model::new(config, &kinds.awaited());
        let (recorder, events) = Recorder::new(this.clients.api.clone(), this.clock);
        let elector = (!this.options.disable_leader_election).then(|| {
            let namespace = match this.options.leader_election_namespace.as_str() {
                "" => own_namespace(),
                namespace => namespace.to_owned(),
            };
            let lease = LeaseConfig::new(
                &namespace,
                &this.options.leader_election_name,
                &this.identity,
            );
            let slow = metrics.registry.counter(
                "leader_election_slowpath_total",
                "Total number of slow path exercised in renewing leader leases. 'name' is the string used to identify the lease. Please make sure to group by name.",
                &["name"],
            );
            slow.add(&[&this.options.leader_election_name], 0.0);
            Elector::new(this.clients.lease.clone(), lease, slow)
        });
        #[cfg(feature = "decisions")]
        let (is_shadow, explanations) = {
            let (options, clock) = (&this.options, this.clock);
            let is_shadow = refusals.is_some();
            let elector = elector.as_ref();
            (
                is_shadow,
                Explanations::new(options, clock, elector, refusals),
            )
        };
        #[cfg(feature = "decisions")]
        let listener = explanations.listener();
        #[cfg(not(feature = "decisions"))]
        let (is_shadow, listener) = (false, None);
        let events = (!is_shadow).then_some(events);
        let gates = this.options.feature_gates;
        let static_capacity = StaticCapacity::new(Settings::of(|gate| gates.is_on(gate)));
        let cx = Arc::new(Context {
            listener,
            clients: this.clients,
            clock: this.clock,
            options: this.options,
            provider,
            recorder,
            metrics,
            acting: Acting::default(),
            model: handle,
            claim_writes: Writes::default(),
            node_writes: Writes::trimmed(trim_node),
            pool_writes: Writes::default(),
            buffers: Buffers::default(),
            static_capacity,
            limited: tokio::sync::Mutex::default(),
            pod_nomination_forbidden: AtomicBool::default(),
        });
        #[cfg(feature = "decisions")]
        explanations.register(&cx);
        let mut controllers = ControllerRegistry {
            cx,
            model,
            starts: Vec::new(),
            always: Vec::new(),
            queues: Vec::new(),
            conditions: None,
            converts: false,
        };
        if !is_shadow {
            controllers.built_in();
        }
        #[cfg(feature = "decisions")]
        explanations.start(&mut controllers);
        if controllers.cx.options.feature_gates.node_overlay {
            controllers.controller(Evaluation::new(
                Arc::clone(&controllers.cx),
                Arc::new(without_overlays),
                accepted,
            ));
        }
        let extensions = match is_shadow {
            true => this.shadow_extensions,
            false => this.extensions,
        };
        for extension in extensions {
            extension(&mut controllers);
        }
        let queues = std::mem::take(&mut controllers.queues);
        show_queues(&controllers.cx.metrics.registry, queues);
        let (leadership, led) = watch::channel(Leadership::Following);
        Operator {
            readiness: Arc::new(Readiness::new(
                Arc::clone(&controllers.cx),
                led,
                controllers.converts,
            )),
            probed: controllers.cx.options.health_probe_port != 0,
            controllers,
            #[cfg(feature = "decisions")]
            explanations,
            elector,
            leadership,
            events,
            kinds,
            profiler,
        }
    }

    /// Builds the operator and runs it until `stop`.
    ///
    /// # Errors
    /// When a port is in use or the lease is lost.
    pub async fn run(self, stop: CancellationToken) -> Result<(), OperatorError> {
        self.build().run(stop).await
    }
}

impl Operator {
    /// Returns the context of the controllers, for embedders that observe them.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        self.controllers.context()
    }

    /// Returns the comparison with another Karpenter, in a shadow.
    #[cfg(feature = "decisions")]
    #[must_use]
    pub fn shadow(&self) -> Option<&Arc<crate::shadow::Shadow>> {
        self.explanations.shadow.as_ref()
    }

    /// Returns the probe behind `/readyz`, for embedders that serve their own probes.
    #[must_use]
    pub fn readiness(&mut self) -> Probe {
        self.probed = true;
        let readiness = Arc::clone(&self.readiness);
        Arc::new(move || readiness.check())
    }

    /// Runs until `stop`, then stops all parts in order.
    ///
    /// # Errors
    /// When a port is in use or the lease is lost.
    pub async fn run(self, stop: CancellationToken) -> Result<(), OperatorError> {
        let Self {
            controllers,
            #[cfg(feature = "decisions")]
            explanations,
            elector,
            leadership,
            readiness,
            probed,
            events,
            kinds,
            profiler,
        } = self;
        let cx = Arc::clone(controllers.context());
        let (outer, inner) = (TaskTracker::new(), Tasks::default());
        let outer_stop = CancellationToken::new();
        let _ended = outer_stop.clone().drop_guard();
        let ready = Arc::clone(&readiness);
        let ready: Probe = Arc::new(move || ready.check());
        serve(&cx, profiler, ready, &outer, &outer_stop).await?;
        #[cfg(feature = "decisions")]
        explanations.serve(&cx, &outer, &outer_stop).await;
        let ControllerRegistry {
            model,
            starts,
            always,
            ..
        } = controllers;
        for start in always {
            start(&outer, outer_stop.clone());
        }

        let mut led = leadership.subscribe();
        if elector.is_some() {
            show_leadership(&cx, led.clone());
        }
        match elector {
            Some(elector) => {
                outer.spawn(elector.run(leadership, outer_stop.clone()));
            }
            None => {
                leadership.send_replace(Leadership::Leading);
            }
        }
        if probed {
            outer.spawn(readiness.list_kinds(outer_stop.clone()));
        }
        let warm_up = !cx.options.disable_controller_warmup;
        let mut model = Some(model);
        if warm_up {
            watch_cluster(model.take(), &cx, &kinds, &inner);
        }
        let (mut leading, mut lost) = (false, false);
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = became(&mut led, Leadership::Leading) => leading = true,
        }
        if leading {
            cx.acting.begin(cx.clock.now());
            if let Some(listener) = &cx.listener {
                listener.leads(cx.clock.now());
            }
            #[cfg(feature = "decisions")]
            explanations.begin(cx.clock.now());
            // Events queued before belong to the previous leader.
            if let Some(events) = events {
                inner.spawn(events.forgetful(warm_up).run(inner.stopping()));
            }
            watch_cluster(model.take(), &cx, &kinds, &inner);
            for start in starts {
                start(&inner);
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = became(&mut led, Leadership::Lost) => lost = true,
            }
        }
        inner.stop.cancel();
        if lost {
            cx.acting.end();
            inner.kill.cancel();
        }
        inner.tracker.close();
        if tokio::time::timeout(GRACE, inner.tracker.wait())
            .await
            .is_err()
        {
            tracing::error!(logger = "controller", "controllers did not finish in time");
        }
        cx.acting.end();
        outer_stop.cancel();
        outer.close();
        if tokio::time::timeout(GRACE, outer.wait()).await.is_err() {
            tracing::error!(logger = "controller", "timed out releasing the lease");
        }
        if lost {
            Err(OperatorError::LeaseLost)
        } else {
            Ok(())
        }
    }
}

/// Registers client-go's metric of leadership.
fn show_leadership(cx: &Context, led: watch::Receiver<Leadership>) {
    let name = cx.options.leader_election_name.clone();
    let help = "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. 'name' is the string used to identify the lease. Please make sure to group by name.";
    let registry = &cx.metrics.registry;
    registry.live(
        "leader_election_master_status",
        help,
        &["name"],
        move |emit| {
            let leads = *led.borrow() == Leadership::Leading;
            emit.set(&[&name], f64::from(u8::from(leads)));
        },
    );
}

/// Waits for a state of leadership; forever, if the elector has ended.
async fn became(led: &mut watch::Receiver<Leadership>, state: Leadership) {
    if led.wait_for(|l| *l == state).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Starts the model, unless it runs already, and its watchers.
fn watch_cluster(model: Option<Model>, cx: &Context, kinds: &Kinds, tasks: &Tasks) {
    let Some(model) = model else { return };
    tasks.spawn(model.run(tasks.stopping()));
    let (api, recorder) = (&cx.clients.api, &cx.recorder);
    spawn_watchers(api, kinds, &cx.model, recorder, &tasks.tracker, &tasks.stop);
}

/// Serves metrics and probes; port 0 disables a listener.
async fn serve(
    cx: &Arc<Context>,
    profiler: Option<Profiler>,
    ready: Probe,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<(), OperatorError> {
    let disabled = |port: u16| port == 0;
    let sites = [
        (
            cx.options.metrics_port,
            Site::Metrics {
                registry: cx.metrics.registry.clone(),
                profiler,
            },
        ),
        (
            cx.options.health_probe_port,
            Site::Probes {
                live: Arc::new(|| Ok(())),
                ready,
            },
        ),
    ];
    let folder = cx.options.metrics_cert_dir.as_deref();
    let certificate = folder
        .map(Certificate::of_folder)
        .transpose()?
        .map(Arc::new);
    for (port, site) in sites.into_iter().filter(|(port, _)| !disabled(*port)) {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        // kubelet probes without TLS.
        let certificate = match site {
            Site::Metrics { .. } => certificate.clone(),
            Site::Probes { .. } => None,
        };
        let listening = admin::serve(address, site, certificate, tasks, stop.clone()).await;
        listening.map_err(|source| OperatorError::Listen { address, source })?;
    }
    Ok(())
}

/// Returns the namespace of this pod: `SYSTEM_NAMESPACE`, else the namespace of its service account, else `default`.
#[must_use]
pub fn own_namespace() -> String {
    let account = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
    let configured = std::env::var("SYSTEM_NAMESPACE").ok();
    let found = configured
        .into_iter()
        .chain(std::fs::read_to_string(account).ok());
    let mut named = found.map(|text| text.trim().to_owned());
    named
        .find(|text| !text.is_empty())
        .unwrap_or_else(|| "default".into())
}

/// Returns a unique name: the host name and a number from the standard library's random hash keys.
fn random_identity() -> String {
    use std::hash::{BuildHasher, Hasher};
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "karpenter".into());
    format!(
        "{host}_{:016x}",
        std::hash::RandomState::new().build_hasher().finish()
    )
}
