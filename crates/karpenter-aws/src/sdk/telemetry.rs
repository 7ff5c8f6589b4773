//! Metrics of calls: those of upstream's SDK and of its batchers.
//!
//! UPSTREAM: pkg/batcher/metrics.go

use std::time::Duration;

use karpenter_kube::metrics::{Counter, DURATION_BUCKETS, Gauge, Histogram, Registry};

/// Buckets of call durations, in seconds.
const DURATIONS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0,
];
/// Buckets of batch sizes, equal to upstream's so that its dashboards work.
const SIZES: [f64; 34] = [
    1.0, 2.0, 4.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0,
    125.0, 150.0, 175.0, 200.0, 225.0, 250.0, 275.0, 300.0, 350.0, 400.0, 450.0, 500.0, 550.0,
    600.0, 700.0, 800.0, 900.0, 1000.0,
];

/// Metrics of calls.
#[derive(Clone, Debug)]
pub struct Telemetry {
    requests: Counter,
    retries: Histogram,
    durations: Histogram,
    attempts: Counter,
    attempt_durations: Histogram,
    pub(crate) batch_time: Histogram,
    pub(crate) batch_size: Histogram,
    pub(crate) termination_failures: Counter,
    pub(crate) user_data: Gauge,
}

impl Telemetry {
    /// Registers the metrics in `registry`.
    #[must_use]
    pub fn new(registry: &Registry) -> Self {
        let call = &["service", "action"];
        let answered = &["service", "action", "status_code"];
        Self {
            requests: registry.counter(
                "aws_sdk_go_request_total",
                "The total number of AWS requests",
                answered,
            ),
            retries: registry.histogram(
                "aws_sdk_go_request_retry_count",
                "The number of times an AWS request was retried",
                call,
                &[0.0, 1.0, 2.0, 3.0, 5.0, 10.0],
            ),
            durations: registry.histogram(
                "aws_sdk_go_request_duration_seconds",
                "The duration of AWS requests with their retries, in seconds",
                call,
                &DURATIONS,
            ),
            attempts: registry.counter(
                "aws_sdk_go_request_attempt_total",
                "The total number of attempts of AWS requests",
                answered,
            ),
            attempt_durations: registry.histogram(
                "aws_sdk_go_request_attempt_duration_seconds",
                "The duration of one attempt of AWS requests, in seconds",
                call,
                &DURATIONS,
            ),
            batch_time: registry.histogram(
                "karpenter_cloudprovider_batcher_batch_time_seconds",
                "Duration of the batching window per batcher",
                &["batcher"],
                DURATION_BUCKETS,
            ),
            batch_size: registry.histogram(
                "karpenter_cloudprovider_batcher_batch_size",
                "Size of the request batch per batcher",
                &["batcher"],
                &SIZES,
            ),
            termination_failures: registry.counter(
                "karpenter_cloudprovider_instance_termination_failures_total",
                "Number of instances that could not be terminated, by zone",
                &["zone", "zone_id"],
            ),
            user_data: registry.gauge(
                "karpenter_ec2nodeclasses_userdata_bytes",
                "Size of the user data of an EC2NodeClass in bytes, of which EC2 takes 16384",
                &["nodeclass"],
            ),
        }
    }

    pub(crate) fn attempted(
        &self,
        service: &str,
        operation: &str,
        status: Option<u16>,
        took: Duration,
    ) {
        let status = status.map_or_else(|| "0".to_owned(), |s| s.to_string());
        self.attempts.inc(&[service, operation, &status]);
        self.attempt_durations
            .observe(&[service, operation], took.as_secs_f64());
    }

    pub(crate) fn done(
        &self,
        service: &str,
        operation: &str,
        status: Option<u16>,
        retries: u32,
        took: Duration,
    ) {
        let status = status.map_or_else(|| "0".to_owned(), |s| s.to_string());
        self.requests.inc(&[service, operation, &status]);
        self.retries
            .observe(&[service, operation], f64::from(retries));
        self.durations
            .observe(&[service, operation], took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: AWS-metrics-04
    #[test]
    fn the_batcher_s_buckets_are_upstream_s() {
        let registry = Registry::new();
        let telemetry = Telemetry::new(&registry);
        telemetry.batch_size.observe(&["create_fleet"], 3.0);
        telemetry.batch_time.observe(&["create_fleet"], 0.12);
        let rendered = registry.render();
        let bounds = |name: &str| -> Vec<f64> {
            let start = format!("karpenter_cloudprovider_batcher_{name}_bucket{{");
            let lines = rendered.lines().filter(|line| line.starts_with(&start));
            let bounds = lines.filter_map(|line| line.split("le=\"").nth(1)?.split('"').next());
            bounds
                .filter_map(|b| b.parse().ok())
                .filter(|b: &f64| b.is_finite())
                .collect()
        };
        let sizes = bounds("batch_size");
        assert_eq!((sizes.len(), sizes[3], sizes[33]), (34, 5.0, 1000.0));
        let times = bounds("batch_time_seconds");
        assert_eq!(times, DURATION_BUCKETS);
    }
}
