//! Devices: published by a node or none, or expected on a node of an instance type.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::NodeSelector;
use karpenter_core::dra::model::Attribute;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::quantity::Quantity;
use karpenter_core::requirements::{Requirements, Unaliased};

use crate::world::World;

/// A device, published or expected on a node of an instance type.
#[derive(Debug, Clone)]
pub(crate) struct Device {
    pub(super) driver: String,
    pub(super) pool: String,
    pub(super) name: String,
    pub(super) attributes: BTreeMap<String, String>,
    /// Whether several claims may use it; else a claim allocates it whole.
    pub(super) shared: bool,
    pub(super) capacity: BTreeMap<String, i128>,
    pub(super) reach: Reach,
}

#[derive(Debug, Clone)]
pub(super) enum Reach {
    Everywhere,
    Node(String),
    Nodes(Vec<Requirements>),
}

/// Returns the devices expected on a node of an instance type.
pub(crate) fn of_type(instance_type: &InstanceType) -> Vec<Device> {
    let templates = instance_type.devices.iter();
    let device = |driver: &str, pool: &str, device: &karpenter_core::dra::Device| Device {
        driver: driver.to_owned(),
        pool: pool.to_owned(),
        name: device.name.clone(),
        attributes: (device.attributes.iter())
            .map(|(name, value)| (name.clone(), text(value)))
            .collect(),
        shared: device.shareable,
        capacity: (device.capacity.iter())
            .map(|(name, capacity)| (name.clone(), capacity.value.nanos()))
            .collect(),
        reach: Reach::Everywhere,
    };
    templates
        .flat_map(|template| {
            let devices = template.devices.iter();
            devices.map(move |d| device(&template.driver, &template.pool, d))
        })
        .collect()
}

fn text(value: &Attribute) -> String {
    match value {
        Attribute::Int(number) => number.to_string(),
        Attribute::Bool(truth) => truth.to_string(),
        Attribute::String(text) | Attribute::Version(text) => text.clone(),
    }
}

pub(super) fn qualified(name: &str, driver: &str) -> String {
    if name.contains('/') {
        name.to_owned()
    } else {
        format!("{driver}/{name}")
    }
}

pub(super) fn nanos(quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity) -> i128 {
    Quantity::try_from(quantity).map_or(0, |quantity| quantity.nanos())
}

pub(super) fn terms(selector: &NodeSelector) -> Vec<Requirements> {
    let terms = selector.node_selector_terms.iter();
    terms
        .filter_map(|term| Requirements::from_node_selector_term(term, &Unaliased).ok())
        .collect()
}

/// Returns the devices of the slices of initialized nodes and of slices without a node.
pub(super) fn published(world: &World, counts: &dyn Fn(&str) -> bool) -> Vec<Device> {
    let mut devices = Vec::new();
    for slice in &world.resource_slices {
        let owners = slice.metadata.owner_references.iter().flatten();
        let mut nodes = owners.filter(|owner| owner.kind == "Node");
        if nodes.next().is_some_and(|node| !counts(&node.name)) {
            continue;
        }
        let spec = &slice.spec;
        let reach = match (&spec.node_name, &spec.node_selector) {
            (Some(name), _) => Reach::Node(name.clone()),
            (None, Some(selector)) => Reach::Nodes(terms(selector)),
            (None, None) => Reach::Everywhere,
        };
        for device in spec.devices.iter().flatten() {
            let attributes = device.attributes.iter().flatten();
            let capacity = device.capacity.iter().flatten();
            devices.push(Device {
                driver: spec.driver.clone(),
                pool: spec.pool.name.clone(),
                name: device.name.clone(),
                attributes: attributes
                    .filter_map(|(name, value)| {
                        Some((qualified(name, &spec.driver), value.string.clone()?))
                    })
                    .collect(),
                shared: device.allow_multiple_allocations.unwrap_or_default(),
                capacity: capacity
                    .map(|(name, capacity)| (qualified(name, &spec.driver), nanos(&capacity.value)))
                    .collect(),
                reach: reach.clone(),
            });
        }
    }
    devices
}
