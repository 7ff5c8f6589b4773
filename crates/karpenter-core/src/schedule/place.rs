//! Placing pods one by one: machines that exist, then claims, then new claims, variant by variant.

use rustc_hash::FxHashMap;

use super::{
    algebra::SetId,
    bits::Bits,
    claim::Refusal,
    class::Variant,
    portfolio::Order,
    run::{Fate, Run},
};
use crate::pod::PodKey;

impl Run<'_> {
    /// Places pods until nothing moves any more.
    pub(super) fn place_all(&mut self) {
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
                let dead = self.classes[class].dead || self.classes[class].problem.is_some();
                let fate = if dead {
                    Fate::Refused
                } else {
                    self.place(*item)
                };
                self.items[*item].fate = fate;
                let lost = self.classes[class].dead || self.classes[class].problem.is_some();
                if matches!(fate, Fate::Refused | Fate::Deferred) && !lost {
                    again.push(*item);
                }
            }
            if again.is_empty() || again.len() == before {
                return;
            }
            queue = again;
        }
    }

    /// Gives pods that had a place it again where it is still one, and takes them out of the queue.
    fn keep_places(&mut self, queue: &mut Vec<usize>) {
        let (solver, nominated) = (self.solver, &self.request.nominated);
        if nominated.is_empty() {
            return;
        }
        let mut machines: FxHashMap<&PodKey, usize> = FxHashMap::default();
        for (pod, target) in nominated {
            let node = solver.snapshot.node(target);
            let machine = node.and_then(|node| solver.machine_of.get(node.name()));
            machines.extend(machine.map(|machine| (pod, *machine as usize)));
        }
        queue.retain(|item| {
            let machine = machines.get(&self.items[*item].pod.key);
            !machine.is_some_and(|machine| self.keeps_place(*item, *machine))
        });
    }

    fn keeps_place(&mut self, item: usize, machine: usize) -> bool {
        let class = self.items[item].class;
        if self.classes[class].problem.is_some() {
            return false;
        }
        let only = Bits::from_iter([machine]);
        for index in 0..self.classes[class].variants.len() {
            let mut variant = self.take_variant(class, index);
            let host = self.choices(class, &variant).ok().and_then(|choices| {
                let host = self.try_machines(item, class, &mut variant, &choices, Some(&only))?;
                self.gather(&choices, host);
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

    /// The pods in the order of the strategy. They stand in the order of their size.
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
                // The largest pod of those that ask for the same says when they come: ids depend on the order of objects.
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

    /// Remembers a refusal until something happens that can make a difference.
    fn refuse(&mut self, class: usize, fate: Fate) -> Fate {
        let gives_back = self.solver.gives_back;
        let class = &mut self.classes[class];
        class.refused_at = self.epoch;
        class.refused_as = fate;
        class.dead = !class.hopeful && !gives_back;
        if !class.claims.is_empty() {
            // Devices may be given back: no refusal is for good.
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
        if let Some(host) = self.try_machines(item, class, variant, &choices, None) {
            self.gather(&choices, host);
            return Fate::Placed(host);
        }
        self.items[item].asked = variant.set;
        let may_open = !choices.no_new_machine && self.hopeless.is_none();
        let joined = if self.strategy.least_increase && may_open {
            self.try_cheapest(item, class, variant, &choices)
        } else {
            self.try_claims(item, class, variant, &choices)
        };
        if let Some(host) = joined {
            self.gather(&choices, host);
            return Fate::Placed(host);
        }
        if choices.no_new_machine || self.hopeless.is_some() {
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
                    self.gather(&choices, host);
                    return Fate::Placed(host);
                }
                Err(Refusal::Permanent) if !self.solver.gives_back => {
                    variant.refused_templates.insert(template)
                }
                Err(Refusal::Permanent | Refusal::Topology) => {}
                Err(Refusal::Reserved) => return Fate::Deferred,
            }
        }
        Fate::Refused
    }
}
