//! How the services are reached, and how one call is made: paced, retried, counted, and with an error that says what it means.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;
use aws_types::app_name::AppName;
use aws_types::region::Region;
use karpenter_kube::metrics::Registry;
use tokio::time::Instant;

use super::errors::AwsError;
use super::pacing::{Outcome, Pacing};
use super::telemetry::Telemetry;

/// One attempt may take that long; a long poll of SQS takes 20 seconds of it.
const ATTEMPT: Duration = Duration::from_secs(45);
/// How often a call that AWS throttles is made, spread over about half a minute by the back-off.
const THROTTLED_ATTEMPTS: u32 = 8;
/// How often a call that nobody answers is made.
const FAILED_ATTEMPTS: u32 = 3;
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// A service of AWS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Machines, networks, images.
    Ec2,
    /// The cluster.
    Eks,
    /// Roles and instance profiles.
    Iam,
    /// The price list.
    Pricing,
    /// The interruption queue.
    Sqs,
    /// Parameters that name images.
    Ssm,
    /// Zones that traffic is shifted away from.
    ZonalShift,
}

impl Service {
    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ec2 => "EC2",
            Self::Eks => "EKS",
            Self::Iam => "IAM",
            Self::Pricing => "Pricing",
            Self::Sqs => "SQS",
            Self::Ssm => "SSM",
            Self::ZonalShift => "ARC Zonal Shift",
        }
    }
}

/// How to connect. The default takes everything from the environment, as the SDK does.
#[derive(Clone, Debug)]
pub struct Connect {
    /// The region; otherwise the environment's, the profile's or the instance's.
    pub region: Option<String>,
    /// Where all services are, instead of AWS's endpoints.
    pub endpoint: Option<String>,
    /// Access key and secret, instead of the chain of providers.
    pub credentials: Option<(String, String)>,
    /// The first pause before a call is repeated.
    pub pause: Duration,
    /// Where calls are counted.
    pub registry: Registry,
}

impl Default for Connect {
    fn default() -> Self {
        Self {
            region: None,
            endpoint: None,
            credentials: None,
            pause: Duration::from_millis(100),
            registry: Registry::new(),
        }
    }
}

/// The region is known from nowhere.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no AWS region: set AWS_REGION, or let the pod reach the instance metadata service")]
pub struct NoRegion;

struct Inner {
    ec2: aws_sdk_ec2::Client,
    eks: aws_sdk_eks::Client,
    iam: aws_sdk_iam::Client,
    pricing: aws_sdk_pricing::Client,
    sqs: aws_sdk_sqs::Client,
    ssm: aws_sdk_ssm::Client,
    zonal_shift: aws_sdk_arczonalshift::Client,
    region: String,
    pause: Duration,
    pacing: Pacing,
    telemetry: Telemetry,
}

/// The services of one region. Cheap to clone; clones share pace and counters.
///
/// Calls go through [`Aws::ec2`] and its siblings, which repeat what is worth repeating: the SDK's own retries are off, as
/// they know nothing of each other.
#[derive(Clone)]
pub struct Aws(Arc<Inner>);

impl std::fmt::Debug for Aws {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aws")
            .field("region", &self.0.region)
            .finish_non_exhaustive()
    }
}

/// The region whose endpoint has the price list of `region`.
fn pricing_region(region: &str) -> &'static str {
    match region.split('-').next().unwrap_or_default() {
        "ap" => "ap-south-1",
        "eu" => "eu-central-1",
        "cn" => "cn-northwest-1",
        _ => "us-east-1",
    }
}

impl Aws {
    /// Connects. Nothing is sent yet, but the region may be asked from the instance metadata service.
    ///
    /// # Errors
    /// When the region is not known.
    pub async fn connect(how: &Connect) -> Result<Self, NoRegion> {
        let timeouts = TimeoutConfig::builder()
            .operation_attempt_timeout(ATTEMPT)
            .build();
        let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts);
        if let Ok(name) = AppName::new(concat!("karpenter.sh-", env!("CARGO_PKG_VERSION"))) {
            loader = loader.app_name(name);
        }
        if let Some(region) = &how.region {
            loader = loader.region(Region::new(region.clone()));
        }
        if let Some(endpoint) = &how.endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        if let Some((key, secret)) = &how.credentials {
            let credentials =
                aws_sdk_ec2::config::Credentials::new(key, secret, None, None, "karpenter");
            loader = loader.credentials_provider(credentials);
        }
        let config = loader.load().await;
        let region = config.region().ok_or(NoRegion)?.to_string();
        let pricing = aws_sdk_pricing::config::Builder::from(&config)
            .region(Region::new(pricing_region(&region)));
        Ok(Self(Arc::new(Inner {
            ec2: aws_sdk_ec2::Client::new(&config),
            eks: aws_sdk_eks::Client::new(&config),
            iam: aws_sdk_iam::Client::new(&config),
            pricing: aws_sdk_pricing::Client::from_conf(pricing.build()),
            sqs: aws_sdk_sqs::Client::new(&config),
            ssm: aws_sdk_ssm::Client::new(&config),
            zonal_shift: aws_sdk_arczonalshift::Client::new(&config),
            region,
            pause: how.pause,
            pacing: Pacing::default(),
            telemetry: Telemetry::new(&how.registry),
        })))
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.0.region
    }

    /// Calls a second that `operation` is held to since AWS complained, if it has lately.
    #[must_use]
    pub fn pace(&self, operation: &str) -> Option<f64> {
        self.0.pacing.rate(operation)
    }

    /// The counters of calls.
    #[must_use]
    pub fn telemetry(&self) -> &Telemetry {
        &self.0.telemetry
    }

    /// Makes a call once, whatever becomes of it, for trials whose refusal is the answer.
    ///
    /// # Errors
    /// The call's.
    pub async fn ec2_once<T, E, F>(
        &self,
        operation: &'static str,
        send: impl FnOnce(&aws_sdk_ec2::Client) -> F + Send,
    ) -> Result<T, AwsError>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send,
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let inner = &self.0;
        let service = Service::Ec2.name();
        if inner.pacing.admit(service, operation).await.is_err() {
            return Err(AwsError::circuit_open(operation, service));
        }
        let started = Instant::now();
        let result = inner
            .attempt(Service::Ec2, operation, Box::pin(send(&inner.ec2)))
            .await;
        let status = result.as_ref().map_or_else(|e| e.status, |_| Some(200));
        inner
            .telemetry
            .done(service, operation, status, 0, started.elapsed());
        result
    }
}

