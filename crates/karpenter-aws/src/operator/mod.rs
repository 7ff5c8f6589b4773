//! Start of the provider: discovery of the cluster, creation of the providers, and the controllers that run next to
//! Karpenter's own.
//!
//! UPSTREAM: pkg/operator/operator.go, cmd/controller/main.go

pub mod catalogue;
pub mod discovery;

use std::sync::Arc;
use std::time::Duration;

use karpenter_kube::clock::Clock;
use karpenter_kube::events::Recorder;
use karpenter_kube::metrics::Registry;
use karpenter_kube::operator::ControllerRegistry;
use kube::Client;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::cloud_provider::Ec2Provider;
use crate::cloud_provider::stores::{Stores, Watches};
use crate::context::{AwsContext, AwsSettings};
use crate::controllers;
use crate::controllers::zonal_shift::{Managed, NotManaged};
use crate::providers::capacity_reservation::{ReservationCounts, Reservations};
use crate::providers::image::Images;
use crate::providers::instance::{Fleets, Instances, Launcher, launcher};
use crate::providers::instance_profile::InstanceProfiles;
use crate::providers::instance_type::ResolverSettings;
use crate::providers::instance_type::offered::Offered;
use crate::providers::instance_type::shifted_zones::ShiftedZones;
use crate::providers::instance_type::unavailable::Unavailable;
use crate::providers::launch_template::{ClusterSettings, LaunchTemplates, SharedSettings};
use crate::providers::placement_group::PlacementGroups;
use crate::providers::security_group::SecurityGroups;
use crate::providers::subnet::Subnets;
use crate::providers::version::{KubernetesVersion, api_server_version, control_plane};
use crate::sdk::{Aws, AwsError};
use crate::user_data::Cluster;
use discovery::DiscoveryError;

/// How often unused launch templates are deleted.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(10);

