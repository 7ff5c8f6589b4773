//! The provider's own controllers.

use std::sync::Arc;

use karpenter_api::v1::NodeClaim;
use karpenter_kube::client::patch::{Lock, patch_status};
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Controller, Doing, Next, ObjectKey, Queue, ReconcileError};
use karpenter_kube::model::{Change, View};
use karpenter_kube::operator::ControllerRegistry;
use kube::Api;

use crate::node_class::{GROUP, KWOKNodeClass};
use crate::provider::KwokProvider;

/// Adds the provider's controllers to an operator: `Operator::builder(..).with(|registry| controllers::add(registry, provider))`.
pub fn add(controllers: &mut ControllerRegistry, provider: Arc<KwokProvider>) {
    let cx = Arc::clone(controllers.context());
    controllers.controller(ClassReadiness {
        cx: Arc::clone(&cx),
    });
    controllers.controller(Instances { cx, provider });
}

/// Makes KWOKNodeClasses ready: they cannot be invalid.
#[derive(Debug)]
struct ClassReadiness {
    cx: Arc<Context>,
}

impl Controller for ClassReadiness {
    type Key = ObjectKey;
    const NAME: &'static str = "kwoknodeclass.status";
    const KIND: &'static str = KWOKNodeClass::KIND;

    fn triggered_by(&self, change: &Change, _: &View, queue: &Queue<ObjectKey>) {
        if let Change::NodeClass {
            reference,
            after: Some(class),
        } = change
            && reference.group == GROUP
            && class.ready.is_none()
        {
            queue.add(ObjectKey::cluster(&reference.name));
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let api: Api<KWOKNodeClass> = Api::all(self.cx.clients.api.clone());
        let before = api.get(&key.name).await.doing("getting nodeclass")?;
        let mut after = before.clone();
        after.make_ready(self.cx.clock.now());
        patch_status(&api, &before, &after, Lock::Optimistic)
            .await
            .doing("updating nodeclass status")?;
        Ok(Next::Wait)
    }
}

/// Restores the instances of an earlier process: a launched NodeClaim has an instance, and an instance has a Node.
#[derive(Debug)]
struct Instances {
    cx: Arc<Context>,
    provider: Arc<KwokProvider>,
}

impl Controller for Instances {
    type Key = ObjectKey;
    const NAME: &'static str = "kwok.instances";
    const KIND: &'static str = NodeClaim::KIND;

    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<ObjectKey>) {
        // Instances of later NodeClaims are launched by this process.
        if matches!(change, Change::Synced) {
            for claim in view.snapshot.node_claims() {
                queue.add(ObjectKey::cluster(claim.name()));
            }
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        if let Some(claim) = view
            .node_claim(&key.name)
            .filter(|c| c.spec.node_class_ref.group == GROUP && !c.is_deleting())
        {
            let id = claim.status.provider_id.as_deref().unwrap_or_default();
            let joined = !view.nodes_by_provider_id(id).is_empty();
            self.provider.resume(claim, joined);
        }
        Ok(Next::Wait)
    }
}
