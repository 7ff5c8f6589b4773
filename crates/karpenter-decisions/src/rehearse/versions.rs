//! Two versions of Karpenter in the same cluster, and the rules that make the difference.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use karpenter_api::labels::annotations::CONSOLIDATE_AFTER_APPLIES_TO_DESTINATIONS;
use karpenter_api::v1::{ConsolidationPolicy, NodePool};
use karpenter_core::behavior::{Behavior, RULES};
use karpenter_core::capacity_buffer::buffer_of;
use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::lifecycle::static_pools;
use karpenter_core::schedule::Packing;

use super::plan::{Action, FirstDifference, RuleAlone, Step, VersionRun, Versions};
use super::request::VersionPair;
use super::stepper::Outcome;
use super::{Gates, InvalidPlan, Settings};

/// What a rehearsal of another version does not model.
pub(super) const NOTE: &str = "Another version is this engine with that version's rules: its bugs, how fast it computes and its timeouts are not modelled, nor are image pulls, the profile of kube-scheduler, and which of the allowed instance types the cloud takes.";

/// A cluster and its settings as a version of Karpenter sees them.
pub(super) struct As {
    pub(super) snapshot: Snapshot,
    pub(super) settings: Settings,
    /// What the version does not know and leaves out.
    left_out: Vec<String>,
}

