//! Changes of nodes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

use super::{Engine, Uid};
use crate::loops::scheduler::node::{NodeFacts, NodeInfo};

impl Engine {
    /// Returns the index of a node. A node that does not exist has no labels, and no pod is placed on it.
    pub(super) fn slot(&mut self, name: &str) -> usize {
        if let Some(at) = self.by_name.get(name) {
            return *at;
        }
        let (name, at): (Arc<str>, _) = (name.into(), self.nodes.len());
        self.by_name.insert(name.clone(), at);
        self.nodes.push(NodeInfo::new(name));
        at
    }

    /// Updates a node. Heartbeats change nothing and are cheap.
    pub(crate) fn apply_node(&mut self, node: &Node) {
        let Some(name) = node.metadata.name.as_deref() else {
            return;
        };
        let facts = NodeFacts::new(node, &mut self.resources);
        let at = self.slot(name);
        let known = &self.nodes[at];
        if known.live && known.facts == facts {
            return;
        }
        if !known.live {
            self.live_nodes += 1;
        }
        self.replace(at, facts, true);
    }

    /// Removes a node; its pods are kept in case it is created again.
    pub(crate) fn remove_node(&mut self, name: &str) {
        if let Some(&at) = self.by_name.get(name)
            && self.nodes[at].live
        {
            self.live_nodes -= 1;
            self.replace(at, NodeFacts::default(), false);
        }
    }

    /// Replaces what is known of a node. If its labels change, its pods are in other topology domains.
    fn replace(&mut self, at: usize, facts: NodeFacts, live: bool) {
        let uids: Vec<Uid> = match self.nodes[at].facts.labels == facts.labels {
            true => Vec::new(),
            false => self.nodes[at].pods.iter().cloned().collect(),
        };
        for uid in &uids {
            self.account(uid, -1);
        }
        (self.nodes[at].facts, self.nodes[at].live) = (facts, live);
        // Spread constraints may honor taints.
        self.topology += 1;
        for uid in &uids {
            self.account(uid, 1);
        }
        self.changed(at);
    }

    /// Sets the attach limit and topology keys of a driver on a node (from its CSINode).
    pub(crate) fn set_driver(
        &mut self,
        node: &str,
        driver: &str,
        limit: Option<i64>,
        keys: Vec<String>,
    ) {
        self.volumes.set_csi_keys(node, driver, keys);
        if let (Some(&at), Some(limit)) = (self.by_name.get(node), limit) {
            let limits = &mut self.nodes[at].volume_limits;
            limits.insert(driver.to_owned(), limit);
            self.changed(at);
        }
    }

    fn changed(&mut self, at: usize) {
        self.freed += 1;
        self.changed.insert(at);
    }
}
