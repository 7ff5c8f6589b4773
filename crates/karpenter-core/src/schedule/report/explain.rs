//! Why the pods of a class were not placed: turns the refusals that [`place`](crate::schedule::place) recorded when it last tried the
//! class into values.

use std::collections::BTreeSet;

use karpenter_api::labels;

use crate::requirements::{AllowUndefined, Conflict, Incompatible, Requirements};
use crate::resources::Resources;
use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{ClassId, GroupId, RowId, TemplateId};
use crate::schedule::compile::pools::similar_pool;
use crate::schedule::compile::pools::template::UnmetMinValues;
use crate::schedule::place::refusal::Refusal;
use crate::schedule::place::variant::{RefusedBy, Variant};
use crate::schedule::pods::class::Class;
use crate::schedule::reasons::{
    ExceededLimit, Incompatibility, InstanceTypeMismatch, PoolIncompatibility, Requested, Shortage,
    Unschedulable,
};
use crate::schedule::report::Report;
use crate::taints::Taint;

/// A million cores, in millicores.
const SUSPICIOUS_CPU: i64 = 1_000_000_000;

impl Report<'_, '_> {
    /// Returns why no pod of the class was placed, or why the last ones were not.
    pub(super) fn explain(&mut self, class: ClassId) -> Unschedulable {
        let (refused, class) = (self.refused[class].as_deref(), &self.queue.classes[class]);
        if let Some(why) = class.problem.as_ref().or(self.no_usable_pool) {
            return why.clone();
        }
        let mut reasons = Vec::new();
        for (template, compiled) in self.solver.templates.iter_enumerated() {
            let by =
                refused.and_then(|variant| Some((variant, variant.refused_by[template].as_ref()?)));
            let Some((variant, by)) = by else {
                continue;
            };
            let refused = Refused {
                template,
                class,
                variant,
                by,
                wanted: self.rows.algebra.requirements(variant.set),
            };
            reasons.push(PoolIncompatibility {
                node_pool: compiled.name.clone(),
                daemon_overhead: compiled.least_overhead(None),
                reason: self.render(&refused),
            });
            if by.refusal == Refusal::Reserved {
                return Unschedulable::ReservationWait(reasons.into());
            }
        }
        Unschedulable::NoFit(reasons.into())
    }

    /// Marks a conflict about the NodePool as a misspelt name if no NodePool has a required name.
    fn name_unknown_pools(&self, mut incompatible: Incompatible) -> Incompatible {
        let snapshot = &self.solver.snapshot;
        for conflict in &mut incompatible.conflicts {
            let Conflict::Disjoint { incoming, existing } = conflict else {
                continue;
            };
            if incoming.key() == labels::NODE_POOL
                && !incoming.is_complement()
                && (incoming.values()).all(|name| snapshot.node_pool(name).is_none())
            {
                let similar = (incoming.values()).find_map(|name| similar_pool(snapshot, name));
                *conflict = Conflict::UnknownNodePool {
                    incoming: incoming.clone(),
                    existing: existing.clone(),
                    similar,
                };
            }
        }
        incompatible
    }

