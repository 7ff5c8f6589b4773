//! A command's execution.
//!
//! 1. [`start`]: room for replacements of static pools is reserved; nodes are tainted and NodeClaims told why; replacements are launched; only then the machines are marked in
//!    the model, as the provisioner would launch for their pods, too.
//! 2. [`Execution::finish`], next to the loop: once every replacement is initialized, the NodeClaims are deleted.
//! 3. When a replacement is gone or time is up, everything is taken back. Replacements that came are ordinary empty nodes.
//!
//! UPSTREAM: pkg/controllers/disruption/queue.go

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_core::disruption::{Candidate, Command, CommandId, Decision, Method};
use kube::api::{DeleteParams, Preconditions};

use super::{marks, report};
use crate::context::Context;
use crate::controller::{Doing, ReconcileError, is_not_found};
use crate::model::Stopped;
use crate::provisioning::launch;

/// How often replacements are looked at.
const TICK: Duration = Duration::from_secs(1);
/// How often the deletion of a NodeClaim is tried, even if the command's time is up.
const DELETE_TRIES: u32 = 4;
/// How long is waited before it is tried again, at most.
const DELETE_WAIT: Duration = Duration::from_secs(10);

/// A command whose machines are marked and whose replacements are on their way.
#[derive(Debug)]
pub(super) struct Execution {
    command: Command,
    replacements: Vec<Arc<NodeClaim>>,
    started: Timestamp,
    timeout: Duration,
    /// Machines that have left the command, and may still show it.
    shown: Vec<Marked>,
}

/// A command that has come to its end.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) id: CommandId,
    pub(super) method: Method,
    pub(super) pools: BTreeSet<String>,
    pub(super) succeeded: bool,
    /// Machines that still show it though it was taken back.
    pub(super) shown: Vec<Marked>,
}

/// A machine that may show a command: names of its Node and its NodeClaim.
#[derive(Debug, Clone)]
pub(super) struct Marked {
    pub(super) node: String,
    pub(super) claim: String,
}

/// A command could not be begun.
#[derive(Debug, Default)]
pub(super) struct NotBegun {
    /// Machines that still show it though it was taken back.
    pub(super) shown: Vec<Marked>,
}

/// How long replacements may take while `queued` machines wait for theirs.
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
    let ids = candidates.into_iter().map(|c| c.machine.provider_id());
    ids.flatten().map(str::to_owned).collect()
}

/// Room below the limits of static pools for a command's replacements; given back when dropped.
struct Reserved<'a> {
    cx: &'a Context,
    machines: BTreeMap<String, u32>,
}

impl<'a> Reserved<'a> {
    /// Reserves what the command needs, or nothing. Commands of dynamic pools need none.
    fn of(cx: &'a Context, command: &Command) -> Option<Self> {
        let mut wanted: BTreeMap<&str, u32> = BTreeMap::new();
        if command.method == Method::StaticDrift {
            for draft in &command.replacements {
                *wanted.entry(&draft.node_pool).or_default() += 1;
            }
        }
        let mut reserved = Self {
            cx,
            machines: BTreeMap::new(),
        };
        let view = cx.view();
        for (name, wanted) in wanted {
            let pool = view.node_pool(name)?;
            let granted = cx.static_capacity.reserve(&cx.model, pool, wanted);
            reserved.machines.insert(name.to_owned(), granted);
            if granted < wanted {
                return None;
            }
        }
        Some(reserved)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        for (pool, count) in &self.machines {
            self.cx.static_capacity.release(pool, *count);
        }
    }
}

