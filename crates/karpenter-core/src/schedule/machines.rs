//! Placing a pod on a machine that exists: the first by name that takes it, initialised ones before others.
//!
//! Requirements and taints are bitsets made once a variant; room, ports and attachments only shrink, so a machine that refused a
//! class once is never asked again in the run.

use std::{collections::BTreeMap, sync::Arc};

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::{
    bits::{Bits, Ones},
    choices::Choices,
    class::{GroupId, Variant},
    run::{Fate, Run},
    topology::Host,
    vectors::subtract,
    volumes::Volumes,
};
use crate::pod::{Pod, ports_conflict};

impl Run<'_> {
    pub(super) fn try_machines(
        &mut self,
        item: usize,
        class: usize,
        variant: &mut Variant,
        choices: &Choices,
        only: Option<&Bits>,
    ) -> Option<Host> {
        let words = self.usable.words().len();
        let allowed: SmallVec<[Bits; 2]> = choices
            .domains
            .iter()
            .map(|domains| {
                let mut machines = Bits::default();
                for domain in domains.allowed.iter() {
                    machines.unite(&self.axes[domains.axis].machines[domain]);
                }
                machines
            })
            .collect();
        let keep_off =
            !self.items[item].waiting && !self.items[item].buffer && !self.reluctant.is_empty();
        for index in 0..words {
            let mut word = self.usable.word(index) & !variant.refused_machines.word(index);
            if keep_off {
                word &= !self.reluctant.word(index);
            }
            for allowed in allowed.iter().chain(only) {
                word &= allowed.word(index);
            }
            if word != 0 {
                word &= self.host_word(choices, index, |hosts| &hosts.machines);
            }
            for bit in Ones(word) {
                let machine = index * 64 + bit;
                if self.machine_takes(machine, class) {
                    self.load_machine(machine, item, class);
                    return Some(Host::Machine(machine));
                }
                variant.refused_machines.insert(machine);
            }
        }
        None
    }

    /// What can never become true again once it is false: room, ports, attachments; and devices, where pods have claims.
    fn machine_takes(&mut self, machine: usize, class: usize) -> bool {
        if !self.machine_fits(machine, class) {
            return false;
        }
        if !self.classes[class].ports.is_empty() {
            let ports = &self.classes[class].ports;
            // DIFFERS: upstream keeps the ports of DaemonSets free on new machines only.
            if ports_conflict(ports, &self.solver.machines[machine].daemon_ports) {
                return false;
            }
            let added = self
                .loads
                .get(&machine)
                .is_some_and(|load| ports_conflict(ports, &load.ports));
            if added
                || self
                    .bound_pods(machine)
                    .iter()
                    .any(|pod| ports_conflict(ports, &pod.shape.host_ports))
            {
                return false;
            }
        }
        (self.classes[class].attached.is_empty() || self.attachments_fit(machine, class))
            && (self.classes[class].claims.is_empty() || self.devices_on_machine(machine, class))
    }

    fn bound_pods(&self, machine: usize) -> Vec<Arc<Pod>> {
        self.solver
            .snapshot
            .pods_on(&self.solver.machines[machine].name)
            .iter()
            .filter(|pod| !pod.is_terminal())
            .cloned()
            .collect()
    }

    fn attachments_fit(&mut self, machine: usize, class: usize) -> bool {
        let name = self.solver.machines[machine].name.clone();
        let Some(limits) = self.solver.snapshot.attach_limits(&name) else {
            return true;
        };
        if self
            .loads
            .get(&machine)
            .is_none_or(|load| load.attached.is_none())
        {
            let mut attached: BTreeMap<String, FxHashSet<String>> = BTreeMap::new();
            for pod in self.bound_pods(machine) {
                for (driver, claim) in Volumes::attached_by(&self.solver.snapshot, &pod) {
                    attached.entry(driver).or_default().insert(claim);
                }
            }
            self.loads.entry(machine).or_default().attached = Some(attached);
        }
        let Some(attached) = self
            .loads
            .get(&machine)
            .and_then(|load| load.attached.as_ref())
        else {
            return true;
        };
        limits.iter().all(|(driver, limit)| {
            let present = attached.get(driver);
            let wanted = self.classes[class]
                .attached
                .iter()
                .filter(|(of, _)| of == driver);
            let new = wanted
                .filter(|(_, claim)| present.is_none_or(|present| !present.contains(claim)))
                .count();
            new == 0 || present.map_or(0, FxHashSet::len) + new <= *limit as usize
        })
    }

    fn load_machine(&mut self, machine: usize, item: usize, class: usize) {
        let width = self.width;
        subtract(
            &mut self.remaining[machine * width..(machine + 1) * width],
            &self.classes[class].requests,
        );
        if !self.classes[class].ports.is_empty() || !self.classes[class].attached.is_empty() {
            let load = self.loads.entry(machine).or_default();
            load.ports.extend(self.classes[class].ports.iter().cloned());
            if let Some(attached) = load.attached.as_mut() {
                for (driver, claim) in &self.classes[class].attached {
                    attached
                        .entry(driver.clone())
                        .or_default()
                        .insert(claim.clone());
                }
            }
        }
        if !self.classes[class].claims.is_empty() {
            self.take_devices(machine);
        }
        self.items[item].fate = Fate::Placed(Host::Machine(machine));
        self.record_on_machine(machine, class);
    }

    fn record_on_machine(&mut self, machine: usize, class: usize) {
        let mut counted = false;
        for index in 0..self.classes[class].counted.len() {
            let group = self.classes[class].counted[index];
            if self.groups[group]
                .machines
                .as_ref()
                .is_none_or(|machines| machines.contains(machine))
            {
                self.count_on_machine(group, machine);
                counted = true;
            }
        }
        for index in 0..self.classes[class].keeps_away.len() {
            let group = self.classes[class].keeps_away[index];
            self.count_on_machine(group, machine);
        }
        if counted {
            self.epoch += 1;
        }
    }

    fn count_on_machine(&mut self, group: GroupId, machine: usize) {
        let axis = &self.axes[self.groups[group].axis];
        if axis.is_hostname {
            self.groups[group].count_on_host(Host::Machine(machine), 1);
        } else if axis.of_machine[machine] != u32::MAX {
            let domain = axis.of_machine[machine] as usize;
            self.groups[group].count_in(domain, 1);
        }
    }

    /// Whether a machine has room for a class.
    pub(super) fn machine_fits(&self, machine: usize, class: usize) -> bool {
        let room = &self.remaining[machine * self.width..(machine + 1) * self.width];
        self.classes[class]
            .requests
            .iter()
            .zip(room)
            .all(|(need, room)| need <= room)
    }
}
