//! AWS on a laptop: the embedded control plane, the AWS fake over HTTP, and the AWS provider.
//!
//! Instances of the AWS fake join the cluster as their user data says ([`karpenter_aws_fake::nodes`]).

mod older;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use karpenter_api::crd;
use karpenter_aws::cloud_provider::Ec2Provider;
use karpenter_aws::context::AwsSettings;
use karpenter_aws::operator::AwsOperator;
use karpenter_aws::sdk::{Aws, Connect};
use karpenter_aws_fake::{AwsFake, Server, nodes};
use karpenter_kube::clock::Clock;
use karpenter_kube::metrics::Registry;
use karpenter_kube::operator::{Operator, OperatorError};
use karpenter_kube::options::Options;
use karpenter_testbed::loops::Loops;
use karpenter_testbed::loops::node_agent::NodeAgentOptions;
use karpenter_testbed::{Faults, Testbed, loops};
use kube::Client;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub const REGION: &str = "us-west-2";
/// The name of the cluster.
pub const CLUSTER: &str = "playground";

/// The default Kubernetes version of the control plane.
pub const KUBERNETES: &str = "1.36";

/// Settings of a cluster on AWS.
#[derive(Debug)]
pub struct AwsClusterSettings {
    /// Speed of time relative to real time, for the cluster and for AWS.
    pub speed: f64,
    /// Seed of names and faults.
    pub seed: u64,
    pub options: Options,
    /// Kubernetes versions with published images; the first is that of the control plane.
    pub kubernetes: Vec<String>,
    /// Whether resources of older generations are served and converted.
    pub older_generations: bool,
    /// Time from an instance's launch until it is running, in seconds.
    pub pending_s: f64,
    /// Back-off before the first retry of a call to AWS.
    pub pause: Duration,
}

impl Default for AwsClusterSettings {
    /// Real time, no ports, no lease.
    fn default() -> Self {
        Self {
            speed: 1.0,
            seed: 0,
            options: Options {
                metrics_port: 0,
                decisions_port: 0,
                health_probe_port: 0,
                disable_leader_election: true,
                ..Options::default()
            },
            kubernetes: vec![KUBERNETES.to_owned()],
            older_generations: false,
            pending_s: 5.0,
            pause: Duration::from_millis(100),
        }
    }
}

/// A cluster on AWS without Karpenter: the control plane, the AWS fake, and instances that join the cluster.
pub struct AwsCluster {
    pub testbed: Testbed,
    pub fake: AwsFake,
    pub clock: Clock,
    server: Server,
    loops: Loops,
    instances: JoinHandle<()>,
    upgrades: JoinHandle<()>,
    older: Option<older::Generations>,
}

impl std::fmt::Debug for AwsCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AwsCluster").finish_non_exhaustive()
    }
}

impl AwsCluster {
    /// Starts the control plane, the AWS fake and the kubelets of its instances.
    ///
    /// # Errors
    /// If a part cannot be started.
    pub async fn start(settings: &AwsClusterSettings) -> Result<Self> {
        let epoch = Timestamp::now();
        let clock = Clock::new(epoch, settings.speed);
        let testbed_clock = karpenter_testbed::Clock::new(epoch, settings.speed);
        let versions: Vec<&str> = settings.kubernetes.iter().map(String::as_str).collect();
        let testbed = Testbed::builder()
            .clock(testbed_clock)
            .faults(Faults::new(settings.seed))
            .seed(settings.seed)
            .version(versions.first().copied().unwrap_or(KUBERNETES))
            .mutate_pods(nodes::admit)
            .garbage_collection()
            .start()
            .await;

        let definitions = crd::all(
            &[karpenter_aws::api::restricted_domain()],
            &[karpenter_aws::api::overlay_domain()],
        )
        .into_iter()
        .map(|(_, d)| d);
        testbed
            .apply_crds(definitions.chain([karpenter_aws::api::crd()]))
            .await
            .context("cannot install the CRDs")?;
        let older = match settings.older_generations {
            true => Some(older::install(&testbed).await?),
            false => None,
        };
        let agent = NodeAgentOptions {
            simulates: Arc::new(|node| {
                let id = node.spec.as_ref().and_then(|s| s.provider_id.as_deref());
                id.is_some_and(|id| id.starts_with("aws:///"))
            }),
            ..NodeAgentOptions::default()
        };
        let options = loops::Options {
            node_agent: Some(agent),
            ..loops::Options::default()
        };
        let loops = Loops::start(testbed.client(), testbed_clock, options);

        let fake = AwsFake::builder()
            .clock(karpenter_aws_fake::Clock::new(epoch, settings.speed))
            .seed(settings.seed)
            .cluster(CLUSTER)
            .kubernetes(&versions)
            .interruption_queue(CLUSTER)
            .settings(|s| s.pending_s = settings.pending_s)
            .build();
        let server = fake.serve(0).await.context("cannot serve the AWS fake")?;
        fake.add_instance_profile(
            &older::instance_profile(),
            Some(&format!("KarpenterNodeRole-{CLUSTER}")),
        );
        let joining = nodes::run(fake.clone(), testbed.client(), |instance, error| {
            tracing::error!(logger = "instances", error = %error, instance = instance.id, "failed joining instance to the cluster");
        });
        let instances = tokio::spawn(joining);
        let upgrades = tokio::spawn(follow_upgrades(fake.clone(), testbed.clone()));
        Ok(Self {
            testbed,
            fake,
            clock,
            server,
            loops,
            instances,
            upgrades,
            older,
        })
    }

