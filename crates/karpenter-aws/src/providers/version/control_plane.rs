//! A cluster as EKS describes it.

use crate::sdk::{Aws, AwsError};

/// The control plane of a cluster, as EKS describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlPlane {
    pub arn: Option<String>,
    /// URL of the API server.
    pub endpoint: Option<String>,
    /// Certificate authority of the API server, base64 of its PEM.
    pub certificate_authority: Option<String>,
    /// CIDR of the cluster's services; the IPv4 one in a dual-stack cluster.
    pub service_cidr: Option<String>,
    /// Kubernetes version, such as `1.34`.
    pub version: Option<String>,
}

/// Describes a cluster in EKS.
///
/// # Errors
/// The error of EKS.
pub async fn control_plane(aws: &Aws, name: &str) -> Result<ControlPlane, AwsError> {
    let answer = aws
        .eks("DescribeCluster", |client| {
            client.describe_cluster().name(name).send()
        })
        .await?;
    let Some(cluster) = answer.cluster() else {
        return Err(AwsError::unreadable(
            "DescribeCluster",
            "the response lacks the cluster",
        ));
    };
    let network = cluster.kubernetes_network_config();
    let cidr = network.and_then(|n| n.service_ipv4_cidr().or_else(|| n.service_ipv6_cidr()));
    Ok(ControlPlane {
        arn: cluster.arn().map(str::to_owned),
        endpoint: cluster.endpoint().map(str::to_owned),
        certificate_authority: cluster
            .certificate_authority()
            .and_then(|c| c.data())
            .map(str::to_owned),
        service_cidr: cidr.map(str::to_owned),
        version: cluster.version().map(str::to_owned),
    })
}
