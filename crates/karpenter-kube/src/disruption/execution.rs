//! Executes a disruption command.
//!
//! 1. [`start`]: node headroom for the replacements of static NodePools is reserved; nodes are tainted and the condition
//!    DisruptionReason is set on their NodeClaims; replacements are launched; only then the nodes are marked for deletion
//!    in the model, because the provisioner would launch nodes for their pods, too.
//! 2. [`Execution::finish`], next to the loop: once every replacement is initialized, the NodeClaims are deleted.
//! 3. When a replacement is deleted or the command times out, it is rolled back. Replacements that joined are ordinary
//!    empty nodes.
//!
//! UPSTREAM: pkg/controllers/disruption/queue.go

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_core::disruption::{Candidate, Command, CommandId, Decision, Method};
use karpenter_decisions::record::CommandState;

use super::{report, taints};
use crate::client::patch::Lock;
use crate::context::Context;
use crate::controller::{Doing, ReconcileError, is_not_found};
use crate::model::Stopped;
use crate::provisioning::launch;

/// Interval between checks of the replacements.
const TICK: Duration = Duration::from_secs(1);
/// Least number of attempts to delete a NodeClaim, even if the command has timed out.
const DELETE_TRIES: u32 = 4;
/// Longest delay between these attempts.
const DELETE_WAIT: Duration = Duration::from_secs(10);

/// A command whose nodes are tainted and whose replacements are launching.
#[derive(Debug)]
pub(super) struct Execution {
    command: Command,
    replacements: Vec<Arc<NodeClaim>>,
    started: Timestamp,
    timeout: Duration,
    /// Nodes that have left the command, and may still be tainted.
    still_tainted: Vec<Tainted>,
}

/// A command that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) id: CommandId,
    pub(super) method: Method,
    pub(super) pools: BTreeSet<String>,
    pub(super) succeeded: bool,
    /// How it ended, and why it failed.
    pub(super) state: CommandState,
    pub(super) why: Option<String>,
    /// Nodes that are still tainted though the command was rolled back.
    pub(super) still_tainted: Vec<Tainted>,
}

/// A node that may be tainted for disruption: names of its Node and its NodeClaim.
#[derive(Debug, Clone)]
pub(super) struct Tainted {
    pub(super) node: String,
    pub(super) claim: String,
}

/// A command that could not be started.
#[derive(Debug, Default)]
pub(super) struct NotStarted {
    /// Nodes that are still tainted though the command was rolled back.
    pub(super) still_tainted: Vec<Tainted>,
}

/// Returns how long replacements may take while `queued` nodes are part of commands.
fn timeout(queued: usize) -> Duration {
    let each = Duration::from_millis(80);
    each.saturating_mul(u32::try_from(queued).unwrap_or(u32::MAX))
        .clamp(Duration::from_secs(600), Duration::from_secs(3600))
}

fn pools(command: &Command) -> BTreeSet<String> {
    let names = command.candidates.iter().map(Candidate::pool_name);
    names.map(str::to_owned).collect()
}

fn provider_ids<'a>(candidates: impl IntoIterator<Item = &'a Candidate>) -> Vec<String> {
    let ids = candidates.into_iter().map(|c| c.node.provider_id());
    ids.flatten().map(str::to_owned).collect()
}

/// Headroom below the limits of static NodePools for the replacements of a command; released when dropped.
struct Reserved<'a> {
    cx: &'a Context,
    nodes: BTreeMap<String, u32>,
}

impl<'a> Reserved<'a> {
    /// Reserves the headroom that the command needs, or nothing. Commands of dynamic NodePools need none.
    fn of(cx: &'a Context, command: &Command) -> Option<Self> {
        let mut wanted: BTreeMap<&str, u32> = BTreeMap::new();
        if command.method == Method::StaticDrift {
            for draft in &command.replacements {
                *wanted.entry(&draft.node_pool).or_default() += 1;
            }
        }
        let mut reserved = Self {
            cx,
            nodes: BTreeMap::new(),
        };
        let view = cx.view();
        for (name, wanted) in wanted {
            let pool = view.node_pool(name)?;
            let granted = cx.static_capacity.reserve(&cx.model, pool, wanted);
            reserved.nodes.insert(name.to_owned(), granted);
            if granted < wanted {
                return None;
            }
        }
        Some(reserved)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        for (pool, count) in &self.nodes {
            self.cx.static_capacity.release(pool, *count);
        }
    }
}

