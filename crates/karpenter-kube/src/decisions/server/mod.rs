//! The HTTP server on the loopback addresses.
//!
//! There is no authentication: a client that reaches the loopback of the pod may read. A browser on the same host must not become a
//! way in, so the `Host` header must name the loopback (a foreign page that rebinds its name is refused), and nothing is sent that
//! lets a foreign page read an answer.

mod answers;
mod bundle;
mod overview;
mod page;
mod plans;
mod query;
mod status;
mod stream;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use jiff::Timestamp;
use karpenter_core::schedule::Cancel;
use karpenter_decisions::shadow::ShadowReport;
use karpenter_listener::{Bodies, Connections, Listener};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::state::Decisions;
use crate::context::Context;
use crate::controller::compute;
use answers::Requests;
use plans::{BODIES, MAX_BODY};
use query::{Ask, Select, Subject, parse};
use status::{Body, Failure, json, with_body};

/// The maximum number of connections.
const CONNECTIONS: usize = 32;
/// The maximum number of event streams.
const STREAMS: usize = 8;
/// The maximum number of questions that are answered at the same time.
const QUESTIONS: usize = 8;
/// The maximum number of rehearsals, with those that wait.
const PLANS: usize = 3;
/// Time limit of the search for what blocks a pod or a node; an answer that is cut short is marked.
const TIMEOUT: Duration = Duration::from_millis(250);
/// Time limit of the search for the savings of all nodes.
const SEARCH_NODES: Duration = Duration::from_secs(1);

/// Returns the report of a shadow on what was compared since a time, at a time.
pub type ShadowReports = Box<dyn Fn(Option<Timestamp>, Timestamp) -> ShadowReport + Send + Sync>;

/// What all connections share.
struct Server {
    cx: Arc<Context>,
    decisions: Arc<Decisions>,
    shadow: Option<ShadowReports>,
    streams: Arc<Semaphore>,
    questions: Semaphore,
    search: Arc<Semaphore>,
    bundles: Arc<Semaphore>,
    /// The bodies of rehearsals.
    bodies: Bodies,
    /// Rehearsals: one is answered, the others wait.
    plans: Semaphore,
    plans_waiting: Semaphore,
}

/// Serves answers on the loopback addresses until `stop`. A port that is taken is a log line: answers are not worth a failed start.
pub async fn serve(
    cx: &Arc<Context>,
    decisions: &Arc<Decisions>,
    shadow: Option<ShadowReports>,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) {
    let port = cx.options.decisions_port;
    if port == 0 {
        return;
    }
    let server = Arc::new(Server {
        cx: Arc::clone(cx),
        decisions: Arc::clone(decisions),
        shadow,
        streams: Arc::new(Semaphore::new(STREAMS)),
        questions: Semaphore::new(QUESTIONS),
        search: Arc::new(Semaphore::new(1)),
        bundles: Arc::new(Semaphore::new(1)),
        bodies: Bodies::new(BODIES),
        plans: Semaphore::new(1),
        plans_waiting: Semaphore::new(PLANS),
    });
    let (feeding, until) = (Arc::clone(&server), stop.clone());
    tasks.spawn(async move {
        let decisions = &feeding.decisions;
        decisions.feed.run(&feeding.cx, decisions, until).await;
    });
    let (expiring, clock, until) = (Arc::clone(decisions), cx.clock, stop.clone());
    tasks.spawn(async move { expiring.compiled.expire(&clock, until).await });
    let (working, until) = (Arc::clone(decisions), stop.clone());
    tasks.spawn(async move { working.work(until).await });
    let connections = Connections::new(CONNECTIONS);
    let addresses: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    for address in addresses.map(|address| SocketAddr::from((address, port))) {
        match TcpListener::bind(address).await {
            Ok(socket) => {
                let mut listener = Listener::new(socket, connections.clone());
                // A stream lasts as long as its client reads it.
                listener.lifetime = Duration::MAX;
                let server = Arc::clone(&server);
                let respond = move |request| {
                    let server = Arc::clone(&server);
                    async move { server.respond(request).await }
                };
                tasks.spawn(listener.serve(respond, tasks.clone(), stop.clone()));
            }
            // Many pods have no IPv6.
            Err(error) if address.is_ipv6() => {
                tracing::debug!(logger = "decisions", %address, %error, "not serving decisions");
            }
            Err(error) => {
                tracing::info!(logger = "decisions", %address, %error, "not serving decisions");
            }
        }
    }
}

