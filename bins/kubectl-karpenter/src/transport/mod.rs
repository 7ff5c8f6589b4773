//! The connection to the server of decisions, which Karpenter's leader runs on loopback.
//!
//! The ways to it, in this order:
//! 1. `--server URL`, or the variable `KARPENTER_SERVER`; if it fails, nothing else is tried.
//! 2. The URL in the extension [`EXTENSION`] of the kubeconfig's context (`server: http://127.0.0.1:8082`), which the
//!    playground writes.
//! 3. The API server's service proxy, if a Service of Karpenter's namespace has the port `https-decisions`, with a token that was
//!    made for the server ([`service_proxy`]).
//! 4. `kubectl port-forward` to the leader's pod, as a child process on a free port: the user's kubectl knows every way to
//!    authenticate.
//!
//! The credentials of the kubeconfig are never sent to the server.

mod leader;
mod port_forward;
mod service_proxy;
mod shadow;

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::core::Status;
use kube::{Client, Config};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cluster::{causes, kubeconfig};
use crate::flags::KubectlFlags;
use leader::Leader;
use port_forward::PortForward;
pub use service_proxy::Viewer;

/// The API group and version of the answers.
pub const GROUP_VERSION: &str = "decisions.karpenter.sh/v1alpha1";

/// The name of the extension of a kubeconfig's context whose field `server` is the URL.
pub const EXTENSION: &str = "decisions.karpenter.sh";

/// The port on which Karpenter serves decisions by default.
const PORT: u16 = 8082;

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// The header of the token for the server: the service proxy removes `Authorization`.
const TOKEN: HeaderName = HeaderName::from_static("x-karpenter-token");

/// The ServiceAccount that the chart creates.
const VIEWER: &str = "karpenter-viewer";

/// The options of the connection; flattened into the arguments of a command.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Options of the connection to Karpenter")]
pub struct ServerFlags {
    /// URL of Karpenter's decisions; by default that of the kubeconfig's context, else its Service or a port-forward to the leader.
    #[arg(long, value_name = "URL", env = "KARPENTER_SERVER", value_parser = url)]
    pub server: Option<Uri>,
    /// Namespace of Karpenter; by default the one of kube-system and karpenter that has its lease.
    #[arg(long, value_name = "NAME", env = "KARPENTER_NAMESPACE")]
    pub karpenter_namespace: Option<String>,
    /// Name of Karpenter's lease.
    #[arg(long, value_name = "NAME", default_value = "karpenter-leader-election")]
    pub leader_election_name: String,
    /// Port of Karpenter's decisions in its pod.
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    pub decisions_port: u16,
    /// ServiceAccount whose tokens are sent to Karpenter's Service; without a namespace, one of Karpenter's.
    #[arg(long, value_name = "[NAMESPACE/]NAME", env = "KARPENTER_VIEWER", default_value = VIEWER, value_parser = Viewer::parse)]
    pub viewer: Viewer,
    /// The program that forwards a port.
    #[arg(skip = OsString::from("kubectl"))]
    pub kubectl: OsString,
}

impl Default for ServerFlags {
    fn default() -> Self {
        Self {
            server: None,
            karpenter_namespace: None,
            leader_election_name: "karpenter-leader-election".to_owned(),
            decisions_port: PORT,
            viewer: Viewer {
                namespace: None,
                name: VIEWER.to_owned(),
            },
            kubectl: OsString::from("kubectl"),
        }
    }
}

fn url(text: &str) -> Result<Uri, String> {
    let url: Uri = text.parse().map_err(|_| "is not a valid URL".to_owned())?;
    let is_http = matches!(url.scheme_str(), Some("http" | "https"));
    match is_http && url.host().is_some_and(|host| !host.is_empty()) {
        true => Ok(url),
        false => Err("must be as http://127.0.0.1:8082".to_owned()),
    }
}

/// No way leads to the server: for each that was tried, why not.
#[derive(Debug)]
pub struct Unreachable(Vec<String>);

impl Unreachable {
    /// Iterates over the failed ways, with the remedy of each.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for Unreachable {}

/// A connection to the server; a child process that it needs ends with it.
pub struct Server {
    kubectl: KubectlFlags,
    flags: ServerFlags,
    route: Route,
}

/// A way that works.
struct Route {
    client: Client,
    url: Uri,
    /// What is before the paths of the server.
    prefix: String,
    /// The token for the server, if it wants one.
    token: Option<HeaderValue>,
    forward: Option<PortForward>,
}

/// Sends requests to the server. Cheap to clone; a child process that it needs ends with its [`Server`].
#[derive(Clone)]
pub struct Sender {
    client: Client,
    prefix: String,
    token: Option<HeaderValue>,
}

impl Sender {
    /// Sends a request with a path of the server.
    ///
    /// # Errors
    /// If there is no response.
    pub async fn send(&self, mut request: Request<Body>) -> anyhow::Result<Response<Body>> {
        if !self.prefix.is_empty() {
            *request.uri_mut() = format!("{}{}", self.prefix, request.uri()).parse()?;
        }
        if let Some(token) = &self.token {
            request.headers_mut().insert(TOKEN, token.clone());
        }
        let response = self.client.send(request).await;
        response.map_err(|error| anyhow!(causes(&error)))
    }
}

impl Server {
    /// Connects to the server by the first way that works.
    ///
    /// # Errors
    /// [`Unreachable`] if none does; another error if the kubeconfig cannot be used.
    pub async fn connect(kubectl: &KubectlFlags, flags: &ServerFlags) -> anyhow::Result<Self> {
        Self::connect_by(kubectl, flags, false).await
    }

