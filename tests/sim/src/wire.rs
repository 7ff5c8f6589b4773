//! The controllers' connection: it traces their requests, has them checked, and breaks when their process is killed.

use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use karpenter_kube::clock::Clock;
use karpenter_kube::controller::current_controller;
use kube::client::Body;
use parking_lot::Mutex;
use rustc_hash::FxHasher;
use tower::Service;

use crate::safety::Safety;

/// How many lines are kept for the report of a failure.
const KEPT: usize = 80;

/// The trace of a simulation, in order.
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
    /// Creates an empty trace. One that `keeps` has every line and not only the last ones.
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

    pub fn add(&self, what: &str) {
        let line = format!("{:.3} {what}", self.clock.now());
        let mut lines = self.state.lock();
        let mut hasher = FxHasher::default();
        hasher.write_u64(lines.digest);
        hasher.write(line.as_bytes());
        lines.digest = hasher.finish();
        lines.count += 1;
        if lines.last.len() == KEPT {
            lines.last.pop_front();
        }
        lines.last.push_back(line.clone());
        if let Some(all) = &mut lines.all {
            all.push(line);
        }
    }

    /// Returns the latest lines.
    #[must_use]
    pub fn last(&self) -> Vec<String> {
        self.state.lock().last.iter().cloned().collect()
    }

    /// Returns every line, if they are kept.
    #[must_use]
    pub fn all(&self) -> Vec<String> {
        self.state.lock().all.clone().unwrap_or_default()
    }

    /// Returns a hash of all lines in order, and their number.
    #[must_use]
    pub fn digest(&self) -> (u64, u64) {
        let lines = self.state.lock();
        (lines.digest, lines.count)
    }
}

/// The result of the last write before the process is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastWrite {
    /// The request never reaches the API server.
    Unsent,
    /// The API server applies it, and the answer is lost.
    Unanswered,
}

/// Ends a connection. Cheap to clone; clones share the state.
#[derive(Debug, Clone)]
pub struct Fuse {
    left: Arc<AtomicI64>,
    last: Arc<Mutex<LastWrite>>,
    lease_is_cut: Arc<AtomicBool>,
}

impl Default for Fuse {
    /// Creates a fuse that never blows.
    fn default() -> Self {
        Self {
            left: Arc::new(AtomicI64::new(i64::MAX)),
            last: Arc::new(Mutex::new(LastWrite::Unsent)),
            lease_is_cut: Arc::default(),
        }
    }
}

impl Fuse {
    /// Lets `writes` more writes through, the last of which ends as `last` says.
    pub fn burn_after(&self, writes: i64, last: LastWrite) {
        *self.last.lock() = last;
        self.left.store(writes, Ordering::SeqCst);
    }

    /// Lets no request through any more.
    pub fn blow(&self) {
        self.left.store(0, Ordering::SeqCst);
    }

    /// Lets no request for a lease through any more.
    pub fn cut_lease(&self) {
        self.lease_is_cut.store(true, Ordering::SeqCst);
    }

    /// Returns whether no request gets through any more.
    #[must_use]
    pub fn is_blown(&self) -> bool {
        self.left.load(Ordering::SeqCst) <= 0
    }
}

/// The controllers' connection, which wraps the API server's service.
#[derive(Clone)]
pub struct Wire<S> {
    inner: S,
    trace: Trace,
    fuse: Fuse,
    safety: Arc<Safety>,
    /// Name of the replica, if several compete for the lease.
    replica: Option<Arc<str>>,
}

impl<S> std::fmt::Debug for Wire<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

impl<S> Wire<S> {
    /// Creates a connection to `inner`.
    pub fn new(inner: S, trace: Trace, fuse: Fuse, safety: Arc<Safety>) -> Self {
        Self {
            inner,
            trace,
            fuse,
            safety,
            replica: None,
        }
    }

    /// Makes it the connection of one of several replicas, of which only the holder of the lease may write.
    #[must_use]
    pub fn of_replica(mut self, name: &str) -> Self {
        self.replica = Some(name.into());
        self
    }
}

/// Returns a path without its common prefix.
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
        // Events have no effect on the cluster.
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
        let unsent = *self.fuse.last.lock() == LastWrite::Unsent;
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
            // The task that waits for the answer runs this.
            let controller = current_controller();
            let before = safety.before(&method, &path, controller).await;
            let answer = answer.await;
            if safety.is_runaway() {
                fuse.blow();
            }
            if let Some(replica) = replica {
                safety.after_write_of(&replica, short(&path)).await;
            }
            let status = answer.as_ref().map_or(0, |a| a.status().as_u16());
            trace.add(&format!("{method} {} {status}", short(&path)));
            // A write whose answer a fault drops is answered 500 although it was applied.
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
