//! The constraints of a class at one step of relaxation.
//!
//! Variant 0 of a class has all of its constraints; each later one tries another alternative of the required node affinity, or drops
//! one more preference, in upstream's order: pod affinity, pod anti-affinity, node affinity (heaviest first), soft spread constraints,
//! and last it tolerates PreferNoSchedule taints. The nodes and planned nodes that permanently refuse a variant are cached with it.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/preferences.go
//! DIFFERS: alternatives of the required node affinity are all tried before a preference is dropped.

use std::sync::Arc;

use index_vec::{IndexVec, index_vec};
use rustc_hash::FxHashMap;

use crate::pod::Toleration;
use crate::requirements::Requirements;
use crate::schedule::compile::algebra::{Algebra, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{ClassId, NodeIdx, PlannedId, TemplateId};
use crate::schedule::compile::solver::Solver;
use crate::schedule::place::refusal::Refusal;
use crate::schedule::pods::class::{Class, Owned};
use crate::schedule::topology::choices::Choices;
use crate::taints::untolerated;

/// The constraints of a class at one step of relaxation.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    /// Node selector, one alternative of the required node affinity, preferred node affinity.
    pub(crate) set: SetId,
    /// The alternative, by its index among the terms of the class.
    pub(crate) alternative: usize,
    pub(crate) tolerations: Arc<Vec<Toleration>>,
    pub(crate) owned: Vec<Owned>,
    /// Existing nodes that have not refused it permanently in this pass. May contain nodes treated as deleted.
    pub(crate) open_nodes: Arc<Bits<NodeIdx>>,
    /// Planned nodes that refuse it permanently in this pass.
    pub(crate) refused_planned: Bits<PlannedId>,
    /// Templates whose taints are tolerated.
    pub(crate) tolerated_templates: Bits<TemplateId>,
    /// Why no new node of a template was planned for it when it was last tried.
    pub(crate) refused_by: IndexVec<TemplateId, Option<RefusedBy>>,
    /// The choices that topology constraints left then, if any.
    pub(crate) choices: Option<Choices>,
}

/// Variants before any pod is placed, by class and index.
pub(crate) type FreshVariants = FxHashMap<(ClassId, usize), Box<Variant>>;

/// Why a NodePool refused a variant.
#[derive(Clone, Debug)]
pub(crate) struct RefusedBy {
    pub(crate) refusal: Refusal,
    /// What was left of the limits of the NodePool.
    pub(crate) limits_left: Box<[i64]>,
}

impl Variant {
    /// Returns variant `index` of a class, with the nodes and templates that refuse it from the start.
    pub(crate) fn new(
        solver: &Solver,
        algebra: &mut Algebra,
        class: &Class,
        index: usize,
    ) -> Box<Self> {
        let names = &solver.snapshot.config().well_known;
        let alternative = index % class.terms.len();
        let (preferred, owned, tolerate) = left_after(class, index / class.terms.len());
        let mut all = class.terms[alternative].clone();
        if let Some(preferred) = preferred {
            all.add_all(preferred);
        }
        let mut tolerations = class.shape.tolerations.clone();
        if tolerate {
            tolerations.push(Toleration::any_prefer_no_schedule());
        }
        let open = || open_nodes(solver, class, &all, &tolerations);
        let open_nodes = match class.volume_requirements.is_empty() {
            // These nodes are the same for all pods of a shape.
            true => solver.open_nodes(&class.shape, index, open),
            false => Arc::new(open()),
        };
        let templates = solver.templates.iter_enumerated();
        let tolerated_templates = templates
            .filter(|(_, template)| untolerated(&template.taints, &tolerations).is_none())
            .map(|(index, _)| index)
            .collect();
        Box::new(Self {
            set: algebra.set(&all, |key| names.contains(key)),
            alternative,
            tolerations: Arc::new(tolerations),
            owned,
            open_nodes,
            refused_planned: Bits::default(),
            tolerated_templates,
            refused_by: index_vec![None; solver.templates.len()],
            choices: None,
        })
    }
}

/// Returns the constraints of a class that are left once so many preferences are dropped: the heaviest preferred node affinity, the
/// groups, and whether PreferNoSchedule taints are tolerated.
fn left_after(class: &Class, mut dropped: usize) -> (Option<&Requirements>, Vec<Owned>, bool) {
    let soft = &class.links.soft;
    let mut drop_from = |available: usize| {
        let here = dropped.min(available);
        dropped -= here;
        here
    };
    let affinity = drop_from(soft.affinity.len());
    let anti_affinity = drop_from(soft.anti_affinity.len());
    let nodes = drop_from(soft.nodes.len());
    let spread = drop_from(soft.spread.len());
    let mut owned = class.links.hard.clone();
    owned.extend_from_slice(&soft.spread[spread..]);
    owned.extend_from_slice(&soft.affinity[affinity..]);
    owned.extend_from_slice(&soft.anti_affinity[anti_affinity..]);
    (soft.nodes.get(nodes), owned, dropped > 0)
}

/// Returns the nodes that meet the requirements of a variant, with room for a pod of the class, before a pass.
fn open_nodes(
    solver: &Solver,
    class: &Class,
    requirements: &Requirements,
    tolerations: &[Toleration],
) -> Bits<NodeIdx> {
    let mut nodes = solver.nodes_with_room(&class.requests);
    for requirement in requirements.iter() {
        nodes.intersect(&solver.nodes_meeting(requirement));
    }
    nodes.intersect(&solver.nodes_tolerated(tolerations));
    if !class.volume_requirements.is_empty() {
        let mut reachable = Bits::default();
        for alternative in &class.volume_requirements {
            reachable.unite(&solver.nodes_meeting_all(alternative));
        }
        nodes.intersect(&reachable);
    }
    nodes
}
