//! The NodeClaims to create for the planned nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use karpenter_api::labels::annotations;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::validation::WellKnown;
use karpenter_api::{hash, labels};

use crate::pod::PodKey;
use crate::requirements::{Operator, Requirement, Requirements, Unaliased};
use crate::resources::Resources;

/// A planned node: a NodeClaim to create, with its pods and price.
///
/// The NodeClaim is built by [`to_node_claim`](Self::to_node_claim), on request only: with hundreds of instance types each, the
/// NodeClaims of a large plan need more memory than the rest of the plan, and most plans are only compared by price.
///
/// ```
/// use karpenter_api::v1::NodeClaim;
/// use karpenter_core::schedule::PlannedNodeClaim;
///
/// let mut claim = NodeClaim::default();
/// claim.metadata.generate_name = Some("default-".to_owned());
/// let planned = PlannedNodeClaim::new("default", claim.clone());
/// assert!(planned.pods.is_empty());
/// assert_eq!(planned.to_node_claim(), claim);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlannedNodeClaim {
    /// The NodePool.
    pub node_pool: String,
    /// Compatible instance types, cheapest first, truncated to the request's `max_instance_types`.
    pub instance_types: Arc<[String]>,
    /// The pods.
    pub pods: Vec<PodKey>,
    /// Capacity buffers' pods.
    pub buffer_pods: Vec<PodKey>,
    /// Requests of the pods, plus the least that DaemonSets request on any of the instance types.
    pub requests: Resources,
    /// Price of the cheapest offering in dollars per hour.
    pub hourly_price: f64,
    /// Whether minValues were lowered.
    pub min_values_relaxed: bool,
    /// Ids of the capacity reservations the instance may use.
    pub reservations: Vec<String>,
    source: Source,
    /// Set if the instance types were narrowed since: the capacity types that are left, empty if they were not narrowed.
    narrowed: Option<Vec<String>>,
}

/// The offering that a planned node is priced at, and what it was compared with. [`fmt::Display`] says why it was chosen.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CheapestOffering {
    /// The instance type.
    pub instance_type: String,
    /// The zone, if the offering has one.
    pub zone: Option<String>,
    /// `on-demand`, `spot` or `reserved`, if the offering has a capacity type.
    pub capacity_type: Option<String>,
    /// Dollars per hour.
    pub hourly_price: f64,
    /// How many instance types have room for the pods and are offered as they require, this one included.
    pub compatible_types: usize,
    /// The next instance type by price, and its price in dollars per hour.
    pub next: Option<(String, f64)>,
}

impl fmt::Display for CheapestOffering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at ${} per hour",
            self.instance_type, self.hourly_price
        )?;
        let place = [&self.capacity_type, &self.zone];
        let place: Vec<&str> = place.into_iter().flatten().map(String::as_str).collect();
        if !place.is_empty() {
            write!(f, " ({})", place.join(", "))?;
        }
        match &self.next {
            Some((next, price)) => write!(
                f,
                " is the cheapest of {} instance types that fit; the next is {next} at ${price}",
                self.compatible_types
            ),
            None => f.write_str(" is the only instance type that fits"),
        }
    }
}

/// The parts that a NodeClaim is built from.
#[derive(Clone)]
enum Source {
    Planned {
        shape: Arc<Shape>,
        /// Drivers of the devices of its pods, joined; empty without any.
        drivers: Arc<str>,
    },
    Given(Arc<NodeClaim>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Planned { shape, .. } => shape.requirements.fmt(f),
            Self::Given(claim) => claim.fmt(f),
        }
    }
}

impl PartialEq for PlannedNodeClaim {
    fn eq(&self, other: &Self) -> bool {
        self.node_pool == other.node_pool
            && self.hourly_price == other.hourly_price
            && self.instance_types == other.instance_types
            && self.pods == other.pods
            && self.buffer_pods == other.buffer_pods
            && self.requests == other.requests
            && self.min_values_relaxed == other.min_values_relaxed
            && self.reservations == other.reservations
            && self.to_node_claim() == other.to_node_claim()
    }
}

