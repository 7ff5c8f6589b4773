//! Entry point of the stand-in: dispatch of requests, and the state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::sync::watch;

use crate::REGION;
use crate::calls::Call;
use crate::clock::Clock;
use crate::ec2::{Ec2, Ec2Call};
use crate::faults;
use crate::faults::Fault;
use crate::ids::Ids;
use crate::limits::Buckets;
use crate::services::eks::{Cluster, EksCall};
use crate::services::iam::{Iam, IamCall};
use crate::services::permissions::{Auth, Permission, Policy};
use crate::services::pricing::PricingCall;
use crate::services::sqs::{Outcome, Queues, SqsCall};
use crate::services::ssm::{Ssm, SsmCall};
use crate::services::sts;
use crate::settings::AwsFakeSettings;
use crate::wire::error::AwsError;
use crate::wire::{Incoming, Reply};

/// A stand-in for the AWS services that Karpenter calls. Cheap to clone; clones share the state.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use karpenter_aws_fake::AwsFake;
///
/// let aws = AwsFake::builder().build();
/// let request = http::Request::post("/").body("Action=DescribeInstances&Version=2016-11-15".into()).unwrap();
/// let answer = aws.handle(request).await.unwrap();
/// assert_eq!(answer.status(), 200);
/// assert_eq!(aws.calls()[0].action, "DescribeInstances");
/// # });
/// ```
#[derive(Debug, Clone)]
pub struct AwsFake {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) clock: Clock,
    pub(crate) state: Mutex<AwsState>,
    /// Incremented whenever the state may have changed.
    pub(crate) changes: watch::Sender<u64>,
}

#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) ec2: Ec2,
    pub(crate) ssm: Ssm,
    pub(crate) queues: Queues,
    /// Name of the queue that receives interruption events.
    pub(crate) interruption_queue: Option<String>,
    pub(crate) clusters: BTreeMap<String, Cluster>,
    pub(crate) buckets: Buckets,
}

#[derive(Debug)]
pub(crate) struct AwsState {
    pub(crate) account: String,
    pub(crate) caller: String,
    pub(crate) region: Region,
    pub(crate) iam: Iam,
    pub(crate) ids: Ids,
    pub(crate) settings: AwsFakeSettings,
    pub(crate) faults: Vec<Fault>,
    pub(crate) policy: Option<Policy>,
    pub(crate) calls: Vec<Call>,
}

/// The connection was lost before a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("connection lost before a response")]
pub struct ConnectionLost;

/// Outcome of a call after access to the state.
enum Step {
    Answer(Response<Bytes>),
    Lost,
    Wait(Duration),
}

