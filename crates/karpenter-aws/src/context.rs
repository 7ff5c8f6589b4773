//! What the provider's controllers share.
//!
//! UPSTREAM: pkg/operator/operator.go Operator

use std::sync::Arc;
use std::time::Duration;

use karpenter_kube::options::{MinValuesPolicy, Options};

use crate::cloud_provider::Ec2Provider;
use crate::cloud_provider::stores::Stores;
use crate::options::AwsOptions;
use crate::providers::capacity_reservation::Reservations;
use crate::providers::image::Images;
use crate::providers::instance::fleet;
use crate::providers::instance_profile::InstanceProfiles;
use crate::providers::instance_type::SizeSettings;
use crate::providers::instance_type::offered;
use crate::providers::instance_type::offered::Offered;
use crate::providers::launch_template::{LaunchTemplates, SharedSettings};
use crate::providers::placement_group::PlacementGroups;
use crate::providers::security_group::SecurityGroups;
use crate::providers::subnet::Subnets;
use crate::providers::version::KubernetesVersion;
use crate::sdk::Aws;
use crate::sdk::batcher::Window;

/// Settings of the provider. The flags of the controller are [`AwsOptions`]; tests and embedders set the fields.
#[derive(Clone, Debug)]
pub struct AwsSettings {
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
    pub fleet_window: Window,
}

impl AwsSettings {
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
            spot_prices: offered::SPOT_INTERVAL,
            interruption_queue: None,
            zonal_shift: false,
            ami_refresh: Duration::from_secs(60),
            eks_control_plane: false,
            disable_dry_run: false,
            fleet_window: fleet::WINDOW,
        }
    }
}

/// Clients, settings, stores and providers, for the provider's controllers. Cheap to clone; clones share the caches.
#[derive(Clone, Debug)]
pub struct AwsContext {
    pub clients: Aws,
    pub settings: AwsSettings,
    /// Settings that all launch templates share: how nodes reach the cluster.
    pub cluster: SharedSettings,
    pub kubernetes: KubernetesVersion,
    /// Stores of node classes and NodePools.
    pub stores: Stores,
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
    pub instance_profiles: InstanceProfiles,
    pub templates: LaunchTemplates,
}
