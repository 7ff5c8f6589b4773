//! The history of decisions: records, and the current reasons.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_core::cluster::{NodeState, Snapshot};
use karpenter_core::disruption::{
    Command, CommandInvalidated, DisruptionPlan, NotDisruptable, VerdictKind,
};
use karpenter_core::pod::PodKey;
use karpenter_core::reason::Reason;
use karpenter_core::schedule::{Plan, PlannedNodeClaim, Policy};
use rustc_hash::FxHashSet;

use crate::digest::Digest;
use crate::index::{Fresh, Key, Known, MAX_NODES, MAX_PODS, Table};
use crate::passes::{Classes, Group, NodeReasons, Whys, disrupted, finite, launched, named};
use crate::prices::Prices;
use crate::record::{Item, Outcome, Pass, Totals, clipped};
use crate::ring::{Bounds, Recorded, Ring};

/// The input of a pass, as far as records describe it.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The snapshot that the pass decided on.
    pub snapshot: &'a Snapshot,
    /// The policy of the pass.
    pub policy: &'a Policy,
    /// Duration of the pass.
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
}

impl History {
    /// Creates an empty history that begins at `began`.
    pub fn new(began: Timestamp) -> Self {
        Self {
            began,
            ring: Ring::new(Bounds::default()),
            pods: Arc::new(Table::new(MAX_PODS)),
            nodes: Arc::new(Table::new(MAX_NODES)),
            pools: BTreeMap::new(),
        }
    }

    /// Returns the records.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Returns the pending pods.
    pub fn pods(&self) -> &Table {
        &self.pods
    }

    /// Returns the nodes.
    pub fn nodes(&self) -> &Table {
        &self.nodes
    }

    /// Returns the outcome of a NodePool in the last scheduling pass.
    pub fn pool(&self, name: &str) -> Option<&Reason> {
        self.pools.get(name)
    }

    /// Returns the memory of records and index in bytes.
    pub fn memory(&self) -> usize {
        self.ring.memory() + self.pods.memory() + self.nodes.memory()
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
                    object_time: pod.created_at,
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

    /// Records a disruption pass.
    pub fn disrupted(&mut self, input: Input<'_>, plan: &DisruptionPlan) -> Recorded {
        let Input { snapshot, now, .. } = input;
        let prices = Prices::new(snapshot);
        let mut totals = Totals {
            carried_over: plan.carried_over,
            ..Totals::default()
        };
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
                // The next pass says so as well.
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
        let claims = claims.iter().copied().chain(std::iter::repeat(None));
        let launches = planned.iter().zip(claims);
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
        self.record(Pass::StaticCapacity, input, false, totals, items)
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