impl PlannedNodeClaim {
    /// Returns a planned node without pods, for a NodeClaim whose instance type the provider chooses.
    pub fn new(node_pool: impl Into<String>, claim: NodeClaim) -> Self {
        Self {
            node_pool: node_pool.into(),
            instance_types: Arc::from([]),
            pods: Vec::new(),
            buffer_pods: Vec::new(),
            requests: Resources::new(),
            hourly_price: 0.0,
            min_values_relaxed: false,
            reservations: Vec::new(),
            source: Source::Given(Arc::new(claim)),
            narrowed: None,
        }
    }

    /// Returns a planned node as the template of a NodePool describes it, without pods: the provider chooses its instance type.
    pub fn from_template(pool: &NodePool, names: &WellKnown) -> Self {
        let class = &pool.spec.template.spec.node_class_ref;
        let mut claim = pool.spec.template.to_node_claim();
        let own = claim.metadata.labels.get_or_insert_default();
        own.insert(labels::NODE_POOL.to_owned(), pool.name().to_owned());
        own.insert(
            labels::node_class(&class.group, &class.kind),
            class.name.clone(),
        );
        // An invalid requirement makes the NodePool invalid, and then no NodeClaim is created for it.
        if let Ok(mut requirements) = Requirements::from_api(&claim.spec.requirements, names) {
            requirements.add_all(&Requirements::from_labels(own.iter(), names));
            let custom = requirements.labels(|key| !names.contains(key) && !own.contains_key(key));
            own.extend(custom);
            claim.spec.requirements = requirements.to_node_selector_requirements();
        }
        describe_origin(&mut claim, pool);
        Self::new(pool.name(), claim)
    }

    /// Returns a planned node of a shape, without pods.
    pub(crate) fn of_shape(node_pool: &str, shape: Arc<Shape>, drivers: Arc<str>) -> Self {
        Self {
            node_pool: node_pool.to_owned(),
            instance_types: shape.instance_types.clone(),
            pods: Vec::new(),
            buffer_pods: Vec::new(),
            requests: Resources::new(),
            hourly_price: shape.hourly_price,
            min_values_relaxed: false,
            reservations: shape.reservations.clone(),
            source: Source::Planned { shape, drivers },
            narrowed: None,
        }
    }

    /// Builds the NodeClaim to create; it has a `generateName` and no name.
    pub fn to_node_claim(&self) -> NodeClaim {
        let mut claim = match &self.source {
            Source::Given(claim) => NodeClaim::clone(claim),
            Source::Planned { shape, drivers } => {
                let mut claim = shape.prototype().clone();
                claim.spec.resources.requests = self.requests.to_quantities();
                let marks = claim.metadata.annotations.get_or_insert_default();
                marks.insert(
                    annotations::MIN_VALUES_RELAXED.to_owned(),
                    self.min_values_relaxed.to_string(),
                );
                if !drivers.is_empty() {
                    marks.insert(
                        annotations::REQUESTED_DRA_DRIVERS.to_owned(),
                        drivers.to_string(),
                    );
                }
                claim
            }
        };
        if let Some(capacity_types) = &self.narrowed {
            for requirement in &mut claim.spec.requirements {
                if requirement.key == labels::INSTANCE_TYPE && requirement.operator == Operator::In
                {
                    requirement.values = self.instance_types.to_vec();
                } else if requirement.key == labels::CAPACITY_TYPE && !capacity_types.is_empty() {
                    requirement.operator = Operator::In;
                    requirement.values.clone_from(capacity_types);
                }
            }
        }
        claim
    }

    /// Narrows the instance types, and the capacity types unless those given are empty.
    pub(crate) fn narrow(
        &mut self,
        instance_types: Arc<[String]>,
        hourly_price: f64,
        capacity_types: Vec<String>,
    ) {
        self.instance_types = instance_types;
        self.hourly_price = hourly_price;
        self.narrowed = Some(capacity_types);
    }

