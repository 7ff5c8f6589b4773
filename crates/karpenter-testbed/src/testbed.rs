//! Starts the control plane for tests and the playground, and creates clients for it.

use std::net::SocketAddr;
use std::sync::Arc;

use kube::Client;
use serde_json::Value;

use crate::clock::Clock;
use crate::faults::Faults;
use crate::server::{ApiServer, PodMutation, ServeError, ServedOverHttps, ServerSettings, VERSION};

/// Settings of a control plane that is not started yet.
#[derive(Debug, Clone)]
pub struct Builder {
    clock: Option<Clock>,
    faults: Option<Faults>,
    seed: u64,
    version: String,
    pod_mutation: Option<PodMutation>,
    garbage_collection: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            clock: None,
            faults: None,
            seed: 0,
            version: VERSION.to_owned(),
            pod_mutation: None,
            garbage_collection: false,
        }
    }
}

impl Builder {
    /// Sets the clock; the default is the wall clock.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the fault rules; by default there are none.
    #[must_use]
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Seeds UIDs, generated names and (unless set) the faults.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the reported version of Kubernetes, such as `1.28`. The behavior does not depend on it.
    #[must_use]
    pub fn version(mut self, version: &str) -> Self {
        version.clone_into(&mut self.version);
        self
    }

    /// Changes every pod that is created, before any admission: as the webhooks of a cluster's add-ons do.
    #[must_use]
    pub fn mutate_pods(mut self, change: impl Fn(&mut Value) + Send + Sync + 'static) -> Self {
        self.pod_mutation = Some(PodMutation(Arc::new(change)));
        self
    }

    /// Deletes or orphans the dependents of deleted objects, as the garbage collector of kube-controller-manager does.
    #[must_use]
    pub fn garbage_collection(mut self) -> Self {
        self.garbage_collection = true;
        self
    }

    /// Starts the API server.
    #[expect(
        clippy::unused_async,
        reason = "starting may have to wait in the future, and clients need a runtime anyway"
    )]
    pub async fn start(self) -> Testbed {
        Testbed {
            server: ApiServer::new(ServerSettings {
                clock: self.clock.unwrap_or_else(Clock::real),
                faults: self.faults.unwrap_or_else(|| Faults::new(self.seed)),
                seed: self.seed,
                version: self.version,
                pod_mutation: self.pod_mutation,
                garbage_collection: self.garbage_collection,
            }),
        }
    }
}

/// A running control plane. Cheap to clone; clones are the same control plane.
///
/// ```
/// use karpenter_testbed::Testbed;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let testbed = Testbed::builder().seed(1).start().await;
/// let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(testbed.client());
/// assert!(nodes.list(&Default::default()).await.unwrap().items.is_empty());
/// # });
/// ```
#[derive(Debug, Clone)]
pub struct Testbed {
    server: ApiServer,
}

impl Testbed {
    /// Returns the default settings.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns a client of a component: its requests have the injected faults. Call it inside a tokio runtime.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.server.service(false), "default")
    }

    /// Returns a client without injected faults, for setup and assertions. Call it inside a tokio runtime.
    #[must_use]
    pub fn admin_client(&self) -> Client {
        Client::new(self.server.service(true), "default")
    }

    /// Serves the API over HTTPS; port 0 selects a free port. Dropping the result stops it.
    ///
    /// # Errors
    /// If the address cannot be listened on or TLS cannot be set up.
    pub async fn serve(&self, address: SocketAddr) -> Result<ServedOverHttps, ServeError> {
        self.server.serve(address).await
    }

    /// Returns the server, for requests without a client.
    #[must_use]
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// Returns the fault rules.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.server.faults
    }

    #[must_use]
    pub fn clock(&self) -> Clock {
        self.server.clock
    }

    /// Changes the reported version of Kubernetes, as an upgrade of the control plane does.
    pub fn upgrade(&self, version: &str) {
        self.server.set_version(version);
    }

    /// Deletes the watch history, as etcd's compaction does: earlier watches and pages expire.
    pub fn compact(&self) {
        self.server.store.compact();
    }

    /// Creates or replaces CustomResourceDefinitions; they are served when this returns.
    ///
    /// # Errors
    /// The response of the server.
    pub async fn apply_crds(&self, crds: impl IntoIterator<Item = Value>) -> kube::Result<()> {
        for crd in crds {
            self.server.apply_crd(crd).await?;
        }
        Ok(())
    }

    /// Inserts objects into the store unchanged, including their status, without the steps of a request: they are not defaulted,
    /// not validated, and have no field managers. For clusters that are too large for single requests; the objects must be valid
    /// stored objects.
    ///
    /// Returns the number of stored objects: objects of unknown kinds and with existing names are skipped.
    pub fn load(&self, objects: impl IntoIterator<Item = Value>) -> usize {
        self.server.load(objects)
    }
}
