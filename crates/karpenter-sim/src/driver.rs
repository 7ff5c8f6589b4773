//! One simulated day: things happen at random, then everything calms down and must come to rest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use karpenter_api::autoscaling::CapacityBuffer;
use karpenter_api::labels::annotations;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_kwok::KwokNodeClass;
use karpenter_playground::stack::Stack;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::chance::Chance;
use crate::replicas::Place;
use crate::rest;
use crate::safety::Safety;
use crate::wire::Trace;
use crate::world;

/// What a simulation is to be.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long things go on happening.
    pub busy: Duration,
    /// Whether every line of the trace is kept.
    pub keep_trace: bool,
    /// Whether two replicas compete for the lease; left to chance unless given.
    pub elects: Option<bool>,
}

impl Default for Settings {
    /// A day.
    fn default() -> Self {
        Self {
            busy: Duration::from_secs(24 * 3600),
            keep_trace: false,
            elects: None,
        }
    }
}

/// What came of a simulation in which everything held.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// A number that follows from everything the controllers did, and how many writes that was.
    pub digest: (u64, u64),
    /// Machines bought.
    pub launched: u64,
    /// Things that happened to the cluster.
    pub steps: u64,
    /// Times that the controllers were started.
    pub starts: u64,
    /// Every line of the trace, if they are kept.
    pub trace: Vec<String>,
}

/// Something that must hold did not.
#[derive(Debug, Clone, thiserror::Error)]
#[error("seed {seed}, step {step}, {at}: {}", .problems.join("; "))]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The step after which it was found.
    pub step: u64,
    /// The time of the cluster.
    pub at: Timestamp,
    /// What did not hold.
    pub problems: Vec<String>,
    /// The latest that happened, and what the cluster looks like.
    pub context: Vec<String>,
}

/// A running simulation.
pub struct Simulation {
    pub(crate) seed: u64,
    pub(crate) step: u64,
    pub(crate) stack: Stack,
    pub(crate) client: Client,
    pub(crate) trace: Trace,
    pub(crate) safety: Arc<Safety>,
    pub(crate) chance: Chance,
    pub(crate) replicas: Vec<Place>,
    pub(crate) starts: u64,
    /// Since when the controllers run without faults.
    well_since: Option<Timestamp>,
    /// When the faults of the API server end.
    pub(crate) faults_until: Option<Timestamp>,
    /// When the cloud has all capacity again.
    pub(crate) shortage_until: Option<Timestamp>,
    /// Since when machines have no NodeClaim.
    orphans: BTreeMap<String, Timestamp>,
    pub(crate) generation: u64,
    pub(crate) serial: u64,
}

impl std::fmt::Debug for Simulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation")
            .field("seed", &self.seed)
            .field("step", &self.step)
            .finish_non_exhaustive()
    }
}

/// Runs a simulation. Call it on a runtime of one thread whose time stands still.
///
/// # Errors
/// When something that must hold does not.
pub async fn simulate(seed: u64, settings: &Settings) -> Result<Report, Box<Failure>> {
    let mut simulation = Simulation::start(seed, settings).await?;
    let result = simulation.run(settings.busy).await;
    simulation.stop_replicas().await;
    let Simulation {
        stack,
        trace,
        step,
        starts,
        ..
    } = simulation;
    let report = Report {
        digest: trace.digest(),
        launched: stack.cloud.launched(),
        steps: step,
        starts,
        trace: trace.all(),
    };
    stack.shutdown().await;
    result.map(|()| report)
}

