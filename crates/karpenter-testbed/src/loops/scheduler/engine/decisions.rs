//! The next pod, and its node or the reason why there is none.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::Timestamp;

use super::{ClassId, Decision, Engine, Order, Refusal, Uid};
use crate::loops::scheduler::counters::{AntiGroup, Counters};
use crate::loops::scheduler::node::NodeInfo;
use crate::loops::scheduler::reason::{Diagnosis, Reason};
use crate::loops::scheduler::shape::Shape;
use crate::loops::scheduler::volumes::Need;

const REPORT_SECONDS: i64 = 10;

impl Engine {
    fn generation(&self, shape: &Shape) -> (u64, u64) {
        let depends_on_pods = !shape.affinity.is_empty() || !shape.spread.is_empty();
        (self.freed, if depends_on_pods { self.placed } else { 0 })
    }

    /// Activates the classes that changes may have helped. Returns when to call again at the latest.
    pub(crate) fn wake(&mut self, now: Timestamp) -> Option<Timestamp> {
        let mut next: Option<Timestamp> = None;
        let changed = std::mem::take(&mut self.changed);
        let parked: Vec<ClassId> = self.parked.iter().copied().collect();
        for id in parked {
            let Some(class) = self.classes.get(&id) else {
                continue;
            };
            let Some(refusal) = &class.refusal else {
                continue;
            };
            let (retry_at, report_again_at) = (refusal.retry_at, refusal.report_again_at);
            let unchanged = refusal.generation == self.generation(&class.shape);
            let due = match (unchanged, report_again_at) {
                (true, None) => continue,
                (true, Some(at)) => at,
                (false, _) => retry_at,
            };
            let has_candidate = || {
                let mut changed = changed.iter();
                !self.scans(&class.shape) && changed.any(|at| self.nodes[*at].accepts(&class.shape))
            };
            if due <= now || (!unchanged && has_candidate()) {
                if unchanged && let Some(class) = self.classes.get_mut(&id) {
                    class.unreported = class.pending.values().cloned().collect();
                }
                self.parked.remove(&id);
                self.activate(id);
            } else {
                next = Some(next.map_or(due, |n| n.min(due)));
            }
        }
        next
    }

    /// Whether the feasible nodes depend on more than the nodes: such a class waits for its back-off.
    fn scans(&self, shape: &Shape) -> bool {
        shape.depends_on_others()
            || shape.pinned().is_some()
            || self.anti_groups.values().any(|g| {
                g.term
                    .means(&shape.namespace, &shape.labels, &self.namespaces)
            })
    }

    /// Returns the next decision, or `None` if no pod is left to try.
    pub(crate) fn next(&mut self, now: Timestamp) -> Option<Decision> {
        loop {
            let (order, id) = self.active.pop_first()?;
            let Some(class) = self.classes.get_mut(&id) else {
                continue;
            };
            class.queued = None;
            let Some(class) = self.classes.get(&id) else {
                continue;
            };
            let shape = class.shape.clone();
            let generation = self.generation(&shape);
            if class
                .refusal
                .as_ref()
                .is_some_and(|r| r.generation == generation)
            {
                if let Some(decision) = self.repeat_refusal(id, now) {
                    return Some(decision);
                }
                continue;
            }
            let Some(uid) = class.pending.get(&order).cloned() else {
                self.activate(id);
                continue;
            };
            match self.try_place(id, &uid, &shape) {
                Ok((at, needs)) => return Some(self.bind(id, order, uid, at, &needs)),
                Err(diagnosis) => {
                    let message = diagnosis.message(self.live_nodes, shape.never_preempts);
                    if let Some(decision) = self.refuse(id, message, generation, now) {
                        return Some(decision);
                    }
                }
            }
        }
    }

    fn bind(&mut self, id: ClassId, order: Order, uid: Uid, at: usize, needs: &[Need]) -> Decision {
        let node = self.nodes[at].name.clone();
        let claims = self
            .volumes
            .bindings(needs, &self.nodes[at])
            .unwrap_or_default();
        let volumes = self.volumes.attachments(needs);
        self.volumes.assume(&claims);
        if let Some(entry) = self.pods.get_mut(&uid) {
            entry.pending = None;
            entry.assumed = true;
            entry.node = Some(node.clone());
            entry.volumes = volumes;
            entry.claims = claims.clone();
        }
        if let Some(class) = self.classes.get_mut(&id) {
            class.refusal = None;
            class.unreported.clear();
        }
        self.account(&uid, 1);
        self.placed += 1;
        self.dequeue(id, order);
        Decision::Bind { uid, node, claims }
    }

