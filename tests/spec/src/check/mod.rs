//! An independent checker of solutions: verifies every placement on its own, then searches for an order of all placements.

mod topology;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, Taint};
use karpenter_api::labels::{INSTANCE_TYPE, NODE_POOL};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::DEFAULT_RESERVATION_ID;
use karpenter_core::requirements::{AllowUndefined, Requirements, Unaliased};
use karpenter_core::resources::{NODES, Resources};

use crate::devices::Place;
use crate::pod::PodId;
use crate::solve::{Claim, Solution, SolveSettings};
use crate::template::Template;
use crate::world::{SpecNode, World};
use crate::{devices, pod, solve, template, volume};

/// A hard rule that a solution breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{subject}: {rule}")]
pub struct Violation {
    /// The pod, node, claim or NodePool that breaks the rule.
    pub subject: String,
    pub rule: String,
}

/// Returns the hourly price of the claims, each at its cheapest offering, or None if a claim cannot be launched.
pub fn cost(world: &World, solution: &Solution) -> Option<f64> {
    let cheapest = |claim: &Claim| {
        let offerings = types(world, claim).flat_map(|instance_type| &instance_type.offerings);
        let prices = offerings
            .filter(|offering| template::launchable(world, offering, &claim.requirements))
            .map(|offering| offering.price);
        prices.min_by(f64::total_cmp)
    };
    solution.claims.iter().map(cheapest).sum()
}

fn types<'w>(world: &'w World, claim: &'w Claim) -> impl Iterator<Item = &'w InstanceType> {
    let all = world.instance_types.get(&claim.pool).into_iter().flatten();
    all.filter(|instance_type| claim.types.contains(&instance_type.name))
}

/// Returns the rules that a solution breaks: none, if it is valid.
pub fn check(world: &World, settings: SolveSettings, solution: &Solution) -> Vec<Violation> {
    let mut checker = Checker {
        world,
        settings,
        pods: solve::pods_to_place(world)
            .into_iter()
            .map(|pod| (pod::id(pod), pod))
            .collect(),
        nodes: world.nodes(),
        templates: template::templates(world),
        violations: vec![],
    };
    checker.each_pod_once(solution);
    for node in checker.nodes.clone() {
        checker.node(&node, solution);
    }
    for (index, claim) in solution.claims.iter().enumerate() {
        checker.claim(&format!("claim {index} of {}", claim.pool), claim);
    }
    checker.limits(solution);
    checker.reservations(solution);
    checker.devices(solution);
    checker.topology(solution);
    checker.violations
}

/// Volume claims by CSI driver.
type Attached = BTreeMap<String, BTreeSet<String>>;

struct Checker<'w> {
    world: &'w World,
    settings: SolveSettings,
    pods: BTreeMap<PodId, &'w Pod>,
    nodes: Vec<SpecNode>,
    templates: Vec<Template<'w>>,
    violations: Vec<Violation>,
}

