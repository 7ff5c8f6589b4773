//! Works out why NodeClaims have their instance types, after the pass that planned them.
//!
//! Nothing is computed for it in a pass: the pass hands over its snapshot, which it shares, and its NodeClaims. Without the server
//! no question can be asked, so nothing is stored.

use std::collections::VecDeque;
use std::sync::Arc;

use karpenter_api::v1::NodeClaim;
use karpenter_core::schedule::PlannedNodeClaim;
use karpenter_decisions::choice::{MAX_CHOICES, Waiting};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::state::Decisions;
use crate::controller::compute;
use crate::model::View;

/// Passes whose NodeClaims wait; the oldest are dropped, and worked out when they are asked about.
const PASSES: usize = 4;

/// The passes whose NodeClaims wait.
#[derive(Default)]
pub(super) struct Unworked {
    passes: Mutex<VecDeque<Waiting>>,
    added: Notify,
}

impl Unworked {
    /// Adds the NodeClaims of a pass.
    pub(super) fn add(
        &self,
        view: &View,
        planned: &[PlannedNodeClaim],
        created: &[Option<Arc<NodeClaim>>],
    ) {
        let launched = planned.iter().zip(created).filter_map(|(planned, claim)| {
            let claim = claim.clone()?;
            Some((claim, planned.pods.clone()))
        });
        let claims: Vec<_> = launched.take(MAX_CHOICES).collect();
        if claims.is_empty() {
            return;
        }
        let mut passes = self.passes.lock();
        if passes.len() == PASSES {
            passes.pop_front();
        }
        passes.push_back(Waiting {
            snapshot: view.snapshot.fork(),
            claims,
        });
        self.added.notify_one();
    }
}

impl Decisions {
    /// Works out the choices of passes, until `stop`.
    pub(super) async fn work(&self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = self.choices.added.notified() => {}
                () = stop.cancelled() => return,
            }
            loop {
                let next = self.choices.passes.lock().pop_front();
                let Some(waiting) = next else { break };
                let worked = compute("the choice of instance types", move || waiting.work());
                match worked.await {
                    Ok(found) => {
                        let mut history = self.history();
                        for (uid, choice) in found {
                            history.chose(&uid, choice);
                        }
                    }
                    Err(error) => {
                        tracing::error!(logger = "decisions", %error, "cannot record the choice of instance types");
                    }
                }
            }
        }
    }
}
