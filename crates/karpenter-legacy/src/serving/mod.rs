//! The conversion webhook over TLS, and its certificates.
//!
//! ```text
//! definitions ───use the webhook─────▶ keeper (the leader) ──▶ Secret SERVICE-cert ──watch──▶ listener (every replica)
//!      ▲                                    │
//!      └────────── CA bundle, address ──────┘
//! ```
//!
//! 1. [`keeper`]: while a definition of NodePool, NodeClaim or EC2NodeClass uses a webhook, the leader reconciles a certificate in
//!    the Secret and its CA bundle in the definitions. Without such a definition it creates nothing.
//! 2. [`listener`]: every replica reads the certificate from the Secret, listens once there is one, and switches to the next one
//!    without closing connections.
//! 3. [`material`]: the certificates themselves. A new authority is in the definitions before its certificate is served, and the
//!    previous one stays trusted, so that a renewal does not fail requests.
//! 4. [`pools`]: the expiry of NodePools for NodeClaims of v1beta1.
//! 5. [`service`]: what a request may cost.
//!
//! UPSTREAM: knative.dev/pkg/webhook/certificates, as v1.0 used it

mod keeper;
mod listener;
pub mod material;
mod pools;
mod service;

use std::fmt;
use std::sync::Arc;

use karpenter_kube::operator::{ControllerRegistry, own_namespace};
use kube::runtime::watcher;

use listener::Serving;
use pools::Pools;
pub use service::Webhook;

/// The default name of the Service.
const DEFAULT_SERVICE: &str = "karpenter";

/// The address of the webhook in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The namespace of Service and Secret.
    pub namespace: String,
    pub service: String,
    /// The port of Service and listener.
    pub port: u16,
}

impl Place {
    /// Creates the address from the service name and port of the options.
    #[must_use]
    pub fn new(service: &str, port: u16) -> Self {
        let service = Some(service).filter(|name| !name.is_empty());
        Self {
            namespace: own_namespace(),
            service: service.unwrap_or(DEFAULT_SERVICE).to_owned(),
            port,
        }
    }

    #[must_use]
    pub fn secret(&self) -> String {
        format!("{}-cert", self.service)
    }

    /// Returns the host name that the API server expects in the certificate.
    #[must_use]
    pub fn host(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }

    /// Returns all host names of the certificate.
    fn hosts(&self) -> Vec<String> {
        vec![
            self.service.clone(),
            format!("{}.{}", self.service, self.namespace),
            self.host(),
            format!("{}.cluster.local", self.host()),
        ]
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host(), self.port)
    }
}

/// Adds the webhook to an operator.
pub fn add(controllers: &mut ControllerRegistry, port: u16) {
    controllers.converts();
    let cx = Arc::clone(controllers.context());
    let place = Place::new(&cx.options.karpenter_service, port);
    let client = cx.clients.api.clone();
    let (pools, serving) = (Pools::default(), Serving::default());
    let (leading, at) = (client.clone(), place.clone());
    controllers.always(move |stop| async move {
        let webhook = Webhook::new(pools.clone());
        tokio::select! {
            () = pools.follow(client.clone()) => {}
            () = serving.follow(client, &at) => {}
            () = serving.listen(at.port, webhook, stop.clone()) => {}
            () = stop.cancelled() => {}
        }
    });
    controllers.task(move |stop| async move {
        tokio::select! {
            () = keeper::run(leading, place) => {}
            () = stop.cancelled() => {}
        }
    });
}

/// Returns the configuration of a watch on the object with a name.
fn only(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}
