//! Launches of NodeClaims: the offering that the cloud chooses, and the Node that joins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus};
use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use karpenter_api::labels;
use karpenter_api::v1::{NodeClaim, Operator};
use karpenter_core::cluster::Snapshot;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::lifecycle::after;
use karpenter_core::lifecycle::conditions::expires_at;
use karpenter_core::limits::LimitHeadroom;
use karpenter_core::offering::Offering;
use karpenter_core::overlay;
use karpenter_core::requirements::{Requirement, Requirements};
use karpenter_core::schedule::PlannedNodeClaim;

use crate::prices::micro_dollars;
use crate::rehearse::agreement::size_class;
use crate::rehearse::plan::{Action, Launch, Step};
use crate::rehearse::request::LaunchChoice;
use crate::rehearse::stepper::Stepper;
use crate::rehearse::stepper::queue::Event;
use crate::rehearse::stepper::timing::LAUNCH;

/// The most nodes that a static NodePool launches at once; with more the rehearsal ends.
const MAX_STATIC: u32 = 10_000;

/// The instance that a NodeClaim gets.
#[derive(Clone, Debug)]
pub(in crate::rehearse) struct Chosen {
    labels: BTreeMap<String, String>,
    capacity: karpenter_api::ResourceList,
    allocatable: karpenter_api::ResourceList,
    micro_dollars: i64,
}

impl Stepper {
    /// Creates the NodeClaims of planned nodes that limits allow; each result is that of the planned node at the same index.
    /// Nodes of `replaced` NodeClaims do not count against limits.
    pub(super) fn create_claims(
        &mut self,
        planned: &[PlannedNodeClaim],
        replaced: &BTreeSet<String>,
    ) -> Vec<Option<(String, Launch)>> {
        let snapshot = self.cluster.snapshot();
        let mut room = LimitHeadroom::new(&snapshot, replaced);
        let admitted: Vec<bool> = planned
            .iter()
            .map(|planned| {
                let pool = snapshot.node_pool(&planned.node_pool);
                pool.is_some_and(|pool| room.take(pool, planned).is_ok())
            })
            .collect();
        let admitted = planned.iter().zip(admitted);
        admitted
            .map(|(planned, admitted)| admitted.then(|| self.create(&snapshot, planned))?)
            .collect()
    }

    fn create(
        &mut self,
        snapshot: &Snapshot,
        planned: &PlannedNodeClaim,
    ) -> Option<(String, Launch)> {
        let pool = &planned.node_pool;
        let mut claim = planned.to_node_claim();
        let (chosen, launch) = self.choose(snapshot, pool, &claim)?;
        let name = loop {
            let number = self.numbers.entry(pool.clone()).or_default();
            *number += 1;
            let name = format!("{pool}-plan-{number}");
            if snapshot.node(&name).is_none() {
                break name;
            }
        };
        claim.metadata.name = Some(name.clone());
        claim.metadata.generate_name = None;
        claim.metadata.uid = Some(name.clone());
        claim.metadata.creation_timestamp = Some(Time(self.now));
        self.cluster.apply_node_claim(&claim);
        self.launching.insert(name.clone(), chosen);
        let boot = self.timing.boot(pool);
        let queue = &mut self.queue;
        queue.add(after(self.now, LAUNCH), Event::Launched(name.clone()));
        let registered = after(self.now, boot.registered.max(LAUNCH));
        queue.add(registered, Event::Registered(name.clone()));
        let initialized = after(self.now, boot.initialized.max(boot.registered).max(LAUNCH));
        queue.add(initialized, Event::Initialized(name.clone()));
        if let Some(at) = expires_at(&claim) {
            queue.add(at, Event::Expire(name.clone()));
        }
        Some((name, launch))
    }