    /// Turns a refusal into values.
    fn render(&mut self, refused: &Refused<'_>) -> Incompatibility {
        let compiled = &self.solver.templates[refused.template];
        match &refused.by.refusal {
            Refusal::NodeLimit => {
                let place = compiled.node_limit.unwrap_or_default();
                let limit = compiled.limits[place];
                let used = limit.saturating_sub(refused.by.limits_left[place]);
                Incompatibility::NodeLimit { limit, used }
            }
            Refusal::Limits => {
                Incompatibility::Limits(self.exceeded_limits(refused, &compiled.rows))
            }
            Refusal::Taints => {
                let taints = compiled.taints.iter();
                let untolerated =
                    taints.filter(|taint| !taint.is_tolerated_by(&refused.variant.tolerations));
                Incompatibility::Taints(untolerated.cloned().collect::<Vec<Taint>>())
            }
            Refusal::Requirements => {
                let own = self.rows.algebra.requirements(compiled.set);
                match own.compatible(&refused.wanted, AllowUndefined::Keys(&self.known_labels())) {
                    Err(incompatible) => {
                        Incompatibility::Requirements(self.name_unknown_pools(incompatible))
                    }
                    Ok(()) => self.no_instance_type(refused, compiled.set),
                }
            }
            Refusal::Volumes => {
                let joined = self.rows.algebra.join(compiled.set, refused.variant.set);
                let joined = joined.unwrap_or(compiled.set);
                let all = self.rows.algebra.requirements(joined);
                let first = refused.class.volume_requirements.first();
                let undefined = AllowUndefined::Keys(&self.known_labels());
                match first.map(|first| all.compatible(first, undefined)) {
                    Some(Err(incompatible)) => Incompatibility::Volumes(incompatible),
                    _ => self.no_instance_type(refused, joined),
                }
            }
            Refusal::InstanceTypes(set) => {
                let (template, requests) = (refused.template, &refused.class.requests);
                let rows = self.rows.rows_with_room(template, *set, requests, None);
                let left = &refused.by.limits_left;
                let within = |row: RowId| {
                    let mut costs = compiled.limit_costs(row).iter().zip(left);
                    costs.all(|(cost, left)| cost <= left)
                };
                match rows.is_empty() || rows.iter().any(within) {
                    true => self.no_instance_type(refused, *set),
                    false => Incompatibility::Limits(self.exceeded_limits(refused, &rows)),
                }
            }
            Refusal::MinValues(UnmetMinValues {
                key,
                min_values,
                found,
            }) => Incompatibility::MinValues {
                key: self.rows.algebra.key_name(*key).to_string(),
                min_values: *min_values,
                found: *found,
                requested: self.requested(refused),
            },
            Refusal::NoDomain(group) | Refusal::Topology(group) => {
                self.topology(*group, refused.variant)
            }
            Refusal::Devices(failure) => Incompatibility::Devices(failure.as_ref().clone()),
            Refusal::Reserved => Incompatibility::Reserved,
            // Only on a planned node that has pods.
            Refusal::HostPorts => self.no_instance_type(refused, compiled.set),
        }
    }

    /// Returns the topology constraint of a group, with the domains that it admitted for a variant.
    fn topology(&self, group: GroupId, variant: &Variant) -> Incompatibility {
        let axis = &self.topology[self.topology[group].axis];
        let mut admitted = variant.choices.iter().flat_map(|choices| &choices.domains);
        let admitted = admitted.find(|domains| domains.order == group);
        let domains = admitted.iter().flat_map(|domains| domains.allowed.iter());
        Incompatibility::Topology {
            constraint: self.topology[group].constraint(),
            key: axis.name.clone(),
            domains: domains
                .map(|domain| axis.domains()[domain].to_string())
                .collect(),
        }
    }

    /// Returns the limits of a NodePool that exclude any of `rows`.
    fn exceeded_limits(&self, refused: &Refused<'_>, rows: &Bits<RowId>) -> Vec<ExceededLimit> {
        let compiled = &self.solver.templates[refused.template];
        let left = refused.by.limits_left.iter().enumerate();
        let exceeded = left.filter_map(|(place, left)| {
            let costs = rows.iter().map(|row| compiled.limit_costs(row)[place]);
            Some(ExceededLimit {
                resource: compiled.limit_names[place].clone(),
                limit: compiled.limits[place],
                used: compiled.limits[place].saturating_sub(*left),
                needed: costs.filter(|cost| cost > left).min()?,
            })
        });
        exceeded.collect()
    }

    /// Returns the labels that a planned node may have although no requirement defines them.
    fn known_labels(&self) -> BTreeSet<String> {
        let names = &self.solver.snapshot.config().well_known;
        names.labels().map(str::to_owned).collect()
    }

