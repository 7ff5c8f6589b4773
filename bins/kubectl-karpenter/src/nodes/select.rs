//! Which nodes are shown, and in which order.

use std::cmp::Ordering;
use std::str::FromStr;

use super::state::{Node, State};

/// A resource whose usage is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Resource {
    /// Processor time.
    Cpu,
    /// Memory.
    Memory,
    /// The number of pods.
    Pods,
}

impl Resource {
    /// Its name, as of a column.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Pods => "pods",
        }
    }

    /// Returns what pods request of it, and what can be allocated.
    pub(super) fn of(self, node: &Node) -> (i64, i64) {
        match self {
            Self::Cpu => (node.cpu, node.cpu_allocatable),
            Self::Memory => (node.memory, node.memory_allocatable),
            Self::Pods => (node.pods, node.pods_allocatable),
        }
    }

    /// Returns the share of a node that is requested; `None` while it has none.
    pub(super) fn share(self, node: &Node) -> Option<f64> {
        let (used, all) = self.of(node);
        share(used, all)
    }

    /// Returns what is requested and allocatable on nodes together.
    pub(super) fn of_all(self, nodes: &[&Node]) -> (i64, i64) {
        let each = nodes.iter().map(|node| self.of(node));
        each.fold((0, 0), |(used, all), (more, room): (i64, i64)| {
            (used.saturating_add(more), all.saturating_add(room))
        })
    }
}

/// Returns the share of all that is used; `None` if there is nothing.
pub(super) fn share(used: i64, all: i64) -> Option<f64> {
    (all > 0).then(|| used as f64 / all as f64)
}

/// What nodes are sorted by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    /// When the node was created.
    Creation,
    Cost,
    /// The share of a resource that is requested.
    Usage(Resource),
    Name,
    Label(String),
}

/// An order of nodes: `creation=asc`, `cost=dsc`, `LABEL=asc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) key: Key,
    pub(super) descending: bool,
}

impl FromStr for Sort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, order) = match text.rsplit_once('=') {
            Some((key, order)) => (key, order),
            None => (text, "dsc"),
        };
        let descending = match order {
            "asc" => false,
            "dsc" | "desc" => true,
            _ => return Err("the order must be asc or dsc, as in cost=dsc".to_owned()),
        };
        let key = match key {
            "" => return Err("must be as creation=asc, cost=dsc or LABEL=asc".to_owned()),
            "creation" => Key::Creation,
            "cost" | "price" => Key::Cost,
            "name" => Key::Name,
            "cpu" | "eks-node-viewer/node-cpu-usage" => Key::Usage(Resource::Cpu),
            "memory" | "eks-node-viewer/node-memory-usage" => Key::Usage(Resource::Memory),
            "pods" | "eks-node-viewer/node-pods-usage" => Key::Usage(Resource::Pods),
            label => Key::Label(label.to_owned()),
        };
        Ok(Self { key, descending })
    }
}

impl Sort {
    /// Returns the order of the key `s` after this one.
    pub(super) fn next(&self) -> Self {
        let sort = |key, descending| Self { key, descending };
        match (&self.key, self.descending) {
            (Key::Creation, _) => sort(Key::Cost, true),
            (Key::Cost, _) => sort(Key::Usage(Resource::Cpu), false),
            (Key::Usage(_), _) => sort(Key::Name, false),
            (Key::Name | Key::Label(_), _) => sort(Key::Creation, true),
        }
    }

    /// Describes the order, as `--node-sort` takes it.
    pub(super) fn name(&self) -> String {
        let key = match &self.key {
            Key::Creation => "creation",
            Key::Cost => "cost",
            Key::Usage(resource) => resource.name(),
            Key::Name => "name",
            Key::Label(label) => label,
        };
        let order = if self.descending { "dsc" } else { "asc" };
        format!("{key}={order}")
    }

    fn compare(&self, a: &Node, b: &Node) -> Ordering {
        let usage = |resource: Resource, node: &Node| resource.share(node).unwrap_or(-1.0);
        let order = match &self.key {
            Key::Creation => a.created.cmp(&b.created),
            Key::Cost => a.price.cmp(&b.price),
            Key::Usage(resource) => usage(*resource, a).total_cmp(&usage(*resource, b)),
            Key::Name => natural(a.name(), b.name()),
            Key::Label(label) => natural(&value(a, label), &value(b, label)),
        };
        let order = if self.descending {
            order.reverse()
        } else {
            order
        };
        order.then_with(|| natural(a.name(), b.name()))
    }
}

