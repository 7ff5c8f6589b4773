//! Clients of the API server: rate limited by upstream's flags, and a client that never retries. How they change objects is in
//! [`patch`], [`delete`] and [`writes`].
//!
//! kube's default client retries 429, 503 and 504 up to fifteen times. The API server answers an eviction that violates a
//! PodDisruptionBudget with 429, so evictions (and other requests with their own back-off) use [`Clients::no_retry`].

pub mod delete;
pub mod patch;
#[cfg(feature = "decisions")]
pub mod refusal;
pub mod writes;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use kube::client::Body;
use kube::{Client, Config};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::layer::util::Stack;
use tower::{Layer, Service};

use crate::metrics::{Counting, Registry};

/// The clients of the operator. Cheap to clone.
#[derive(Clone)]
pub struct Clients {
    /// For requests that may be retried.
    pub api: Client,
    /// For evictions and other requests with their own back-off.
    pub no_retry: Client,
    /// For the lease, without a rate limit: it is renewed in time under any load.
    pub lease: Client,
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clients")
    }
}

impl From<Client> for Clients {
    /// Uses one client for all requests; suits clients that do not retry, such as those of an in-process server.
    fn from(client: Client) -> Self {
        Self {
            api: client.clone(),
            no_retry: client.clone(),
            lease: client,
        }
    }
}

impl Clients {
    /// Creates clients for a cluster, limited together to `qps` requests per second with bursts of `burst`, except for the
    /// lease. Requests are counted in `registry`.
    ///
    /// # Errors
    /// When TLS or authentication cannot be set up from `config`.
    pub fn connect(
        config: &Config,
        qps: u32,
        burst: u32,
        registry: &Registry,
    ) -> Result<Self, kube::Error> {
        let counting = Counting::new(registry);
        let limit = RateLimit::new(qps, burst);
        let builder = |retry: bool| {
            let mut config = config.clone();
            config.default_retry = retry;
            kube::client::ClientBuilder::try_from(config)
        };
        let limited = || limited(&counting, &limit, in_flight(qps));
        Ok(Self {
            api: builder(true)?.with_layer(&limited()).build(),
            no_retry: builder(false)?.with_layer(&limited()).build(),
            lease: builder(false)?.with_layer(&counting).build(),
        })
    }
}

/// Returns how many requests of a client may wait for their response at once: as many as `qps` needs if the API server takes half a
/// second for each.
///
/// kube's client speaks HTTP/1.1, where each of them has a connection of its own, of 40 KiB. A thousand reconciliations at once
/// would open a thousand.
fn in_flight(qps: u32) -> usize {
    usize::try_from(qps / 2).unwrap_or(usize::MAX).max(100)
}

/// Waits for the limits before the request is timed: the metric measures the API server.
fn limited(counting: &Counting, limit: &RateLimit, in_flight: usize) -> Stack<Counting, Limits> {
    let limits = Limits {
        rate: limit.clone(),
        in_flight: Arc::new(Semaphore::new(in_flight.min(Semaphore::MAX_PERMITS))),
    };
    Stack::new(counting.clone(), limits)
}

/// A token bucket shared by all clones.
#[derive(Debug, Clone)]
pub struct RateLimit {
    bucket: Arc<Mutex<Bucket>>,
}

impl RateLimit {
    /// Creates a full bucket of `burst` tokens that is refilled with `qps` tokens per second.
    #[must_use]
    pub fn new(qps: u32, burst: u32) -> Self {
        Self {
            bucket: Arc::new(Mutex::new(Bucket::new(
                f64::from(qps.max(1)),
                f64::from(burst.max(1)),
            ))),
        }
    }

    /// Creates a full bucket of `burst` tokens that is refilled with one token per `period`.
    #[must_use]
    pub fn every(period: Duration, burst: u32) -> Self {
        let rate = 1.0 / period.as_secs_f64().max(f64::MIN_POSITIVE);
        Self {
            bucket: Arc::new(Mutex::new(Bucket::new(rate, f64::from(burst.max(1))))),
        }
    }

