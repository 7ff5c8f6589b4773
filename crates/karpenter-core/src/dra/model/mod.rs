//! Resource claims, device classes and devices, parsed once from the Kubernetes objects.

mod claim;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1 as wire;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;
use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;
use crate::requirements::{LabelNames, Requirements};
pub use claim::{
    Claim, ClaimSpec, Class, Count, Held, HeldDevice, MatchAttribute, Request, SubRequest,
    parse_class,
};

/// The maximum number of devices of one claim.
///
/// UPSTREAM: the API's AllocationResultsMaxSize.
pub const MAX_DEVICES_PER_CLAIM: usize = 32;

/// Why an object is invalid or not supported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A quantity is invalid.
    #[error("`{value}` is not a quantity")]
    Quantity {
        /// The value in the object.
        value: String,
    },
    /// A node selector is invalid.
    #[error("invalid node selector: {reason}")]
    NodeSelector {
        /// The cause.
        reason: String,
    },
    /// A request has neither a device class nor alternatives.
    #[error("request `{request}` has neither a device class nor alternatives")]
    EmptyRequest {
        /// Name of the request.
        request: String,
    },
    /// The allocation mode is neither `ExactCount` nor `All`.
    #[error("request `{request}` has the unknown allocation mode `{mode}`")]
    AllocationMode {
        /// Name of the request.
        request: String,
        /// The value in the object.
        mode: String,
    },
    /// A device selector that is not a CEL expression.
    #[error("request `{request}` has a device selector that is not a CEL expression")]
    SelectorKind {
        /// Name of the request.
        request: String,
    },
    /// A constraint other than `matchAttribute`.
    #[error("claim has a constraint other than matchAttribute")]
    ConstraintKind,
}

/// Identifies a device of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// The driver that publishes it.
    pub driver: Arc<str>,
    /// The pool it belongs to.
    pub pool: Arc<str>,
    /// Its name in the pool.
    pub name: Arc<str>,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.name)
    }
}

/// The value of a device's attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Attribute {
    /// A number.
    Int(i64),
    /// A truth value.
    Bool(bool),
    /// Text.
    String(String),
    /// A semantic version.
    Version(String),
}

/// The rounding of requests for a capacity.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestPolicy {
    /// The amount for a request without this capacity.
    pub default: Option<Quantity>,
    /// The values that may be requested, ascending; empty if there is a range or no restriction.
    pub valid_values: Vec<Quantity>,
    /// Minimum, maximum and step of the values that may be requested.
    pub valid_range: Option<(Quantity, Option<Quantity>, Option<Quantity>)>,
}

/// A capacity of a device, which several claims can share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Capacity {
    /// The total amount.
    pub value: Quantity,
    /// The rounding of requests for it; without a policy, requests are not rounded.
    pub policy: Option<RequestPolicy>,
}

/// The nodes that can access a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Every node.
    AllNodes,
    /// The node of this name.
    Node(String),
    /// Nodes that meet one of these alternatives.
    Selector(Vec<Requirements>),
}

/// The amounts that a device consumes, by counter set and counter.
pub type Counters = BTreeMap<String, BTreeMap<String, Quantity>>;

/// A device, published by a driver or expected of an instance type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// Name, unique in its pool.
    pub name: String,
    /// Attributes by qualified name (`driver.example.com/model`).
    pub attributes: BTreeMap<String, Attribute>,
    /// Capacities by qualified name.
    pub capacity: BTreeMap<String, Capacity>,
    /// The amounts that it consumes from its pool's shared counters.
    pub consumes: Counters,
    /// Whether several claims may share it.
    pub shareable: bool,
    /// The nodes that can access it.
    pub access: Access,
}

/// Devices with the same value of an attribute, which is unknown until the instance runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AttributeBinding {
    /// Qualified name of the attribute.
    pub attribute: String,
    /// Names of the devices, at least two.
    pub devices: Vec<String>,
}

/// The devices that a driver will publish once a node of an instance type is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceTemplate {
    /// The driver that will publish them.
    pub driver: String,
    /// The pool they will be in.
    pub pool: String,
    /// The devices. Only the node itself can access them, whatever `access` says.
    pub devices: Vec<Device>,
    /// Shared counters of the pool.
    pub counters: Counters,
    /// Devices that will have the same value of an attribute.
    pub bindings: Vec<AttributeBinding>,
}

impl DeviceTemplate {
    /// Builds a template from the slice that a driver would publish.
    pub fn parse(slice: &wire::ResourceSliceSpec, names: &dyn LabelNames) -> Result<Self, Problem> {
        let slice = Slice::parse(slice, None, names)?;
        Ok(Self {
            driver: slice.driver.to_string(),
            pool: slice.pool.to_string(),
            devices: slice.devices,
            counters: slice.counters,
            bindings: Vec::new(),
        })
    }
}

/// One ResourceSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The driver that publishes it.
    pub driver: Arc<str>,
    /// The pool it is part of.
    pub pool: Arc<str>,
    /// Generation of the pool it describes.
    pub generation: i64,
    /// The number of slices of that generation.
    pub slice_count: i64,
    /// The node that owns it, on which its devices are.
    pub owner_node: Option<String>,
    /// Its devices.
    pub devices: Vec<Device>,
    /// Its shared counters.
    pub counters: Counters,
}

