//! What runs beside Karpenter's own controllers: the watches, the status of node classes, and Machines that others delete.

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::conditions::HasConditions;
use karpenter_kube::client::patch::{Lock, patch_status};
use karpenter_kube::context::Context;
use karpenter_kube::controller::{
    Controller, Doing, Next, ObjectKey, Periodic, Queue, ReconcileError,
};
use karpenter_kube::model::{Change, View};
use karpenter_kube::nodeclaim::removal::disrupt;
use karpenter_kube::operator::ControllerRegistry;
use karpenter_kube::watching::Watching;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};

use crate::deployment::is_selected;
use crate::machine::{self, UID_LABEL};
use crate::node_class::{
    CLUSTER_REACHABLE, ClusterAPINodeClass, ClusterAPINodeClassStatus, GROUP,
    MACHINE_DEPLOYMENTS_READY, MachineDeploymentStatus, PRICES_KNOWN,
};
use crate::provider::{ClusterApiProvider, Offered, infrastructure};

/// Interval between updates of the status of node classes.
const INTERVAL: Duration = Duration::from_secs(5);

/// Adds the controllers and watches of the provider.
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
    let deleted = queue.clone();
    controllers.always(move |stop| async move {
        let changed = move |machine: &kube::core::DynamicObject| {
            if machine.metadata.deletion_timestamp.is_some()
                && let Some(launched) = machine::launched(machine)
            {
                deleted.add(ObjectKey::cluster(&launched.node_claim));
            }
        };
        hub.run(changed, stop).await;
    });
    let deletions = MachineDeletion {
        cx: Arc::clone(&cx),
        provider: Arc::clone(provider),
    };
    controllers.controller_with(Arc::new(deletions), queue);
    controllers.periodic(NodeClassStatus {
        cx,
        provider: Arc::clone(provider),
    });
}

/// Deletes NodeClaims whose Machine is being deleted by a user or by Cluster API, so that their pods are planned again at once.
#[derive(Debug)]
struct MachineDeletion {
    cx: Arc<Context>,
    provider: Arc<ClusterApiProvider>,
}

impl MachineDeletion {
    fn is_deleting(&self, claim: &karpenter_api::v1::NodeClaim) -> bool {
        let machine = self.provider.hub().machine(&machine::recorded_name(claim));
        machine.is_some_and(|machine| {
            machine.metadata.deletion_timestamp.is_some()
                && machine
                    .labels()
                    .get(UID_LABEL)
                    .is_some_and(|uid| uid == claim.uid())
        })
    }
}

impl Controller for MachineDeletion {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "nodeclaim.machinedeletion"
    }

    fn kind(&self) -> &'static str {
        "NodeClaim"
    }

    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<ObjectKey>) {
        if let Change::NodeClaim { name, .. } = change
            && view
                .node_claim(name)
                .is_some_and(|claim| !claim.is_deleting() && self.is_deleting(claim))
        {
            queue.add(ObjectKey::cluster(name));
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let claim = self.cx.node_claim(&self.cx.view(), &key.name);
        let Some(claim) = claim.filter(|claim| !claim.is_deleting() && self.is_deleting(claim))
        else {
            return Ok(Next::Wait);
        };
        if disrupt(&self.cx, &claim, "machine_deleting").await? {
            tracing::info!(
                nodeclaim = claim.name(),
                "deleting nodeclaim whose machine is being deleted"
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

    async fn update(
        &self,
        before: &ClusterAPINodeClass,
        reachable: &Result<bool, String>,
    ) -> Result<(), ReconcileError> {
        let mut after = before.clone();
        if reachable.is_ok() {
            self.read_templates(before).await;
        }
        let offered = self.provider.offered(before);
        set_status(&mut after, &offered, reachable, self.cx.clock.now());
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
    fn name(&self) -> &'static str {
        "nodeclass.status"
    }

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
            Err(error) => Err(format!("cannot read Cluster `{}`: {error}", hub.cluster())),
        };
        let mut errors = Vec::new();
        for class in self.provider.classes() {
            errors.extend(self.update(&class, &reachable).await.err());
        }
        errors.retain(|error| !error.is_conflict() && !error.is_not_found());
        ReconcileError::collect(errors)?;
        Ok(INTERVAL)
    }
}