impl Server {
    async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        let answer = async {
            check_host(&request)?;
            self.answer(request).await
        };
        match answer.await {
            Ok(response) => response,
            Err(failure) => failure.response(),
        }
    }

    /// Answers a request that is meant for this server.
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
        // Also on a replica that does not lead: the page says which one does.
        if let Some(page) = page::file(&request) {
            return Ok(page);
        }
        let ask = check_method(&request)?;
        let decisions = self.decisions()?;
        if let Ask::Plan { timeout } = ask {
            // A body that does not arrive keeps no other one waiting.
            let (body, held) = plans::receive(&self.bodies, request).await?;
            let Ok(_waiting) = self.plans_waiting.try_acquire() else {
                return Err(Failure::busy("a rehearsal is being computed, and two wait"));
            };
            let Ok(_permit) = self.plans.acquire().await else {
                return Err(Failure::not_synced());
            };
            let asked = plans::parse(body).await?;
            drop(held);
            let plan = plans::answer(&self.cx, decisions, asked, timeout).await?;
            return Ok(json(StatusCode::OK, &plan));
        }
        if let Ask::Decisions(select) = &ask
            && select.watch
        {
            return self.watch(decisions, select);
        }
        if let Ask::Overview { watch } = ask {
            let current = decisions.feed.current(&self.cx, decisions).await?;
            if watch {
                let permit = self.stream_permit()?;
                let events = decisions.feed.stream(permit);
                let events = events.ok_or_else(Failure::not_synced)?;
                return Ok(event_stream(StreamBody::new(events).boxed_unsync()));
            }
            let zipped = page::takes_gzip(&request);
            let encode = move || {
                if zipped {
                    current.gzip()
                } else {
                    current.json()
                }
            };
            let bytes = compute("the overview", encode).await;
            let bytes = bytes.map_err(|error| Failure::internal(&error))?;
            let body = Full::new(bytes).boxed_unsync();
            let mut response = with_body(StatusCode::OK, "application/json", body);
            page::encoded(&mut response, zipped);
            return Ok(response);
        }
        if let Ask::Shadow { since } = ask {
            let report = self.shadow.as_ref().ok_or_else(Failure::no_shadow)?;
            let report = report(since, self.cx.clock.now());
            return Ok(json(StatusCode::OK, &report));
        }
        let Ok(_permit) = self.questions.acquire().await else {
            return Err(Failure::not_synced());
        };
        if let Ask::Blockers { namespace } = ask {
            let _search = self.search.acquire().await.ok();
            let report = decisions.doctor.report(&self.cx, namespace).await;
            let report = report.map_err(|error| Failure::internal(&error))?;
            return Ok(json(StatusCode::OK, &*report));
        }
        if let Ask::Bundle { last } = ask {
            let permit = Arc::clone(&self.bundles).try_acquire_owned();
            let permit = permit.map_err(|_| Failure::busy("another bundle is being sent"))?;
            // Before the search begins: the cloud may answer slowly, and other questions would wait.
            let refreshed = crate::provisioning::refresh_instance_types(&self.cx).await;
            refreshed.map_err(|error| Failure::internal(&error))?;
            let Ok(search) = Arc::clone(&self.search).acquire_owned().await else {
                return Err(Failure::not_synced());
            };
            let mut current = bundle::current(&self.cx, decisions);
            if let Some(last) = last {
                let since = self.cx.clock.now() - last;
                let passes = decisions.recorded_since(since);
                current.recording = passes.ok_or_else(Failure::no_flight_recorder)?;
            }
            let body = StreamBody::new(bundle::sent(current, search, permit)).boxed_unsync();
            return Ok(with_body(StatusCode::OK, "application/zstd", body));
        }
        let (view, now) = (self.cx.view(), self.cx.clock.now());
        decisions.record_launched_offerings(&view);
        let history = decisions.so_far();
        // One search at a time, so that questions never take more than one core from the controllers.
        let (_search, timeout) = match &ask {
            Ask::Explain {
                subject: Subject::Pod { .. } | Subject::Node(_),
                timeout,
                ..
            } => (self.search.acquire().await.ok(), timeout.unwrap_or(TIMEOUT)),
            Ask::NodesByReason => (self.search.acquire().await.ok(), SEARCH_NODES),
            _ => (None, TIMEOUT),
        };
        let began = Instant::now();
        let cancel: Cancel = Arc::new(move || began.elapsed() > timeout);
        let requests = Requests {
            disruption: decisions.disruption(now, Arc::clone(&cancel)),
            scheduling: decisions.policy(now),
            cancel,
            compiled: Arc::clone(&decisions.compiled) as _,
        };
        let answered = compute("the explanation", move || {
            answers::answer(&ask, &view, &history, requests, now)
        });
        let value = answered
            .await
            .map_err(|error| Failure::internal(&error))??;
        Ok(json(StatusCode::OK, &value))
    }

    /// Returns the decisions, if this replica leads and its model is in sync.
    fn decisions(&self) -> Result<&Decisions, Failure> {
        if self.cx.acting.since().is_none() {
            return Err(self.not_leading());
        }
        if !self.cx.view().is_synced() {
            return Err(Failure::not_synced());
        }
        Ok(&self.decisions)
    }

    /// Returns the refusal of a replica that does not lead.
    fn not_leading(&self) -> Failure {
        let holder = self.decisions.holder.load();
        // The identity begins with the name of the pod, and ends with a number of the process.
        let pod = holder.identity.rsplit_once('_').map(|(pod, _)| pod);
        Failure::not_leading(pod)
    }

    fn watch(&self, decisions: &Decisions, select: &Select) -> Result<Response<Body>, Failure> {
        let permit = self.stream_permit()?;
        // Both under the lock of the history: no record is missing, and none is sent twice.
        let history = decisions.history();
        let new = decisions.new.subscribe();
        let earlier: VecDeque<_> = match select.since {
            Some(_) => history.ring().iter().cloned().collect(),
            None => VecDeque::new(),
        };
        drop(history);
        let events = stream::events(select.clone(), earlier, new, permit);
        Ok(event_stream(StreamBody::new(events).boxed_unsync()))
    }

    fn stream_permit(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        permit.map_err(|_| Failure::too_many())
    }
}