    fn repeat_refusal(&mut self, id: ClassId, now: Timestamp) -> Option<Decision> {
        self.parked.insert(id);
        let class = self.classes.get_mut(&id)?;
        let message = class.refusal.as_ref()?.message.clone();
        let unreported = std::mem::take(&mut class.unreported);
        self.announce(id, unreported, message, now)
    }

    fn announce(
        &mut self,
        id: ClassId,
        all: Vec<Uid>,
        message: Arc<str>,
        now: Timestamp,
    ) -> Option<Decision> {
        let (uids, later) = self.pick_unreported(all, &message, now);
        if let Some(refusal) = self.classes.get_mut(&id).and_then(|c| c.refusal.as_mut()) {
            refusal.report_again_at = later;
        }
        (!uids.is_empty()).then_some(Decision::Refuse { uids, message })
    }

    fn refuse(
        &mut self,
        id: ClassId,
        message: String,
        generation: (u64, u64),
        now: Timestamp,
    ) -> Option<Decision> {
        self.parked.insert(id);
        let class = self.classes.get_mut(&id)?;
        let attempts = class.refusal.as_ref().map_or(0, |r| r.attempts + 1);
        let pause = i64::from(1u32 << attempts.min(4)).min(10);
        let message: Arc<str> = message.into();
        class.refusal = Some(Refusal {
            message: message.clone(),
            generation,
            attempts,
            retry_at: later(now, pause),
            report_again_at: None,
        });
        class.unreported.clear();
        let all = class.pending.values().cloned().collect();
        self.announce(id, all, message, now)
    }

    /// Returns the pods without a condition or with an old one that differs, and when the next of the others may be written.
    fn pick_unreported(
        &mut self,
        uids: Vec<Uid>,
        message: &Arc<str>,
        now: Timestamp,
    ) -> (Vec<Uid>, Option<Timestamp>) {
        let mut report = Vec::new();
        let mut next: Option<Timestamp> = None;
        for uid in uids {
            let Some(entry) = self.pods.get_mut(&uid) else {
                continue;
            };
            if entry.message.as_deref() == Some(message) {
                continue;
            }
            let due = entry.reported_at.map(|at| later(at, REPORT_SECONDS));
            match due.filter(|at| entry.message.is_some() && *at > now) {
                Some(at) => next = Some(next.map_or(at, |n| n.min(at))),
                None => {
                    entry.message = Some(message.clone());
                    entry.reported_at = Some(now);
                    report.push(uid);
                }
            }
        }
        (report, next)
    }

    fn try_place(
        &mut self,
        id: ClassId,
        uid: &Uid,
        shape: &Arc<Shape>,
    ) -> Result<(usize, Vec<Need>), Diagnosis> {
        let needs = self.volumes.needs(shape).map_err(Diagnosis::before_nodes)?;
        if shape.counts_pods() {
            self.prepare_counters(id);
        }
        let counters = self.classes.get(&id).and_then(|c| c.counters.as_ref());
        let context = self.context(shape, counters.map(|(_, counters)| counters), &needs);
        match self.best_node(uid, &context) {
            Some(at) => Ok((at, needs)),
            None => Err(self.diagnose(&context)),
        }
    }

    /// Returns the nominated node if it is feasible, or the feasible node with the best score.
    fn best_node(&self, uid: &Uid, context: &Context<'_>) -> Option<usize> {
        let shape = context.shape;
        let feasible = |at: &usize| {
            let node = &self.nodes[*at];
            node.accepts(shape) && self.others_refuse(context, node).is_none()
        };
        if let Some(at) = self.nominated(uid).filter(feasible) {
            return Some(at);
        }
        let candidates: Vec<usize> = match shape.pinned() {
            Some(names) => names
                .into_iter()
                .filter_map(|n| self.by_name.get(n).copied())
                .collect(),
            None => (0..self.nodes.len()).collect(),
        };
        let scored: Vec<(usize, i64, i64)> = candidates
            .into_iter()
            .filter(feasible)
            .map(|at| {
                let node = &self.nodes[at];
                let liking = context.counters.map_or(0, |c| c.liking(shape, node));
                (at, node.score(shape), liking)
            })
            .collect();
        best_of(&scored)
    }

    fn nominated(&self, uid: &Uid) -> Option<usize> {
        let name = self.pods.get(uid)?.nominated.as_deref()?;
        self.by_name
            .get(name)
            .copied()
            .filter(|at| self.nodes[*at].live)
    }

