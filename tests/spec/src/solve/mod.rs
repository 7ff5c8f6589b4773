//! The naive solver: first fit, pod by pod, recomputing everything for each pod (sections 4 to 15).

mod claim;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use karpenter_api::labels;
use karpenter_api::labels::{CAPACITY_TYPE, CAPACITY_TYPE_RESERVED, HOSTNAME};
use karpenter_core::offering::DEFAULT_RESERVATION_ID;
use karpenter_core::requirements::{
    AllowUndefined, Operator, Requirement, Requirements, Unaliased,
};
use karpenter_core::resources::{CPU, MEMORY, Resources};

use crate::pod::{HostPort, PodId};
use crate::template::{Template, launchable, reservations, sum_daemons, templates};
use crate::topology::{Located, Source, Topology};
use crate::world::{SpecNode, World};
use crate::{pod, volume};

/// How a pass treats preferences, minValues and reservations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SolveSettings {
    /// Preferences count until they are relaxed; else they are ignored.
    pub respect_preferences: bool,
    /// An unmet minValues fails the claim; else it is lowered.
    pub strict_min_values: bool,
    /// A pod waits for a reservation that is in use; else it uses other capacity.
    pub strict_reserved: bool,
}

impl Default for SolveSettings {
    fn default() -> Self {
        SolveSettings {
            respect_preferences: true,
            strict_min_values: true,
            strict_reserved: true,
        }
    }
}

/// A NodeClaim to launch.
#[derive(Clone, PartialEq)]
pub struct Claim {
    pub pool: String,
    /// The labels that its node may have.
    pub requirements: Requirements,
    /// The names of its instance types.
    pub types: Vec<String>,
    /// The pods planned on it.
    pub pods: Vec<PodId>,
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {:?} for {:?}: {}",
            self.pool, self.types, self.pods, self.requirements
        )
    }
}

/// The placement of every pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Solution {
    /// Pods placed on existing nodes, with the node's name.
    pub existing: BTreeMap<PodId, String>,
    pub claims: Vec<Claim>,
    /// Pods that fit nowhere.
    pub unplaced: BTreeSet<PodId>,
}

struct Node {
    state: SpecNode,
    labels: Requirements,
    remaining: Resources,
    ports: Vec<HostPort>,
    attached: BTreeMap<String, BTreeSet<String>>,
    limits: BTreeMap<String, i64>,
}

#[derive(Clone)]
struct OpenClaim {
    template: usize,
    requirements: Requirements,
    types: Vec<usize>,
    pods: Vec<usize>,
    requests: Resources,
    ports: Vec<HostPort>,
    reserved: BTreeSet<String>,
}

enum Host {
    Node(usize),
    Claim(usize),
}

enum Refusal {
    /// It does not fit.
    Unfit,
    /// It would fit once reserved capacity in use becomes free.
    Reserved,
}

struct Solver<'w> {
    world: &'w World,
    settings: SolveSettings,
    templates: Vec<Template<'w>>,
    sources: Vec<Source>,
    nodes: Vec<Node>,
    bound: Vec<(&'w Pod, usize)>,
    pods: Vec<&'w Pod>,
    placed: Vec<(usize, Host)>,
    claims: Vec<OpenClaim>,
    reservations: BTreeMap<String, u32>,
}

/// Places the pending pods of a cluster and those of deleting nodes.
pub fn solve(world: &World, settings: SolveSettings) -> Solution {
    let mut solver = Solver::new(world, settings);
    solver.run();
    solver.solution()
}

/// Returns the pods to place: unschedulable ones, and those of deleting nodes (section 2).
pub(crate) fn pods_to_place(world: &World) -> Vec<&Pod> {
    let nodes = world.nodes();
    let leaving = |pod: &Pod| {
        let name = pod::spec(pod).node_name.unwrap_or_default();
        let on_deleting_node = nodes.iter().any(|node| node.name == name && node.deleting);
        let ending =
            pod::is_owned_by(pod, "StatefulSet") && pod.metadata.deletion_timestamp.is_some();
        on_deleting_node
            && (pod::is_active(pod) || ending)
            && !pod::is_owned_by(pod, "DaemonSet")
            && !pod::is_owned_by(pod, "Node")
    };
    world
        .pods
        .iter()
        .filter(|pod| pod::is_provisionable(pod) || leaving(pod))
        .collect()
}

