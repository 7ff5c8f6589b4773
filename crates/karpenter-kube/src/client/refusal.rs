//! Refuses requests to the API server that would change something. [`Provider`](crate::provider::Provider) refuses calls of the
//! cloud provider.
//!
//! Nothing reaches this point in a program without defects, because the controllers that act are not started.

use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use tower::{BoxError, Layer, Service};

use crate::client::Clients;
use crate::metrics::{Counter, Registry};

/// Reviews: they are created, and nothing is stored.
const REVIEWS: [&str; 2] = [
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
];
/// Subresources that are reached with GET, and act.
const CONNECTIONS: [&str; 4] = ["exec", "attach", "portforward", "proxy"];

/// Counts what was refused. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Refusals {
    pub(crate) total: Counter,
}

impl Refusals {
    /// Counts in `registry`.
    #[must_use]
    pub fn new(registry: &Registry) -> Self {
        let total = registry.counter(
            "karpenter_shadow_refused_total",
            "Requests to the API server and calls of the cloud provider that a shadow refused, because they would change something. Anything but 0 is a defect.",
            &["target"],
        );
        total.add(&["api"], 0.0);
        total.add(&["provider"], 0.0);
        Self { total }
    }

    /// Returns how many were refused.
    #[must_use]
    pub fn total(&self) -> u64 {
        let total = self.total.get(&["api"]) + self.total.get(&["provider"]);
        total as u64
    }
}

/// A request that a shadow does not send.
#[derive(Debug, thiserror::Error)]
#[error("refusing {method} {path}: a shadow is read-only")]
pub struct Refused {
    method: Method,
    path: String,
}

/// Reports whether a request changes nothing: get, list, watch, or a review.
#[must_use]
pub fn is_read(method: &Method, path: &str) -> bool {
    if *method == Method::GET || *method == Method::HEAD {
        return !connects(path);
    }
    *method == Method::POST && REVIEWS.contains(&path.trim_end_matches('/'))
}

/// Reports whether a path is that of a connection to a pod, a node or a service.
fn connects(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let resource = match parts.as_slice() {
        ["api", _, "namespaces", _, rest @ ..] => rest,
        ["api", _, rest @ ..] => rest,
        _ => return false,
    };
    resource
        .get(2)
        .is_some_and(|part| CONNECTIONS.contains(part))
}

/// A layer that refuses requests that would change something.
#[derive(Debug, Clone)]
pub struct ReadOnly {
    refusals: Refusals,
}

impl ReadOnly {
    /// Creates a layer that counts in `refusals`.
    #[must_use]
    pub fn new(refusals: &Refusals) -> Self {
        Self {
            refusals: refusals.clone(),
        }
    }
}

impl<S> Layer<S> for ReadOnly {
    type Service = ReadOnlyService<S>;
    fn layer(&self, inner: S) -> Self::Service {
        ReadOnlyService {
            inner,
            refusals: self.refusals.clone(),
        }
    }
}

/// A service that refuses requests that would change something.
#[derive(Debug, Clone)]
pub struct ReadOnlyService<S> {
    inner: S,
    refusals: Refusals,
}

impl<S, B> Service<Request<Body>> for ReadOnlyService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if is_read(request.method(), request.uri().path()) {
            let answer = self.inner.call(request);
            return Box::pin(async move { answer.await.map_err(Into::into) });
        }
        self.refusals.total.inc(&["api"]);
        let refused = Refused {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
        };
        tracing::error!(logger = "shadow", error = %refused, "refused a request");
        Box::pin(async move { Err(refused.into()) })
    }
}

impl Clients {
    /// Returns clients that refuse requests that would change something.
    #[must_use]
    pub fn read_only(self, refusals: &Refusals) -> Self {
        let read_only = |client: Client| {
            let namespace = client.default_namespace().to_owned();
            let sending = tower::service_fn(move |request: Request<Body>| {
                let client = client.clone();
                async move { client.send(request).await }
            });
            Client::new(ReadOnly::new(refusals).layer(sending), namespace)
        };
        Self {
            api: read_only(self.api),
            no_retry: read_only(self.no_retry),
            lease: read_only(self.lease),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use karpenter_api::v1::NodeClaim;
    use karpenter_core::fake::FakeCloud;
    use karpenter_core::provider::CloudProvider;

    use super::*;
    use crate::metrics::Metrics;
    use crate::provider::Provider;

    #[test]
    fn only_get_list_watch_and_reviews_are_reads() {
        let read = |method: Method, path: &str| is_read(&method, path);
        for path in [
            "/api/v1/pods",
            "/api/v1/namespaces/default/pods/proxy",
            "/apis/karpenter.sh/v1/nodeclaims/a",
            "/version",
        ] {
            assert!(read(Method::GET, path), "{path}");
            for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
                assert!(!is_read(&method, path), "{method} {path}");
            }
        }
        for path in REVIEWS {
            assert!(read(Method::POST, path), "{path}");
            assert!(!read(Method::DELETE, path), "{path}");
        }
        for path in [
            "/api/v1/namespaces/default/pods/a/exec",
            "/api/v1/namespaces/default/pods/a/attach",
            "/api/v1/namespaces/default/pods/a/portforward",
            "/api/v1/namespaces/default/services/a/proxy/reset",
            "/api/v1/nodes/a/proxy/run",
        ] {
            assert!(!read(Method::GET, path), "{path}");
        }
    }

    #[tokio::test]
    async fn a_write_is_refused_and_counted_and_does_not_reach_the_server() {
        let registry = Registry::new();
        let refusals = Refusals::new(&registry);
        let answering = tower::service_fn(|request: Request<Body>| async move {
            assert_eq!(request.method(), Method::GET, "it reached the server");
            Ok::<_, BoxError>(Response::new(()))
        });
        let mut service = ReadOnly::new(&refusals).layer(answering);
        let get = Request::get("/api/v1/nodes").body(Body::empty()).unwrap();
        assert!(service.call(get).await.is_ok());
        assert_eq!(refusals.total(), 0);
        let create = Request::post("/apis/karpenter.sh/v1/nodeclaims").body(Body::empty());
        let error = service.call(create.unwrap()).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "refusing POST /apis/karpenter.sh/v1/nodeclaims: a shadow is read-only"
        );
        assert_eq!(refusals.total(), 1);
        let rendered = registry.render();
        let line = r#"karpenter_shadow_refused_total{target="api"} 1"#;
        assert!(rendered.lines().any(|it| it == line), "{rendered}");
    }

    #[tokio::test]
    async fn a_launch_and_a_termination_are_refused_and_counted() {
        let registry = Registry::new();
        let refusals = Refusals::new(&registry);
        let cloud = Arc::new(FakeCloud::new([].into()));
        let provider = Provider::new(cloud, Metrics::new(&registry)).read_only(&refusals);
        let claim = NodeClaim::new("a", Default::default());
        assert!(provider.create(&claim).await.is_err());
        assert!(provider.delete(&claim).await.is_err());
        assert_eq!(refusals.total(), 2);
        assert!(provider.list().await.is_ok_and(|all| all.is_empty()));
    }
}
