//! Which replica leads: a Lease, held as client-go holds it.
//!
//! 1. Read the Lease; create it if there is none.
//! 2. Another holder's Lease counts as expired only once *we* have seen it unchanged for its whole duration on our own
//!    monotonic clock: other replicas' wall clocks are not trusted.
//! 3. Every write carries the resourceVersion that was read, so that two candidates cannot both win.
//! 4. A leader that could not renew for the renew deadline stops leading; the process is expected to exit. The deadline is
//!    shorter than the Lease lasts, and no attempt goes on beyond it: there are never two leaders.
//! 5. A graceful stop empties the holder, so that the next replica need not wait.
//!
//! UPSTREAM: client-go tools/leaderelection

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How a Lease is held.
#[derive(Debug, Clone)]
pub struct LeaseConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Who holds it; unique to the process.
    pub identity: String,
    /// How long an unrenewed Lease is respected.
    pub duration: Duration,
    /// How long a leader may fail to renew.
    pub renew_deadline: Duration,
    /// How often it is tried.
    pub retry_period: Duration,
}

impl LeaseConfig {
    /// Upstream's 15 s, 10 s and 2 s.
    #[must_use]
    pub fn new(namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// Whether this process leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leadership {
    /// Another replica leads, or none yet.
    Following,
    /// This process leads.
    Leading,
    /// This process led and could not renew; it must stop acting.
    Lost,
}

/// What came of an attempt to hold the Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// It is ours.
    Ours,
    /// It is another's, and has not expired.
    Theirs,
    /// Somebody wrote it in between; the next look says who.
    Raced,
}

/// What was last seen of the Lease, and when on our own clock.
#[derive(Debug)]
struct Observed {
    resource_version: Option<String>,
    at: Instant,
}

/// A candidate for a Lease.
#[derive(Debug)]
pub struct Elector {
    api: Api<Lease>,
    config: LeaseConfig,
    observed: Option<Observed>,
    lease: Option<Lease>,
}

impl Elector {
    /// A candidate that has not looked yet.
    #[must_use]
    pub fn new(client: Client, config: LeaseConfig) -> Self {
        Self {
            api: Api::namespaced(client, &config.namespace),
            config,
            observed: None,
            lease: None,
        }
    }

    /// Competes for the Lease until `stop` or until it is lost, publishing each change, then lets go of it.
    pub async fn run(mut self, leadership: watch::Sender<Leadership>, stop: CancellationToken) {
        let mut renewed = Instant::now();
        let mut leading = false;
        loop {
            let limit = if leading {
                renewed + self.config.renew_deadline
            } else {
                Instant::now() + self.config.renew_deadline
            };
            let started = Instant::now();
            let attempt = tokio::time::timeout_at(limit, self.acquire_or_renew()).await;
            match attempt {
                Ok(Ok(Attempt::Ours)) => {
                    // Others count from when they see the write, which is not before it was sent.
                    renewed = started;
                    if !leading {
                        leading = true;
                        tracing::info!(
                            logger = "controller",
                            identity = self.config.identity,
                            "acquired lease"
                        );
                        leadership.send_replace(Leadership::Leading);
                    }
                }
                Ok(Ok(Attempt::Theirs)) if leading => {
                    // Somebody else holds what we held: there is nothing to wait for.
                    leadership.send_replace(Leadership::Lost);
                    return;
                }
                Ok(Ok(Attempt::Theirs | Attempt::Raced)) => {}
                Ok(Err(error)) => {
                    tracing::debug!(logger = "controller", %error, "failed to reach the lease")
                }
                Err(_) => tracing::debug!(logger = "controller", "reaching the lease timed out"),
            }
            if leading && renewed.elapsed() >= self.config.renew_deadline {
                leadership.send_replace(Leadership::Lost);
                return;
            }
            let next = Instant::now() + self.config.retry_period;
            let next = if leading {
                next.min(renewed + self.config.renew_deadline)
            } else {
                next
            };
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(next) => {}
                () = stop.cancelled() => break,
            }
        }
        if leading {
            leadership.send_replace(Leadership::Following);
            if let Err(error) = self.release().await {
                tracing::debug!(logger = "controller", %error, "failed to release the lease");
            }
        }
    }

    /// One attempt.
    async fn acquire_or_renew(&mut self) -> Result<Attempt, kube::Error> {
        let now = MicroTime(Timestamp::now());
        let Some(current) = self.api.get_opt(&self.config.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.config.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.spec(&now, Some(now.clone()), 0)),
            };
            return self.settle(self.api.create(&PostParams::default(), &lease).await);
        };
        let version = current.metadata.resource_version.clone();
        if self
            .observed
            .as_ref()
            .is_none_or(|o| o.resource_version != version)
        {
            self.observed = Some(Observed {
                resource_version: version,
                at: Instant::now(),
            });
        }
        let spec = current.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let ours = holder == self.config.identity;
        let duration = spec
            .lease_duration_seconds
            .and_then(|s| u64::try_from(s).ok())
            .map_or(self.config.duration, Duration::from_secs);
        let expired = self
            .observed
            .as_ref()
            .is_some_and(|o| o.at.elapsed() >= duration);
        if !ours && !holder.is_empty() && !expired {
            return Ok(Attempt::Theirs);
        }
        let acquired = if ours {
            spec.acquire_time.clone()
        } else {
            Some(now.clone())
        };
        let transitions = spec.lease_transitions.unwrap_or(0) + i32::from(!ours);
        let mut lease = current;
        lease.spec = Some(self.spec(&now, acquired, transitions));
        self.settle(
            self.api
                .replace(&self.config.name, &PostParams::default(), &lease)
                .await,
        )
    }

    fn spec(&self, now: &MicroTime, acquired: Option<MicroTime>, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.config.identity.clone()),
            lease_duration_seconds: i32::try_from(self.config.duration.as_secs()).ok(),
            acquire_time: acquired,
            renew_time: Some(now.clone()),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    fn settle(&mut self, written: Result<Lease, kube::Error>) -> Result<Attempt, kube::Error> {
        match written {
            Ok(lease) => {
                self.observed = Some(Observed {
                    resource_version: lease.metadata.resource_version.clone(),
                    at: Instant::now(),
                });
                self.lease = Some(lease);
                Ok(Attempt::Ours)
            }
            // Another candidate was quicker, or somebody edits it.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {
                Ok(Attempt::Raced)
            }
            Err(error) => Err(error),
        }
    }

    async fn release(&mut self) -> Result<(), kube::Error> {
        let Some(mut lease) = self.lease.take() else {
            return Ok(());
        };
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
        }
        self.api
            .replace(&self.config.name, &PostParams::default(), &lease)
            .await
            .map(drop)
    }
}