    /// Continues the launch of a NodeClaim of the cluster.
    pub(super) fn resume_launch(&mut self, snapshot: &Snapshot, claim: &Arc<NodeClaim>) {
        if claim.is_true(types::INITIALIZED) {
            return;
        }
        let (name, pool) = (
            claim.name().to_owned(),
            claim.node_pool().unwrap_or_default(),
        );
        let boot = self.timing.boot(pool);
        let created = claim.metadata.creation_timestamp.as_ref();
        let created = created.map_or(self.now, |created| created.0);
        let now = self.now;
        let due = |duration| after(created, duration).max(now);
        if !claim.is_true(types::LAUNCHED) {
            let Some((chosen, _)) = self.choose(snapshot, pool, claim) else {
                return;
            };
            self.launching.insert(name.clone(), chosen);
            self.queue.add(due(LAUNCH), Event::Launched(name.clone()));
        }
        if !claim.is_true(types::REGISTERED) {
            self.queue
                .add(due(boot.registered), Event::Registered(name.clone()));
        }
        self.queue
            .add(due(boot.initialized), Event::Initialized(name));
    }

    fn types_of(&mut self, snapshot: &Snapshot, pool: &str) -> Option<Arc<[InstanceType]>> {
        if let Some(known) = self.offered.get(pool) {
            return Some(Arc::clone(known));
        }
        let types = overlay::offered(snapshot, snapshot.node_pool(pool)?)?;
        self.offered.insert(pool.to_owned(), Arc::clone(&types));
        Some(types)
    }

    /// Returns the instance that a NodeClaim gets; `None` if no offering meets its requirements.
    fn choose(
        &mut self,
        snapshot: &Snapshot,
        pool: &str,
        claim: &NodeClaim,
    ) -> Option<(Chosen, Launch)> {
        let types = self.types_of(snapshot, pool)?;
        let names = &snapshot.config().well_known;
        let wanted = Requirements::from_api(&claim.spec.requirements, names).ok()?;
        let named = wanted.get(labels::INSTANCE_TYPE);
        let accepts = |theirs: &Requirements| wanted.intersects(theirs).is_ok();
        let options: Vec<(&InstanceType, &Offering)> = types
            .iter()
            .filter(|it| named.is_none_or(|named| named.has(&it.name)) && accepts(&it.requirements))
            .flat_map(|it| it.offerings.iter().map(move |offering| (it, offering)))
            .filter(|(_, offering)| offering.is_launchable() && accepts(&offering.requirements))
            .collect();
        let key = |(it, offering): &(&InstanceType, &Offering)| {
            let price = micro_dollars(offering.price);
            let price = match self.launch {
                LaunchChoice::Cheapest => price,
                LaunchChoice::Worst => -price,
            };
            let place = (offering.zone().map(str::to_owned), it.name.clone());
            (price, place)
        };
        let (instance_type, offering) = options.iter().copied().min_by_key(key)?;
        let kinds: BTreeSet<&str> = options.iter().map(|(it, _)| it.name.as_str()).collect();
        let zones: BTreeSet<Option<&str>> = options.iter().map(|(_, it)| it.zone()).collect();
        let allocatable = instance_type.allocatable_of(offering);
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        let launch = Launch {
            node_pool: pool.to_owned(),
            count: 1,
            instance_type: instance_type.name.clone(),
            capacity_type: text(offering.capacity_type()),
            zone: match zones.len() {
                1 => text(offering.zone()),
                _ => String::new(),
            },
            price_per_hour: crate::rehearse::stepper::dollars(micro_dollars(offering.price)),
            instance_types: kinds.len(),
            size_class: size_class(
                instance_type.capacity.get("cpu"),
                instance_type.capacity.get("memory"),
            ),
        };
        let chosen = Chosen {
            labels: labels_of(claim, instance_type, offering),
            capacity: instance_type.capacity.to_quantities(),
            allocatable: allocatable.to_quantities(),
            micro_dollars: micro_dollars(offering.price),
        };
        Some((chosen, launch))
    }

    /// Records the launch of nodes, those of one kind together.
    pub(super) fn record_launches(&mut self, launches: Vec<Launch>, pods: usize, reason: &str) {
        let launches = grouped(launches);
        if launches.is_empty() {
            return;
        }
        let step = Step {
            after: self.seconds(),
            action: Action::Launch,
            reason: reason.to_owned(),
            nodes: Vec::new(),
            launches,
            pods,
            savings_per_hour: None,
            price_per_hour: self.price(),
        };
        self.record(step);
    }

