//! Initial counts of the topology groups: the domains of each group, and the pods it counts in them before the pass.

use std::sync::Arc;

use crate::pod::Pod;
use crate::schedule::compile::algebra::Algebra;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::group_identity::GroupKind;
use crate::schedule::compile::ids::{GroupId, NodeIdx, Target};
use crate::schedule::compile::nodes::bound_pods::Staying;
use crate::schedule::pods::class::Class;
use crate::schedule::pods::queue::{PodQueue, QueuedPod};
use crate::schedule::topology::domains::Topology;
use crate::taints::untolerated;

impl Topology<'_> {
    /// Fills the counters with the bound pods, except those of deleted nodes and the pods of the pass, and finds the domains of
    /// each group.
    pub(crate) fn count_existing_pods(
        &mut self,
        algebra: &mut Algebra,
        queue: &PodQueue,
        deleted: &[NodeIdx],
    ) {
        let solver = self.solver;
        let shapes = queue.classes.iter().map(|class| class.shape.as_ref());
        for identity in solver.bound.terms_against(shapes, &solver.snapshot) {
            let group = self.group_of(algebra, identity.clone());
            self.count_base(group, deleted);
        }
        for group in self.groups.indices() {
            self.find_domains(group);
            if self.groups[group].kind() != GroupKind::Inverse {
                self.count_base(group, deleted);
            }
        }
        self.count_staying();
        if self.groups.is_empty() {
            return;
        }
        for QueuedPod { pod, .. } in &queue.pods {
            let node = pod.node_name.as_ref();
            let node = node.and_then(|name| solver.nodes.find(name));
            let node = node.filter(|node| self.present.contains(*node));
            if let Some(node) = node.filter(|_| pod.is_active()) {
                self.uncount(pod, node);
            }
        }
    }

    fn count_base(&mut self, group: GroupId, deleted: &[NodeIdx]) {
        let axis = &self.axes[self.groups[group].axis];
        self.groups[group].count_base(axis, deleted);
    }

    /// Counts pods that stay on deleting nodes, as kube-scheduler does. No pod can be placed on those nodes, so hostname groups
    /// are left out.
    fn count_staying(&mut self) {
        let solver = self.solver;
        for Staying { node, pods } in &solver.bound.staying {
            for group in &mut self.groups {
                let axis = &self.axes[group.axis];
                let domain = node.label(&axis.name);
                let Some(domain) = domain.and_then(|value| axis.labels.ids.get(value)) else {
                    continue;
                };
                let filter = &group.identity.filter;
                let tolerated = filter.tolerations.as_ref();
                let tolerated =
                    tolerated.is_none_or(|all| untolerated(&node.taints, all).is_none());
                let terms = filter.terms.as_ref();
                let passes = terms.is_none_or(|terms| terms.iter().any(|t| node.meets_all(t)));
                if axis.is_hostname || !tolerated || !passes {
                    continue;
                }
                let counted = |pod: &&Arc<Pod>| group.identity.counts(pod, &solver.snapshot);
                let number = pods.iter().filter(counted).count();
                if number > 0 {
                    group.count_in(*domain, u32::try_from(number).unwrap_or(u32::MAX));
                }
            }
        }
    }

    /// Removes a bound pod of this pass from the counts of the node it is bound to.
    fn uncount(&mut self, pod: &Pod, node: NodeIdx) {
        for group in self.groups.indices() {
            let identity = self.groups[group].identity.clone();
            let counted = identity.counts(pod, &self.solver.snapshot);
            let axis = &self.axes[self.groups[group].axis];
            if counted
                && !axis.is_hostname
                && let Some(domain) = axis.domain_of(node)
            {
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
        let passing = self.groups[group].passing().unwrap_or(&self.present);
        for (domain, nodes) in self.axes[axis].labels.nodes.iter_enumerated() {
            if Bits::meet(&[nodes, &self.present, passing]) {
                known.insert(domain);
            }
        }
        let identity = self.groups[group].identity.clone();
        let filter = &identity.filter;
        if filter.terms.is_some() {
            let terms = self.solver.term_domains(&identity.key, filter);
            terms.iter().for_each(|term| known.unite(&term.offered));
            self.groups[group].terms = terms;
        } else {
            for (index, template) in self.solver.templates.iter_enumerated() {
                let tolerations = filter.tolerations.as_ref();
                if tolerations.is_none_or(|all| untolerated(&template.taints, all).is_none()) {
                    known.unite(&self.axes[axis].labels.of_template[index]);
                }
            }
        }
        self.groups[group].known.unite(&known);
    }

    /// Counts a pod of a class placed on a node. Reports whether a group counts it other than by the pod's own anti-affinity.
    pub(crate) fn record_on_node(&mut self, node: NodeIdx, class: &Class) -> bool {
        let mut counted = false;
        for group in &class.links.counted {
            let counts = self.groups[*group].passing();
            if counts.is_none_or(|nodes| nodes.contains(node)) {
                self.count_on_node(*group, node);
                counted = true;
            }
        }
        for group in &class.links.keeps_away {
            self.count_on_node(*group, node);
        }
        counted
    }

    fn count_on_node(&mut self, group: GroupId, node: NodeIdx) {
        let axis = &self.axes[self.groups[group].axis];
        if axis.is_hostname {
            self.groups[group].count_on(Target::Node(node), 1);
        } else if let Some(domain) = axis.domain_of(node) {
            self.groups[group].count_in(domain, 1);
        }
    }
}
