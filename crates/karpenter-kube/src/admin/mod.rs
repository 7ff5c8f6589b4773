//! The two HTTP listeners: `/metrics` (and profiles, if enabled) on one port, with TLS if there is a certificate;
//! `/healthz` and `/readyz` on the other. Each has connections of its own, so that scrapes keep no probe waiting.

mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use karpenter_listener::{Connections, Listener};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::controller::compute;
use crate::metrics::Registry;

pub use tls::{Certificate, CertificateError};

/// Reports whether the process is alive or ready, with the reason if not.
pub type Probe = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Profiles the CPU for the given time and returns a profile for `go tool pprof`, or the reason why it cannot.
pub type Profiler =
    Arc<dyn Fn(Duration) -> BoxFuture<'static, Result<Vec<u8>, String>> + Send + Sync>;

/// How long a profile is taken without `?seconds=` in the request, as in Go.
const DEFAULT_PROFILE: Duration = Duration::from_secs(30);

/// The longest profile of one request.
const MAX_PROFILE: Duration = Duration::from_mins(5);

/// The most open connections of a listener.
const CONNECTIONS: usize = 32;

/// How long a request may take until its response has been sent, besides the time of a profile.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The endpoints of a listener.
pub enum Site {
    /// `/metrics` of a registry.
    Metrics {
        /// The registry that is rendered.
        registry: Registry,
        /// Serves `/debug/pprof/profile`, if enabled.
        profiler: Option<Profiler>,
    },
    /// `/healthz` and `/readyz`.
    Probes {
        /// Liveness: the kubelet restarts the process when it fails.
        live: Probe,
        /// Readiness: whether the process can do its work.
        ready: Probe,
    },
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Site::Metrics { .. } => "Site::Metrics",
            Site::Probes { .. } => "Site::Probes",
        })
    }
}

/// What the connections of a listener share.
#[derive(Debug)]
struct Server {
    site: Site,
    /// Metrics are rendered for one request at a time, however many ask and go away again.
    rendering: Arc<Mutex<()>>,
}

impl Server {
    async fn answer(&self, method: &Method, uri: &Uri) -> Response<Full<Bytes>> {
        if method != Method::GET && method != Method::HEAD {
            return text(
                StatusCode::METHOD_NOT_ALLOWED,
                "only GET is served\n".into(),
            );
        }
        let probe = |probe: &Probe| match probe() {
            Ok(()) => text(StatusCode::OK, "ok".into()),
            Err(reason) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{reason}\n")),
        };
        match (&self.site, uri.path()) {
            (Site::Metrics { registry, .. }, "/metrics") => self.render(registry).await,
            (
                Site::Metrics {
                    profiler: Some(profiler),
                    ..
                },
                "/debug/pprof/profile",
            ) => profile(profiler, uri.query().unwrap_or_default()).await,
            (Site::Probes { live, .. }, "/healthz") => probe(live),
            (Site::Probes { ready, .. }, "/readyz") => probe(ready),
            _ => text(StatusCode::NOT_FOUND, "not found\n".into()),
        }
    }

    async fn render(&self, registry: &Registry) -> Response<Full<Bytes>> {
        let rendering = Arc::clone(&self.rendering).lock_owned().await;
        let registry = registry.clone();
        let render = move || {
            let _rendering = rendering;
            registry.render()
        };
        match compute("rendering the metrics", render).await {
            Ok(rendered) => text(StatusCode::OK, rendered),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    }
}

async fn profile(profiler: &Profiler, query: &str) -> Response<Full<Bytes>> {
    let asked = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("seconds="));
    let duration = match asked.map(str::parse) {
        None => DEFAULT_PROFILE,
        Some(Ok(seconds @ 1..)) => Duration::from_secs(seconds).min(MAX_PROFILE),
        Some(_) => {
            let message = "seconds: must be a whole number above 0\n";
            return text(StatusCode::BAD_REQUEST, message.into());
        }
    };
    match profiler(duration).await {
        Ok(profile) => answer(StatusCode::OK, "application/octet-stream", profile.into()),
        Err(reason) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{reason}\n")),
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let plain = "text/plain; version=0.0.4; charset=utf-8";
    answer(status, plain, body.into())
}

fn answer(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static(content_type),
    );
    response
}