/// A failed start of the provider.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The discovery of the cluster failed.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// Zonal shifts are enabled and cannot be observed.
    #[error(transparent)]
    ZonalShift(#[from] NotManaged),
    /// EC2 did not return its instance types.
    #[error("cannot list instance types: {0}")]
    InstanceTypes(#[source] AwsError),
}

/// The provider with its controllers, ready to run next to Karpenter's own.
///
/// ```no_run
/// # async fn run(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use karpenter_aws::context::AwsSettings;
/// use karpenter_aws::operator::AwsOperator;
/// use karpenter_aws::sdk::{Aws, Connect};
/// use karpenter_kube::clock::Clock;
/// use karpenter_kube::metrics::Registry;
/// use karpenter_kube::operator::Operator;
/// use karpenter_kube::options::Options;
/// use tokio_util::sync::CancellationToken;
///
/// let registry = Registry::new();
/// let clients = Aws::connect(&Connect::default()).await?;
/// let settings = AwsSettings::for_cluster("production");
/// let aws = AwsOperator::new(clients, client.clone(), Clock::real(), &registry, settings).await?;
/// Operator::builder(aws.provider(), client, Options::default())
///     .registry(registry)
///     .with(move |controllers| aws.add(controllers))
///     .run(CancellationToken::new())
///     .await?;
/// # Ok(())
/// # }
/// ```
pub struct AwsOperator {
    /// What the controllers share.
    pub context: AwsContext,
    /// The cluster's registration for zonal shifts, if they are observed.
    zonal_shift: Option<Managed>,
    watches: Watches,
    client: Client,
    clock: Clock,
}

impl std::fmt::Debug for AwsOperator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AwsOperator")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

impl AwsOperator {
    /// Discovers the cluster, and creates the provider.
    ///
    /// # Errors
    /// If AWS or the cluster cannot be used, with what to change.
    pub async fn new(
        aws: Aws,
        client: Client,
        clock: Clock,
        registry: &Registry,
        settings: AwsSettings,
    ) -> Result<Self, StartError> {
        discovery::self_test(&aws).await?;
        let (cluster, kubernetes) = cluster(&aws, &client, &settings).await?;
        let zonal_shift = match settings.zonal_shift {
            true => Some(Managed::find(&aws, &settings.cluster).await?),
            false => None,
        };
        let cluster = SharedSettings::from(cluster);
        let kubernetes = KubernetesVersion::new(&kubernetes);
        let (stores, watches) = Stores::new();
        let shifted = ShiftedZones::default();
        if let Some(managed) = &zonal_shift {
            // No instance must be launched in such a zone before the controller's first pass.
            shifted.set(managed.at_first(clock.now()).into_keys().collect());
        }
        let counts = ReservationCounts::default();
        let unavailable = Arc::new(Mutex::new(Unavailable::default()));
        let offered = Arc::new(Offered::new(
            aws.clone(),
            ResolverSettings {
                region: aws.region().to_owned(),
                size: settings.sizes,
                expressions: settings.expressions,
            },
            Arc::clone(&unavailable),
            shifted.clone(),
            counts.clone(),
            settings.isolated_vpc,
        ));
        offered
            .refresh_types(clock.now())
            .await
            .map_err(StartError::InstanceTypes)?;
        let subnets = Subnets::new(aws.clone(), settings.subnet_refresh);
        let templates = LaunchTemplates::new(aws.clone(), &settings.cluster);
        let placement_groups = PlacementGroups::new(aws.clone());
        let launcher = Launcher {
            subnets: subnets.clone(),
            templates: templates.clone(),
            fleets: Fleets::new(aws.clone(), settings.fleet_window),
            instances: Arc::new(Instances::new(
                aws.clone(),
                &settings.cluster,
                settings.reserved_capacity,
                shifted,
            )),
            counts: counts.clone(),
            unavailable,
            settings: cluster.clone(),
            failures: launcher::failures(registry),
            recorder: Arc::default(),
        };
        let provider = Arc::new(Ec2Provider::new(
            stores.clone(),
            launcher,
            placement_groups.clone(),
            Arc::clone(&offered),
            clock,
            settings.strict_min_values,
        ));
        let context = AwsContext {
            images: Images::new(aws.clone(), kubernetes.clone(), settings.ami_refresh),
            security_groups: SecurityGroups::new(aws.clone()),
            reservations: Reservations::new(aws.clone(), counts),
            instance_profiles: InstanceProfiles::new(aws.clone(), &settings.cluster),
            clients: aws,
            settings,
            cluster,
            kubernetes,
            stores,
            provider,
            offered,
            subnets,
            placement_groups,
            templates,
        };
        Ok(Self {
            context,
            zonal_shift,
            watches,
            client,
            clock,
        })
    }

    #[must_use]
    pub fn provider(&self) -> Arc<Ec2Provider> {
        Arc::clone(&self.context.provider)
    }

    /// Runs the stores of node classes and NodePools only, for embedders that use the provider without controllers.
    pub async fn watch(self, stop: CancellationToken) {
        // There is no recorder for events.
        let (recorder, _) = Recorder::new(self.client.clone(), self.clock);
        self.watches.run(self.client, recorder, stop).await;
    }

    /// Returns the context and the watches that fill its stores, for embedders that run only some of the controllers.
    #[must_use]
    pub fn into_context(self) -> (AwsContext, Watches) {
        (self.context, self.watches)
    }

    /// Adds the provider's controllers to Karpenter's own: `Operator::builder(..).with(|controllers| aws.add(controllers))`.
    pub fn add(self, controllers: &mut ControllerRegistry) {
        let (context, zonal_shift) = self.add_stores(controllers);
        context
            .provider
            .set_recorder(controllers.context().recorder.clone());
        let templates = context.templates.clone();
        controllers.task(move |stop| templates.run(CLEANUP_INTERVAL, stop));
        controllers::add(controllers, &context, zonal_shift);
    }

    /// Adds only what offers instance types: the stores of node classes and NodePools, instance types and prices. For a shadow
    /// (`--shadow`), which makes no call that changes something.
    pub fn add_reads(self, controllers: &mut ControllerRegistry) {
        self.add_stores(controllers);
    }

    fn add_stores(self, controllers: &mut ControllerRegistry) -> (AwsContext, Option<Managed>) {
        let Self {
            context,
            zonal_shift,
            watches,
            client,
            clock,
        } = self;
        let recorder = controllers.context().recorder.clone();
        controllers.task(move |stop| watches.run(client, recorder, stop));
        let offered = Arc::clone(&context.offered);
        let spot_prices = context.settings.spot_prices;
        controllers.task(move |stop| offered.run(clock, spot_prices, stop));
        (context, zonal_shift)
    }
}

/// Discovers how nodes reach the cluster, and its version.
async fn cluster(
    aws: &Aws,
    client: &Client,
    settings: &AwsSettings,
) -> Result<(ClusterSettings, String), DiscoveryError> {
    let name = &settings.cluster;
    let described = control_plane(aws, name).await;
    if let Err(error) = &described
        && settings.endpoint.is_some()
    {
        // A cluster outside of EKS cannot be described; the service CIDR that AL2023 needs then stays unknown.
        tracing::debug!(logger = "operator", error = %error, "aws-error-code" = error.code.as_deref(), "unable to describe the cluster");
    }
    let (endpoint, control_plane) = match (&settings.endpoint, described) {
        (Some(endpoint), described) => (endpoint.clone(), described.unwrap_or_default()),
        (None, Ok(described)) => (described.endpoint.clone().unwrap_or_default(), described),
        (None, Err(source)) => {
            return Err(DiscoveryError::Endpoint {
                cluster: name.clone(),
                source,
            });
        }
    };
    let (kubernetes, dns) = futures::join!(api_server_version(client), discovery::dns(client));
    let settings = ClusterSettings {
        cluster: Cluster {
            name: name.clone(),
            endpoint,
            certificate_authority: settings
                .ca_bundle
                .clone()
                .or(control_plane.certificate_authority),
            service_cidr: control_plane.service_cidr,
        },
        dns,
        region: aws.region().to_owned(),
        reserved_capacity: settings.reserved_capacity,
    };
    Ok((settings, kubernetes?))
}