impl Simulation {
    async fn start(seed: u64, settings: &Settings) -> Result<Self, Box<Failure>> {
        let mut chance = Chance::new(seed);
        let settings_of_stack = world::settings(&mut chance, seed, settings.elects);
        let replicas = match settings_of_stack.options.disable_leader_election {
            true => 1,
            false => 2,
        };
        let stack = Stack::without_controllers(settings_of_stack).await;
        let stack = stack.map_err(|error| {
            Box::new(Failure {
                seed,
                step: 0,
                at: world::epoch(),
                problems: vec![format!("the cluster does not start, {error}")],
                context: Vec::new(),
            })
        })?;
        let (client, clock) = (stack.client(), stack.clock);
        let mut simulation = Self {
            seed,
            step: 0,
            trace: Trace::new(clock, settings.keep_trace),
            safety: Arc::new(Safety::new(client.clone(), clock)),
            client,
            stack,
            chance,
            replicas: Place::some(replicas),
            starts: 0,
            well_since: None,
            faults_until: None,
            shortage_until: None,
            orphans: BTreeMap::new(),
            generation: 0,
            serial: 0,
        };
        simulation.furnish().await;
        simulation.start_replicas();
        Ok(simulation)
    }

    /// What stands in the cluster at first.
    async fn furnish(&mut self) {
        self.create(&KwokNodeClass::new("default")).await;
        let mut pools = vec![world::fallback_pool(&mut self.chance)];
        for name in world::OTHERS {
            if self.chance.happens(0.7) {
                pools.push(world::other_pool(&mut self.chance, name));
            }
        }
        if self.chance.happens(0.5) {
            pools.push(world::static_pool(&mut self.chance));
        }
        for pool in pools {
            self.create_value::<NodePool>(pool).await;
        }
        if self.chance.happens(0.5) {
            self.create_value::<DaemonSet>(world::daemon_set()).await;
        }
        self.create_value::<StorageClass>(world::storage_class())
            .await;
        for _ in 0..self.chance.between(1, 4) {
            self.new_deployment().await;
        }
    }

    // ---- the cluster's objects ------------------------------------------------------------------------------------

