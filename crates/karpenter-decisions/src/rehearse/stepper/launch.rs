//! Launches of NodeClaims: the offering that the cloud chooses, and the Node that joins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use karpenter_api::conditions::{HasConditions, reasons, types};
use karpenter_api::k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus};
use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use karpenter_api::labels;
use karpenter_api::labels::annotations::REQUESTED_DRA_DRIVERS;
use karpenter_api::v1::{NodeClaim, Operator};
use karpenter_core::cluster::Snapshot;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::lifecycle::after;
use karpenter_core::lifecycle::conditions::expires_at;
use karpenter_core::lifecycle::node_claim::{
    Effect, Event as JoiningEvent, HookAnswers, Joining, LaunchFailure, Surroundings,
};
use karpenter_core::limits::LimitHeadroom;
use karpenter_core::offering::Offering;
use karpenter_core::overlay;
use karpenter_core::requirements::{Requirement, Requirements};
use karpenter_core::schedule::PlannedNodeClaim;
use karpenter_core::static_capacity::{Reservations, missing, node_limit, population, surplus};

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
        queue.add(after(self.now, LAUNCH), Event::Join(name.clone()));
        let registered = after(self.now, boot.registered.max(LAUNCH));
        queue.add(registered, Event::Registered(name.clone()));
        let initialized = after(self.now, boot.initialized.max(boot.registered).max(LAUNCH));
        queue.add(initialized, Event::Ready(name.clone()));
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
            if let Some((chosen, _)) = self.choose(snapshot, pool, claim) {
                self.launching.insert(name.clone(), chosen);
            }
            self.queue.add(due(LAUNCH), Event::Join(name.clone()));
        }
        if !claim.is_true(types::REGISTERED) {
            self.queue
                .add(due(boot.registered), Event::Registered(name.clone()));
        }
        self.queue.add(due(boot.initialized), Event::Ready(name));
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

    pub(super) fn live_claim(&self, name: &str) -> Option<NodeClaim> {
        let snapshot = self.cluster.snapshot();
        let claim = snapshot.node_claim(name)?;
        (!claim.is_deleting()).then(|| NodeClaim::clone(claim))
    }

    /// Reconciles a NodeClaim that is not being deleted.
    pub(super) fn join(&mut self, name: &str) {
        let Some(claim) = self.live_claim(name) else {
            return;
        };
        let was_initialized = claim.is_true(types::INITIALIZED);
        let mut joining = Joining::new(claim, self.now);
        let (mut event, mut is_launched) = (JoiningEvent::Due, true);
        loop {
            let snapshot = self.cluster.snapshot();
            let nodes: Vec<Arc<Node>> = self.node_object(name).map(Arc::new).into_iter().collect();
            let around = Surroundings {
                snapshot: &snapshot,
                nodes: &nodes,
            };
            let effects = joining.on(event, around, self.now);
            event = JoiningEvent::Due;
            for effect in effects {
                event = match effect {
                    Effect::Launch => match self.launching.remove(name) {
                        Some(chosen) => {
                            self.add_instance(name, chosen.micro_dollars);
                            JoiningEvent::Launched(Box::new(chosen.answer(joining.claim())))
                        }
                        None => {
                            is_launched = false;
                            JoiningEvent::NotLaunched(no_offering())
                        }
                    },
                    Effect::WarnOfMissingTaint(_) => JoiningEvent::Due,
                    Effect::RunHooks => JoiningEvent::HooksRan(HookAnswers::default()),
                    Effect::Register(_, node) => {
                        self.cluster.apply_node(&node);
                        JoiningEvent::Registered(true)
                    }
                    Effect::Initialize(_, node) => {
                        self.cluster.apply_node(&node);
                        JoiningEvent::Initialized(true)
                    }
                    Effect::Delete { .. } => {
                        self.record_deletion(name, "LaunchTimeout");
                        return self.delete_claim(name);
                    }
                    Effect::Write { next } => {
                        self.cluster.apply_node_claim(joining.claim());
                        // The Node of a launched instance is sure to join in time.
                        if let Some(next) = next.filter(|_| !is_launched) {
                            let again = Event::Join(name.to_owned());
                            self.queue.add(after(self.now, next), again);
                        }
                        if !was_initialized && joining.claim().is_true(types::INITIALIZED) {
                            self.became_initialized(name);
                        }
                        return;
                    }
                };
            }
        }
    }

    /// kubelet registers the Node of a NodeClaim.
    pub(super) fn registered(&mut self, name: &str) {
        let Some(claim) = self.live_claim(name) else {
            return;
        };
        if self.node_object(name).is_none() {
            self.cluster.apply_node(&node_of(&claim));
        }
        self.join(name);
    }

    /// Returns the Node of a NodeClaim, as the API server has it.
    pub(super) fn node_object(&self, claim: &str) -> Option<Node> {
        let snapshot = self.cluster.snapshot();
        let node = snapshot.node(claim)?.node.clone()?;
        snapshot
            .node_object(&node.name)
            .map(|node| Node::clone(node))
    }

    /// A Node becomes ready: kubelet and drivers have published its resources, and whoever set startup taints has removed them.
    pub(super) fn ready(&mut self, name: &str) {
        let (Some(mut claim), Some(mut node)) = (self.live_claim(name), self.node_object(name))
        else {
            return;
        };
        if let Some(annotations) = &mut claim.metadata.annotations
            && annotations.remove(REQUESTED_DRA_DRIVERS).is_some()
        {
            self.cluster.apply_node_claim(&claim);
        }
        let spec = node.spec.get_or_insert_default();
        if let Some(taints) = &mut spec.taints {
            let startup = &claim.spec.startup_taints;
            taints.retain(|taint| {
                !labels::taints::is_known_ephemeral(taint)
                    && !startup
                        .iter()
                        .any(|other| labels::taints::same(other, taint))
            });
        }
        let status = node.status.get_or_insert_default();
        let allocatable = status.allocatable.get_or_insert_default();
        allocatable.extend(claim.status.allocatable);
        let conditions = status.conditions.get_or_insert_default();
        conditions.retain(|condition| condition.type_ != "Ready");
        conditions.push(NodeCondition {
            type_: "Ready".into(),
            status: "True".into(),
            ..NodeCondition::default()
        });
        self.cluster.apply_node(&node);
        self.join(name);
    }

    fn became_initialized(&mut self, name: &str) {
        self.nominate([name]);
        self.bind_awaited(name);
        self.replacement_ready(name);
        self.pass_at(self.now);
    }

    /// Launches and deletes nodes of static NodePools, if the feature gate StaticCapacity is on.
    pub(super) fn static_capacity(&mut self) {
        if !self.gates.static_capacity {
            return;
        }
        let snapshot = self.cluster.snapshot();
        for pool in snapshot.node_pools() {
            let missing = missing(&snapshot, pool).unwrap_or_default();
            let population = population(&snapshot, pool.name());
            let limit = node_limit(pool);
            let missing = Reservations::default().reserve(pool.name(), population, limit, missing);
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
            let claims = snapshot.node_claims_of_pool(pool.name());
            let surplus = surplus(&snapshot, pool, claims.map(AsRef::as_ref), self.now);
            for claim in surplus.unwrap_or_default() {
                self.record_deletion(claim.name(), "Static");
                self.delete_claim(claim.name());
            }
        }
    }
}

