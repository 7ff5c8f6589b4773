//! The replicas of the controllers: one, or two of which one leads; how they stop, die, lose the lease and come back.

use std::sync::Arc;
use std::time::Duration;

use futures::future::select_all;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use karpenter_kube::context::Context;
use karpenter_playground::stack::Replica;
use kube::{Api, Client};

use crate::driver::Simulation;
use crate::wire::{Fuse, LastWrite, Wire};

/// A place for a replica, which may be down.
pub(crate) struct Place {
    name: String,
    fuse: Fuse,
    running: Option<Replica>,
    /// When it comes back, if it is down.
    down_until: Option<Timestamp>,
}

impl Place {
    /// Places for replicas, none of which runs yet.
    pub(crate) fn some(count: usize) -> Vec<Self> {
        let place = |n| Self {
            name: format!("replica-{n}"),
            fuse: Fuse::default(),
            running: None,
            down_until: None,
        };
        (0..count).map(place).collect()
    }
}

impl Simulation {
    /// Whether replicas compete for a lease.
    pub(crate) fn elects(&self) -> bool {
        self.replicas.len() > 1
    }

    fn start_replica(&mut self, at: usize) {
        let fuse = Fuse::default();
        let name = self.replicas[at].name.clone();
        let mut wire = Wire::new(
            self.stack.testbed.server().service(false),
            self.trace.clone(),
            fuse.clone(),
            Arc::clone(&self.safety),
        );
        if self.elects() {
            wire = wire.of_replica(&name);
        }
        let running = self.stack.replica(Client::new(wire, "default"), &name);
        let place = &mut self.replicas[at];
        place.fuse = fuse;
        place.running = Some(running);
        place.down_until = None;
        self.starts += 1;
        self.safety.something_happens();
        self.trace.say(&format!("> started {name}"));
        self.is_well();
    }

    /// Starts what does not run.
    pub(crate) fn start_replicas(&mut self) {
        for at in 0..self.replicas.len() {
            if self.replicas[at].running.is_none() {
                self.start_replica(at);
            }
        }
    }

    /// Starts what was to come back by now.
    pub(crate) fn start_due_replicas(&mut self) {
        let now = self.stack.clock.now();
        for at in 0..self.replicas.len() {
            if self.replicas[at].down_until.is_some_and(|due| due <= now) {
                self.start_replica(at);
            }
        }
    }

    /// When the next replica comes back.
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

    /// Waits, or until a replica ends by itself.
    pub(crate) async fn wait_or_end(&self, wait: Duration) {
        let running = self.replicas.iter().filter_map(|r| r.running.as_ref());
        let ends: Vec<_> = running.map(|r| Box::pin(r.ended().cancelled())).collect();
        if ends.is_empty() {
            return self.stack.clock.sleep(wait).await;
        }
        tokio::select! {
            biased;
            () = self.stack.clock.sleep(wait) => {}
            _ = select_all(ends) => {}
        }
    }

    /// Replicas that ended by themselves come back: they have lost the lease, and nothing else ends them.
    pub(crate) fn notice_ends(&mut self) {
        for at in 0..self.replicas.len() {
            let ended = |running: &Replica| running.ended().is_cancelled();
            if !self.replicas[at].running.as_ref().is_some_and(ended) {
                continue;
            }
            let name = self.replicas[at].name.clone();
            self.trace.say(&format!("> {name} has ended"));
            self.safety.something_happens();
            if !self.elects() {
                self.safety.violated(format!("{name} has ended by itself"));
            }
            self.take_down(at, 60.0);
        }
    }

    /// Drops a replica, which comes back after so many seconds at most.
    fn take_down(&mut self, at: usize, longest: f64) {
        let due = self.after(0.1, longest);
        let place = &mut self.replicas[at];
        place.fuse.blow();
        if let Some(running) = place.running.take() {
            running.abandon();
        }
        place.down_until = Some(due);
        self.safety.process_ends();
        self.is_well();
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
        let leases: Api<Lease> = self.namespaced();
        let lease = leases.get_opt("karpenter-leader-election").await.ok()??;
        let holder = lease.spec?.holder_identity?;
        // The lease may still name what a replica was before it was started again.
        let acts = |replica: &Replica| replica.context().acting.since().is_some();
        let leads =
            |place: &Place| place.name == holder && place.running.as_ref().is_some_and(acts);
        self.replicas.iter().position(leads)
    }

    /// What the controllers that act work with.
    pub(crate) async fn context(&self) -> Option<&Arc<Context>> {
        let at = self.leader().await?;
        self.replicas[at].running.as_ref().map(Replica::context)
    }

    pub(crate) fn all_replicas_are_up(&self) -> bool {
        self.replicas.iter().all(|r| r.running.is_some())
    }

    /// Stops a replica in order, and starts it again.
    pub(crate) async fn restart(&mut self) {
        let Some(at) = self.any_replica() else { return };
        self.trace
            .say(&format!("> stopped {}", self.replicas[at].name));
        if let Some(running) = self.replicas[at].running.take() {
            running.stop().await;
        }
        self.safety.process_ends();
        self.start_replica(at);
    }

    /// Lets a replica die within a few writes.
    pub(crate) async fn kill(&mut self) {
        let Some(at) = self.any_replica() else { return };
        let name = self.replicas[at].name.clone();
        let writes = self.chance.between(1, 12);
        let last = self.chance.one([LastWrite::Unsent, LastWrite::Unanswered]);
        self.trace
            .say(&format!("> {name} dies after {writes} writes ({last:?})"));
        let writes = i64::try_from(writes).unwrap_or(1);
        self.replicas[at].fuse.burn_after(writes, last);
        let pause = self.chance.seconds(1.0, 120.0);
        self.stack.clock.sleep(Duration::from_secs_f64(pause)).await;
        self.trace.say(&format!("> {name} is dead"));
        self.take_down(at, 900.0);
    }

    /// Cuts the leader off from the lease and from nothing else: it must notice in time, and do nothing any more.
    pub(crate) async fn loses_lease(&mut self) {
        if !self.elects() {
            return;
        }
        let Some(at) = self.leader().await else {
            return;
        };
        let name = self.replicas[at].name.clone();
        self.trace
            .say(&format!("> {name} does not reach the lease"));
        self.replicas[at].fuse.cut_lease();
        let pause = self.chance.seconds(15.0, 120.0);
        self.stack.clock.sleep(Duration::from_secs_f64(pause)).await;
        let running = self.replicas[at].running.as_ref();
        if running.is_some_and(|running| !running.ended().is_cancelled()) {
            self.safety
                .violated(format!("{name} goes on without the lease"));
        }
        self.notice_ends();
    }
}
