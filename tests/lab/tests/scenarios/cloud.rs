//! A cloud provider whose answers a scenario sets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use karpenter_api::v1::{NodeClaim, NodeClaimSpec, NodePool};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::provider::{
    CloudProvider, CloudProviderError, HookOutcome, ProviderProfile, RegistrationHook,
};
use karpenter_kube::clock::Clock;
use parking_lot::Mutex;

use crate::world::World;

/// A registration hook whose answer a scenario sets.
pub struct Hook {
    name: &'static str,
    answer: Mutex<Result<HookOutcome, String>>,
}

impl Hook {
    pub fn new(name: &'static str, answer: Result<HookOutcome, &str>) -> Arc<Self> {
        let answer = Mutex::new(answer.map_err(str::to_owned));
        Arc::new(Self { name, answer })
    }

    pub fn waiting(name: &'static str) -> Arc<Self> {
        Self::new(name, Ok(HookOutcome::Wait(SignedDuration::from_secs(5))))
    }

    pub fn answer(&self, answer: HookOutcome) {
        *self.answer.lock() = Ok(answer);
    }
}

#[async_trait]
impl RegistrationHook for Hook {
    fn name(&self) -> &str {
        self.name
    }

    async fn registered(&self, _: &NodeClaim) -> Result<HookOutcome, CloudProviderError> {
        let answer = self.answer.lock().clone();
        answer.map_err(CloudProviderError::other)
    }
}

/// A recorded call to the cloud.
#[derive(Debug, Clone)]
pub struct Call {
    pub at: Timestamp,
    pub method: &'static str,
    pub claim: NodeClaim,
}

/// The simulated cloud with registration hooks, scripted answers to deletions, and a record of its calls.
pub struct Scripted {
    inner: Arc<dyn CloudProvider>,
    clock: Clock,
    pub hooks: Vec<Arc<Hook>>,
    profile: ProviderProfile,
    /// Answers returned before the cloud itself is called.
    pub deletions: Mutex<VecDeque<Result<(), CloudProviderError>>>,
    /// Errors that launches are answered with before the cloud itself is asked.
    pub creations: Mutex<VecDeque<CloudProviderError>>,
    /// Why instances count as drifted; an empty reason stands for instances that the cloud does not find.
    pub drift: Mutex<Option<String>>,
    /// NodePools for which NodeOverlays count as not evaluated.
    pub unevaluated: Mutex<Vec<String>>,
    /// The error that requests about one instance are answered with.
    pub unknown: Mutex<Option<&'static str>>,
    /// The error that requests for instance types are answered with.
    pub unlisted: Mutex<Option<&'static str>>,
    /// Whether launches are executed but answered with an error.
    pub loses_launches: AtomicBool,
    lists: AtomicUsize,
    calls: Mutex<Vec<Call>>,
}

impl Scripted {
    /// Restarts the world's controllers with such a cloud.
    pub async fn in_world(world: &mut World, hooks: Vec<Arc<Hook>>) -> Arc<Self> {
        Self::with_profile(world, hooks, |profile| profile).await
    }

    /// Restarts the world's controllers with such a cloud that has another profile.
    pub async fn with_profile(
        world: &mut World,
        hooks: Vec<Arc<Hook>>,
        change: impl FnOnce(ProviderProfile) -> ProviderProfile,
    ) -> Arc<Self> {
        world.cluster.stop_controllers().await;
        let (clock, client) = (world.cluster.clock, world.cluster.testbed.client());
        let mut made = None;
        world.cluster.start_controllers_with(client, |inner| {
            let scripted = Arc::new(Self {
                profile: change(inner.profile().clone()),
                inner,
                clock,
                hooks,
                deletions: Mutex::default(),
                creations: Mutex::default(),
                drift: Mutex::default(),
                unevaluated: Mutex::default(),
                unknown: Mutex::default(),
                unlisted: Mutex::default(),
                loses_launches: AtomicBool::default(),
                lists: AtomicUsize::default(),
                calls: Mutex::default(),
            });
            made = Some(Arc::clone(&scripted));
            scripted
        });
        made.unwrap()
    }

    fn note(&self, method: &'static str, claim: &NodeClaim) {
        let (at, claim) = (self.clock.now(), claim.clone());
        self.calls.lock().push(Call { at, method, claim });
    }

    /// Advances the world until the instances were listed this many more times.
    pub async fn listed(&self, world: &World, times: usize) {
        let wanted = self.lists.load(Ordering::Relaxed) + times;
        until!(world, 300, "instances are listed", |_| {
            self.lists.load(Ordering::Relaxed) >= wanted
        });
        // The effects of the last list.
        world.pass(1).await;
    }

    /// Returns the calls of a method so far.
    pub fn calls(&self, method: &str) -> Vec<Call> {
        let mut calls = self.calls.lock().clone();
        calls.retain(|call| call.method == method);
        calls
    }

    /// Returns the seconds between the calls of a method so far.
    pub fn gaps(&self, method: &str) -> Vec<f64> {
        let calls = self.calls(method);
        let gap = |pair: &[Call]| pair[1].at.duration_since(pair[0].at).as_secs_f64();
        calls.windows(2).map(gap).collect()
    }
}

#[async_trait]
impl CloudProvider for Scripted {
    fn profile(&self) -> &ProviderProfile {
        &self.profile
    }
    fn registration_hooks(&self) -> Vec<Arc<dyn RegistrationHook>> {
        let hooks = self.hooks.iter().map(Arc::clone);
        hooks
            .map(|hook| hook as Arc<dyn RegistrationHook>)
            .collect()
    }
    async fn create(&self, claim: &NodeClaim) -> Result<NodeClaim, CloudProviderError> {
        self.note("create", claim);
        let scripted = self.creations.lock().pop_front();
        if let Some(error) = scripted {
            return Err(error);
        }
        let launched = self.inner.create(claim).await;
        if self.loses_launches.load(Ordering::Relaxed) {
            return Err(CloudProviderError::other("the answer was lost"));
        }
        launched
    }
    async fn delete(&self, claim: &NodeClaim) -> Result<(), CloudProviderError> {
        self.note("delete", claim);
        let scripted = self.deletions.lock().pop_front();
        match scripted {
            Some(answer) => answer,
            None => self.inner.delete(claim).await,
        }
    }
    async fn get(&self, provider_id: &str) -> Result<NodeClaim, CloudProviderError> {
        if let Some(error) = *self.unknown.lock() {
            return Err(CloudProviderError::other(error));
        }
        self.inner.get(provider_id).await
    }
    async fn list(&self) -> Result<Vec<Arc<NodeClaim>>, CloudProviderError> {
        self.note("list", &NodeClaim::new("", NodeClaimSpec::default()));
        self.lists.fetch_add(1, Ordering::Relaxed);
        self.inner.list().await
    }
    async fn instance_types(
        &self,
        pool: &NodePool,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError> {
        let name = pool.name().to_owned();
        if self.unevaluated.lock().contains(&name) {
            return Err(CloudProviderError::UnevaluatedNodePool(name));
        }
        if let Some(error) = *self.unlisted.lock() {
            return Err(CloudProviderError::other(error));
        }
        self.inner.instance_types(pool).await
    }
    async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<String>, CloudProviderError> {
        if let Some(error) = *self.unknown.lock() {
            return Err(CloudProviderError::other(error));
        }
        let scripted = self.drift.lock().clone();
        match scripted {
            Some(reason) if reason.is_empty() => {
                Err(CloudProviderError::NodeClaimNotFound("gone".into()))
            }
            Some(reason) => Ok(Some(reason)),
            None => self.inner.is_drifted(claim).await,
        }
    }
}
