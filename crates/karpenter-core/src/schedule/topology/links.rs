//! The groups that constrain or count each class, and which pods kube-scheduler may have to bind before others: see [`BindOrder`].

use index_vec::IndexVec;
use rustc_hash::FxHashMap;

use crate::pod::SpreadConstraint;
use crate::requirements::{Operator, Requirement, Requirements};
use crate::schedule::compile::algebra::Algebra;
use crate::schedule::compile::group_identity::{GroupIdentity, GroupKind};
use crate::schedule::compile::ids::{ClassId, GroupId};
use crate::schedule::compile::node_affinity::with_term;
use crate::schedule::pods::class::{BindOrder, Class, Links, Owned};
use crate::schedule::pods::defaults::spread_of;
use crate::schedule::request::PreferencePolicy;
use crate::schedule::topology::domains::Topology;
use crate::schedule::topology::identities::{
    heaviest_first, keys_of_counted_nodes, own_constraints,
};

impl Topology<'_> {
    /// Finds or creates the groups that constrain a class.
    pub(crate) fn constrain(&mut self, algebra: &mut Algebra, class: &mut Class) {
        let solver = self.solver;
        let shape = class.shape.as_ref();
        let mut links = Links::default();
        let spreads = spread_of(shape, &solver.policy.default_spread, &solver.snapshot);
        let keys = self.missing_keys(algebra, &spreads);
        for (identity, required) in own_constraints(solver, shape, &class.terms, &spreads, &keys) {
            let kind = identity.kind;
            let inverse = (required && kind == GroupKind::Anti).then(|| GroupIdentity {
                kind: GroupKind::Inverse,
                ..identity.clone()
            });
            let owned = Owned {
                own: identity.selects(&shape.namespace, &shape.labels, &solver.snapshot),
                group: self.group_of(algebra, identity.into()),
                soft: !required,
            };
            let inverse = inverse.map(|identity| self.group_of(algebra, identity.into()));
            links.keeps_away.extend(inverse);
            links.retryable |= !kind.keeps_away();
            let list = match kind {
                _ if required => &mut links.hard,
                GroupKind::Spread => &mut links.soft.spread,
                GroupKind::Affinity => &mut links.soft.affinity,
                GroupKind::Anti | GroupKind::Inverse => &mut links.soft.anti_affinity,
            };
            list.push(owned);
        }
        if solver.policy.preference_policy == PreferencePolicy::Respect {
            let names = &solver.snapshot.config().well_known;
            let preferred = heaviest_first(&shape.preferred_nodes).into_iter();
            links.soft.nodes = preferred
                .map(|preferred| {
                    with_term(&Requirements::new(), &preferred.term.expressions, names)
                })
                .collect();
        }
        links.soft.tolerate = solver.has_soft_taints;
        links.retryable |= !class.resource_claims.is_empty();
        class.links = links;
    }

    /// Completes the links of all classes: the groups that count each class, the inverse groups that select it, and the bind order.
    pub(crate) fn link(&mut self, classes: &mut IndexVec<ClassId, Class>) {
        let hard = classes.iter().flat_map(|class| &class.links.hard);
        self.required = hard.map(|owned| owned.group).collect();
        let mut anchored: FxHashMap<(&str, &str), Vec<GroupId>> = FxHashMap::default();
        let mut others: Vec<GroupId> = Vec::new();
        for (group, counters) in self.groups.iter_enumerated() {
            match counters.identity.selector.anchor() {
                Some((key, values)) => {
                    for value in values {
                        let anchored = anchored.entry((key, value.as_str()));
                        anchored.or_default().push(group);
                    }
                }
                None => others.push(group),
            }
        }
        for class in classes.iter_mut().filter(|class| class.problem.is_none()) {
            let shape = &class.shape;
            let labels = shape.labels.iter();
            let by_label = labels
                .filter_map(|(key, value)| anchored.get(&(key.as_str(), value.as_str())))
                .flatten();
            let mut candidates: Vec<GroupId> = by_label.chain(&others).copied().collect();
            candidates.sort_unstable();
            candidates.dedup();
            let selects = |group: &GroupId| {
                let identity = &self.groups[*group].identity;
                identity.selects(&shape.namespace, &shape.labels, &self.solver.snapshot)
            };
            let selecting = candidates.into_iter().filter(selects);
            let is_inverse = |group: &GroupId| self.groups[*group].kind() == GroupKind::Inverse;
            (class.links.kept_away, class.links.counted) = selecting.partition(is_inverse);
            let counts_elsewhere = |group: &GroupId| {
                let identity = &self.groups[*group].identity;
                let mut terms = class.terms.iter();
                self.is_spread(*group)
                    && !identity.filter.honors_affinity
                    && terms.all(|term| term.get(&identity.key).is_some())
            };
            let own = class.links.hard.iter().map(|owned| owned.group);
            class.links.counts_elsewhere = own.filter(counts_elsewhere).collect();
        }
        self.order(classes);
    }

    /// Returns those labels that counted nodes have ([`keys_of_counted_nodes`]) and some nodes do not.
    fn missing_keys(&self, algebra: &Algebra, constraints: &[SpreadConstraint]) -> Vec<String> {
        let solver = self.solver;
        let is_missing = |key: &&str| {
            let exists = Requirement::new(key, Operator::Exists, [""; 0]);
            let with_label = solver.nodes_meeting(&exists);
            let mut nodes = solver.nodes.iter();
            let mut templates = solver.templates.iter();
            nodes.any(|(node, _)| !with_label.contains(node))
                || templates.any(|t| algebra.requirements(t.set).get(key).is_none())
        };
        let names = &solver.snapshot.config().well_known;
        let keys = keys_of_counted_nodes(constraints, names).into_iter();
        keys.filter(is_missing).map(str::to_owned).collect()
    }

    /// Finds the bind order of each class.
    fn order(&mut self, classes: &mut IndexVec<ClassId, Class>) {
        let spreads = |class: &Class| -> Vec<GroupId> {
            let own = class.links.hard.iter().map(|owned| owned.group);
            own.filter(|group| self.is_spread(*group)).collect()
        };
        let own: IndexVec<ClassId, Vec<GroupId>> = classes.iter().map(spreads).collect();
        let mut owners: FxHashMap<GroupId, Vec<ClassId>> = FxHashMap::default();
        for (index, spreads) in own.iter_enumerated() {
            for group in spreads {
                owners.entry(*group).or_default().push(index);
            }
        }
        let found: Vec<BindOrder> = classes
            .iter_enumerated()
            .map(|(index, class)| {
                let waits = |group: &GroupId| {
                    let owners = owners.get(group).into_iter().flatten();
                    let mut others = owners.filter(|owner| **owner != index);
                    others.any(|owner| self.starts_before(class, &classes[*owner]))
                };
                let counted = class.links.counted.iter().copied();
                let before: Vec<GroupId> = match own[index].is_empty() {
                    true => counted.filter(waits).collect(),
                    false => counted.filter(|group| owners.contains_key(group)).collect(),
                };
                let mut chains = Vec::new();
                for open in own[index].iter().chain(&before) {
                    let axis = self.groups[*open].axis;
                    let others = own[index].iter().copied();
                    let others = others.filter(|own| self.groups[*own].axis != axis);
                    chains.extend(others.map(|own| (*open, own)));
                }
                chains.sort_unstable();
                chains.dedup();
                BindOrder { before, chains }
            })
            .collect();
        for (class, bind_order) in classes.iter_mut().zip(found) {
            for (open, own) in &bind_order.chains {
                self.chains.entry(*open).or_default().insert(*own);
            }
            class.links.bind_order = bind_order;
        }
    }

    /// Reports whether a pod of a class can start an affinity group of its own that selects pods of another, which cannot be in its
    /// domain: by hostname, or because anti-affinity keeps them apart.
    fn starts_before(&self, class: &Class, other: &Class) -> bool {
        let hard = &class.links.hard;
        let selects = |group: GroupId, kind: GroupKind| {
            self.groups[group].kind() == kind && other.links.counted.contains(&group)
        };
        hard.iter().any(|owned| {
            let axis = self.groups[owned.group].axis;
            let apart = || {
                self.axes[axis].is_hostname
                    || hard.iter().any(|away| {
                        self.groups[away.group].axis == axis && selects(away.group, GroupKind::Anti)
                    })
            };
            owned.own && selects(owned.group, GroupKind::Affinity) && apart()
        })
    }

    fn is_spread(&self, group: GroupId) -> bool {
        let group = &self.groups[group];
        group.kind() == GroupKind::Spread && !self.axes[group.axis].is_hostname
    }
}