/// One method a service: `aws.ec2("DescribeSubnets", |ec2| ec2.describe_subnets().send())`.
macro_rules! services {
    ($($(#[$doc:meta])* $name:ident: $client:ty, $service:ident;)*) => {
        impl Aws {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// The last attempt's.
                pub async fn $name<T, E, F>(
                    &self,
                    operation: &'static str,
                    send: impl Fn(&$client) -> F + Send + Sync,
                ) -> Result<T, AwsError>
                where
                    T: Send,
                    F: Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send,
                    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
                {
                    self.0.call(Service::$service, operation, || send(&self.0.$name)).await
                }
            )*
        }
    };
}

services! {
    /// Calls EC2.
    ec2: aws_sdk_ec2::Client, Ec2;
    /// Calls EKS.
    eks: aws_sdk_eks::Client, Eks;
    /// Calls IAM.
    iam: aws_sdk_iam::Client, Iam;
    /// Calls the price list, in the region that has it.
    pricing: aws_sdk_pricing::Client, Pricing;
    /// Calls SQS.
    sqs: aws_sdk_sqs::Client, Sqs;
    /// Calls Systems Manager.
    ssm: aws_sdk_ssm::Client, Ssm;
    /// Calls Application Recovery Controller.
    zonal_shift: aws_sdk_arczonalshift::Client, ZonalShift;
}

impl Inner {
    async fn attempt<T, E>(
        &self,
        service: Service,
        operation: &'static str,
        send: impl Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send,
    ) -> Result<T, AwsError>
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let started = Instant::now();
        let result = send.await.map_err(|error| AwsError::new(operation, &error));
        let outcome = match &result {
            Err(error) if error.is_rate_limited() => Outcome::Throttled,
            Err(error) if error.is_server_fault() => Outcome::Failed,
            _ => Outcome::Answered,
        };
        self.pacing.learn(service.name(), operation, outcome);
        let status = result.as_ref().map_or_else(|e| e.status, |_| Some(200));
        self.telemetry
            .attempted(service.name(), operation, status, started.elapsed());
        result
    }

    async fn call<T, E, F>(
        &self,
        service: Service,
        operation: &'static str,
        send: impl Fn() -> F + Send + Sync,
    ) -> Result<T, AwsError>
    where
        T: Send,
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send,
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let started = Instant::now();
        let mut attempts = 0;
        let result = loop {
            if self.pacing.admit(service.name(), operation).await.is_err() {
                return Err(AwsError::circuit_open(operation, service.name()));
            }
            attempts += 1;
            // A call of the SDK is large; whoever makes one carries it by reference.
            let sent = Box::pin(send());
            let result = self.attempt(service, operation, sent).await;
            let again = match &result {
                Err(error) if error.is_rate_limited() => attempts < THROTTLED_ATTEMPTS,
                Err(error) if error.is_server_fault() => attempts < FAILED_ATTEMPTS,
                _ => false,
            };
            if !again {
                break result;
            }
            tokio::time::sleep(jittered(pause(self.pause, attempts))).await;
        };
        let status = result.as_ref().map_or_else(|e| e.status, |_| Some(200));
        self.telemetry.done(
            service.name(),
            operation,
            status,
            attempts - 1,
            started.elapsed(),
        );
        result
    }
}

/// The pause after so many attempts.
fn pause(first: Duration, attempts: u32) -> Duration {
    first
        .saturating_mul(2_u32.saturating_pow(attempts.saturating_sub(1)))
        .min(LONGEST_PAUSE)
}

/// Between half and all of a pause, so that callers who failed together do not come back together.
fn jittered(pause: Duration) -> Duration {
    let random = std::hash::RandomState::new().build_hasher().finish();
    pause.mul_f64(0.5 + (random % 1024) as f64 / 2048.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_list_is_asked_where_it_is() {
        for (region, wanted) in [
            ("us-west-2", "us-east-1"),
            ("eu-north-1", "eu-central-1"),
            ("ap-southeast-2", "ap-south-1"),
            ("cn-north-1", "cn-northwest-1"),
            ("sa-east-1", "us-east-1"),
        ] {
            assert_eq!(pricing_region(region), wanted);
        }
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let pauses: Vec<u64> = (1..10)
            .map(|n| pause(Duration::from_millis(100), n).as_millis() as u64)
            .collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 8000, 8000]);
        let once = Duration::from_secs(1);
        assert!((once / 2..=once).contains(&jittered(once)));
    }
}
