//! Assembly of the provider: discovery at the start, and the controllers that run next to Karpenter's own.
//!
//! UPSTREAM: pkg/operator/operator.go, cmd/controller/main.go

pub mod discovery;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use karpenter_kube::clock::Clock;
use karpenter_kube::events::Recorder;
use karpenter_kube::metrics::Registry;
use karpenter_kube::operator::Setup;
use karpenter_kube::options::{MinValuesPolicy, Options};
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::cloud_provider::Ec2Provider;
use crate::cloud_provider::stores::{Stores, Watches};
use crate::controllers;
use crate::controllers::zonal_shift::{Managed, NotManaged};
use crate::options::AwsOptions;
use crate::providers::capacity_reservation::{ReservationCounts, Reservations};
use crate::providers::image::Images;
use crate::providers::instance::Instances;
use crate::providers::instance::fleet::Fleets;
use crate::providers::instance::launcher::Launcher;
use crate::providers::instance::{fleet, launcher};
use crate::providers::instance_profile::InstanceProfiles;
use crate::providers::instance_type::offered;
use crate::providers::instance_type::offered::Offered;
use crate::providers::instance_type::shifted_zones::ShiftedZones;
use crate::providers::instance_type::unavailable::Unavailable;
use crate::providers::instance_type::{ResolverSettings, SizeSettings};
use crate::providers::launch_template::{ClusterSettings, LaunchTemplates, SharedSettings};
use crate::providers::placement_group::PlacementGroups;
use crate::providers::security_group::SecurityGroups;
use crate::providers::subnet::Subnets;
use crate::providers::version::{KubernetesVersion, api_server_version, control_plane};
use crate::sdk::{Aws, AwsError};
use crate::user_data::Cluster;
use discovery::DiscoveryError;

/// How often unused launch templates are deleted.
const SWEEP: Duration = Duration::from_secs(10);

/// Settings of the provider.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the cluster.
    pub cluster: String,
    /// URL of the API server as nodes reach it; `None` to discover it from EKS.
    pub endpoint: Option<String>,
    /// Certificate authority of the API server, base64 of its PEM; `None` to discover it from EKS.
    pub ca_bundle: Option<String>,
    /// Whether the VPC has no way out: the price list and IAM are not called.
    pub isolated_vpc: bool,
    /// Options that determine capacity and overhead of instance types.
    pub sizes: SizeSettings,
    /// The feature gate NodeClassCEL.
    pub expressions: bool,
    /// The feature gate ReservedCapacity.
    pub reserved_capacity: bool,
    /// Whether the policy for minValues is Strict.
    pub strict_min_values: bool,
    /// How often subnets are described.
    pub subnet_refresh: Duration,
    /// How often spot prices are requested.
    pub spot_prices: Duration,
    /// Name of the interruption queue, if there is one.
    pub interruption_queue: Option<String>,
    /// Whether zonal shifts are observed.
    pub zonal_shift: bool,
    /// How often AMIs are described.
    pub ami_refresh: Duration,
    /// Whether EKS runs the control plane; its version is then read from EKS.
    pub eks_control_plane: bool,
    /// Whether node classes are validated without dry runs.
    pub disable_dry_run: bool,
    /// Batching window of CreateFleet.
    pub fleet_window: crate::sdk::batcher::Window,
}

impl Settings {
    /// Creates the settings from flags and environment. `ca_bundle` is the certificate authority of this process's own
    /// connection.
    #[must_use]
    pub fn from_options(core: &Options, aws: &AwsOptions, ca_bundle: Option<String>) -> Self {
        let some = |text: &str| Some(text.to_owned()).filter(|t| !t.is_empty());
        Self {
            endpoint: some(&aws.cluster_endpoint),
            ca_bundle: some(&aws.cluster_ca_bundle).or(ca_bundle),
            isolated_vpc: aws.isolated_vpc,
            sizes: SizeSettings {
                vm_memory_overhead_percent: aws.vm_memory_overhead_percent,
                reserved_enis: aws.reserved_enis(),
            },
            expressions: aws.aws_feature_gates.node_class_cel,
            reserved_capacity: core.feature_gates.reserved_capacity,
            strict_min_values: core.min_values_policy == MinValuesPolicy::Strict,
            subnet_refresh: aws.subnet_refresh_interval,
            spot_prices: aws.spot_price_interval,
            interruption_queue: some(&aws.interruption_queue),
            zonal_shift: aws.enable_zonal_shift,
            ami_refresh: aws.ami_refresh_interval,
            eks_control_plane: aws.eks_control_plane,
            disable_dry_run: aws.disable_dry_run,
            ..Self::for_cluster(&aws.cluster_name)
        }
    }