/// Listens on `address` and serves `site` until `stop`, over TLS if there is a certificate. Returns the bound address,
/// which differs if the port is 0.
///
/// # Errors
/// When the address cannot be bound.
pub async fn serve(
    address: SocketAddr,
    site: Site,
    certificate: Option<Arc<Certificate>>,
    tasks: &TaskTracker,
    stop: CancellationToken,
) -> std::io::Result<SocketAddr> {
    let socket = TcpListener::bind(address).await?;
    let bound = socket.local_addr()?;
    let profiles = matches!(
        &site,
        Site::Metrics {
            profiler: Some(_),
            ..
        }
    );
    let mut listener = Listener::new(socket, Connections::new(CONNECTIONS));
    listener.tls = certificate.map(tls::settings);
    listener.request = if profiles {
        MAX_PROFILE + REQUEST_TIMEOUT
    } else {
        REQUEST_TIMEOUT
    };
    let server = Arc::new(Server {
        site,
        rendering: Arc::default(),
    });
    let respond = move |request: Request<_>| {
        let server = Arc::clone(&server);
        async move { server.answer(request.method(), request.uri()).await }
    };
    tasks.spawn(listener.serve(respond, tasks.clone(), stop));
    Ok(bound)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn get(site: &Server, uri: &str) -> (StatusCode, Bytes) {
        let response = site.answer(&Method::GET, &uri.parse().unwrap()).await;
        let (parts, body) = response.into_parts();
        let body = http_body_util::BodyExt::collect(body).await.unwrap();
        (parts.status, body.to_bytes())
    }

    fn server(site: Site) -> Server {
        Server {
            site,
            rendering: Arc::default(),
        }
    }

    fn metrics(registry: Registry, profiler: Option<Profiler>) -> Site {
        Site::Metrics { registry, profiler }
    }

    fn probes(ready: Result<(), &'static str>) -> Site {
        Site::Probes {
            live: Arc::new(|| Ok(())),
            ready: Arc::new(move || ready.map_err(str::to_owned)),
        }
    }

    /// Conformance: API-156
    #[tokio::test]
    async fn probes_return_the_reason_of_a_failure() {
        let site = server(probes(Err("not synced")));
        assert_eq!(get(&site, "/healthz").await.0, StatusCode::OK);
        let (status, reason) = get(&site, "/readyz").await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(reason, "not synced\n");
        assert_eq!(get(&site, "/metrics").await.0, StatusCode::NOT_FOUND);
        let healthz = Uri::from_static("/healthz");
        let posted = site.answer(&Method::POST, &healthz).await;
        assert_eq!(posted.status(), StatusCode::METHOD_NOT_ALLOWED);
    }

    /// Conformance: API-157
    #[tokio::test]
    async fn profiles_are_served_only_with_a_profiler() {
        let site = server(metrics(Registry::new(), None));
        let asked = get(&site, "/debug/pprof/profile").await;
        assert_eq!(asked.0, StatusCode::NOT_FOUND);
    }

    /// Conformance: API-157
    #[tokio::test]
    async fn a_profile_takes_the_requested_seconds_and_five_minutes_at_most() {
        let profiler: Profiler = Arc::new(|duration: Duration| {
            Box::pin(async move { Ok(duration.as_secs().to_string().into_bytes()) })
        });
        let site = server(metrics(Registry::new(), Some(profiler)));
        for (uri, seconds) in [
            ("/debug/pprof/profile", "30"),
            ("/debug/pprof/profile?seconds=5", "5"),
            ("/debug/pprof/profile?debug=0&seconds=999999", "300"),
        ] {
            let (status, body) = get(&site, uri).await;
            assert_eq!((status, &*body), (StatusCode::OK, seconds.as_bytes()));
        }
        for wrong in ["0", "-1", "x"] {
            let uri = format!("/debug/pprof/profile?seconds={wrong}");
            assert_eq!(get(&site, &uri).await.0, StatusCode::BAD_REQUEST);
        }
    }

    #[tokio::test]
    async fn a_failed_profile_returns_the_reason() {
        let profiler: Profiler =
            Arc::new(|_| Box::pin(async { Err("another profile is being taken".to_owned()) }));
        let site = server(metrics(Registry::new(), Some(profiler)));
        let (status, body) = get(&site, "/debug/pprof/profile").await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(body, "another profile is being taken\n");
    }

    /// Listens on a free port of the loopback.
    async fn listen(site: Site, tasks: &TaskTracker, stop: &CancellationToken) -> SocketAddr {
        let address = ([127, 0, 0, 1], 0).into();
        serve(address, site, None, tasks, stop.clone())
            .await
            .unwrap()
    }

    /// Sends a request that ends the connection, and returns the answer.
    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn requests_that_are_not_finished_keep_neither_scrapes_nor_probes_out() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let metrics = listen(metrics(Registry::new(), None), &tasks, &stop).await;
        let probes = listen(probes(Ok(())), &tasks, &stop).await;
        let mut held = Vec::new();
        for _ in 0..3 * CONNECTIONS {
            let mut stream = TcpStream::connect(metrics).await.unwrap();
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ").await;
            held.push(stream);
        }
        for (address, path) in [(metrics, "/metrics"), (probes, "/healthz")] {
            let answer = ask(address, path).await;
            assert!(answer.starts_with("HTTP/1.1 200 OK"), "{path}: {answer}");
        }
        // The first ones had to make room, long before their time was over.
        for stream in &mut held[..CONNECTIONS] {
            let ended = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut [0])).await;
            assert!(matches!(ended, Ok(Ok(0) | Err(_))), "{ended:?}");
        }
        stop.cancel();
        tasks.close();
        tasks.wait().await;
    }

    /// Conformance: API-156
    #[tokio::test]
    async fn metrics_are_served_over_http_until_stopped() {
        let registry = Registry::new();
        registry.counter("karpenter_x_total", "X.", &[]).inc(&[]);
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let bound = listen(metrics(registry, None), &tasks, &stop).await;
        let answer = ask(bound, "/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("karpenter_x_total 1"));
        stop.cancel();
        tasks.close();
        tasks.wait().await;
    }
}
