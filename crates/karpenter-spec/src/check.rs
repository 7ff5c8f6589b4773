//! An independent judge of solutions: every placement is looked at on its own, then the order in which they can be made.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, Taint};
use karpenter_api::labels::{HOSTNAME, INSTANCE_TYPE, NODE_POOL};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::DEFAULT_RESERVATION_ID;
use karpenter_core::requirements::{AllowUndefined, Requirement, Requirements, Unaliased};
use karpenter_core::resources::{NODES, Resources};

use crate::devices::{self, Place};
use crate::order;
use crate::pod::{self, PodId};
use crate::solve::{self, Claim, Settings, Solution};
use crate::template::{self, Template};
use crate::topology::{Located, Source, Topology};
use crate::volume;
use crate::world::{Machine, World};

/// A hard rule that a solution breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{subject}: {rule}")]
pub struct Violation {
    /// The pod, machine or NodePool concerned.
    pub subject: String,
    /// What is broken.
    pub rule: String,
}

/// What the launched machines cost an hour: each the cheapest it may be. None if one cannot be launched at all.
pub fn cost(world: &World, solution: &Solution) -> Option<f64> {
    let cheapest = |claim: &Claim| {
        let offerings = types(world, claim).flat_map(|instance_type| &instance_type.offerings);
        let prices = offerings
            .filter(|offering| template::buyable(world, offering, &claim.requirements))
            .map(|offering| offering.price);
        prices.min_by(f64::total_cmp)
    };
    solution.claims.iter().map(cheapest).sum()
}

fn types<'w>(world: &'w World, claim: &'w Claim) -> impl Iterator<Item = &'w InstanceType> {
    let all = world.instance_types.get(&claim.pool).into_iter().flatten();
    all.filter(|instance_type| claim.types.contains(&instance_type.name))
}

/// Everything a solution breaks: nothing, if it is valid.
pub fn check(world: &World, settings: Settings, solution: &Solution) -> Vec<Violation> {
    let mut judge = Judge {
        world,
        settings,
        pods: solve::pods_to_place(world)
            .into_iter()
            .map(|pod| (pod::id(pod), pod))
            .collect(),
        machines: world.machines(),
        templates: template::templates(world),
        violations: vec![],
    };
    judge.everyone_once(solution);
    for machine in judge.machines.clone() {
        judge.machine(&machine, solution);
    }
    for (index, claim) in solution.claims.iter().enumerate() {
        judge.claim(&format!("claim {index} of {}", claim.pool), claim);
    }
    judge.limits(solution);
    judge.reservations(solution);
    judge.devices(solution);
    judge.topology(solution);
    judge.violations
}

/// Claims by driver.
type Attached = BTreeMap<String, BTreeSet<String>>;

struct Judge<'w> {
    world: &'w World,
    settings: Settings,
    pods: BTreeMap<PodId, &'w Pod>,
    machines: Vec<Machine>,
    templates: Vec<Template<'w>>,
    violations: Vec<Violation>,
}

