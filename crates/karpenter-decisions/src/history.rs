//! The history of decisions: records, and the current reasons.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_core::cluster::{NodeState, Snapshot};
use karpenter_core::disruption::{
    Command, CommandInvalidated, DisruptionPlan, NotDisruptable, VerdictKind,
};
use karpenter_core::pod::{PodKey, UnixSecond};
use karpenter_core::reason::Reason;
use karpenter_core::schedule::{Plan, PlannedNodeClaim, Policy};
use rustc_hash::FxHashSet;

use crate::choice::{Choice, Choices, Chosen};
use crate::digest::Digest;
use crate::index::{Fresh, Key, Known, MAX_NODES, MAX_PODS, Table};
use crate::passes::{Classes, Group, NodeReasons, Whys, command_id, disrupted, launched, named};
use crate::prices::{Prices, finite};
use crate::record::{
    CommandOutcome, CommandState, DecisionRecord, Item, NAMED, Outcome, Pass, Totals, clipped,
};
use crate::ring::{Bounds, Recorded, Ring};

/// The input of a pass, as far as records describe it.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The snapshot that the pass decided on.
    pub snapshot: &'a Snapshot,
    /// The policy of the pass.
    pub policy: &'a Policy,
    pub took: Duration,
    /// When the pass ended.
    pub now: Timestamp,
}

/// What the passes of this replica decided since it leads. All of it can be lost at any time: the next passes fill it again.
/// Clones share records and tables, so that questions are answered from a clone while passes go on.
#[derive(Clone, Debug)]
pub struct History {
    began: Timestamp,
    ring: Ring,
    pods: Arc<Table>,
    nodes: Arc<Table>,
    /// The outcome of each NodePool in the last scheduling pass.
    pools: BTreeMap<String, Reason>,
    /// NodeClaims of records for which it is not known yet what the cloud chose: number of the record, name.
    launching: VecDeque<(u32, String)>,
    choices: Arc<Choices>,
}

/// NodeClaims whose launch is awaited; those beyond it stay as they were planned.
const MAX_LAUNCHING: usize = 2000;

impl History {
    /// Creates an empty history that begins at `began`.
    pub fn new(began: Timestamp) -> Self {
        Self {
            began,
            ring: Ring::new(Bounds::default()),
            pods: Arc::new(Table::new(MAX_PODS)),
            nodes: Arc::new(Table::new(MAX_NODES)),
            pools: BTreeMap::new(),
            launching: VecDeque::new(),
            choices: Arc::default(),
        }
    }

    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    pub fn pods(&self) -> &Table {
        &self.pods
    }

    pub fn nodes(&self) -> &Table {
        &self.nodes
    }

    /// Returns the outcome of a NodePool in the last scheduling pass.
    pub fn pool(&self, name: &str) -> Option<&Reason> {
        self.pools.get(name)
    }

    /// Returns the memory of records and index in bytes.
    pub fn memory(&self) -> usize {
        let tables = self.pods.memory() + self.nodes.memory();
        self.ring.memory() + tables + self.choices.memory()
    }

    /// Returns why the latest NodeClaims have their instance types.
    pub fn choices(&self) -> &Choices {
        &self.choices
    }

    /// Adds why a NodeClaim has its instance type.
    pub fn chose(&mut self, uid: &str, choice: Choice) {
        Arc::make_mut(&mut self.choices).add(uid, choice);
    }

    /// Records what the cloud chose for the NodeClaims of earlier records, as far as a snapshot knows it by now.
    pub fn record_launched_offerings(&mut self, snapshot: &Snapshot) {
        let waiting = std::mem::take(&mut self.launching);
        for (number, name) in waiting {
            // A NodeClaim that was deleted was not launched, or its node is gone again.
            let Some(node) = snapshot.node(&name) else {
                continue;
            };
            let claim = node.claim.as_ref();
            let launched = claim.filter(|claim| claim.status.provider_id.is_some());
            let chosen = launched.and_then(|claim| {
                let price = finite(Prices::of_one(snapshot, node));
                Chosen::of(claim, price, self.choices.get(claim.uid()))
            });
            let Some(found) = chosen else {
                self.launching.push_back((number, name));
                continue;
            };
            let amend = |record: &mut DecisionRecord| {
                let mut items = record.items.iter_mut();
                items.any(|item| match item {
                    Item::Launched {
                        node_claim: Some(claim),
                        chosen,
                        ..
                    } if *claim == name => {
                        *chosen = Some(found.clone());
                        true
                    }
                    _ => false,
                })
            };
            self.ring.amend(amend, |record| record.id.number == number);
        }
    }

