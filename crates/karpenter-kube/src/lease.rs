//! Leader election with a Lease, as in client-go.
//!
//! 1. A leader renews with one request: an update of the Lease as it last wrote it. A follower, and a leader whose update
//!    failed, reads the Lease first; it is created if there is none.
//! 2. Another holder's Lease counts as expired only once *we* have seen it unchanged for its whole duration on our own
//!    monotonic clock: other replicas' wall clocks are not trusted.
//! 3. Every write carries the resourceVersion that was read, so that two candidates cannot both win.
//! 4. A leader that could not renew for the renew deadline stops leading; the process is expected to exit. As client-go's,
//!    the deadline counts from the attempt that follows the last successful renewal. It is always over before the Lease is:
//!    two replicas never lead at once.
//! 5. A graceful stop releases the Lease, so that the next replica need not wait.
//!
//! UPSTREAM: client-go tools/leaderelection, controller-runtime pkg/leaderelection (the timeout of a request)

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use rustc_hash::FxHasher;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Counter;

/// How long before other replicas may acquire the Lease the leader stops, whatever else is configured.
const MARGIN: Duration = Duration::from_secs(1);

/// Parameters of leader election.
#[derive(Debug, Clone)]
pub struct LeaseConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Identity of the holder; unique to the process.
    pub identity: String,
    /// How long other replicas respect a Lease that is not renewed.
    pub duration: Duration,
    /// How long a leader may fail to renew before it stops.
    pub renew_deadline: Duration,
    /// Interval between attempts.
    pub retry_period: Duration,
}

impl LeaseConfig {
    /// Creates a configuration with upstream's 15 s, 10 s and 2 s.
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

/// The result of an attempt to acquire or renew the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Attempt {
    /// This process holds the Lease.
    Ours(Renewal),
    /// Another replica holds the Lease, and it has not expired.
    Theirs(HeldBy),
}

/// A write that acquired or renewed the Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Renewal {
    sent: Instant,
    answered: Instant,
}

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("the API server did not answer within {}s", .0.as_secs_f64())]
    TimedOut(Duration),
}

/// The Lease as last read or written, and when it last changed on our own clock.
#[derive(Debug)]
struct Observed {
    lease: Lease,
    at: Instant,
}

/// A candidate for the Lease.
#[derive(Debug)]
pub struct Elector {
    api: Api<Lease>,
    config: LeaseConfig,
    observed: Option<Observed>,
    holder: Holder,
    /// Renewals that had to read the Lease.
    slow: Counter,
}

/// The replica that holds the Lease, as a candidate last saw it. Cheap to clone.
pub type Holder = Arc<ArcSwap<HeldBy>>;

/// The replica that holds the Lease.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldBy {
    /// Its identity; empty while it is not known.
    pub identity: String,
}

impl Elector {
    /// Creates a candidate that has not read the Lease yet. `slow` counts renewals that have to read it, by its name.
    #[must_use]
    pub fn new(client: Client, config: LeaseConfig, slow: Counter) -> Self {
        Self {
            api: Api::namespaced(client, &config.namespace),
            config,
            observed: None,
            holder: Holder::default(),
            slow,
        }
    }

    /// Returns who holds the Lease.
    #[must_use]
    pub fn holder(&self) -> Holder {
        Arc::clone(&self.holder)
    }

    /// Competes for the Lease until `stop` or until it is lost, publishes each change, then releases it.
    pub async fn run(mut self, leadership: watch::Sender<Leadership>, stop: CancellationToken) {
        self.acquire(&leadership, &stop).await;
    }