/// Returns whether Karpenter can parse the pod's node requirements (section 2).
fn is_valid(world: &World, pod: &Pod) -> bool {
    let restricted = |key: &str| {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let ours = domain == labels::GROUP || domain.ends_with(&format!(".{}", labels::GROUP));
        !world.well_known.contains(key) && (ours || key == HOSTNAME)
    };
    let readable = |term| {
        Requirements::from_node_selector_term(term, &Unaliased)
            .is_ok_and(|all| !all.keys().any(restricted))
    };
    let terms = pod::required_terms(pod);
    !pod::selector_requirements(pod).keys().any(restricted)
        && terms
            .iter()
            .all(|term| term.match_fields.as_ref().is_none_or(Vec::is_empty) && readable(term))
}

impl<'w> Solver<'w> {
    fn new(world: &'w World, settings: SolveSettings) -> Solver<'w> {
        let templates = templates(world);
        let mut pods = pods_to_place(world);
        pods.retain(|pod| pod::spec(pod).node_name.is_some() || is_valid(world, pod));
        let is_placed_now = |pod: &Pod| pods.iter().any(|other| pod::id(other) == pod::id(pod));
        let states = world.nodes();
        let mut bound: Vec<(&Pod, usize)> = Vec::new();
        for pod in world.pods.iter().filter(|pod| !is_placed_now(pod)) {
            let name = pod::spec(pod).node_name.unwrap_or_default();
            bound.extend(
                states
                    .iter()
                    .position(|state| state.name == name)
                    .map(|index| (pod, index)),
            );
        }
        let nodes: Vec<Node> = states
            .into_iter()
            .enumerate()
            .map(|(index, state)| {
                let running: Vec<&Pod> = bound
                    .iter()
                    .filter(|(_, node)| *node == index)
                    .map(|(pod, _)| *pod)
                    .collect();
                Node::new(world, state, &running)
            })
            .collect();
        let potential = templates
            .iter()
            .flat_map(|template| template.sources(settings.strict_min_values));
        let existing = nodes.iter().filter(|node| !node.state.deleting);
        let existing = existing.map(|node| Source {
            labels: node.labels.clone(),
            taints: node.state.taints.clone(),
            pool: None,
            offerings: vec![],
        });
        let sources = potential.chain(existing).collect();
        let reservations = reservations(&templates);
        Solver {
            world,
            settings,
            templates,
            sources,
            nodes,
            bound,
            pods,
            placed: vec![],
            claims: vec![],
            reservations,
        }
    }

    /// Tries the pods, large ones first, and repeats as long as one is placed (section 12).
    fn run(&mut self) {
        let size = |pod: &Pod| {
            let requests = pod::requests(pod);
            (
                requests.get(CPU).saturating_neg(),
                requests.get(MEMORY).saturating_neg(),
                pod.metadata.creation_timestamp.clone(),
                pod.metadata.uid.clone(),
            )
        };
        let mut waiting: Vec<usize> = (0..self.pods.len()).collect();
        waiting.sort_by_cached_key(|&pod| size(self.pods[pod]));
        loop {
            let before = waiting.len();
            waiting.retain(|&pod| !self.place_relaxing(pod));
            if waiting.len() == before {
                return;
            }
        }
    }

    /// Drops preferences one by one until the pod fits (section 4).
    fn place_relaxing(&mut self, index: usize) -> bool {
        let of_nodes = self.nodes.iter().flat_map(|node| &node.state.taints);
        let mut taints = self
            .templates
            .iter()
            .flat_map(|template| &template.taints)
            .chain(of_nodes);
        let soft_taints = taints.any(|taint| taint.effect == "PreferNoSchedule");
        let mut pod = self.pods[index].clone();
        loop {
            match self.place(index, &pod) {
                Ok(()) => return true,
                Err(Refusal::Reserved) => return false,
                Err(Refusal::Unfit) => match pod::relax(&pod, soft_taints) {
                    Some(relaxed) => pod = relaxed,
                    None => return false,
                },
            }
        }
    }

    /// Places the pod on an existing node, else on an open claim, else on a new one.
    fn place(&mut self, index: usize, pod: &Pod) -> Result<(), Refusal> {
        if let Some(node) = (0..self.nodes.len()).find(|&node| self.fits_node(node, pod)) {
            let volumes = volume::volumes(self.world, pod).unwrap_or_default();
            self.nodes[node].add(pod, &volumes.attached);
            self.placed.push((index, Host::Node(node)));
            return Ok(());
        }
        let mut fewest_first: Vec<usize> = (0..self.claims.len()).collect();
        fewest_first.sort_by_key(|&claim| self.claims[claim].pods.len());
        for claim in fewest_first {
            if let Ok(mut grown) =
                self.fits_claim(&self.claims[claim], pod, self.settings.strict_min_values)
            {
                grown.pods.push(index);
                self.commit(claim, grown);
                self.placed.push((index, Host::Claim(claim)));
                return Ok(());
            }
        }
        for template in 0..self.templates.len() {
            let Some(empty) = self.open(template) else {
                continue;
            };
            match self.fits_claim(&empty, pod, self.settings.strict_min_values) {
                Ok(mut claim) => {
                    claim.pods.push(index);
                    self.take_limits(template, &claim);
                    self.claims.push(empty);
                    self.commit(self.claims.len() - 1, claim);
                    self.placed
                        .push((index, Host::Claim(self.claims.len() - 1)));
                    return Ok(());
                }
                // Reserved capacity of a preferred pool becomes free later: the pools after it are not tried.
                Err(Refusal::Reserved) => return Err(Refusal::Reserved),
                Err(Refusal::Unfit) => {}
            }
        }
        Err(Refusal::Unfit)
    }

    fn node_requirements(&self, pod: &Pod) -> Option<Requirements> {
        if self.settings.respect_preferences {
            pod::all_requirements(pod).ok()
        } else {
            pod::strict_requirements(pod).ok()
        }
    }

    fn topology(&self) -> Topology<'_> {
        let bound = self.bound.iter().filter(|(pod, _)| pod::is_active(pod));
        let bound = bound.map(|&(pod, node)| {
            (
                pod,
                &self.nodes[node].labels,
                self.nodes[node].state.taints.as_slice(),
            )
        });
        let placed = self.placed.iter().map(|(pod, host)| match host {
            Host::Node(node) => (
                self.pods[*pod],
                &self.nodes[*node].labels,
                self.nodes[*node].state.taints.as_slice(),
            ),
            Host::Claim(claim) => {
                let claim = &self.claims[*claim];
                (
                    self.pods[*pod],
                    &claim.requirements,
                    self.templates[claim.template].taints.as_slice(),
                )
            }
        });
        let located = bound
            .chain(placed)
            .map(|(pod, host, taints)| Located { pod, host, taints })
            .collect();
        let respect_preferences = self.settings.respect_preferences;
        Topology {
            world: self.world,
            located,
            sources: &self.sources,
            planned: !self.claims.is_empty(),
            respect_preferences,
            tolerate_soft_taints: false,
        }
    }

