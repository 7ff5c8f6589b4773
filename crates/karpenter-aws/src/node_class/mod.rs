//! The controllers of EC2NodeClasses: what makes one ready, and what takes away again what was made for it.
//!
//! | module | question it answers |
//! |---|---|
//! | `controller` | in which order is a class looked at, and when again? |
//! | `stamp` | which finalizer and hash does it carry, and its NodeClaims? |
//! | `status` | what did AWS find for it, and what does its status say of that? |
//! | `profile` | which instance profile do its machines get? |
//! | `validation` | would AWS launch machines for it? |
//! | `termination` | what is taken away when it is deleted? |
//! | `collection` | which instance profiles does nobody use any more? |
//!
//! A part that fails leaves the others alone: everything is looked at, the status is written once, and what failed is tried
//! again with back-off.
//!
//! UPSTREAM: pkg/controllers/nodeclass

mod collection;
mod controller;
mod profile;
mod stamp;
mod status;
mod termination;
mod validation;

use std::sync::Arc;

use karpenter_kube::controller::{ObjectKey, Queue};
use karpenter_kube::operator::Setup;

pub use collection::ProfileCollection;
pub use controller::NodeClasses;
pub use termination::WAITING_ON_NODE_CLAIM_TERMINATION;
pub use validation::reasons;

use crate::api::EC2NodeClass;
use crate::kubernetes_version::Following;
use crate::operator::Parts;

/// Adds the controllers to an operator.
pub fn add(setup: &mut Setup, parts: &Parts) {
    let cx = Arc::clone(setup.context());
    let queue = Queue::new();
    let classes = queue.clone();
    parts
        .stores
        .on_class(move |name, _| classes.add(ObjectKey::cluster(name)));
    if let Some(conditions) = setup.conditions() {
        let stores = parts.stores.clone();
        let kind = (EC2NodeClass::GROUP, EC2NodeClass::KIND);
        let following = conditions.follow::<EC2NodeClass>("ec2nodeclass", kind, move |visit| {
            stores.classes().iter().for_each(|class| visit(class));
        });
        parts
            .stores
            .on_class(move |name, now| following.observe(name, now.cloned()));
    }
    let controller = NodeClasses::new(Arc::clone(&cx), parts.clone());
    setup.controller_with(Arc::new(controller), queue);
    if !parts.settings.isolated_vpc {
        setup.periodic(ProfileCollection::new(Arc::clone(&cx), parts));
    }
    setup.periodic(parts.images.forgetting(cx.clock));
    let eks = parts.settings.eks_control_plane;
    setup.periodic(Following {
        version: parts.kubernetes.clone(),
        client: cx.clients.api.clone(),
        eks: eks.then(|| (parts.aws.clone(), parts.settings.cluster.clone())),
    });
}
