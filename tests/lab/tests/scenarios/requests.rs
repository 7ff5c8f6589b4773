//! Requests of the controllers to the API server: our writes do not conflict with each other, no request is redundant, and each
//! event and metric counts once.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, Full, StreamBody};
use karpenter_fixtures::HOSTNAME;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::time::Instant;
use tower::{BoxError, Service};

use crate::lines::Lines;
use crate::world::{World, deployment, node_pool};

/// The latency of a request, and of its response.
const WAY: Duration = Duration::from_millis(20);
/// The delay of a watch event after the response to its write.
const LAG: Duration = Duration::from_millis(60);

type Passed = UnsyncBoxBody<bytes::Bytes, BoxError>;

/// A connection with the latency of a real API server. Records requests and responses.
#[derive(Clone)]
struct Tapped<S> {
    inner: S,
    asked: Arc<Mutex<Vec<Asked>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    verb: String,
    resource: String,
    status: u16,
    path: String,
}

impl Asked {
    fn new(method: &http::Method, uri: &http::Uri, status: u16) -> Self {
        // `/api/v1/…` or `/apis/GROUP/VERSION/…`, then `namespaces/NAMESPACE/` or not, then the resource.
        let mut parts: Vec<&str> = uri.path().split('/').skip(1).collect();
        parts.drain(..if parts[0] == "api" { 2 } else { 3 });
        if parts[0] == "namespaces" && parts.len() > 2 {
            parts.drain(..2);
        }
        let resource = match parts.get(2) {
            Some(subresource) => format!("{}/{subresource}", parts[0]),
            None => parts[0].to_owned(),
        };
        Self {
            verb: method.as_str().to_owned(),
            resource,
            status,
            path: uri.path().to_owned(),
        }
    }
}

impl<S, B> Service<Request<Body>> for Tapped<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError> + Send,
{
    type Response = Response<Passed>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Passed>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (mut inner, asked) = (self.inner.clone(), Arc::clone(&self.asked));
        Box::pin(async move {
            let (method, uri) = (request.method().clone(), request.uri().clone());
            let watch = uri.query().is_some_and(|q| q.contains("watch=true"));
            tokio::time::sleep(WAY).await;
            let answer = inner.call(request).await.map_err(Into::into)?;
            let (head, body) = answer.into_parts();
            let body = if watch {
                let late = |frame| {
                    let due = Instant::now() + WAY + LAG;
                    async move {
                        tokio::time::sleep_until(due).await;
                        frame
                    }
                };
                let body = body.map_err(Into::into);
                let frames = BodyStream::new(body).map(late).buffered(100_000);
                StreamBody::new(frames).boxed_unsync()
            } else {
                let whole = body.collect().await.map_err(Into::into)?.to_bytes();
                tokio::time::sleep(WAY).await;
                let mut asked = asked.lock();
                asked.push(Asked::new(&method, &uri, head.status.as_u16()));
                let unfailing = |never: Infallible| match never {};
                Full::new(whole).map_err(unfailing).boxed_unsync()
            };
            Ok(Response::from_parts(head, body))
        })
    }
}

/// A cluster whose controllers have a slow connection to the API server, and a record of their requests.
async fn world() -> (World, Arc<Mutex<Vec<Asked>>>) {
    let mut world = World::with(node_pool("default")).await;
    let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
    let tapped = Tapped {
        inner: world.cluster.testbed.server().service(false),
        asked: Arc::clone(&asked),
    };
    world.cluster.stop_controllers().await;
    world
        .cluster
        .start_controllers_as(Client::new(tapped, "default"));
    (world, asked)
}

/// How often each request got each response.
fn table(asked: &[Asked]) -> String {
    let mut counts: BTreeMap<(&str, &str, u16), usize> = BTreeMap::new();
    for a in asked {
        *counts.entry((&a.resource, &a.verb, a.status)).or_default() += 1;
    }
    let line = |((resource, verb, status), count): (&(&str, &str, u16), &usize)| {
        format!("{count:6} {verb} {resource} {status}")
    };
    counts.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[tokio::test(start_paused = true)]
async fn an_undisturbed_cluster_has_no_conflict_and_nothing_redundant() {
    const NODES: usize = 40;
    let (world, asked) = world().await;
    let lines = Lines::taken();
    let apart = deployment("app", NODES as i32).anti_affinity(HOSTNAME, ("app", "app"));
    world.add(apart).await;
    world.until_running(NODES, 120).await;
    world.deploy("more", NODES as i32).await;
    world.until_running(2 * NODES, 120).await;
    world.pass(60).await;
    let most = world.cluster.cloud.launched() as usize;
    // Half of the nodes become empty; the others are consolidated.
    world.scale("app", NODES as i32 / 2).await;
    world.scale("more", 4).await;
    world.pass(300).await;
    world.delete_deployments(&["app", "more"]).await;
    world.until_empty(300).await;
    world.pass(30).await;

    let launched = world.cluster.cloud.launched() as usize;
    assert!(most >= NODES && launched >= most, "{most}, {launched}");
    let asked = asked.lock().clone();
    let shown = table(&asked);
    let failed: Vec<&Asked> = asked.iter().filter(|a| a.status >= 400).collect();
    let conflicts = failed.iter().filter(|a| a.status == 409).count();
    assert_eq!(conflicts, 0, "{failed:#?}\n{shown}");
    let messages = lines.of("INFO");
    for message in [
        "launched nodeclaim",
        "registered nodeclaim",
        "initialized nodeclaim",
        "deleted node",
        "deleted nodeclaim",
    ] {
        let logged = messages.iter().filter(|l| l["message"] == message).count();
        assert_eq!(logged, launched, "{message}");
    }
    let text = world.cluster.registry.render();
    let total = |name: &str| -> f64 {
        let series = text.lines().filter_map(|line| line.strip_prefix(name));
        let values = series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum()
    };
    for name in [
        "karpenter_nodeclaims_created_total{",
        "karpenter_nodes_created_total{",
        "karpenter_nodes_drained_total{",
        "karpenter_nodes_terminated_total{",
        "karpenter_nodeclaims_terminated_total{",
    ] {
        assert_eq!(total(name), launched as f64, "{name}");
    }
    // Of 40: 4 for the NodeClaim's own patches and deletion, 9 for its status, 6 for the Node, 14 events, 5 of the provider.
    let per_node = asked.len() as f64 / launched as f64;
    assert!(
        per_node < 41.0,
        "{per_node:.1} requests for each of {launched} nodes\n{shown}"
    );
}
