//! The two HTTP listeners: `/metrics` (and profiles, if enabled) on one port, with TLS if there is a certificate;
//! `/healthz` and `/readyz` on the other.

mod tls;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use tls::fingerprint;
pub use tls::{Certificate, CertificateError};

/// Reports whether the process is alive or ready, with the reason if not.
pub type Probe = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Profiles the CPU for the given time and returns a profile for `go tool pprof`, or the reason why it cannot.
pub type Profiler =
    Arc<dyn Fn(Duration) -> BoxFuture<'static, Result<Vec<u8>, String>> + Send + Sync>;

/// How long a profile is taken without `?seconds=` in the request, as in Go.
const PROFILE: Duration = Duration::from_secs(30);

/// The longest profile, so that a request cannot keep profiling on.
const LONGEST_PROFILE: Duration = Duration::from_mins(5);

/// The endpoints of a listener.
#[derive(Clone)]
pub enum Site {
    /// `/metrics` of a registry.
    Metrics {
        /// The registry that is rendered.
        registry: crate::metrics::Registry,
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

impl Site {
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
        match (self, uri.path()) {
            (Site::Metrics { registry, .. }, "/metrics") => text(StatusCode::OK, registry.render()),
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
}

async fn profile(profiler: &Profiler, query: &str) -> Response<Full<Bytes>> {
    let asked = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("seconds="));
    let duration = match asked.map(str::parse) {
        None => PROFILE,
        Some(Ok(seconds @ 1..)) => Duration::from_secs(seconds).min(LONGEST_PROFILE),
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
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    let connections = tasks.clone();
    tasks.spawn(async move {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stop.cancelled() => return,
            };
            // Accepting fails when file descriptors run out; the next iteration retries.
            let Ok((stream, _)) = accepted else { continue };
            let (site, certificate) = (site.clone(), certificate.clone());
            let stop = stop.clone();
            connections.spawn(async move {
                let served = async {
                    match certificate {
                        None => serve_connection(stream, site).await,
                        // A client without TLS, or one that trusts another authority, gets the error.
                        Some(certificate) => {
                            if let Some(stream) = certificate.accept(stream).await {
                                serve_connection(stream, site).await;
                            }
                        }
                    }
                };
                tokio::select! {
                    () = served => {}
                    () = stop.cancelled() => {}
                }
            });
        }
    });
    Ok(bound)
}

async fn serve_connection(stream: impl AsyncRead + AsyncWrite + Unpin, site: Site) {
    let service = service_fn(move |request: Request<Incoming>| {
        let site = site.clone();
        async move { Ok::<_, Infallible>(site.answer(request.method(), request.uri()).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new();
    // A broken connection is the client's problem.
    let _ = connection
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Registry;

    async fn get(site: &Site, uri: &'static str) -> (StatusCode, Bytes) {
        let response = site.answer(&Method::GET, &Uri::from_static(uri)).await;
        let (parts, body) = response.into_parts();
        let body = http_body_util::BodyExt::collect(body).await.unwrap();
        (parts.status, body.to_bytes())
    }

    fn metrics(profiler: Option<Profiler>) -> Site {
        Site::Metrics {
            registry: Registry::new(),
            profiler,
        }
    }

    /// Conformance: API-156
    #[tokio::test]
    async fn probes_return_the_reason_of_a_failure() {
        let site = Site::Probes {
            live: Arc::new(|| Ok(())),
            ready: Arc::new(|| Err("not synced".into())),
        };
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
        let site = metrics(None);
        let asked = get(&site, "/debug/pprof/profile").await;
        assert_eq!(asked.0, StatusCode::NOT_FOUND);
    }

    /// Conformance: API-157
    #[tokio::test]
    async fn a_profile_takes_the_requested_seconds_and_five_minutes_at_most() {
        let site = metrics(Some(Arc::new(|duration: Duration| {
            Box::pin(async move { Ok(duration.as_secs().to_string().into_bytes()) })
        })));
        for (uri, seconds) in [
            ("/debug/pprof/profile", "30"),
            ("/debug/pprof/profile?seconds=5", "5"),
            ("/debug/pprof/profile?debug=0&seconds=999999", "300"),
        ] {
            let (status, body) = get(&site, uri).await;
            assert_eq!((status, &*body), (StatusCode::OK, seconds.as_bytes()));
        }
        for wrong in [
            "/debug/pprof/profile?seconds=0",
            "/debug/pprof/profile?seconds=-1",
            "/debug/pprof/profile?seconds=x",
        ] {
            assert_eq!(get(&site, wrong).await.0, StatusCode::BAD_REQUEST);
        }
    }

    #[tokio::test]
    async fn a_failed_profile_returns_the_reason() {
        let site = metrics(Some(Arc::new(|_| {
            Box::pin(async { Err("another profile is being taken".to_owned()) })
        })));
        let (status, body) = get(&site, "/debug/pprof/profile").await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(body, "another profile is being taken\n");
    }

    /// Conformance: API-156
    #[tokio::test]
    async fn metrics_are_served_over_http_until_stopped() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let registry = Registry::new();
        registry.counter("karpenter_x_total", "X.", &[]).inc(&[]);
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let bound = serve(
            ([127, 0, 0, 1], 0).into(),
            Site::Metrics {
                registry,
                profiler: None,
            },
            None,
            &tasks,
            stop.clone(),
        )
        .await
        .unwrap();
        let mut stream = tokio::net::TcpStream::connect(bound).await.unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("karpenter_x_total 1"));
        stop.cancel();
        tasks.close();
        tasks.wait().await;
    }
}
