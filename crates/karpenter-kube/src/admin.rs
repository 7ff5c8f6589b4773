//! The two plain HTTP listeners: `/metrics` on one port, `/healthz` and `/readyz` on another.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Whether the process is alive or ready, with the reason if not.
pub type Probe = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What a listener serves.
#[derive(Clone)]
pub enum Site {
    /// `/metrics` of a registry.
    Metrics(crate::metrics::Registry),
    /// `/healthz` and `/readyz`.
    Probes {
        /// Whether the process is to be restarted when it fails.
        live: Probe,
        /// Whether the process does its work.
        ready: Probe,
    },
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Site::Metrics(_) => "Site::Metrics",
            Site::Probes { .. } => "Site::Probes",
        })
    }
}

impl Site {
    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
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
        match (self, path) {
            (Site::Metrics(registry), "/metrics") => text(StatusCode::OK, registry.render()),
            (Site::Probes { live, .. }, "/healthz") => probe(live),
            (Site::Probes { ready, .. }, "/readyz") => probe(ready),
            _ => text(StatusCode::NOT_FOUND, "not found\n".into()),
        }
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
    );
    response
}

/// Listens on `address` and serves `site` until `stop`; returns the address bound (the port may have been 0).
///
/// # Errors
/// When the address cannot be bound.
pub async fn serve(
    address: SocketAddr,
    site: Site,
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
            // Accepting fails when file descriptors run out; the next turn tries again.
            let Ok((stream, _)) = accepted else { continue };
            let (site, stop) = (site.clone(), stop.clone());
            connections.spawn(async move {
                let service = service_fn(move |request: Request<Incoming>| {
                    let response = site.answer(request.method(), request.uri().path());
                    async move { Ok::<_, Infallible>(response) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::select! {
                    // The client's broken connection is the client's to notice.
                    _ = connection => {}
                    () = stop.cancelled() => {}
                }
            });
        }
    });
    Ok(bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Registry;

    #[test]
    fn probes_say_why_they_fail() {
        let site = Site::Probes {
            live: Arc::new(|| Ok(())),
            ready: Arc::new(|| Err("not synced".into())),
        };
        assert_eq!(
            site.answer(&Method::GET, "/healthz").status(),
            StatusCode::OK
        );
        assert_eq!(
            site.answer(&Method::GET, "/readyz").status(),
            StatusCode::INTERNAL_SERVER_ERROR
        );
        assert_eq!(
            site.answer(&Method::GET, "/metrics").status(),
            StatusCode::NOT_FOUND
        );
        assert_eq!(
            site.answer(&Method::POST, "/healthz").status(),
            StatusCode::METHOD_NOT_ALLOWED
        );
    }

    #[tokio::test]
    async fn metrics_are_served_over_http_until_stopped() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let registry = Registry::new();
        registry.counter("karpenter_x_total", "X.", &[]).inc(&[]);
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let bound = serve(
            ([127, 0, 0, 1], 0).into(),
            Site::Metrics(registry),
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
