//! A fake cloud provider: keeps instances in memory, and fails on request.
//!
//! UPSTREAM: pkg/cloudprovider/fake/cloudprovider.go

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use jiff::SignedDuration;
use karpenter_api::labels;
use karpenter_api::v1::{NodeClaim, NodePool};

use super::{catalogue, well_known};
use crate::instance_type::InstanceType;
use crate::offering::Offering;
use crate::provider::{CloudProvider, CloudProviderError, ProviderProfile, RepairPolicy};
use crate::requirements::Requirements;
use crate::resources::Resources;

/// A cloud in memory.
#[derive(Debug)]
pub struct FakeCloud {
    profile: ProviderProfile,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    types: Arc<[InstanceType]>,
    instances: BTreeMap<String, NodeClaim>,
    failures: VecDeque<CloudProviderError>,
    launched: u64,
}

impl Default for FakeCloud {
    fn default() -> Self {
        Self::new(catalogue())
    }
}

fn profile() -> ProviderProfile {
    ProviderProfile::new("fake", [super::node_class_kind()])
        .with_well_known(well_known())
        .with_reservation_id_label(super::RESERVATION_ID)
        .with_repair_policies([RepairPolicy {
            condition_type: "BadNode".into(),
            condition_status: "False".into(),
            toleration: SignedDuration::from_mins(30),
        }])
}

impl FakeCloud {
    /// Creates a cloud without instances that offers these instance types.
    pub fn new(types: Arc<[InstanceType]>) -> Self {
        Self {
            profile: profile(),
            state: Mutex::new(State {
                types,
                instances: BTreeMap::new(),
                failures: VecDeque::new(),
                launched: 0,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next call that reaches the cloud fail with `error`; n calls of this method make the next n calls fail, in order.
    pub fn fail(&self, error: CloudProviderError) {
        self.lock().failures.push_back(error);
    }
}

impl State {
    fn fails(&mut self) -> Result<(), CloudProviderError> {
        self.failures.pop_front().map_or(Ok(()), Err)
    }

    /// Chooses the cheapest instance type that fits the claim, and its offering: a reserved one if there is one, else the
    /// cheapest. A reserved offering has one instance less afterwards.
    fn launch(
        &mut self,
        wanted: &Requirements,
        requests: &Resources,
    ) -> Option<(InstanceType, Offering)> {
        let accepts = |theirs: &Requirements| wanted.intersects(theirs).is_ok();
        let fits = |instance_type: &InstanceType| {
            let room = instance_type.allocatable();
            accepts(&instance_type.requirements)
                && requests
                    .iter()
                    .all(|(name, amount)| amount <= room.get(name))
        };
        let mut types = self.types.to_vec();
        let mut options: Vec<(f64, usize, usize)> = Vec::new();
        for (at, instance_type) in types.iter().enumerate().filter(|(_, t)| fits(t)) {
            let offered = instance_type.offerings.iter().enumerate();
            let offered = offered.filter(|(_, o)| o.available && accepts(&o.requirements));
            options.extend(offered.map(|(offering, o)| (o.price, at, offering)));
        }
        options.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        let (_, at, cheapest) = *options.first()?;
        let reserved = |offering: usize| {
            let offering = &types[at].offerings[offering];
            offering.capacity_type() == Some(labels::CAPACITY_TYPE_RESERVED)
        };
        let mut own = options.iter().filter(|(_, of, _)| *of == at);
        let chosen = own
            .find(|(_, _, o)| reserved(*o))
            .map_or(cheapest, |(_, _, o)| *o);
        let launched = (types[at].clone(), types[at].offerings[chosen].clone());
        if reserved(chosen) {
            let offering = &mut types[at].offerings[chosen];
            offering.reservation_capacity = offering.reservation_capacity.saturating_sub(1);
            offering.available = offering.reservation_capacity > 0;
            self.types = types.into();
        }
        Some(launched)
    }
}

fn missing(provider_id: &str) -> CloudProviderError {
    CloudProviderError::NodeClaimNotFound(format!("no instance with provider id `{provider_id}`"))
}

#[async_trait]
impl CloudProvider for FakeCloud {
    fn profile(&self) -> &ProviderProfile {
        &self.profile
    }

    async fn create(&self, claim: &NodeClaim) -> Result<NodeClaim, CloudProviderError> {
        let invalid = |error: &dyn std::fmt::Display| CloudProviderError::other(error.to_string());
        let wanted = Requirements::from_api(&claim.spec.requirements, &self.profile.well_known)
            .map_err(|error| invalid(&error))?;
        let requests = Resources::requests_from(&claim.spec.resources.requests)
            .map_err(|error| invalid(&error))?;
        let mut state = self.lock();
        state.fails()?;
        let (instance_type, offering) = state.launch(&wanted, &requests).ok_or_else(|| {
            CloudProviderError::InsufficientCapacity("no instance type fits".into())
        })?;
        let mut answer = claim.clone();
        let own = claim.metadata.labels.clone().unwrap_or_default();
        let known = instance_type
            .requirements
            .iter()
            .chain(offering.requirements.iter());
        let mut all: BTreeMap<String, String> = known
            .filter_map(|r| Some((r.key().to_owned(), r.any()?)))
            .collect();
        all.extend(own);
        answer.metadata.labels = Some(all);
        state.launched += 1;
        let provider_id = format!("fake:///{}", state.launched);
        answer.status.provider_id = Some(provider_id.clone());
        answer.status.capacity = instance_type.capacity.to_quantities();
        answer.status.allocatable = instance_type.allocatable_of(&offering).to_quantities();
        state.instances.insert(provider_id, answer.clone());
        Ok(answer)
    }

    async fn delete(&self, claim: &NodeClaim) -> Result<(), CloudProviderError> {
        let provider_id = claim.status.provider_id.as_deref().unwrap_or_default();
        let mut state = self.lock();
        state.fails()?;
        let removed = state.instances.remove(provider_id);
        removed.map(drop).ok_or_else(|| missing(provider_id))
    }

    async fn get(&self, provider_id: &str) -> Result<NodeClaim, CloudProviderError> {
        let mut state = self.lock();
        state.fails()?;
        let instance = state.instances.get(provider_id).cloned();
        instance.ok_or_else(|| missing(provider_id))
    }

    async fn list(&self) -> Result<Vec<Arc<NodeClaim>>, CloudProviderError> {
        let mut state = self.lock();
        state.fails()?;
        let instances = state.instances.values().cloned();
        Ok(instances.map(Arc::new).collect())
    }

    async fn instance_types(
        &self,
        _: &NodePool,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError> {
        Ok(Arc::clone(&self.lock().types))
    }

    async fn is_drifted(&self, _: &NodeClaim) -> Result<Option<String>, CloudProviderError> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use karpenter_api::v1::NodeClaim;

    use super::super::{instance_type, offering, reserved};
    use super::*;

    /// Polls a future once: no call of the fake cloud waits.
    fn now<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("a call of the fake cloud waits"),
        }
    }

    fn claim(cpu: &str) -> NodeClaim {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "c", "uid": "c", "labels": {"own": "label"}},
            "spec": {"nodeClassRef": {"group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "n"},
                "requirements": [], "resources": {"requests": {"cpu": cpu}}},
        }))
        .unwrap()
    }