/// Returns the value of a label: those that every node has come from the overview.
pub(super) fn value(node: &Node, label: &str) -> String {
    let of = |resource: Resource| match resource.share(node) {
        Some(share) => format!("{:.0}%", share * 100.0),
        None => String::new(),
    };
    match label {
        "karpenter.sh/nodepool" => node.node_pool.clone(),
        "karpenter.sh/capacity-type" => node.capacity_type.clone(),
        "topology.kubernetes.io/zone" => node.zone.clone(),
        "node.kubernetes.io/instance-type" => node.instance_type.clone(),
        "eks-node-viewer/node-cpu-usage" => of(Resource::Cpu),
        "eks-node-viewer/node-memory-usage" => of(Resource::Memory),
        "eks-node-viewer/node-pods-usage" => of(Resource::Pods),
        label => node.labels.get(label).cloned().unwrap_or_default(),
    }
}

/// Reports whether the value of a label is only known from the Node itself.
pub(super) fn is_of_node(label: &str) -> bool {
    let known = [
        "karpenter.sh/nodepool",
        "karpenter.sh/capacity-type",
        "topology.kubernetes.io/zone",
        "node.kubernetes.io/instance-type",
    ];
    !known.contains(&label) && !label.starts_with("eks-node-viewer/")
}

/// Compares names so that numbers in them are in the order of their values: `ip-9` is before `ip-10`.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    loop {
        let (Some(x), Some(y)) = (part(&mut left), part(&mut right)) else {
            return left.len().cmp(&right.len()).then_with(|| a.cmp(b));
        };
        let order = match (x.parse::<u64>(), y.parse::<u64>()) {
            (Ok(x), Ok(y)) => x.cmp(&y),
            _ => x.cmp(y),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// Takes the digits, or the characters that are none, at the beginning of a text.
fn part<'a>(text: &mut &'a str) -> Option<&'a str> {
    let first = text.chars().next()?.is_ascii_digit();
    let end = text.find(|c: char| c.is_ascii_digit() != first);
    let (part, rest) = text.split_at(end.unwrap_or(text.len()));
    *text = rest;
    Some(part)
}

/// Returns the nodes that contain a text, in an order.
pub(super) fn selected<'a>(state: &'a State, sort: &Sort, filter: &str) -> Vec<&'a Node> {
    let filter = filter.to_lowercase();
    let contains = |text: &str| text.to_lowercase().contains(&filter);
    let matches = |node: &&Node| {
        filter.is_empty()
            || [
                node.name(),
                &node.id,
                &node.node_pool,
                &node.zone,
                &node.instance_type,
                &node.capacity_type,
                &node.state,
                &node.reason,
                &node.text,
            ]
            .into_iter()
            .any(contains)
    };
    let mut nodes: Vec<&Node> = state.nodes.values().filter(matches).collect();
    nodes.sort_by(|a, b| sort.compare(a, b));
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let node = |name: &str, created, price, cpu, pool: &str| Node {
            id: name.to_owned(),
            node: name.to_owned(),
            created,
            price,
            cpu,
            cpu_allocatable: 100,
            node_pool: pool.to_owned(),
            ..Node::default()
        };
        let nodes = [
            node("ip-10", 3, 10, 50, "batch"),
            node("ip-9", 1, 30, 90, "web"),
            node("ip-100", 2, 20, 10, "web"),
        ];
        State {
            nodes: nodes.map(|node| (node.id.clone(), node)).into(),
            ..State::default()
        }
    }

    fn names(sort: &str, filter: &str) -> Vec<String> {
        let state = state();
        let nodes = selected(&state, &sort.parse().unwrap(), filter);
        nodes.iter().map(|node| node.name().to_owned()).collect()
    }

    #[test]
    fn nodes_are_sorted_as_eks_node_viewer_sorts_them() {
        assert_eq!(names("creation", ""), ["ip-10", "ip-100", "ip-9"]);
        assert_eq!(names("creation=asc", ""), ["ip-9", "ip-100", "ip-10"]);
        assert_eq!(names("cost=dsc", ""), ["ip-9", "ip-100", "ip-10"]);
        assert_eq!(names("cpu=asc", ""), ["ip-100", "ip-10", "ip-9"]);
        assert_eq!(names("name=asc", ""), ["ip-9", "ip-10", "ip-100"]);
        let by_pool = names("karpenter.sh/nodepool=asc", "");
        assert_eq!(by_pool, ["ip-10", "ip-9", "ip-100"]);
        for invalid in ["", "=asc", "cost=up"] {
            assert!(invalid.parse::<Sort>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_filter_is_part_of_any_text_of_the_node() {
        assert_eq!(names("name=asc", "WEB"), ["ip-9", "ip-100"]);
        assert_eq!(names("name=asc", "ip-10"), ["ip-10", "ip-100"]);
        assert!(names("name=asc", "none").is_empty());
    }
}