    /// Records what has become of a command, by the names of its NodeClaims; returns the record.
    pub fn record_command_outcome(
        &mut self,
        claims: &[String],
        outcome: CommandOutcome,
    ) -> Option<Arc<DecisionRecord>> {
        let id = command_id(claims);
        let is_this = |item: &Item| matches!(item, Item::Disrupted { command, rejected: None, .. } if *command == id);
        let amend = |record: &mut DecisionRecord| {
            for item in &mut record.items {
                if !is_this(&*item) {
                    continue;
                }
                if let Item::Disrupted {
                    outcome: of_item, ..
                } = item
                {
                    let mut outcome = outcome.clone();
                    if let Some(before) = of_item.take()
                        && outcome.replacements.is_empty()
                    {
                        outcome.replacements = before.replacements;
                    }
                    *of_item = Some(outcome);
                    return true;
                }
            }
            false
        };
        self.ring
            .amend(amend, |record| record.items.iter().any(is_this))
    }

    /// Records the repair of an unhealthy node: it is deleted.
    pub fn repaired(&mut self, input: Input<'_>, node: &str, condition: &str) -> Recorded {
        let outcome = CommandOutcome {
            state: CommandState::Succeeded,
            at: input.now,
            why: Some(clipped(condition.to_owned())),
            replacements: Vec::new(),
        };
        let item = deleted("unhealthy", input.snapshot, &[node], Some(outcome));
        let totals = Totals {
            disrupted: 1,
            ..Totals::default()
        };
        self.record(Pass::Repair, input, false, totals, vec![item])
    }

    /// Records that nodes of a static NodePool are deleted, because it has more than it should; by the names of their NodeClaims.
    pub fn shrunk(&mut self, input: Input<'_>, claims: &[&str]) -> Recorded {
        // Each node is named, so that its deletion can be explained.
        let items = claims.chunks(NAMED);
        let items = items.map(|claims| deleted("surplus", input.snapshot, claims, None));
        let items = items.collect();
        let totals = Totals {
            disrupted: claims.len(),
            ..Totals::default()
        };
        self.record(Pass::StaticCapacity, input, false, totals, items)
    }