    fn prepare_counters(&mut self, id: ClassId) {
        let Some(mut class) = self.classes.remove(&id) else {
            return;
        };
        if class
            .counters
            .as_ref()
            .is_none_or(|(at, _)| *at != self.topology)
        {
            let live = || self.nodes.iter().filter(|n| n.live);
            let mut counters = Counters::new(&class.shape, live());
            for node in live() {
                for entry in node.pods.iter().filter_map(|uid| self.pods.get(uid)) {
                    counters.count_affinity(&class.shape, &entry.shape, node, &self.namespaces, 1);
                    if !entry.terminating {
                        counters.count_spread(&class.shape, &entry.shape, node, 1);
                    }
                }
            }
            class.counters = Some((self.topology, counters));
            self.counting.insert(id);
        }
        self.classes.insert(id, class);
    }

    fn context<'a>(
        &'a self,
        shape: &'a Shape,
        counters: Option<&'a Counters>,
        needs: &'a [Need],
    ) -> Context<'a> {
        Context {
            shape,
            needs,
            counters,
            attachments: self.volumes.attachments(needs),
            minima: counters.map(|c| c.minima(shape)).unwrap_or_default(),
            anti: self
                .anti_groups
                .values()
                .filter(|g| {
                    g.term
                        .means(&shape.namespace, &shape.labels, &self.namespaces)
                })
                .collect(),
        }
    }

    /// Returns the first reason that depends on other pods or volumes, in the order of kube-scheduler's plugins.
    fn others_refuse(&self, context: &Context<'_>, node: &NodeInfo) -> Option<Reason> {
        let shape = context.shape;
        if node.port_taken(shape) {
            return Some(Reason::Ports);
        }
        if !shape.claims.is_empty() {
            if self.volumes.exclusive_in_use(shape, context.needs, node) {
                return Some(Reason::ReadWriteOncePod);
            }
            if node.volume_limit_exceeded(&context.attachments) {
                return Some(Reason::VolumeLimit);
            }
            if let Some(reason) = self.volumes.refuses(context.needs, node) {
                return Some(reason);
            }
        }
        if let Some(counters) = context.counters {
            if let Some(reason) = counters.spread_refuses(shape, &context.minima, node) {
                return Some(reason);
            }
            if let Some(reason) = counters.affinity_refuses(shape, node, &self.namespaces) {
                return Some(reason);
            }
        }
        context
            .anti
            .iter()
            .any(|group| group.near(node))
            .then_some(Reason::ExistingAntiAffinity)
    }

    fn diagnose(&self, context: &Context<'_>) -> Diagnosis {
        let mut diagnosis = Diagnosis::default();
        let shape = context.shape;
        let pinned = shape.pinned();
        for node in self.nodes.iter().filter(|n| n.live) {
            if pinned
                .as_ref()
                .is_some_and(|names| !names.contains(&&*node.name))
            {
                diagnosis.add(&[Reason::Pinned]);
                continue;
            }
            if let Some(reason) = node.refuses(shape) {
                diagnosis.add(&[reason]);
                continue;
            }
            if node.port_taken(shape) {
                diagnosis.add(&[Reason::Ports]);
                continue;
            }
            let missing = node.missing(shape, &self.resources);
            if !missing.is_empty() {
                diagnosis.add(&missing);
            } else if let Some(reason) = self.others_refuse(context, node) {
                diagnosis.add(&[reason]);
            }
        }
        diagnosis
    }
}

fn later(from: Timestamp, seconds: i64) -> Timestamp {
    from.checked_add(jiff::SignedDuration::from_secs(seconds))
        .unwrap_or(Timestamp::MAX)
}

/// State that is computed once for a scan over the nodes.
struct Context<'a> {
    shape: &'a Shape,
    needs: &'a [Need],
    counters: Option<&'a Counters>,
    attachments: Vec<(String, String)>,
    minima: Vec<i64>,
    /// The groups of existing pods whose anti-affinity matches pods of this shape.
    anti: Vec<&'a AntiGroup>,
}

/// Returns the node with the best score, with the affinity score normalized over the feasible nodes; the first of equals.
fn best_of(feasible: &[(usize, i64, i64)]) -> Option<usize> {
    let low = feasible.iter().map(|f| f.2).min()?;
    let high = feasible.iter().map(|f| f.2).max()?;
    let total = |f: &(usize, i64, i64)| {
        let liking = if high > low {
            2000 * (f.2 - low) / (high - low)
        } else {
            0
        };
        f.1 + liking
    };
    feasible
        .iter()
        .max_by_key(|f| (total(f), Reverse(f.0)))
        .map(|f| f.0)
}
