//! One simulated day: random disturbances, then none, and the cluster must converge.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use karpenter_api::autoscaling::CapacityBuffer;
use karpenter_api::labels::annotations;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_kwok::KWOKNodeClass;
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
    /// Number of instances launched.
    pub launched: u64,
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

impl Failure {
    /// Returns a failure before the first step.
    pub(crate) fn before(seed: u64, problem: String) -> Box<Self> {
        Box::new(Self {
            seed,
            step: 0,
            at: world::epoch(),
            problems: vec![problem],
            context: Vec::new(),
        })
    }
}

/// A kind of object.
pub(crate) trait Kind:
    Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned
{
    fn api(client: &Client) -> Api<Self>;
}

macro_rules! kinds {
    ($($api:ident: $($kind:ident)*;)*) => {$($(
        impl Kind for $kind {
            fn api(client: &Client) -> Api<Self> {
                $api(client.clone())
            }
        }
    )*)*};
}

fn namespaced<K>(client: Client) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
{
    Api::namespaced(client, "default")
}

fn cluster<K: Resource<DynamicType = ()>>(client: Client) -> Api<K> {
    Api::all(client)
}

kinds! {
    namespaced: CapacityBuffer DaemonSet Deployment PodDisruptionBudget StatefulSet Lease;
    cluster: KWOKNodeClass Node NodeClaim NodeOverlay NodePool Pod StorageClass;
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
    /// When the faults of the API server end.
    pub(crate) faults_until: Option<Timestamp>,
    /// When the shortages of the cloud end.
    pub(crate) shortage_until: Option<Timestamp>,
    pub(crate) generation: u64,
    pub(crate) serial: u64,
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
    let Simulation { cluster, trace, .. } = simulation;
    let report = Report {
        launched: cluster.cloud.launched(),
        trace: if settings.keep_trace {
            trace.lines()
        } else {
            Vec::new()
        },
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
        let failed = |error| Failure::before(seed, format!("cannot start: {error}"));
        let cluster = cluster.map_err(failed)?;
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
            faults_until: None,
            shortage_until: None,
            generation: 0,
            serial: 0,
        };
        simulation.create_initial_objects().await;
        simulation.start_replicas();
        Ok(simulation)
    }

    async fn create_initial_objects(&mut self) {
        let class = serde_json::to_value(KWOKNodeClass::new("default", Default::default()));
        self.create::<KWOKNodeClass>(class.unwrap_or_default())
            .await;
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
            self.create::<NodePool>(pool).await;
        }
        if self.chance.happens(0.5) {
            self.create::<DaemonSet>(world::daemon_set()).await;
        }
        self.create::<StorageClass>(world::storage_class()).await;
        for _ in 0..self.chance.between(1, 4) {
            self.new_deployment().await;
        }
    }

    // ---- the cluster's objects ------------------------------------------------------------------------------------

    pub(crate) async fn list<K: Kind>(&self) -> Vec<K> {
        let listed = K::api(&self.client).list(&ListParams::default()).await;
        listed.map(|l| l.items).unwrap_or_default()
    }

    pub(crate) async fn create<K: Kind>(&self, value: Value) {
        let kind = K::kind(&());
        let created = match serde_json::from_value::<K>(value) {
            Ok(object) => {
                let api = K::api(&self.client);
                api.create(&PostParams::default(), &object).await
            }
            Err(error) => Err(kube::Error::SerdeError(error)),
        };
        match created {
            Ok(object) => {
                let name = object.meta().name.as_deref().unwrap_or_default();
                self.trace.add(&format!("> created {kind} {name}"));
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => self
                .safety
                .violated(format!("cannot create {kind}: {error}")),
        }
    }

    pub(crate) async fn patch<K: Kind>(&self, name: &str, patch: Value) {
        let kind = K::kind(&());
        self.trace.add(&format!("> patched {kind} {name} {patch}"));
        let (api, params) = (K::api(&self.client), PatchParams::default());
        match api.patch(name, &params, &Patch::Merge(patch)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => self
                .safety
                .violated(format!("cannot patch {name}: {error}")),
        }
    }

    pub(crate) async fn delete<K: Kind>(&self, name: &str) {
        self.trace
            .add(&format!("> deleted {} {name}", K::kind(&())));
        let params = DeleteParams::default();
        // The object may be deleted already.
        let _ = K::api(&self.client).delete(name, &params).await;
    }

    pub(crate) async fn new_deployment(&mut self) {
        self.serial += 1;
        let name = format!("web{}", self.serial);
        let deployment = world::deployment(&mut self.chance, &name);
        self.create::<Deployment>(deployment).await;
        if self.chance.happens(0.4) {
            let pdb = world::pdb(&mut self.chance, &name);
            self.create::<PodDisruptionBudget>(pdb).await;
        }
    }

    pub(crate) async fn names<K: Kind>(&self) -> Vec<String> {
        let all = self.list::<K>().await;
        all.iter().filter_map(|o| o.meta().name.clone()).collect()
    }

    pub(crate) async fn any<K: Kind>(&mut self) -> Option<String> {
        let names = self.names::<K>().await;
        self.chance.of(&names)
    }

    pub(crate) fn after(&mut self, from: f64, to: f64) -> Timestamp {
        let seconds = self.chance.seconds(from, to);
        self.in_seconds(seconds)
    }

    fn in_seconds(&self, seconds: f64) -> Timestamp {
        let pause = jiff::SignedDuration::from_millis((seconds * 1000.0) as i64);
        let at = self.cluster.clock.now().saturating_add(pause);
        at.unwrap_or(Timestamp::MAX)
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
        let until = self.in_seconds(seconds);
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
                self.trace.add("> API server faults end");
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
        }
        self.delete_all::<PodDisruptionBudget>().await;
        self.delete_all::<CapacityBuffer>().await;
        for name in self.names::<Deployment>().await {
            let annotation = json!({annotations::DO_NOT_DISRUPT: Value::Null});
            let template = json!({"metadata": {"annotations": annotation}});
            self.patch::<Deployment>(&name, json!({"spec": {"template": template}}))
                .await;
        }
        for name in self.names::<NodePool>().await {
            let mut spec = json!({
                "disruption": {"budgets": [{"nodes": "100%"}]},
                "template": {"spec": {"expireAfter": "Never"}},
            });
            if name != world::STATIC {
                spec["disruption"]["consolidateAfter"] = json!("0s");
                spec["disruption"]["consolidationPolicy"] = json!("WhenEmptyOrUnderutilized");
            }
            self.patch::<NodePool>(&name, json!({"spec": spec})).await;
        }
        // Other NodeClaims drift now; those of a static NodePool at its limit cannot, and would expire during the quiet phase.
        for claim in self.list::<NodeClaim>().await {
            let expires = claim.spec.expire_after.value().is_some();
            if expires && claim.node_pool() == Some(world::STATIC) {
                self.delete::<NodeClaim>(claim.name()).await;
            }
        }
        self.start_replicas();
    }

    pub(crate) async fn delete_all<K: Kind>(&self) {
        for name in self.names::<K>().await {
            self.delete::<K>(&name).await;
        }
    }

    // ---- invariants -------------------------------------------------------------------------------------------

    /// Checks the invariants that hold at any time.
    pub(crate) async fn check(&mut self) -> Result<(), Box<Failure>> {
        let mut problems = self.safety.violations();
        problems.extend(crate::panics::taken());
        if problems.is_empty() {
            return Ok(());
        }
        Err(self.failure(problems).await)
    }

    pub(crate) async fn failure(&self, problems: Vec<String>) -> Box<Failure> {
        let mut context = self.trace.lines();
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
