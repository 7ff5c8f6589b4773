//! One simulated day: random disturbances, then none, and the cluster must converge.

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
use karpenter_lab::local_cluster::LocalCluster;
use karpenter_lab::progress::describe;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::chance::Chance;
use crate::place::Place;
use crate::safety::Safety;
use crate::wire::Trace;
use crate::{convergence, world};

/// Parameters of a simulation.
#[derive(Debug, Clone)]
pub struct SimulationSettings {
    /// How long disturbances go on.
    pub busy: Duration,
    /// Whether every line of the trace is kept.
    pub keep_trace: bool,
    /// Whether two replicas compete for the lease; random unless given.
    pub elects: Option<bool>,
    /// Whether the controllers keep records of their decisions (feature gate `DecisionRecords`).
    pub decision_records: bool,
}

impl Default for SimulationSettings {
    /// Returns the settings of a simulated day.
    fn default() -> Self {
        Self {
            busy: Duration::from_secs(24 * 3600),
            keep_trace: false,
            elects: None,
            decision_records: true,
        }
    }
}

/// Result of a simulation without violations.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// A hash of all actions of the controllers, and the number of their writes.
    pub digest: (u64, u64),
    /// Number of instances launched.
    pub launched: u64,
    pub steps: u64,
    /// Number of starts of the controllers.
    pub starts: u64,
    /// Every line of the trace, if it is kept.
    pub trace: Vec<String>,
    /// The metrics of the replicas that run at the end.
    pub metrics: String,
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("seed {seed}, step {step}, {at}: {}", .problems.join("; "))]
pub struct Failure {
    /// Seed of the simulation.
    pub seed: u64,
    /// Step after which it was found.
    pub step: u64,
    /// Time in the simulated cluster.
    pub at: Timestamp,
    pub problems: Vec<String>,
    /// The latest lines of the trace, and the state of the cluster.
    pub context: Vec<String>,
}

pub struct Simulation {
    pub(crate) seed: u64,
    pub(crate) step: u64,
    pub(crate) cluster: LocalCluster,
    pub(crate) client: Client,
    pub(crate) trace: Trace,
    pub(crate) safety: Arc<Safety>,
    pub(crate) chance: Chance,
    pub(crate) replicas: Vec<Place>,
    pub(crate) starts: u64,
    /// Since when the controllers run without faults.
    healthy_since: Option<Timestamp>,
    /// When the faults of the API server end.
    pub(crate) faults_until: Option<Timestamp>,
    /// When the shortages of the cloud end.
    pub(crate) shortage_until: Option<Timestamp>,
    /// Since when instances have had no NodeClaim.
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

/// Runs a simulation. Call it on a runtime with one thread and paused time.
///
/// # Errors
/// When an invariant is violated.
pub async fn simulate(seed: u64, settings: &SimulationSettings) -> Result<Report, Box<Failure>> {
    let mut simulation = Simulation::start(seed, settings).await?;
    let result = simulation.run(settings.busy).await;
    let metrics = simulation.metrics();
    simulation.stop_replicas().await;
    let Simulation {
        cluster,
        trace,
        step,
        starts,
        ..
    } = simulation;
    let report = Report {
        digest: trace.digest(),
        launched: cluster.cloud.launched(),
        steps: step,
        starts,
        trace: trace.all(),
        metrics,
    };
    cluster.shutdown().await;
    result.map(|()| report)
}

impl Simulation {
    async fn start(seed: u64, settings: &SimulationSettings) -> Result<Self, Box<Failure>> {
        let mut chance = Chance::new(seed);
        let mut cluster_settings = world::settings(&mut chance, seed, settings.elects);
        let gates = &mut cluster_settings.options.feature_gates;
        gates.decision_records = settings.decision_records;
        let replicas = match cluster_settings.options.disable_leader_election {
            true => 1,
            false => 2,
        };
        let cluster = LocalCluster::without_controllers(cluster_settings).await;
        let cluster = cluster.map_err(|error| {
            Box::new(Failure {
                seed,
                step: 0,
                at: world::epoch(),
                problems: vec![format!("cannot start the cluster: {error}")],
                context: Vec::new(),
            })
        })?;
        let (client, clock) = (cluster.client(), cluster.clock);
        let mut simulation = Self {
            seed,
            step: 0,
            trace: Trace::new(clock, settings.keep_trace),
            safety: Arc::new(Safety::new(client.clone(), clock)),
            client,
            cluster,
            chance,
            replicas: Place::some(replicas),
            starts: 0,
            healthy_since: None,
            faults_until: None,
            shortage_until: None,
            orphans: BTreeMap::new(),
            generation: 0,
            serial: 0,
        };
        simulation.create_initial_objects().await;
        simulation.start_replicas();
        Ok(simulation)
    }

