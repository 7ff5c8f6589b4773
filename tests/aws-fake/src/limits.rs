//! EC2's request rate limits: token buckets per action.
//!
//! UPSTREAM: kwok/ec2/ratelimiting models the same five classes. EC2 counts per account, region and action.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::wire::error::AwsError;

/// Size and refill rate of a token bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Tokens added per second.
    pub per_second: f64,
    /// Maximum number of tokens.
    pub burst: f64,
}

impl Rate {
    const fn new(per_second: f64, burst: f64) -> Self {
        Self { per_second, burst }
    }

    /// Returns EC2's default limit of an action.
    #[must_use]
    pub fn of_ec2(action: &str) -> Self {
        match action {
            "RunInstances" => Self::new(2.0, 5.0),
            "TerminateInstances" => Self::new(5.0, 100.0),
            "CreateTags" => Self::new(10.0, 100.0),
            a if a.starts_with("Describe") => Self::new(20.0, 100.0),
            _ => Self::new(5.0, 50.0),
        }
    }
}

/// The token buckets of one region.
#[derive(Debug, Default)]
pub(crate) struct Buckets(HashMap<String, (f64, Timestamp)>);

impl Buckets {
    /// Takes a token for `action`.
    pub(crate) fn take(
        &mut self,
        action: &str,
        rate: Rate,
        now: Timestamp,
        account: &str,
    ) -> Result<(), AwsError> {
        let (tokens, at) = self.0.entry(action.to_owned()).or_insert((rate.burst, now));
        let passed = now.duration_since(*at).as_secs_f64().max(0.0);
        *tokens = passed.mul_add(rate.per_second, *tokens).min(rate.burst);
        *at = now;
        if *tokens < 1.0 {
            return Err(AwsError::new(
                "RequestLimitExceeded",
                format!(
                    "Request limit exceeded. Account {account} has been throttled on ec2:{action} because it exceeded its request rate limit."
                ),
            ));
        }
        *tokens -= 1.0;
        Ok(())
    }
}
