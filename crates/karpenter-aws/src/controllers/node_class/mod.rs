//! The controllers of EC2NodeClasses.
//!
//! | module | content |
//! |---|---|
//! | `controller` | order of a reconciliation, requeue |
//! | `outcome` | requeue and errors of a reconciliation |
//! | `metadata` | finalizer and hash of a class, hash of its NodeClaims |
//! | `status` | resources found in AWS, and their conditions |
//! | `profile` | instance profile of a class |
//! | `validation` | validation of the spec, and dry runs of a launch |
//! | `termination` | deletion of a class's AWS resources |
//! | `garbage_collection` | deletion of unused instance profiles |
//!
//! A failing part does not stop the others: all parts run, the status is written once, and the errors lead to a retry
//! with back-off.
//!
//! UPSTREAM: pkg/controllers/nodeclass

mod controller;
mod garbage_collection;
mod metadata;
mod outcome;
mod profile;
mod status;
mod termination;
mod validation;

use std::sync::Arc;

use karpenter_kube::controller::{ObjectKey, Queue};
use karpenter_kube::operator::ControllerRegistry;

pub use controller::NodeClasses;
pub use garbage_collection::InstanceProfileGc;
pub use validation::reasons;

use crate::api::EC2NodeClass;
use crate::context::AwsContext;
use crate::providers::version::VersionController;

pub fn add(controllers: &mut ControllerRegistry, aws: &AwsContext) {
    let cx = Arc::clone(controllers.context());
    let queue = Queue::new();
    let classes = queue.clone();
    aws.stores
        .on_class(move |name, _| classes.add(ObjectKey::cluster(name)));
    if let Some(conditions) = controllers.conditions() {
        let stores = aws.stores.clone();
        let kind = (EC2NodeClass::GROUP, EC2NodeClass::KIND);
        let following = conditions.follow::<EC2NodeClass>("ec2nodeclass", kind, move |visit| {
            stores.classes().iter().for_each(|class| visit(class));
        });
        aws.stores
            .on_class(move |name, now| following.observe(name, now.cloned()));
    }
    let controller = NodeClasses::new(Arc::clone(&cx), aws.clone());
    controllers.controller_with(Arc::new(controller), queue);
    if !aws.settings.isolated_vpc {
        controllers.periodic(InstanceProfileGc::new(Arc::clone(&cx), aws));
    }
    controllers.periodic(aws.images.invalidation(cx.clock));
    let eks = aws.settings.eks_control_plane;
    controllers.periodic(VersionController {
        version: aws.kubernetes.clone(),
        client: cx.clients.api.clone(),
        eks: eks.then(|| (aws.clients.clone(), aws.settings.cluster.clone())),
    });
}
