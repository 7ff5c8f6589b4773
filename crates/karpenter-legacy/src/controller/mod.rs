//! The compatibility controller, which projects Provisioners and AWSNodeTemplates into NodePools and EC2NodeClasses.
//!
//! ```text
//! Provisioner ─────┐                          ┌─▶ NodePool      owned by the Provisioner
//!                  ├─▶ alpha::project (pure) ─┤
//! AWSNodeTemplate ─┘                          └─▶ EC2NodeClass  owned by the AWSNodeTemplate (or Provisioner)
//! ```
//!
//! 1. [`store`] watches the legacy kinds and EC2NodeClasses. A kind that is not installed counts as empty and is detected when it
//!    is installed later, without a setting.
//! 2. [`reconcile`] projects all objects on every change: creates and updates projected objects that differ (server-side apply),
//!    deletes EC2NodeClasses that are no longer projected, and updates the status of the legacy objects.
//! 3. A projected object is deleted with its legacy object, by owner reference. While a legacy object cannot be converted, its
//!    projected object stays unchanged: a typing error does not delete nodes.
//! 4. Objects that the controller did not create are never changed; a name conflict is reported in a condition.

mod reconcile;
mod status;
mod store;

use std::sync::Arc;

use karpenter_kube::controller::Queue;
use karpenter_kube::operator::ControllerRegistry;

use crate::alpha::{ClassNames, MissingTemplate, ProjectionSettings};
use reconcile::Projecting;
use store::Stores;
pub(crate) use store::dynamic;

/// Adds the controller to an operator: `Operator::builder(..).with(|controllers| controller::add(controllers, settings))`.
///
/// Only `default_instance_profile` and `tags` of the settings are used; the others have the values for clusters.
pub fn add(controllers: &mut ControllerRegistry, settings: ProjectionSettings) {
    let settings = ProjectionSettings {
        provisioner_label: true,
        class_names: ClassNames::Stable,
        missing_template: MissingTemplate::Refuse,
        ..settings
    };
    let cx = Arc::clone(controllers.context());
    let client = cx.clients.api.clone();
    let (queue, stores) = (Queue::new(), Stores::default());
    let projecting = Projecting::new(cx, stores.clone(), settings);
    controllers.controller_with(Arc::new(projecting), queue.clone());
    controllers.task(move |stop| async move {
        tokio::select! {
            () = stores.follow(client, &queue) => {}
            () = stop.cancelled() => {}
        }
    });
}