    /// Returns whether the pod fits on an existing node (section 13).
    fn fits_node(&self, node: usize, pod: &Pod) -> bool {
        let node = &self.nodes[node];
        let Some(volumes) = volume::volumes(self.world, pod) else {
            return false;
        };
        let Some(wanted) = self.node_requirements(pod) else {
            return false;
        };
        let strict = pod::strict_requirements(pod).unwrap_or_default();
        let labeled =
            |wanted: &Requirements| node.labels.is_compatible(wanted, AllowUndefined::Nothing);
        !node.state.deleting
            && pod::tolerates(pod, &node.state.taints)
            && node.can_attach(&volumes.attached)
            && !pod::ports_conflict(&node.ports, &pod::host_ports(pod))
            && Resources::fits(&pod::requests(pod), &node.remaining)
            && labeled(&wanted)
            && volumes.alternatives.iter().any(labeled)
            && self
                .topology()
                .options(pod, &strict, &node.labels)
                .iter()
                .all(|options| {
                    options
                        .iter()
                        .any(|option| labeled(&[option.clone()].into_iter().collect()))
                })
    }

    /// Adds requirements. A node never has a label that neither its NodePool nor its instance type provides, so requirements
    /// for the absence of other labels are not recorded.
    fn require(&self, requirements: &mut Requirements, wanted: &Requirements) {
        for requirement in wanted.iter() {
            let key = requirement.key();
            if requirements.get(key).is_some() || self.world.well_known.contains(key) {
                requirements.add(requirement.clone());
            }
        }
    }

