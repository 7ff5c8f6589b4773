//! Changes of nodes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

use super::{Engine, Uid};
use crate::loops::scheduler::node::{NodeFacts, NodeInfo};

impl Engine {
    /// Updates a node. Heartbeats change nothing and are cheap.
    pub(crate) fn apply_node(&mut self, node: &Node) {
        let Some(name) = node.metadata.name.as_deref() else {
            return;
        };
        let facts = NodeFacts::new(node, &mut self.resources);
        match self.by_name.get(name) {
            Some(&at) if self.nodes[at].live => {
                if self.nodes[at].facts == facts {
                    return;
                }
                if self.nodes[at].facts.labels != facts.labels {
                    self.relabel(at, facts);
                } else {
                    self.nodes[at].facts = facts;
                    // Spread constraints may honor taints.
                    self.topology += 1;
                }
                self.changed(at);
            }
            Some(&at) => {
                let info = &mut self.nodes[at];
                info.facts = facts;
                info.live = true;
                self.live_nodes += 1;
                self.node_appeared(at);
            }
            None => {
                let name: Arc<str> = name.into();
                let at = self.nodes.len();
                self.by_name.insert(name.clone(), at);
                self.nodes.push(NodeInfo::new(name, facts));
                self.live_nodes += 1;
                self.node_appeared(at);
            }
        }
    }

    fn node_appeared(&mut self, at: usize) {
        self.topology += 1;
        let name = self.nodes[at].name.clone();
        for uid in self.homeless.remove(&name).unwrap_or_default() {
            self.account(&uid, 1);
        }
        self.changed(at);
    }

    fn relabel(&mut self, at: usize, facts: NodeFacts) {
        let uids: Vec<Uid> = self.nodes[at].pods.iter().cloned().collect();
        for uid in &uids {
            self.account(uid, -1);
        }
        self.nodes[at].facts = facts;
        self.topology += 1;
        for uid in &uids {
            self.account(uid, 1);
        }
    }

    /// Removes a node; its pods are kept in case it is created again.
    pub(crate) fn remove_node(&mut self, name: &str) {
        let Some(&at) = self.by_name.get(name) else {
            return;
        };
        if !self.nodes[at].live {
            return;
        }
        let uids: Vec<Uid> = self.nodes[at].pods.iter().cloned().collect();
        for uid in &uids {
            self.account(uid, -1);
        }
        let info = &mut self.nodes[at];
        info.live = false;
        let name = info.name.clone();
        self.homeless.entry(name).or_default().extend(uids);
        self.live_nodes -= 1;
        self.topology += 1;
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