    async fn create_initial_objects(&mut self) {
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
            None => self.trace.add(&format!("> created {kind} {name}")),
            Some(kube::Error::Api(status)) if status.is_already_exists() => {}
            Some(error) => self
                .safety
                .violated(format!("cannot create {kind} {name}: {error}")),
        }
    }

    pub(crate) async fn create_value<K>(&self, value: Value)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Serialize + Clone + std::fmt::Debug,
    {
        match serde_json::from_value::<K>(value) {
            Ok(object) => self.create(&object).await,
            Err(error) => self
                .safety
                .violated(format!("cannot parse the object: {error}")),
        }
    }

    pub(crate) async fn patch<K>(&self, api: Api<K>, name: &str, patch: Value)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        self.trace
            .add(&format!("> patched {} {name} {patch}", K::kind(&())));
        let patched = api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        match patched {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => self
                .safety
                .violated(format!("cannot patch {name}: {error}")),
        }
    }

    pub(crate) async fn delete<K>(&self, api: Api<K>, name: &str)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        self.trace
            .add(&format!("> deleted {} {name}", K::kind(&())));
        // The object may be deleted already.
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

    pub(crate) fn update_health(&mut self) {
        let healthy = self.faults_until.is_none() && self.all_replicas_are_up();
        self.healthy_since = healthy.then(|| self.cluster.clock.now());
    }

    pub(crate) fn after(&mut self, from: f64, to: f64) -> Timestamp {
        let seconds = self.chance.seconds(from, to);
        let pause = jiff::SignedDuration::from_millis((seconds * 1000.0) as i64);
        self.cluster
            .clock
            .now()
            .saturating_add(pause)
            .unwrap_or(Timestamp::MAX)
    }

    // ---- disturbances ---------------------------------------------------------------------------------------------

    async fn run(&mut self, busy: Duration) -> Result<(), Box<Failure>> {
        let start = self.cluster.clock.now();
        // Some days are eventful; on most, actions have time to complete.
        let hours = self.chance.one([1.0, 2.0, 4.0, 4.0, 8.0, 8.0, 8.0, 8.0]);
        let longest = busy.as_secs_f64().min(hours * 3600.0);
        while self.cluster.clock.since(start) < busy {
            let pause = self.chance.seconds(2.0, longest);
            self.advance(pause).await;
            self.step += 1;
            self.disturb().await;
            self.check().await?;
        }
        // Every simulation has this disturbance once at least.
        self.loses_lease().await;
        self.check().await?;
        convergence::converges(self).await
    }

    /// Advances time; ends faults and shortages that are due.
    async fn advance(&mut self, seconds: f64) {
        let until = self
            .cluster
            .clock
            .now()
            .saturating_add(jiff::SignedDuration::from_millis((seconds * 1000.0) as i64))
            .unwrap_or(Timestamp::MAX);
        loop {
            let ends = [self.faults_until, self.shortage_until, self.next_start()];
            let next = ends.into_iter().flatten().fold(until, Timestamp::min);
            let now = self.cluster.clock.now();
            if next > now {
                let wait = next.duration_since(now).unsigned_abs();
                self.wait_or_end(wait).await;
            }
            self.notice_ends();
            let now = self.cluster.clock.now();
            if self.faults_until.is_some_and(|at| at <= now) {
                self.cluster.testbed.faults().clear();
                self.faults_until = None;
                self.safety.disturbed();
                self.trace.add("> API server faults end");
                self.update_health();
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
        self.trace.add("> capacity restored");
        self.cluster.cloud.restock();
        self.shortage_until = None;
    }

    /// Ends all disturbances, and removes everything that may block disruption forever.
    pub(crate) async fn calm(&mut self) {
        self.safety.disturbed();
        self.cluster.testbed.faults().clear();
        self.faults_until = None;
        self.restock();
        self.cluster.cloud.fail_launches(0);
        self.cluster.cloud.never_register(false);
        let instances = self.cluster.cloud.instances();
        for node in self.list::<Node>().await {
            let name = node.metadata.name.unwrap_or_default();
            let id = node.spec.and_then(|s| s.provider_id);
            let lives = instances.iter().any(|m| m.answer.status.provider_id == id);
            // The Node of a terminated instance does not recover.
            if lives {
                self.cluster.node_faults.clear(&name);
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
        // Other NodeClaims drift now; those of a static NodePool at its limit cannot, and would expire during the quiet phase.
        for claim in self.list::<NodeClaim>().await {
            let expires = claim.spec.expire_after.value().is_some();
            if expires && claim.node_pool() == Some(world::STATIC) {
                let api = self.api::<NodeClaim>();
                self.delete(api, claim.name()).await;
            }
        }
        self.start_replicas();
        self.update_health();
    }

    pub(crate) async fn delete_workloads(&self) {
        for name in self.names::<Deployment>().await {
            let api = self.namespaced::<Deployment>();
            self.delete(api, &name).await;
        }
        for name in self.names::<StatefulSet>().await {
            let api = self.namespaced::<StatefulSet>();
            self.delete(api, &name).await;
        }
    }

    // ---- invariants -------------------------------------------------------------------------------------------

    /// Checks the invariants that hold at any time.
    pub(crate) async fn check(&mut self) -> Result<(), Box<Failure>> {
        let mut problems = self.safety.violations();
        problems.extend(self.safety.undone_moves());
        problems.extend(crate::panics::taken());
        let claims = self.list::<NodeClaim>().await;
        let now = self.cluster.clock.now();
        self.find_orphans(&claims, now, &mut problems);
        let pools = self.list::<NodePool>().await;
        let leftovers = self.safety.leftovers(&claims);
        let beyond = |pool| convergence::beyond_limits(pool, &claims, &leftovers);
        problems.extend(pools.iter().filter_map(beyond));
        if problems.is_empty() {
            return Ok(());
        }
        Err(self.failure(problems).await)
    }

    /// Checks that instances without a NodeClaim are found within minutes, once no fault delays it (invariant I7).
    fn find_orphans(&mut self, claims: &[NodeClaim], now: Timestamp, problems: &mut Vec<String>) {
        const FOUND_WITHIN: i64 = 10 * 60;
        let instances = self.cluster.cloud.instances();
        let known = |uid: &str| claims.iter().any(|c| c.uid() == uid);
        let mut orphans = BTreeMap::new();
        for instance in instances.iter().filter(|m| !known(&m.claim_uid)) {
            let id = instance
                .answer
                .status
                .provider_id
                .clone()
                .unwrap_or_default();
            let since = self.orphans.get(&id).copied().unwrap_or(now);
            let waited = self.healthy_since.map_or(0, |healthy| {
                now.duration_since(healthy.max(since)).as_secs()
            });
            if waited > FOUND_WITHIN {
                problems.push(format!("instance {id} has had no nodeclaim since {since}"));
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
        context.extend(describe(&self.client).await.unwrap_or_default());
        Box::new(Failure {
            seed: self.seed,
            step: self.step,
            at: self.cluster.clock.now(),
            problems,
            context,
        })
    }
}
