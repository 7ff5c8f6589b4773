//! The instance types and offerings of NodePools, without controllers: for `karpenter catalogue`. All calls are reads.

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::v1::NodePool;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::provider::CloudProviderError;
use parking_lot::Mutex;

use crate::api::EC2NodeClass;
use crate::api::labels::GROUP;
use crate::context::AwsSettings;
use crate::kubelet;
use crate::providers::capacity_reservation::ReservationCounts;
use crate::providers::image::Images;
use crate::providers::instance_type::ResolverSettings;
use crate::providers::instance_type::offered::Offered;
use crate::providers::instance_type::shifted_zones::ShiftedZones;
use crate::providers::instance_type::unavailable::Unavailable;
use crate::providers::placement_group::PlacementGroups;
use crate::providers::subnet::Subnets;
use crate::providers::version::{KubernetesVersion, control_plane};
use crate::sdk::{Aws, AwsError};

/// Why there is no catalogue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogueError {
    /// EC2 did not return its instance types.
    #[error("cannot list instance types: {0}")]
    InstanceTypes(#[source] AwsError),
    /// EC2 did not return its spot prices.
    #[error("cannot list spot prices: {0}")]
    SpotPrices(#[source] AwsError),
    /// The EC2NodeClass of a NodePool is missing.
    #[error("cannot find ec2nodeclass `{class}` of nodepool `{pool}`")]
    NoClass {
        pool: String,
        /// The EC2NodeClass.
        class: String,
    },
    /// The subnets or AMIs of an EC2NodeClass that has no status cannot be looked up.
    #[error("cannot resolve ec2nodeclass `{class}`: {source}")]
    Lookup {
        /// The EC2NodeClass.
        class: String,
        /// The failed call.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An EC2NodeClass is invalid.
    #[error("cannot resolve the instance types of nodepool `{pool}`: {source}")]
    Invalid {
        pool: String,
        /// What is invalid.
        #[source]
        source: CloudProviderError,
    },
}

/// Looks up what is missing in EC2NodeClasses that no controller has made ready.
struct Lookups {
    aws: Aws,
    cluster: String,
    subnets: Subnets,
    placement_groups: PlacementGroups,
}

impl Lookups {
    /// Fills in the subnets and AMIs of the status, as far as it has none.
    async fn complete(&self, class: &mut EC2NodeClass, now: Timestamp) -> Result<(), AnyError> {
        // Caches are by uid.
        let name = class.metadata.name.clone();
        class.metadata.uid = class.metadata.uid.take().or(name);
        if class.status.subnets.is_empty() {
            class.status.subnets = self.subnets.list(class).await?.to_vec();
        }
        if class.status.amis.is_empty() {
            let described = control_plane(&self.aws, &self.cluster).await?;
            let version = described.version.unwrap_or_default();
            let version = KubernetesVersion::new(&version);
            let images = Images::new(self.aws.clone(), version, std::time::Duration::ZERO);
            class.status.amis = images.list(class, now).await?.to_vec();
        }
        Ok(())
    }
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Returns the instance types of each NodePool of an EC2NodeClass at `now`, before NodeOverlays, by the name of the NodePool. An
/// EC2NodeClass without a status, as in a file, is resolved: its subnets, and the AMIs for the cluster's version.
///
/// # Errors
/// If a call fails, or an EC2NodeClass is missing or invalid. Without the price list the built-in prices are used.
pub async fn catalogue(
    aws: &Aws,
    settings: &AwsSettings,
    pools: &[NodePool],
    classes: &[EC2NodeClass],
    now: Timestamp,
) -> Result<Vec<(String, Vec<InstanceType>)>, CatalogueError> {
    let offered = Offered::new(
        aws.clone(),
        ResolverSettings {
            region: aws.region().to_owned(),
            size: settings.sizes,
            expressions: settings.expressions,
        },
        Arc::new(Mutex::new(Unavailable::default())),
        ShiftedZones::default(),
        ReservationCounts::default(),
        settings.isolated_vpc,
    );
    let types = offered.refresh_types(now).await;
    types.map_err(CatalogueError::InstanceTypes)?;
    if let Err(error) = offered.refresh_on_demand_prices().await {
        tracing::error!(logger = "catalogue", %error, "using the built-in prices");
    }
    let prices = offered.refresh_spot_prices(now).await;
    prices.map_err(CatalogueError::SpotPrices)?;
    let lookups = Lookups {
        aws: aws.clone(),
        cluster: settings.cluster.clone(),
        subnets: Subnets::new(aws.clone(), settings.subnet_refresh),
        placement_groups: PlacementGroups::new(aws.clone()),
    };
    let mut all = Vec::new();
    for pool in pools {
        let reference = &pool.spec.template.spec.node_class_ref;
        if reference.group != GROUP {
            continue;
        }
        let name = pool.name().to_owned();
        let found = classes
            .iter()
            .find(|class| class.metadata.name.as_deref() == Some(&reference.name));
        let class = found.ok_or_else(|| CatalogueError::NoClass {
            pool: name.clone(),
            class: reference.name.clone(),
        })?;
        let failed = |source: AnyError| CatalogueError::Lookup {
            class: reference.name.clone(),
            source,
        };
        let invalid = |source| CatalogueError::Invalid {
            pool: name.clone(),
            source,
        };
        let class = kubelet::with_v1beta1(class, pool.kubelet_compatibility());
        let class = class.map_err(|error| invalid(CloudProviderError::other(error)))?;
        let mut class = class.into_owned();
        lookups.complete(&mut class, now).await.map_err(failed)?;
        let group = match &class.spec.placement_group_selector {
            Some(selector) => lookups.placement_groups.get(selector).await,
            None => Ok(None),
        };
        let group = group.map_err(|error| failed(Box::new(error)))?;
        let types = offered.types(&class, group, now).map_err(invalid)?;
        all.push((name, types.to_vec()));
    }
    Ok(all)
}
