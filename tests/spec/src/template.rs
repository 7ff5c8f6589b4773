//! What can be launched: NodePools as templates, their daemon overhead, and their launchable offerings (sections 6, 7 and 14).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};
use karpenter_api::conditions::types::READY;
use karpenter_api::labels;
use karpenter_api::v1::NodePool;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::{DEFAULT_RESERVATION_ID, Offering};
use karpenter_core::requirements::{AllowUndefined, Requirement, Requirements, Unaliased};
use karpenter_core::resources::Resources;

use crate::pod;
use crate::pod::HostPort;
use crate::topology::Source;
use crate::world::World;

/// A NodePool as a template for claims.
pub(crate) struct Template<'w> {
    pub pool: &'w NodePool,
    pub requirements: Requirements,
    pub taints: Vec<Taint>,
    pub types: &'w [InstanceType],
    /// The rest of the limits; only resources that have a limit.
    pub remaining: Resources,
}

/// Returns how many instances each capacity reservation has left: the lowest number of its offerings.
pub(crate) fn reservations(templates: &[Template<'_>]) -> BTreeMap<String, u32> {
    let types = templates.iter().flat_map(|template| template.types);
    let mut capacity: BTreeMap<String, u32> = BTreeMap::new();
    for offering in types.flat_map(|instance_type| &instance_type.offerings) {
        if let Some(id) = offering.single(DEFAULT_RESERVATION_ID) {
            let left = offering.reservation_capacity;
            let least = capacity.entry(id.to_owned()).or_insert(left);
            *least = left.min(*least);
        }
    }
    capacity
}

/// Returns the NodePools that can launch, in the order in which they are tried (section 6).
pub(crate) fn templates(world: &World) -> Vec<Template<'_>> {
    let ready = |pool: &NodePool| {
        pool.status
            .conditions
            .iter()
            .any(|c| c.type_ == READY && c.status == "True")
    };
    let mut pools: Vec<&NodePool> = world
        .node_pools
        .iter()
        .filter(|p| !p.is_static() && !p.is_deleting() && ready(p))
        .collect();
    pools.sort_by(|a, b| {
        b.weight()
            .cmp(&a.weight())
            .then_with(|| b.name().cmp(a.name()))
    });
    let template = |pool: &'_ &'_ NodePool| {
        let (metadata, spec) = (&pool.spec.template.metadata, &pool.spec.template.spec);
        let mut requirements = Requirements::from_api(&spec.requirements, &Unaliased).ok()?;
        requirements.add_all(&Requirements::from_labels(
            &metadata.labels.clone().unwrap_or_default(),
            &Unaliased,
        ));
        requirements.add(Requirement::equal(labels::NODE_POOL, pool.name()));
        requirements.add(Requirement::equal(
            &spec.node_class_ref.label_key(),
            &spec.node_class_ref.name,
        ));
        let limits = Resources::allocatable_from(&pool.spec.limits).ok()?;
        let usage = world.usage(pool.name());
        let remaining = limits
            .iter()
            .map(|(name, limit)| (name, limit.saturating_sub(usage.get(name))))
            .collect();
        Some((
            requirements,
            spec.taints.clone().unwrap_or_default(),
            remaining,
        ))
    };
    pools
        .into_iter()
        .filter_map(|pool| {
            let types = world
                .instance_types
                .get(pool.name())
                .filter(|types| !types.is_empty())?;
            let (requirements, taints, remaining) = template(&pool)?;
            Some(Template {
                pool,
                requirements,
                taints,
                types,
                remaining,
            })
        })
        .collect()
}

