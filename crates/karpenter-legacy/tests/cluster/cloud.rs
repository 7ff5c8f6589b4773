//! A cloud provider with EC2NodeClass and one instance type.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::labels;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_aws::api::{EC2NodeClass, labels as aws, well_known};
use karpenter_core::fake::{instance_type, offering};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::provider::{CloudProvider, CloudProviderError, NodeClassKind, ProviderProfile};
use karpenter_core::requirements::Requirement;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::json;

const ZONE: &str = "us-west-2a";

pub struct Cloud {
    client: Client,
    profile: ProviderProfile,
    types: Arc<[InstanceType]>,
    instances: Mutex<BTreeMap<String, NodeClaim>>,
}

impl Cloud {
    pub fn new(client: Client) -> Self {
        let xlarge = instance_type("m5.xlarge")
            .cpu(4)
            .gib(16)
            .pods(58)
            .offerings(vec![offering("on-demand", ZONE, 0.2)])
            .requires(Requirement::equal(aws::INSTANCE_CATEGORY, "m"))
            .requires(Requirement::equal(aws::INSTANCE_GENERATION, "5"))
            .requires(Requirement::equal(aws::INSTANCE_SIZE, "xlarge"));
        Self {
            client,
            profile: ProviderProfile::new("test", [NodeClassKind::of::<EC2NodeClass>()])
                .with_well_known(well_known()),
            types: vec![xlarge.build()].into(),
            instances: Mutex::default(),
        }
    }
}

#[async_trait]
impl CloudProvider for Cloud {
    fn profile(&self) -> &ProviderProfile {
        &self.profile
    }

    async fn create(&self, claim: &NodeClaim) -> Result<NodeClaim, CloudProviderError> {
        let mut answer = claim.clone();
        let id = format!("test:///{}", claim.name());
        let of_instance = [
            (labels::INSTANCE_TYPE, "m5.xlarge"),
            (labels::ZONE, ZONE),
            (labels::CAPACITY_TYPE, "on-demand"),
            (labels::ARCH, "amd64"),
            (labels::OS, "linux"),
        ];
        let labels = answer.metadata.labels.get_or_insert_default();
        labels.extend(of_instance.map(|(k, v)| (k.to_owned(), v.to_owned())));
        answer.status.provider_id = Some(id.clone());
        answer.status.capacity = self.types[0].capacity.to_quantities();
        answer.status.allocatable = answer.status.capacity.clone();
        // The kubelet sets its host name; all other labels come from the NodeClaim.
        let node: Node = serde_json::from_value(json!({
            "metadata": {
                "name": claim.name(),
                "labels": { "kubernetes.io/hostname": claim.name(), "kwok.x-k8s.io/node": "fake" },
                "annotations": { "kwok.x-k8s.io/node": "fake" },
            },
            "spec": {
                "providerID": id,
                "taints": [{ "key": "karpenter.sh/unregistered", "effect": "NoExecute" }],
            },
            "status": { "capacity": answer.status.capacity, "allocatable": answer.status.capacity },
        }))
        .unwrap();
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.create(&PostParams::default(), &node).await.unwrap();
        self.instances.lock().insert(id, answer.clone());
        Ok(answer)
    }

    async fn delete(&self, claim: &NodeClaim) -> Result<(), CloudProviderError> {
        let id = claim.status.provider_id.clone().unwrap_or_default();
        self.instances.lock().remove(&id);
        let nodes: Api<Node> = Api::all(self.client.clone());
        // The node may already be deleted.
        let _ = nodes.delete(claim.name(), &DeleteParams::default()).await;
        Err(CloudProviderError::NodeClaimNotFound(id))
    }

    async fn get(&self, id: &str) -> Result<NodeClaim, CloudProviderError> {
        let instances = self.instances.lock();
        let found = instances.get(id).cloned();
        found.ok_or_else(|| CloudProviderError::NodeClaimNotFound(id.to_owned()))
    }

    async fn list(&self) -> Result<Vec<Arc<NodeClaim>>, CloudProviderError> {
        let instances = self.instances.lock();
        Ok(instances.values().cloned().map(Arc::new).collect())
    }

    async fn instance_types(
        &self,
        _: &NodePool,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError> {
        Ok(Arc::clone(&self.types))
    }

    async fn is_drifted(&self, _: &NodeClaim) -> Result<Option<String>, CloudProviderError> {
        Ok(None)
    }
}