    fn solution(&self) -> Solution {
        let mut solution = Solution::default();
        for (pod, host) in &self.placed {
            if let Host::Node(node) = host {
                solution.existing.insert(
                    pod::id(self.pods[*pod]),
                    self.nodes[*node].state.name.clone(),
                );
            }
        }
        for claim in &self.claims {
            let mut requirements = claim.requirements.clone();
            if !claim.reserved.is_empty() {
                requirements.add(Requirement::equal(CAPACITY_TYPE, CAPACITY_TYPE_RESERVED));
                requirements.add(Requirement::new(
                    DEFAULT_RESERVATION_ID,
                    Operator::In,
                    claim.reserved.iter().map(String::as_str),
                ));
            }
            let template = &self.templates[claim.template];
            let types = claim.types.iter().map(|&index| &template.types[index]);
            let types = types.filter(|t| {
                t.offerings
                    .iter()
                    .any(|offering| launchable(self.world, offering, &requirements))
            });
            let pods = claim
                .pods
                .iter()
                .map(|&pod| pod::id(self.pods[pod]))
                .collect();
            let types = types
                .map(|instance_type| instance_type.name.clone())
                .collect();
            requirements.remove(HOSTNAME);
            solution.claims.push(Claim {
                pool: template.pool.name().to_owned(),
                requirements,
                types,
                pods,
            });
        }
        let placed: BTreeSet<PodId> = self
            .placed
            .iter()
            .map(|(pod, _)| pod::id(self.pods[*pod]))
            .collect();
        let all = pods_to_place(self.world).into_iter().map(pod::id);
        solution.unplaced = all.filter(|pod| !placed.contains(pod)).collect();
        solution
    }
}

impl Node {
    fn new(world: &World, state: SpecNode, running: &[&Pod]) -> Node {
        let labels = Requirements::from_labels(&state.labels, &Unaliased);
        let (mut daemons, daemon_ports) = sum_daemons(world, &state.taints, |wanted| {
            labels.is_compatible(wanted, AllowUndefined::Nothing)
        });
        let (mut remaining, mut running_daemons) = (state.allocatable.clone(), Resources::new());
        let finished = |pod: &Pod| {
            let phase = pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            matches!(phase, Some("Failed" | "Succeeded"))
        };
        let running: Vec<&&Pod> = running.iter().filter(|pod| !finished(pod)).collect();
        for pod in &running {
            remaining.sub_assign(&pod::requests(pod));
            if pod::is_owned_by(pod, "DaemonSet") {
                running_daemons.add_assign(&pod::requests(pod));
            }
        }
        running_daemons.retain(|name, _| daemons.contains(name));
        daemons.sub_assign(&running_daemons);
        daemons.retain(|_, amount| amount > 0);
        remaining.sub_assign(&daemons);
        let csi = world
            .csi_nodes
            .iter()
            .find(|node| node.metadata.name.as_deref() == Some(&state.name));
        let drivers = csi
            .map(|node| node.spec.drivers.clone())
            .unwrap_or_default();
        let limits = drivers
            .iter()
            .filter_map(|driver| {
                Some((
                    driver.name.clone(),
                    driver.allocatable.as_ref()?.count?.into(),
                ))
            })
            .collect();
        let mut node = Node {
            state,
            labels,
            remaining,
            ports: daemon_ports,
            attached: BTreeMap::new(),
            limits,
        };
        for pod in running {
            node.ports.extend(pod::host_ports(pod));
            for (driver, claims) in volume::volumes(world, pod).unwrap_or_default().attached {
                node.attached.entry(driver).or_default().extend(claims);
            }
        }
        node
    }

    fn can_attach(&self, more: &BTreeMap<String, BTreeSet<String>>) -> bool {
        more.iter().all(|(driver, claims)| {
            let attached = self.attached.get(driver).cloned().unwrap_or_default();
            let count = attached.union(claims).count();
            // Attached volumes stay; only a pod that attaches another volume must fit.
            count == attached.len()
                || (self.limits.get(driver)).is_none_or(|&limit| count as i64 <= limit)
        })
    }

    fn add(&mut self, pod: &Pod, attached: &BTreeMap<String, BTreeSet<String>>) {
        self.remaining.sub_assign(&pod::requests(pod));
        self.ports.extend(pod::host_ports(pod));
        for (driver, claims) in attached {
            self.attached
                .entry(driver.clone())
                .or_default()
                .extend(claims.iter().cloned());
        }
    }
}
