//! The state of the cluster as the view has it, kept current by the events of the overview.

use std::collections::BTreeMap;

use anyhow::{Context as _, anyhow};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::columns::unpack;
use crate::output::escaped;

/// A node, or a NodeClaim whose node has not joined. Its texts are safe to print.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Node {
    /// Name of the NodeClaim, or of a Node without one.
    pub(super) id: String,
    /// Empty until it has joined.
    pub(super) node: String,
    pub(super) node_pool: String,
    pub(super) zone: String,
    pub(super) instance_type: String,
    pub(super) capacity_type: String,
    pub(super) state: String,
    pub(super) reason: String,
    pub(super) text: String,
    /// Seconds of Unix time; 0 if not known.
    pub(super) created: i64,
    /// Millionths of a dollar per hour; 0 if not known.
    pub(super) price: i64,
    pub(super) pods: i64,
    pub(super) pods_allocatable: i64,
    /// Thousandths of a core.
    pub(super) cpu: i64,
    pub(super) cpu_allocatable: i64,
    /// MiB.
    pub(super) memory: i64,
    pub(super) memory_allocatable: i64,
    /// Labels, if they were asked for.
    pub(super) labels: BTreeMap<String, String>,
}

impl Node {
    /// Returns the name of the node, or of its NodeClaim while there is none.
    pub(super) fn name(&self) -> &str {
        if self.node.is_empty() {
            &self.id
        } else {
            &self.node
        }
    }

    fn set(&mut self, column: &str, value: &Value) {
        let text = || escaped(value.as_str().unwrap_or_default()).into_owned();
        let number = || value.as_i64().unwrap_or_default();
        match column {
            "id" => self.id = text(),
            "node" => self.node = text(),
            "nodePool" => self.node_pool = text(),
            "zone" => self.zone = text(),
            "instanceType" => self.instance_type = text(),
            "capacityType" => self.capacity_type = text(),
            "state" => self.state = text(),
            "reason" => self.reason = text(),
            "text" => self.text = text(),
            "created" => self.created = number(),
            "price" => self.price = number(),
            "pods" => self.pods = number(),
            "podsAllocatable" => self.pods_allocatable = number(),
            "cpu" => self.cpu = number(),
            "cpuAllocatable" => self.cpu_allocatable = number(),
            "memory" => self.memory = number(),
            "memoryAllocatable" => self.memory_allocatable = number(),
            // A column of a later version.
            _ => {}
        }
    }
}

/// Sums over all nodes and pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Totals {
    pub(super) pods: usize,
    pub(super) pending: usize,
    pub(super) launching: usize,
    pub(super) starting: usize,
    pub(super) disrupting: usize,
    pub(super) terminating: usize,
}

/// Pending pods with one reason.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Group {
    reason: String,
    count: usize,
}

/// The state of the cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) totals: Totals,
    /// The number of pending pods by reason, the largest first.
    pub(super) pending: Vec<(String, usize)>,
    /// The time of the server, in seconds of Unix time.
    pub(super) at: i64,
    /// What is missing from the view, for the user.
    pub(super) missing: Option<String>,
}

impl State {
    /// Reads an overview: the answer, or the event `reset`.
    pub(super) fn of(overview: &Value) -> anyhow::Result<Self> {
        let mut state = Self::default();
        state.common(overview, &overview["observed"]["at"])?;
        state.insert(&overview["nodes"])?;
        Ok(state)
    }

    /// Applies the event `change`.
    pub(super) fn change(&mut self, event: &Value) -> anyhow::Result<()> {
        for id in event["remove"].as_array().into_iter().flatten() {
            let id = escaped(id.as_str().unwrap_or_default());
            self.nodes.remove(id.as_ref());
        }
        for part in ["add", "change"] {
            if !event[part].is_null() {
                self.insert(&event[part])?;
            }
        }
        self.common(event, &event["at"])
    }

    fn common(&mut self, event: &Value, at: &Value) -> anyhow::Result<()> {
        let at: Option<Timestamp> = at.as_str().and_then(|text| text.parse().ok());
        self.at = at
            .ok_or_else(|| anyhow!("unknown overview: it has no time"))?
            .as_second();
        self.totals = Totals::deserialize(&event["totals"]).context("unknown overview")?;
        if event["pending"].is_null() {
            return Ok(());
        }
        let groups: Vec<Group> = Vec::deserialize(&event["pending"]).context("unknown overview")?;
        let mut by_reason: BTreeMap<String, usize> = BTreeMap::new();
        for group in groups {
            *by_reason
                .entry(escaped(&group.reason).into_owned())
                .or_default() += group.count;
        }
        self.pending = by_reason.into_iter().collect();
        self.pending
            .sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Ok(())
    }

