//! Where the state comes from: the stream of Karpenter's leader; without it, the API server.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use http::Request;
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::{Cluster as Model, ClusterConfig};
use karpenter_decisions::explain::Question;
use karpenter_decisions::history::History;
use karpenter_decisions::overview::{Curve, Overview};
use kube::client::Body;
use kube::core::Status;
use serde_json::Value;
use tokio::sync::{Mutex, Notify};

use super::state::State;
use crate::cluster::{Cluster, causes};
use crate::flags::KubectlFlags;
use crate::output::escaped;
use crate::transport::{GROUP_VERSION, Server, ServerFlags};

/// The longest event that is read, in bytes.
const MAX_EVENT: usize = 64 << 20;
/// How long after its end the stream is opened again.
const RECONNECT: Duration = Duration::from_secs(1);

/// How the cluster is reached, and which nodes are shown.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) kubectl: KubectlFlags,
    pub(super) server: ServerFlags,
    /// Selects nodes by their labels.
    pub(super) selector: Option<String>,
    /// Whether labels are shown that only the Nodes have.
    pub(super) labels: bool,
    /// How often the API server is asked.
    pub(super) interval: Duration,
}

/// The state that is shown, and the connection for further questions.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) state: RefCell<State>,
    /// What is wrong with the connection; empty if nothing is.
    pub(super) trouble: RefCell<String>,
    pub(super) changed: Notify,
    pub(super) link: Mutex<Option<Server>>,
}

impl Source {
    /// Returns the state now.
    pub(super) async fn once(&self) -> anyhow::Result<State> {
        let state = match Server::connect(&self.kubectl, &self.server).await {
            Ok(mut server) => match server.get::<Value>("/overview").await {
                Ok(overview) => State::of(&overview),
                Err(error) => self.without_karpenter(&error).await,
            },
            Err(error) => self.without_karpenter(&error).await,
        };
        let mut state = state?;
        self.label(&mut state).await?;
        Ok(state)
    }

    /// Returns what the API server alone knows, with the reason why Karpenter was not asked.
    async fn without_karpenter(&self, why: &anyhow::Error) -> anyhow::Result<State> {
        let why = causes(why.as_ref());
        let cluster = self.kubectl.connect().await?;
        // If the API server cannot be reached either, that is the error to show.
        let mut state = from_api_server(&cluster).await?;
        state.missing = Some(format!(
            "without prices and reasons, because Karpenter cannot be asked: {}",
            escaped(&why)
        ));
        Ok(state)
    }

    /// Keeps the state current, for as long as the future is polled.
    pub(super) async fn follow(&self, shared: &Rc<Shared>) {
        loop {
            let trouble = match self.stream(shared).await {
                Ok(()) => "the connection to Karpenter was closed".to_owned(),
                Err(error) => causes(error.as_ref()),
            };
            *shared.link.lock().await = None;
            if shared.state.borrow().nodes.is_empty() || shared.state.borrow().missing.is_some() {
                match self.without_karpenter(&anyhow!(trouble)).await {
                    Ok(mut state) => {
                        let labeled = self.label(&mut state).await;
                        let trouble = labeled.err().map(|error| error.to_string());
                        *shared.trouble.borrow_mut() = trouble.unwrap_or_default();
                        *shared.state.borrow_mut() = state;
                    }
                    Err(error) => *shared.trouble.borrow_mut() = causes(error.as_ref()),
                }
                shared.changed.notify_one();
                tokio::time::sleep(self.interval).await;
            } else {
                *shared.trouble.borrow_mut() = format!("reconnecting: {trouble}");
                shared.changed.notify_one();
                tokio::time::sleep(RECONNECT).await;
            }
        }
    }

