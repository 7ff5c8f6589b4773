//! The report: totals of both Karpenters, and the largest differences.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::action::{Agreement, Launch};
use super::comparison::Comparison;
use super::moves::{Compared, Kept, Move};
use super::window::Window;

/// How many differences a report has.
const DIFFERENCES: usize = 10;
/// Smaller differences of prices are not reported.
const CENT_FRACTION: f64 = 1e-6;

/// A number for each of both Karpenters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sides<T> {
    /// What we would have done.
    pub ours: T,
    /// What the other did.
    pub theirs: T,
}

/// The mean and the largest of some durations, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    pub mean: f64,
    pub max: f64,
}

impl Latency {
    fn of(all: &[f64]) -> Option<Self> {
        let max = all.iter().copied().reduce(f64::max)?;
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        Some(Self { mean, max })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Provisioning {
    /// The number of windows that are compared.
    pub windows: usize,
    /// The number of windows that are not compared yet, because they are open or their nodes are launching.
    pub waiting: usize,
    /// The number of pods that needed a node.
    pub pods: usize,
    /// Pods that we have a place for; pods that were bound, or deleted, in the cluster.
    pub covered: Sides<usize>,
    pub nodes: Sides<usize>,
    /// Prices of the nodes in dollars per hour.
    pub price_per_hour: Sides<f64>,
    /// From the first pod of a window to our decision, and to the other's first NodeClaim.
    pub latency_seconds: Sides<Option<Latency>>,
    /// The agreement on NodePool, capacity type and size class, from 0 to 1.
    pub agreement: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Disruption {
    pub nodes: Sides<usize>,
    /// The number of nodes that both disrupted.
    pub both: usize,
    /// The number of nodes that are not compared yet, because the other may still decide.
    pub waiting: usize,
    pub evictions: Sides<usize>,
    /// Prices of the nodes, less those of their replacements, in dollars per hour.
    pub savings_per_hour: Sides<f64>,
    /// The agreement on node and reason, from 0 to 1.
    pub agreement: f64,
}

/// Why both decided differently, if that is known. [`fmt::Display`] is the sentence.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "id")]
#[non_exhaustive]
pub enum Explanation {
    /// The other launched nothing for the pods.
    OnlyOursLaunches {
        /// The number of its pods that are bound by now.
        bound: usize,
    },
    /// We have places for all pods without a new node.
    OnlyTheirsLaunches {
        /// The number of pods that we have a place for.
        placed: usize,
        /// The number of pods that we have no place for.
        unplaced: usize,
    },
    /// Different numbers of nodes.
    NodeCount {},
    /// Nodes of other NodePools.
    NodePool {},
    /// Nodes of other capacity types.
    CapacityType {},
    /// Nodes of other sizes.
    Size {},
    /// Nodes that are alike, at other prices: the cloud chose another instance type or zone than the cheapest.
    Price {},
    /// The other has kept the node for ten minutes.
    OnlyOursDisrupts {},
    /// We keep the node.
    OnlyTheirsDisrupts {
        /// Why; absent if we have not decided about the node.
        #[serde(skip_serializing_if = "Option::is_none")]
        kept: Option<Kept>,
    },
    /// Both disrupt the node, for different reasons.
    OtherReason {},
    /// Both disrupt the node, with other replacements.
    Replacements {},
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnlyOursLaunches { bound } => write!(
                f,
                "the other launched no node; {bound} of its pods have been bound or deleted since"
            ),
            Self::OnlyTheirsLaunches { placed, unplaced } => write!(
                f,
                "{placed} of the pods fit on existing nodes, {unplaced} have no place"
            ),
            Self::NodeCount {} => f.write_str("the pods are packed into another number of nodes"),
            Self::NodePool {} => f.write_str("the nodes are of other NodePools"),
            Self::CapacityType {} => f.write_str("the nodes are of another capacity type"),
            Self::Size {} => f.write_str("the nodes are of another size"),
            Self::Price {} => f.write_str(
                "the nodes are alike; the cloud did not choose the cheapest instance type and zone",
            ),
            Self::OnlyOursDisrupts {} => f.write_str("the other has kept the node for ten minutes"),
            Self::OnlyTheirsDisrupts { kept: Some(kept) } => {
                write!(f, "we keep the node: {}: {}", kept.id, kept.text)
            }
            Self::OnlyTheirsDisrupts { kept: None } => {
                f.write_str("we have not decided about the node")
            }
            Self::OtherReason {} => f.write_str("both disrupt the node, for different reasons"),
            Self::Replacements {} => f.write_str("the replacements are different"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Decisions {
    Provisioning {
        pods: Vec<String>,
        /// The nodes, alike ones together.
        launches: Sides<Vec<Launches>>,
    },
    Disruption {
        node: String,
        disrupts: Sides<Option<Move>>,
    },
}

/// Nodes that are alike.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Launches {
    /// The number of nodes.
    pub count: usize,
    #[serde(flatten)]
    pub launch: Launch,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// When the pods were seen, or the first of both decided.
    pub at: Timestamp,
    #[serde(flatten)]
    pub decisions: Decisions,
    /// What following us saves, in dollars per hour.
    pub savings_per_hour: f64,
    /// What following us would have saved so far, in dollars.
    pub dollars: f64,
    pub explanation: Explanation,
    /// The explanation as a sentence.
    pub text: String,
}

/// What this Karpenter would have done, and what the other did.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShadowReport {
    api_version: &'static str,
    kind: &'static str,
    /// Since when decisions are compared.
    pub since: Timestamp,
    /// When the report was made.
    pub until: Timestamp,
    /// The changes to our copy of the cluster, as `--if` of `kubectl karpenter why`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    pub provisioning: Provisioning,
    pub disruption: Disruption,
    /// The agreement of both together, from 0 to 1.
    pub agreement: f64,
    /// What following each single decision of ours would have saved so far, in dollars, added up and not compounded.
    pub dollars: f64,
    /// Requests and calls that would have changed something, and were refused; always 0 unless there is a defect.
    pub refused: u64,
    pub differences: Vec<Difference>,
}

impl Comparison {
    /// Returns the report of what was compared since `since`.
    pub fn report(&self, since: Option<Timestamp>, now: Timestamp) -> ShadowReport {
        let since = since.unwrap_or(self.began).max(self.began);
        let mut provisioning = Provisioning::default();
        let (mut launched, mut disrupted) = (Agreement::default(), Agreement::default());
        let (mut dollars, mut differences) = (0.0, Vec::new());
        let (mut our_latencies, mut their_latencies) = (Vec::new(), Vec::new());
        for window in self.windows.iter().chain(&self.open) {
            if window.opened < since {
                continue;
            }
            let is_open = self
                .open
                .as_ref()
                .is_some_and(|open| std::ptr::eq(open, window));
            if is_open || !window.is_settled(now) {
                provisioning.waiting += 1;
                continue;
            }
            provisioning.add(window);
            let (ours, theirs) = window.latencies();
            our_latencies.extend(ours);
            their_latencies.extend(theirs);
            launched += window.agreement();
            dollars += window.dollars(now);
            differences.extend(of_window(window, now));
        }
        provisioning.latency_seconds = Sides {
            ours: Latency::of(&our_latencies),
            theirs: Latency::of(&their_latencies),
        };
        provisioning.agreement = launched.ratio();
        let mut disruption = Disruption {
            waiting: self.moves.waiting(),
            ..Disruption::default()
        };
        for compared in self.moves.compared().filter(|it| it.at >= since) {
            disruption.add(compared);
            disrupted += compared.agreement();
            dollars += compared.dollars(now);
            differences.extend(of_node(compared, now));
        }
        disruption.both = disrupted.both;
        disruption.agreement = disrupted.ratio();
        let weight = |difference: &Difference| difference.savings_per_hour.abs();
        differences.sort_by(|a, b| {
            let by_money = weight(b).total_cmp(&weight(a));
            by_money.then(a.at.cmp(&b.at))
        });
        differences.truncate(DIFFERENCES);
        let mut all = launched;
        all += disrupted;
        ShadowReport {
            api_version: crate::API_VERSION,
            kind: "ShadowReport",
            since,
            until: now,
            changes: Vec::new(),
            provisioning,
            disruption,
            agreement: all.ratio(),
            dollars,
            refused: 0,
            differences,
        }
    }
}

impl Provisioning {
    fn add(&mut self, window: &Window) {
        let (ours, theirs) = window.prices();
        self.windows += 1;
        self.pods += window.seen;
        self.covered.ours += window.placed;
        self.covered.theirs += window.bound;
        self.nodes.ours += window.ours.len();
        self.nodes.theirs += window.launches().count();
        self.price_per_hour.ours += ours;
        self.price_per_hour.theirs += theirs;
    }
}

impl Disruption {
    fn add(&mut self, compared: &Compared) {
        if let Some(ours) = &compared.ours {
            self.nodes.ours += 1;
            self.evictions.ours += ours.evictions;
            self.savings_per_hour.ours += ours.savings_per_hour;
        }
        if let Some(theirs) = &compared.theirs {
            self.nodes.theirs += 1;
            self.evictions.theirs += theirs.evictions;
            self.savings_per_hour.theirs += theirs.savings_per_hour;
        }
    }
}

/// Returns the difference of a window, if there is one.
fn of_window(window: &Window, now: Timestamp) -> Option<Difference> {
    let agreement = window.agreement();
    let (ours, theirs) = window.prices();
    let same = agreement.both == agreement.ours && agreement.both == agreement.theirs;
    if same && (theirs - ours).abs() < CENT_FRACTION {
        return None;
    }
    let launches: Vec<&Launch> = window.launches().collect();
    let sorted = |of: &dyn Fn(&Launch) -> String, all: &[&Launch]| {
        let mut all: Vec<String> = all.iter().map(|launch| of(launch)).collect();
        all.sort();
        all
    };
    let planned: Vec<&Launch> = window.ours.iter().collect();
    let differ = |of: &dyn Fn(&Launch) -> String| sorted(of, &planned) != sorted(of, &launches);
    let explanation = if launches.is_empty() {
        Explanation::OnlyOursLaunches {
            bound: window.bound,
        }
    } else if planned.is_empty() {
        Explanation::OnlyTheirsLaunches {
            placed: window.placed,
            unplaced: window.unplaced,
        }
    } else if planned.len() != launches.len() {
        Explanation::NodeCount {}
    } else if differ(&|launch| launch.node_pool.clone()) {
        Explanation::NodePool {}
    } else if differ(&|launch| launch.capacity_type.clone()) {
        Explanation::CapacityType {}
    } else if differ(&|launch| launch.size_class.to_string()) {
        Explanation::Size {}
    } else {
        Explanation::Price {}
    };
    Some(Difference {
        at: window.opened,
        decisions: Decisions::Provisioning {
            pods: window.names.clone(),
            launches: Sides {
                ours: together(planned),
                theirs: together(launches),
            },
        },
        savings_per_hour: theirs - ours,
        dollars: window.dollars(now),
        text: explanation.to_string(),
        explanation,
    })
}

/// Returns the difference of a node, if there is one.
fn of_node(compared: &Compared, now: Timestamp) -> Option<Difference> {
    let explanation = match (&compared.ours, &compared.theirs) {
        (Some(_), None) => Explanation::OnlyOursDisrupts {},
        (None, Some(_)) => Explanation::OnlyTheirsDisrupts {
            kept: compared.kept.clone(),
        },
        (Some(ours), Some(theirs)) if ours.reason != theirs.reason => Explanation::OtherReason {},
        (Some(_), Some(_)) if compared.rate().abs() >= CENT_FRACTION => {
            Explanation::Replacements {}
        }
        _ => return None,
    };
    Some(Difference {
        at: compared.at,
        decisions: Decisions::Disruption {
            node: compared.node.clone(),
            disrupts: Sides {
                ours: compared.ours.clone(),
                theirs: compared.theirs.clone(),
            },
        },
        savings_per_hour: compared.rate(),
        dollars: compared.dollars(now),
        text: explanation.to_string(),
        explanation,
    })
}

/// Returns launches, alike ones together, with one of them.
fn together(launches: Vec<&Launch>) -> Vec<Launches> {
    let mut all: Vec<Launches> = Vec::new();
    for launch in launches {
        let same = |it: &&mut Launches| {
            it.launch.is_like(launch) && it.launch.price_per_hour == launch.price_per_hour
        };
        match all.iter_mut().find(same) {
            Some(it) => it.count += 1,
            None => all.push(Launches {
                count: 1,
                launch: launch.clone(),
            }),
        }
    }
    all
}