impl AwsFake {
    /// Handles an HTTP request to any of the services.
    ///
    /// # Errors
    /// If a fault drops the connection.
    pub async fn handle(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ConnectionLost> {
        let clock = &self.inner.clock;
        let incoming = match Incoming::read(&request) {
            Some(incoming) => incoming,
            None => return Ok(self.elsewhere(&request)),
        };
        let endpoint = endpoint_of(&request);
        let mut deadline: Option<Timestamp> = None;
        loop {
            let mut changes = self.inner.changes.subscribe();
            let now = clock.now();
            let waited = deadline.is_some_and(|at| now >= at);
            let step = {
                let mut state = self.state();
                state.step(&incoming, &endpoint, now, deadline.is_some(), waited)
            };
            // A call that changes the state wakes the long polls of others; a poll changes nothing.
            if !matches!(step, Step::Wait(_)) && incoming.action != "ReceiveMessage" {
                self.inner.changes.send_modify(|n| *n += 1);
            }
            match step {
                Step::Answer(response) => return Ok(response),
                Step::Lost => return Err(ConnectionLost),
                Step::Wait(longest) => {
                    let until = *deadline.get_or_insert_with(|| crate::clock::later(now, longest));
                    let next = self.state().next_change(now).filter(|at| *at < until);
                    let left = next.unwrap_or(until).duration_since(now);
                    let left = Duration::try_from(left).unwrap_or_default();
                    tokio::select! {
                        () = clock.sleep(left) => {}
                        _ = changes.changed() => {}
                    }
                }
            }
        }
    }

    /// Handles the admin endpoint and unknown paths.
    fn elsewhere(&self, request: &Request<Bytes>) -> Response<Bytes> {
        if request.uri().path() == "/_admin" {
            return self.admin(request);
        }
        let error = AwsError {
            status: 404,
            ..AwsError::new(
                "UnknownOperationException",
                "the request has no action of a known service",
            )
        };
        let incoming = Incoming {
            protocol: crate::wire::error::Protocol::Ec2,
            service: "ec2",
            action: String::new(),
            region: None,
            user_agent: String::new(),
            text: String::new(),
            params: Ok(Value::Null),
        };
        let id = self.state().ids.uuid();
        incoming.respond(&Err(error), &id)
    }

    /// Locks the state. A panic in another thread (of a test) does not make it unavailable.
    pub(crate) fn state(&self) -> MutexGuard<'_, AwsState> {
        self.inner.state.lock()
    }

    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Applies all due transitions, and locks the state.
    pub(crate) fn current(&self) -> MutexGuard<'_, AwsState> {
        let now = self.inner.clock.now();
        let mut state = self.state();
        state.apply_due(now);
        state
    }

    /// Wakes tasks that wait for a change of the state.
    pub(crate) fn changed(&self) {
        self.inner.changes.send_modify(|n| *n += 1);
    }

    /// Applies transitions when they are due, also without requests. Long polls and [`AwsFake::changes`] are woken.
    ///
    /// The HTTP server runs it; in-process users spawn it if they wait for changes. It never ends.
    pub async fn run(&self) {
        let mut changes = self.inner.changes.subscribe();
        loop {
            let now = self.inner.clock.now();
            let (events, next) = {
                let mut state = self.state();
                let events = state.apply_due(now);
                (events, state.next_change(now))
            };
            if events {
                self.changed();
                changes.mark_unchanged();
            }
            let left = next.and_then(|at| Duration::try_from(at.duration_since(now)).ok());
            tokio::select! {
                () = self.inner.clock.sleep(left.unwrap_or(Duration::from_secs(3600))) => {}
                _ = changes.changed() => {}
            }
        }
    }

    /// Returns a number that increases whenever the state may have changed; wait for it instead of polling.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changes.subscribe()
    }
}

/// Returns `http://host:port` as the client addressed it.
fn endpoint_of(request: &Request<Bytes>) -> String {
    let host = request
        .headers()
        .get(http::header::HOST)
        .and_then(|h| h.to_str().ok())
        .unwrap_or("sqs.local");
    format!("http://{host}")
}

impl AwsState {
    /// Applies all transitions that are due at `now`, and delivers events. Returns whether any event was delivered.
    pub(crate) fn apply_due(&mut self, now: Timestamp) -> bool {
        let shutting_down = self.settings.shutting_down();
        let mut any = false;
        let region = &mut self.region;
        region.ec2.apply_due(now, shutting_down);
        for event in region.ec2.outbox.drain(..) {
            any = true;
            let queue = region.interruption_queue.as_ref();
            if let Some(queue) = queue.and_then(|name| region.queues.0.get_mut(name)) {
                queue.send(event, now, &mut self.ids);
            }
        }
        any
    }