    /// Records a scheduling pass. `claims` are the NodeClaims that were created for the planned nodes, `None` for those that could
    /// not be created.
    pub fn provisioned(
        &mut self,
        input: Input<'_>,
        plan: &Plan,
        claims: &[Option<&str>],
    ) -> Recorded {
        let Input { snapshot, now, .. } = input;
        self.record_launched_offerings(snapshot);
        let pending = |key: &PodKey| {
            let pod = snapshot.pod(&key.namespace, &key.name);
            pod.filter(|pod| pod.key.uid == key.uid)
        };
        let mut fresh = Vec::new();
        let mut see = |key: &PodKey, known: &dyn Fn() -> Arc<Known>| {
            if let Some(pod) = pending(key).filter(|pod| pod.node_name.is_none()) {
                fresh.push(Fresh {
                    key: Key::of(&key.uid),
                    known: known(),
                    object_time: pod.created_at.map(UnixSecond::time),
                });
            }
        };
        let (mut classes, mut whys) = (Classes::default(), Whys::default());
        let mut totals = Totals::default();
        let mut items = Vec::new();
        for (at, planned) in plan.new_node_claims.iter().enumerate() {
            let claim = claims.get(at).copied().flatten();
            items.push(launched(planned, claim));
            totals.launched += 1;
            totals.price_per_hour += finite(planned.hourly_price);
            let Some(claim) = claim else { continue };
            let target = Arc::new(Known::Placed {
                target: claim.to_owned(),
            });
            for pod in &planned.pods {
                see(pod, &|| Arc::clone(&target));
            }
        }
        let mut unplaced: BTreeMap<(&str, String), Group> = BTreeMap::new();
        for without in plan.unplaced.iter().filter(|without| !without.buffer) {
            totals.unplaced += 1;
            let Some(pod) = pending(&without.pod) else {
                continue;
            };
            let known = whys.of(pod, &without.why);
            let id = known.id().unwrap_or_default();
            let group = unplaced.entry((id, classes.of(pod).to_owned()));
            let group = group.or_insert_with(|| Group {
                text: text_of(&known),
                ..Group::default()
            });
            group.add(&without.pod);
            see(&without.pod, &|| Arc::clone(&known));
        }
        items.extend(
            unplaced
                .into_iter()
                .map(|((reason, class), group)| Item::Unplaced {
                    class,
                    count: group.count,
                    names: group.names,
                    reason,
                    text: group.text,
                }),
        );
        let mut placed: BTreeMap<String, Group> = BTreeMap::new();
        for placement in plan.existing.iter().filter(|placement| !placement.buffer) {
            totals.placed += 1;
            let Some(pod) = pending(&placement.pod) else {
                continue;
            };
            let group = placed.entry(classes.of(pod).to_owned()).or_default();
            group.add(&placement.pod);
            group.add_node(&placement.node);
            let node = snapshot.node(&placement.node);
            let claim = node.and_then(|node| node.claim_name());
            let target = claim.unwrap_or(&placement.node).to_owned();
            see(&placement.pod, &|| {
                Arc::new(Known::Placed {
                    target: target.clone(),
                })
            });
        }
        items.extend(placed.into_iter().map(|(class, group)| Item::Placed {
            class,
            count: group.count,
            names: group.names,
            nodes: group.nodes,
        }));
        let undecided = Arc::new(Known::reason(Reason::Undecided {}, Vec::new()));
        for pod in &plan.undecided {
            see(pod, &|| Arc::clone(&undecided));
        }
        let reports = plan.pools.iter();
        self.pools = reports
            .map(|report| (report.node_pool.clone(), Reason::from(report)))
            .collect();
        let truncated = !plan.undecided.is_empty();
        let recorded = self.record(Pass::Provisioning, input, truncated, totals, items);
        let launched = claims.iter().flatten();
        self.await_launches(&recorded, launched.map(|claim| (*claim).to_owned()));
        let unbound: FxHashSet<Key> = snapshot
            .unbound_pods()
            .map(|pod| Key::of(&pod.key.uid))
            .collect();
        Arc::make_mut(&mut self.pods).update(
            fresh,
            |key| unbound.contains(&key),
            (self.began, now),
            recorded.id().number,
        );
        recorded
    }

    pub fn disrupted(&mut self, input: Input<'_>, plan: &DisruptionPlan) -> Recorded {
        let Input { snapshot, now, .. } = input;
        self.record_launched_offerings(snapshot);
        let prices = Prices::new(snapshot);
        let mut totals = Totals::default();
        let commands = plan.commands.iter();
        let mut items: Vec<Item> = commands.map(|command| disrupted(command, None)).collect();
        totals.price_per_hour = -plan.commands.iter().map(|c| finite(c.savings)).sum::<f64>();
        let mut reasons = NodeReasons::default();
        let mut fresh = Vec::new();
        let mut kept: BTreeMap<(&str, &str), Vec<&NodeState>> = BTreeMap::new();
        for verdict in &plan.verdicts {
            let reason = match &verdict.kind {
                VerdictKind::NotDisruptable(why) => Reason::from(why),
                VerdictKind::Kept(why) => Reason::from(why),
                // The next pass records it as well.
                _ => Reason::from(&NotDisruptable::InFlight),
            };
            let is_kept = !matches!(
                verdict.kind,
                VerdictKind::Deleted { .. } | VerdictKind::Replaced { .. }
            );
            let known = reasons.of(reason);
            if is_kept {
                totals.kept += 1;
                let pool = verdict.node.node_pool().unwrap_or_default();
                let group = kept.entry((pool, known.id().unwrap_or_default()));
                group.or_default().push(&verdict.node);
            } else {
                totals.disrupted += 1;
            }
            fresh.push(Fresh {
                key: node_key(&verdict.node),
                known,
                object_time: created_at(&verdict.node),
            });
        }
        items.extend(kept.into_iter().map(|((pool, reason), nodes)| Item::Kept {
            node_pool: pool.to_owned(),
            reason,
            count: nodes.len(),
            names: named(nodes.iter().map(|node| node.name())),
            price_per_hour: nodes.iter().map(|node| finite(prices.of(node))).sum(),
        }));
        let truncated = !plan.timed_out.is_empty();
        let recorded = self.record(Pass::Disruption, input, truncated, totals, items);
        // Every node has a verdict.
        let number = recorded.id().number;
        Arc::make_mut(&mut self.nodes).update(fresh, |_| false, (self.began, now), number);
        recorded
    }

