//! Placing pods one by one: machines that exist, then claims, then new claims, variant by variant.

use rustc_hash::FxHashMap;

use super::{
    algebra::SetId,
    claim::Refusal,
    class::Variant,
    portfolio::Order,
    run::{Fate, Run},
};

impl Run<'_> {
    /// Places pods until nothing moves any more.
    pub(super) fn place_all(&mut self) {
        let mut queue = self.queue();
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
            let variant = self.classes[class].variants[index].take();
            let mut variant = match variant {
                Some(variant) => variant,
                None => self.form_variant(class, index),
            };
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
        if let Some(host) = self.try_machines(item, class, variant, &choices) {
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
