//! The controllers' connection: it writes down what they do, has it checked, and breaks when their process is to die.

use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use karpenter_kube::clock::Clock;
use karpenter_kube::controller::current_controller;
use kube::client::Body;
use rustc_hash::FxHasher;
use tower::Service;

use crate::safety::Safety;

/// How many lines are kept to be shown when something is wrong.
const SHOWN: usize = 80;

/// What happened, in order.
#[derive(Debug, Clone)]
pub struct Trace {
    clock: Clock,
    state: Arc<Mutex<Lines>>,
}

#[derive(Debug, Default)]
struct Lines {
    last: VecDeque<String>,
    digest: u64,
    count: u64,
    all: Option<Vec<String>>,
}

impl Trace {
    /// An empty trace. One that `keeps` remembers every line and not only the last.
    #[must_use]
    pub fn new(clock: Clock, keeps: bool) -> Self {
        let lines = Lines {
            all: keeps.then(Vec::new),
            ..Lines::default()
        };
        Self {
            clock,
            state: Arc::new(Mutex::new(lines)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line.
    pub fn say(&self, what: &str) {
        let line = format!("{:.3} {what}", self.clock.now());
        let mut lines = self.lock();
        let mut hasher = FxHasher::default();
        hasher.write_u64(lines.digest);
        hasher.write(line.as_bytes());
        lines.digest = hasher.finish();
        lines.count += 1;
        if lines.last.len() == SHOWN {
            lines.last.pop_front();
        }
        lines.last.push_back(line.clone());
        if let Some(all) = &mut lines.all {
            all.push(line);
        }
    }

    /// The latest lines.
    #[must_use]
    pub fn last(&self) -> Vec<String> {
        self.lock().last.iter().cloned().collect()
    }

    /// Every line, if they are kept.
    #[must_use]
    pub fn all(&self) -> Vec<String> {
        self.lock().all.clone().unwrap_or_default()
    }

    /// A number that follows from all lines and their order, and how many they are.
    #[must_use]
    pub fn digest(&self) -> (u64, u64) {
        let lines = self.lock();
        (lines.digest, lines.count)
    }
}

/// What becomes of the last write before the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastWrite {
    /// It never reaches the server.
    Unsent,
    /// The server does it, and nobody learns.
    Unanswered,
}

/// How long a connection lasts. Cheap to clone; clones are the same fuse.
#[derive(Debug, Clone)]
pub struct Fuse {
    left: Arc<AtomicI64>,
    last: Arc<Mutex<LastWrite>>,
    lease_is_cut: Arc<AtomicBool>,
}

impl Default for Fuse {
    /// One that lasts.
    fn default() -> Self {
        Self {
            left: Arc::new(AtomicI64::new(i64::MAX)),
            last: Arc::new(Mutex::new(LastWrite::Unsent)),
            lease_is_cut: Arc::default(),
        }
    }
}

impl Fuse {
    /// Lets so many more writes through, the last of which has a fate of its own.
    pub fn burn_after(&self, writes: i64, last: LastWrite) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
        self.left.store(writes, Ordering::SeqCst);
    }

    /// Lets nothing through any more.
    pub fn blow(&self) {
        self.left.store(0, Ordering::SeqCst);
    }

    /// Lets nothing about leases through any more.
    pub fn cut_lease(&self) {
        self.lease_is_cut.store(true, Ordering::SeqCst);
    }

    /// Whether nothing gets through any more.
    #[must_use]
    pub fn is_blown(&self) -> bool {
        self.left.load(Ordering::SeqCst) <= 0
    }
}

/// The connection, around the server's service.
#[derive(Clone)]
pub struct Wire<S> {
    inner: S,
    trace: Trace,
    fuse: Fuse,
    safety: Arc<Safety>,
    /// Whose it is, if several compete for the lease.
    replica: Option<Arc<str>>,
}

impl<S> std::fmt::Debug for Wire<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

impl<S> Wire<S> {
    /// A connection to `inner`.
    pub fn new(inner: S, trace: Trace, fuse: Fuse, safety: Arc<Safety>) -> Self {
        Self {
            inner,
            trace,
            fuse,
            safety,
            replica: None,
        }
    }

    /// The connection of one of several replicas, of which only the holder of the lease may write.
    #[must_use]
    pub fn of_replica(mut self, name: &str) -> Self {
        self.replica = Some(name.into());
        self
    }
}

/// A path without what every path begins with.
fn short(path: &str) -> &str {
    path.strip_prefix("/api/v1/")
        .or_else(|| path.strip_prefix("/apis/"))
        .unwrap_or(path)
}

impl<S, B> Service<Request<Body>> for Wire<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if self.fuse.is_blown() {
            return Box::pin(std::future::pending());
        }
        let path = request.uri().path().to_owned();
        let lease = path.contains("/leases");
        if lease && self.fuse.lease_is_cut.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        // Events are told to people; nothing follows from them.
        let writes = request.method() != Method::GET && !lease && !path.contains("/events");
        if !writes {
            let (answer, fuse) = (self.inner.call(request), self.fuse.clone());
            return Box::pin(async move {
                let answer = answer.await;
                if fuse.is_blown() {
                    std::future::pending().await
                }
                answer
            });
        }
        let last = self.fuse.left.fetch_sub(1, Ordering::SeqCst) == 1;
        let unsent = *self
            .fuse
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            == LastWrite::Unsent;
        if last && unsent {
            return Box::pin(std::future::pending());
        }
        let method = request.method().clone();
        let answer = self.inner.call(request);
        let (trace, safety, fuse, replica) = (
            self.trace.clone(),
            Arc::clone(&self.safety),
            self.fuse.clone(),
            self.replica.clone(),
        );
        Box::pin(async move {
            // Whoever waits for the answer runs this.
            let controller = current_controller();
            let before = safety.before(&method, &path, controller).await;
            let answer = answer.await;
            if safety.runs_away() {
                fuse.blow();
            }
            if let Some(replica) = replica {
                safety.after_write_of(&replica, short(&path)).await;
            }
            let status = answer.as_ref().map_or(0, |a| a.status().as_u16());
            trace.say(&format!("{method} {} {status}", short(&path)));
            // A write whose answer a fault swallows is answered 500 and done all the same.
            safety
                .after(&method, &path, controller, status, before)
                .await;
            if fuse.is_blown() {
                std::future::pending().await
            }
            answer
        })
    }
}
