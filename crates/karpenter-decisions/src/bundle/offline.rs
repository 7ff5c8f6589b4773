//! Answers from a bundle: the passes are made again on its snapshot, and what they decided is the history.

use std::sync::Arc;
use std::time::Duration;

use karpenter_core::schedule::Cancel;
use serde_json::Value;

use super::{Bundle, PassResult, Replayed, run_pass};
use crate::answer::{self, EachTime, Requests, Subject, Unanswerable};
use crate::change::Change;
use crate::doctor::{BlockerReport, Examination, Installation, examine};
use crate::explain::Question;
use crate::history::{History, Input};

/// A bundle that is asked questions.
///
/// The answers are those of the time of the capture. What the controller remembers beside the cluster is missing: how long a reason
/// holds follows from the times of objects, and kube-scheduler's messages are not in a bundle.
#[derive(Debug)]
pub struct Offline {
    bundle: Bundle,
    history: History,
}

impl Offline {
    /// Makes the passes of the bundle.
    #[must_use]
    pub fn new(bundle: Bundle) -> Self {
        let mut history = History::new(bundle.at());
        let input = Input {
            snapshot: &bundle.snapshot,
            policy: bundle.settings.policy(),
            took: Duration::ZERO,
            now: bundle.at(),
        };
        for pass in Replayed::ALL {
            match run_pass(pass, &bundle.snapshot, &bundle.settings, 1, None) {
                PassResult::Provisioning(plan) => {
                    let claims = vec![None; plan.new_node_claims.len()];
                    history.provisioned(input, &plan, &claims);
                }
                PassResult::Disruption(plan) => {
                    history.disrupted(input, &plan);
                }
            }
        }
        Self { bundle, history }
    }

    fn question(&self) -> Question<'_> {
        Question {
            snapshot: &self.bundle.snapshot,
            history: &self.history,
            messages: &|_| None,
            now: self.bundle.at(),
            engine: &self.bundle.engine,
        }
    }

    fn requests(&self, cancel: Cancel) -> Requests {
        let mut disruption = self.bundle.settings.request();
        disruption.query.cancel = Some(cancel.clone());
        Requests {
            scheduling: Some(self.bundle.settings.policy().clone()),
            disruption,
            cancel,
            compiled: Arc::new(EachTime),
        }
    }

    /// Explains an object after changes; `None` if it does not exist. `cancel` ends the search for what would help.
    ///
    /// # Errors
    /// Fails if a change cannot be made.
    pub fn explain(
        &self,
        subject: &Subject,
        changes: &[Change],
        cancel: Cancel,
    ) -> Result<Option<Value>, Unanswerable> {
        answer::explain(&self.question(), subject, changes, self.requests(cancel))
    }

    /// Counts pending pods by reason.
    ///
    /// # Errors
    /// Fails if the answer cannot be written.
    pub fn pods_by_reason(&self) -> Result<Value, Unanswerable> {
        answer::pods_by_reason(&self.question())
    }

    /// Counts nodes by reason.
    ///
    /// # Errors
    /// Fails if the answer cannot be written.
    pub fn nodes_by_reason(&self, cancel: Cancel) -> Result<Value, Unanswerable> {
        answer::nodes_by_reason(&self.question(), &self.requests(cancel))
    }

    /// Reports what blocks nodes, in a namespace or everywhere. The installation is not part of a bundle.
    #[must_use]
    pub fn blockers(&self, namespace: Option<&str>, cancel: Cancel) -> BlockerReport {
        let examination = Examination {
            snapshot: &self.bundle.snapshot,
            policy: self.bundle.settings.policy(),
            cancel: Some(cancel),
            spot_to_spot: self.bundle.settings.request().spot_to_spot,
            installation: &Installation::default(),
        };
        examine(&examination, self.question().observed(false), namespace)
    }
}