    /// Returns the endpoint of the AWS fake, for `AWS_ENDPOINT_URL`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.server.url()
    }

    /// Returns the port at which the API server calls the conversion webhook, if older generations are served.
    #[must_use]
    pub fn webhook_port(&self) -> Option<u16> {
        self.older.as_ref().map(|older| older.webhook_port)
    }

    /// Returns a client without injected faults.
    #[must_use]
    pub fn client(&self) -> Client {
        self.testbed.admin_client()
    }

    /// Stops all parts gracefully.
    pub async fn shutdown(self) {
        self.instances.abort();
        self.upgrades.abort();
        self.loops.shutdown().await;
        self.server.stop();
    }
}

/// Keeps the version of the API server at that of the EKS cluster.
async fn follow_upgrades(fake: AwsFake, testbed: Testbed) {
    let mut changes = fake.changes();
    let mut version = fake.eks_cluster(CLUSTER).map(|cluster| cluster.version);
    while changes.changed().await.is_ok() {
        let now = fake.eks_cluster(CLUSTER).map(|cluster| cluster.version);
        if let (Some(now), true) = (&now, now != version) {
            testbed.upgrade(now);
        }
        version = now;
    }
}

/// A running cluster on AWS with Karpenter.
pub struct LocalCluster {
    /// The cluster without Karpenter.
    pub aws: AwsCluster,
    pub provider: Arc<Ec2Provider>,
    pub registry: Registry,
    stop: CancellationToken,
    operator: JoinHandle<Result<(), OperatorError>>,
}

impl std::fmt::Debug for LocalCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalCluster").finish_non_exhaustive()
    }
}

impl LocalCluster {
    /// Starts the cluster and the controllers.
    ///
    /// # Errors
    /// If a part cannot be started.
    pub async fn start(settings: AwsClusterSettings) -> Result<Self> {
        let cluster = AwsCluster::start(&settings).await?;
        let registry = Registry::new();
        let how = Connect {
            region: Some(REGION.into()),
            endpoint: Some(cluster.endpoint()),
            credentials: Some(("AKIAPLAYGROUND".into(), "playground".into())),
            pause: settings.pause,
            registry: registry.clone(),
            ..Connect::default()
        };
        let aws = Aws::connect(&how).await?;
        let provider_settings = AwsSettings {
            reserved_capacity: settings.options.feature_gates.reserved_capacity,
            interruption_queue: Some(CLUSTER.to_owned()),
            ..AwsSettings::for_cluster(CLUSTER)
        };
        let (client, clock) = (cluster.testbed.client(), cluster.clock);
        let on_aws =
            AwsOperator::new(aws, client.clone(), clock, &registry, provider_settings).await?;
        let provider = on_aws.provider();
        let cloud: Arc<dyn karpenter_core::provider::CloudProvider> =
            Arc::<Ec2Provider>::clone(&provider);
        let stop = CancellationToken::new();
        let operator = Operator::builder(cloud, client, settings.options)
            .clock(clock)
            .registry(registry.clone())
            .with(move |controllers| on_aws.add(controllers));
        let operator = match &cluster.older {
            Some(older) => {
                let options = older.options();
                operator.with(move |controllers| options.add(controllers))
            }
            None => operator,
        };
        let operator = tokio::spawn(operator.run(stop.clone()));
        Ok(Self {
            aws: cluster,
            provider,
            registry,
            stop,
            operator,
        })
    }

    /// Stops all parts gracefully.
    pub async fn shutdown(self) {
        self.stop.cancel();
        // A panicked operator has stopped, too.
        let _ = self.operator.await;
        self.aws.shutdown().await;
    }
}