impl Slice {
    /// Parses a slice from the object's spec; `owner_node` is the Node in its owner references.
    pub fn parse(
        spec: &wire::ResourceSliceSpec,
        owner_node: Option<String>,
        names: &dyn LabelNames,
    ) -> Result<Self, Problem> {
        let per_device = spec.per_device_node_selection.unwrap_or_default();
        let whole = access(
            spec.node_name.as_deref(),
            spec.node_selector.as_ref(),
            names,
        )?;
        let devices = spec.devices.iter().flatten().map(|device| {
            let access = if per_device {
                access(
                    device.node_name.as_deref(),
                    device.node_selector.as_ref(),
                    names,
                )?
            } else {
                whole.clone()
            };
            parse_device(device, &spec.driver, access)
        });
        let counters = spec.shared_counters.iter().flatten().map(|set| {
            Ok((
                set.name.clone(),
                quantities(set.counters.iter().map(|(name, c)| (name, &c.value)))?,
            ))
        });
        Ok(Self {
            driver: spec.driver.as_str().into(),
            pool: spec.pool.name.as_str().into(),
            generation: spec.pool.generation,
            slice_count: spec.pool.resource_slice_count,
            owner_node,
            devices: devices.collect::<Result<_, _>>()?,
            counters: counters.collect::<Result<_, Problem>>()?,
        })
    }
}

fn access(
    node: Option<&str>,
    selector: Option<&NodeSelector>,
    names: &dyn LabelNames,
) -> Result<Access, Problem> {
    match (node, selector) {
        (Some(node), _) if !node.is_empty() => Ok(Access::Node(node.to_owned())),
        (_, Some(selector)) => Ok(Access::Selector(selector_terms(selector, names)?)),
        _ => Ok(Access::AllNodes),
    }
}

/// Parses the alternatives of a node selector.
pub fn selector_terms(
    selector: &NodeSelector,
    names: &dyn LabelNames,
) -> Result<Vec<Requirements>, Problem> {
    selector
        .node_selector_terms
        .iter()
        .map(|term| {
            Requirements::from_node_selector_term(term, names).map_err(|error| {
                Problem::NodeSelector {
                    reason: error.to_string(),
                }
            })
        })
        .collect()
}

fn parse_device(device: &wire::Device, driver: &str, access: Access) -> Result<Device, Problem> {
    let attributes = device.attributes.iter().flatten();
    let capacity = device.capacity.iter().flatten().map(|(name, capacity)| {
        let policy = capacity
            .request_policy
            .as_ref()
            .map(parse_policy)
            .transpose()?;
        Ok((
            qualified(name, driver),
            Capacity {
                value: quantity(&capacity.value)?,
                policy,
            },
        ))
    });
    let consumes = device.consumes_counters.iter().flatten().map(|set| {
        let counters = quantities(set.counters.iter().map(|(name, c)| (name, &c.value)))?;
        Ok((set.counter_set.clone(), counters))
    });
    Ok(Device {
        name: device.name.clone(),
        attributes: attributes
            .filter_map(|(name, value)| Some((qualified(name, driver), attribute(value)?)))
            .collect(),
        capacity: capacity.collect::<Result<_, Problem>>()?,
        consumes: consumes.collect::<Result<_, Problem>>()?,
        shareable: device.allow_multiple_allocations.unwrap_or_default(),
        access,
    })
}

/// Returns a qualified name; a name without a domain gets that of the driver.
pub fn qualified(name: &str, driver: &str) -> String {
    if name.contains('/') {
        name.to_owned()
    } else {
        format!("{driver}/{name}")
    }
}

fn attribute(value: &wire::DeviceAttribute) -> Option<Attribute> {
    value
        .int
        .map(Attribute::Int)
        .or(value.bool.map(Attribute::Bool))
        .or_else(|| value.string.clone().map(Attribute::String))
        .or_else(|| value.version.clone().map(Attribute::Version))
}

fn parse_policy(policy: &wire::CapacityRequestPolicy) -> Result<RequestPolicy, Problem> {
    let mut valid_values = policy
        .valid_values
        .iter()
        .flatten()
        .map(quantity)
        .collect::<Result<Vec<_>, _>>()?;
    valid_values.sort();
    let valid_range = match &policy.valid_range {
        Some(range) => Some((
            quantity(&range.min)?,
            range.max.as_ref().map(quantity).transpose()?,
            range.step.as_ref().map(quantity).transpose()?,
        )),
        None => None,
    };
    let default = policy.default.as_ref().map(quantity).transpose()?;
    Ok(RequestPolicy {
        default,
        valid_values,
        valid_range,
    })
}

fn quantity(wire: &WireQuantity) -> Result<Quantity, Problem> {
    wire.0.parse().map_err(|_| Problem::Quantity {
        value: wire.0.clone(),
    })
}

fn quantities<'a>(
    wire: impl Iterator<Item = (&'a String, &'a WireQuantity)>,
) -> Result<BTreeMap<String, Quantity>, Problem> {
    wire.map(|(name, value)| Ok((name.clone(), quantity(value)?)))
        .collect()
}