    fn live_claim(&self, name: &str) -> Option<NodeClaim> {
        let snapshot = self.cluster.snapshot();
        let claim = snapshot.node_claim(name)?;
        (!claim.is_deleting()).then(|| NodeClaim::clone(claim))
    }

    pub(super) fn launched(&mut self, name: &str) {
        let (Some(mut claim), Some(chosen)) = (self.live_claim(name), self.launching.remove(name))
        else {
            return;
        };
        claim.metadata.labels = Some(chosen.labels);
        claim.status.provider_id = Some(format!("rehearsed:///{name}"));
        claim.status.capacity = chosen.capacity;
        claim.status.allocatable = chosen.allocatable;
        claim.set_true(types::LAUNCHED, self.now);
        self.cluster.apply_node_claim(&claim);
        self.add_instance(name, chosen.micro_dollars);
    }

    pub(super) fn registered(&mut self, name: &str) {
        let Some(mut claim) = self.live_claim(name) else {
            return;
        };
        let snapshot = self.cluster.snapshot();
        let exists = snapshot
            .node(name)
            .is_some_and(|state| state.node.is_some());
        if !exists {
            self.cluster.apply_node(&node_of(&claim));
            claim.status.node_name = Some(name.to_owned());
        } else if let Some(node) = self.node_object(name) {
            let mut node = node;
            set_label(&mut node, labels::REGISTERED);
            if let Some(spec) = &mut node.spec
                && let Some(taints) = &mut spec.taints
            {
                let unregistered = labels::taints::unregistered();
                taints.retain(|taint| !labels::taints::same(taint, &unregistered));
            }
            claim.status.node_name.clone_from(&node.metadata.name);
            self.cluster.apply_node(&node);
        }
        claim.set_true(types::REGISTERED, self.now);
        self.cluster.apply_node_claim(&claim);
    }

    /// Returns the Node of a NodeClaim, as the API server has it.
    pub(super) fn node_object(&self, claim: &str) -> Option<Node> {
        let snapshot = self.cluster.snapshot();
        let node = snapshot.node(claim)?.node.clone()?;
        snapshot
            .node_object(&node.name)
            .map(|node| Node::clone(node))
    }

    pub(super) fn initialized(&mut self, name: &str) {
        let (Some(mut claim), Some(mut node)) = (self.live_claim(name), self.node_object(name))
        else {
            return;
        };
        set_label(&mut node, labels::INITIALIZED);
        if let Some(spec) = &mut node.spec
            && let Some(taints) = &mut spec.taints
        {
            let startup = &claim.spec.startup_taints;
            taints.retain(|taint| {
                !labels::taints::is_known_ephemeral(taint)
                    && !startup
                        .iter()
                        .any(|other| labels::taints::same(other, taint))
            });
        }
        let conditions = node.status.get_or_insert_default();
        let conditions = conditions.conditions.get_or_insert_default();
        conditions.retain(|condition| condition.type_ != "Ready");
        conditions.push(NodeCondition {
            type_: "Ready".into(),
            status: "True".into(),
            ..NodeCondition::default()
        });
        self.cluster.apply_node(&node);
        claim.set_true(types::INITIALIZED, self.now);
        self.cluster.apply_node_claim(&claim);
        self.nominate([name]);
        self.bind_awaited(name);
        self.replacement_ready(name);
        self.pass_at(self.now);
    }