    /// Connects to the server of a shadow: by `--server`, or through a forwarded port of its pod. The kubeconfig's context names the
    /// server of the Karpenter that runs the cluster.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_to_shadow(
        kubectl: &KubectlFlags,
        flags: &ServerFlags,
    ) -> anyhow::Result<Self> {
        Self::connect_by(kubectl, flags, true).await
    }

    async fn connect_by(
        kubectl: &KubectlFlags,
        flags: &ServerFlags,
        to_shadow: bool,
    ) -> anyhow::Result<Self> {
        let mut failed = Vec::new();
        let mut found = None;
        if let Some(url) = &flags.server {
            kubectl.report(&format!("using the server {url} of --server"));
            match Route::to(url, kubectl).await {
                Ok(route) => found = Some(route),
                Err(why) => failed.push(format!(
                    "cannot reach the server {url}: {why}; check --server and KARPENTER_SERVER"
                )),
            }
        } else {
            let named = match to_shadow {
                true => None,
                false => extension(kubectl)?,
            };
            if let Some(url) = named {
                kubectl.report(&format!(
                    "using the server {url} of the kubeconfig's context"
                ));
                match Route::to(&url, kubectl).await {
                    Ok(route) => found = Some(route),
                    Err(why) => failed.push(format!(
                        "cannot reach the server {url} of the kubeconfig's context: {why}; is the playground running?"
                    )),
                }
            }
            // A shadow's Service is not the one that the proxy is asked for.
            if found.is_none() && !to_shadow {
                match service_proxy::route(kubectl, flags).await {
                    Ok(route) => found = route,
                    Err(error) => {
                        let why = causes(error.as_ref());
                        kubectl.report(&why);
                        failed.push(why);
                    }
                }
            }
            if found.is_none() {
                let forwarded = match to_shadow {
                    true => Route::forwarded_to_shadow(kubectl, flags).await,
                    false => Route::forwarded(kubectl, flags, None).await,
                };
                match forwarded {
                    Ok(route) => found = Some(route),
                    Err(error) => failed.push(causes(error.as_ref())),
                }
            }
            // Both need the API server, and what is wrong with it is said once.
            failed.dedup();
        }
        match found {
            Some(route) => Ok(Self {
                kubectl: kubectl.clone(),
                flags: flags.clone(),
                route,
            }),
            None => Err(Unreachable(failed).into()),
        }
    }

    /// Returns the URL of the server as this process reaches it.
    pub fn url(&self) -> &Uri {
        &self.route.url
    }

    /// Returns what sends requests of any path to the server.
    pub fn sender(&self) -> Sender {
        Sender {
            client: self.route.client.clone(),
            prefix: self.route.prefix.clone(),
            token: self.route.token.clone(),
        }
    }

    /// Asks a question: GET of a path below the group and version, with its query: `/decisions?limit=5`.
    ///
    /// # Errors
    /// If there is no answer, or one that is not of the type.
    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        self.ask(Method::GET, path, Vec::new()).await
    }

    /// Asks a question with a body: POST to a path below the group and version.
    ///
    /// # Errors
    /// If there is no answer, or one that is not of the type.
    pub async fn post<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        let body = serde_json::to_vec(body).context("cannot serialize the question")?;
        self.ask(Method::POST, path, body).await
    }

    /// Passes the pieces of the answer to a question on, while it arrives.
    ///
    /// # Errors
    /// If there is no answer, if it breaks off, or if a piece cannot be taken.
    pub async fn download(
        &mut self,
        path: &str,
        mut take: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut body = match self.route.open(&Method::GET, path, Vec::new()).await {
            Err(Refusal::NotLeading {
                leader: Some(pod), ..
            }) if self.route.forward.is_some() => {
                let namespace = self.route.forward.as_ref();
                let namespace = namespace.map(|forward| forward.leader.namespace.clone());
                let namespace = namespace.unwrap_or_default();
                let leader = Some(Leader { namespace, pod });
                self.route = Route::forwarded(&self.kubectl, &self.flags, leader).await?;
                self.route.open(&Method::GET, path, Vec::new()).await
            }
            first => first,
        }
        .map_err(|refusal| anyhow!("{refusal}"))?;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                anyhow!(
                    "the answer of {} broke off: {}",
                    self.route.url,
                    causes(&error)
                )
            })?;
            if let Some(piece) = frame.data_ref() {
                take(piece)?;
            }
        }
        Ok(())
    }

    async fn ask<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> anyhow::Result<T> {
        let first = self.route.send(&method, path, body.clone()).await;
        // The leader may have changed since its lease was read.
        let new_leader = match (&first, &self.route.forward) {
            (Err(Refusal::NotLeading { leader, .. }), Some(forward)) => leader
                .as_ref()
                .filter(|pod| **pod != forward.leader.pod)
                .map(|pod| Leader {
                    namespace: forward.leader.namespace.clone(),
                    pod: pod.clone(),
                }),
            _ => None,
        };
        let answer = match new_leader {
            None if matches!(first, Err(Refusal::Unauthorized(_)))
                && self.route.token.is_some() =>
            {
                // The token is no longer valid.
                if let Some(route) = service_proxy::route(&self.kubectl, &self.flags).await? {
                    self.route = route;
                }
                self.route.send(&method, path, body).await
            }
            Some(leader) => {
                self.route = Route::forwarded(&self.kubectl, &self.flags, Some(leader)).await?;
                self.route.send(&method, path, body).await
            }
            None => first,
        };
        let bytes = answer.map_err(|refusal| anyhow!("{refusal}"))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            anyhow!(
                "unknown answer of {}: {error}; the plugin and Karpenter should be of one version",
                self.route.url
            )
        })
    }
}