    async fn acquire(&mut self, leadership: &watch::Sender<Leadership>, stop: &CancellationToken) {
        for attempts in 0_u64.. {
            match self.read_and_write().await {
                Ok(Attempt::Ours(renewal)) => {
                    let identity = &self.config.identity;
                    tracing::info!(logger = "controller", identity, "acquired lease");
                    leadership.send_replace(Leadership::Leading);
                    return self.renew(renewal, leadership, stop).await;
                }
                Ok(Attempt::Theirs(holder)) => self.holder.store(Arc::new(holder)),
                Err(error) => {
                    tracing::debug!(logger = "controller", %error, "failed to acquire the lease");
                }
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep(self.pause(attempts)) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    async fn renew(
        &mut self,
        mut last: Renewal,
        leadership: &watch::Sender<Leadership>,
        stop: &CancellationToken,
    ) {
        let mut next = last.answered + self.config.retry_period;
        let mut failure = String::new();
        let why = loop {
            let deadline = self.deadline(last);
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(next.min(deadline)) => {}
                () = stop.cancelled() => {
                    leadership.send_replace(Leadership::Following);
                    return self.release().await;
                }
            }
            if Instant::now() >= deadline {
                break failure;
            }
            next = Instant::now() + self.config.retry_period;
            match tokio::time::timeout_at(deadline, self.update_or_read()).await {
                Ok(Ok(Attempt::Ours(renewal))) => {
                    last = renewal;
                    next = last.answered + self.config.retry_period;
                }
                // Another holder cannot be waited for.
                Ok(Ok(Attempt::Theirs(holder))) => break format!("`{}` holds it", holder.identity),
                Ok(Err(error)) => {
                    tracing::debug!(logger = "controller", %error, "failed to renew the lease");
                    failure = error.to_string();
                }
                Err(_) if failure.is_empty() => {
                    "the API server did not answer".clone_into(&mut failure);
                }
                Err(_) => {}
            }
        };
        leadership.send_replace(Leadership::Lost);
        tracing::error!(
            logger = "controller",
            lock = format!("{}/{}", self.config.namespace, self.config.name),
            error = why,
            "failed to renew lease"
        );
    }

    /// Returns when a leader stops that has not renewed since `last`.
    fn deadline(&self, last: Renewal) -> Instant {
        // Other replicas count from when they see the write, which is not before it was sent.
        let safe = last.sent + self.config.duration.saturating_sub(MARGIN);
        safe.min(last.answered + self.config.retry_period + self.config.renew_deadline)
    }

    /// Returns how long a follower waits for its next attempt: up to 2.2 periods, as in client-go, so that many followers
    /// spread out. It is derived from the identity, so that a simulation repeats.
    fn pause(&self, attempts: u64) -> Duration {
        let mut hasher = FxHasher::default();
        (&self.config.identity, attempts).hash(&mut hasher);
        let share = f64::from((hasher.finish() >> 32) as u32) / f64::from(u32::MAX);
        self.config.retry_period.mul_f64(1.0 + 1.2 * share)
    }

    /// Attempts to renew as a leader: an update of the Lease as last written; if that fails, a read and a write.
    async fn update_or_read(&mut self) -> Result<Attempt, LeaseError> {
        if let Some(observed) = &self.observed {
            let lease = observed.lease.clone();
            match self.write(lease).await {
                Ok(renewal) => return Ok(Attempt::Ours(renewal)),
                Err(error) => {
                    tracing::debug!(logger = "controller", %error, "failed to update the lease as last written");
                }
            }
            self.slow.inc(&[&self.config.name]);
        }
        self.read_and_write().await
    }

    /// Attempts to acquire the Lease without knowing its current state.
    async fn read_and_write(&mut self) -> Result<Attempt, LeaseError> {
        let found = self.limited(self.api.get_opt(&self.config.name)).await?;
        let lease = found.unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.config.name.clone()),
                ..ObjectMeta::default()
            },
            ..Lease::default()
        });
        let version = &lease.metadata.resource_version;
        let known = |o: &&Observed| o.lease.metadata.resource_version == *version;
        let at = self.observed.as_ref().filter(known).map(|o| o.at);
        let at = at.unwrap_or_else(Instant::now);
        let lease = self.observed.insert(Observed { lease, at }).lease.clone();
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|s| s.holder_identity.as_deref());
        let holder = holder.unwrap_or_default();
        let duration = spec
            .and_then(|s| s.lease_duration_seconds)
            .and_then(|s| u64::try_from(s).ok())
            .map_or(self.config.duration, Duration::from_secs);
        let free = holder.is_empty() || at.elapsed() >= duration;
        if holder != self.config.identity && !free {
            return Ok(Attempt::Theirs(HeldBy {
                identity: holder.to_owned(),
            }));
        }
        self.write(lease).await.map(Attempt::Ours)
    }

    /// Acquires or renews `lease`, provided that it is unchanged since it was read.
    async fn write(&mut self, mut lease: Lease) -> Result<Renewal, LeaseError> {
        let now = MicroTime(Timestamp::now());
        let spec = lease.spec.unwrap_or_default();
        let ours = spec.holder_identity.as_ref() == Some(&self.config.identity);
        let created = lease.metadata.resource_version.is_none();
        let taken = i32::from(!ours && !created);
        let acquired = spec.acquire_time.filter(|_| ours);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.config.identity.clone()),
            lease_duration_seconds: i32::try_from(self.config.duration.as_secs()).ok(),
            acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(spec.lease_transitions.unwrap_or(0).saturating_add(taken)),
            ..LeaseSpec::default()
        });
        let sent = Instant::now();
        let how = PostParams::default();
        let written = if created {
            self.limited(self.api.create(&how, &lease)).await
        } else {
            let name = &self.config.name;
            self.limited(self.api.replace(name, &how, &lease)).await
        };
        let lease = written?;
        let answered = Instant::now();
        let at = answered;
        self.observed = Some(Observed { lease, at });
        Ok(Renewal { sent, answered })
    }

    /// Limits a request to half of the renew deadline, so that there is time for two.
    async fn limited<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, LeaseError> {
        let limit = self.config.renew_deadline / 2;
        let answer = tokio::time::timeout(limit, request).await;
        Ok(answer.map_err(|_| LeaseError::TimedOut(limit))??)
    }

    async fn release(&mut self) {
        let Some(Observed { mut lease, .. }) = self.observed.take() else {
            return;
        };
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
        }
        let (name, how) = (&self.config.name, PostParams::default());
        if let Err(error) = self.limited(self.api.replace(name, &how, &lease)).await {
            tracing::debug!(logger = "controller", %error, "failed to release the lease");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Method, Request, Response, StatusCode};
    use http_body_util::BodyExt;
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;

    /// An API server with one Lease that answers each request after `latency`.
    #[derive(Default)]
    struct Server {
        latency: Duration,
        lease: Option<Value>,
        version: u64,
        methods: Vec<Method>,
        /// When a write was last stored.
        stored: Option<Instant>,
    }

    impl Server {
        fn answer(&mut self, method: &Method, body: &[u8]) -> (StatusCode, Value) {
            let failed = |code: StatusCode, reason: &str| {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason,
                    "reason": reason, "code": code.as_u16()});
                (code, status)
            };
            if *method == Method::GET {
                return match &self.lease {
                    Some(lease) => (StatusCode::OK, lease.clone()),
                    None => failed(StatusCode::NOT_FOUND, "NotFound"),
                };
            }
            let lease: Value = serde_json::from_slice(body).unwrap();
            let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
            if version(&lease) != self.lease.as_ref().map(version).unwrap_or_default() {
                return failed(StatusCode::CONFLICT, "Conflict");
            }
            self.store(lease.clone());
            self.stored = Some(Instant::now());
            (StatusCode::OK, self.lease.clone().unwrap_or_default())
        }

        fn store(&mut self, mut lease: Value) {
            self.version += 1;
            lease["metadata"]["resourceVersion"] = self.version.to_string().into();
            self.lease = Some(lease);
        }
    }

    struct Candidate {
        server: Arc<Mutex<Server>>,
        led: watch::Receiver<Leadership>,
        stop: CancellationToken,
        slow: Counter,
    }

    impl Candidate {
        fn start(identity: &str, server: Arc<Mutex<Server>>) -> Self {
            let serving = Arc::clone(&server);
            let service = tower::service_fn(move |request: Request<Body>| {
                let server = Arc::clone(&serving);
                async move {
                    let method = request.method().clone();
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let latency = {
                        let mut server = server.lock();
                        server.methods.push(method.clone());
                        server.latency
                    };
                    tokio::time::sleep(latency / 2).await;
                    let (code, answer) = server.lock().answer(&method, &body);
                    tokio::time::sleep(latency / 2).await;
                    let answer = Body::from(serde_json::to_vec(&answer).unwrap());
                    let response = Response::builder().status(code).body(answer);
                    Ok::<_, std::convert::Infallible>(response.unwrap())
                }
            });
            let slow = crate::metrics::Registry::new().counter("slow", "", &["name"]);
            let config = LeaseConfig::new("default", "lease", identity);
            let elector = Elector::new(Client::new(service, "default"), config, slow.clone());
            let (leadership, led) = watch::channel(Leadership::Following);
            let stop = CancellationToken::new();
            tokio::spawn(elector.run(leadership, stop.clone()));
            Self {
                server,
                led,
                stop,
                slow,
            }
        }

        async fn leading() -> Self {
            let mut leader = Self::start("a", Arc::default());
            leader.until(Leadership::Leading).await;
            leader
        }

        fn lease(&self) -> Value {
            self.server.lock().lease.clone().unwrap()
        }

        /// Changes a field of the Lease as another client does.
        fn touch(&self, pointer: [&str; 2], value: Value) {
            let mut lease = self.lease();
            lease[pointer[0]][pointer[1]] = value;
            self.server.lock().store(lease);
        }

        async fn until(&mut self, state: Leadership) {
            self.led.wait_for(|l| *l == state).await.unwrap();
        }

        fn set_latency(&self, seconds: f64) {
            self.server.lock().latency = Duration::from_secs_f64(seconds);
        }

        /// Returns the requests since the last call.
        fn requests(&self) -> Vec<Method> {
            std::mem::take(&mut self.server.lock().methods)
        }
    }

    async fn pass(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    /// Conformance: API-160
    #[tokio::test(start_paused = true)]
    async fn a_renewal_is_one_request_every_two_seconds() {
        let leader = Candidate::leading().await;
        assert_eq!(leader.requests(), [Method::GET, Method::POST]);
        pass(61).await;
        assert_eq!(leader.requests(), vec![Method::PUT; 30]);
    }

    /// Conformance: API-160
    #[tokio::test(start_paused = true)]
    async fn the_lease_is_held_for_fifteen_seconds_at_a_time() {
        let leader = Candidate::leading().await;
        let lease = leader.lease();
        assert_eq!(lease["spec"]["holderIdentity"], json!("a"));
        assert_eq!(lease["spec"]["leaseDurationSeconds"], json!(15));
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_reads_no_more_often_than_client_go() {
        let leader = Candidate::leading().await;
        let _follower = Candidate::start("b", Arc::clone(&leader.server));
        leader.requests();
        pass(600).await;
        let requests = leader.requests();
        let reads = requests.iter().filter(|m| **m == Method::GET).count();
        // One every two seconds would be 300.
        assert!((600 * 10 / 44..220).contains(&reads), "{reads} reads");
    }

    #[tokio::test(start_paused = true)]
    async fn the_lease_is_kept_with_requests_of_almost_five_seconds() {
        let leader = Candidate::leading().await;
        for latency in [0.1, 2.6, 4.9, 0.0, 4.9] {
            leader.set_latency(latency);
            pass(120).await;
            assert_eq!(*leader.led.borrow(), Leadership::Leading, "{latency} s");
        }
    }

    /// Conformance: API-160
    #[tokio::test(start_paused = true)]
    async fn the_deadline_counts_from_the_attempt_after_the_last_successful_renewal() {
        let mut leader = Candidate::leading().await;
        pass(21).await;
        let held = leader.server.lock().stored.unwrap();
        leader.set_latency(3600.0);
        leader.until(Leadership::Lost).await;
        assert_eq!(held.elapsed(), Duration::from_secs(12));
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_stops_before_another_may_lead() {
        let mut leader = Candidate::leading().await;
        leader.set_latency(4.9);
        pass(60).await;
        let mut follower = Candidate::start("b", Arc::clone(&leader.server));
        leader.set_latency(3600.0);
        leader.until(Leadership::Lost).await;
        let stored = leader.server.lock().stored.unwrap();
        assert!(stored.elapsed() < Duration::from_secs(14));
        leader.set_latency(0.0);
        follower.until(Leadership::Leading).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_in_between_costs_one_more_read_and_write() {
        let leader = Candidate::leading().await;
        pass(1).await;
        leader.requests();
        let touched = json!({"touched": "yes"});
        leader.touch(["metadata", "labels"], touched.clone());
        pass(4).await;
        let methods = [Method::PUT, Method::GET, Method::PUT, Method::PUT];
        assert_eq!(leader.requests(), methods);
        let lease = leader.lease();
        assert_eq!(lease["metadata"]["labels"], touched);
        assert_eq!(leader.slow.get(&["lease"]), 1.0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_another_holds_is_lost_at_once() {
        let mut leader = Candidate::leading().await;
        leader.touch(["spec", "holderIdentity"], "b".into());
        let taken = Instant::now();
        leader.until(Leadership::Lost).await;
        assert!(taken.elapsed() <= Duration::from_secs(2));
    }

    /// Conformance: API-160
    #[tokio::test(start_paused = true)]
    async fn a_stop_releases_the_lease() {
        let mut leader = Candidate::leading().await;
        leader.stop.cancel();
        leader.until(Leadership::Following).await;
        pass(1).await;
        let mut next = Candidate::start("b", Arc::clone(&leader.server));
        next.until(Leadership::Leading).await;
        let lease = next.lease();
        assert_eq!(lease["spec"]["leaseTransitions"], json!(1));
    }
}
