//! How a test or the playground starts the control plane and gets clients for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use serde_json::Value;

use crate::clock::Clock;
use crate::faults::Faults;
use crate::server::{ApiServer, PodMutation, ServeError, ServedOverHttps, Settings, VERSION};
use crate::store::DEFAULT_HISTORY;

/// Settings of a control plane that is not started yet.
#[derive(Debug, Clone)]
pub struct Builder {
    clock: Option<Clock>,
    faults: Option<Faults>,
    seed: u64,
    history: usize,
    bookmark_interval: Duration,
    version: String,
    pod_mutation: Option<PodMutation>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            clock: None,
            faults: None,
            seed: 0,
            history: DEFAULT_HISTORY,
            bookmark_interval: Duration::from_secs(60),
            version: VERSION.to_owned(),
            pod_mutation: None,
        }
    }
}

impl Builder {
    /// The source of time; the wall clock unless set.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The fault switchboard; one without rules unless set.
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

    /// How many changes of each resource a watch can go back.
    #[must_use]
    pub fn history(mut self, changes: usize) -> Self {
        self.history = changes;
        self
    }

    /// How often watches that want bookmarks get one (in tokio's time).
    #[must_use]
    pub fn bookmark_interval(mut self, interval: Duration) -> Self {
        self.bookmark_interval = interval;
        self
    }

    /// The version of Kubernetes that the server says it is, such as `1.28`. It behaves alike under any.
    #[must_use]
    pub fn version(mut self, version: &str) -> Self {
        version.clone_into(&mut self.version);
        self
    }

    /// Changes every pod that is created, before anything else looks at it: what the webhooks of a cluster's add-ons do.
    #[must_use]
    pub fn mutate_pods(mut self, change: impl Fn(&mut Value) + Send + Sync + 'static) -> Self {
        self.pod_mutation = Some(PodMutation(Arc::new(change)));
        self
    }

    /// Starts the API server.
    #[expect(
        clippy::unused_async,
        reason = "starting may have to wait in the future, and clients need a runtime anyway"
    )]
    pub async fn start(self) -> Testbed {
        Testbed {
            server: ApiServer::new(Settings {
                clock: self.clock.unwrap_or_else(Clock::real),
                faults: self.faults.unwrap_or_else(|| Faults::new(self.seed)),
                seed: self.seed,
                history: self.history,
                bookmark_interval: self.bookmark_interval,
                version: self.version,
                pod_mutation: self.pod_mutation,
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
    /// Settings to start from.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A client as a component has it: its requests are hit by faults. Call it inside a tokio runtime.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.server.service(false), "default")
    }

    /// A client that no fault hits, for arranging and observing. Call it inside a tokio runtime.
    #[must_use]
    pub fn admin_client(&self) -> Client {
        Client::new(self.server.service(true), "default")
    }

    /// Serves the API over HTTPS; port 0 takes a free port. Dropping the answer ends it.
    ///
    /// # Errors
    /// When the address cannot be listened on or TLS cannot be set up.
    pub async fn serve(&self, address: SocketAddr) -> Result<ServedOverHttps, ServeError> {
        self.server.serve(address).await
    }

    /// The server, for requests that no client makes.
    #[must_use]
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// The switchboard.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.server.faults
    }

    /// The source of time.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.server.clock
    }

    /// Says another version of Kubernetes from now on, as after an upgrade of the control plane.
    pub fn upgrade(&self, version: &str) {
        self.server.set_version(version);
    }

    /// Forgets the history, as etcd's compaction does: watches and pages from before now report expiry.
    pub fn compact(&self) {
        self.server.store.compact();
    }

    /// Creates or replaces custom resource definitions; they are served when this returns.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn apply_crds(&self, crds: impl IntoIterator<Item = Value>) -> kube::Result<()> {
        for crd in crds {
            self.server.apply_crd(crd).await?;
        }
        Ok(())
    }

    /// Puts objects into the cluster as they stand, their status included, without any of the work of a request: nothing is
    /// defaulted, validated or owned by a field manager. For clusters too large to be made one request at a time; what is
    /// put in must be what an API server would have stored.
    ///
    /// Says how many were stored: those whose kind is not served or whose name is taken are not.
    pub fn load(&self, objects: impl IntoIterator<Item = Value>) -> usize {
        self.server.load(objects)
    }
}