/// What a launch of a NodeClaim of the cluster fails with whose requirements no offering meets.
fn no_offering() -> LaunchFailure {
    LaunchFailure::Retryable {
        reason: reasons::LAUNCH_FAILED.to_owned(),
        message: "no offering meets the requirements".to_owned(),
    }
}

impl Chosen {
    /// Returns the provider's answer.
    fn answer(self, claim: &NodeClaim) -> NodeClaim {
        let mut answer = claim.clone();
        answer.metadata.labels = Some(self.labels);
        answer.status.provider_id = Some(format!("rehearsed:///{}", claim.name()));
        answer.status.capacity = self.capacity;
        answer.status.allocatable = self.allocatable;
        answer
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

/// Returns the Node that kubelet registers for a NodeClaim.
fn node_of(claim: &NodeClaim) -> Node {
    let name = claim.name().to_owned();
    Node {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            uid: Some(format!("node/{name}")),
            labels: Some([(labels::HOSTNAME.to_owned(), name)].into()),
            creation_timestamp: claim.metadata.creation_timestamp.clone(),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: claim.status.provider_id.clone(),
            taints: Some(vec![labels::taints::unregistered()]),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            capacity: Some(claim.status.capacity.clone()),
            allocatable: Some(claim.status.allocatable.clone()),
            ..NodeStatus::default()
        }),
    }
}