    /// Reads the stream of the overview until it ends.
    async fn stream(&self, shared: &Rc<Shared>) -> anyhow::Result<()> {
        let server = Server::connect(&self.kubectl, &self.server).await?;
        let sender = server.sender();
        *shared.link.lock().await = Some(server);
        let request = Request::get(format!("/apis/{GROUP_VERSION}/overview?watch=true"))
            .header(http::header::ACCEPT, "text/event-stream")
            .body(Body::empty())?;
        let (head, mut body) = sender.send(request).await?.into_parts();
        if !head.status.is_success() {
            let bytes = body.collect().await?.to_bytes();
            let status: Option<Status> = serde_json::from_slice(&bytes).ok();
            let message = status.map(|status| status.message).unwrap_or_default();
            bail!("Karpenter answers {}: {message}", head.status);
        }
        let mut events = Events::default();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|error| anyhow!(causes(&error)))?.into_data() else {
                continue;
            };
            events.add(&data)?;
            while let Some((name, data)) = events.next() {
                self.apply(shared, &name, &data).await?;
            }
        }
        Ok(())
    }

    async fn apply(&self, shared: &Rc<Shared>, name: &str, data: &[u8]) -> anyhow::Result<()> {
        let value: Value = serde_json::from_slice(data)?;
        match name {
            "reset" => {
                let mut state = State::of(&value)?;
                self.label(&mut state).await?;
                *shared.state.borrow_mut() = state;
            }
            "change" => {
                shared.state.borrow_mut().change(&value)?;
                let unlabeled = self.labels || self.selector.is_some();
                if unlabeled && !value["add"].is_null() {
                    let mut state = shared.state.borrow().clone();
                    self.label(&mut state).await?;
                    *shared.state.borrow_mut() = state;
                }
            }
            // An event of a later version.
            _ => return Ok(()),
        }
        shared.trouble.borrow_mut().clear();
        shared.changed.notify_one();
        Ok(())
    }

    /// Reads labels of the Nodes, and drops nodes that are not selected by them.
    async fn label(&self, state: &mut State) -> anyhow::Result<()> {
        if self.selector.is_none() && !self.labels {
            return Ok(());
        }
        let cluster = self.kubectl.connect().await?;
        let mut labels = BTreeMap::new();
        let see = |node: Node| {
            if let Some(name) = node.metadata.name {
                labels.insert(name, node.metadata.labels.unwrap_or_default());
            }
        };
        cluster.each(self.selector.as_deref(), false, see).await?;
        let selects = self.selector.is_some();
        state
            .nodes
            .retain(|_, node| match labels.remove(&node.node) {
                Some(found) => {
                    let safe = |text: &str| escaped(text).into_owned();
                    node.labels = found
                        .iter()
                        .map(|(key, value)| (key.clone(), safe(value)))
                        .collect();
                    true
                }
                None => !selects,
            });
        Ok(())
    }
}

/// Returns what the API server knows of nodes, pods and NodeClaims.
async fn from_api_server(cluster: &Cluster) -> anyhow::Result<State> {
    let mut model = Model::new(ClusterConfig::default());
    let apply_node = |node: Node| drop(model.apply_node(&node));
    cluster.each(None, false, apply_node).await?;
    let apply_claim = |claim: NodeClaim| drop(model.apply_node_claim(&claim));
    // Without Karpenter's resources there are none.
    let _ = cluster.each(None, true, apply_claim).await;
    let apply_pod = |pod: Pod| drop(model.apply_pod(&pod));
    cluster.each(None, false, apply_pod).await?;
    let (now, snapshot) = (Timestamp::now(), model.snapshot());
    let overview = Overview::of(&Question {
        snapshot: &snapshot,
        history: &History::new(now),
        messages: &|_| None,
        now,
        engine: env!("CARGO_PKG_VERSION"),
    });
    State::of(&serde_json::from_str(&overview.to_json(&Curve::default()))?)
}

/// Server-sent events, from the bytes of a response.
#[derive(Default)]
struct Events {
    bytes: Vec<u8>,
    /// The bytes before this were searched for the end of an event.
    searched: usize,
}

impl Events {
    fn add(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        if self.bytes.len() + bytes.len() > MAX_EVENT {
            bail!(
                "an event of the stream is longer than {} MiB",
                MAX_EVENT >> 20
            );
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Takes the next complete event: its name and its data.
    fn next(&mut self) -> Option<(String, Vec<u8>)> {
        loop {
            let from = self.searched.min(self.bytes.len());
            let rest = self.bytes.get(from..).unwrap_or_default();
            let Some(at) = rest.windows(2).position(|pair| pair == b"\n\n") else {
                self.searched = self.bytes.len().saturating_sub(1);
                return None;
            };
            let event: Vec<u8> = self.bytes.drain(..from + at + 2).collect();
            self.searched = 0;
            let (mut name, mut data) = (String::new(), Vec::new());
            for line in event.split(|byte| *byte == b'\n') {
                if let Some(value) = line.strip_prefix(b"event: ") {
                    name = String::from_utf8_lossy(value).into_owned();
                } else if let Some(value) = line.strip_prefix(b"data: ") {
                    data.extend_from_slice(value);
                }
            }
            // Lines with a colon first are remarks.
            if !name.is_empty() {
                return Some((name, data));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_wherever_the_bytes_are_cut() {
        let text =
            b"event: reset\ndata: {\"a\":1}\n\n: remark\n\nevent: change\ndata: 2\n\nevent: half";
        let expected = [("reset", "{\"a\":1}"), ("change", "2")];
        for size in 1..text.len() {
            let (mut events, mut found) = (Events::default(), Vec::new());
            for bytes in text.chunks(size) {
                events.add(bytes).unwrap();
                while let Some((name, data)) = events.next() {
                    found.push((name, String::from_utf8(data).unwrap()));
                }
            }
            let found: Vec<(&str, &str)> = found
                .iter()
                .map(|(name, data)| (name.as_str(), data.as_str()))
                .collect();
            assert_eq!(found, expected, "{size}");
        }
    }
}