/// Starts a command while `queued` nodes are part of other commands. If it cannot be started, it is rolled back.
///
/// # Errors
/// When the operator is stopping.
pub(super) async fn start(
    cx: &Arc<Context>,
    command: &Command,
    queued: usize,
) -> Result<Result<Execution, NotStarted>, Stopped> {
    let mut command = command.clone();
    let Some(reserved) = Reserved::of(cx, &command) else {
        return Ok(Err(NotStarted::default()));
    };
    let view = cx.view();
    let reason = command.method.reason();
    let tainting = command
        .candidates
        .iter()
        .map(|c| taints::taint(cx, &view, c, &reason));
    let tainted = join_all(tainting).await;
    let failed = tainted.iter().filter(|result| result.is_err()).count();
    for (candidate, result) in command.candidates.iter().zip(&tainted) {
        if let Err(error) = result
            && !error.is_not_found()
        {
            tracing::error!(node = candidate.name(), error = %error, "failed to taint a node for disruption");
        }
    }
    let replaces = command.decision() == Decision::Replace;
    if failed == command.candidates.len() || (replaces && failed > 0) {
        let still_tainted = untaint(cx, &command.candidates).await;
        return Ok(Err(NotStarted { still_tainted }));
    }
    // The other nodes are disrupted alone. A node whose write failed may be tainted all the same, if only the answer was lost.
    let (mut results, mut untainted) = (tainted.into_iter(), Vec::new());
    command.candidates.retain(|candidate| {
        let is_tainted = results.next().is_some_and(|result| result.is_ok());
        if !is_tainted {
            untainted.push(candidate.clone());
        }
        is_tainted
    });
    let mut still_tainted = untaint(cx, &untainted).await;
    report::starting(&command);

    let replaced: BTreeSet<String> = command
        .candidates
        .iter()
        .map(|c| c.claim_name().to_owned())
        .collect();
    let method = report::reason(command.method);
    let launched = launch::create_claims(cx, &command.replacements, &replaced, method).await;
    let replacements: Vec<_> = launch::created(launched).into_iter().flatten().collect();
    // The model counts the new NodeClaims by now.
    drop(reserved);
    if replacements.len() < command.replacements.len() {
        still_tainted.extend(untaint(cx, &command.candidates).await);
        return Ok(Err(NotStarted { still_tainted }));
    }
    cx.model
        .mark_for_deletion(provider_ids(&command.candidates), true)
        .await?;
    let targets = command.placements.iter().filter(|p| !p.buffer);
    cx.nominate(targets.map(|p| p.node.clone()).collect())
        .await?;
    report::decided(cx, &command);
    if let Some(decisions) = &cx.decisions {
        decisions.started(cx, &command, &replacements);
    }
    Ok(Ok(Execution {
        timeout: timeout(queued + command.candidates.len()),
        started: cx.clock.now(),
        command,
        replacements,
        still_tainted,
    }))
}

/// Removes taints and conditions; returns the nodes for which this failed.
async fn untaint(cx: &Context, candidates: &[Candidate]) -> Vec<Tainted> {
    let untainting = candidates
        .iter()
        .map(|c| taints::untaint(cx, Some(c.name()), c.claim_name()));
    let mut still_tainted = Vec::new();
    for (candidate, result) in candidates.iter().zip(join_all(untainting).await) {
        if let Err(error) = result {
            tracing::error!(node = candidate.name(), error = %error, "failed to remove the taint of a disruption");
            still_tainted.push(Tainted {
                node: candidate.name().to_owned(),
                claim: candidate.claim_name().to_owned(),
            });
        }
    }
    still_tainted
}

impl Execution {
    pub(super) fn id(&self) -> CommandId {
        self.command.id()
    }