fn event_stream(body: Body) -> Response<Body> {
    with_body(StatusCode::OK, "text/event-stream", body)
}

/// Checks that the request is meant for this server, and not for a foreign name that resolves to it.
fn check_host<B>(request: &Request<B>) -> Result<(), Failure> {
    let host = request
        .headers()
        .get(HOST)
        .and_then(|host| host.to_str().ok());
    let is_loopback = |host: &str| {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, port),
            _ => (host, ""),
        };
        matches!(name, "localhost" | "127.0.0.1" | "[::1]")
            && port.bytes().all(|byte| byte.is_ascii_digit())
    };
    if host.is_some_and(is_loopback) {
        Ok(())
    } else {
        Err(Failure::forbidden(
            "the host must be localhost, 127.0.0.1 or [::1]",
        ))
    }
}

/// Checks the method, and returns the question.
fn check_method<B>(request: &Request<B>) -> Result<Ask, Failure> {
    let (method, headers) = (request.method(), request.headers());
    let ask = || parse(request.uri().path(), request.uri().query());
    let is_plan = |ask: &Ask| matches!(ask, Ask::Plan { .. });
    if method == Method::GET || method == Method::HEAD {
        let ask = ask()?;
        return if is_plan(&ask) {
            Err(Failure::only_post())
        } else {
            Ok(ask)
        };
    }
    if method == Method::POST {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let media = text(CONTENT_TYPE).unwrap_or_default();
        let media = media.split(';').next().unwrap_or_default().trim();
        if !media.eq_ignore_ascii_case("application/json") {
            return Err(Failure::media_type());
        }
        let length = text(CONTENT_LENGTH).and_then(|length| length.parse::<usize>().ok());
        if length.is_some_and(|length| length > MAX_BODY) {
            return Err(Failure::too_large());
        }
        let ask = ask()?;
        if is_plan(&ask) {
            return Ok(ask);
        }
    }
    Err(Failure::method_not_allowed())
}
