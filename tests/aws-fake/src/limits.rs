//! EC2's request rate limits: token buckets per action.
//!
//! UPSTREAM: kwok/ec2/ratelimiting models the same five classes. EC2 counts per account, region and action.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::wire::error::AwsError;

/// Returns EC2's default limit of an action: tokens added per second, and the size of the bucket.
fn limit(action: &str) -> (f64, f64) {
    match action {
        "RunInstances" => (2.0, 5.0),
        "TerminateInstances" => (5.0, 100.0),
        "CreateTags" => (10.0, 100.0),
        a if a.starts_with("Describe") => (20.0, 100.0),
        _ => (5.0, 50.0),
    }
}

#[derive(Debug, Default)]
pub(crate) struct Buckets(HashMap<String, (f64, Timestamp)>);

impl Buckets {
    /// Takes a token for `action`.
    pub(crate) fn take(
        &mut self,
        action: &str,
        now: Timestamp,
        account: &str,
    ) -> Result<(), AwsError> {
        let (per_second, burst) = limit(action);
        let (tokens, at) = self.0.entry(action.to_owned()).or_insert((burst, now));
        let passed = now.duration_since(*at).as_secs_f64().max(0.0);
        *tokens = passed.mul_add(per_second, *tokens).min(burst);
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
