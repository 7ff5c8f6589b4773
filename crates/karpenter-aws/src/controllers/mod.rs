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

use karpenter_kube::operator::Setup;

pub use discovered_capacity::CapacityDiscovery;
pub use instance_status::InstanceStatus;
pub use instance_tagging::Tagging;
pub use node_class::NodeClasses;
pub use offering_metrics::OfferingMetrics;
pub use zonal_shift::ZonalShift;

use crate::operator::Parts;
use interruption::Handler;
use interruption::queue::Queue;

/// Adds the controllers to an operator.
pub fn add(parts: &Parts, setup: &mut Setup) {
    node_class::add(setup, parts);
    let cx = Arc::clone(setup.context());
    let instances = || Arc::clone(parts.provider.instances());
    let handler = Handler::new(Arc::clone(&cx), Arc::clone(&parts.offered));
    if let Some(name) = &parts.settings.interruption_queue {
        let queue = Queue::new(parts.aws.clone(), name);
        interruption::add(setup, queue, handler.clone());
    }
    setup.periodic(InstanceStatus::new(
        Arc::clone(&cx),
        parts.aws.clone(),
        handler,
    ));
    if let Some(managed) = &parts.zonal_shift {
        setup.periodic(ZonalShift::new(
            Arc::clone(&cx),
            managed.clone(),
            parts.stores.clone(),
            parts.offered.shifted().clone(),
        ));
    }
    if parts.settings.reserved_capacity {
        setup.periodic(capacity_reservation::CapacityType::new(
            Arc::clone(&cx),
            instances(),
        ));
        setup.periodic(capacity_reservation::Expiration::new(
            Arc::clone(&cx),
            parts.reservations.clone(),
        ));
    }
    let cluster = &parts.settings.cluster;
    setup.controller(Tagging::new(Arc::clone(&cx), instances(), cluster));
    setup.controller(CapacityDiscovery::new(
        Arc::clone(&cx),
        parts.stores.clone(),
        Arc::clone(&parts.provider),
    ));
    let metrics = OfferingMetrics::new(&cx, parts.stores.clone(), Arc::clone(&parts.provider));
    setup.periodic(metrics);
}
