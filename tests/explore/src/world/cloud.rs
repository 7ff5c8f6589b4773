//! The provider: its instances, and the Nodes that they become.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::labels;
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::VolumeAttachment;
use karpenter_core::lifecycle::after;
use karpenter_core::requirements::Requirements;
use serde_json::json;

use super::World;
use super::tasks::Answer;

/// How long it takes until an instance has a Node.
const BOOT: Duration = Duration::from_secs(40);
/// How long it takes until the Node of a slow kubelet is ready: longer than a nomination protects it.
const SLOW: Duration = Duration::from_secs(120);

/// An instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// When it was launched.
    pub launched: Timestamp,
    /// Whether its termination has begun.
    pub is_terminating: bool,
    /// What its kubelet does: as it should be, [`Answer::Slow`] or [`Answer::Silent`].
    pub kubelet: Answer,
}

impl Instance {
    pub fn launched_at(now: Timestamp) -> Self {
        Self {
            launched: now,
            is_terminating: false,
            kubelet: Answer::Right,
        }
    }

    /// Returns when its kubelet registers a Node.
    pub fn joins(&self) -> Timestamp {
        after(self.launched, BOOT)
    }

    /// Returns from when on its Node may become ready.
    pub fn ready_from(&self) -> Timestamp {
        let starts = if self.kubelet == Answer::Slow {
            SLOW
        } else {
            BOOT
        };
        after(self.launched, starts)
    }
}

/// Returns the provider id of a NodeClaim's instance.
pub fn provider_id(claim: &str) -> String {
    format!("fake:///{claim}")
}

/// Returns the NodeClaim of a provider id.
pub fn claim_of(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or(id)
}

impl World {
    /// Launches the instance of a NodeClaim, once: another request for the same NodeClaim has the same instance. Returns the provider's
    /// answer; `None` if no offering meets the requirements.
    pub fn launch(&mut self, claim: &NodeClaim) -> Option<NodeClaim> {
        let names = &self.model.config().well_known;
        let wanted = Requirements::from_api(&claim.spec.requirements, names).ok()?;
        let accepts = |theirs: &Requirements| wanted.intersects(theirs).is_ok();
        let named = wanted.get(labels::INSTANCE_TYPE);
        let types = self.setting.types.iter();
        let options = types
            .filter(|it| named.is_none_or(|named| named.has(&it.name)) && accepts(&it.requirements))
            .flat_map(|it| it.offerings.iter().map(move |offer| (it, offer)))
            .filter(|(_, offer)| offer.is_launchable() && accepts(&offer.requirements));
        let (chosen, offer) = options.min_by(|a, b| a.1.price.total_cmp(&b.1.price))?;
        let mut answer = claim.clone();
        let mut all = claim.metadata.labels.clone().unwrap_or_default();
        for requirements in [&wanted, &chosen.requirements, &offer.requirements] {
            let singles = requirements.iter();
            all.extend(
                singles.filter_map(|it| Some((it.key().to_owned(), it.single()?.to_owned()))),
            );
        }
        answer.metadata.labels = Some(all);
        answer.status.provider_id = Some(provider_id(claim.name()));
        answer.status.capacity = chosen.capacity.to_quantities();
        answer.status.allocatable = chosen.allocatable().to_quantities();
        let instances = self.instances.entry(claim.name().to_owned());
        instances.or_insert(Instance::launched_at(self.now));
        Some(answer)
    }

    /// Asks for the termination of an instance; returns whether there is none.
    pub fn terminate(&mut self, id: &str) -> bool {
        match self.instances.get_mut(claim_of(id)) {
            Some(instance) => {
                instance.is_terminating = true;
                false
            }
            None => true,
        }
    }

    /// Lets the kubelet of an instance register its Node, which is not ready yet.
    pub fn join(&mut self, name: &str) {
        let Some(claim) = self.api.claim(name) else {
            return;
        };
        let node = json!({
            "metadata": {
                "name": name, "uid": format!("node/{name}"), "labels": {labels::HOSTNAME: name},
                "creationTimestamp": Time(self.now),
            },
            "spec": {"providerID": provider_id(name), "taints": [labels::taints::unregistered()]},
            "status": {
                "capacity": claim.status.capacity, "allocatable": claim.status.allocatable,
                "conditions": [{"type": "Ready", "status": "False"}],
            },
        });
        let node: Node = serde_json::from_value(node).unwrap_or_default();
        self.put(node);
    }

    /// Attaches a volume to a Node.
    pub fn attach(&mut self, node: &str) {
        let attachment = VolumeAttachment {
            name: node.to_owned(),
            node: node.to_owned(),
            volume: Some("data".to_owned()),
        };
        self.change_model(|cluster| cluster.insert_volume_attachment(attachment));
    }

    /// Ends an instance: its Node is not ready any more.
    pub fn instance_gone(&mut self, name: &str) {
        self.instances.remove(name);
        self.change_model(|cluster| drop(cluster.remove_volume_attachment(name)));
        self.set_ready(name, "Unknown");
    }

    /// Sets the condition Ready of a Node.
    pub fn set_ready(&mut self, name: &str, status: &str) {
        self.change::<Node>(name, |node| {
            let conditions = node.status.iter_mut().flat_map(|it| &mut it.conditions);
            conditions
                .flatten()
                .for_each(|it| it.status = status.to_owned());
        });
    }
}
