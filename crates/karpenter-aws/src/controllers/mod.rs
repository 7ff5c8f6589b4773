//! The controllers of the provider, which run next to Karpenter's own.
//!
//! | module | content |
//! |---|---|
//! | [`node_class`] | status, validation and termination of EC2NodeClasses |
//! | [`interruption`] | interruption events of instances, from the queue |
//! | [`instance_status`] | failed status checks and scheduled events of instances |
//! | [`instance_tagging`] | tags that are known only after the launch |
//! | [`capacity_reservation`] | instances that leave their capacity reservation, and capacity blocks that expire |
//! | [`zonal_shift`] | zonal shifts of the cluster |
//! | [`discovered_capacity`] | memory that registered nodes report |
//! | [`offering_metrics`] | metrics of offerings |
//!
//! UPSTREAM: pkg/controllers/controllers.go

pub mod capacity_reservation;
pub mod discovered_capacity;
pub mod instance_status;
pub mod instance_tagging;
pub mod interruption;
pub mod node_class;
pub mod offering_metrics;
pub mod zonal_shift;

use std::sync::Arc;

use karpenter_kube::operator::ControllerRegistry;

pub use discovered_capacity::CapacityDiscovery;
pub use instance_status::InstanceStatus;
pub use instance_tagging::Tagging;
pub use node_class::NodeClasses;
pub use offering_metrics::OfferingMetrics;
pub use zonal_shift::ZonalShift;

use crate::context::AwsContext;
use interruption::Handler;
use interruption::queue::Queue;
use zonal_shift::Managed;

/// Adds the controllers to an operator; the one of zonal shifts only if the cluster is registered for them.
pub fn add(controllers: &mut ControllerRegistry, aws: &AwsContext, zonal_shift: Option<Managed>) {
    node_class::add(controllers, aws);
    let cx = Arc::clone(controllers.context());
    let instances = || Arc::clone(aws.provider.instances());
    let handler = Handler::new(Arc::clone(&cx), Arc::clone(&aws.offered));
    if let Some(name) = &aws.settings.interruption_queue {
        let queue = Queue::new(aws.clients.clone(), name);
        interruption::add(controllers, queue, handler.clone());
    }
    controllers.periodic(InstanceStatus::new(
        Arc::clone(&cx),
        aws.clients.clone(),
        handler,
    ));
    if let Some(managed) = zonal_shift {
        controllers.periodic(ZonalShift::new(
            Arc::clone(&cx),
            managed,
            aws.stores.clone(),
            aws.offered.shifted().clone(),
        ));
    }
    if aws.settings.reserved_capacity {
        controllers.periodic(capacity_reservation::CapacityType::new(
            Arc::clone(&cx),
            instances(),
        ));
        controllers.periodic(capacity_reservation::Expiration::new(
            Arc::clone(&cx),
            aws.reservations.clone(),
        ));
    }
    let cluster = &aws.settings.cluster;
    controllers.controller(Tagging::new(Arc::clone(&cx), instances(), cluster));
    controllers.controller(CapacityDiscovery::new(
        Arc::clone(&cx),
        aws.stores.clone(),
        Arc::clone(&aws.provider),
    ));
    let metrics = OfferingMetrics::new(&cx, aws.stores.clone(), Arc::clone(&aws.provider));
    controllers.periodic(metrics);
}
