//! The next pod, and its node or the reason why there is none.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::Timestamp;

use super::{Class, Decision, Engine, Refusal, Uid};
use crate::loops::scheduler::counters::Counters;
use crate::loops::scheduler::node::NodeInfo;
use crate::loops::scheduler::reason::{Diagnosis, Reason};
use crate::loops::scheduler::shape::Shape;
use crate::loops::scheduler::volumes::Need;

/// The shortest time between two different messages of a pod.
const REPORT_PERIOD: jiff::SignedDuration = jiff::SignedDuration::from_secs(10);

impl Engine {
    fn generation(&self, shape: &Shape) -> (u64, u64) {
        let depends_on_pods = !shape.affinity.is_empty() || !shape.spread.is_empty();
        (self.freed, if depends_on_pods { self.placed } else { 0 })
    }

    /// Returns when to call [`Engine::next`] at the latest, without a change.
    pub(crate) fn next_report(&self) -> Option<Timestamp> {
        let refusals = self.classes.values().filter_map(|c| c.refusal.as_ref());
        refusals.filter_map(|r| r.report_again_at).min()
    }

    /// Returns the next decision, or `None` if no pod is left to try.
    pub(crate) fn next(&mut self, now: Timestamp) -> Option<Decision> {
        loop {
            let due = |shape: &Shape, class: &Class| {
                class.refusal.as_ref().is_none_or(|refusal| {
                    refusal.generation != self.generation(shape)
                        || refusal.report_again_at.is_some_and(|at| at <= now)
                })
            };
            // Higher priority first, then older first.
            let (_, shape, uid) = self
                .classes
                .iter()
                .filter(|(shape, class)| due(shape, class))
                .filter_map(|(shape, class)| {
                    let (number, uid) = class.pending.first_key_value()?;
                    Some(((Reverse(shape.priority), *number), shape, uid))
                })
                .min_by_key(|(order, ..)| *order)?;
            let (shape, uid) = (shape.clone(), uid.clone());
            match self.try_place(&uid, &shape) {
                Ok((node, needs)) => return Some(self.bind(uid, node, &needs)),
                Err(diagnosis) => {
                    let message = diagnosis.message(self.nodes.len(), shape.never_preempts);
                    let (uids, message) = self.refuse(&shape, message.into(), now);
                    if !uids.is_empty() {
                        return Some(Decision::Refuse { uids, message });
                    }
                }
            }
        }
    }

    fn bind(&mut self, uid: Uid, node: Arc<str>, needs: &[Need]) -> Decision {
        let bindings = self
            .nodes
            .get(&node)
            .and_then(|n| self.volumes.bindings(needs, n));
        let claims = bindings.unwrap_or_default();
        let volumes = self.volumes.attachments(needs);
        self.volumes.assume(&claims);
        self.dequeue(&uid);
        if let Some(entry) = self.pods.get_mut(&uid) {
            entry.assumed = Some(claims.clone());
            entry.node = Some(node.clone());
            entry.volumes = volumes;
            if let Some(class) = self.classes.get_mut(&entry.shape) {
                class.refusal = None;
            }
        }
        self.count(&uid);
        Decision::Bind { uid, node, claims }
    }

    /// Rejects all pods of the shape. Returns those without a message or with an old one that differs.
    fn refuse(&mut self, shape: &Shape, message: Arc<str>, now: Timestamp) -> (Vec<Uid>, Arc<str>) {
        let generation = self.generation(shape);
        let mut report = Vec::new();
        let Some(class) = self.classes.get_mut(shape) else {
            return (report, message);
        };
        let mut report_again_at: Option<Timestamp> = None;
        for uid in class.pending.values() {
            let Some(entry) = self.pods.get_mut(uid) else {
                continue;
            };
            if entry.message.as_ref() == Some(&message) {
                continue;
            }
            let may_report_at = entry
                .reported_at
                .and_then(|at| at.checked_add(REPORT_PERIOD).ok())
                .filter(|at| entry.message.is_some() && *at > now);
            match may_report_at {
                Some(at) => {
                    report_again_at = Some(report_again_at.map_or(at, |earliest| earliest.min(at)));
                }
                None => {
                    entry.message = Some(message.clone());
                    entry.reported_at = Some(now);
                    report.push(uid.clone());
                }
            }
        }
        class.refusal = Some(Refusal {
            generation,
            report_again_at,
        });
        (report, message)
    }

