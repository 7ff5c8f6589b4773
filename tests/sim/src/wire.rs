//! The controllers' connection: it traces their requests, has them checked, and breaks when their process is killed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use karpenter_kube::clock::Clock;
use kube::client::Body;
use parking_lot::Mutex;
use tower::Service;

use crate::safety::Safety;

/// How many lines are kept for the report of a failure.
const KEPT: usize = 80;

/// The trace of a simulation, in order.
#[derive(Debug, Clone)]
pub struct Trace {
    clock: Clock,
    /// How many lines are kept.
    kept: usize,
    lines: Arc<Mutex<VecDeque<String>>>,
}

impl Trace {
    /// Creates an empty trace. One that `keeps` has every line and not only the last ones.
    pub fn new(clock: Clock, keeps: bool) -> Self {
        Self {
            clock,
            kept: if keeps { usize::MAX } else { KEPT },
            lines: Arc::default(),
        }
    }

    pub fn add(&self, what: &str) {
        let line = format!("{:.3} {what}", self.clock.now());
        let mut lines = self.lines.lock();
        if lines.len() == self.kept {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Returns the lines that are kept.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().iter().cloned().collect()
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
#[derive(Clone)]
pub struct Fuse(Arc<Mutex<Burning>>);

#[derive(Clone, Copy)]
struct Burning {
    /// Number of writes that get through.
    left: i64,
    last: LastWrite,
    lease_is_cut: bool,
}

impl Default for Fuse {
    /// Creates a fuse that never blows.
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Burning {
            left: i64::MAX,
            last: LastWrite::Unsent,
            lease_is_cut: false,
        })))
    }
}

impl Fuse {
    /// Lets `writes` more writes through, the last of which ends as `last` says.
    pub fn burn_after(&self, writes: i64, last: LastWrite) {
        let mut state = self.0.lock();
        (state.left, state.last) = (writes, last);
    }

    /// Lets no request through any more.
    pub fn blow(&self) {
        self.0.lock().left = 0;
    }

    /// Lets no request for a lease through any more.
    pub fn cut_lease(&self) {
        self.0.lock().lease_is_cut = true;
    }

    fn is_blown(&self) -> bool {
        self.0.lock().left <= 0
    }

    /// Returns an answer, unless the process was killed meanwhile.
    async fn passes<T>(&self, answer: T) -> T {
        if self.is_blown() {
            std::future::pending().await
        }
        answer
    }

    /// Counts a write; returns whether it gets through.
    fn burn(&self) -> bool {
        let mut state = self.0.lock();
        state.left -= 1;
        state.left > 0 || state.last == LastWrite::Unanswered
    }
}

/// The controllers' connection, which wraps the API server's service.
#[derive(Clone)]
pub struct Wire<S> {
    pub inner: S,
    pub trace: Trace,
    pub fuse: Fuse,
    pub safety: Arc<Safety>,
    /// Name of the replica, if several compete for the lease: only its holder may write.
    pub replica: Option<String>,
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
        if lease && self.fuse.0.lock().lease_is_cut {
            return Box::pin(std::future::pending());
        }
        // Events have no effect on the cluster.
        let writes = request.method() != Method::GET && !lease && !path.contains("/events");
        if writes && !self.fuse.burn() {
            return Box::pin(std::future::pending());
        }
        let method = request.method().clone();
        let answer = self.inner.call(request);
        let (trace, fuse, replica) = (self.trace.clone(), self.fuse.clone(), self.replica.clone());
        let safety = Arc::clone(&self.safety);
        Box::pin(async move {
            if !writes {
                let answer = answer.await;
                return fuse.passes(answer).await;
            }
            let before = safety.before(&method, &path).await;
            let answer = answer.await;
            if safety.is_runaway() {
                fuse.blow();
            }
            if let Some(replica) = replica {
                safety.after_write_of(&replica, short(&path)).await;
            }
            let status = answer.as_ref().map_or(0, |a| a.status().as_u16());
            trace.add(&format!("{method} {} {status}", short(&path)));
            if let Some(before) = before.filter(|_| (200..300).contains(&status)) {
                safety.after(&method, &path, &before);
            }
            fuse.passes(answer).await
        })
    }
}
