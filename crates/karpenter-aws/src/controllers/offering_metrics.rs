//! Metrics of offerings: per instance type, capacity type and zone, over all NodePools.
//!
//! UPSTREAM: pkg/controllers/metrics/metrics.go, pkg/providers/instancetype/metrics.go

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use karpenter_api::labels as core_labels;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::provider::{CloudProvider, ErrorCode};
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Periodic, ReconcileError, compute};
use karpenter_kube::metrics::Registry;
use parking_lot::Mutex;

use crate::cloud_provider::Ec2Provider;
use crate::cloud_provider::stores::Stores;
use crate::providers::instance_type::offered::Offered;

const INTERVAL: Duration = Duration::from_secs(60);
const LABELS: [&str; 3] = ["instance_type", "capacity_type", "zone"];

/// An offering over all NodePools.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    instance_type: String,
    capacity_type: &'static str,
    zone: String,
    available: bool,
    price: f64,
}

type Shown = Arc<Mutex<Arc<[Row]>>>;

/// Controller that updates the metrics.
#[derive(Debug)]
pub struct OfferingMetrics {
    stores: Stores,
    provider: Arc<Ec2Provider>,
    /// The feature gate ReservedCapacity: types without reservation are exported as not available.
    reserved: bool,
    shown: Shown,
}

impl OfferingMetrics {
    /// Creates the controller, and registers the metrics of the provider.
    #[must_use]
    pub fn new(cx: &Context, stores: Stores, provider: Arc<Ec2Provider>) -> Self {
        let shown = Shown::default();
        let registry = &cx.metrics.registry;
        let gauge = |name: &str, help: &str, value: fn(&Row) -> f64| {
            let shown = Arc::clone(&shown);
            registry.live(name, help, &LABELS, move |emit| {
                for row in rows(&shown).iter() {
                    let labels = [&*row.instance_type, row.capacity_type, &row.zone];
                    emit.set(&labels, value(row));
                }
            });
        };
        gauge(
            "karpenter_cloudprovider_instance_type_offering_available",
            "Instance type offering availability, based on instance type, capacity type, and zone",
            |row| f64::from(u8::from(row.available)),
        );
        gauge(
            "karpenter_cloudprovider_instance_type_offering_price_estimate",
            "Instance type offering estimated hourly price used when making informed decisions on node cost calculation, based on instance type, capacity type, and zone.",
            |row| row.price,
        );
        of_types(registry, provider.offered());
        Self {
            stores,
            provider,
            reserved: cx.options.feature_gates.reserved_capacity,
            shown,
        }
    }
}

fn rows(shown: &Shown) -> Arc<[Row]> {
    Arc::clone(&shown.lock())
}

/// Registers the metrics of all instance types, whether they have available offerings or not.
fn of_types(registry: &Registry, offered: &Arc<Offered>) {
    let gauge = |name: &str, help: &str, value: fn(u32, u64) -> f64| {
        let offered = Arc::clone(offered);
        registry.live(name, help, &["instance_type"], move |emit| {
            // Shared, so that a scrape does not block the controller.
            let infos = offered.with_resolver(|resolver| resolver.infos().to_vec());
            for info in infos {
                emit.set(&[&info.name], value(info.vcpus, info.memory_mib));
            }
        });
    };
    gauge(
        "karpenter_cloudprovider_instance_type_cpu_cores",
        "VCPUs cores for a given instance type.",
        |vcpus, _| f64::from(vcpus),
    );
    gauge(
        "karpenter_cloudprovider_instance_type_memory_bytes",
        "Memory, in bytes, for a given instance type.",
        |_, mib| (mib * 1024 * 1024) as f64,
    );
}

fn capacity_type(label: &str) -> Option<&'static str> {
    [
        core_labels::CAPACITY_TYPE_ON_DEMAND,
        core_labels::CAPACITY_TYPE_SPOT,
        core_labels::CAPACITY_TYPE_RESERVED,
    ]
    .into_iter()
    .find(|known| *known == label)
}