    /// Inserts rows, or the given columns of known ones.
    fn insert(&mut self, columns: &Value) -> anyhow::Result<()> {
        let unknown = |name: &str| anyhow!("unknown overview: cannot read its column {name}");
        let ids = unpack(&columns["id"]).ok_or_else(|| unknown("id"))?;
        let names: Vec<String> = ids
            .iter()
            .map(|id| escaped(id.as_str().unwrap_or_default()).into_owned())
            .collect();
        for name in &names {
            self.nodes.entry(name.clone()).or_default();
        }
        for (column, packed) in columns.as_object().into_iter().flatten() {
            let values = unpack(packed)
                .filter(|values| values.len() == names.len())
                .ok_or_else(|| unknown(&escaped(column)))?;
            for (name, value) in names.iter().zip(&values) {
                if let Some(node) = self.nodes.get_mut(name) {
                    node.set(column, value);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn overview() -> Value {
        json!({
            "observed": { "at": "2026-01-01T00:00:00Z" },
            "totals": { "pods": 3, "pending": 5, "launching": 1 },
            "pending": [
                { "reason": "LimitReached", "count": 1 },
                { "reason": "TooLarge", "count": 3 },
                { "reason": "LimitReached", "count": 1 },
            ],
            "nodes": { "id": ["a", "b"], "node": ["ip-1", ""], "cpu": [100, 0], "futureColumn": [1, 2] },
        })
    }

    #[test]
    fn changes_are_applied_to_the_columns_they_have() {
        let mut state = State::of(&overview()).unwrap();
        assert_eq!(
            state.pending,
            [("TooLarge".to_owned(), 3), ("LimitReached".to_owned(), 2)]
        );
        state
            .change(&json!({
                "at": "2026-01-01T00:00:02Z", "totals": { "pods": 4 }, "remove": ["b"],
                "add": { "id": ["c"], "cpu": [7] }, "change": { "id": ["a"], "cpu": [200] },
            }))
            .unwrap();
        let of = |id: &str| {
            state
                .nodes
                .get(id)
                .map(|node| (node.name().to_owned(), node.cpu))
        };
        assert_eq!(of("a"), Some(("ip-1".to_owned(), 200)));
        assert_eq!((of("b"), of("c")), (None, Some(("c".to_owned(), 7))));
        assert_eq!((state.totals.pods, state.pending.len()), (4, 2));
    }

    #[test]
    fn an_overview_of_another_form_is_an_error() {
        for (path, value) in [
            ("/observed/at", json!("yesterday")),
            ("/totals", json!(7)),
            ("/pending", json!(7)),
            ("/nodes", json!({})),
            ("/nodes/cpu", json!([1])),
            ("/nodes/cpu", json!({ "values": [1], "rows": "0z" })),
        ] {
            let mut overview = overview();
            *overview.pointer_mut(path).unwrap() = value;
            let error = State::of(&overview).unwrap_err().to_string();
            assert!(error.starts_with("unknown overview"), "{path}: {error}");
        }
    }

    /// Conformance: DASH-13
    #[test]
    fn texts_of_the_cluster_are_escaped_before_they_are_kept() {
        let mut hostile = overview();
        hostile["nodes"]["node"] = json!(["a\u{1b}]0;owned\u{7}", "b\u{9b}31m"]);
        hostile["nodes"]["text"] = json!(["\u{202e}", "\r\n"]);
        hostile["pending"] = json!([{ "reason": "\u{1b}[2J", "count": 1 }]);
        let state = State::of(&hostile).unwrap();
        let shown = format!("{state:?}");
        assert!(shown.contains("owned"));
        let mut texts: Vec<&str> = state
            .pending
            .iter()
            .map(|(reason, _)| reason.as_str())
            .collect();
        for node in state.nodes.values() {
            texts.extend([node.name(), node.text.as_str()]);
        }
        for text in texts {
            assert!(
                text.chars().all(|c| !c.is_control() && c != '\u{202e}'),
                "{text:?}"
            );
        }
    }
}