    /// Creates the default settings for a cluster.
    #[must_use]
    pub fn for_cluster(name: &str) -> Self {
        Self {
            cluster: name.to_owned(),
            endpoint: None,
            ca_bundle: None,
            isolated_vpc: false,
            sizes: SizeSettings {
                vm_memory_overhead_percent: 0.075,
                reserved_enis: 0,
            },
            expressions: false,
            reserved_capacity: true,
            strict_min_values: true,
            subnet_refresh: Duration::from_secs(60),
            spot_prices: offered::SPOT,
            interruption_queue: None,
            zonal_shift: false,
            ami_refresh: Duration::from_secs(60),
            eks_control_plane: false,
            disable_dry_run: false,
            fleet_window: fleet::WINDOW,
        }
    }
}

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

/// The parts of the provider, for its controllers.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Clients of AWS.
    pub aws: Aws,
    /// Settings of the provider.
    pub settings: Settings,
    /// Settings that all launch templates share: how nodes reach the cluster.
    pub cluster: SharedSettings,
    /// The cluster's version of Kubernetes.
    pub kubernetes: KubernetesVersion,
    /// Stores of node classes and NodePools.
    pub stores: Stores,
    /// The cloud provider.
    pub provider: Arc<Ec2Provider>,
    /// Instance types and offerings of node classes.
    pub offered: Arc<Offered>,
    /// AMIs of node classes.
    pub images: Images,
    /// Subnets of node classes.
    pub subnets: Subnets,
    /// Security groups of node classes.
    pub security_groups: SecurityGroups,
    /// Capacity reservations of node classes.
    pub reservations: Reservations,
    /// Placement groups of node classes.
    pub placement_groups: PlacementGroups,
    /// Instance profiles of the cluster.
    pub instance_profiles: InstanceProfiles,
    /// Launch templates of the cluster.
    pub templates: LaunchTemplates,
    /// The cluster's registration for zonal shifts, if they are observed.
    pub zonal_shift: Option<Managed>,
}

/// A provider that is ready to run.
pub struct Assembly {
    /// The parts of the provider.
    pub parts: Parts,
    watches: Watches,
    client: Client,
    clock: Clock,
}

impl std::fmt::Debug for Assembly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Assembly")
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

/// Discovers the cluster and assembles the provider.
///
/// # Errors
/// If AWS or the cluster cannot be used, with what to change.
pub async fn assemble(
    aws: Aws,
    client: Client,
    clock: Clock,
    registry: &Registry,
    settings: Settings,
) -> Result<Assembly, StartError> {
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
    let parts = Parts {
        images: Images::new(aws.clone(), kubernetes.clone(), settings.ami_refresh),
        security_groups: SecurityGroups::new(aws.clone()),
        reservations: Reservations::new(aws.clone(), counts),
        instance_profiles: InstanceProfiles::new(aws.clone(), &settings.cluster),
        aws,
        settings,
        cluster,
        kubernetes,
        stores,
        provider,
        offered,
        subnets,
        placement_groups,
        templates,
        zonal_shift,
    };
    Ok(Assembly {
        parts,
        watches,
        client,
        clock,
    })
}

/// Discovers how nodes reach the cluster, and its version.
async fn cluster(
    aws: &Aws,
    client: &Client,
    settings: &Settings,
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
    Ok((settings, kubernetes.map_err(DiscoveryError::from)?))
}

impl Assembly {
    /// Returns the cloud provider.
    #[must_use]
    pub fn provider(&self) -> Arc<Ec2Provider> {
        Arc::clone(&self.parts.provider)
    }

    /// Runs the stores of node classes and NodePools only, for embedders that use the provider without controllers.
    pub async fn watch(self, stop: CancellationToken) {
        // There is no recorder for events.
        let (recorder, _) = Recorder::new(self.client.clone(), self.clock);
        self.watches.run(self.client, recorder, stop).await;
    }

    /// Returns the parts and the watches that fill the stores, for embedders that run only some of the controllers.
    #[must_use]
    pub fn into_parts(self) -> (Parts, Watches) {
        (self.parts, self.watches)
    }

    /// Adds the provider's controllers to Karpenter's own: `Operator::builder(..).with(|setup| assembly.add(setup))`.
    pub fn add(self, setup: &mut Setup) {
        let Self {
            parts,
            watches,
            client,
            clock,
        } = self;
        parts
            .provider
            .set_recorder(setup.context().recorder.clone());
        let recorder = setup.context().recorder.clone();
        setup.task(move |stop| watches.run(client, recorder, stop));
        let offered = Arc::clone(&parts.offered);
        let spot_prices = parts.settings.spot_prices;
        setup.task(move |stop| offered.run(clock, spot_prices, stop));
        let templates = parts.templates.clone();
        setup.task(move |stop| templates.run(SWEEP, stop));
        controllers::add(&parts, setup);
    }
}
