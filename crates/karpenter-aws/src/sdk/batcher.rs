//! Batching of requests into one call.
//!
//! The first request of a key opens a window. The window closes when no further request arrived for the idle time, when
//! it has been open for the maximum time, or when it is full; then its requests are sent as one call, and each caller
//! gets its own answer. A caller that needs time to prepare a request announces it, so that a window does not count as
//! idle while the processor is busy with the preparation.
//!
//! UPSTREAM: pkg/batcher/batcher.go

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;

use super::errors::AwsError;
use super::telemetry::Telemetry;

/// Maximum number of concurrent batches of one kind.
const PARALLEL: usize = 100;

/// When a batch is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// No further request arrived for this time, and none is announced.
    pub idle: Duration,
    /// The window has been open for this time.
    pub longest: Duration,
    /// The window has this many requests.
    pub items: usize,
}

/// Executes a batch: returns as many answers as requests, in their order. A missing answer becomes an error.
pub type Execute<K, I, O> =
    Arc<dyn Fn(K, Vec<I>) -> BoxFuture<'static, Vec<Result<O, AwsError>>> + Send + Sync>;

struct Bucket<I, O> {
    items: Vec<I>,
    answers: Vec<oneshot::Sender<Result<O, AwsError>>>,
    arrived: Arc<Notify>,
}

struct Shared<K, I, O> {
    name: &'static str,
    operation: &'static str,
    window: Window,
    telemetry: Telemetry,
    buckets: Mutex<HashMap<K, Bucket<I, O>>>,
    parallel: Semaphore,
    announced: Arc<AtomicUsize>,
    execute: Execute<K, I, O>,
}

/// A request is being prepared; open windows wait for it, within their maximum time, until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Announced(Arc<AtomicUsize>);

impl Drop for Announced {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Batches requests of one kind. Requests with the same key are sent together.
pub struct Batcher<K, I, O>(Arc<Shared<K, I, O>>);

impl<K, I, O> std::fmt::Debug for Batcher<K, I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Batcher").field(&self.0.name).finish()
    }
}

impl<K, I, O> Batcher<K, I, O>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    I: Send + 'static,
    O: Send + 'static,
{
    /// Creates a batcher called `name` in metrics, for `operation`.
    pub fn new(
        name: &'static str,
        operation: &'static str,
        window: Window,
        telemetry: Telemetry,
        execute: Execute<K, I, O>,
    ) -> Self {
        Self(Arc::new(Shared {
            name,
            operation,
            window,
            telemetry,
            buckets: Mutex::default(),
            parallel: Semaphore::new(PARALLEL),
            announced: Arc::default(),
            execute,
        }))
    }

    pub fn announce(&self) -> Announced {
        self.0.announced.fetch_add(1, Ordering::Relaxed);
        Announced(Arc::clone(&self.0.announced))
    }

    /// Executes `item` in a batch with others of the same key. It is executed even if the caller stops waiting.
    ///
    /// # Errors
    /// The error of the call.
    pub async fn run(&self, key: K, item: I) -> Result<O, AwsError> {
        let (sender, answer) = oneshot::channel();
        let opened = {
            let mut buckets = self.0.buckets.lock();
            match buckets.get_mut(&key) {
                Some(bucket) => {
                    bucket.items.push(item);
                    bucket.answers.push(sender);
                    bucket.arrived.notify_one();
                    None
                }
                None => {
                    let arrived = Arc::new(Notify::new());
                    let bucket = Bucket {
                        items: vec![item],
                        answers: vec![sender],
                        arrived: Arc::clone(&arrived),
                    };
                    buckets.insert(key.clone(), bucket);
                    Some(arrived)
                }
            }
        };
        if let Some(arrived) = opened {
            tokio::spawn(Arc::clone(&self.0).batch(key, arrived));
        }
        let operation = self.0.operation;
        answer
            .await
            .unwrap_or_else(|_| Err(AwsError::unreadable(operation, "the batch was dropped")))
    }
}