    /// Returns the requirements of the NodeClaim without building it; for instance types only how many there must be.
    pub(crate) fn requirements(&self) -> Requirements {
        match (&self.source, &self.narrowed) {
            (Source::Planned { shape, .. }, None) => {
                let mut requirements = shape.requirements.clone();
                if shape.min_types.is_some() {
                    let any = Requirement::exists(labels::INSTANCE_TYPE);
                    requirements.replace(any.with_min_values(shape.min_types));
                }
                requirements
            }
            _ => Requirements::from_api(&self.to_node_claim().spec.requirements, &Unaliased)
                .unwrap_or_default(),
        }
    }

    /// Returns the zones in which an instance may be launched, sorted; empty if the provider chooses among all.
    pub fn zones(&self) -> Vec<String> {
        match &self.source {
            Source::Planned { shape, .. } => shape.zones.clone(),
            Source::Given(_) => self.listed(labels::ZONE),
        }
    }

    /// Returns the capacity types with which an instance may be launched, sorted; empty if the provider chooses among all.
    pub fn capacity_types(&self) -> Vec<String> {
        self.listed(labels::CAPACITY_TYPE)
    }

    /// Returns the cheapest offering, and so why the first instance type comes first. `None` if disruption narrowed the instance
    /// types, or the provider chooses among all.
    pub fn cheapest(&self) -> Option<&CheapestOffering> {
        match (&self.source, &self.narrowed) {
            (Source::Planned { shape, .. }, None) => shape.cheapest.as_ref(),
            _ => None,
        }
    }

    fn listed(&self, key: &str) -> Vec<String> {
        let requirements = self.requirements();
        let requirement = requirements.get(key);
        let requirement = requirement.filter(|requirement| !requirement.is_complement());
        let listed = requirement.into_iter().flat_map(Requirement::values);
        listed.map(str::to_owned).collect()
    }
}

/// The parts that planned nodes with the same requirements and instance types share.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) pool: Arc<NodePool>,
    pub(crate) labels: BTreeMap<String, String>,
    /// Without the list of instance types.
    pub(crate) requirements: Requirements,
    pub(crate) instance_types: Arc<[String]>,
    /// minValues of the instance type requirement.
    pub(crate) min_types: Option<u32>,
    pub(crate) hourly_price: f64,
    pub(crate) zones: Vec<String>,
    pub(crate) cheapest: Option<CheapestOffering>,
    pub(crate) overhead: Resources,
    pub(crate) reservations: Vec<String>,
    pub(crate) price_overlay: bool,
    pub(crate) capacity_overlay: bool,
    /// The NodeClaim of this shape, without pod requests; built on first access.
    pub(crate) prototype: OnceLock<Box<NodeClaim>>,
}

impl Shape {
    fn prototype(&self) -> &NodeClaim {
        self.prototype.get_or_init(|| Box::new(self.write()))
    }

    fn write(&self) -> NodeClaim {
        let mut claim = self.pool.spec.template.to_node_claim();
        let mut requirements = self.requirements.clone();
        let listed = Requirement::new(
            labels::INSTANCE_TYPE,
            Operator::In,
            self.instance_types.iter().map(String::as_str),
        );
        requirements.replace(listed.with_min_values(self.min_types));
        claim.spec.requirements = requirements.to_node_selector_requirements();
        claim.metadata.labels = Some(self.labels.clone());
        describe_origin(&mut claim, &self.pool);
        let marks = claim.metadata.annotations.get_or_insert_default();
        let mut mark = |key: &str, value: String| marks.insert(key.to_owned(), value);
        if self.price_overlay {
            mark(annotations::PRICE_OVERLAY_APPLIED, "true".to_owned());
        }
        if self.capacity_overlay {
            mark(annotations::CAPACITY_OVERLAY_APPLIED, "true".to_owned());
        }
        claim
    }
}

