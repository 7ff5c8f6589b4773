//! Requests to the API server, by the names of client-go's metrics.
//!
//! UPSTREAM: operatorpkg/controller-runtime client metrics (`client_go_request_total`, `client_go_request_duration_seconds`)

use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::client::Body;
use tokio::time::Instant;
use tower::{Layer, Service};

use super::handles::{Counter, Histogram};
use super::registry::Registry;

/// Returns upstream's buckets: twenty from a millisecond on, each half as large again as the one before.
fn buckets() -> Vec<f64> {
    std::iter::successors(Some(0.001), |bound| Some(bound * 1.5))
        .take(20)
        .collect()
}

/// A layer that counts and times the requests of clients.
#[derive(Debug, Clone)]
pub struct Counting {
    total: Counter,
    seconds: Histogram,
}

impl Counting {
    /// Creates a layer that counts in `registry`.
    #[must_use]
    pub fn new(registry: &Registry) -> Self {
        Self {
            total: registry.counter(
                "client_go_request_total",
                "Number of HTTP requests, partitioned by status code and method.",
                &["code", "method"],
            ),
            seconds: registry.histogram(
                "client_go_request_duration_seconds",
                "Request latency in seconds. Broken down by verb, group, version, kind, and subresource.",
                &["verb", "group", "version", "kind", "subresource"],
                &buckets(),
            ),
        }
    }
}

impl<S> Layer<S> for Counting {
    type Service = Counted<S>;
    fn layer(&self, inner: S) -> Self::Service {
        Counted {
            inner,
            counting: self.clone(),
        }
    }
}

/// A service whose requests are counted and timed.
#[derive(Debug, Clone)]
pub struct Counted<S> {
    inner: S,
    counting: Counting,
}

/// Returns the labels of a request: verb, group, version, plural and subresource.
fn parse<'a>(method: &Method, path: &'a str, query: &str) -> Option<[&'a str; 5]> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let (kind, named) = (*rest.first()?, rest.len() > 1);
    let subresource = rest.get(2).copied().unwrap_or_default();
    let watches = query
        .split('&')
        .any(|pair| pair == "watch=true" || pair == "watch=1");
    let verb = match *method {
        Method::GET if watches => "WATCH",
        Method::GET if named => "GET",
        Method::GET => "LIST",
        Method::POST => "CREATE",
        Method::PUT => "UPDATE",
        Method::PATCH => "PATCH",
        Method::DELETE if named => "DELETE",
        Method::DELETE => "DELETECOLLECTION",
        _ => return None,
    };
    Some([verb, group, version, kind, subresource])
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let Counting { total, seconds } = self.counting.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            // The request is not sent before the future is polled.
            let started = Instant::now();
            let answer = answer.await;
            let code = answer.as_ref().map(|a| a.status().as_str().to_owned());
            let code = code.unwrap_or_else(|_| "<error>".to_owned());
            total.inc(&[&code, method.as_str()]);
            if let Some(labels) = parse(&method, uri.path(), uri.query().unwrap_or_default()) {
                seconds.observe(&labels, started.elapsed().as_secs_f64());
            }
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: API-178
    #[test]
    fn a_path_gives_the_labels_of_a_request() {
        let parse = |method: &Method, path: &'static str| parse(method, path, "").unwrap();
        assert_eq!(
            parse(&Method::POST, "/api/v1/namespaces/default/pods/a/eviction"),
            ["CREATE", "", "v1", "pods", "eviction"]
        );
        assert_eq!(
            parse(&Method::PATCH, "/apis/karpenter.sh/v1/nodeclaims/a/status"),
            ["PATCH", "karpenter.sh", "v1", "nodeclaims", "status"]
        );
        assert_eq!(
            parse(&Method::GET, "/api/v1/namespaces"),
            ["LIST", "", "v1", "namespaces", ""]
        );
        assert_eq!(
            parse(&Method::GET, "/api/v1/nodes/a"),
            ["GET", "", "v1", "nodes", ""]
        );
    }

    /// Conformance: API-178
    #[tokio::test(start_paused = true)]
    async fn requests_are_counted_by_status_and_timed_by_resource() {
        let registry = Registry::new();
        let answering = tower::service_fn(|request: Request<Body>| async move {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            let code = if request.method() == Method::GET {
                200
            } else {
                409
            };
            let mut answer = Response::new(());
            *answer.status_mut() = http::StatusCode::from_u16(code).unwrap();
            Ok::<_, std::convert::Infallible>(answer)
        });
        let mut counted = Counting::new(&registry).layer(answering);
        for (method, uri) in [
            (Method::GET, "/api/v1/pods?watch=true&resourceVersion=1"),
            (Method::GET, "/apis/karpenter.sh/v1/nodepools"),
            (Method::DELETE, "/apis/karpenter.sh/v1/nodeclaims/a"),
        ] {
            let mut request = Request::new(Body::empty());
            *request.method_mut() = method;
            *request.uri_mut() = uri.parse().unwrap();
            counted.call(request).await.unwrap();
        }
        let text = registry.render();
        for line in [
            r#"client_go_request_total{code="200",method="GET"} 2"#,
            r#"client_go_request_total{code="409",method="DELETE"} 1"#,
            r#"client_go_request_duration_seconds_count{verb="WATCH",group="",version="v1",kind="pods",subresource=""} 1"#,
            r#"client_go_request_duration_seconds_bucket{verb="DELETE",group="karpenter.sh",version="v1",kind="nodeclaims",subresource="",le="0.0022500000000000003"} 1"#,
            r#"client_go_request_duration_seconds_bucket{verb="DELETE",group="karpenter.sh",version="v1",kind="nodeclaims",subresource="",le="0.0015"} 0"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in {text}");
        }
    }
}
