//! Why a node is not feasible for a pod, with kube-scheduler's messages.

use std::collections::BTreeMap;
use std::fmt;

/// A reason of one node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// The pod is pinned to other nodes by name.
    Pinned,
    Unschedulable,
    Taint {
        key: String,
        value: String,
    },
    NodeAffinity,
    Ports,
    TooManyPods,
    /// `never`: the node is too small even when empty.
    Insufficient {
        resource: String,
        never: bool,
    },
    ReadWriteOncePod,
    VolumeNodeAffinity,
    VolumeMissing,
    VolumeNoneToBind,
    VolumeZone,
    SpreadLabel,
    Spread,
    Affinity,
    AntiAffinity,
    ExistingAntiAffinity,
}

impl Reason {
    /// Whether removing pods from the node could help (`Unschedulable`, as against `UnschedulableAndUnresolvable`).
    fn resolvable(&self) -> bool {
        match self {
            Self::Ports
            | Self::TooManyPods
            | Self::ReadWriteOncePod
            | Self::Spread
            | Self::AntiAffinity
            | Self::ExistingAntiAffinity => true,
            Self::Insufficient { never, .. } => !never,
            _ => false,
        }
    }
}

impl fmt::Display for Reason {
    // UPSTREAM: pkg/scheduler/framework/plugins/*: the ErrReason constants.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Pinned => "node(s) didn't satisfy plugin(s) [NodeAffinity]",
            Self::Unschedulable => "node(s) were unschedulable",
            Self::Taint { key, value } => {
                return write!(f, "node(s) had untolerated taint {{{key}: {value}}}");
            }
            Self::NodeAffinity => "node(s) didn't match Pod's node affinity/selector",
            Self::Ports => "node(s) didn't have free ports for the requested pod ports",
            Self::TooManyPods => "Too many pods",
            Self::Insufficient { resource, .. } => return write!(f, "Insufficient {resource}"),
            Self::ReadWriteOncePod => {
                "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
            }
            Self::VolumeNodeAffinity => "node(s) didn't match PersistentVolume's node affinity",
            Self::VolumeMissing => {
                "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
            }
            Self::VolumeNoneToBind => "node(s) didn't find available persistent volumes to bind",
            Self::VolumeZone => "node(s) had no available volume zone",
            Self::SpreadLabel => {
                "node(s) didn't match pod topology spread constraints (missing required label)"
            }
            Self::Spread => "node(s) didn't match pod topology spread constraints",
            Self::Affinity => "node(s) didn't match pod affinity rules",
            Self::AntiAffinity => "node(s) didn't match pod anti-affinity rules",
            Self::ExistingAntiAffinity => {
                "node(s) didn't satisfy existing pods anti-affinity rules"
            }
        };
        f.write_str(text)
    }
}

/// The reasons of all nodes, with counts.
#[derive(Debug, Default)]
pub(crate) struct Diagnosis {
    reasons: BTreeMap<Reason, usize>,
    helpless: usize,
    preemptable: usize,
    /// The reason that excluded the pod before any node was evaluated.
    before_nodes: Option<String>,
}

impl Diagnosis {
    /// The pod was rejected before any node was evaluated.
    pub(crate) fn before_nodes(why: String) -> Self {
        Self {
            before_nodes: Some(why),
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, reasons: &[Reason]) {
        if reasons.iter().all(Reason::resolvable) {
            self.preemptable += 1;
        } else {
            self.helpless += 1;
        }
        for reason in reasons {
            *self.reasons.entry(reason.clone()).or_default() += 1;
        }
    }

    /// Returns the condition message. UPSTREAM: pkg/scheduler/framework/types.go, `FitError.Error`.
    pub(crate) fn message(&self, nodes: usize, never_preempts: bool) -> String {
        if nodes == 0 {
            return "no nodes available to schedule pods".to_owned();
        }
        let mut text = format!("0/{nodes} nodes are available:");
        match &self.before_nodes {
            Some(why) => text.push_str(&format!(" {why}.")),
            None => push_histogram(
                &mut text,
                self.reasons
                    .iter()
                    .map(|(reason, n)| format!("{n} {reason}")),
            ),
        }
        if never_preempts {
            text.push_str(" preemption: not eligible due to preemptionPolicy=Never.");
            return text;
        }
        text.push_str(&format!(" preemption: 0/{nodes} nodes are available:"));
        let helpless = if self.before_nodes.is_some() {
            nodes
        } else {
            self.helpless
        };
        let lines = [
            (
                self.preemptable,
                "No preemption victims found for incoming pod",
            ),
            (helpless, "Preemption is not helpful for scheduling"),
        ];
        push_histogram(
            &mut text,
            lines
                .iter()
                .filter(|(n, _)| *n > 0)
                .map(|(n, line)| format!("{n} {line}")),
        );
        text
    }
}

fn push_histogram(text: &mut String, lines: impl Iterator<Item = String>) {
    let mut lines: Vec<String> = lines.collect();
    if !lines.is_empty() {
        lines.sort();
        text.push_str(&format!(" {}.", lines.join(", ")));
    }
}

pub(crate) fn insufficient(resource: &str, never: bool) -> Reason {
    match resource {
        "pods" => Reason::TooManyPods,
        _ => Reason::Insufficient {
            resource: resource.to_owned(),
            never,
        },
    }
}