    /// Returns the nominated node if it is feasible, or the feasible node with the best score.
    fn try_place(&self, uid: &Uid, shape: &Shape) -> Result<(Arc<str>, Vec<Need>), Diagnosis> {
        let needs = self.volumes.needs(shape).map_err(Diagnosis::before_nodes)?;
        let placed = self.pods.values().filter_map(|pod| {
            // Only these are counted, and a node is looked up for each.
            (shape.counts_pods() || !pod.shape.anti_affinity.is_empty()).then_some(())?;
            let node = self.nodes.get(pod.node.as_ref()?)?;
            Some((&*pod.shape, pod.terminating, node))
        });
        let context = Context {
            shape,
            pinned: shape.pinned(),
            needs: &needs,
            attachments: self.volumes.attachments(&needs),
            counters: Counters::new(shape, self.nodes.values(), placed, &self.namespaces),
        };
        let nominated = self.pods.get(uid).and_then(|pod| pod.nominated.as_deref());
        if let Some(node) = nominated.and_then(|name| self.nodes.get(name))
            && self.refuses(&context, node).is_empty()
        {
            return Ok((node.name.clone(), needs));
        }
        let mut diagnosis = Diagnosis::default();
        let mut feasible = Vec::new();
        for node in self.nodes.values() {
            let reasons = self.refuses(&context, node);
            if reasons.is_empty() {
                let liking = context.counters.liking(shape, node);
                feasible.push((node, node.score(shape), liking));
            } else {
                diagnosis.add(&reasons);
            }
        }
        match best_of(&feasible) {
            Some(node) => Ok((node.name.clone(), needs)),
            None => Err(diagnosis),
        }
    }

    /// Returns why the node is not feasible: what the first plugin says that rejects it, in kube-scheduler's order.
    fn refuses(&self, context: &Context<'_>, node: &NodeInfo) -> Vec<Reason> {
        let Context { shape, needs, .. } = *context;
        let pinned = context.pinned.as_ref();
        if pinned.is_some_and(|names| !names.contains(&&*node.name)) {
            return vec![Reason::Pinned];
        }
        if let Some(reason) = node.refuses(shape) {
            return vec![reason];
        }
        if node.port_taken(shape) {
            return vec![Reason::Ports];
        }
        let missing = node.missing(shape);
        if !missing.is_empty() {
            return missing;
        }
        let volumes = || {
            if self.volumes.exclusive_in_use(shape, needs, node) {
                return Some(Reason::ReadWriteOncePod);
            }
            if self.volumes.limit_exceeded(&context.attachments, node) {
                return Some(Reason::VolumeLimit);
            }
            self.volumes.refuses(needs, node)
        };
        let counters = &context.counters;
        volumes()
            .or_else(|| counters.spread_refuses(shape, node))
            .or_else(|| counters.affinity_refuses(shape, node, &self.namespaces))
            .into_iter()
            .collect()
    }
}

/// State that is computed once for a scan over the nodes.
struct Context<'a> {
    shape: &'a Shape,
    /// The nodes that the pod is restricted to by name.
    pinned: Option<Vec<&'a str>>,
    needs: &'a [Need],
    attachments: Vec<(String, String)>,
    counters: Counters<'a>,
}

/// Returns the node with the best score, with the affinity score normalized over the feasible nodes; the oldest of equals.
fn best_of<'a>(feasible: &[(&'a NodeInfo, i64, i64)]) -> Option<&'a NodeInfo> {
    let low = feasible.iter().map(|f| f.2).min()?;
    let high = feasible.iter().map(|f| f.2).max()?;
    let total = |(_, score, liking): &(&NodeInfo, i64, i64)| {
        let normalized = (2000 * (liking - low)).checked_div(high - low);
        score + normalized.unwrap_or(0)
    };
    let best = feasible
        .iter()
        .max_by_key(|f| (total(f), Reverse(f.0.number)));
    best.map(|f| f.0)
}
