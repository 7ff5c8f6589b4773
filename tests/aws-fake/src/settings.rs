//! Settings that can be changed while the stand-in runs.

use std::collections::BTreeMap;
use std::time::Duration;

/// Settings of the stand-in. Durations are in seconds of its clock.
#[derive(Debug, Clone, PartialEq)]
pub struct AwsFakeSettings {
    /// Time from pending to running.
    pub pending_s: f64,
    /// Time from shutting-down to terminated.
    pub shutting_down_s: f64,
    /// How long EC2 does not see new instance profiles and role changes of profiles.
    pub iam_delay_s: f64,
    /// Maximum number of elements per page, for actions without an entry in `page_sizes`.
    pub page_size: usize,
    /// Maximum number of elements per page, by action.
    pub page_sizes: BTreeMap<String, usize>,
    /// Whether EC2's lists begin with an empty page.
    pub empty_pages: bool,
    /// Whether EC2's request rate limits apply.
    pub rate_limits: bool,
    /// Quota of on-demand vCPUs; unlimited if `None`.
    pub on_demand_vcpus: Option<u32>,
    /// Whether the service-linked role for spot exists.
    pub spot_role: bool,
    /// IAM actions that are denied, with `*` and `?`.
    pub denied: Vec<String>,
    /// ARNs of resources on which every action is denied, with `*` and `?`.
    pub denied_resources: Vec<String>,
    /// Whether the error about a missing capacity reservation omits its ID.
    pub nameless_errors: bool,
}

impl Default for AwsFakeSettings {
    fn default() -> Self {
        Self {
            pending_s: 5.0,
            shutting_down_s: 30.0,
            iam_delay_s: 0.0,
            page_size: 2,
            // Catalogs have thousands of rows: pages of two would be thousands of calls and exceed the rate limits.
            page_sizes: [
                ("DescribeInstanceTypes", 100),
                ("DescribeInstanceTypeOfferings", 1000),
                ("DescribeSpotPriceHistory", 1000),
                ("GetProducts", 100),
            ]
            .map(|(action, size)| (action.to_owned(), size))
            .into(),
            empty_pages: false,
            rate_limits: true,
            on_demand_vcpus: None,
            spot_role: true,
            denied: Vec::new(),
            denied_resources: Vec::new(),
            nameless_errors: false,
        }
    }
}

fn seconds(s: f64) -> Duration {
    Duration::try_from_secs_f64(s).unwrap_or_default()
}

impl AwsFakeSettings {
    pub(crate) fn pending(&self) -> Duration {
        seconds(self.pending_s)
    }

    pub(crate) fn shutting_down(&self) -> Duration {
        seconds(self.shutting_down_s)
    }

    pub(crate) fn iam_delay(&self) -> Duration {
        seconds(self.iam_delay_s)
    }

    pub(crate) fn page_size(&self, action: &str) -> usize {
        self.page_sizes
            .get(action)
            .copied()
            .unwrap_or(self.page_size)
            .max(1)
    }
}
