//! Serves the webhook over TLS with the current certificate of the Secret.
//!
//! Clients are not authenticated, as a response depends on the request alone. The cost is limited instead: connections and their
//! times ([`karpenter_listener`]), and the bytes and conversions of all requests together ([`super::service`]).

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::Secret;
use karpenter_kube::watch_failure_log::WatchFailureLog;
use karpenter_listener::{Connections, Listener};
use kube::runtime::watcher::{Event, watcher as watch};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::material::{Material, provider};
use super::service::{TIMEOUT, Webhook};
use super::{Place, only};

/// The most concurrent connections.
const CONNECTIONS: usize = 128;
/// The grace period of requests on shutdown.
const GRACE: Duration = Duration::from_secs(5);
/// The delay of a retry if the port is in use.
const BIND_RETRY: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default)]
pub(super) struct Serving {
    current: Arc<Current>,
}

#[derive(Debug, Default)]
struct Current {
    certificate: ArcSwapOption<CertifiedKey>,
    arrived: Notify,
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certificate.load_full()
    }
}

impl Serving {
    pub(super) async fn follow(&self, client: Client, place: &Place) {
        let secrets: Api<Secret> = Api::namespaced(client, &place.namespace);
        let events = watch(secrets, only(&place.secret()));
        let events = events.backoff(watcher::DefaultBackoff::default());
        let mut outage = WatchFailureLog::new("webhook", "Secret");
        pin_mut!(events);
        while let Some(event) = events.next().await {
            outage.saw(&event);
            if let Ok(Event::InitApply(secret) | Event::Apply(secret)) = event {
                self.take(&secret);
            }
        }
    }

    /// Switches to the certificate of a Secret. The leader fills an empty one.
    fn take(&self, secret: &Secret) {
        let data = secret.data.clone().unwrap_or_default();
        let Some(material) = Material::from_secret(&data) else {
            return;
        };
        match material.certified_key() {
            Ok(certificate) => {
                self.current.certificate.store(Some(Arc::new(certificate)));
                self.current.arrived.notify_one();
            }
            // The leader creates another one.
            Err(error) => {
                tracing::error!(logger = "webhook", error = %error, "failed reading certificate of conversion webhook")
            }
        }
    }

    /// Listens from the first certificate until `stop`.
    pub(super) async fn listen(&self, port: u16, webhook: Webhook, stop: CancellationToken) {
        while self.current.certificate.load().is_none() {
            self.current.arrived.notified().await;
        }
        let mut config = match ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
        {
            Ok(builder) => builder
                .with_no_client_auth()
                .with_cert_resolver(Arc::<Current>::clone(&self.current)),
            // INVARIANT: the provider has the default versions.
            Err(error) => {
                tracing::error!(logger = "webhook", error = %error, "failed setting up TLS of conversion webhook");
                return std::future::pending().await;
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let config = Arc::new(config);
        let mut listener = Listener::new(bind(port).await, Connections::new(CONNECTIONS));
        listener.tls = Some(Arc::new(move || Arc::clone(&config)));
        // As long again for the response.
        listener.request = 2 * TIMEOUT;
        listener.grace = GRACE;
        tracing::info!(logger = "webhook", port, "serving conversion webhook");
        let respond = move |request| webhook.clone().respond(request);
        listener.serve(respond, TaskTracker::new(), stop).await;
    }
}

/// Binds the port; retries while it is in use.
async fn bind(port: u16) -> TcpListener {
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => {
                tracing::error!(
                    logger = "webhook",
                    error = %error,
                    "cannot listen on {address} for the conversion webhook; set --webhook-port or --disable-webhook"
                );
                tokio::time::sleep(BIND_RETRY).await;
            }
        }
    }
}