impl Template<'_> {
    /// Returns the kinds of nodes it can launch and, if there are any, the values that the NodePool itself lists (section 10).
    ///
    /// DIFFERS: instance types that are unavailable, or that the NodePool excludes, provide no domains; nor does a NodePool that
    /// cannot launch anything because its minValues exceed the values there are.
    pub fn sources(&self, strict_min_values: bool) -> Vec<Source> {
        let source = |labels: Requirements, offerings: &[Offering]| Source {
            labels,
            offerings: offerings.to_vec(),
            taints: self.taints.clone(),
            pool: Some(self.requirements.clone()),
        };
        let meets = |wanted: &Requirements| self.requirements.intersects(wanted).is_ok();
        let launched = |instance_type: &&InstanceType| {
            let offerings = instance_type.offerings.iter();
            meets(&instance_type.requirements)
                && offerings
                    .filter(|offering| offering.available)
                    .any(|offering| meets(&offering.requirements))
        };
        let launched: Vec<&InstanceType> = self.types.iter().filter(launched).collect();
        let unmet = |requirement: &Requirement| {
            let distinct = distinct_values(requirement.key(), launched.iter().copied());
            requirement
                .min_values()
                .is_some_and(|least| distinct < least as usize)
        };
        if strict_min_values && self.requirements.iter().any(unmet) {
            return vec![];
        }
        let mut sources: Vec<Source> = launched
            .iter()
            .map(|instance_type| {
                let mut labels = self.requirements.clone();
                labels.add_all(&instance_type.requirements);
                source(labels, &instance_type.offerings)
            })
            .collect();
        if !sources.is_empty() {
            sources.push(source(self.requirements.clone(), &[]));
        }
        sources
    }
}

/// Returns the requests and host ports of the daemon pods that would run on an instance type of a template (section 7).
pub(crate) fn daemons(
    world: &World,
    template: &Requirements,
    taints: &[Taint],
    instance_type: &InstanceType,
) -> (Resources, Vec<HostPort>) {
    let mut joined = template.clone();
    joined.add(Requirement::equal(labels::REGISTERED, "true"));
    joined.add(Requirement::equal(labels::INITIALIZED, "true"));
    let undefined = AllowUndefined::Keys(&world.well_known);
    sum_daemons(world, taints, |wanted| {
        joined.is_compatible(wanted, undefined)
            && instance_type.requirements.intersects(wanted).is_ok()
    })
}

pub(crate) fn sum_daemons(
    world: &World,
    taints: &[Taint],
    fits: impl Fn(&Requirements) -> bool,
) -> (Resources, Vec<HostPort>) {
    let (mut sum, mut ports) = (Resources::new(), Vec::new());
    for daemon in daemon_pods(world) {
        let selector = pod::selector_requirements(&daemon);
        let terms = pod::required_terms(&daemon);
        let some_term_fits = terms.iter().any(|term| {
            Requirements::from_node_selector_term(term, &Unaliased).is_ok_and(|mut wanted| {
                wanted.add_all(&selector);
                fits(&wanted)
            })
        });
        if pod::tolerates(&daemon, taints)
            && (some_term_fits || (terms.is_empty() && fits(&selector)))
        {
            sum.add_assign(&pod::requests(&daemon));
            ports.extend(pod::host_ports(&daemon));
        }
    }
    (sum, ports)
}

fn daemon_pods(world: &World) -> Vec<Pod> {
    let pods = world.daemon_sets.iter().map(|set| {
        let template = set.spec.clone().unwrap_or_default().template;
        let mut pod = Pod {
            metadata: template.metadata.unwrap_or_default(),
            spec: template.spec,
            status: None,
        };
        let spec = pod.spec.get_or_insert_default();
        let anything = Toleration {
            operator: Some("Exists".into()),
            effect: Some("PreferNoSchedule".into()),
            ..Toleration::default()
        };
        spec.tolerations.get_or_insert_default().push(anything);
        for container in spec
            .containers
            .iter_mut()
            .chain(spec.init_containers.iter_mut().flatten())
        {
            if let Some(resources) = &mut container.resources {
                for (name, limit) in resources.limits.iter().flatten() {
                    resources
                        .requests
                        .get_or_insert_default()
                        .entry(name.clone())
                        .or_insert_with(|| limit.clone());
                }
            }
        }
        pod
    });
    pods.collect()
}

/// Returns whether an offering is available and compatible with the requirements.
pub(crate) fn launchable(world: &World, offering: &Offering, requirements: &Requirements) -> bool {
    offering.available
        && requirements.is_compatible(
            &offering.requirements,
            AllowUndefined::Keys(&world.well_known),
        )
}

/// Returns how many distinct values of a key the instance types have.
pub(crate) fn distinct_values<'a>(
    key: &str,
    types: impl Iterator<Item = &'a InstanceType>,
) -> usize {
    let lists = types
        .filter_map(|instance_type| instance_type.requirements.get(key))
        .filter(|r| !r.is_complement());
    lists
        .flat_map(Requirement::values)
        .collect::<BTreeSet<&str>>()
        .len()
}
