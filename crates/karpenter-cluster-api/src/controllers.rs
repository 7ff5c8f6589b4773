//! What runs beside Karpenter's own controllers: the watches, the status of node classes, and Machines that
//! end without Karpenter.

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::conditions::HasConditions;
use karpenter_api::v1::NodeClaim;
use karpenter_kube::client::patch::{Lock, patch_status};
use karpenter_kube::context::Context;
use karpenter_kube::controller::{
    Controller, Doing, Next, ObjectKey, Periodic, Queue, ReconcileError,
};
use karpenter_kube::model::{Change, View};
use karpenter_kube::nodeclaim::removal::{disrupt, end_grace_period};
use karpenter_kube::operator::ControllerRegistry;
use karpenter_kube::watching::Watching;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};

use crate::deployment::is_selected;
use crate::machine::{self, Ending, UID_LABEL};
use crate::node_class::{
    CLUSTER_REACHABLE, ClusterAPINodeClass, ClusterAPINodeClassStatus, GROUP,
    MACHINE_DEPLOYMENTS_EXCLUSIVE, MACHINE_DEPLOYMENTS_READY, MachineDeploymentStatus,
    PRICES_KNOWN,
};
use crate::provider::{ClusterApiProvider, Offered, infrastructure};

/// Interval between updates of the status of node classes.
const INTERVAL: Duration = Duration::from_secs(5);

pub fn add(controllers: &mut ControllerRegistry, provider: &Arc<ClusterApiProvider>) {
    let cx = Arc::clone(controllers.context());
    if let Some(writer) = provider.class_writer() {
        let cx = Arc::clone(&cx);
        controllers.always(move |stop| async move {
            let watching = Watching {
                logger: "clusterapi",
                kind: "ClusterAPINodeClass",
                recorder: cx.recorder.clone(),
            };
            let config = watcher::Config::default();
            let follow = watching.follow::<ClusterAPINodeClass>(
                cx.clients.api.clone(),
                config,
                writer,
                |_| (),
            );
            tokio::select! {
                () = follow => {}
                () = stop.cancelled() => {}
            }
        });
    }
    let (hub, queue) = (provider.hub().clone(), Queue::new());
    let ending = queue.clone();
    controllers.always(move |stop| async move {
        let changed = move |machine: &kube::core::DynamicObject| {
            if machine::ending(machine).is_some()
                && let Some(launched) = machine::launched(machine)
            {
                ending.add(ObjectKey::cluster(&launched.node_claim));
            }
        };
        hub.run(changed, stop).await;
    });
    let endings = MachineEnding {
        cx: Arc::clone(&cx),
        provider: Arc::clone(provider),
    };
    controllers.controller_with(Arc::new(endings), queue);
    controllers.periodic(NodeClassStatus {
        cx,
        provider: Arc::clone(provider),
    });
}

/// Deletes NodeClaims whose Machine ends without Karpenter, so that their pods are planned again at once.
#[derive(Debug)]
struct MachineEnding {
    cx: Arc<Context>,
    provider: Arc<ClusterApiProvider>,
}

impl MachineEnding {
    /// Returns why the Machine of a NodeClaim ends, unless the NodeClaim is being deleted.
    fn ending(&self, claim: &NodeClaim) -> Option<Ending> {
        let machine = self
            .provider
            .hub()
            .machine(&machine::recorded_name(claim))?;
        let is_its = machine
            .labels()
            .get(UID_LABEL)
            .is_some_and(|uid| uid == claim.uid());
        (is_its && !claim.is_deleting()).then(|| machine::ending(&machine))?
    }
}

impl Controller for MachineEnding {
    type Key = ObjectKey;
    const NAME: &'static str = "nodeclaim.machineending";
    const KIND: &'static str = "NodeClaim";

    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<ObjectKey>) {
        if let Change::NodeClaim { name, .. } = change
            && view
                .node_claim(name)
                .is_some_and(|claim| self.ending(claim).is_some())
        {
            queue.add(ObjectKey::cluster(name));
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let claim = self.cx.node_claim(&self.cx.view(), &key.name);
        let ending = claim.and_then(|claim| Some((self.ending(&claim)?, claim)));
        let Some((ending, claim)) = ending else {
            return Ok(Next::Wait);
        };
        let (claim, reason) = match ending {
            Ending::Deleted => (claim, "machine_deleting"),
            // As node repair does: pods of a broken node cannot be evicted.
            Ending::Unhealthy => (
                Arc::new(end_grace_period(&self.cx, &claim).await?),
                "machine_unhealthy",
            ),
        };
        if disrupt(&self.cx, &claim, reason).await? {
            tracing::info!(
                nodeclaim = claim.name(),
                reason,
                "deleting nodeclaim whose machine ends"
            );
        }
        Ok(Next::Wait)
    }
}

/// Maintains the status of node classes.
#[derive(Debug)]
struct NodeClassStatus {
    cx: Arc<Context>,
    provider: Arc<ClusterApiProvider>,
}

impl NodeClassStatus {
    /// Reads the infrastructure templates of the MachineDeployments of a class, which may have their capacity.
    async fn read_templates(&self, class: &ClusterAPINodeClass) {
        let hub = self.provider.hub();
        for deployment in hub.deployments() {
            if is_selected(&deployment, hub.cluster(), &class.spec)
                && let Some(template) = infrastructure(&deployment)
                && let Err(error) = hub.template(&template).await
            {
                tracing::debug!(logger = "clusterapi", template = template.name, error = %error, "reading template");
            }
        }
    }

