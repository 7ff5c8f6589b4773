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
use crate::schedule::compile::ids::{ClassId, GroupId};
use crate::schedule::pass::SchedulingPass;
use crate::schedule::pods::class::Class;
use crate::schedule::report::plan::EffectiveZone;
use crate::schedule::topology::choices::Among;
use crate::schedule::topology::group::DomainQuery;

impl SchedulingPass<'_> {
    /// Counts pending pods by effective zone.
    pub(crate) fn pending_by_zone(&mut self) -> BTreeMap<EffectiveZone, usize> {
        let mut of_class: IndexVec<ClassId, usize> = index_vec![0; self.queue.classes.len()];
        for queued in &self.queue.pods {
            let pending = queued.waiting && queued.pod.node_name.is_none();
            if pending && queued.pod.phase == Phase::Pending {
                of_class[queued.class] += 1;
            }
        }
        let mut zones = BTreeMap::new();
        for (class, pods) in of_class.into_iter_enumerated() {
            if pods > 0 && self.queue.classes[class].problem.is_none() {
                *zones.entry(self.effective_zone(class)).or_default() += pods;
            }
        }
        zones
    }

    fn effective_zone(&mut self, index: ClassId) -> EffectiveZone {
        let class = &self.queue.classes[index];
        let axis = self.topology.axes.position(|axis| axis.name == ZONE);
        let mut groups: Vec<(GroupId, bool)> = class
            .hard
            .iter()
            .map(|owned| (owned.group, owned.own))
            .collect();
        groups.extend(class.kept_away.iter().map(|group| (*group, false)));
        groups.retain(|(group, _)| Some(self.topology.groups[*group].axis) == axis);
        let speaks = |all: &Requirements| all.get(ZONE).is_some();
        let class = &self.queue.classes[index];
        if groups.is_empty()
            && !class.terms.iter().any(speaks)
            && !class.volume_requirements.iter().any(speaks)
        {
            return EffectiveZone::Flexible;
        }
        let mut zones = self.zones_of(class);
        if let Some(axis) = axis.filter(|_| !groups.is_empty()) {
            zones.extend(
                self.topology.axes[axis]
                    .domains()
                    .iter()
                    .map(ToString::to_string),
            );
        }
        let admits = |all: &Requirements, zone: &str| all.get(ZONE).is_none_or(|r| r.has(zone));
        let terms = class.terms.clone();
        let volumes = class.volume_requirements.clone();
        let mut open: BTreeSet<String> = BTreeSet::new();
        for (alternative, term) in terms.iter().enumerate() {
            let own = term.get(ZONE).cloned();
            let pod = axis.zip(own).map(|(axis, own)| {
                let req = self.rows.algebra.req(&own, || true);
                self.topology.admitted(&mut self.rows.algebra, axis, req)
            });
            let valid: Vec<_> = groups
                .iter()
                .map(|(group, own)| {
                    let counted = self.topology.counted_domains(
                        &mut self.rows.algebra,
                        (&self.queue.classes[index], alternative),
                        *group,
                        (&self.nodes.present, &self.planned),
                        Among::Planned,
                    );
                    let group = &self.topology.groups[*group];
                    group.valid_domains(&DomainQuery {
                        reach: pod.as_deref(),
                        counted: counted.as_ref(),
                        own: *own,
                        along: 0,
                        starts: *own && !group.is_populated(),
                        assumes_empty: false,
                    })
                })
                .collect();
            let reachable = |zone: &&String| {
                let domain =
                    axis.and_then(|axis| self.topology.axes[axis].labels.ids.get(zone.as_str()));
                admits(term, zone)
                    && (volumes.is_empty() || volumes.iter().any(|all| admits(all, zone)))
                    && valid
                        .iter()
                        .all(|valid| domain.is_some_and(|domain| valid.contains(*domain)))
            };
            open.extend(zones.iter().filter(reachable).cloned());
        }
        let mut open = open.into_iter();
        match (open.next(), open.next()) {
            (None, _) => EffectiveZone::None,
            (Some(zone), None) => EffectiveZone::Zone(zone),
            _ => EffectiveZone::Flexible,
        }
    }

    /// Returns the zones that a class names, and those of nodes and offerings.
    fn zones_of(&self, class: &Class) -> BTreeSet<String> {
        let named = class.terms.iter().chain(&class.volume_requirements);
        let mut zones: BTreeSet<String> = named
            .filter_map(|all| all.get(ZONE))
            .filter(|requirement| !requirement.is_complement())
            .flat_map(|requirement| requirement.values().map(str::to_owned))
            .collect();
        let domains = self.solver.label_domains(ZONE);
        let of_nodes = domains.names.iter().zip(&domains.nodes);
        zones.extend(
            of_nodes
                .filter(|(_, nodes)| !nodes.is_empty())
                .map(|(name, _)| name.to_string()),
        );
        let Some(key) = self.rows.algebra.find_key(ZONE) else {
            return zones;
        };
        for template in &self.solver.templates {
            let catalogue = &self.solver.catalogues[template.catalogue];
            for kind in &catalogue.kinds {
                if let Some(req) = self.rows.algebra.get(kind.set, key) {
                    zones.extend(
                        self.rows
                            .algebra
                            .requirement(req)
                            .values()
                            .map(str::to_owned),
                    );
                }
            }
        }
        zones
    }
}