/// A setting that this version has and upstream does not: its flag, and how the value of another run is taken over.
type Own = (&'static str, fn(&mut Settings, &Settings));

/// How the settings of a run are changed by one difference.
const OWN: [Own; 3] = [
    ("packing", |settings, other| {
        settings.scheduling.packing = other.scheduling.packing;
    }),
    ("node-overhead-price", |settings, other| {
        let price = other.scheduling.node_overhead_price;
        settings.scheduling.node_overhead_price = price;
        settings.disruption.policy.node_overhead_price = price;
    }),
    ("consolidation-max-replacements", |settings, other| {
        let multi_node = &mut settings.disruption.multi_node;
        multi_node.max_replacements = other.disruption.multi_node.max_replacements;
    }),
];

/// Returns names as one text, each once.
fn named(names: impl Iterator<Item = String>) -> String {
    let names: BTreeSet<String> = names.collect();
    Vec::from_iter(names).join(", ")
}

/// Returns what a version knows: the gates it has, and whether it has the Balanced policy.
fn known(version: &str) -> (Gates, bool) {
    let (since_1_13, since_1_14) = match version {
        "karpenter-1.0" | "karpenter-1.6" => (false, false),
        "karpenter-1.13" => (true, false),
        _ => (true, true),
    };
    let gates = Gates {
        capacity_buffers: since_1_14,
        static_pools: static_pools::Settings {
            enabled: since_1_13,
        },
        node_overlays: since_1_13,
    };
    (gates, since_1_14)
}

impl As {
    /// Returns what a version sees. `this` has the settings as they are.
    pub(super) fn of(
        version: &str,
        snapshot: &Snapshot,
        settings: &Settings,
    ) -> Result<Self, InvalidPlan> {
        let Some(behavior) = Behavior::of(version) else {
            let all = Behavior::VERSIONS.join(", ");
            let why = format!("unknown version `{version}`: {all} are known");
            return Err(InvalidPlan::field("request", "versions", why));
        };
        let mut this = Self {
            snapshot: snapshot.fork(),
            settings: settings.clone(),
            left_out: Vec::new(),
        };
        if version == "this" {
            return Ok(this);
        }
        this.settings.set_behavior(behavior);
        this.settings.scheduling.packing = Packing::FewestNodes;
        this.settings.scheduling.node_overhead_price = 0.0;
        this.settings.disruption.policy.node_overhead_price = 0.0;
        this.settings.disruption.multi_node.max_replacements = 1;
        let (knows, knows_balanced) = known(version);
        let gates = &mut this.settings.gates;
        let was = *gates;
        gates.capacity_buffers &= knows.capacity_buffers;
        gates.static_pools.enabled &= knows.static_pools.enabled;
        gates.node_overlays &= knows.node_overlays;
        if was.capacity_buffers && !knows.capacity_buffers {
            let pods = std::mem::take(&mut this.settings.disruption.query.buffer_pods);
            let of = pods.iter().filter_map(|pod| buffer_of(pod));
            let names = named(of.map(|(namespace, name)| format!("{namespace}/{name}")));
            this.leave_out(names, |names| {
                format!("{version} does not know CapacityBuffers: {names} are left out.")
            });
        }
        if was.static_pools.enabled && !knows.static_pools.enabled {
            let pools = snapshot.node_pools().filter(|pool| pool.is_static());
            let names = named(pools.map(|pool| pool.name().to_owned()));
            this.leave_out(names, |names| {
                format!("{version} does not know `replicas` of NodePools: the number of nodes of {names} is not kept.")
            });
        }
        if was.node_overlays && !knows.node_overlays {
            let overlays = snapshot.node_overlays();
            let names = named(overlays.filter_map(|it| it.metadata.name.clone()));
            this.leave_out(names, |names| {
                format!("{version} does not know NodeOverlays: with {names}, the instance types keep what the cluster has.")
            });
        }
        this.leave_out_annotations(version);
        if !knows_balanced {
            this.leave_out_balanced(version);
        }
        Ok(this)
    }

    /// Notes that objects of these names are left out, if there are any.
    fn leave_out(&mut self, names: String, text: impl FnOnce(&str) -> String) {
        if !names.is_empty() {
            self.left_out.push(text(&names));
        }
    }

    /// Changes NodePools; `change` tells what is left out of one, if it leaves something out.
    fn leave_out_of_pools(&mut self, change: impl Fn(&mut NodePool) -> Option<String>) {
        let mut cluster = Cluster::from(self.snapshot.fork());
        for pool in self.snapshot.node_pools() {
            let mut pool = NodePool::clone(pool);
            if let Some(left_out) = change(&mut pool) {
                cluster.apply_node_pool(&pool);
                self.left_out.push(left_out);
            }
        }
        self.snapshot = cluster.snapshot();
    }

    /// The setting of upstream's versions is that of all NodePools.
    fn leave_out_annotations(&mut self, version: &str) {
        let annotation = CONSOLIDATE_AFTER_APPLIES_TO_DESTINATIONS;
        self.leave_out_of_pools(|pool| {
            pool.metadata.annotations.as_mut()?.remove(annotation)?;
            Some(format!(
                "{version} does not know the annotation {annotation} of NodePool {}.",
                pool.name()
            ))
        });
    }

    /// Up to 1.13, only nodes of NodePools with the policy WhenEmptyOrUnderutilized are consolidated with their pods.
    fn leave_out_balanced(&mut self, version: &str) {
        self.leave_out_of_pools(|pool| {
            let policy = &mut pool.spec.disruption.consolidation_policy;
            if *policy != ConsolidationPolicy::Balanced {
                return None;
            }
            *policy = ConsolidationPolicy::WhenEmpty;
            Some(format!("{version} does not know the consolidationPolicy Balanced: in NodePool {} it deletes empty nodes only.", pool.name()))
        });
    }

    /// Returns the differences to another version, each with the cluster and settings that have this difference alone.
    pub(super) fn differences(&self, other: &Self) -> Vec<(RuleAlone, Self)> {
        let [from, to] = [self, other].map(|it| it.settings.behavior());
        let rules = RULES
            .iter()
            .filter(|rule| rule.holds(from) != rule.holds(to));
        let rules = rules.map(|rule| {
            let yes = |behavior| if rule.holds(behavior) { "yes" } else { "no" };
            let mut settings = self.settings.clone();
            settings.set_behavior(rule.switched(from));
            (rule.name, [yes(from), yes(to)].map(str::to_owned), settings)
        });
        let own = OWN.iter().filter_map(|(name, take)| {
            let mut settings = self.settings.clone();
            take(&mut settings, &other.settings);
            let values = [&self.settings, &settings].map(|it| own_value(name, it));
            (values[0] != values[1]).then_some((*name, values, settings))
        });
        let alone = |(name, [from, to], settings): (&str, [String; 2], Settings)| {
            let alone = RuleAlone {
                rule: name.to_owned(),
                from,
                to,
                run: None,
            };
            let run = Self {
                snapshot: self.snapshot.fork(),
                settings,
                left_out: Vec::new(),
            };
            (alone, run)
        };
        rules.chain(own).map(alone).collect()
    }
}

fn own_value(name: &str, settings: &Settings) -> String {
    match name {
        "packing" => match settings.scheduling.packing {
            Packing::FewestNodes => "FewestNodes".to_owned(),
            Packing::LowestCost { .. } => "LowestCost".to_owned(),
        },
        "node-overhead-price" => settings.scheduling.node_overhead_price.to_string(),
        _ => settings
            .disruption
            .multi_node
            .max_replacements
            .max(1)
            .to_string(),
    }
}

/// The first difference of two runs.
pub(super) struct First {
    index: usize,
    /// The step of each run.
    steps: [Option<Step>; 2],
}

impl First {
    pub(super) fn of(before: &Outcome, after: &Outcome) -> Option<Self> {
        let index = first_difference(&before.steps, &after.steps)?;
        let steps = [before, after].map(|run| run.steps.get(index).cloned());
        Some(Self { index, steps })
    }

    /// Returns how far another run has to go to tell whether its first difference is this one.
    pub(super) fn reach(&self) -> Option<SignedDuration> {
        let [from, to] = &self.steps;
        let seconds = from.iter().chain(to).map(|step| step.after).max()?;
        // That there is no further step is known at the end.
        to.as_ref()?;
        Some(SignedDuration::from_secs(seconds.saturating_add(1)))
    }

    /// Reports whether a run, which may end at [`Self::reach`], differs first in this way.
    fn is_of(&self, before: &Outcome, run: &Outcome) -> bool {
        first_difference(&before.steps, &run.steps) == Some(self.index)
            && run.steps.get(self.index) == self.steps[1].as_ref()
    }
}

/// Compares the runs of two versions. `alone` are the runs with a single difference each.
pub(super) fn compare(
    pair: &VersionPair,
    [from, to]: [&As; 2],
    [before, after]: [&Outcome; 2],
    seconds: i64,
    first: Option<First>,
    mut rules: Vec<RuleAlone>,
    alone: &[Outcome],
) -> Versions {
    let is_complete = |run: &&Outcome| run.ended_by.is_none();
    if pair.each_rule {
        for (rule, run) in rules.iter_mut().zip(alone) {
            let run = Some(run).filter(is_complete);
            rule.run = run.map(|run| VersionRun::of(run, seconds));
        }
    }
    let first_difference = first.map(|first| {
        let made = rules.iter().zip(alone);
        let made = made.filter(|(_, run)| is_complete(run) && first.is_of(before, run));
        let rules = made.map(|(rule, _)| rule.rule.clone()).collect();
        let [from, to] = first.steps;
        FirstDifference { from, to, rules }
    });
    Versions {
        left_out: [&from.left_out[..], &to.left_out].concat(),
        from: pair.from.clone(),
        to: pair.to.clone(),
        before: VersionRun::of(before, seconds),
        after: VersionRun::of(after, seconds),
        first_difference,
        rules,
    }
}

/// Returns the index of the first step that only one of two runs has.
fn first_difference(these: &[Step], those: &[Step]) -> Option<usize> {
    let same = these.iter().zip(those).take_while(|(a, b)| a == b).count();
    (same < these.len().max(those.len())).then_some(same)
}

impl VersionRun {
    fn of(outcome: &Outcome, seconds: i64) -> Self {
        let launched = outcome.steps.iter().flat_map(|step| &step.launches);
        let is_reclaimed = |step: &&Step| {
            step.action != Action::Launch
                && matches!(step.reason.as_str(), "Empty" | "Underutilized")
        };
        let reclaimed = outcome.steps.iter().filter(is_reclaimed);
        let mut run = Self {
            launches: launched.map(|launch| launch.count).sum(),
            reclaimed: reclaimed.map(|step| step.nodes.len()).sum(),
            evictions: outcome.evictions.total,
            ..Self::default()
        };
        let ends = outcome.curve.iter().skip(1).map(|sample| sample.after);
        for (sample, end) in outcome.curve.iter().zip(ends.chain([seconds])) {
            let lasts = end - sample.after;
            let share = lasts as f64 / seconds.max(1) as f64;
            run.nodes += sample.nodes as f64 * share;
            run.price_per_hour += sample.price_per_hour * share;
            run.pending_seconds += i64::try_from(sample.pending).unwrap_or(i64::MAX) * lasts;
        }
        run
    }
}