    pub(crate) fn api<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    pub(crate) fn namespaced<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) async fn list<K>(&self) -> Vec<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        let listed = self.api::<K>().list(&ListParams::default()).await;
        listed.map(|l| l.items).unwrap_or_default()
    }

    async fn create<K>(&self, object: &K)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Serialize + Clone + std::fmt::Debug,
    {
        let name = object.meta().name.clone().unwrap_or_default();
        let client = self.client.clone();
        let namespace = object.meta().namespace.clone();
        let resource = kube::core::ApiResource::erase::<K>(&());
        let api: Api<kube::core::DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client, &namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        let outcome = match serde_json::to_value(object).and_then(serde_json::from_value) {
            Ok(object) => api.create(&PostParams::default(), &object).await.err(),
            Err(error) => Some(kube::Error::SerdeError(error)),
        };
        let kind = K::kind(&());
        match outcome {
            None => self.trace.say(&format!("> created {kind} {name}")),
            Some(kube::Error::Api(status)) if status.is_already_exists() => {}
            Some(error) => self
                .safety
                .violated(format!("{kind} {name} cannot be created, {error}")),
        }
    }

    pub(crate) async fn create_value<K>(&self, value: Value)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Serialize + Clone + std::fmt::Debug,
    {
        match serde_json::from_value::<K>(value) {
            Ok(object) => self.create(&object).await,
            Err(error) => self.safety.violated(format!("cannot be read, {error}")),
        }
    }

    pub(crate) async fn patch<K>(&self, api: Api<K>, name: &str, patch: Value)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        self.trace
            .say(&format!("> patched {} {name} {patch}", K::kind(&())));
        let patched = api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        match patched {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => self
                .safety
                .violated(format!("{name} cannot be patched, {error}")),
        }
    }

    pub(crate) async fn delete<K>(&self, api: Api<K>, name: &str)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        self.trace
            .say(&format!("> deleted {} {name}", K::kind(&())));
        // It may be gone already.
        let _ = api.delete(name, &DeleteParams::default()).await;
    }

    pub(crate) async fn new_deployment(&mut self) {
        self.serial += 1;
        let name = format!("web{}", self.serial);
        let deployment = world::deployment(&mut self.chance, &name);
        self.create_value::<Deployment>(deployment).await;
        if self.chance.happens(0.4) {
            let pdb = world::pdb(&mut self.chance, &name);
            self.create_value::<PodDisruptionBudget>(pdb).await;
        }
    }

    pub(crate) async fn names<K>(&self) -> Vec<String>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        let all = self.list::<K>().await;
        all.iter().filter_map(|o| o.meta().name.clone()).collect()
    }

    pub(crate) async fn any<K>(&mut self) -> Option<String>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        let names = self.names::<K>().await;
        self.chance.of(&names)
    }

    // ---- the controllers ------------------------------------------------------------------------------------------

    pub(crate) fn is_well(&mut self) {
        let well = self.faults_until.is_none() && self.all_replicas_are_up();
        self.well_since = well.then(|| self.stack.clock.now());
    }

    pub(crate) fn after(&mut self, from: f64, to: f64) -> Timestamp {
        let seconds = self.chance.seconds(from, to);
        let pause = jiff::SignedDuration::from_millis((seconds * 1000.0) as i64);
        self.stack
            .clock
            .now()
            .saturating_add(pause)
            .unwrap_or(Timestamp::MAX)
    }

    // ---- what happens ---------------------------------------------------------------------------------------------

    async fn run(&mut self, busy: Duration) -> Result<(), Box<Failure>> {
        let start = self.stack.clock.now();
        // Some days are eventful; most let what was begun come to its end.
        let hours = self.chance.one([1.0, 2.0, 4.0, 4.0, 8.0, 8.0, 8.0, 8.0]);
        let longest = busy.as_secs_f64().min(hours * 3600.0);
        while self.stack.clock.since(start) < busy {
            let pause = self.chance.seconds(2.0, longest);
            self.pass(pause).await;
            self.step += 1;
            self.something_happens().await;
            self.check().await?;
        }
        // Whatever chance has brought: this once at least.
        self.loses_lease().await;
        self.check().await?;
        rest::comes_to_rest(self).await
    }

    /// Lets time go on; what ends meanwhile ends.
    async fn pass(&mut self, seconds: f64) {
        let until = self
            .stack
            .clock
            .now()
            .saturating_add(jiff::SignedDuration::from_millis((seconds * 1000.0) as i64))
            .unwrap_or(Timestamp::MAX);
        loop {
            let ends = [self.faults_until, self.shortage_until, self.next_start()];
            let next = ends.into_iter().flatten().fold(until, Timestamp::min);
            let now = self.stack.clock.now();
            if next > now {
                let wait = next.duration_since(now).unsigned_abs();
                self.wait_or_end(wait).await;
            }
            self.notice_ends();
            let now = self.stack.clock.now();
            if self.faults_until.is_some_and(|at| at <= now) {
                self.stack.testbed.faults().clear();
                self.faults_until = None;
                self.safety.something_happens();
                self.trace.say("> the API server is well again");
                self.is_well();
            }
            if self.shortage_until.is_some_and(|at| at <= now) {
                self.restock();
            }
            self.start_due_replicas();
            if now >= until {
                return;
            }
        }
    }

    /// Ends all shortages of the cloud.
    pub(crate) fn restock(&mut self) {
        self.trace.say("> all capacity again");
        self.stack.cloud.restock();
        self.shortage_until = None;
    }

    /// Ends all trouble, and everything that may keep machines for ever.
    pub(crate) async fn calm(&mut self) {
        self.safety.something_happens();
        self.stack.testbed.faults().clear();
        self.faults_until = None;
        self.restock();
        self.stack.cloud.fail_launches(0);
        self.stack.cloud.never_register(false);
        let machines = self.stack.cloud.machines();
        for node in self.list::<Node>().await {
            let name = node.metadata.name.unwrap_or_default();
            let id = node.spec.and_then(|s| s.provider_id);
            let lives = machines.iter().any(|m| m.answer.status.provider_id == id);
            // The dead stay dead.
            if lives {
                self.stack.node_faults.clear(&name);
            }
            let annotation = json!({annotations::DO_NOT_DISRUPT: Value::Null});
            let api = self.api::<Node>();
            self.patch(api, &name, json!({"metadata": {"annotations": annotation}}))
                .await;
            self.safety.protects_node(&name, false);
        }
        for name in self.names::<PodDisruptionBudget>().await {
            let api = self.namespaced::<PodDisruptionBudget>();
            self.delete(api, &name).await;
        }
        for name in self.names::<Deployment>().await {
            let api = self.namespaced::<Deployment>();
            let annotation = json!({annotations::DO_NOT_DISRUPT: Value::Null});
            let template = json!({"metadata": {"annotations": annotation}});
            self.patch(api, &name, json!({"spec": {"template": template}}))
                .await;
        }
        for name in self.names::<CapacityBuffer>().await {
            let api = self.namespaced::<CapacityBuffer>();
            self.delete(api, &name).await;
        }
        for name in self.names::<NodePool>().await {
            let api = self.api::<NodePool>();
            let mut spec = json!({
                "disruption": {"budgets": [{"nodes": "100%"}]},
                "template": {"spec": {"expireAfter": "Never"}},
            });
            if name != world::STATIC {
                spec["disruption"]["consolidateAfter"] = json!("0s");
                spec["disruption"]["consolidationPolicy"] = json!("WhenEmptyOrUnderutilized");
            }
            self.safety.changes_budgets(&name);
            self.patch(api, &name, json!({"spec": spec})).await;
        }
        // Others drift now; those of a static pool at its limit cannot, and would expire while nothing is to happen.
        for claim in self.list::<NodeClaim>().await {
            let expires = claim.spec.expire_after.value().is_some();
            if expires && claim.node_pool() == Some(world::STATIC) {
                let api = self.api::<NodeClaim>();
                self.delete(api, claim.name()).await;
            }
        }
        self.start_replicas();
        self.is_well();
    }

    /// Takes all work away.
    pub(crate) async fn empty(&self) {
        for name in self.names::<Deployment>().await {
            let api = self.namespaced::<Deployment>();
            self.delete(api, &name).await;
        }
        for name in self.names::<StatefulSet>().await {
            let api = self.namespaced::<StatefulSet>();
            self.delete(api, &name).await;
        }
    }

    // ---- what must hold -------------------------------------------------------------------------------------------

    /// Looks whether everything holds that must hold at any time.
    pub(crate) async fn check(&mut self) -> Result<(), Box<Failure>> {
        let mut problems = self.safety.violations();
        problems.extend(self.safety.hasty_moves());
        problems.extend(crate::panics::taken());
        let claims = self.list::<NodeClaim>().await;
        let now = self.stack.clock.now();
        self.find_orphans(&claims, now, &mut problems);
        let pools = self.list::<NodePool>().await;
        let leftovers = self.safety.leftovers(&claims);
        let beyond = |pool| rest::beyond_limits(pool, &claims, &leftovers);
        problems.extend(pools.iter().filter_map(beyond));
        if problems.is_empty() {
            return Ok(());
        }
        Err(self.failure(problems).await)
    }

    /// Machines without a NodeClaim are found within minutes, once nothing is in the way (invariant I7).
    fn find_orphans(&mut self, claims: &[NodeClaim], now: Timestamp, problems: &mut Vec<String>) {
        const FOUND_WITHIN: i64 = 10 * 60;
        let machines = self.stack.cloud.machines();
        let known = |uid: &str| claims.iter().any(|c| c.uid() == uid);
        let mut orphans = BTreeMap::new();
        for machine in machines.iter().filter(|m| !known(&m.claim_uid)) {
            let id = machine
                .answer
                .status
                .provider_id
                .clone()
                .unwrap_or_default();
            let since = self.orphans.get(&id).copied().unwrap_or(now);
            let waited = self
                .well_since
                .map_or(0, |well| now.duration_since(well.max(since)).as_secs());
            if waited > FOUND_WITHIN {
                problems.push(format!("machine {id} has had no nodeclaim since {since}"));
            }
            orphans.insert(id, since);
        }
        self.orphans = orphans;
    }

    pub(crate) async fn failure(&self, problems: Vec<String>) -> Box<Failure> {
        let mut context = self.trace.all();
        if context.is_empty() {
            context = self.trace.last();
        }
        context.extend(rest::describe(self).await);
        Box::new(Failure {
            seed: self.seed,
            step: self.step,
            at: self.stack.clock.now(),
            problems,
            context,
        })
    }
}
