//! The provider put together: what is found out at the start, and what runs next to Karpenter's own controllers.
//!
//! UPSTREAM: pkg/operator/operator.go, cmd/controller/main.go

use std::sync::{Arc, Mutex};
use std::time::Duration;

use karpenter_kube::clock::Clock;
use karpenter_kube::events::Recorder;
use karpenter_kube::metrics::Registry;
use karpenter_kube::operator::Setup;
use karpenter_kube::options::{MinValuesPolicy, Options};
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::discovery::{self, DiscoveryError};
use crate::fleet::{self, Fleets};
use crate::images::Images;
use crate::instance_profiles::InstanceProfiles;
use crate::instance_types::{ResolverSettings, SizeSettings};
use crate::instances::Instances;
use crate::kubernetes_version::KubernetesVersion;
use crate::launch_templates::{ClusterSettings, LaunchTemplates, SharedSettings};
use crate::launcher::{self, Launcher};
use crate::node_class;
use crate::options::AwsOptions;
use crate::placement_groups::PlacementGroups;
use crate::provider::Ec2Provider;
use crate::provider::offered::{self, Offered};
use crate::reservations::{ReservationCounts, Reservations};
use crate::sdk::{Aws, AwsError};
use crate::security_groups::SecurityGroups;
use crate::shifted_zones::ShiftedZones;
use crate::stores::{Stores, Watches};
use crate::subnets::Subnets;
use crate::unavailable::Unavailable;
use crate::user_data::Cluster;
use crate::zonal_shift::{Managed, NotManaged};

/// How often unused launch templates are looked for.
const SWEEP: Duration = Duration::from_secs(10);

/// What the provider is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cluster's name.
    pub cluster: String,
    /// URL of the API server as nodes reach it; otherwise EKS is asked.
    pub endpoint: Option<String>,
    /// The certificate authority of the API server, base64 of its PEM; otherwise EKS is asked.
    pub ca_bundle: Option<String>,
    /// There is no way out of the VPC: the price list and IAM are not asked.
    pub isolated_vpc: bool,
    /// How instance types are sized.
    pub sizes: SizeSettings,
    /// The gate NodeClassCEL.
    pub expressions: bool,
    /// The gate ReservedCapacity.
    pub reserved_capacity: bool,
    /// The policy for minValues: whether they must hold to the end.
    pub strict_min_values: bool,
    /// How often subnets are asked for.
    pub subnet_refresh: Duration,
    /// How often spot prices are asked for.
    pub spot_prices: Duration,
    /// The queue with notices of interruptions, if there is one.
    pub interruption_queue: Option<String>,
    /// Whether to keep away from zones that traffic is shifted away from.
    pub zonal_shift: bool,
    /// How often images are asked for.
    pub ami_refresh: Duration,
    /// EKS runs the control plane, and knows its version.
    pub eks_control_plane: bool,
    /// Node classes are not tried out on EC2.
    pub disable_dry_run: bool,
    /// How long launches are collected.
    pub fleet_window: crate::sdk::batcher::Window,
}

impl Settings {
    /// What flags and environment say. `ca_bundle` is the authority of this process' own connection.
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

    /// The defaults for a cluster.
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

/// Why the provider could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Something could not be found out.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// Zonal shifts are to be followed and cannot be.
    #[error(transparent)]
    ZonalShift(#[from] NotManaged),
    /// EC2 did not tell its instance types.
    #[error("instance types cannot be listed: {0}")]
    InstanceTypes(#[source] AwsError),
}

/// Everything the provider is made of, for its controllers.
#[derive(Clone, Debug)]
pub struct Parts {
    /// AWS.
    pub aws: Aws,
    /// What it was told.
    pub settings: Settings,
    /// What launch templates have in common: how nodes reach the cluster.
    pub cluster: SharedSettings,
    /// `1.34`.
    pub kubernetes: KubernetesVersion,
    /// Node classes and NodePools.
    pub stores: Stores,
    /// The provider.
    pub provider: Arc<Ec2Provider>,
    /// What can be bought.
    pub offered: Arc<Offered>,
    /// Images.
    pub images: Images,
    /// Subnets.
    pub subnets: Subnets,
    /// Security groups.
    pub security_groups: SecurityGroups,
    /// Capacity reservations.
    pub reservations: Reservations,
    /// Placement groups.
    pub placement_groups: PlacementGroups,
    /// Instance profiles.
    pub instance_profiles: InstanceProfiles,
    /// Launch templates.
    pub templates: LaunchTemplates,
    /// The cluster as it is registered for zonal shifts, if they are to be followed.
    pub zonal_shift: Option<Managed>,
}

/// A provider that is ready to be run.
pub struct Assembly {
    /// What it is made of.
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

/// Finds out what is to be known and puts the provider together.
///
/// # Errors
/// When AWS or the cluster cannot be used, with what to change.
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
        // Nothing is to be launched into such a zone before the controller's first look.
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
        told: Arc::default(),
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

/// How nodes reach the cluster, and its version.
async fn cluster(
    aws: &Aws,
    client: &Client,
    settings: &Settings,
) -> Result<(ClusterSettings, String), DiscoveryError> {
    let name = &settings.cluster;
    let told = discovery::control_plane(aws, name).await;
    if let Err(error) = &told
        && settings.endpoint.is_some()
    {
        // Clusters that are not EKS's are none of its business; what AL2023 needs besides is told then by nobody.
        tracing::debug!(logger = "operator", error = %error, "unable to describe the cluster");
    }
    let (endpoint, control_plane) = match (&settings.endpoint, told) {
        (Some(endpoint), told) => (endpoint.clone(), told.unwrap_or_default()),
        (None, Ok(told)) => (told.endpoint.clone().unwrap_or_default(), told),
        (None, Err(source)) => {
            return Err(DiscoveryError::Endpoint {
                cluster: name.clone(),
                source,
            });
        }
    };
    let (kubernetes, dns) = futures::join!(discovery::version(client), discovery::dns(client));
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

impl Assembly {
    /// The provider.
    #[must_use]
    pub fn provider(&self) -> Arc<Ec2Provider> {
        Arc::clone(&self.parts.provider)
    }

    /// Follows node classes and NodePools and runs nothing else, for those who only ask the provider.
    pub async fn watch(self, stop: CancellationToken) {
        // Nobody writes events.
        let (recorder, _) = Recorder::new(self.client.clone(), self.clock);
        self.watches.run(self.client, recorder, stop).await;
    }

    /// What it is made of, and what fills its stores, for embedders that run only some of it.
    #[must_use]
    pub fn into_parts(self) -> (Parts, Watches) {
        (self.parts, self.watches)
    }

    /// Adds what runs next to Karpenter's own controllers: `Operator::builder(..).with(|setup| assembly.add(setup))`.
    pub fn add(self, setup: &mut Setup) {
        let Self {
            parts,
            watches,
            client,
            clock,
        } = self;
        parts
            .provider
            .tell_through(setup.context().recorder.clone());
        let recorder = setup.context().recorder.clone();
        setup.task(move |stop| watches.run(client, recorder, stop));
        let offered = Arc::clone(&parts.offered);
        let spot_prices = parts.settings.spot_prices;
        setup.task(move |stop| offered.run(clock, spot_prices, stop));
        let templates = parts.templates.clone();
        setup.task(move |stop| templates.run(SWEEP, stop));
        node_class::add(setup, &parts);
        crate::upkeep::add(&parts, setup);
    }
}
