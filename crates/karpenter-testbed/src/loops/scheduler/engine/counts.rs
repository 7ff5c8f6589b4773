//! The bound pods in the counters: of their nodes, of topology domains, and of anti-affinity.

use super::{Engine, Uid};
use crate::loops::scheduler::counters::AntiGroup;

impl Engine {
    /// Adds (1) or removes (-1) a bound pod in all counters.
    pub(super) fn account(&mut self, uid: &Uid, delta: i64) {
        let Some(name) = self.pods.get(uid).and_then(|entry| entry.node.clone()) else {
            return;
        };
        let at = self.slot(&name);
        let Some(entry) = self.pods.get(uid) else {
            return;
        };
        if delta > 0 {
            self.nodes[at].add(uid, &entry.shape, &entry.volumes);
        } else {
            self.nodes[at].remove(uid, &entry.shape, &entry.volumes);
            self.changed.insert(at);
        }
        let node = &self.nodes[at];
        for term in &entry.shape.anti_affinity {
            let group = self
                .anti_groups
                .entry(term.clone())
                .or_insert_with(|| AntiGroup::new(term.clone()));
            group.count(node, delta);
            if group.is_empty() {
                self.anti_groups.remove(term);
            }
        }
        for id in &self.counting {
            if let Some(class) = self.classes.get_mut(id)
                && let Some((_, counters)) = class.counters.as_mut()
            {
                counters.count_affinity(&class.shape, &entry.shape, node, &self.namespaces, delta);
                if !entry.terminating {
                    counters.count_spread(&class.shape, &entry.shape, node, delta);
                }
            }
        }
    }

    /// Adds (1) or removes (-1) a bound pod in the counters of topology spread constraints.
    pub(super) fn count_spread_of(&mut self, uid: &Uid, delta: i64) {
        let Some(entry) = self.pods.get(uid) else {
            return;
        };
        let Some(&at) = entry.node.as_ref().and_then(|n| self.by_name.get(n)) else {
            return;
        };
        for id in &self.counting {
            if let Some(class) = self.classes.get_mut(id)
                && let Some((_, counters)) = class.counters.as_mut()
            {
                counters.count_spread(&class.shape, &entry.shape, &self.nodes[at], delta);
            }
        }
        self.freed += 1;
    }
}