impl<K, I, O> Shared<K, I, O>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    I: Send + 'static,
    O: Send + 'static,
{
    async fn batch(self: Arc<Self>, key: K, arrived: Arc<Notify>) {
        let opened = Instant::now();
        let last = opened + self.window.longest;
        loop {
            let idle = tokio::time::sleep_until(last.min(Instant::now() + self.window.idle));
            let more = tokio::select! {
                () = idle => self.announced.load(Ordering::Relaxed) > 0,
                () = arrived.notified() => true,
            };
            let full = self
                .buckets
                .lock()
                .get(&key)
                .is_none_or(|bucket| bucket.items.len() >= self.window.items);
            if !more || full || Instant::now() >= last {
                break;
            }
        }
        let Some(bucket) = self.buckets.lock().remove(&key) else {
            return;
        };
        self.telemetry
            .batch_time
            .observe(&[self.name], opened.elapsed().as_secs_f64());
        self.telemetry
            .batch_size
            .observe(&[self.name], bucket.items.len() as f64);
        let _running = self.parallel.acquire().await;
        let mut results = (self.execute)(key, bucket.items).await.into_iter();
        for answer in bucket.answers {
            let result = results.next().unwrap_or_else(|| {
                Err(AwsError::unreadable(
                    self.operation,
                    "the batch has no answer for this request",
                ))
            });
            // A caller that stopped waiting does not need the answer.
            let _ = answer.send(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use karpenter_kube::metrics::Registry;

    use super::*;

    const WINDOW: Window = Window {
        idle: Duration::from_millis(35),
        longest: Duration::from_secs(1),
        items: 1000,
    };

    /// Creates a batcher that answers with the batch's size, and counts batches.
    fn counting(window: Window) -> (Batcher<u8, u32, (u32, usize)>, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let execute: Execute<u8, u32, (u32, usize)> = Arc::new(move |_, items| {
            counted.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                let n = items.len();
                items.into_iter().map(|i| Ok((i, n))).collect()
            })
        });
        let telemetry = Telemetry::new(&Registry::new());
        (
            Batcher::new("test", "Test", window, telemetry, execute),
            calls,
        )
    }

    /// Conformance: AWS-batcher-06
    #[tokio::test(start_paused = true)]
    async fn requests_of_one_key_are_sent_together_and_each_gets_its_answer() {
        let (batcher, calls) = counting(WINDOW);
        let results = join_all((0..20).map(|i| batcher.run(u8::from(i >= 10), i))).await;
        for (i, result) in results.into_iter().enumerate() {
            assert_eq!(result.unwrap(), (i as u32, 10));
        }
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }

    /// Conformance: AWS-batcher-04
    #[tokio::test(start_paused = true)]
    async fn a_window_closes_when_it_is_idle_old_or_full() {
        let (batcher, calls) = counting(WINDOW);
        let started = Instant::now();
        batcher.run(0, 0).await.unwrap();
        assert_eq!(started.elapsed(), WINDOW.idle);

        let started = Instant::now();
        let steadily = join_all((0..40).map(|i| {
            let batcher = &batcher;
            async move {
                tokio::time::sleep(Duration::from_millis(30) * i).await;
                batcher.run(0, i).await.unwrap().1
            }
        }));
        let sizes = steadily.await;
        assert!(sizes[0] < 40, "closed by the maximum time: {}", sizes[0]);
        assert!(started.elapsed() < Duration::from_secs(2));
        assert_eq!(calls.load(Ordering::Relaxed), 3);

        let (small, calls) = counting(Window { items: 5, ..WINDOW });
        let started = Instant::now();
        join_all((0..5).map(|i| small.run(0, i))).await;
        assert_eq!(started.elapsed(), Duration::ZERO);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    /// Conformance: AWS-batcher-05
    #[tokio::test(start_paused = true)]
    async fn a_hundred_batches_run_at_once() {
        let running = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let (now, peak) = (Arc::clone(&running), Arc::clone(&most));
        let execute: Execute<u32, (), ()> = Arc::new(move |_, items| {
            let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
            Box::pin(async move {
                let present = now.fetch_add(1, Ordering::Relaxed) + 1;
                peak.fetch_max(present, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(1)).await;
                now.fetch_sub(1, Ordering::Relaxed);
                items.into_iter().map(Ok).collect()
            })
        });
        let telemetry = Telemetry::new(&Registry::new());
        let batcher = Batcher::new("test", "Test", WINDOW, telemetry, execute);
        let all = join_all((0..150).map(|key| batcher.run(key, ()))).await;
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(most.load(Ordering::Relaxed), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_waits_for_announced_requests_within_its_maximum_time() {
        let (batcher, calls) = counting(WINDOW);
        let slowly = join_all((0..10).map(|i| {
            let batcher = &batcher;
            async move {
                let announced = batcher.announce();
                tokio::time::sleep(3 * WINDOW.idle * i).await;
                drop(announced);
                batcher.run(0, i).await.unwrap().1
            }
        }));
        assert_eq!(slowly.await, [10; 10]);
        assert_eq!(calls.load(Ordering::Relaxed), 1);

        let _never = batcher.announce();
        let started = Instant::now();
        batcher.run(0, 0).await.unwrap();
        assert_eq!(started.elapsed(), WINDOW.longest);
    }

    /// Conformance: AWS-batcher-06
    #[tokio::test(start_paused = true)]
    async fn a_missing_answer_is_an_error() {
        let execute: Execute<(), u32, u32> = Arc::new(|(), _| Box::pin(async { vec![Ok(1)] }));
        let telemetry = Telemetry::new(&Registry::new());
        let batcher = Batcher::new("test", "Test", WINDOW, telemetry, execute);
        let (first, second) = tokio::join!(batcher.run((), 1), batcher.run((), 2));
        assert_eq!(first, Ok(1));
        assert!(second.is_err());
    }
}