    /// Returns the MachineDeployments of a class that others select, too, with the names of these.
    fn shared(&self, class: &ClusterAPINodeClass, all: &[Arc<ClusterAPINodeClass>]) -> Vec<String> {
        let hub = self.provider.hub();
        let mut shared = Vec::new();
        for deployment in hub.deployments() {
            let selects = |class: &&Arc<ClusterAPINodeClass>| {
                is_selected(&deployment, hub.cluster(), &class.spec)
            };
            let selecting = all.iter().filter(selects).map(|class| class.name_any());
            let (own, others): (Vec<_>, Vec<_>) =
                selecting.partition(|name| *name == class.name_any());
            if !own.is_empty() && !others.is_empty() {
                shared.push(format!(
                    "`{}` by {}",
                    deployment.name_any(),
                    others.join(", ")
                ));
            }
        }
        shared
    }

    async fn update(
        &self,
        before: &ClusterAPINodeClass,
        all: &[Arc<ClusterAPINodeClass>],
        reachable: &Result<bool, String>,
    ) -> Result<(), ReconcileError> {
        let mut after = before.clone();
        if reachable.is_ok() {
            self.read_templates(before).await;
        }
        let offered = self.provider.offered(before);
        let now = self.cx.clock.now();
        set_status(&mut after, &offered, reachable, now);
        let shared = self.shared(before, all);
        if shared.is_empty() {
            after.set_true(MACHINE_DEPLOYMENTS_EXCLUSIVE, now);
        } else {
            let message = format!(
                "other ClusterAPINodeClasses select MachineDeployments of this one, maybe with other prices and reserved resources: {}. Narrow spec.scalableResourceSelector",
                shared.join("; ")
            );
            after.set_false(
                MACHINE_DEPLOYMENTS_EXCLUSIVE,
                "MachineDeploymentsShared",
                &message,
                now,
            );
        }
        let api: Api<ClusterAPINodeClass> = Api::all(self.cx.clients.api.clone());
        patch_status(&api, before, &after, Lock::Optimistic)
            .await
            .doing("updating clusterapinodeclass")?;
        Ok(())
    }
}

fn set_status(
    class: &mut ClusterAPINodeClass,
    offered: &Offered,
    reachable: &Result<bool, String>,
    now: jiff::Timestamp,
) {
    let rows = offered.shapes.iter().map(|shape| MachineDeploymentStatus {
        name: shape.deployment.clone(),
        instance_type: Some(shape.instance_type.clone()),
        zone: Some(shape.zone.clone()),
        rejected: None,
    });
    let rejected = offered
        .rejected
        .iter()
        .map(|(name, reason)| MachineDeploymentStatus {
            name: name.clone(),
            rejected: Some(reason.clone()),
            ..MachineDeploymentStatus::default()
        });
    let mut rows: Vec<MachineDeploymentStatus> = rows.chain(rejected).collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    match reachable {
        Err(why) => {
            class.set_false(CLUSTER_REACHABLE, "ClusterUnreachable", why, now);
            // What was known stays.
            return;
        }
        Ok(true) => class.set_false(
            CLUSTER_REACHABLE,
            "ClusterPaused",
            "the Cluster is paused: set spec.paused to false",
            now,
        ),
        Ok(false) => class.set_true(CLUSTER_REACHABLE, now),
    };
    class
        .status
        .get_or_insert_with(ClusterAPINodeClassStatus::default)
        .machine_deployments = rows;
    if !offered.shapes.is_empty() {
        class.set_true(MACHINE_DEPLOYMENTS_READY, now);
    } else if let Some((name, reason)) = offered.rejected.first_key_value() {
        let message = format!("MachineDeployment `{name}`: {reason}");
        class.set_false(
            MACHINE_DEPLOYMENTS_READY,
            "MachineDeploymentsRejected",
            &message,
            now,
        );
    } else {
        let message = format!(
            "no MachineDeployment of the Cluster is selected: label it `{}=`, and see spec.scalableResourceSelector",
            crate::deployment::MEMBER_LABEL
        );
        class.set_false(
            MACHINE_DEPLOYMENTS_READY,
            "NoMachineDeployments",
            &message,
            now,
        );
    }
    let by_size: Vec<&str> = offered
        .shapes
        .iter()
        .filter(|s| s.price.is_none())
        .map(|s| s.deployment.as_str())
        .collect();
    if by_size.is_empty() {
        class.set_true(PRICES_KNOWN, now);
    } else {
        let message = format!(
            "MachineDeployments without a price are compared by size: {}. Set annotation `{GROUP}/price` or spec.prices",
            by_size.join(", ")
        );
        class.set_false(PRICES_KNOWN, "PricedBySize", &message, now);
    }
}

impl Periodic for NodeClassStatus {
    const NAME: &'static str = "nodeclass.status";

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        if !self.cx.view().is_synced() {
            return Ok(Duration::from_secs(1));
        }
        let hub = self.provider.hub();
        let paused = hub.is_paused().await;
        let reachable = match paused {
            Ok(_) if !hub.is_filled() => {
                Err("the MachineDeployments have not been listed yet".to_owned())
            }
            Ok(paused) => Ok(paused),
            Err(error) => Err(error.to_string()),
        };
        let mut errors = Vec::new();
        let classes = self.provider.classes();
        for class in &classes {
            errors.extend(self.update(class, &classes, &reachable).await.err());
        }
        errors.retain(|error| !error.is_conflict() && !error.is_not_found());
        ReconcileError::collect(errors)?;
        Ok(INTERVAL)
    }
}
