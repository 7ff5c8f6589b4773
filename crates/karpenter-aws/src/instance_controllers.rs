//! The controllers of launched instances, and of discovered capacity.

use std::sync::Arc;

use karpenter_kube::operator::ControllerRegistry;

use crate::capacity_discovery::CapacityDiscovery;
use crate::instance_status::InstanceStatus;
use crate::interruption::Handler;
use crate::interruption::queue::Queue;
use crate::offering_metrics::OfferingMetrics;
use crate::operator::Parts;
use crate::tagging::Tagging;
use crate::zonal_shift::ZonalShift;
use crate::{interruption, reserved};

/// Adds the controllers to an operator.
pub fn add(parts: &Parts, setup: &mut ControllerRegistry) {
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
        setup.periodic(reserved::CapacityType::new(Arc::clone(&cx), instances()));
        setup.periodic(reserved::Expiration::new(
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