    /// Returns which checks the instance types of a NodePool pass, if `set` are the requirements of the planned node.
    fn no_instance_type(&mut self, refused: &Refused<'_>, set: SetId) -> Incompatibility {
        let compiled = &self.solver.templates[refused.template];
        let catalogue = &self.solver.catalogues[compiled.catalogue];
        let algebra = &mut self.rows.algebra;
        let meeting = catalogue.rows_meeting_all(algebra, set);
        let offered = catalogue.rows_of(&catalogue.kinds_in(algebra, set));
        let requests = &refused.class.requests;
        let none = vec![0; self.solver.width()];
        let roomy: Bits<RowId> = catalogue
            .row_type
            .indices()
            .filter(|row| self.rows.row_fits(refused.template, *row, &none, requests))
            .collect();
        let within = |a: &Bits<RowId>, b: &Bits<RowId>| {
            let mut both = a.clone();
            both.intersect(b);
            both.intersect(&compiled.rows);
            !both.is_empty()
        };
        let any = |bits: &Bits<RowId>| within(bits, bits);
        let resources = any(&roomy);
        let shape = &refused.class.shape;
        Incompatibility::InstanceTypes(InstanceTypeMismatch {
            requirements: any(&meeting),
            resources,
            offering: any(&offered),
            requirements_and_resources: within(&meeting, &roomy),
            requirements_and_offering: within(&meeting, &offered),
            resources_and_offering: within(&roomy, &offered),
            suspicious_cpu: shape.requests.get("cpu") >= SUSPICIOUS_CPU,
            shortage: (!resources)
                .then(|| self.shortage(refused, &meeting))
                .flatten(),
            requested: self.requested(refused),
        })
    }

    /// Returns the resource of which a class requests the most in proportion to what any instance type of a NodePool has, if none
    /// has enough. Only types that meet the requirements count, if there are any.
    fn shortage(&self, refused: &Refused<'_>, meeting: &Bits<RowId>) -> Option<Shortage> {
        let compiled = &self.solver.templates[refused.template];
        let catalogue = &self.solver.catalogues[compiled.catalogue];
        let requests = &refused.class.requests;
        let mut rows = compiled.rows.clone();
        rows.intersect(meeting);
        let rows = if rows.is_empty() {
            &compiled.rows
        } else {
            &rows
        };
        let names = self.solver.dimensions.names.iter().enumerate();
        let short = names.filter_map(|(place, name)| {
            let room = |row: RowId| compiled.row_room(row)[place].max(0);
            let largest = rows.iter().max_by_key(|row| room(*row))?;
            let has_any = |row| catalogue.type_of(row).capacity.get(name) > 0;
            (room(largest) < requests[place]).then(|| Shortage {
                resource: name.to_string(),
                requested: requests[place],
                largest: room(largest),
                instance_type: (compiled.rows.iter().any(has_any))
                    .then(|| catalogue.type_of(largest).name.clone()),
            })
        });
        let share = |it: &Shortage| it.requested as f64 / it.largest as f64;
        short.max_by(|a, b| share(a).total_cmp(&share(b)))
    }

    /// Returns the requirements and total resources of a class together with the DaemonSets of a template.
    fn requested(&self, refused: &Refused<'_>) -> Requested {
        let compiled = &self.solver.templates[refused.template];
        let own = &refused.class.shape.requests;
        let with = |daemons: Resources| {
            let mut all = own.clone();
            all.add_assign(&daemons);
            all
        };
        let mut requirements = self.rows.algebra.requirements(compiled.set);
        requirements.add_all(&refused.wanted);
        Requested {
            requirements,
            resources: with(compiled.least_overhead(None)),
            most_resources: with(compiled.most_overhead()),
        }
    }
}

/// A class that a NodePool refused.
struct Refused<'v> {
    template: TemplateId,
    class: &'v Class,
    variant: &'v Variant,
    by: &'v RefusedBy,
    /// The requirements of the variant.
    wanted: Requirements,
}
