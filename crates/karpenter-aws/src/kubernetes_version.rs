//! The cluster's version of Kubernetes, which decides which images an alias means. It is upgraded while we run.
//!
//! UPSTREAM: pkg/providers/version, pkg/controllers/providers/version

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use karpenter_core::provider::CloudProviderError;
use karpenter_kube::controller::{Doing, Periodic, ReconcileError};
use kube::Client;

use crate::discovery::{self, DiscoveryError};
use crate::sdk::Aws;

/// How often the version is looked at.
const LOOK: Duration = Duration::from_secs(5 * 60);

/// The version as it was last seen, such as `1.34`. Cheap to clone; clones agree.
#[derive(Clone, Debug)]
pub struct KubernetesVersion(Arc<RwLock<String>>);

impl KubernetesVersion {
    /// A version to begin with.
    #[must_use]
    pub fn new(version: &str) -> Self {
        check(version);
        Self(Arc::new(RwLock::new(version.to_owned())))
    }

    /// The version.
    #[must_use]
    pub fn current(&self) -> String {
        let version = self.0.read().unwrap_or_else(PoisonError::into_inner);
        version.clone()
    }

    /// Takes note of a version.
    pub fn set(&self, version: &str) {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
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

/// Logs, once for each version, that Karpenter is not tested with it, wherever the version came from.
fn check(version: &str) {
    if !discovery::is_tested_with(version) {
        tracing::error!(
            logger = "providers.version",
            version,
            "karpenter is not tested with this version of Kubernetes"
        );
    }
}

/// Looks for the version again and again: at EKS if it runs the control plane, else at the API server.
#[derive(Clone)]
pub struct Following {
    /// What is kept up to date.
    pub version: KubernetesVersion,
    /// The API server.
    pub client: Client,
    /// EKS, and the cluster's name there.
    pub eks: Option<(Aws, String)>,
}

impl std::fmt::Debug for Following {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Following")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Following {
    async fn look(&self) -> Result<String, DiscoveryError> {
        if let Some((aws, cluster)) = &self.eks {
            let told = discovery::control_plane(aws, cluster).await;
            let told = told.map_err(|error| DiscoveryError::Version(error.to_string()))?;
            if let Some(version) = told.version {
                return Ok(version);
            }
        }
        discovery::version(&self.client).await
    }
}

impl Periodic for Following {
    fn name(&self) -> &'static str {
        "providers.version"
    }

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        let version = self.look().await;
        let version = version
            .map_err(|error| CloudProviderError::Other(Box::new(error)))
            .doing("discovering the version of kubernetes")?;
        self.version.set(&version);
        Ok(LOOK)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_version_this_is_not_tested_with_is_said_once_whoever_told_it() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let version = KubernetesVersion::new("1.34");
            for told in ["1.34", "1.99", "1.99", "1.35"] {
                version.set(told);
            }
            let _ = KubernetesVersion::new("1.25");
        });
        let said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let said: Vec<&str> = said.lines().filter(|l| l.contains("not tested")).collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("1.99") && said[1].contains("1.25"));
    }
}
