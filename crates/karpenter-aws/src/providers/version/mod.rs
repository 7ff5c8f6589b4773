//! The cluster's version of Kubernetes, which decides the AMIs of an alias. It may change while the controller runs.
//!
//! UPSTREAM: pkg/providers/version, pkg/controllers/providers/version

mod control_plane;

use std::sync::Arc;
use std::time::Duration;

use karpenter_core::provider::CloudProviderError;
use karpenter_kube::controller::{Doing, Periodic, ReconcileError};
use kube::Client;
use parking_lot::RwLock;

pub use control_plane::{ControlPlane, control_plane};

use crate::sdk::{Aws, AwsError};

/// Minor versions of Kubernetes 1 that this release is tested with.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 26..=36;

/// Returns whether this release is tested with a version such as `1.34`.
#[must_use]
pub fn is_tested_with(version: &str) -> bool {
    let minor = version.strip_prefix("1.").map(str::parse::<u32>);
    matches!(minor, Some(Ok(minor)) if VERSIONS.contains(&minor))
}

/// How often the version is read.
const INTERVAL: Duration = Duration::from_secs(5 * 60);

/// The version of Kubernetes cannot be discovered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VersionError {
    /// The API server does not report its version.
    #[error("cannot find the version of Kubernetes: {0}")]
    ApiServer(String),
    /// EKS does not describe the cluster.
    #[error("cannot find the version of Kubernetes: {0}")]
    Eks(#[source] AwsError),
}

/// The last version read, such as `1.34`. Cheap to clone; clones share the value.
#[derive(Clone, Debug)]
pub struct KubernetesVersion(Arc<RwLock<String>>);

impl KubernetesVersion {
    /// Creates a holder with an initial version.
    #[must_use]
    pub fn new(version: &str) -> Self {
        check(version);
        Self(Arc::new(RwLock::new(version.to_owned())))
    }

    #[must_use]
    pub fn current(&self) -> String {
        let version = self.0.read();
        version.clone()
    }

    /// Replaces the version.
    pub fn set(&self, version: &str) {
        let mut current = self.0.write();
        if *current != version {
            tracing::info!(
                logger = "providers.version",
                version,
                "discovered kubernetes version"
            );
            check(version);
            version.clone_into(&mut current);
        }
    }
}

/// Logs once per version that Karpenter is not tested with it.
fn check(version: &str) {
    if !is_tested_with(version) {
        tracing::error!(
            logger = "providers.version",
            version,
            "karpenter is not tested with this version of Kubernetes"
        );
    }
}

/// Returns the version of the API server as a minor version, such as `1.34`.
///
/// # Errors
/// If the API server cannot be reached, or its version is not a version of Kubernetes 1.
pub async fn api_server_version(client: &Client) -> Result<String, VersionError> {
    let info = client
        .apiserver_version()
        .await
        .map_err(|error| VersionError::ApiServer(error.to_string()))?;
    let minor = info.minor.trim_end_matches('+');
    match (info.major.as_str(), minor.parse::<u32>()) {
        ("1", Ok(number)) => Ok(format!("1.{number}")),
        _ => Err(VersionError::ApiServer(format!(
            "`{}.{}` is not a version of Kubernetes 1",
            info.major, info.minor
        ))),
    }
}

/// Reads the version periodically: from EKS if it runs the control plane, else from the API server.
#[derive(Clone)]
pub struct VersionController {
    pub version: KubernetesVersion,
    /// Client of the API server.
    pub client: Client,
    /// EKS, and the name of the cluster there.
    pub eks: Option<(Aws, String)>,
}

impl std::fmt::Debug for VersionController {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VersionController")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl VersionController {
    async fn discover(&self) -> Result<String, VersionError> {
        if let Some((aws, cluster)) = &self.eks {
            let control_plane = control_plane(aws, cluster).await;
            let control_plane = control_plane.map_err(VersionError::Eks)?;
            if let Some(version) = control_plane.version {
                return Ok(version);
            }
        }
        api_server_version(&self.client).await
    }
}

impl Periodic for VersionController {
    const NAME: &'static str = "providers.version";

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        let version = self.discover().await;
        let version = version
            .map_err(CloudProviderError::other)
            .doing("discovering the version of kubernetes")?;
        self.version.set(&version);
        Ok(INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logged::logged;

    /// Conformance: AWS-startup-05
    #[test]
    fn a_version_that_is_not_tested_is_logged_once() {
        let mut lines = logged(|| {
            let version = KubernetesVersion::new("1.34");
            for discovered in ["1.34", "1.99", "1.99", "1.35"] {
                version.set(discovered);
            }
            let _ = KubernetesVersion::new("1.25");
        });
        lines.retain(|line| line.contains("not tested"));
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("1.99") && lines[1].contains("1.25"));
    }
}