/// Begins a command; `queued` machines are in others' hands. If it cannot be begun, it is taken back.
///
/// # Errors
/// When the operator is stopping.
pub(super) async fn start(
    cx: &Arc<Context>,
    command: &Command,
    queued: usize,
) -> Result<Result<Execution, NotBegun>, Stopped> {
    let mut command = command.clone();
    let Some(reserved) = Reserved::of(cx, &command) else {
        return Ok(Err(NotBegun::default()));
    };
    let view = cx.view();
    let reason = command.method.reason();
    let marking = command
        .candidates
        .iter()
        .map(|c| marks::mark(cx, &view, c, &reason));
    let marked = join_all(marking).await;
    let failed = marked.iter().filter(|result| result.is_err()).count();
    for (candidate, result) in command.candidates.iter().zip(&marked) {
        if let Err(error) = result
            && !error.is_not_found()
        {
            tracing::error!(node = candidate.name(), error = %error, "failed to mark a node for disruption");
        }
    }
    let replaces = command.decision() == Decision::Replace;
    if failed == command.candidates.len() || (replaces && failed > 0) {
        let shown = take_back(cx, &command.candidates).await;
        return Ok(Err(NotBegun { shown }));
    }
    // The others go alone. Those that could not be marked may be so all the same, if only the answer was lost.
    let (mut results, mut unmarked) = (marked.into_iter(), Vec::new());
    command.candidates.retain(|candidate| {
        let is_marked = results.next().is_some_and(|result| result.is_ok());
        if !is_marked {
            unmarked.push(candidate.clone());
        }
        is_marked
    });
    let mut shown = take_back(cx, &unmarked).await;
    report::starting(&command);

    let leaving: BTreeSet<String> = command
        .candidates
        .iter()
        .map(|c| c.claim_name().to_owned())
        .collect();
    let method = report::reason(command.method);
    let launched = launch::create_claims(cx, &command.replacements, &leaving, method).await;
    let replacements: Vec<_> = launch::settle(launched).into_iter().flatten().collect();
    // The model counts what was made by now.
    drop(reserved);
    if replacements.len() < command.replacements.len() {
        shown.extend(take_back(cx, &command.candidates).await);
        return Ok(Err(NotBegun { shown }));
    }
    cx.model
        .mark_for_deletion(provider_ids(&command.candidates), true)
        .await?;
    let targets = command.placements.iter().filter(|p| !p.buffer);
    nominate(cx, targets.map(|p| p.node.clone()).collect()).await?;
    report::decided(cx, &command);
    Ok(Ok(Execution {
        timeout: timeout(queued + command.candidates.len()),
        started: cx.clock.now(),
        command,
        replacements,
        shown,
    }))
}

/// Keeps machines that pods will go to from disruption.
async fn nominate(cx: &Context, nodes: BTreeSet<String>) -> Result<(), Stopped> {
    if nodes.is_empty() {
        return Ok(());
    }
    let window = SignedDuration::try_from(cx.options.nomination_window())
        .unwrap_or(SignedDuration::from_secs(20));
    let until = cx.clock.now().saturating_add(window);
    let until = until.unwrap_or(Timestamp::MAX);
    cx.model.nominate(nodes.into_iter().collect(), until).await
}

/// Removes the marks; answers those that could not be removed.
async fn take_back(cx: &Context, candidates: &[Candidate]) -> Vec<Marked> {
    let unmarking = candidates
        .iter()
        .map(|c| marks::unmark(cx, Some(c.name()), c.claim_name()));
    let mut shown = Vec::new();
    for (candidate, result) in candidates.iter().zip(join_all(unmarking).await) {
        if let Err(error) = result {
            tracing::error!(node = candidate.name(), error = %error, "failed to take back the marks of a disruption");
            shown.push(Marked {
                node: candidate.name().to_owned(),
                claim: candidate.claim_name().to_owned(),
            });
        }
    }
    shown
}

impl Execution {
    /// The command's identity.
    pub(super) fn id(&self) -> CommandId {
        self.command.id()
    }

    /// The NodeClaims that take their place.
    pub(super) fn replacements(&self) -> &[Arc<NodeClaim>] {
        &self.replacements
    }

    /// Machines that were to be part of it and may show it though they are not.
    pub(super) fn take_shown(&mut self) -> Vec<Marked> {
        std::mem::take(&mut self.shown)
    }

    /// The NodeClaims it holds.
    pub(super) fn claims(&self) -> Vec<String> {
        let names = self.command.candidates.iter().map(Candidate::claim_name);
        names.map(str::to_owned).collect()
    }

    /// Waits for the replacements and deletes the machines, or takes everything back.
    pub(super) async fn finish(self, cx: Arc<Context>) -> Ended {
        let mut ended = Ended {
            id: self.command.id(),
            method: self.command.method,
            pools: pools(&self.command),
            succeeded: false,
            shown: Vec::new(),
        };
        match self.wait(&cx).await {
            Ok(()) => {
                let spared = self.delete(&cx).await;
                ended.succeeded = spared.is_empty();
                if !spared.is_empty() {
                    ended.shown = self.roll_back(&cx, spared, 0).await;
                }
            }
            Err(Unready { why, replacements }) => {
                tracing::error!(
                    command = %self.command,
                    reason = report::reason(self.command.method),
                    error = why,
                    "failed terminating nodes while executing a disruption command"
                );
                let all = self.command.candidates.clone();
                ended.shown = self.roll_back(&cx, all, replacements).await;
            }
        }
        ended
    }

