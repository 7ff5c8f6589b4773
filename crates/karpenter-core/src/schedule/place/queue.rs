//! Placing pods one by one: on existing nodes, then planned nodes, then new planned nodes, variant by variant.

use rustc_hash::FxHashMap;

use crate::pod::PodKey;
use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::bits::Bits;
use crate::schedule::pass::{Fate, Run};
use crate::schedule::place::planned_node::Refusal;
use crate::schedule::pods::class::Variant;
use crate::schedule::portfolio::Order;

impl Run<'_> {
    /// Places pods until a round places none.
    pub(crate) fn place_all(&mut self) {
        let mut queue = self.queue();
        self.keep_places(&mut queue);
        loop {
            let before = queue.len();
            let mut again = Vec::new();
            for (position, item) in queue.iter().enumerate() {
                if position % 128 == 0 {
                    if let Some(progress) = &self.request.progress {
                        progress(before - position + again.len());
                    }
                    if self.request.cancel.as_ref().is_some_and(|cancel| cancel()) {
                        return;
                    }
                }
                let class = self.items[*item].class;
                let unplaceable =
                    self.classes[class].unplaceable || self.classes[class].problem.is_some();
                let fate = if unplaceable {
                    Fate::Refused
                } else {
                    self.place(*item)
                };
                self.items[*item].fate = fate;
                let unplaceable =
                    self.classes[class].unplaceable || self.classes[class].problem.is_some();
                if matches!(fate, Fate::Refused | Fate::Deferred) && !unplaceable {
                    again.push(*item);
                }
            }
            if again.is_empty() || again.len() == before {
                return;
            }
            queue = again;
        }
    }

    /// Places nominated pods on their node where they still fit, and removes them from the queue.
    fn keep_places(&mut self, queue: &mut Vec<usize>) {
        let (solver, nominated) = (self.solver, &self.request.nominated);
        if nominated.is_empty() {
            return;
        }
        let mut nodes: FxHashMap<&PodKey, usize> = FxHashMap::default();
        for (pod, target) in nominated {
            let state = solver.snapshot.node(target);
            let node = state.and_then(|state| solver.node_index.get(state.name()));
            nodes.extend(node.map(|node| (pod, *node as usize)));
        }
        queue.retain(|item| {
            let node = nodes.get(&self.items[*item].pod.key);
            !node.is_some_and(|node| self.keeps_place(*item, *node))
        });
    }

    fn keeps_place(&mut self, item: usize, node: usize) -> bool {
        let class = self.items[item].class;
        if self.classes[class].problem.is_some() {
            return false;
        }
        let only = Bits::from_iter([node]);
        for index in 0..self.classes[class].variants.len() {
            let mut variant = self.take_variant(class, index);
            let host = self.choices(class, &variant).ok().and_then(|choices| {
                let host = self.try_nodes(item, class, &mut variant, &choices, Some(&only))?;
                self.fix_undecided(&choices, host);
                Some(host)
            });
            self.classes[class].variants[index] = Some(variant);
            if host.is_some() {
                self.items[item].dropped = index / self.classes[class].terms.len().max(1);
                return true;
            }
        }
        false
    }

    fn take_variant(&mut self, class: usize, index: usize) -> Box<Variant> {
        let known = self.classes[class].variants[index].take();
        known.unwrap_or_else(|| self.form_variant(class, index))
    }

    /// Returns the items in the order of the strategy. `items` is sorted by size.
    fn queue(&self) -> Vec<usize> {
        let mut queue: Vec<usize> = (0..self.items.len()).collect();
        let class = |item: &usize| &self.classes[self.items[*item].class];
        match self.strategy.order {
            Order::Size => {}
            Order::Memory => queue.sort_by_cached_key(|item| {
                let asked = &class(item).shape.requests;
                let memory = asked.get("memory").saturating_neg();
                (self.items[*item].buffer, memory, *item)
            }),
            Order::Alike => {
                // Groups are ordered by their largest pod: ids depend on the order of objects.
                let mut first: FxHashMap<&[SetId], usize> = FxHashMap::default();
                for item in &queue {
                    first.entry(&class(item).term_sets).or_insert(*item);
                }
                queue.sort_by_cached_key(|item| {
                    let largest = first.get(class(item).term_sets.as_slice()).copied();
                    (self.items[*item].buffer, largest, *item)
                });
            }
        }
        queue
    }

    fn place(&mut self, item: usize) -> Fate {
        let class = self.items[item].class;
        if self.classes[class].refused_at == self.epoch {
            return self.classes[class].refused_as;
        }
        for index in 0..self.classes[class].variants.len() {
            let mut variant = self.take_variant(class, index);
            let fate = self.try_variant(item, class, &mut variant);
            self.classes[class].variants[index] = Some(variant);
            match fate {
                Fate::Placed(_) => {
                    let alternatives = self.classes[class].terms.len().max(1);
                    self.items[item].dropped = index / alternatives;
                    return fate;
                }
                Fate::Deferred => return self.refuse(class, Fate::Deferred),
                Fate::Refused | Fate::Waiting => {}
            }
        }
        self.refuse(class, Fate::Refused)
    }

    /// Caches a refusal until the epoch changes.
    fn refuse(&mut self, class: usize, fate: Fate) -> Fate {
        let releases_capacity = self.solver.releases_capacity;
        let class = &mut self.classes[class];
        class.refused_at = self.epoch;
        class.refused_as = fate;
        class.unplaceable = !class.retryable && !releases_capacity;
        if !class.claims.is_empty() {
            // Devices may be released: no refusal is permanent.
            class
                .variants
                .iter_mut()
                .for_each(|variant| *variant = None);
        }
        fate
    }

    fn try_variant(&mut self, item: usize, class: usize, variant: &mut Variant) -> Fate {
        let Ok(choices) = self.choices(class, variant) else {
            return Fate::Refused;
        };
        if let Some(host) = self.try_nodes(item, class, variant, &choices, None) {
            self.fix_undecided(&choices, host);
            return Fate::Placed(host);
        }
        self.items[item].asked = variant.set;
        let may_open = !choices.no_new_node && self.no_usable_pool.is_none();
        let joined = if self.strategy.least_increase && may_open {
            self.try_cheapest(item, class, variant, &choices)
        } else {
            self.try_claims(item, class, variant, &choices)
        };
        if let Some(host) = joined {
            self.fix_undecided(&choices, host);
            return Fate::Placed(host);
        }
        if choices.no_new_node || self.no_usable_pool.is_some() {
            return Fate::Refused;
        }
        for template in 0..self.solver.templates.len() {
            if !variant.tolerated_templates.contains(template)
                || variant.refused_templates.contains(template)
            {
                continue;
            }
            match self.try_template(template, class, variant, &choices) {
                Ok(fit) => {
                    let host = self.open(template, fit, item, class);
                    self.fix_undecided(&choices, host);
                    return Fate::Placed(host);
                }
                Err(Refusal::Permanent) if !self.solver.releases_capacity => {
                    variant.refused_templates.insert(template)
                }
                Err(Refusal::Permanent | Refusal::Topology) => {}
                Err(Refusal::Reserved) => return Fate::Deferred,
            }
        }
        Fate::Refused
    }
}
