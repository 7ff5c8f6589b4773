//! Counting what is there: which domains exist for each group, and how many pods it counts in them before the run.

use std::{collections::BTreeSet, sync::Arc};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    algebra::ReqId,
    bits::Bits,
    class::{Class, GroupId},
    prepare::Staying,
    run::Run,
    template::Template,
    topology::{Axis, Group, GroupKind, Host, is_hostname},
};
use crate::{pod::Pod, taints::untolerated};

impl Run<'_> {
    /// Makes or finds the axis of a label: its domains over machines and templates.
    pub(super) fn axis(&mut self, name: &str) -> usize {
        if let Some(axis) = self.axis_ids.get(name) {
            return *axis;
        }
        let solver = self.solver;
        let names = &solver.snapshot.config().well_known;
        let key = self.algebra.key(name, || names.contains(name));
        let mut axis = Axis {
            name: name.to_owned(),
            key,
            is_hostname: is_hostname(name),
            domains: Vec::new(),
            ids: FxHashMap::default(),
            of_machine: Vec::new(),
            machines: Vec::new(),
            claims: Vec::new(),
            admitted: FxHashMap::default(),
            of_template: Vec::new(),
            requirements: FxHashMap::default(),
        };
        if !axis.is_hostname {
            let on_machines = solver.machine_domains(name);
            for domain in &on_machines.names {
                axis.domain(domain);
            }
            axis.of_machine.clone_from(&on_machines.of_machine);
            for (machine, domain) in axis.of_machine.iter().enumerate() {
                if *domain != u32::MAX {
                    axis.machines[*domain as usize].insert(machine);
                }
            }
            for template in &solver.templates {
                let domains = self.template_domains(template, &mut axis);
                axis.of_template.push(domains);
            }
        }
        self.axes.push(axis);
        self.axis_ids.insert(name.to_owned(), self.axes.len() - 1);
        self.axes.len() - 1
    }

    /// The values of a label that machines of a template can have.
    fn template_domains(&self, template: &Template, axis: &mut Axis) -> Bits {
        let catalogue = &self.solver.catalogues[template.catalogue];
        let own = self
            .algebra
            .get(template.set, axis.key)
            .map(|req| self.algebra.requirement(req).clone());
        let mut values: BTreeSet<String> = BTreeSet::new();
        if let Some(own) = own.as_ref().filter(|own| !own.is_complement()) {
            values.extend(own.values().map(str::to_owned));
        }
        let mut seen: FxHashSet<ReqId> = FxHashSet::default();
        for row in template.rows.iter() {
            let Some(req) = catalogue
                .requirement(row, axis.key)
                .filter(|req| seen.insert(*req))
            else {
                continue;
            };
            let requirement = self.algebra.requirement(req);
            if !requirement.is_complement() {
                let within = |value: &&str| own.as_ref().is_none_or(|own| own.has(value));
                values.extend(requirement.values().filter(within).map(str::to_owned));
            }
        }
        values.iter().map(|value| axis.domain(value)).collect()
    }

    /// Fills the counters with the pods that are bound, and finds which domains exist for each group.
    pub(super) fn count_what_is_there(&mut self) {
        let solver = self.solver;
        let inverse: Vec<_> = solver.inverse.iter().collect();
        for (identity, places) in inverse {
            let concerns = |class: &Class| {
                identity.selects(
                    &class.shape.namespace,
                    &class.shape.labels,
                    &solver.snapshot,
                )
            };
            if !self.classes.iter().any(concerns) {
                continue;
            }
            let group = match self.group_ids.get(identity) {
                Some(group) => *group,
                None => {
                    let axis = self.axis(&identity.key);
                    let identity = Arc::new(identity.clone());
                    self.groups.push(Group::new(identity.clone(), axis));
                    self.group_ids.insert(identity, self.groups.len() - 1);
                    self.groups.len() - 1
                }
            };
            self.count_places(group, places);
        }
        for group in 0..self.groups.len() {
            self.find_domains(group);
            if self.groups[group].kind() != GroupKind::Inverse {
                let counts = solver.base_counts(&self.groups[group].identity.clone());
                self.count_places(group, &counts.places);
            }
        }
        self.count_staying();
        let moved: Vec<Arc<Pod>> = self
            .items
            .iter()
            .filter(|item| item.pod.node_name.is_some())
            .map(|item| item.pod.clone())
            .collect();
        for pod in moved {
            let machine = pod
                .node_name
                .as_ref()
                .and_then(|name| solver.machine_of.get(name))
                .map(|index| *index as usize);
            if let Some(machine) =
                machine.filter(|machine| self.present.contains(*machine) && pod.is_active())
            {
                self.uncount(&pod, machine);
            }
        }
    }

    fn count_places(&mut self, group: GroupId, places: &[(u32, u32)]) {
        let axis = self.groups[group].axis;
        for (machine, number) in places {
            let index = *machine as usize;
            let counts = self.groups[group]
                .machines
                .as_ref()
                .is_none_or(|machines| machines.contains(index));
            if !counts || !self.present.contains(index) {
                continue;
            }
            if self.axes[axis].is_hostname {
                self.groups[group].count_on_host(Host::Machine(index), *number);
            } else {
                let domain = self.axes[axis].of_machine[index];
                if domain != u32::MAX {
                    self.groups[group].count_in(domain as usize, *number);
                }
            }
        }
    }

    /// Counts pods that stay on machines that are going away, as the scheduler does. No pod can be placed on those machines, so
    /// that hosts do not matter.
    fn count_staying(&mut self) {
        let solver = self.solver;
        for Staying { machine, pods } in &solver.staying {
            for group in &mut self.groups {
                let axis = &self.axes[group.axis];
                let domain = machine.label(&axis.name);
                let Some(domain) = domain.and_then(|value| axis.ids.get(value)) else {
                    continue;
                };
                let filter = &group.identity.filter;
                let tolerated = filter.tolerations.as_ref();
                let tolerated =
                    tolerated.is_none_or(|all| untolerated(&machine.taints, all).is_none());
                let terms = filter.terms.as_ref();
                let passes = terms.is_none_or(|terms| terms.iter().any(|t| machine.meets_all(t)));
                if axis.is_hostname || !tolerated || !passes {
                    continue;
                }
                let counted = |pod: &&Arc<Pod>| group.identity.counts(pod, &solver.snapshot);
                let number = pods.iter().filter(counted).count();
                if number > 0 {
                    group.count_in(*domain as usize, u32::try_from(number).unwrap_or(u32::MAX));
                }
            }
        }
    }

    /// A pod of the run is bound to a machine that stays: it no longer counts there.
    fn uncount(&mut self, pod: &Pod, machine: usize) {
        for group in 0..self.groups.len() {
            let identity = self.groups[group].identity.clone();
            let counted = identity.counts(pod, &self.solver.snapshot);
            let axis = &self.axes[self.groups[group].axis];
            if counted && !axis.is_hostname && axis.of_machine[machine] != u32::MAX {
                let domain = axis.of_machine[machine] as usize;
                self.groups[group].uncount_in(domain, 1);
            }
        }
    }

    fn find_domains(&mut self, group: GroupId) {
        let axis = self.groups[group].axis;
        if self.axes[axis].is_hostname {
            return;
        }
        let mut known = Bits::default();
        let passing = self.groups[group].machines.clone();
        for (domain, machines) in self.axes[axis].machines.iter().enumerate() {
            let mut machines = machines.clone();
            machines.intersect(&self.present);
            if let Some(passing) = &passing {
                machines.intersect(passing);
            }
            if !machines.is_empty() {
                known.insert(domain);
            }
        }
        let filter = self.groups[group].identity.filter.clone();
        let names = &self.solver.snapshot.config().well_known;
        for (index, template) in self.solver.templates.iter().enumerate() {
            let tolerated = filter
                .tolerations
                .as_ref()
                .is_none_or(|tolerations| untolerated(&template.taints, tolerations).is_none());
            let meets = filter.terms.as_ref().is_none_or(|terms| {
                terms.iter().any(|term| {
                    let wanted = self.algebra.set(term, |key| names.contains(key));
                    self.algebra.join(template.set, wanted).is_some()
                })
            });
            if tolerated && meets {
                known.unite(&self.axes[axis].of_template[index]);
            }
        }
        self.groups[group].known.unite(&known);
    }
}