impl<'w> Judge<'w> {
    fn demand(&mut self, holds: bool, subject: &str, rule: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(Violation {
                subject: subject.to_owned(),
                rule: rule(),
            });
        }
    }

    fn everyone_once(&mut self, solution: &Solution) {
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
            format!("places {seen:?}, asked for were {wanted:?}")
        });
        let names: BTreeSet<&String> = self
            .machines
            .iter()
            .filter(|machine| !machine.deleting)
            .map(|machine| &machine.name)
            .collect();
        let known = solution.existing.values().all(|name| names.contains(name));
        self.demand(known, "plan", || "uses a machine that is not there".into());
    }

    fn pods_of(&self, ids: &[PodId]) -> Vec<&'w Pod> {
        ids.iter()
            .filter_map(|id| self.pods.get(id).copied())
            .collect()
    }

    /// What holds for pods that share a host, whatever it is.
    fn neighbours(
        &mut self,
        subject: &str,
        newcomers: &[&Pod],
        taints: &[Taint],
        ports: Vec<pod::HostPort>,
    ) {
        let hard: Vec<Taint> = taints
            .iter()
            .filter(|taint| taint.effect != "PreferNoSchedule")
            .cloned()
            .collect();
        let mut taken = ports;
        for pod in newcomers {
            let name = pod.metadata.name.clone().unwrap_or_default();
            self.demand(pod::tolerates(pod, &hard), subject, || {
                format!("{name} does not tolerate its taints")
            });
            let own = pod::host_ports(pod);
            self.demand(!pod::ports_conflict(&own, &taken), subject, || {
                format!("{name} asks for a port that is taken")
            });
            taken.extend(own);
        }
    }

    fn machine(&mut self, machine: &Machine, solution: &Solution) {
        let ids: Vec<PodId> = solution
            .existing
            .iter()
            .filter(|(_, name)| **name == machine.name)
            .map(|(id, _)| id.clone())
            .collect();
        if ids.is_empty() {
            return;
        }
        let subject = format!("machine {}", machine.name);
        let newcomers = self.pods_of(&ids);
        let guests: Vec<&Pod> = self
            .world
            .pods
            .iter()
            .filter(|pod| {
                let phase = pod
                    .status
                    .as_ref()
                    .and_then(|status| status.phase.as_deref());
                pod::spec(pod).node_name.as_deref() == Some(&machine.name)
                    && !matches!(phase, Some("Failed" | "Succeeded"))
            })
            .collect();
        self.neighbours(
            &subject,
            &newcomers,
            &machine.taints,
            guests.iter().flat_map(|pod| pod::host_ports(pod)).collect(),
        );
        let mut used = Resources::new();
        let (mut before, mut attached): (Attached, Attached) = Default::default();
        for pod in guests.iter().chain(&newcomers) {
            used.add_assign(&pod::requests(pod));
            let volumes = volume::volumes(self.world, pod).unwrap_or_default();
            for (driver, claims) in volumes.attached {
                if pod::spec(pod).node_name.as_deref() == Some(&machine.name) {
                    let known = before.entry(driver.clone()).or_default();
                    known.extend(claims.iter().cloned());
                }
                attached.entry(driver).or_default().extend(claims);
            }
        }
        self.demand(
            Resources::fits(&used, &machine.allocatable),
            &subject,
            || format!("{used} is more than {}", machine.allocatable),
        );
        let csi = self
            .world
            .csi_nodes
            .iter()
            .find(|node| node.metadata.name.as_deref() == Some(&machine.name));
        for driver in csi
            .map(|node| node.spec.drivers.clone())
            .unwrap_or_default()
        {
            let limit = driver
                .allocatable
                .and_then(|limits| limits.count)
                .unwrap_or(i32::MAX);
            let count = attached.get(&driver.name).map_or(0, BTreeSet::len);
            // Whatever was attached before stays; only who attaches something more must fit.
            let attaches = count > before.get(&driver.name).map_or(0, BTreeSet::len);
            self.demand(
                !attaches || count as i64 <= i64::from(limit),
                &subject,
                || format!("attaches {count} volumes of {}", driver.name),
            );
        }
        let labels = Requirements::from_labels(&machine.labels, &Unaliased);
        for pod in newcomers {
            let fits =
                |wanted: &Requirements| labels.is_compatible(wanted, AllowUndefined::Nothing);
            self.requirements(&subject, pod, &fits);
        }
    }

    /// Node selector, some required term, and some place of the volumes.
    fn requirements(&mut self, subject: &str, pod: &Pod, fits: &dyn Fn(&Requirements) -> bool) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let terms = pod::required_terms(pod);
        let term_fits = |term| {
            Requirements::from_node_selector_term(term, &Unaliased)
                .is_ok_and(|wanted| fits(&wanted))
        };
        let accepted = fits(&pod::selector_requirements(pod))
            && (terms.is_empty() || terms.iter().any(term_fits));
        self.demand(accepted, subject, || {
            format!("{name} asks for other labels")
        });
        let volumes = volume::volumes(self.world, pod)
            .is_some_and(|volumes| volumes.alternatives.iter().any(fits));
        self.demand(volumes, subject, || format!("{name} has volumes elsewhere"));
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
        self.neighbours(subject, &pods, &taints, vec![]);
        self.demand(implies(&claim.requirements, &base), subject, || {
            "it is not of its pool".into()
        });
        let foreign = claim.requirements.iter().find(|wanted| {
            !base.contains(wanted.key())
                && !world.well_known.contains(wanted.key())
                && !wanted.allows_absent()
        });
        self.demand(foreign.is_none(), subject, || {
            format!("nothing gives its machine what it asks for: {foreign:?}")
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
                self.demand(false, subject, || format!("{name} is not of its pool"));
                continue;
            };
            let (mut total, daemon_ports) = template::daemons(world, &base, &taints, instance_type);
            total.add_assign(&requests);
            let launchable = instance_type.offerings.iter().any(|offering| {
                template::buyable(world, offering, &claim.requirements)
                    && Resources::fits(&total, &instance_type.allocatable_of(offering))
            });
            self.demand(launchable, subject, || {
                format!("no offering of {name} has room for {total}")
            });
            let labelled = instance_type
                .requirements
                .intersects(&claim.requirements)
                .is_ok();
            self.demand(labelled, subject, || format!("{name} has other labels"));
            self.demand(!pod::ports_conflict(&daemon_ports, &ports), subject, || {
                format!("a daemon on {name} has its port")
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
        let mut capacity: BTreeMap<String, u32> = BTreeMap::new();
        for offering in self
            .templates
            .iter()
            .flat_map(|template| template.types)
            .flat_map(|t| &t.offerings)
        {
            if let Some(id) = offering.single(DEFAULT_RESERVATION_ID) {
                let least = capacity
                    .entry(id.to_owned())
                    .or_insert(offering.reservation_capacity);
                *least = offering.reservation_capacity.min(*least);
            }
        }
        for (id, slots) in capacity {
            self.demand(held(&id) <= slots as usize, &id, || {
                format!("held more than {slots} times")
            });
        }
    }

    /// Whether the resource claims of pods can be served where the pods were put.
    fn devices(&mut self, solution: &Solution) {
        let with_claims = |ids: &mut dyn Iterator<Item = &PodId>| -> Vec<&'w Pod> {
            let pods = ids.filter_map(|id| self.pods.get(id).copied());
            pods.filter(|pod| devices::has_claims(pod)).collect()
        };
        let mut places: Vec<Place<'_>> = Vec::new();
        for machine in &self.machines {
            let here = solution
                .existing
                .iter()
                .filter(|(_, name)| **name == machine.name);
            let pods = with_claims(&mut here.map(|(id, _)| id));
            let labels = Requirements::from_labels(&machine.labels, &Unaliased);
            places.push(Place {
                subject: format!("machine {}", machine.name),
                node: machine.initialized.then(|| machine.name.clone()),
                pods,
                meets: Box::new(move |all| labels.is_compatible(all, AllowUndefined::Nothing)),
                brings: vec![self.to_come(machine)],
            });
        }
        for (index, claim) in solution.claims.iter().enumerate() {
            places.push(Place {
                subject: format!("claim {index} of {}", claim.pool),
                node: None,
                pods: with_claims(&mut claim.pods.iter()),
                meets: Box::new(|all| implies(&claim.requirements, all)),
                brings: types(self.world, claim).map(devices::brought).collect(),
            });
        }
        places.retain(|place| !place.pods.is_empty());
        let counts = |name: &str| {
            let mut machines = self.machines.iter();
            machines.any(|machine| machine.name == name && machine.initialized && !machine.deleting)
        };
        let moves = |uid: &str| {
            let mut moving = self
                .pods
                .values()
                .filter(|pod| pod::spec(pod).node_name.is_some());
            moving.any(|pod| pod.metadata.uid.as_deref() == Some(uid))
        };
        for (subject, rule) in devices::unserved(self.world, &places, &counts, &moves) {
            self.violations.push(Violation { subject, rule });
        }
    }

    /// The devices that a machine will publish once it is initialised.
    fn to_come(&self, machine: &Machine) -> Vec<devices::Device> {
        let pool = machine
            .labels
            .get(NODE_POOL)
            .filter(|_| !machine.initialized);
        let template = (self.templates.iter())
            .find(|template| Some(template.pool.name()) == pool.map(String::as_str));
        let name = machine.labels.get(INSTANCE_TYPE);
        let mut types = template.into_iter().flat_map(|template| template.types);
        let found = types.find(|instance_type| Some(&instance_type.name) == name);
        found.map(devices::brought).unwrap_or_default()
    }

    /// Looks for an order in which every placement keeps all topology constraints.
    fn topology(&mut self, solution: &Solution) {
        let nodes: Vec<(Requirements, Machine)> = self
            .machines
            .iter()
            .map(|machine| {
                (
                    Requirements::from_labels(&machine.labels, &Unaliased),
                    machine.clone(),
                )
            })
            .collect();
        let claims: Vec<(Requirements, Vec<Taint>)> = solution
            .claims
            .iter()
            .enumerate()
            .map(|(index, claim)| {
                let mut host = claim.requirements.clone();
                host.replace(Requirement::equal(HOSTNAME, &format!("claim-{index}")));
                let template = self
                    .templates
                    .iter()
                    .find(|template| template.pool.name() == claim.pool);
                (
                    host,
                    template
                        .map(|template| template.taints.clone())
                        .unwrap_or_default(),
                )
            })
            .collect();
        let mut sources: Vec<Source> = self
            .templates
            .iter()
            .flat_map(|template| template.sources(self.settings.strict_min_values))
            .collect();
        sources.extend(nodes.iter().filter(|(_, machine)| !machine.deleting).map(
            |(labels, machine)| Source {
                labels: labels.clone(),
                taints: machine.taints.clone(),
                pool: None,
            },
        ));
        let on_node = |name: &str| {
            nodes
                .iter()
                .find(|(_, machine)| machine.name == name)
                .map(|(l, m)| (l, m.taints.as_slice()))
        };
        let located = |pod: &'w Pod, host: Option<(&'_ Requirements, &'_ [Taint])>| {
            host.map(|(host, taints)| (pod, host.clone(), taints.to_vec()))
        };
        let here: Vec<(&Pod, Requirements, Vec<Taint>)> = self
            .world
            .pods
            .iter()
            .filter(|pod| !self.pods.contains_key(&pod::id(pod)) && pod::is_active(pod))
            .filter_map(|pod| located(pod, on_node(pod::spec(pod).node_name.as_deref()?)))
            .collect();
        let on_nodes = solution
            .existing
            .iter()
            .filter_map(|(id, name)| located(self.pods.get(id)?, on_node(name)));
        let on_claims = solution
            .claims
            .iter()
            .zip(&claims)
            .flat_map(|(claim, (host, taints))| {
                claim
                    .pods
                    .iter()
                    .filter_map(|id| located(self.pods.get(id)?, Some((host, taints.as_slice()))))
            });
        let mut newcomers: Vec<(&Pod, Requirements, Vec<Taint>)> =
            on_nodes.chain(on_claims).collect();
        // Those that ask for something go first: the others cannot be in their way then.
        newcomers.sort_by_key(|(pod, ..)| {
            let asks = pod::spread_constraints(pod, false).len()
                + pod::affinity_terms(pod, false).len()
                + pod::anti_affinity_terms(pod, false).len();
            (asks == 0, pod::id(pod))
        });
        let view = |here: &'_ [(&'w Pod, Requirements, Vec<Taint>)],
                    pod: &Pod,
                    host: &Requirements|
         -> bool {
            let located = here
                .iter()
                .map(|(pod, host, taints)| Located { pod, host, taints })
                .collect();
            let topology = Topology {
                world: self.world,
                located,
                sources: &sources,
                respect_preferences: false,
                tolerate_soft_taints: true,
            };
            readings(pod).iter().any(|(pod, strict)| {
                topology
                    .options(pod, strict, host)
                    .iter()
                    .all(|options| options.iter().any(|option| covers(option, host, &sources)))
            })
        };
        let alike = |a: &Pod, b: &Pod| {
            (&a.spec, &a.metadata.labels, &a.metadata.namespace)
                == (&b.spec, &b.metadata.labels, &b.metadata.namespace)
        };
        let classes: Vec<usize> = newcomers
            .iter()
            .map(|(pod, host, taints)| {
                let same = |(other, on, tainted): &(&Pod, Requirements, Vec<Taint>)| {
                    alike(pod, other) && (host, taints) == (on, tainted)
                };
                newcomers.iter().position(same).unwrap_or_default()
            })
            .collect();
        let may = |done: &[usize], next: usize| {
            let done = done.iter().map(|index| newcomers[*index].clone());
            let there: Vec<_> = here.iter().cloned().chain(done).collect();
            let (pod, host, _) = &newcomers[next];
            view(&there, pod, host)
        };
        let stuck: Vec<String> = order::stuck(&classes, may)
            .into_iter()
            .map(|index| pod::id(newcomers[index].0).name)
            .collect();
        self.demand(stuck.is_empty(), "topology", || {
            format!("no order of placements is valid; stuck at {stuck:?}")
        });
    }
}

