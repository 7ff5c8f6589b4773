//! Requests begin and are answered.

use std::sync::Arc;

use crate::world::tasks::{Answer, Request, Task};
use crate::world::{Halt, World};

impl World {
    /// Begins a request.
    pub fn request(&mut self, kind: Request) {
        let reads = matches!(
            kind,
            Request::Plan(_) | Request::DisruptionPlan(..) | Request::Validate(..)
        );
        let view = if reads { self.hash_of_view() } else { 0 };
        let print = Arc::new(kind.print());
        self.tasks.push(Task { kind, print, view });
    }

    /// Answers a request.
    pub(super) fn answer(&mut self, index: usize, answer: Answer) -> Result<(), Halt> {
        if index >= self.tasks.len() {
            return Ok(());
        }
        match self.tasks.remove(index).kind {
            Request::Plan(question) => self.answer_plan(&question, answer),
            Request::Launch(plan) => return self.answer_launch(&plan, answer),
            Request::DisruptionPlan(snapshot, inputs) => {
                self.answer_disruption_plan(&snapshot, &inputs, answer)
            }
            Request::Validate(snapshot, command, inputs) => {
                self.answer_validation(&snapshot, *command, &inputs, answer)
            }
            Request::Taint(command) => return self.answer_taint(&command, answer),
            Request::Untaint(nodes) => return self.answer_untaint(nodes, answer),
            Request::Replace(command) => return self.answer_replace(&command, answer),
            Request::Confirm(claim) => self.answer_confirm(&claim, answer),
            Request::Delete(command, candidate) => {
                return self.answer_delete(&command, &candidate, answer);
            }
            Request::Create(before, joining) => {
                return self.answer_create(&before, *joining, answer);
            }
        }
        Ok(())
    }
}