/// Merges the offerings of several lists: available if one of them is, with the price of the available one.
fn merge(lists: &[Arc<[InstanceType]>], reserved: bool) -> Vec<Row> {
    let mut merged: BTreeMap<(&str, &str, &'static str), (bool, f64)> = BTreeMap::new();
    for list in lists {
        for t in list.iter() {
            for offering in &t.offerings {
                let (Some(zone), Some(kind)) = (
                    offering.zone(),
                    offering.capacity_type().and_then(capacity_type),
                ) else {
                    continue;
                };
                if reserved {
                    let none = (&*t.name, zone, core_labels::CAPACITY_TYPE_RESERVED);
                    merged.entry(none).or_insert((false, 0.0));
                }
                let (available, price) = merged.entry((&t.name, zone, kind)).or_default();
                if offering.available || !*available {
                    *price = offering.price;
                }
                *available |= offering.available;
            }
        }
    }
    let row = |((instance_type, zone, capacity_type), (available, price)): (
        (&str, &str, &'static str),
        (bool, f64),
    )| Row {
        instance_type: instance_type.to_owned(),
        capacity_type,
        zone: zone.to_owned(),
        available,
        price,
    };
    merged.into_iter().map(row).collect()
}

impl Periodic for OfferingMetrics {
    const NAME: &'static str = "cloudprovider.metrics";

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        if !self.stores.filled().await {
            return Ok(INTERVAL);
        }
        let mut lists: Vec<Arc<[InstanceType]>> = Vec::new();
        for pool in self.stores.pools() {
            match self.provider.instance_types(&pool).await {
                // NodePools of one class share its list.
                Ok(list) if lists.iter().any(|known| Arc::ptr_eq(known, &list)) => {}
                Ok(list) => lists.push(list),
                Err(error) => tracing::debug!(
                    logger = Self::NAME,
                    NodePool = pool.metadata.name.as_deref(),
                    error = %error,
                    "aws-error-code" = ErrorCode::of(&error).map(|code| &**code),
                    "skipped a NodePool without instance types"
                ),
            }
        }
        let reserved = self.reserved;
        let merged = compute("merging offerings", move || merge(&lists, reserved)).await?;
        *self.shown.lock() = merged.into();
        Ok(INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use karpenter_core::offering::Offering;
    use karpenter_core::requirements::{Requirement, Requirements};
    use karpenter_core::resources::Resources;

    use super::*;

    fn list(available: bool, price: f64) -> Arc<[InstanceType]> {
        let mut t = InstanceType::new("m5.large", Requirements::new(), Resources::new());
        let requirements = [
            Requirement::equal(core_labels::ZONE, "us-west-2a"),
            Requirement::equal(core_labels::CAPACITY_TYPE, "spot"),
        ];
        t.offerings.push(Offering {
            available,
            ..Offering::new(requirements.into_iter().collect(), price)
        });
        vec![t].into()
    }

    #[test]
    fn an_offering_available_in_one_list_has_the_price_of_that_list() {
        let of = |lists: &[Arc<[InstanceType]>]| {
            let rows = merge(lists, false);
            assert_eq!(rows.len(), 1);
            (rows[0].available, rows[0].price)
        };
        assert_eq!(of(&[list(false, 1.0), list(true, 2.0)]), (true, 2.0));
        assert_eq!(of(&[list(true, 2.0), list(false, 1.0)]), (true, 2.0));
        assert_eq!(of(&[list(false, 1.0)]), (false, 1.0));
    }

    /// Conformance: AWS-metrics-03
    #[test]
    fn types_without_reservation_are_exported_as_unavailable_with_the_gate() {
        let rows = merge(&[list(true, 1.0)], true);
        let shown: Vec<_> = rows
            .iter()
            .map(|r| (r.capacity_type, r.available, r.price))
            .collect();
        assert_eq!(shown, [("reserved", false, 0.0), ("spot", true, 1.0)]);
    }
}
