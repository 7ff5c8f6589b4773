//! Serves the webhook over TLS with the current certificate of the Secret.
//!
//! Clients are not authenticated, as a response depends on the request alone. The cost is limited instead: connections, the time
//! of a handshake and of a request, and the bytes of all requests together ([`crate::webhook`]).

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures::{StreamExt, pin_mut};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use k8s_openapi::api::core::v1::Secret;
use karpenter_kube::watch_failure_log::WatchFailureLog;
use kube::runtime::watcher::{Event, watcher as watch};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service as _;

use super::material::{Material, provider};
use super::{Place, only};
use crate::webhook::{Webhook, plain};

/// The most concurrent connections.
const CONNECTIONS: usize = 128;
/// The timeout of a handshake and of the head of a request.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The timeout of a request, which is that of the API server.
const REQUEST: Duration = Duration::from_secs(30);
/// The grace period of requests on shutdown.
const GRACE: Duration = Duration::from_secs(5);
/// The delay of a retry if the port is in use.
const BIND_RETRY: Duration = Duration::from_secs(5);

/// The served certificate.
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
    /// Watches the Secret.
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
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = bind(port).await;
        tracing::info!(logger = "webhook", port, "serving conversion webhook");
        let free = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            // INVARIANT: the semaphore is never closed.
            let Ok(permit) = Arc::clone(&free).acquire_owned().await else {
                return;
            };
            let accepted = listener.accept().await;
            // Accepting fails without free file descriptors; the next iteration retries.
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            let connection = connection(stream, acceptor.clone(), webhook.clone(), stop.clone());
            tokio::spawn(async move {
                connection.await;
                drop(permit);
            });
        }
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

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    webhook: Webhook,
    stop: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    // Clients report failed handshakes themselves.
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else {
        return;
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = webhook.clone().call(request);
        async move { Ok::<_, Infallible>(in_time(answer).await) }
    });
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE);
    server.http2().max_concurrent_streams(64);
    let connection = server.serve_connection(TokioIo::new(stream), service);
    pin_mut!(connection);
    tokio::select! {
        _ = &mut connection => return,
        () = stop.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(GRACE, connection).await;
}

async fn in_time(
    answer: impl Future<Output = Result<Response<Full<Bytes>>, Infallible>>,
) -> Response<Full<Bytes>> {
    match tokio::time::timeout(REQUEST, answer).await {
        Ok(Ok(response)) => response,
        Err(_) => plain(StatusCode::REQUEST_TIMEOUT, "the request took too long"),
    }
}