    /// Launches and deletes nodes of static NodePools, if the feature gate StaticCapacity is on.
    pub(super) fn static_capacity(&mut self) {
        use karpenter_core::static_capacity::{
            Population, Reservations, node_limit, removal_order, replicas,
        };
        if !self.gates.static_capacity {
            return;
        }
        let snapshot = self.cluster.snapshot();
        for pool in snapshot.node_pools() {
            let Some(wanted) = replicas(pool).filter(|_| !pool.is_deleting()) else {
                continue;
            };
            let claims = || snapshot.node_claims_of_pool(pool.name()).map(AsRef::as_ref);
            let population = Population::count(&snapshot, claims());
            let mut reservations = Reservations::default();
            let missing = reservations.reserve(
                pool.name(),
                population,
                node_limit(pool),
                population.missing(wanted),
            );
            let excess = usize::try_from(population.excess(wanted)).unwrap_or_default();
            if missing > MAX_STATIC {
                self.cut_short();
            } else if missing > 0 {
                let names = &snapshot.config().well_known;
                let planned = PlannedNodeClaim::from_template(pool, names);
                let planned = vec![planned; usize::try_from(missing).unwrap_or_default()];
                let created = self.create_claims(&planned, &BTreeSet::new());
                let launches = created.into_iter().flatten().map(|(_, launch)| launch);
                self.record_launches(launches.collect(), 0, "Static");
            }
            let removed = removal_order(&snapshot, claims(), self.now);
            let removed: Vec<String> = removed
                .into_iter()
                .take(excess)
                .map(|claim| claim.name().to_owned())
                .collect();
            for claim in removed {
                self.record_deletion(&claim, "Static");
                self.delete_claim(&claim);
            }
        }
    }
}

/// Returns launches with those of one kind together.
pub(super) fn grouped(launches: Vec<Launch>) -> Vec<Launch> {
    let mut groups: Vec<Launch> = Vec::new();
    for launch in launches {
        let same = groups.iter_mut().find(|group| {
            group.node_pool == launch.node_pool
                && group.instance_type == launch.instance_type
                && group.capacity_type == launch.capacity_type
                && group.price_per_hour == launch.price_per_hour
        });
        match same {
            Some(group) => {
                group.count += launch.count;
                if group.zone != launch.zone {
                    group.zone.clear();
                }
            }
            None => groups.push(launch),
        }
    }
    groups
}

fn labels_of(
    claim: &NodeClaim,
    instance_type: &InstanceType,
    offering: &Offering,
) -> BTreeMap<String, String> {
    let mut all = claim.metadata.labels.clone().unwrap_or_default();
    for requirement in &claim.spec.requirements {
        if requirement.operator == Operator::In
            && let [value] = requirement.values.as_slice()
        {
            all.insert(requirement.key.clone(), value.clone());
        }
    }
    let singles = |requirements: &Requirements| -> Vec<(String, String)> {
        let singles = requirements.iter();
        let singles = singles.filter_map(|requirement: &Requirement| {
            Some((
                requirement.key().to_owned(),
                requirement.single()?.to_owned(),
            ))
        });
        singles.collect()
    };
    all.extend(singles(&instance_type.requirements));
    all.extend(singles(&offering.requirements));
    all.insert(labels::INSTANCE_TYPE.into(), instance_type.name.clone());
    all
}

/// Returns the Node that registers for a NodeClaim.
fn node_of(claim: &NodeClaim) -> Node {
    let name = claim.name().to_owned();
    let mut all = claim.metadata.labels.clone().unwrap_or_default();
    all.insert(labels::HOSTNAME.into(), name.clone());
    all.insert(labels::REGISTERED.into(), "true".into());
    let taints = claim.spec.taints.iter().chain(&claim.spec.startup_taints);
    Node {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            uid: Some(format!("node/{name}")),
            labels: Some(all),
            annotations: claim.metadata.annotations.clone(),
            creation_timestamp: claim.metadata.creation_timestamp.clone(),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: claim.status.provider_id.clone(),
            taints: Some(taints.cloned().collect()),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            capacity: Some(claim.status.capacity.clone()),
            allocatable: Some(claim.status.allocatable.clone()),
            ..NodeStatus::default()
        }),
    }
}

fn set_label(node: &mut Node, label: &str) {
    let all = node.metadata.labels.get_or_insert_default();
    all.insert(label.to_owned(), "true".to_owned());
}
