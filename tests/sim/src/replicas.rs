//! The replicas of the controllers: one, or two of which one leads; how they stop, are killed, lose the lease and restart.

use std::sync::Arc;
use std::time::Duration;

use futures::future::select_all;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use karpenter_kube::context::Context;
use karpenter_lab::local_cluster::Replica;
use kube::Client;

use crate::driver::{Kind as _, Simulation};
use crate::place::Place;
use crate::wire::{Fuse, LastWrite, Wire};

impl Simulation {
    /// Returns whether replicas compete for a lease.
    pub(crate) fn elects(&self) -> bool {
        self.replicas.len() > 1
    }

    fn start_replica(&mut self, at: usize) {
        let fuse = Fuse::default();
        let name = self.replicas[at].name.clone();
        let wire = Wire {
            inner: self.cluster.testbed.server().service(false),
            trace: self.trace.clone(),
            fuse: fuse.clone(),
            safety: Arc::clone(&self.safety),
            replica: self.elects().then(|| name.clone()),
        };
        let running = self.cluster.replica(Client::new(wire, "default"), &name);
        let place = &mut self.replicas[at];
        place.fuse = fuse;
        place.running = Some(running);
        place.down_until = None;
        self.trace.add(&format!("> started {name}"));
    }

    /// Starts the replicas that do not run.
    pub(crate) fn start_replicas(&mut self) {
        for at in 0..self.replicas.len() {
            if self.replicas[at].running.is_none() {
                self.start_replica(at);
            }
        }
    }

    /// Starts the replicas that are due to restart.
    pub(crate) fn start_due_replicas(&mut self) {
        let now = self.cluster.clock.now();
        for at in 0..self.replicas.len() {
            if self.replicas[at].down_until.is_some_and(|due| due <= now) {
                self.start_replica(at);
            }
        }
    }

    /// Returns when the next replica restarts.
    pub(crate) fn next_start(&self) -> Option<Timestamp> {
        self.replicas.iter().filter_map(|r| r.down_until).min()
    }

    pub(crate) async fn stop_replicas(&mut self) {
        for place in &mut self.replicas {
            if let Some(running) = place.running.take() {
                running.stop().await;
            }
        }
    }

    /// Waits for this time, or until a replica ends by itself.
    pub(crate) async fn wait_or_end(&self, wait: Duration) {
        let running = self.replicas.iter().filter_map(|r| r.running.as_ref());
        let ends: Vec<_> = running.map(|r| Box::pin(r.ended().cancelled())).collect();
        if ends.is_empty() {
            return self.cluster.clock.sleep(wait).await;
        }
        tokio::select! {
            biased;
            () = self.cluster.clock.sleep(wait) => {}
            _ = select_all(ends) => {}
        }
    }

    /// Schedules the restart of replicas that ended by themselves: they have lost the lease, which is the only valid reason.
    pub(crate) fn notice_ends(&mut self) {
        for at in 0..self.replicas.len() {
            let ended = |running: &Replica| running.ended().is_cancelled();
            if !self.replicas[at].running.as_ref().is_some_and(ended) {
                continue;
            }
            let name = self.replicas[at].name.clone();
            self.trace.add(&format!("> {name} has ended"));
            if !self.elects() {
                self.safety.violated(format!("{name} has ended by itself"));
            }
            self.take_down(at, 60.0);
        }
    }

    /// Drops a replica, which restarts after so many seconds at most.
    fn take_down(&mut self, at: usize, longest: f64) {
        let due = self.after(0.1, longest);
        let place = &mut self.replicas[at];
        place.fuse.blow();
        if let Some(running) = place.running.take() {
            running.abandon();
        }
        place.down_until = Some(due);
    }

    fn any_replica(&mut self) -> Option<usize> {
        let up = |at: &usize| self.replicas[*at].running.is_some();
        let up: Vec<usize> = (0..self.replicas.len()).filter(up).collect();
        self.chance.of(&up)
    }

    async fn leader(&self) -> Option<usize> {
        if !self.elects() {
            return self.replicas.first()?.running.as_ref().map(|_| 0);
        }
        let lease = Lease::api(&self.client);
        let lease = lease.get_opt("karpenter-leader-election").await.ok()??;
        let holder = lease.spec?.holder_identity?;
        // The lease may still name the identity of a replica before its restart.
        let acts = |replica: &Replica| replica.context().acting.since().is_some();
        let leads =
            |place: &Place| place.name == holder && place.running.as_ref().is_some_and(acts);
        self.replicas.iter().position(leads)
    }

    /// Returns the context of the leading controllers.
    pub(crate) async fn context(&self) -> Option<&Arc<Context>> {
        let at = self.leader().await?;
        self.replicas[at].running.as_ref().map(Replica::context)
    }

    /// Returns the metrics of all running replicas.
    pub(crate) fn metrics(&self) -> String {
        let running = self.replicas.iter().flat_map(|place| &place.running);
        let texts = running.map(|replica| replica.context().metrics.registry.render());
        texts.collect()
    }

    /// Stops a replica gracefully, and starts it again.
    pub(crate) async fn restart(&mut self) {
        let Some(at) = self.any_replica() else { return };
        self.trace
            .add(&format!("> stopped {}", self.replicas[at].name));
        if let Some(running) = self.replicas[at].running.take() {
            running.stop().await;
        }
        self.start_replica(at);
    }

    async fn pause(&mut self, from: f64, to: f64) {
        let pause = self.chance.seconds(from, to);
        let pause = Duration::from_secs_f64(pause);
        self.cluster.clock.sleep(pause).await;
    }

    /// Kills a replica within a few writes.
    pub(crate) async fn kill(&mut self) {
        let Some(at) = self.any_replica() else { return };
        let name = self.replicas[at].name.clone();
        let writes = self.chance.between(1, 12);
        let last = self.chance.one([LastWrite::Unsent, LastWrite::Unanswered]);
        self.trace.add(&format!(
            "> {name} is killed after {writes} writes ({last:?})"
        ));
        let writes = i64::try_from(writes).unwrap_or(1);
        self.replicas[at].fuse.burn_after(writes, last);
        self.pause(1.0, 120.0).await;
        self.trace.add(&format!("> {name} was killed"));
        self.take_down(at, 900.0);
    }

    /// Blocks the leader's requests for the lease and no others: it must notice in time, and stop writing.
    pub(crate) async fn loses_lease(&mut self) {
        if !self.elects() {
            return;
        }
        let Some(at) = self.leader().await else {
            return;
        };
        let name = self.replicas[at].name.clone();
        self.trace
            .add(&format!("> {name} does not reach the lease"));
        self.replicas[at].fuse.cut_lease();
        self.pause(15.0, 120.0).await;
        let running = self.replicas[at].running.as_ref();
        if running.is_some_and(|running| !running.ended().is_cancelled()) {
            self.safety
                .violated(format!("{name} continues without the lease"));
        }
        self.notice_ends();
    }
}
