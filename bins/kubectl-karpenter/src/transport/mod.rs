//! The connection to the server of decisions, which Karpenter's leader runs on loopback.
//!
//! The ways to it, in this order:
//! 1. `--server URL`, or the variable `KARPENTER_SERVER`; if it fails, nothing else is tried.
//! 2. The URL in the extension [`EXTENSION`] of the kubeconfig's context (`server: http://127.0.0.1:8082`), which the
//!    playground writes.
//! 3. `kubectl port-forward` to the leader's pod, as a child process on a free port: the user's kubectl knows every way to
//!    authenticate.
//!
//! The credentials of the kubeconfig are never sent to the server.

mod flags;
mod leader;
mod port_forward;
mod route;
mod shadow;

use std::fmt;

use anyhow::{Context as _, anyhow};
use http::{Method, Uri};
use http_body_util::BodyExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use flags::ServerFlags;
pub use route::{GROUP_VERSION, Sender};

use crate::cluster::{causes, kubeconfig};
use crate::flags::KubectlFlags;
use leader::Leader;
use route::{Refusal, Route};

/// The name of the extension of a kubeconfig's context whose field `server` is the URL.
pub const EXTENSION: &str = "decisions.karpenter.sh";

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
        let route = match &flags.server {
            Some(url) => {
                kubectl.report(&format!("using the server {url} of --server"));
                let route = Route::to(url, kubectl).await;
                let remedy = "check --server and KARPENTER_SERVER";
                let lost = |why: String| {
                    failed.push(format!("cannot reach the server {url}: {why}; {remedy}"))
                };
                route.map_err(lost).ok()
            }
            None => find(kubectl, flags, to_shadow, &mut failed).await?,
        };
        match route {
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
        self.route.sender.clone()
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
        let mut answer = self.route.open(&Method::GET, path, Vec::new()).await;
        if let Err(refusal) = &answer
            && self.reroute(refusal).await?
        {
            answer = self.route.open(&Method::GET, path, Vec::new()).await;
        }
        let mut body = answer.map_err(|refusal| anyhow!("{refusal}"))?;
        while let Some(frame) = body.frame().await {
            let url = &self.route.url;
            let frame = frame
                .map_err(|error| anyhow!("the answer of {url} broke off: {}", causes(&error)))?;
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
        let mut answer = self.route.ask(&method, path, body.clone()).await;
        if let Err(refusal) = &answer
            && self.reroute(refusal).await?
        {
            answer = self.route.ask(&method, path, body).await;
        }
        let bytes = answer.map_err(|refusal| anyhow!("{refusal}"))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            anyhow!(
                "unknown answer of {}: {error}; the plugin and Karpenter should be of one version",
                self.route.url
            )
        })
    }

    /// Looks for another route after a refusal: the leader may have changed since its lease was read. Returns whether the question
    /// can be asked again.
    async fn reroute(&mut self, refusal: &Refusal) -> anyhow::Result<bool> {
        match (refusal, &self.route.forward) {
            (
                Refusal::NotLeading {
                    leader: Some(pod), ..
                },
                Some(forward),
            ) if *pod != forward.leader.pod => {
                let leader = Leader {
                    namespace: forward.leader.namespace.clone(),
                    pod: pod.clone(),
                };
                self.route = Route::forwarded(&self.kubectl, &self.flags, Some(leader)).await?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// Finds a way without `--server`: by the kubeconfig's context, or a forwarded port. Adds why a way failed.
async fn find(
    kubectl: &KubectlFlags,
    flags: &ServerFlags,
    to_shadow: bool,
    failed: &mut Vec<String>,
) -> anyhow::Result<Option<Route>> {
    if to_shadow {
        // The kubeconfig's context is that of the Karpenter that runs the cluster.
        let route = Route::forwarded_to_shadow(kubectl, flags).await;
        let lost = |error: anyhow::Error| failed.push(causes(error.as_ref()));
        return Ok(route.map_err(lost).ok());
    }
    if let Some(url) = extension(kubectl)? {
        let of = format!("the server {url} of the kubeconfig's context");
        kubectl.report(&format!("using {of}"));
        match Route::to(&url, kubectl).await {
            Ok(route) => return Ok(Some(route)),
            Err(why) => failed.push(format!(
                "cannot reach {of}: {why}; is the playground running?"
            )),
        }
    }
    let route = Route::forwarded(kubectl, flags, None).await;
    let route = route.map_err(|error| failed.push(causes(error.as_ref())));
    Ok(route.ok())
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
    let server = flags::url(text).map_err(|why| {
        anyhow!(
            "invalid extension {EXTENSION} of the kubeconfig's context: its server `{text}` {why}"
        )
    })?;
    Ok(Some(server))
}