/// Why the server gave no answer.
enum Refusal {
    /// It is not in sync, or does not lead.
    NotLeading {
        message: String,
        retry_after: Option<u64>,
        /// The pod that leads.
        leader: Option<String>,
    },
    /// It does not accept the token.
    Unauthorized(String),
    /// Anything else.
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
            Self::Unauthorized(message) | Self::Other(message) => f.write_str(message),
        }
    }
}

impl Route {
    /// Returns the route to a URL if a connection to it is accepted.
    async fn to(url: &Uri, kubectl: &KubectlFlags) -> Result<Self, String> {
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
        // The server says when to try again; that is for the user to decide.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|error| causes(&error))?;
        Ok(Self {
            client,
            url: url.clone(),
            prefix: String::new(),
            token: None,
            forward: None,
        })
    }

    /// Returns the route through a forwarded port of the leader's pod; the leader is looked up unless it is known.
    async fn forwarded(
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
    async fn forwarded_to_shadow(
        kubectl: &KubectlFlags,
        flags: &ServerFlags,
    ) -> anyhow::Result<Self> {
        let pod = shadow::find(&kubectl.connect().await?, flags).await?;
        Self::forwarded(kubectl, flags, Some(pod)).await
    }

    /// Returns a request of a path of the server.
    fn request(
        &self,
        method: &Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Request<Body>, http::Error> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(http::header::ACCEPT, "application/json")
            .header(http::header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(TOKEN, token.clone());
        }
        request.body(Body::from(body))
    }

    async fn send(&self, method: &Method, path: &str, body: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let body = self.open(method, path, body).await?;
        let bytes = body.collect().await.map_err(|error| self.lost(&error))?;
        Ok(bytes.to_bytes().to_vec())
    }

    fn lost(&self, error: &(dyn std::error::Error + 'static)) -> Refusal {
        Refusal::Other(format!(
            "no answer of {}: {}; is Karpenter running, and is its gate DecisionRecords on?",
            self.url,
            causes(error)
        ))
    }

    /// Sends a question, and returns the body of its answer.
    async fn open(&self, method: &Method, path: &str, body: Vec<u8>) -> Result<Body, Refusal> {
        let other = |message: String| Refusal::Other(message);
        let request = self.request(method, &format!("/apis/{GROUP_VERSION}{path}"), body);
        let request =
            request.map_err(|error| other(format!("invalid question `{path}`: {error}")))?;
        let response = self.client.send(request).await;
        let (head, body) = response.map_err(|error| self.lost(&error))?.into_parts();
        if head.status.is_success() {
            return Ok(body);
        }
        let bytes = body.collect().await.map_err(|error| self.lost(&error))?;
        let bytes = bytes.to_bytes();
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
            (StatusCode::UNAUTHORIZED, _) => Refusal::Unauthorized(format!(
                "{} does not accept the token: {}",
                self.url, status.message
            )),
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

/// Returns the URL in the extension of the kubeconfig's context.
fn extension(kubectl: &KubectlFlags) -> anyhow::Result<Option<Uri>> {
    let Some(kubeconfig) = kubeconfig(kubectl)? else {
        return Ok(None);
    };
    let context = kubectl
        .selected_context(&kubeconfig)
        .and_then(|named| named.context.as_ref());
    let extensions = context.and_then(|context| context.extensions.as_ref());
    let ours = extensions.and_then(|all| all.iter().find(|named| named.name == EXTENSION));
    let Some(value) = ours.map(|named| &named.extension["server"]) else {
        return Ok(None);
    };
    let text = value.as_str().unwrap_or_default();
    let server = url(text).map_err(|why| {
        anyhow!(
            "invalid extension {EXTENSION} of the kubeconfig's context: its server `{text}` {why}"
        )
    })?;
    Ok(Some(server))
}
