//! A way to the server that works, and why the server gives no answer.

use std::fmt;
use std::time::Duration;

use anyhow::anyhow;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::core::Status;
use kube::{Client, Config};

use super::flags::ServerFlags;
use super::leader::{self, Leader};
use super::port_forward::PortForward;
use super::shadow;
use crate::cluster::causes;
use crate::flags::KubectlFlags;

/// The API group and version of the answers.
pub const GROUP_VERSION: &str = "decisions.karpenter.sh/v1alpha1";

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Sends requests to the server. Cheap to clone; a child process that it needs ends with its [`Server`](super::Server).
#[derive(Clone)]
pub struct Sender {
    client: Client,
}

impl Sender {
    /// Sends a request with a path of the server.
    ///
    /// # Errors
    /// If there is no response.
    pub async fn send(&self, request: Request<Body>) -> anyhow::Result<Response<Body>> {
        let response = self.client.send(request).await;
        response.map_err(|error| anyhow!(causes(&error)))
    }
}

/// A way that works.
pub(super) struct Route {
    pub(super) sender: Sender,
    pub(super) url: Uri,
    pub(super) forward: Option<PortForward>,
}

/// Returns a request of a path of the server.
fn question(method: &Method, path: &str, body: Vec<u8>) -> Result<Request<Body>, http::Error> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::ACCEPT, "application/json")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Body::from(body))
}

/// Why the server gave no answer.
pub(super) enum Refusal {
    /// It is not in sync, or does not lead.
    NotLeading {
        message: String,
        retry_after: Option<u64>,
        leader: Option<String>,
    },
    Other(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLeading {
                message,
                retry_after,
                leader,
            } => {
                write!(f, "Karpenter is not ready to answer: {message}")?;
                if let Some(pod) = leader {
                    write!(f, " (the leader is pod {pod})")?;
                }
                match retry_after {
                    Some(seconds) => write!(f, "; try again in {seconds}s"),
                    None => f.write_str("; try again later"),
                }
            }
            Self::Other(message) => f.write_str(message),
        }
    }
}

impl Route {
    /// Returns the route to a URL if a connection to it is accepted.
    pub(super) async fn to(url: &Uri, kubectl: &KubectlFlags) -> Result<Self, String> {
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
        let default = if url.scheme_str() == Some("https") {
            443
        } else {
            80
        };
        let connecting = tokio::net::TcpStream::connect((host, url.port_u16().unwrap_or(default)));
        match tokio::time::timeout(CONNECT, connecting).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err(format!("no connection within {}s", CONNECT.as_secs())),
        }
        let mut config = Config::new(url.clone());
        config.read_timeout = kubectl.request_timeout.0;
        // The user decides when to try again.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|error| causes(&error))?;
        Ok(Self {
            sender: Sender { client },
            url: url.clone(),
            forward: None,
        })
    }

    /// Returns the route through a forwarded port of the leader's pod; the leader is looked up unless it is known.
    pub(super) async fn forwarded(
        kubectl: &KubectlFlags,
        flags: &ServerFlags,
        leader: Option<Leader>,
    ) -> anyhow::Result<Self> {
        let leader = match leader {
            Some(leader) => leader,
            None => leader::find(&kubectl.connect().await?, flags).await?,
        };
        kubectl.report(&format!(
            "forwarding a port to pod {} in namespace {}",
            leader.pod, leader.namespace
        ));
        let forward = PortForward::start(kubectl, flags, leader).await?;
        let url: Uri = format!("http://127.0.0.1:{}", forward.port).parse()?;
        let route = Self::to(&url, kubectl).await;
        let mut route = route.map_err(|why| {
            anyhow!("cannot connect through `kubectl port-forward` at {url}: {why}")
        })?;
        route.forward = Some(forward);
        Ok(route)
    }

    /// Returns the route through a forwarded port of a shadow's pod.
    pub(super) async fn forwarded_to_shadow(
        kubectl: &KubectlFlags,
        flags: &ServerFlags,
    ) -> anyhow::Result<Self> {
        let pod = shadow::find(&kubectl.connect().await?, flags).await?;
        Self::forwarded(kubectl, flags, Some(pod)).await
    }

    fn lost(&self, causes: &str) -> Refusal {
        Refusal::Other(format!(
            "no answer of {}: {causes}; is Karpenter running, and is its gate DecisionRecords on?",
            self.url
        ))
    }

    /// Sends a question, and returns its answer.
    pub(super) async fn ask(
        &self,
        method: &Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, Refusal> {
        let body = self.open(method, path, body).await?.collect().await;
        let bytes = body.map_err(|error| self.lost(&causes(&error)))?;
        Ok(bytes.to_bytes().to_vec())
    }

    /// Sends a question, and returns the body of its answer.
    pub(super) async fn open(
        &self,
        method: &Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Body, Refusal> {
        let request = question(method, &format!("/apis/{GROUP_VERSION}{path}"), body);
        let request = request
            .map_err(|error| Refusal::Other(format!("invalid question `{path}`: {error}")))?;
        let response = self.sender.send(request).await;
        let response = response.map_err(|error| self.lost(&error.to_string()))?;
        let (head, body) = response.into_parts();
        if head.status.is_success() {
            return Ok(body);
        }
        let bytes = body.collect().await;
        let bytes = bytes
            .map_err(|error| self.lost(&causes(&error)))?
            .to_bytes();
        let retry_after = head.headers.get(http::header::RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        Err(self.refused(head.status, retry_after, &bytes))
    }

    fn refused(&self, code: StatusCode, retry_after: Option<u64>, body: &[u8]) -> Refusal {
        let status: Option<Status> = serde_json::from_slice(body).ok();
        let Some(status) = status.filter(|status| !status.message.is_empty()) else {
            return Refusal::Other(format!(
                "{} answers {code}, and not as {GROUP_VERSION} does: is it Karpenter's server, and of the plugin's version?",
                self.url
            ));
        };
        let details = status.details.as_ref();
        // An object that does not exist is named; a path that the server does not know is not.
        if code == StatusCode::NOT_FOUND && details.is_none_or(|it| it.name.is_empty()) {
            return Refusal::Other(format!(
                "Karpenter at {} does not know this question; the plugin and Karpenter should be of one version",
                self.url
            ));
        }
        let later = retry_after
            .or_else(|| details.map(|details| u64::from(details.retry_after_seconds)))
            .filter(|seconds| *seconds > 0);
        match (code, later) {
            (StatusCode::SERVICE_UNAVAILABLE, _) => Refusal::NotLeading {
                retry_after: later,
                leader: details
                    .filter(|details| {
                        matches!(details.kind.to_lowercase().as_str(), "pod" | "pods")
                    })
                    .map(|details| details.name.clone())
                    .filter(|pod| !pod.is_empty()),
                message: status.message,
            },
            (_, Some(seconds)) => {
                Refusal::Other(format!("{}; try again in {seconds}s", status.message))
            }
            _ => Refusal::Other(status.message),
        }
    }
}