    /// Waits until every replacement has been initialized once.
    async fn wait(&self, cx: &Context) -> Result<(), Unready> {
        let mut waiting: Vec<&Arc<NodeClaim>> = self.replacements.iter().collect();
        loop {
            let view = cx.view();
            let (mut still, mut gone) = (Vec::new(), None);
            for replacement in waiting {
                let current = view
                    .node_claim(replacement.name())
                    .filter(|claim| claim.uid() == replacement.uid());
                let in_api = current.is_some() || exists(cx, replacement).await;
                match progress(current.map(|claim| &**claim), in_api) {
                    Progress::Ready(claim) => {
                        // Pods are about to come; nobody shall take it for an empty node until then.
                        let name = claim.status.node_name.clone();
                        let name = name.unwrap_or_else(|| claim.name().to_owned());
                        nominate(cx, [name].into())
                            .await
                            .map_err(|stopped| Unready {
                                why: stopped.to_string(),
                                replacements: 0,
                            })?;
                    }
                    Progress::Waiting => still.push(replacement),
                    Progress::Gone => {
                        gone.get_or_insert(replacement.name());
                        still.push(replacement);
                    }
                }
            }
            waiting = still;
            let unready = |why| Unready {
                why,
                replacements: waiting.len(),
            };
            if let Some(name) = gone {
                return Err(unready(format!("replacement was deleted, {name}")));
            }
            if waiting.is_empty() {
                return Ok(());
            }
            if cx.clock.since(self.started) > self.timeout {
                return Err(unready(format!(
                    "command reached timeout, {} of {} replacements not initialized",
                    waiting.len(),
                    self.replacements.len()
                )));
            }
            for replacement in &waiting {
                report::waiting(cx, replacement, self.command.method);
            }
            cx.clock.sleep(TICK).await;
        }
    }

    /// Deletes the NodeClaims; answers those that could not be by the end of the command's time: what has replaced them is
    /// there, so that an API server that is out of order for a while is waited for.
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
        let only_this = DeleteParams {
            preconditions: Some(Preconditions {
                uid: candidate.claim.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let writes = &cx.claim_writes;
        let mut tries = 1;
        loop {
            let deleted = writes.delete(cx.node_claims(), &candidate.claim, &only_this);
            let error = match deleted.await {
                Ok(()) => return Ok(()),
                Err(error) if is_not_found(&error) => return Ok(()),
                Err(error) => error,
            };
            let late = cx.clock.since(self.started) > self.timeout;
            if late && tries >= DELETE_TRIES {
                return Err(error).doing("deleting nodeclaim");
            }
            cx.clock.sleep((TICK * tries).min(DELETE_WAIT)).await;
            // Another of the same name is none of the command's business.
            if !exists(cx, &candidate.claim).await {
                return Ok(());
            }
            tries += 1;
        }
    }

    /// Takes the command back for these machines, after so many replacements did not come; answers those that still show it.
    async fn roll_back(
        &self,
        cx: &Context,
        candidates: Vec<Candidate>,
        unready: usize,
    ) -> Vec<Marked> {
        report::failed(cx, &self.command, unready);
        let shown = take_back(cx, &candidates).await;
        if let Err(stopped) = cx
            .model
            .mark_for_deletion(provider_ids(&candidates), false)
            .await
        {
            tracing::debug!(error = %stopped, "machines stay marked");
        }
        shown
    }
}

/// Why replacements never will be initialized, and how many.
#[derive(Debug)]
struct Unready {
    why: String,
    replacements: usize,
}

/// How far a replacement has come.
#[derive(Debug, PartialEq)]
enum Progress<'a> {
    Ready(&'a NodeClaim),
    Waiting,
    Gone,
}

/// A replacement is given up only if neither the model nor the API server has it: either may lag behind the other.
fn progress(in_model: Option<&NodeClaim>, in_api: bool) -> Progress<'_> {
    match in_model {
        Some(claim) if claim.is_true(types::INITIALIZED) => Progress::Ready(claim),
        Some(_) => Progress::Waiting,
        None if in_api => Progress::Waiting,
        None => Progress::Gone,
    }
}

/// Whether the API server has the NodeClaim, as far as it can tell.
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
    fn more_machines_in_the_queue_mean_more_patience() {
        let minutes = |queued| timeout(queued).as_secs_f64() / 60.0;
        assert_eq!(minutes(1), 10.0);
        assert_eq!(timeout(10_000), Duration::from_secs(13 * 60 + 20));
        assert_eq!(minutes(80_000), 60.0);
    }

    /// Conformance: DIS-126
    #[test]
    fn a_replacement_is_given_up_when_neither_model_nor_server_has_it() {
        let mut claim = NodeClaim::new("a", Default::default());
        assert_eq!(
            progress(Some(&claim), false),
            Progress::Waiting,
            "the server does not have it"
        );
        assert_eq!(
            progress(None, true),
            Progress::Waiting,
            "the model does not have it yet"
        );
        assert_eq!(progress(None, false), Progress::Gone);
        claim.set_true(types::INITIALIZED, Timestamp::UNIX_EPOCH);
        assert!(matches!(progress(Some(&claim), true), Progress::Ready(_)));
    }
}