impl<'w> Checker<'w> {
    fn demand(&mut self, holds: bool, subject: &str, rule: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(Violation {
                subject: subject.to_owned(),
                rule: rule(),
            });
        }
    }

    fn each_pod_once(&mut self, solution: &Solution) {
        let in_claims = solution.claims.iter().flat_map(|claim| &claim.pods);
        let mut seen: Vec<&PodId> = solution
            .existing
            .keys()
            .chain(in_claims)
            .chain(&solution.unplaced)
            .collect();
        seen.sort();
        let wanted: Vec<PodId> = self.pods.keys().cloned().collect();
        let same = seen.iter().copied().eq(&wanted);
        self.demand(same, "plan", || {
            format!("decides {seen:?}, expected {wanted:?}")
        });
        let names: BTreeSet<&String> = self
            .nodes
            .iter()
            .filter(|node| !node.deleting)
            .map(|node| &node.name)
            .collect();
        let known = solution.existing.values().all(|name| names.contains(name));
        self.demand(known, "plan", || "uses a node that does not exist".into());
    }

    fn pods_of(&self, ids: &[PodId]) -> Vec<&'w Pod> {
        ids.iter()
            .filter_map(|id| self.pods.get(id).copied())
            .collect()
    }

    /// Checks taints and host ports of pods on one existing or planned node.
    fn taints_and_ports(
        &mut self,
        subject: &str,
        new_pods: &[&Pod],
        taints: &[Taint],
        ports: Vec<pod::HostPort>,
    ) {
        let hard: Vec<Taint> = taints
            .iter()
            .filter(|taint| taint.effect != "PreferNoSchedule")
            .cloned()
            .collect();
        let mut used = ports;
        for pod in new_pods {
            let name = pod.metadata.name.clone().unwrap_or_default();
            self.demand(pod::tolerates(pod, &hard), subject, || {
                format!("{name} does not tolerate its taints")
            });
            let own = pod::host_ports(pod);
            self.demand(!pod::ports_conflict(&own, &used), subject, || {
                format!("{name} requests a host port that is in use")
            });
            used.extend(own);
        }
    }

    fn node(&mut self, node: &SpecNode, solution: &Solution) {
        let ids: Vec<PodId> = solution
            .existing
            .iter()
            .filter(|(_, name)| **name == node.name)
            .map(|(id, _)| id.clone())
            .collect();
        if ids.is_empty() {
            return;
        }
        let subject = format!("node {}", node.name);
        let new_pods = self.pods_of(&ids);
        let running: Vec<&Pod> = self
            .world
            .pods
            .iter()
            .filter(|pod| {
                let phase = pod
                    .status
                    .as_ref()
                    .and_then(|status| status.phase.as_deref());
                pod::spec(pod).node_name.as_deref() == Some(&node.name)
                    && !matches!(phase, Some("Failed" | "Succeeded"))
            })
            .collect();
        self.taints_and_ports(
            &subject,
            &new_pods,
            &node.taints,
            running
                .iter()
                .flat_map(|pod| pod::host_ports(pod))
                .collect(),
        );
        let mut used = Resources::new();
        let (mut before, mut attached): (Attached, Attached) = Default::default();
        for pod in running.iter().chain(&new_pods) {
            used.add_assign(&pod::requests(pod));
            let volumes = volume::volumes(self.world, pod).unwrap_or_default();
            for (driver, claims) in volumes.attached {
                if pod::spec(pod).node_name.as_deref() == Some(&node.name) {
                    let known = before.entry(driver.clone()).or_default();
                    known.extend(claims.iter().cloned());
                }
                attached.entry(driver).or_default().extend(claims);
            }
        }
        self.demand(Resources::fits(&used, &node.allocatable), &subject, || {
            format!("{used} is more than {}", node.allocatable)
        });
        let csi = self
            .world
            .csi_nodes
            .iter()
            .find(|csi| csi.metadata.name.as_deref() == Some(&node.name));
        for driver in csi.map(|csi| csi.spec.drivers.clone()).unwrap_or_default() {
            let limit = driver
                .allocatable
                .and_then(|limits| limits.count)
                .unwrap_or(i32::MAX);
            let count = attached.get(&driver.name).map_or(0, BTreeSet::len);
            // Attached volumes stay; only a pod that attaches another volume must fit.
            let attaches = count > before.get(&driver.name).map_or(0, BTreeSet::len);
            self.demand(
                !attaches || count as i64 <= i64::from(limit),
                &subject,
                || format!("attaches {count} volumes of {}", driver.name),
            );
        }
        let labels = Requirements::from_labels(&node.labels, &Unaliased);
        for pod in new_pods {
            let fits =
                |wanted: &Requirements| labels.is_compatible(wanted, AllowUndefined::Nothing);
            self.requirements(&subject, pod, &fits);
        }
    }

    /// Checks the node selector, that one required term fits, and that one alternative of the volumes fits.
    fn requirements(&mut self, subject: &str, pod: &Pod, fits: &dyn Fn(&Requirements) -> bool) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        self.demand(pod::accepts(pod, fits), subject, || {
            format!("{name} requires other labels")
        });
        let volumes = volume::volumes(self.world, pod)
            .is_some_and(|volumes| volumes.alternatives.iter().any(fits));
        self.demand(volumes, subject, || {
            format!("{name} has volumes that are not accessible there")
        });
    }

    fn claim(&mut self, subject: &str, claim: &Claim) {
        let world = self.world;
        let Some(template) = self
            .templates
            .iter()
            .position(|template| template.pool.name() == claim.pool)
        else {
            return self.demand(false, subject, || "its pool cannot launch".into());
        };
        let (base, taints) = (
            self.templates[template].requirements.clone(),
            self.templates[template].taints.clone(),
        );
        let all_types: BTreeMap<&str, &InstanceType> = self.templates[template]
            .types
            .iter()
            .map(|t| (t.name.as_str(), t))
            .collect();
        let pods = self.pods_of(&claim.pods);
        self.demand(!pods.is_empty(), subject, || "it has no pods".into());
        self.demand(!claim.types.is_empty(), subject, || {
            "it has no instance types".into()
        });
        self.taints_and_ports(subject, &pods, &taints, vec![]);
        self.demand(implies(&claim.requirements, &base), subject, || {
            "it does not meet the requirements of its pool".into()
        });
        let foreign = claim.requirements.iter().find(|wanted| {
            !base.contains(wanted.key())
                && !world.well_known.contains(wanted.key())
                && !wanted.allows_absent()
        });
        self.demand(foreign.is_none(), subject, || {
            format!("neither its pool nor an instance type provides {foreign:?}")
        });
        for pod in &pods {
            self.requirements(subject, pod, &|wanted| implies(&claim.requirements, wanted));
        }
        let mut requests = Resources::new();
        pods.iter()
            .for_each(|pod| requests.add_assign(&pod::requests(pod)));
        let ports: Vec<pod::HostPort> = pods.iter().flat_map(|pod| pod::host_ports(pod)).collect();
        for name in &claim.types {
            let Some(instance_type) = all_types.get(name.as_str()) else {
                self.demand(false, subject, || {
                    format!("{name} is not an instance type of its pool")
                });
                continue;
            };
            let (mut total, daemon_ports) = template::daemons(world, &base, &taints, instance_type);
            total.add_assign(&requests);
            let has_room = instance_type.offerings.iter().any(|offering| {
                template::launchable(world, offering, &claim.requirements)
                    && Resources::fits(&total, &instance_type.allocatable_of(offering))
            });
            self.demand(has_room, subject, || {
                format!("no offering of {name} has room for {total}")
            });
            let labeled = instance_type
                .requirements
                .intersects(&claim.requirements)
                .is_ok();
            self.demand(labeled, subject, || format!("{name} has other labels"));
            self.demand(!pod::ports_conflict(&daemon_ports, &ports), subject, || {
                format!("a daemon on {name} uses its host port")
            });
        }
        if self.settings.strict_min_values {
            for requirement in base
                .iter()
                .filter(|requirement| requirement.min_values().is_some())
            {
                let distinct = template::distinct_values(requirement.key(), types(world, claim));
                let enough = requirement
                    .min_values()
                    .is_none_or(|least| distinct >= least as usize);
                self.demand(enough, subject, || {
                    format!("{distinct} values of {}", requirement.key())
                });
            }
        }
    }

    fn limits(&mut self, solution: &Solution) {
        for template in 0..self.templates.len() {
            let (name, remaining) = (
                self.templates[template].pool.name().to_owned(),
                self.templates[template].remaining.clone(),
            );
            let claims: Vec<&Claim> = solution
                .claims
                .iter()
                .filter(|claim| claim.pool == name)
                .collect();
            let mut launched = Resources::new().with(NODES, claims.len() as i64);
            for claim in &claims {
                let mut largest = Resources::new();
                types(self.world, claim)
                    .for_each(|instance_type| largest.max_assign(&instance_type.capacity));
                launched.add_assign(&largest);
            }
            for (resource, left) in remaining.iter().filter(|_| !claims.is_empty()) {
                let much = launched.get(resource);
                self.demand(much <= left, &format!("pool {name}"), || {
                    format!("launches {much} {resource} of {left} left")
                });
            }
        }
    }

    fn reservations(&mut self, solution: &Solution) {
        let held = |id: &str| {
            let holds = |claim: &&Claim| {
                claim
                    .requirements
                    .get(DEFAULT_RESERVATION_ID)
                    .is_some_and(|ids| !ids.is_complement() && ids.has(id))
            };
            solution.claims.iter().filter(holds).count()
        };
        for (id, slots) in template::reservations(&self.templates) {
            self.demand(held(&id) <= slots as usize, &id, || {
                format!("held more than {slots} times")
            });
        }
    }

    /// Checks that devices satisfy the resource claims of pods where the pods are placed.
    fn devices(&mut self, solution: &Solution) {
        let with_claims = |ids: &mut dyn Iterator<Item = &PodId>| -> Vec<&'w Pod> {
            let pods = ids.filter_map(|id| self.pods.get(id).copied());
            pods.filter(|pod| devices::has_claims(pod)).collect()
        };
        let mut places: Vec<Place<'_>> = Vec::new();
        for node in &self.nodes {
            let here = solution
                .existing
                .iter()
                .filter(|(_, name)| **name == node.name);
            let pods = with_claims(&mut here.map(|(id, _)| id));
            let labels = Requirements::from_labels(&node.labels, &Unaliased);
            places.push(Place {
                subject: format!("node {}", node.name),
                node: node.initialized.then(|| node.name.clone()),
                pods,
                meets: Box::new(move |all| labels.is_compatible(all, AllowUndefined::Nothing)),
                devices: vec![self.expected_devices(node)],
            });
        }
        for (index, claim) in solution.claims.iter().enumerate() {
            places.push(Place {
                subject: format!("claim {index} of {}", claim.pool),
                node: None,
                pods: with_claims(&mut claim.pods.iter()),
                meets: Box::new(|all| implies(&claim.requirements, all)),
                devices: types(self.world, claim).map(devices::of_type).collect(),
            });
        }
        places.retain(|place| !place.pods.is_empty());
        let counts = |name: &str| {
            let mut nodes = self.nodes.iter();
            nodes.any(|node| node.name == name && node.initialized && !node.deleting)
        };
        let moves = |uid: &str| {
            let mut moving = self
                .pods
                .values()
                .filter(|pod| pod::spec(pod).node_name.is_some());
            moving.any(|pod| pod.metadata.uid.as_deref() == Some(uid))
        };
        for (subject, rule) in devices::unsatisfied(self.world, &places, &counts, &moves) {
            self.violations.push(Violation { subject, rule });
        }
    }

    /// Returns the devices that a node will publish once it is initialized.
    fn expected_devices(&self, node: &SpecNode) -> Vec<devices::Device> {
        let pool = node.labels.get(NODE_POOL).filter(|_| !node.initialized);
        let template = (self.templates.iter())
            .find(|template| Some(template.pool.name()) == pool.map(String::as_str));
        let name = node.labels.get(INSTANCE_TYPE);
        let mut types = template.into_iter().flat_map(|template| template.types);
        let found = types.find(|instance_type| Some(&instance_type.name) == name);
        found.map(devices::of_type).unwrap_or_default()
    }
}

/// Returns whether all labels that satisfy the given requirements satisfy the wanted ones.
fn implies(given: &Requirements, wanted: &Requirements) -> bool {
    wanted.iter().all(|wanted| match given.get(wanted.key()) {
        Some(given) => {
            let (given, both) = (
                given.clone().with_min_values(None),
                given.intersection(wanted).with_min_values(None),
            );
            given == both
        }
        None => wanted.allows_absent(),
    })
}