    /// Returns the NodeClaims that replace the candidates.
    pub(super) fn replacements(&self) -> &[Arc<NodeClaim>] {
        &self.replacements
    }

    /// Takes the nodes that were to be part of the command and may be tainted though they are not.
    pub(super) fn take_still_tainted(&mut self) -> Vec<Tainted> {
        std::mem::take(&mut self.still_tainted)
    }

    /// Returns the names of the NodeClaims of the candidates.
    pub(super) fn claims(&self) -> Vec<String> {
        let names = self.command.candidates.iter().map(Candidate::claim_name);
        names.map(str::to_owned).collect()
    }

    /// Waits for the replacements and deletes the candidates' NodeClaims, or rolls the command back.
    pub(super) async fn finish(self, cx: Arc<Context>) -> Ended {
        let mut ended = Ended {
            id: self.command.id(),
            method: self.command.method,
            pools: pools(&self.command),
            succeeded: false,
            state: CommandState::Succeeded,
            why: None,
            still_tainted: Vec::new(),
        };
        match self.wait(&cx).await {
            Ok(()) => {
                let spared = self.delete(&cx).await;
                ended.succeeded = spared.is_empty();
                if !spared.is_empty() {
                    ended.state = CommandState::RolledBack;
                    ended.why = Some(format!("failed to delete {} nodes", spared.len()));
                    ended.still_tainted = self.roll_back(&cx, spared, 0).await;
                }
            }
            Err(Unready {
                state,
                why,
                replacements,
            }) => {
                tracing::error!(
                    command = %self.command,
                    reason = report::reason(self.command.method),
                    error = why,
                    "failed terminating nodes while executing a disruption command"
                );
                (ended.state, ended.why) = (state, Some(why));
                let all = self.command.candidates.clone();
                ended.still_tainted = self.roll_back(&cx, all, replacements).await;
            }
        }
        ended
    }

    /// Waits until every replacement has been initialized once.
    async fn wait(&self, cx: &Context) -> Result<(), Unready> {
        let mut waiting: Vec<&Arc<NodeClaim>> = self.replacements.iter().collect();
        loop {
            let view = cx.view();
            let (mut still, mut deleted) = (Vec::new(), None);
            for replacement in waiting {
                let current = view
                    .node_claim(replacement.name())
                    .filter(|claim| claim.uid() == replacement.uid());
                let in_api = current.is_some() || exists(cx, replacement).await;
                match progress(current.map(|claim| &**claim), in_api) {
                    Progress::Ready(claim) => {
                        // Pods are about to be bound: until then the node must not count as empty.
                        let name = claim.status.node_name.clone();
                        let name = name.unwrap_or_else(|| claim.name().to_owned());
                        cx.nominate([name].into())
                            .await
                            .map_err(|stopped| Unready {
                                state: CommandState::RolledBack,
                                why: stopped.to_string(),
                                replacements: 0,
                            })?;
                    }
                    Progress::Waiting => still.push(replacement),
                    Progress::Deleted => {
                        deleted.get_or_insert(replacement.name());
                        still.push(replacement);
                    }
                }
            }
            waiting = still;
            let unready = |state, why| Unready {
                state,
                why,
                replacements: waiting.len(),
            };
            if let Some(name) = deleted {
                let why = format!("replacement was deleted, {name}");
                return Err(unready(CommandState::RolledBack, why));
            }
            if waiting.is_empty() {
                return Ok(());
            }
            if cx.clock.since(self.started) > self.timeout {
                let why = format!(
                    "command reached timeout, {} of {} replacements not initialized",
                    waiting.len(),
                    self.replacements.len()
                );
                return Err(unready(CommandState::TimedOut, why));
            }
            for replacement in &waiting {
                report::waiting(cx, replacement, self.command.method);
            }
            cx.clock.sleep(TICK).await;
        }
    }

