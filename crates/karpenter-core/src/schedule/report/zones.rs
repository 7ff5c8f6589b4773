//! The effective zone of pending pods, before they are placed; reported by the metric by effective zone.
//!
//! Hard constraints decide: node selector and required affinity, zones of the volumes, and required topology constraints over
//! zones. Preferences do not.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/scheduler.go (effective zone)

use std::collections::{BTreeMap, BTreeSet};

use index_vec::{IndexVec, index_vec};
use karpenter_api::labels::ZONE;

use crate::pod::Phase;
use crate::requirements::Requirements;
use crate::schedule::compile::algebra::Algebra;
use crate::schedule::compile::ids::{ClassId, GroupId};
use crate::schedule::compile::solver::Solver;
use crate::schedule::pods::class::Class;
use crate::schedule::pods::queue::PodQueue;
use crate::schedule::report::plan::EffectiveZone;
use crate::schedule::topology::domains::Topology;
use crate::schedule::topology::group::{Among, DomainQuery};

/// Counts pending pods by effective zone.
pub(crate) fn pending_by_zone(
    solver: &Solver,
    queue: &PodQueue,
    topology: &mut Topology<'_>,
    algebra: &mut Algebra,
) -> BTreeMap<EffectiveZone, usize> {
    let mut of_class: IndexVec<ClassId, usize> = index_vec![0; queue.classes.len()];
    for queued in &queue.pods {
        let pending = queued.waiting && queued.pod.node_name.is_none();
        if pending && queued.pod.phase == Phase::Pending {
            of_class[queued.class] += 1;
        }
    }
    let mut zones = BTreeMap::new();
    for (class, pods) in queue.classes.iter().zip(of_class) {
        if pods > 0 && class.problem.is_none() {
            let zone = effective_zone(solver, class, topology, algebra);
            *zones.entry(zone).or_default() += pods;
        }
    }
    zones
}

fn effective_zone(
    solver: &Solver,
    class: &Class,
    topology: &mut Topology<'_>,
    algebra: &mut Algebra,
) -> EffectiveZone {
    let axis = topology.find_axis(ZONE);
    let hard = class
        .links
        .hard
        .iter()
        .map(|owned| (owned.group, owned.own));
    let kept_away = class.links.kept_away.iter().map(|group| (*group, false));
    let mut groups: Vec<(GroupId, bool)> = hard.chain(kept_away).collect();
    groups.retain(|(group, _)| Some(topology[*group].axis) == axis);
    let speaks = |all: &Requirements| all.get(ZONE).is_some();
    let volumes = &class.volume_requirements;
    if groups.is_empty() && !class.terms.iter().any(speaks) && !volumes.iter().any(speaks) {
        return EffectiveZone::Flexible;
    }
    let mut zones = zones_of(solver, class, algebra);
    if let Some(axis) = axis.filter(|_| !groups.is_empty()) {
        let names = topology[axis].domains().iter();
        zones.extend(names.map(ToString::to_string));
    }
    let admits = |all: &Requirements, zone: &str| all.get(ZONE).is_none_or(|r| r.has(zone));
    let mut open: BTreeSet<&str> = BTreeSet::new();
    for (alternative, term) in class.terms.iter().enumerate() {
        let valid = groups.iter().map(|(group, own)| {
            let query = DomainQuery {
                own: *own,
                starts: *own && !topology[*group].is_populated(),
                ..DomainQuery::new(class, alternative, Among::Planned)
            };
            topology.valid_domains(algebra, *group, &query)
        });
        let valid: Vec<_> = valid.collect();
        let reachable = |zone: &&String| {
            let domain = axis.and_then(|axis| topology[axis].labels.ids.get(zone.as_str()));
            let mut valid = valid.iter();
            admits(term, zone)
                && (volumes.is_empty() || volumes.iter().any(|all| admits(all, zone)))
                && valid.all(|valid| domain.is_some_and(|domain| valid.contains(*domain)))
        };
        open.extend(zones.iter().filter(reachable).map(String::as_str));
    }
    let mut open = open.into_iter();
    match (open.next(), open.next()) {
        (None, _) => EffectiveZone::None,
        (Some(zone), None) => EffectiveZone::Zone(zone.to_owned()),
        _ => EffectiveZone::Flexible,
    }
}

/// Returns the zones that a class names, and those of nodes and offerings.
fn zones_of(solver: &Solver, class: &Class, algebra: &Algebra) -> BTreeSet<String> {
    let named = class.terms.iter().chain(&class.volume_requirements);
    let named = named
        .filter_map(|all| all.get(ZONE))
        .filter(|requirement| !requirement.is_complement())
        .flat_map(|requirement| requirement.values());
    let domains = solver.label_domains(ZONE);
    let of_nodes = domains.names.iter().zip(&domains.nodes);
    let of_nodes = of_nodes.filter(|(_, nodes)| !nodes.is_empty());
    let of_nodes = of_nodes.map(|(name, _)| name.to_string());
    let mut zones: BTreeSet<String> = named.map(str::to_owned).chain(of_nodes).collect();
    if let Some(key) = algebra.find_key(ZONE) {
        for template in &solver.templates {
            let kinds = solver.catalogues[template.catalogue].kinds.iter();
            for req in kinds.filter_map(|kind| algebra.get(kind.set, key)) {
                zones.extend(algebra.requirement(req).values().map(str::to_owned));
            }
        }
    }
    zones
}