    /// Returns whether the bucket has all its tokens.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let mut bucket = self.bucket.lock();
        bucket.refill(Instant::now());
        bucket.tokens >= bucket.burst
    }

    /// Takes a token; waits until there is one.
    pub async fn acquire(&self) {
        let wait = self.bucket.lock().reserve(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Takes a token if there is one; returns whether there was.
    #[must_use]
    pub fn try_acquire(&self) -> bool {
        self.bucket.lock().take(Instant::now())
    }
}

/// The limits of a client.
#[derive(Debug, Clone)]
struct Limits {
    rate: RateLimit,
    /// A permit for each request without a response. A watch has its response once it is open.
    in_flight: Arc<Semaphore>,
}

impl<S> Layer<S> for Limits {
    type Service = Limited<S>;
    fn layer(&self, inner: S) -> Self::Service {
        Limited {
            inner,
            limits: self.clone(),
        }
    }
}

/// A service that waits for its limits before each request.
#[derive(Debug, Clone)]
struct Limited<S> {
    inner: S,
    limits: Limits,
}

impl<S> Service<http::Request<Body>> for Limited<S>
where
    S: Service<http::Request<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        // The inner future is lazy: nothing is sent before it is polled, so the wait comes first.
        let response = self.inner.call(request);
        let limits = self.limits.clone();
        Box::pin(async move {
            limits.rate.acquire().await;
            // The semaphore is never closed.
            let _permit = limits.in_flight.acquire().await;
            response.await
        })
    }
}

#[derive(Debug)]
struct Bucket {
    rate: f64,
    burst: f64,
    tokens: f64,
    updated: Instant,
}

impl Bucket {
    fn new(rate: f64, burst: f64) -> Self {
        Self {
            rate,
            burst,
            tokens: burst,
            updated: Instant::now(),
        }
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.updated).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate).min(self.burst);
        self.updated = now;
    }

    /// Takes a token, going into debt, and returns how long to wait for it.
    fn reserve(&mut self, now: Instant) -> Duration {
        self.refill(now);
        self.tokens -= 1.0;
        if self.tokens >= 0.0 {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(-self.tokens / self.rate)
        }
    }

    fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let there = self.tokens >= 1.0;
        if there {
            self.tokens -= 1.0;
        }
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_the_rate_limit_is_not_part_of_the_request_duration() {
        let registry = Registry::new();
        let answering = tower::service_fn(|_: http::Request<Body>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(()))
        });
        let layers = limited(&Counting::new(&registry), &RateLimit::new(1, 1), 1);
        let (mut service, start) = (layers.layer(answering), Instant::now());
        for _ in 0..3 {
            let request = http::Request::get("/api/v1/nodes").body(Body::empty());
            service.call(request.unwrap()).await.unwrap();
        }
        assert!(start.elapsed() >= Duration::from_secs(2));
        let text = registry.render();
        let name = "client_go_request_duration_seconds";
        let series = r#"{verb="LIST",group="",version="v1",kind="nodes",subresource=""}"#;
        for line in [
            format!("{name}_count{series} 3"),
            format!("{name}_sum{series} 0"),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in {text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_beyond_those_in_flight_wait_for_a_response() {
        let (sent, most) = (Arc::new(Semaphore::new(0)), 3);
        let answers = Arc::new(Semaphore::new(0));
        let (count, answer) = (Arc::clone(&sent), Arc::clone(&answers));
        let server = tower::service_fn(move |_: http::Request<Body>| {
            let (count, answer) = (Arc::clone(&count), Arc::clone(&answer));
            async move {
                count.add_permits(1);
                answer.acquire().await.unwrap().forget();
                Ok::<_, std::convert::Infallible>(http::Response::new(()))
            }
        });
        let counting = Counting::new(&Registry::new());
        let mut service = limited(&counting, &RateLimit::new(100, 100), most).layer(server);
        for _ in 0..5 {
            let request = http::Request::get("/api/v1/nodes").body(Body::empty());
            tokio::spawn(service.call(request.unwrap()));
        }
        let settled = || tokio::time::sleep(Duration::from_secs(1));
        settled().await;
        assert_eq!(sent.available_permits(), most);
        answers.add_permits(1);
        settled().await;
        assert_eq!(sent.available_permits(), most + 1);
        answers.add_permits(4);
        settled().await;
        assert_eq!(sent.available_permits(), 5);
    }

    #[test]
    fn the_rate_is_reached_while_responses_take_half_a_second() {
        assert_eq!(in_flight(200), 100);
        assert_eq!(in_flight(5_000), 2_500);
        assert_eq!(in_flight(1), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_further_requests_wait() {
        let limit = RateLimit::new(10, 3);
        let start = Instant::now();
        for _ in 0..3 {
            limit.acquire().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        limit.acquire().await;
        limit.acquire().await;
        assert!(start.elapsed() >= Duration::from_millis(199));
        assert!(!limit.try_acquire());
    }
}