    /// Deletes the NodeClaims; returns the candidates for which this failed until the timeout of the command. Their
    /// replacements are ready, so deletions are retried while the API server is unavailable.
    async fn delete(&self, cx: &Context) -> Vec<Candidate> {
        let view = cx.view();
        let deletions = self.command.candidates.iter().map(|candidate| {
            let view = &view;
            async move {
                match self.delete_claim(cx, candidate).await {
                    Ok(()) => {
                        report::terminating(cx, view, &self.command, candidate);
                        None
                    }
                    Err(error) => {
                        tracing::error!(node = candidate.name(), error = %error, "failed to delete a nodeclaim for disruption");
                        Some(candidate.clone())
                    }
                }
            }
        });
        join_all(deletions).await.into_iter().flatten().collect()
    }

    async fn delete_claim(
        &self,
        cx: &Context,
        candidate: &Candidate,
    ) -> Result<(), ReconcileError> {
        let writes = &cx.claim_writes;
        let mut tries = 1;
        loop {
            let deleted = writes.delete(cx.node_claims(), &candidate.claim, Lock::None);
            let error = match deleted.await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let late = cx.clock.since(self.started) > self.timeout;
            if late && tries >= DELETE_TRIES {
                return Err(error).doing("deleting nodeclaim");
            }
            cx.clock.sleep((TICK * tries).min(DELETE_WAIT)).await;
            // A new NodeClaim of the same name is not part of the command.
            if !exists(cx, &candidate.claim).await {
                return Ok(());
            }
            tries += 1;
        }
    }

    /// Rolls the command back for these candidates, after `unready` replacements were not initialized; returns the nodes
    /// that are still tainted.
    async fn roll_back(
        &self,
        cx: &Context,
        candidates: Vec<Candidate>,
        unready: usize,
    ) -> Vec<Tainted> {
        report::failed(cx, &self.command, unready);
        let still_tainted = untaint(cx, &candidates).await;
        if let Err(stopped) = cx
            .model
            .mark_for_deletion(provider_ids(&candidates), false)
            .await
        {
            tracing::debug!(error = %stopped, "failed to unmark nodes for deletion");
        }
        still_tainted
    }
}

/// Why replacements will never be initialized, and how many.
#[derive(Debug)]
struct Unready {
    state: CommandState,
    why: String,
    replacements: usize,
}

/// The progress of a replacement.
#[derive(Debug, PartialEq)]
enum Progress<'a> {
    Ready(&'a NodeClaim),
    Waiting,
    Deleted,
}

/// Returns the progress of a replacement. It counts as deleted only if neither the model nor the API server has it: either
/// may lag behind the other.
fn progress(in_model: Option<&NodeClaim>, in_api: bool) -> Progress<'_> {
    match in_model {
        Some(claim) if claim.is_true(types::INITIALIZED) => Progress::Ready(claim),
        Some(_) => Progress::Waiting,
        None if in_api => Progress::Waiting,
        None => Progress::Deleted,
    }
}

/// Returns whether the API server has the NodeClaim; true if the request fails.
async fn exists(cx: &Context, claim: &NodeClaim) -> bool {
    match cx.node_claims().get(claim.name()).await {
        Ok(found) => found.uid() == claim.uid(),
        Err(error) => !is_not_found(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: DIS-127
    #[test]
    fn more_nodes_in_the_queue_extend_the_timeout() {
        let minutes = |queued| timeout(queued).as_secs_f64() / 60.0;
        assert_eq!(minutes(1), 10.0);
        assert_eq!(timeout(10_000), Duration::from_secs(13 * 60 + 20));
        assert_eq!(minutes(80_000), 60.0);
    }

    /// Conformance: DIS-126
    #[test]
    fn a_replacement_is_deleted_when_neither_model_nor_api_server_has_it() {
        let mut claim = NodeClaim::new("a", Default::default());
        assert_eq!(
            progress(Some(&claim), false),
            Progress::Waiting,
            "only the model has it"
        );
        assert_eq!(
            progress(None, true),
            Progress::Waiting,
            "only the API server has it"
        );
        assert_eq!(progress(None, false), Progress::Deleted);
        claim.set_true(types::INITIALIZED, Timestamp::UNIX_EPOCH);
        assert!(matches!(progress(Some(&claim), true), Progress::Ready(_)));
    }
}
