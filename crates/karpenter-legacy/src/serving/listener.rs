//! Serving over TLS, with whatever certificate the Secret holds at the time.
//!
//! Anybody who reaches the port may ask: what is asked is answered from the question alone. So it is the effort that is limited:
//! connections, the time of a handshake and of a request, and the bytes of all requests together ([`crate::webhook`]).

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
use karpenter_kube::outage::Outage;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher as watch};
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

/// The most connections at a time.
const CONNECTIONS: usize = 128;
/// How long a handshake, or the head of a request, may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a request may take: the API server waits no longer.
const REQUEST: Duration = Duration::from_secs(30);
/// How long requests may go on once everything stops.
const GRACE: Duration = Duration::from_secs(5);
/// How soon a port that is taken is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// The certificate that is served.
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
    /// Keeps up with the Secret.
    pub(super) async fn follow(&self, client: Client, place: &Place) {
        let secrets: Api<Secret> = Api::namespaced(client, &place.namespace);
        let events = watch(secrets, only(&place.secret()));
        let events = events.backoff(watcher::DefaultBackoff::default());
        let mut outage = Outage::new("webhook", "Secret");
        pin_mut!(events);
        while let Some(event) = events.next().await {
            outage.saw(&event);
            if let Ok(Event::InitApply(secret) | Event::Apply(secret)) = event {
                self.take(&secret);
            }
        }
    }

    /// Changes over to what a Secret holds. An empty one waits for the leader.
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
            // The leader makes another one.
            Err(error) => tracing::error!(logger = "webhook", error = %error, "bad certificate"),
        }
    }

    /// Listens once there is a certificate, until `stop`.
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
                tracing::error!(logger = "webhook", error = %error, "cannot set up TLS");
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
            // Accepting fails when file descriptors run out; the next turn tries again.
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

/// The listener; whoever has the port is waited for.
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
                tokio::time::sleep(AGAIN).await;
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
    // A client that does not trust us, or talks no TLS, is its own to notice.
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