    /// Records that a proposed command was not started.
    pub fn rejected(
        &mut self,
        input: Input<'_>,
        command: &Command,
        why: &CommandInvalidated,
    ) -> Recorded {
        let item = disrupted(command, Some(&Reason::from(why)));
        let totals = Totals::default();
        self.record(Pass::Validation, input, false, totals, vec![item])
    }

    /// Records what static capacity did for a NodePool that lacks nodes: NodeClaims for some of them, or none because of the limit.
    pub fn static_capacity(
        &mut self,
        input: Input<'_>,
        planned: &[PlannedNodeClaim],
        claims: &[Option<&str>],
        at_limit: Option<&str>,
    ) -> Recorded {
        let all = claims.iter().copied().chain(std::iter::repeat(None));
        let launches = planned.iter().zip(all);
        let mut items: Vec<Item> = launches
            .map(|(planned, claim)| launched(planned, claim))
            .collect();
        let totals = Totals {
            launched: planned.len(),
            price_per_hour: planned.iter().map(|p| finite(p.hourly_price)).sum(),
            ..Totals::default()
        };
        items.extend(at_limit.map(|pool| Item::Kept {
            node_pool: pool.to_owned(),
            // Records of static capacity have no amounts.
            reason: Reason::NodeLimitReached { limit: 0, used: 0 }.id(),
            count: 0,
            names: Vec::new(),
            price_per_hour: 0.0,
        }));
        let recorded = self.record(Pass::StaticCapacity, input, false, totals, items);
        let launched = claims.iter().flatten();
        self.await_launches(&recorded, launched.map(|claim| (*claim).to_owned()));
        recorded
    }

    fn await_launches(&mut self, recorded: &Recorded, claims: impl Iterator<Item = String>) {
        if let Recorded::New(record) = recorded {
            let number = record.id.number;
            let room = MAX_LAUNCHING.saturating_sub(self.launching.len());
            let claims = claims.take(room);
            self.launching.extend(claims.map(|claim| (number, claim)));
        }
    }

    fn record(
        &mut self,
        pass: Pass,
        input: Input<'_>,
        truncated: bool,
        totals: Totals,
        items: Vec<Item>,
    ) -> Recorded {
        let epoch = input.snapshot.epoch();
        let outcome = Outcome {
            pass,
            epoch,
            input: Digest::of_input(epoch, input.policy),
            took_ms: u64::try_from(input.took.as_millis()).unwrap_or(u64::MAX),
            truncated,
            totals,
            items,
        };
        self.ring.push(outcome, input.now)
    }
}

/// Returns the item of nodes that are deleted without a command; names of Nodes or NodeClaims.
fn deleted(
    reason: &'static str,
    snapshot: &Snapshot,
    names: &[&str],
    outcome: Option<CommandOutcome>,
) -> Item {
    let nodes = || names.iter().filter_map(|name| snapshot.node(name));
    let pods = nodes().map(|node| snapshot.pods_on(node.name()).len());
    let prices = nodes().map(|node| finite(Prices::of_one(snapshot, node)));
    Item::Disrupted {
        reason,
        command: String::new(),
        decision: "delete",
        count: names.len(),
        names: named(names),
        replacements: 0,
        instance_types: Vec::new(),
        pods: pods.sum(),
        savings_per_hour: prices.fold(0.0, |sum, price| sum + price),
        rejected: None,
        outcome,
    }
}

fn text_of(known: &Known) -> String {
    match known {
        Known::Reason {
            reason: Some(reason),
            ..
        } => clipped(reason.to_string()),
        Known::Reason { reason: None, .. } | Known::Placed { .. } => String::new(),
    }
}

/// Returns the key of a node: a Node of the same name that is created later is another one.
pub fn node_key(node: &NodeState) -> Key {
    let uid = node.claim.as_ref().map(|claim| claim.uid());
    let uid = uid.unwrap_or_default();
    Key::of(&format!("{}/{uid}", node.name()))
}

fn created_at(node: &NodeState) -> Option<Timestamp> {
    let claim = node.claim.as_ref()?;
    claim
        .metadata
        .creation_timestamp
        .as_ref()
        .map(|time| time.0)
}