    /// Returns the time of the next scheduled transition.
    pub(crate) fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let Region { ec2, queues, .. } = &self.region;
        [ec2.instances.next_due(), ec2.next_reservation_change(now)]
            .into_iter()
            .chain(queues.0.values().map(|q| q.next_visible(now)))
            .flatten()
            .min()
    }

    fn step(
        &mut self,
        incoming: &Incoming,
        endpoint: &str,
        now: Timestamp,
        again: bool,
        waited: bool,
    ) -> Step {
        self.apply_due(now);
        // A resumed long poll has passed its faults and limits already.
        let fault = if again {
            None
        } else {
            faults::take(&mut self.faults, incoming)
        };
        let request_id = self.ids.uuid();
        let (outcome, permissions) = match fault.as_ref().and_then(Fault::as_error) {
            Some(error) => (Err(error), vec![]),
            None => self.perform(incoming, endpoint, now, again, waited),
        };
        self.apply_due(now);
        let outcome = match outcome {
            Ok(Outcome::Wait(longest)) => return Step::Wait(longest),
            Ok(Outcome::Done(reply)) => Ok(reply),
            Err(error) => Err(error),
        };
        let code = outcome.as_ref().err().map(|e| e.code.as_str());
        self.record(incoming, now, code, permissions);
        if fault.is_some_and(|fault| fault.loses_answer) {
            return Step::Lost;
        }
        Step::Answer(incoming.respond(&outcome, &request_id))
    }

    fn record(
        &mut self,
        incoming: &Incoming,
        now: Timestamp,
        error: Option<&str>,
        permissions: Vec<Permission>,
    ) {
        self.calls.push(Call {
            at: now,
            service: incoming.service.to_owned(),
            action: incoming.action.clone(),
            params: incoming.params.clone().unwrap_or(Value::Null),
            error: error.map(str::to_owned),
            permissions,
            user_agent: incoming.user_agent.clone(),
        });
    }

    /// Executes a call; also returns the permissions it needs.
    fn perform(
        &mut self,
        incoming: &Incoming,
        endpoint: &str,
        now: Timestamp,
        again: bool,
        waited: bool,
    ) -> (Result<Outcome, AwsError>, Vec<Permission>) {
        let params = match &incoming.params {
            Ok(params) => params,
            Err(error) => return (Err(error.clone()), vec![]),
        };
        let action = incoming.action.clone();
        let Self {
            account,
            caller,
            region,
            iam,
            ids,
            settings,
            policy,
            ..
        } = self;
        let region_name = incoming.region.as_deref().unwrap_or(REGION);
        let auth = Auth {
            needed: vec![],
            policy: policy.as_ref(),
            denied: &settings.denied,
            denied_resources: &settings.denied_resources,
            service: incoming.service,
            caller,
            region: region_name,
        };
        let done = |r: Result<Reply, AwsError>| r.map(Outcome::Done);
        // Global services ignore the region.
        match incoming.service {
            "iam" => {
                let mut call = IamCall {
                    action,
                    now,
                    account,
                    iam,
                    ids,
                    settings,
                    auth,
                };
                return (done(call.run(params)), call.auth.needed);
            }
            "sts" => {
                let reply = sts::run(&action, params, account, ids, now);
                return (done(reply), vec![]);
            }
            "pricing" => {
                let mut call = PricingCall {
                    action,
                    now,
                    endpoint_region: incoming.region.as_deref(),
                    catalog: &region.ec2.catalog,
                    settings,
                    auth,
                };
                return (done(call.run(params)), call.auth.needed);
            }
            _ => {}
        }
        if region_name != REGION {
            let error = AwsError::new(
                "AuthFailure",
                format!(
                    "AWS was not able to validate the provided access credentials: region {region_name} is not enabled"
                ),
            );
            return (Err(error), vec![]);
        }
        match incoming.service {
            "ec2" => {
                if settings.rate_limits
                    && let Err(error) = region.buckets.take(&action, now, account)
                {
                    return (Err(error), vec![]);
                }
                let mut call = Ec2Call {
                    action,
                    now,
                    ec2: &mut region.ec2,
                    iam,
                    ids,
                    settings,
                    auth,
                };
                (done(call.run(params)), call.auth.needed)
            }
            "ssm" => {
                let mut call = SsmCall {
                    action,
                    account,
                    ssm: &region.ssm,
                    auth,
                };
                (done(call.run(params)), call.auth.needed)
            }
            "sqs" => {
                let mut call = SqsCall {
                    action,
                    now,
                    account,
                    endpoint,
                    queues: &mut region.queues,
                    ids,
                    auth,
                };
                (call.run(params, waited && again), call.auth.needed)
            }
            _ => {
                let mut call = EksCall {
                    action,
                    now,
                    account,
                    clusters: &region.clusters,
                    auth,
                };
                (done(call.run(params)), call.auth.needed)
            }
        }
    }
}