    fn cloud() -> FakeCloud {
        let small = instance_type("small")
            .cpu(2)
            .offerings(vec![offering("spot", "z", 1.0), reserved("r", 1, "z", 1.5)]);
        let large = instance_type("large").cpu(8).offerings(vec![
            offering("spot", "z", 4.0),
            offering("on-demand", "z", 5.0),
        ]);
        FakeCloud::new([large, small].map(|t| t.build()).into())
    }

    /// Conformance: API-145
    #[test]
    fn the_cheapest_type_that_fits_is_launched_with_reserved_first() {
        let cloud = cloud();
        let launched = |cpu: &str| {
            let answer = now(cloud.create(&claim(cpu)))?;
            let label = |key: &str| answer.label(key).unwrap_or_default().to_owned();
            assert_eq!(label("own"), "label");
            Ok::<_, CloudProviderError>([
                label(labels::INSTANCE_TYPE),
                label(labels::CAPACITY_TYPE),
            ])
        };
        assert_eq!(launched("1").unwrap(), ["small", "reserved"]);
        assert_eq!(launched("1").unwrap(), ["small", "spot"]);
        assert_eq!(launched("4").unwrap(), ["large", "spot"]);
        assert!(launched("64").unwrap_err().is_insufficient_capacity());
        cloud.fail(CloudProviderError::NodeClassNotReady("no".into()));
        assert!(launched("1").unwrap_err().is_node_class_not_ready());
        assert_eq!(launched("1").unwrap()[0], "small", "failures are used up");
        assert_eq!(now(cloud.list()).unwrap().len(), 4);
    }

    /// Conformance: API-146
    #[test]
    fn an_instance_is_deleted_once_and_a_bad_node_is_tolerated_for_a_while() {
        let cloud = cloud();
        let answer = now(cloud.create(&claim("1"))).unwrap();
        let id = answer.status.provider_id.clone().unwrap();
        assert_eq!(now(cloud.get(&id)).unwrap(), answer);
        assert!(now(cloud.delete(&answer)).is_ok());
        assert!(
            now(cloud.delete(&answer))
                .unwrap_err()
                .is_node_claim_not_found()
        );
        assert!(now(cloud.get(&id)).unwrap_err().is_node_claim_not_found());
        let [policy] = &cloud.profile().repair_policies[..] else {
            panic!("one policy")
        };
        assert_eq!(
            (&*policy.condition_type, &*policy.condition_status),
            ("BadNode", "False")
        );
        assert_eq!(policy.toleration, SignedDuration::from_mins(30));
    }
}