/// Sets the name prefix, the owner, and the hash and kubelet settings of the NodePool that a NodeClaim is created for.
fn describe_origin(claim: &mut NodeClaim, pool: &NodePool) {
    let metadata = &mut claim.metadata;
    metadata.generate_name = Some(format!("{}-", pool.name()));
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: "karpenter.sh/v1".to_owned(),
        kind: NodePool::KIND.to_owned(),
        name: pool.name().to_owned(),
        uid: pool.uid().to_owned(),
        block_owner_deletion: Some(true),
        controller: None,
    }]);
    let marks = metadata.annotations.get_or_insert_default();
    let mut mark = |key: &str, value: String| marks.insert(key.to_owned(), value);
    mark(annotations::NODE_POOL_HASH, hash::node_pool(pool));
    mark(
        annotations::NODE_POOL_HASH_VERSION,
        hash::NODE_POOL_HASH_VERSION.to_owned(),
    );
    if let Some(kubelet) = pool.kubelet_compatibility() {
        mark(annotations::KUBELET_COMPATIBILITY, kubelet.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use karpenter_fixtures::{CAPACITY_TYPE, Object, node_pool};

    use super::*;

    fn planned(pool: Object<NodePool>) -> PlannedNodeClaim {
        PlannedNodeClaim::from_template(&pool.build(), &crate::fake::well_known())
    }

    #[test]
    fn a_planned_node_from_a_template_has_the_kubelet_settings_of_v1beta1() {
        let kubelet = r#"{"maxPods":20}"#;
        let pool = node_pool("p").annotation(annotations::KUBELET_COMPATIBILITY, kubelet);
        let claim = planned(pool).to_node_claim();
        assert_eq!(claim.kubelet_compatibility(), Some(kubelet));
    }

    #[test]
    fn planned_nodes_that_differ_in_one_part_are_not_equal() {
        let planned = || planned(node_pool("p"));
        assert_eq!(planned(), planned());
        let key = || PodKey::new("default", "p", "p");
        let changes: [&dyn Fn(&mut PlannedNodeClaim); 8] = [
            &|planned| planned.node_pool = "other".into(),
            &|planned| planned.hourly_price = 1.0,
            &|planned| planned.instance_types = ["t".to_owned()].into(),
            &|planned| planned.pods = vec![key()],
            &|planned| planned.buffer_pods = vec![key()],
            &|planned| planned.requests = Resources::new().with("cpu", 1),
            &|planned| planned.min_values_relaxed = true,
            &|planned| planned.reservations = vec!["r".into()],
        ];
        for (place, change) in changes.iter().enumerate() {
            let mut other = planned();
            change(&mut other);
            assert_ne!(planned(), other, "change {place}");
        }
    }

    /// Conformance: API-076, DIS-208
    #[test]
    fn a_planned_node_is_its_template_with_owner_labels_and_hash() {
        let pool = node_pool("p")
            .node_label("team", "a")
            .class("g", "k", "n")
            .requires(CAPACITY_TYPE, "In", &["spot", "on-demand"])
            .requires("custom", "In", &["x"]);
        let claim = planned(pool.clone()).to_node_claim();
        let metadata = &claim.metadata;
        assert_eq!(metadata.generate_name.as_deref(), Some("p-"));
        assert_eq!(metadata.name, None);
        let labels = metadata.labels.iter().flatten();
        let labels: Vec<String> = labels
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let expected = ["custom=x", "g/k=n", "karpenter.sh/nodepool=p", "team=a"];
        assert_eq!(labels, expected);
        let keys = claim.spec.requirements.iter().map(|r| r.key.as_str());
        assert_eq!(
            keys.collect::<Vec<_>>(),
            [
                "custom",
                "g/k",
                "karpenter.sh/capacity-type",
                "karpenter.sh/nodepool",
                "team"
            ]
        );
        let owner = &metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((&*owner.uid, owner.block_owner_deletion), ("p", Some(true)));
        let marks = metadata.annotations.as_ref().unwrap();
        let hash = hash::node_pool(&pool.build());
        assert_eq!(marks[annotations::NODE_POOL_HASH], hash);
        let version = &marks[annotations::NODE_POOL_HASH_VERSION];
        assert_eq!(version, hash::NODE_POOL_HASH_VERSION);
    }
}
