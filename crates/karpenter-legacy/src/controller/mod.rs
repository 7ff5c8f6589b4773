//! The compatibility controller: Provisioners and AWSNodeTemplates live on as NodePools and EC2NodeClasses.
//!
//! ```text
//! Provisioner ─────┐                          ┌─▶ NodePool      owned by the Provisioner
//!                  ├─▶ alpha::project (pure) ─┤
//! AWSNodeTemplate ─┘                          └─▶ EC2NodeClass  owned by the AWSNodeTemplate (or Provisioner)
//! ```
//!
//! 1. [`store`] follows the legacy kinds and EC2NodeClasses. A kind that is not installed is as good as empty, and is found when it
//!    is installed later; nothing needs to be switched on.
//! 2. [`reconcile`] projects everything anew whenever something changes: creates and edits what differs (server-side apply),
//!    takes back EC2NodeClasses that nothing is projected into any more, and writes the status of the legacy objects.
//! 3. What a legacy object became goes with it, by owner reference. What it became stays as it was while the legacy object
//!    cannot be converted: a typing error takes no nodes away.
//! 4. Objects of somebody else are never touched; a name that is taken is a condition.

mod reconcile;
mod status;
mod store;

use std::sync::Arc;

use karpenter_kube::controller::Queue;
use karpenter_kube::operator::Setup;

use crate::alpha::{ClassNames, MissingTemplate, Settings};
use reconcile::Projecting;
use store::Stores;
pub(crate) use store::dynamic;

/// Adds the controller to an operator: `Operator::builder(..).with(|setup| controller::add(setup, settings))`.
///
/// `default_instance_profile` and `tags` are taken from the settings; the rest is as a cluster needs it.
pub fn add(setup: &mut Setup, settings: Settings) {
    let settings = Settings {
        provisioner_label: true,
        class_names: ClassNames::Stable,
        missing_template: MissingTemplate::Refuse,
        ..settings
    };
    let cx = Arc::clone(setup.context());
    let client = cx.clients.api.clone();
    let (queue, stores) = (Queue::new(), Stores::default());
    let projecting = Projecting::new(cx, stores.clone(), settings);
    setup.controller_with(Arc::new(projecting), queue.clone());
    setup.task(move |stop| async move {
        tokio::select! {
            () = stores.follow(client, &queue) => {}
            () = stop.cancelled() => {}
        }
    });
}
