//! The evaluations of single nodes in one pass, and the simulator that its methods start from.

use std::sync::Arc;

use crate::cluster::Snapshot;
use crate::disruption::command::Method;
use crate::disruption::consolidation::prices::PriceLists;
use crate::disruption::request::DisruptionRequest;
use crate::disruption::simulation::Simulator;
use crate::disruption::simulation::carried::Carried;

/// What the methods of a pass share as long as no command changed its snapshot.
#[derive(Debug, Default)]
pub(in crate::disruption) struct Evaluations {
    /// Those of an earlier pass, until they are compared with the snapshot.
    earlier: Option<Carried>,
    current: Option<Carried>,
    /// Whether a later pass carries them over.
    keeps: bool,
    /// The number of nodes whose evaluation was carried over.
    pub(in crate::disruption) carried_over: usize,
    /// The number of nodes that were evaluated by a simulation of their own.
    pub(in crate::disruption) evaluated: usize,
}

impl Evaluations {
    /// Returns the evaluations of a pass that carries over those of an earlier pass.
    pub(in crate::disruption) fn after(earlier: Option<Carried>) -> Self {
        Self {
            earlier,
            keeps: true,
            ..Self::default()
        }
    }

    /// Returns the evaluations for a later pass.
    pub(in crate::disruption) fn into_carried(self) -> Option<Carried> {
        self.current.or(self.earlier)
    }

    /// Returns the simulator of the snapshot that the pass started from.
    pub(in crate::disruption) fn simulator(
        &mut self,
        snapshot: &Snapshot,
        request: &DisruptionRequest,
        prices: &Arc<PriceLists>,
    ) -> Simulator {
        if let Some(current) = &self.current {
            return current.simulator().clone();
        }
        let (policy, query) = (&request.policy, &request.query);
        let rules = request.rules(Method::SingleNode);
        let earlier = self.earlier.take();
        let simulator = match &earlier {
            Some(earlier) => earlier.simulator().later(snapshot, policy, query, prices),
            None => Simulator::new(snapshot, policy, query, prices),
        };
        self.current = Some(match earlier {
            Some(earlier) => earlier.renew(simulator.clone(), rules),
            None => Carried::new(simulator.clone(), rules),
        });
        simulator
    }

    /// Returns a simulator of the snapshot after commands of the pass.
    pub(in crate::disruption) fn simulator_of_changed(
        &self,
        changed: &Snapshot,
        request: &DisruptionRequest,
        prices: &Arc<PriceLists>,
    ) -> Simulator {
        let (policy, query) = (&request.policy, &request.query);
        match &self.current {
            Some(current) => current.simulator().later(changed, policy, query, prices),
            None => Simulator::new(changed, policy, query, prices),
        }
    }

    /// Returns the evaluations against the snapshot of a simulator, if it is the one that the pass started from and evaluations
    /// are kept.
    pub(in crate::disruption) fn of(&mut self, simulator: &Simulator) -> Option<&mut Carried> {
        let current = self.current.as_mut().filter(|_| self.keeps)?;
        (current.simulator().is_same(simulator) && current.is_recorded()).then_some(current)
    }
}
