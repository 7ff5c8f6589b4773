//! Deciding labels of planned nodes: their domain, and whether they pass node filters.
//!
//! The launch decides what a plan leaves open. Where a topology constraint has to know the answer, the plan decides: mostly on the
//! cheapest, as the launch would. [`Topology::on_narrowed`] tells what follows from a decision.
//!
//! A pod that starts an affinity group chooses among the domains that all planned nodes with pods of the group can be in; then their
//! domain is fixed. Otherwise they could end up in another domain than the pods that require affinity to them.
//!
//! DIFFERS: upstream starts the group in any domain of the pod, and the planned nodes may get another domain.
//!
//! [`Topology::on_narrowed`]: crate::schedule::topology::domains::Topology::on_narrowed

use std::sync::Arc;

use crate::requirements::{Operator, Requirement};
use crate::schedule::compile::algebra::{KeyId, ReqId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::group_identity::GroupKind;
use crate::schedule::compile::ids::{AxisId, DomainId, GroupId, PlannedId, Target};
use crate::schedule::place::placement::{Manner, Placement};
use crate::schedule::place::planned_node::Narrowed;
use crate::schedule::place::refusal::Refusal;
use crate::schedule::place::variant::Variant;
use crate::schedule::pods::class::Class;
use crate::schedule::topology::choices::{Choices, Domains};
use crate::schedule::topology::group::{Among, DomainQuery};

impl Placement<'_, '_> {
    /// Tells the topology that the requirements of a planned node may have changed, and does what follows.
    pub(super) fn narrowed(&mut self, index: PlannedId) {
        let set = self.planned[index].set;
        let effects = self
            .topology
            .on_narrowed(&mut self.rows.algebra, index, set);
        self.changed(effects.changed);
        for (axis, domain) in effects.decided {
            self.fix_domain(index, axis, domain);
        }
        for (group, number) in effects.passing {
            (0..number).for_each(|_| self.count(group, index));
        }
    }

    /// Returns the choices that the topology constraints of a variant leave.
    pub(super) fn choices(
        &mut self,
        class: &Class,
        variant: &Variant,
        among: Among,
    ) -> Result<Choices, Refusal> {
        let query = DomainQuery::new(class, variant.alternative, among);
        let algebra = &mut self.rows.algebra;
        let choices = self.topology.choices(algebra, &query, &variant.owned);
        let mut choices = choices.map_err(Refusal::NoDomain)?;
        for group in &choices.undecided_groups {
            let axis = self.topology[*group].axis;
            let of_axis = |domains: &&mut Domains| domains.axis == axis;
            let Some(domains) = choices.domains.iter_mut().find(of_axis) else {
                continue;
            };
            for planned in self.topology.undecided(*group) {
                let open = domains.allowed.iter();
                let reached =
                    open.filter(|domain| self.in_domain(planned, axis, *domain).is_some());
                domains.allowed = reached.collect();
            }
            if domains.allowed.is_empty() {
                return Err(Refusal::NoDomain(*group));
            }
        }
        Ok(choices)
    }

    /// Fixes the domain of the planned nodes with undecided pods of the groups that the placed pod started.
    pub(super) fn fix_undecided(&mut self, choices: &Choices, target: Target) {
        for group in &choices.undecided_groups {
            let axis = self.topology[*group].axis;
            let domain = match target {
                Target::Node(node) => self.topology[axis].domain_of(node),
                Target::Planned(planned) => self.reach(planned, axis).single(),
            };
            let Some(domain) = domain else {
                continue;
            };
            for planned in self.topology.undecided(*group) {
                if let Some(fixed) = self.in_domain(planned, axis, domain) {
                    self.fix(planned, fixed);
                }
            }
        }
    }

    /// Counts a pod of a class on a planned node.
    pub(super) fn count_on_planned(&mut self, index: PlannedId, class: &Class) {
        let mut counted = false;
        for group in &class.links.counted {
            let algebra = &mut self.rows.algebra;
            if self.topology.passes_filter(algebra, index, *group) {
                self.count(*group, index);
                counted = true;
            } else {
                self.topology.note_unfiltered(*group, index);
            }
        }
        for group in &class.links.keeps_away {
            self.count(*group, index);
        }
        self.changed(counted);
    }

    fn count(&mut self, group: GroupId, index: PlannedId) {
        let axis = self.topology[group].axis;
        if self.topology[axis].is_hostname {
            return self
                .topology
                .count_on_planned(group, index, &Bits::default(), None);
        }
        let reach = self.reach(index, axis);
        // Upstream keeps pods with anti-affinity out of all domains that the requirements leave, even if no other can be launched.
        let upstreams = self.manner == Manner::Upstream && self.topology[group].kind().keeps_away();
        let only = match reach.single() {
            None if !upstreams => self.only_domain(index, axis, &reach),
            single => single,
        };
        if let Some(domain) = only {
            self.fix_domain(index, axis, domain);
        }
        self.topology.count_on_planned(group, index, &reach, only);
    }

    /// Fixes labels that only the launch would decide, if a topology constraint counts the pod by them, or reads them in its node filter.
    /// Labels that the provider decides, such as the zone, stay open.
    ///
    /// DIFFERS: upstream leaves such a label open, counts the pod in no domain, and picks a value at the launch.
    pub(super) fn fix_labels(&mut self, index: PlannedId, class: &Class) {
        for group in &class.links.counted {
            for (key, wanted) in self.topology.filter_labels(&self.rows.algebra, *group) {
                if !self.rows.algebra.is_known(key) {
                    self.fix_custom_label(index, key, wanted);
                }
            }
        }
        for group in &class.links.counted {
            let axis = self.topology[*group].axis;
            let key = self.topology[axis].key;
            let is_known = self.rows.algebra.is_known(key);
            if self.topology[axis].is_hostname || is_known || !self.is_open(index, key) {
                continue;
            }
            let Some(req) = self.rows.algebra.get(self.planned[index].set, key) else {
                continue;
            };
            let reach = self.topology.admitted(&mut self.rows.algebra, axis, req);
            let spreads = class
                .links
                .counted
                .iter()
                .map(|group| &self.topology[*group]);
            let spreads = spreads.filter(|it| it.axis == axis && it.kind() == GroupKind::Spread);
            let load = |domain: DomainId| -> u32 {
                spreads.clone().map(|group| group.in_domain(domain)).sum()
            };
            let names = self.topology[axis].domains();
            let least = reach
                .iter()
                .min_by_key(|domain| (load(*domain), &names[*domain]));
            if let Some(domain) = least {
                self.fix_domain(index, axis, domain);
            }
        }
    }

    /// Fixes what these spreads read of planned nodes: the domain of pods that may have to be bound before theirs, and whether planned
    /// nodes pass their node filters. Called before a pod with the spreads is placed, not as soon as the planned nodes have pods: what is
    /// cheaper, and has room, is known better once they have more.
    ///
    /// DIFFERS: upstream leaves the domain open and does not count the pods; it leaves filtered labels open and counts them.
    pub(super) fn fix_counted_by(&mut self, spreads: &Bits<GroupId>) {
        for group in spreads.iter() {
            let axis = self.topology[group].axis;
            for index in self.topology.take_due(group) {
                self.fix_cheapest(index, axis);
            }
        }
        for index in self.topology.unfiltered_nodes() {
            for group in self.topology.to_filter(index, spreads) {
                // Where its domain is open, its pods are not counted yet and can be bound last.
                if self.topology.has_domain(&self.rows.algebra, index, group) {
                    self.fix_filtered(index, group, spreads);
                }
            }
        }
        self.topology.forget_filtered();
    }

    /// Fixes whether a planned node passes the node filter of a spread.
    fn fix_filtered(&mut self, index: PlannedId, group: GroupId, spreads: &Bits<GroupId>) {
        for (key, wanted) in self.topology.filter_labels(&self.rows.algebra, group) {
            // One alternative of the node affinity is enough.
            if !self.topology.to_filter(index, spreads).contains(&group) {
                return;
            }
            if self.rows.algebra.is_known(key) {
                self.fix_provider_label(index, key, wanted);
            }
        }
    }

    /// Fixes a value of a label that the NodePool decides, if the filter does not accept all values.
    fn fix_custom_label(&mut self, index: PlannedId, key: KeyId, wanted: ReqId) {
        let wanted = self.rows.algebra.requirement(wanted);
        let bounded = wanted.gte().is_some() || wanted.lte().is_some();
        if (wanted.operator() == Operator::Exists && !bounded) || !self.is_open(index, key) {
            return;
        }
        let node = &mut self.planned[index];
        let Some(req) = self.rows.algebra.get(node.set, key) else {
            return;
        };
        let requirement = self.rows.algebra.requirement(req);
        let Some(value) = requirement.any() else {
            return;
        };
        let drawn = Requirement::equal(requirement.key(), &value);
        let drawn = self.rows.algebra.req(&drawn, || false);
        if let Some(fixed) = self.rows.algebra.narrow(node.set, drawn)
            && (self.rows.mask(node.template, fixed).rows).contains(node.witness)
        {
            node.set = fixed;
            self.narrowed(index);
        }
    }

    /// Fixes whether a label that the provider decides passes the filter: the cheaper, which the launch would choose, too.
    fn fix_provider_label(&mut self, index: PlannedId, key: KeyId, wanted: ReqId) {
        if !self.is_open(index, key) {
            return;
        }
        let passing = self.rows.algebra.requirement(wanted);
        let opposite = match passing.operator() {
            Operator::In => Operator::NotIn,
            Operator::NotIn => Operator::In,
            _ => return,
        };
        let values = passing.values();
        let failing = Requirement::new(passing.key(), opposite, values.collect::<Vec<_>>());
        let failing = self.rows.algebra.req(&failing, || true);
        let ways = [wanted, failing].map(|req| self.under(index, req));
        self.fix_to_cheapest(index, ways.into_iter().flatten());
    }

    /// Fixes the domain of a planned node, if it can be there with its pods and the reservations it relies on.
    fn fix_domain(&mut self, index: PlannedId, axis: AxisId, domain: DomainId) {
        if self.is_open(index, self.topology[axis].key)
            && let Some(fixed) = self.in_domain(index, axis, domain)
        {
            self.fix(index, fixed);
        }
    }

    /// Fixes the cheapest domain of a planned node.
    pub(super) fn fix_cheapest(&mut self, index: PlannedId, axis: AxisId) {
        if !self.is_open(index, self.topology[axis].key) {
            return;
        }
        let reach = self.reach(index, axis);
        let ways = reach.iter();
        let ways: Vec<Narrowed> = ways
            .filter_map(|domain| self.in_domain(index, axis, domain))
            .collect();
        self.fix_to_cheapest(index, ways);
    }

    /// Narrows a planned node in the way with the lowest price; of equal ones the first.
    fn fix_to_cheapest(&mut self, index: PlannedId, ways: impl IntoIterator<Item = Narrowed>) {
        let mut cheapest: Option<(f64, Narrowed)> = None;
        for fixed in ways {
            let node = &self.planned[index];
            let allowed = node.allowed.as_deref();
            let price = self
                .rows
                .lowest_price(node.template, fixed.set, &node.used, allowed);
            if cheapest.as_ref().is_none_or(|(least, _)| price < *least) {
                cheapest = Some((price, fixed));
            }
        }
        if let Some((_, fixed)) = cheapest {
            self.fix(index, fixed);
        }
    }

    fn fix(&mut self, index: PlannedId, fixed: Narrowed) {
        let node = &mut self.planned[index];
        if node.set != fixed.set {
            node.narrow(fixed.set, fixed.witness, self.rows);
            self.settle(index, fixed.reservations);
            self.narrowed(index);
        }
    }

    /// Reports whether a label of a planned node may be fixed: it is neither fixed yet nor has minValues.
    fn is_open(&self, index: PlannedId, key: KeyId) -> bool {
        let algebra = &self.rows.algebra;
        let req = algebra.get(self.planned[index].set, key);
        req.map(|req| algebra.requirement(req))
            .is_none_or(|req| req.single().is_none() && req.min_values().is_none())
    }

    /// Returns the domains that the requirements of a planned node admit.
    pub(super) fn reach(&mut self, index: PlannedId, axis: AxisId) -> Arc<Bits<DomainId>> {
        let set = self.planned[index].set;
        self.topology.reach(&mut self.rows.algebra, axis, set)
    }

    /// Returns the only domain of `reach` that the planned node can be in, if there is exactly one.
    fn only_domain(
        &mut self,
        index: PlannedId,
        axis: AxisId,
        reach: &Bits<DomainId>,
    ) -> Option<DomainId> {
        let mut there = reach
            .iter()
            .filter(|domain| self.in_domain(index, axis, *domain).is_some());
        let first = there.next()?;
        there.next().is_none().then_some(first)
    }

    /// Returns the state of a planned node in a domain; `None` if it cannot be there.
    fn in_domain(&mut self, index: PlannedId, axis: AxisId, domain: DomainId) -> Option<Narrowed> {
        let one = [domain].into_iter().collect();
        let algebra = &mut self.rows.algebra;
        let req = self.topology.requirement_for(algebra, axis, &one);
        self.under(index, req)
    }

    fn under(&mut self, index: PlannedId, req: ReqId) -> Option<Narrowed> {
        self.planned[index].narrowed_by(req, self.rows, self.budgets)
    }
}
