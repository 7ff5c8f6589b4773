//! The reasons why a class of pods could not be placed, computed for the unplaced pods at the end of a pass.
//!
//! The most relaxed constraints are checked, NodePool by NodePool, against the state at the end of the pass.

use crate::requirements::{AllowUndefined, Requirements};
use crate::resources::Resources;
use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{ClassId, RowId, TemplateId};
use crate::schedule::compile::template::unmet_min_values;
use crate::schedule::pass::SchedulingPass;
use crate::schedule::place::planned_node::Refusal;
use crate::schedule::pods::class::Variant;
use crate::schedule::report::plan::{
    Incompatibility, InstanceTypeMismatch, PoolIncompatibility, Requested, Unschedulable,
};
use crate::taints::Taint;

/// A million cores, in millicores.
const SUSPICIOUS_CPU: i64 = 1_000_000_000;

impl SchedulingPass<'_> {
    /// Returns why no pod of the class was placed, or why the last ones were not.
    pub(crate) fn explain(&mut self, class: ClassId) -> Unschedulable {
        if let Some(problem) = &self.classes[class].problem {
            return problem.clone();
        }
        if let Some(no_usable_pool) = &self.no_usable_pool {
            return no_usable_pool.clone();
        }
        let last = self.classes[class].variant_count() - 1;
        let variant = self.form_variant(class, last);
        let mut waits = false;
        let mut reasons = Vec::new();
        for template in self.solver.templates.indices() {
            let reason = self.explain_template(template, class, &variant);
            waits |= reason == Incompatibility::Reserved;
            let compiled = &self.solver.templates[template];
            reasons.push(PoolIncompatibility {
                node_pool: compiled.name.clone(),
                daemon_overhead: compiled.least_overhead(None),
                reason,
            });
            if waits {
                break;
            }
        }
        if waits {
            Unschedulable::ReservationWait(reasons)
        } else {
            Unschedulable::NoFit(reasons)
        }
    }

    fn explain_template(
        &mut self,
        template: TemplateId,
        class: ClassId,
        variant: &Variant,
    ) -> Incompatibility {
        let compiled = &self.solver.templates[template];
        if let Some(place) = compiled.limit_names.iter().position(|name| name == "nodes")
            && self.limits[template][place] <= 0
        {
            return Incompatibility::NodeLimit;
        }
        if self.within_limits[template]
            .as_ref()
            .is_some_and(|within| within.is_empty())
        {
            return Incompatibility::Limits;
        }
        let taints = compiled.taints.iter();
        let untolerated = taints.filter(|taint| !taint.is_tolerated_by(&variant.tolerations));
        let untolerated: Vec<Taint> = untolerated.cloned().collect();
        if !untolerated.is_empty() {
            return Incompatibility::Taints(untolerated);
        }
        let names = &self.solver.snapshot.config().well_known;
        let known: std::collections::BTreeSet<String> = names.labels().map(str::to_owned).collect();
        let undefined = AllowUndefined::Keys(&known);
        let wanted = self.algebra.requirements(variant.set);
        let own = self.algebra.requirements(compiled.set);
        if let Err(incompatible) = own.compatible(&wanted, undefined) {
            return Incompatibility::Requirements(incompatible);
        }
        let Some(joined) = self.algebra.join(compiled.set, variant.set) else {
            return self.no_instance_type(template, class, compiled.set, &wanted);
        };
        let mut narrowed = joined;
        if !self.classes[class].volume_requirements.is_empty() {
            let all = self.algebra.requirements(joined);
            let alternatives = self.classes[class].volume_requirements.clone();
            match alternatives
                .iter()
                .find(|alternative| all.is_compatible(alternative, undefined))
            {
                Some(alternative) => {
                    let alternative = self.algebra.set(alternative, |key| names.contains(key));
                    narrowed = self.algebra.join(joined, alternative).unwrap_or(joined);
                }
                None => {
                    if let Err(incompatible) = all.compatible(&alternatives[0], undefined) {
                        return Incompatibility::Volumes(incompatible);
                    }
                }
            }
        }
        let choices = match self.choices(class, variant) {
            Ok(choices) => choices,
            Err(group) => {
                let group = &self.groups[group];
                let key = self.axes[group.axis].name.clone();
                return Incompatibility::Topology {
                    constraint: group.description(),
                    key,
                    domains: Vec::new(),
                };
            }
        };
        // Discards the failure of another node.
        drop(self.device_failure());
        let tried = self.try_template(template, class, variant, &choices);
        if let (Err(_), Some(failure)) = (&tried, self.device_failure()) {
            return Incompatibility::Devices(failure.to_string());
        }
        match tried {
            Err(Refusal::Reserved) => Incompatibility::Reserved,
            Err(Refusal::Topology) => {
                let Some(domains) = choices.domains.first() else {
                    return self.no_instance_type(template, class, narrowed, &wanted);
                };
                let group = &self.groups[domains.order];
                let axis = &self.axes[domains.axis];
                Incompatibility::Topology {
                    constraint: group.description(),
                    key: axis.name.clone(),
                    domains: domains
                        .allowed
                        .iter()
                        .map(|domain| axis.domains[domain].to_string())
                        .collect(),
                }
            }
            Ok(_) => match self.classes[class]
                .variants
                .first()
                .and_then(Option::as_ref)
                .and_then(|variant| variant.owned.first())
            {
                Some(owned) => {
                    let group = &self.groups[owned.group];
                    Incompatibility::Topology {
                        constraint: group.description(),
                        key: self.axes[group.axis].name.clone(),
                        domains: Vec::new(),
                    }
                }
                None => self.no_instance_type(template, class, narrowed, &wanted),
            },
            Err(Refusal::Permanent) => {
                let requests = self.classes[class].requests.clone();
                let rows = self.rows_with_room(template, narrowed, &requests, None);
                let catalogue = &self.solver.catalogues[compiled.catalogue];
                let mut left = rows.clone();
                if let Some(within) = &self.within_limits[template] {
                    left.intersect(within);
                }
                if !rows.is_empty() && left.is_empty() {
                    return Incompatibility::Limits;
                }
                if !left.is_empty()
                    && let Some((key, min_values, found)) =
                        unmet_min_values(catalogue, &self.algebra, narrowed, &left)
                {
                    return Incompatibility::MinValues {
                        key: self.algebra.key_name(key).to_string(),
                        min_values,
                        found,
                        asked: self.asked(template, class, &wanted),
                    };
                }
                self.no_instance_type(template, class, narrowed, &wanted)
            }
        }
    }

    fn no_instance_type(
        &mut self,
        template: TemplateId,
        class: ClassId,
        set: SetId,
        wanted: &Requirements,
    ) -> Incompatibility {
        let compiled = &self.solver.templates[template];
        let catalogue = &self.solver.catalogues[compiled.catalogue];
        let mut meeting = Bits::full(catalogue.rows());
        for (_, req) in self.algebra.members(set).to_vec() {
            meeting.intersect(&catalogue.rows_meeting(&mut self.algebra, req));
        }
        let mut offered = Bits::default();
        for kind in catalogue.kinds_in(&mut self.algebra, set).iter() {
            offered.unite(&catalogue.kinds[kind].rows);
        }
        let requests = self.classes[class].requests.clone();
        let none = vec![0; self.width];
        let roomy: Bits<RowId> = catalogue
            .row_type
            .indices()
            .filter(|row| self.row_fits(template, *row, &none, &requests))
            .collect();
        let within = |a: &Bits<RowId>, b: &Bits<RowId>| {
            let mut both = a.clone();
            both.intersect(b);
            both.intersect(&compiled.rows);
            !both.is_empty()
        };
        let any = |bits: &Bits<RowId>| within(bits, bits);
        Incompatibility::InstanceTypes(InstanceTypeMismatch {
            requirements: any(&meeting),
            resources: any(&roomy),
            offering: any(&offered),
            requirements_and_resources: within(&meeting, &roomy),
            requirements_and_offering: within(&meeting, &offered),
            resources_and_offering: within(&roomy, &offered),
            suspicious_cpu: self.classes[class].shape.requests.get("cpu") >= SUSPICIOUS_CPU,
            asked: self.asked(template, class, wanted),
        })
    }

    /// Returns the requirements and total resources of a class together with the DaemonSets of a template.
    fn asked(&self, template: TemplateId, class: ClassId, wanted: &Requirements) -> Requested {
        let compiled = &self.solver.templates[template];
        let own = &self.classes[class].shape.requests;
        let with = |daemons: Resources| {
            let mut all = own.clone();
            all.add_assign(&daemons);
            all
        };
        let mut requirements = self.algebra.requirements(compiled.set);
        requirements.add_all(wanted);
        Requested {
            requirements: requirements.display(Self::is_simulated_label),
            resources: with(compiled.least_overhead(None)),
            most_resources: with(compiled.most_overhead()),
        }
    }
}