/// The ways to read alternatives: each required term in turn bounds the pod's domains, with or without those given up before it.
fn readings(pod: &Pod) -> Vec<(Pod, Requirements)> {
    let mut readings = vec![(
        pod.clone(),
        pod::strict_requirements(pod).unwrap_or_default(),
    )];
    let mut rest = pod.clone();
    while pod::required_terms(&rest).len() > 1 {
        rest = match pod::relax(&rest, false) {
            Some(relaxed) => relaxed,
            None => break,
        };
        let strict = pod::strict_requirements(&rest).unwrap_or_default();
        readings.extend([(rest.clone(), strict.clone()), (pod.clone(), strict)]);
    }
    readings
}

/// Whether all domains in which the host can be satisfy the option.
fn covers(option: &Requirement, host: &Requirements, sources: &[Source]) -> bool {
    let key = option.key();
    let Some(own) = host.get(key) else {
        let known = sources
            .iter()
            .filter_map(|source| source.labels.get(key))
            .filter(|r| !r.is_complement());
        return !sources.is_empty()
            && known
                .flat_map(Requirement::values)
                .all(|domain| option.has(domain));
    };
    own.intersection(option).is_empty() == own.is_empty()
        && if own.is_complement() {
            let known = sources
                .iter()
                .filter_map(|source| source.labels.get(key))
                .filter(|r| !r.is_complement());
            known
                .flat_map(Requirement::values)
                .filter(|domain| own.has(domain))
                .all(|domain| option.has(domain))
        } else {
            own.values().all(|domain| option.has(domain))
        }
}

/// Whether whatever satisfies the requirements satisfies the wanted ones.
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
