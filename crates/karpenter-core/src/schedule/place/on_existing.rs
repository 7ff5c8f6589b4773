//! Placing a pod on an existing node: the first by name that accepts it, initialized nodes before others.
//!
//! Requirements, taints and the room before the pass are bitsets computed once per variant; free resources, ports and attachments
//! only shrink, so a node that refused a class is not tried again for it in the pass.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::schedule::compile::bits::{Bits, members};
use crate::schedule::compile::ids::{ClassId, NodeIdx, PodIdx};
use crate::schedule::pass::SchedulingPass;
use crate::schedule::pods::class::{PodState, Variant};
use crate::schedule::topology::choices::Choices;
use crate::schedule::topology::group::Target;

impl SchedulingPass<'_> {
    pub(crate) fn try_nodes(
        &mut self,
        pod: PodIdx,
        class: ClassId,
        variant: &mut Variant,
        choices: &Choices,
        only: Option<&Bits<NodeIdx>>,
    ) -> Option<Target> {
        let allowed: SmallVec<[Bits<NodeIdx>; 2]> = choices
            .domains
            .iter()
            .map(|domains| {
                let mut nodes = Bits::default();
                for domain in domains.allowed.iter() {
                    nodes.unite(&self.topology.axes[domains.axis].labels.nodes[domain]);
                }
                nodes
            })
            .collect();
        let avoids = !self.queue.pods[pod].waiting
            && !self.queue.pods[pod].buffer
            && !self.nodes.avoid.is_empty();
        for index in 0..variant.open_nodes.words().len() {
            let mut word = variant.open_nodes.word(index);
            word &= self.nodes.usable.word(index);
            if word == 0 {
                continue;
            }
            if avoids {
                word &= !self.nodes.avoid.word(index);
            }
            for allowed in allowed.iter().chain(only) {
                word &= allowed.word(index);
            }
            if word != 0 {
                word &= self
                    .topology
                    .target_word(choices, index, |targets| &*targets.nodes);
            }
            for node in members(index, word) {
                if self.node_accepts(node, class) {
                    self.place_on_node(node, pod, class);
                    let target = Target::Node(node);
                    self.fix_undecided(choices, target);
                    return Some(target);
                }
                Arc::make_mut(&mut variant.open_nodes).remove(node);
            }
        }
        self.queue.pods[pod].scanned = true;
        None
    }

    fn node_accepts(&mut self, node: NodeIdx, class: ClassId) -> bool {
        let pods = &self.queue.classes[class];
        self.nodes.accepts(node, pods)
            && (pods.resource_claims.is_empty()
                || self
                    .devices
                    .as_mut()
                    .is_some_and(|devices| devices.find_on_node(node, pods)))
    }

    fn place_on_node(&mut self, node: NodeIdx, pod: PodIdx, class: ClassId) {
        self.nodes.place(node, &self.queue.classes[class]);
        if !self.queue.classes[class].resource_claims.is_empty()
            && let Some(devices) = &mut self.devices
        {
            devices.commit_on_node(node);
        }
        self.queue.pods[pod].state = PodState::Placed(Target::Node(node));
        let counted = self
            .topology
            .record_on_node(node, &self.queue.classes[class]);
        self.epoch += u64::from(counted);
    }
}
