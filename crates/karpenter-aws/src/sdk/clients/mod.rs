//! Clients of AWS services. Each call is paced, retried and counted, and its errors are classified.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;

use aws_config::identity::IdentityCache;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::{Builder, Connector, tls};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;
use aws_types::app_name::AppName;
use aws_types::region::Region;
use karpenter_kube::metrics::Registry;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::time::Instant;

use super::errors::AwsError;
use super::pacing::{Outcome, Pacing};
use super::telemetry::Telemetry;

/// Timeout of one attempt; a long poll of SQS takes 20 seconds of it.
const ATTEMPT: Duration = Duration::from_secs(45);
/// Timeout of CreateFleet: an instant fleet answers when all its instances are launched, which takes longer the more
/// there are.
const FLEET_ATTEMPT: Duration = Duration::from_secs(240);
/// Timeout of obtaining credentials, including the pauses between attempts.
const CREDENTIALS: Duration = Duration::from_secs(30);
/// Number of attempts of a throttled call, spread over about half a minute by the back-off.
const THROTTLED_ATTEMPTS: u32 = 8;
/// Number of attempts of a call without answer.
const FAILED_ATTEMPTS: u32 = 3;
/// Maximum pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// Connection settings. The default takes everything from the environment, as the SDK does.
#[derive(Clone, Debug)]
pub struct Connect {
    /// Region; `None` for that of the environment, the profile or the instance.
    pub region: Option<String>,
    /// Endpoint of all services; `None` for AWS's endpoints.
    pub endpoint: Option<String>,
    /// Access key ID and secret access key; `None` for the SDK's provider chain.
    pub credentials: Option<(String, String)>,
    /// First pause before a call is retried.
    pub pause: Duration,
    /// Maximum number of attempts of a call, including calls for credentials; `None` to decide by the error.
    pub attempts: Option<u32>,
    /// CA certificates in PEM; `None` for the system's.
    pub roots: Option<Vec<u8>>,
    /// Registry of the metrics of calls.
    pub registry: Registry,
}

impl Default for Connect {
    fn default() -> Self {
        Self {
            region: None,
            endpoint: None,
            credentials: None,
            pause: Duration::from_millis(100),
            attempts: None,
            roots: None,
            registry: Registry::new(),
        }
    }
}

/// A failed connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No source has a region.
    #[error("no AWS region: set AWS_REGION, or let the pod reach the instance metadata service")]
    NoRegion,
    /// `AWS_MAX_ATTEMPTS` is not a number of attempts.
    #[error("AWS_MAX_ATTEMPTS must be a whole number of at least 1, not `{0}`")]
    Attempts(String),
    /// `AWS_RETRY_MODE` is not a retry mode.
    #[error("AWS_RETRY_MODE must be `standard` or `adaptive`, not `{0}`")]
    Mode(String),
    /// The file in `AWS_CA_BUNDLE` cannot be read.
    #[error("cannot read the file of AWS_CA_BUNDLE, `{path}`: {source}")]
    Bundle {
        /// Path of the file.
        path: String,
        /// The error of the file system.
        #[source]
        source: std::io::Error,
    },
    /// The CA certificates cannot be parsed.
    #[error("invalid CA certificates (AWS_CA_BUNDLE): {0}")]
    Roots(String),
}

impl Connect {
    /// Reads the variables that the SDK does not read, or whose invalid values would end the process.
    ///
    /// Both modes of `AWS_RETRY_MODE` have the same effect: calls are always paced by AWS's responses.
    ///
    /// # Errors
    /// If the value of a variable is invalid.
    pub fn from_env(env: impl Fn(&str) -> Option<String>) -> Result<Self, ConnectError> {
        let value = |name: &str| env(name).filter(|value| !value.trim().is_empty());
        let attempts = match value("AWS_MAX_ATTEMPTS") {
            None => None,
            Some(text) => match text.trim().parse::<u32>() {
                Ok(attempts) if attempts > 0 => Some(attempts),
                _ => return Err(ConnectError::Attempts(text)),
            },
        };
        if let Some(mode) = value("AWS_RETRY_MODE")
            && !["standard", "adaptive"].contains(&mode.trim().to_ascii_lowercase().as_str())
        {
            return Err(ConnectError::Mode(mode));
        }
        let roots = match value("AWS_CA_BUNDLE") {
            None => None,
            Some(path) => match std::fs::read(&path) {
                Ok(pem) => Some(pem),
                Err(source) => return Err(ConnectError::Bundle { path, source }),
            },
        };
        Ok(Self {
            attempts,
            roots,
            ..Self::default()
        })
    }
}

/// Creates an HTTP client that trusts these certificates only, and is otherwise the SDK's own.
fn trusting(pem: &[u8]) -> Result<SharedHttpClient, ConnectError> {
    let bad = |why: String| ConnectError::Roots(why);
    // The SDK ends the process if it cannot parse a certificate.
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| bad(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| bad(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(bad("there are no certificates in PEM".to_owned()));
    }
    let store = tls::TrustStore::empty().with_pem_certificate(pem);
    let context = tls::TlsContext::builder()
        .with_trust_store(store)
        .build()
        .map_err(|error| bad(error.to_string()))?;
    let client = Builder::new().build_with_connector_fn(move |settings, components| {
        let provider = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::AwsLc);
        let mut connector = Connector::builder()
            .tls_provider(provider)
            .tls_context(context.clone())
            .proxy_config(ProxyConfig::from_env());
        connector.set_connector_settings(settings.cloned());
        connector.set_sleep_impl(components.and_then(|all| all.sleep_impl()));
        connector.build()
    });
    Ok(client)
}

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
    attempts: Option<u32>,
    pacing: Pacing,
    telemetry: Telemetry,
}

/// Clients of the services of one region. Cheap to clone; clones share pacing and metrics.
///
/// Calls go through [`Aws::ec2`] and its siblings, which retry where it helps: the SDK's own retries are off, because
/// they are not coordinated with each other. Only calls for credentials use the SDK's retries.
#[derive(Clone)]
pub struct Aws(Arc<Inner>);

impl std::fmt::Debug for Aws {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aws")
            .field("region", &self.0.region)
            .finish_non_exhaustive()
    }
}

/// Returns the region whose Pricing endpoint has the price list of `region`.
fn pricing_region(region: &str) -> &'static str {
    match region.split('-').next().unwrap_or_default() {
        "ap" => "ap-south-1",
        "eu" => "eu-central-1",
        "cn" => "cn-northwest-1",
        _ => "us-east-1",
    }
}

/// Loads the SDK's configuration. Its retries are those of the calls for credentials, which nothing else retries.
async fn load(how: &Connect) -> Result<SdkConfig, ConnectError> {
    let timeouts = TimeoutConfig::builder()
        .operation_attempt_timeout(FLEET_ATTEMPT)
        .build();
    let identities = IdentityCache::lazy().load_timeout(CREDENTIALS).build();
    let mut retries = RetryConfig::standard();
    if let Some(attempts) = how.attempts {
        retries = retries.with_max_attempts(attempts);
    }
    let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
        .retry_config(retries)
        .identity_cache(identities)
        .timeout_config(timeouts);
    if let Some(pem) = &how.roots {
        loader = loader.http_client(trusting(pem)?);
    }
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
    Ok(loader.load().await)
}

/// Returns the configuration of the services' clients. Set on the loader, it would apply to calls for credentials, too.
fn without_retries(config: SdkConfig) -> SdkConfig {
    config
        .into_builder()
        .retry_config(RetryConfig::disabled())
        .build()
}

impl Aws {
    /// Connects. No call is made, except that the region may be read from the instance metadata service.
    ///
    /// # Errors
    /// If the region is unknown, or the CA certificates are invalid.
    pub async fn connect(how: &Connect) -> Result<Self, ConnectError> {
        let config = load(how).await?;
        let region = config.region().ok_or(ConnectError::NoRegion)?.to_string();
        let config = without_retries(config);
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
            attempts: how.attempts,
            pacing: Pacing::default(),
            telemetry: Telemetry::new(&how.registry),
        })))
    }

    #[must_use]
    pub fn region(&self) -> &str {
        &self.0.region
    }

    /// Returns the rate limit of `operation` in calls per second, if AWS has throttled it recently.
    #[must_use]
    pub fn pace(&self, operation: &str) -> Option<f64> {
        self.0.pacing.rate(operation)
    }

    /// Returns the metrics of calls.
    #[must_use]
    pub fn telemetry(&self) -> &Telemetry {
        &self.0.telemetry
    }

    /// Makes a call without retries, for dry runs whose refusal is the answer.
    ///
    /// # Errors
    /// The error of the call.
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
        let service = "EC2";
        if inner.pacing.admit(service, operation).await.is_err() {
            return Err(AwsError::circuit_open(operation, service));
        }
        let started = Instant::now();
        let result = inner
            .attempt(service, operation, Box::pin(send(&inner.ec2)))
            .await;
        let status = result.as_ref().map_or_else(|e| e.status, |_| Some(200));
        inner
            .telemetry
            .done(service, operation, status, 0, started.elapsed());
        result
    }
}

/// Defines one method per service: `aws.ec2("DescribeSubnets", |ec2| ec2.describe_subnets().send())`. The literals are
/// the names of the services in metrics.
macro_rules! services {
    ($($(#[$doc:meta])* $name:ident: $client:ty, $service:literal;)*) => {
        impl Aws {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// The error of the last attempt.
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
                    self.0.call($service, operation, || send(&self.0.$name)).await
                }
            )*
        }
    };
}

services! {
    /// Calls EC2.
    ec2: aws_sdk_ec2::Client, "EC2";
    /// Calls EKS.
    eks: aws_sdk_eks::Client, "EKS";
    /// Calls IAM.
    iam: aws_sdk_iam::Client, "IAM";
    /// Calls the price list, in the region that has it.
    pricing: aws_sdk_pricing::Client, "Pricing";
    /// Calls SQS.
    sqs: aws_sdk_sqs::Client, "SQS";
    /// Calls Systems Manager.
    ssm: aws_sdk_ssm::Client, "SSM";
    /// Calls Application Recovery Controller.
    zonal_shift: aws_sdk_arczonalshift::Client, "ARC Zonal Shift";
}

impl Inner {
    async fn attempt<T, E>(
        &self,
        service: &'static str,
        operation: &'static str,
        send: impl Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send,
    ) -> Result<T, AwsError>
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let started = Instant::now();
        let limit = match operation {
            "CreateFleet" => FLEET_ATTEMPT,
            _ => ATTEMPT,
        };
        let result = match tokio::time::timeout(limit, send).await {
            Ok(result) => result.map_err(|error| AwsError::new(operation, &error)),
            Err(_) => Err(AwsError::no_answer(operation, limit)),
        };
        let outcome = match &result {
            Err(error) if error.is_rate_limited() => Outcome::Throttled,
            Err(error) if error.is_server_fault() => Outcome::Failed,
            _ => Outcome::Answered,
        };
        self.pacing.record(service, operation, outcome);
        let status = result.as_ref().map_or_else(|e| e.status, |_| Some(200));
        self.telemetry
            .attempted(service, operation, status, started.elapsed());
        result
    }

    async fn call<T, E, F>(
        &self,
        service: &'static str,
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
            if self.pacing.admit(service, operation).await.is_err() {
                return Err(AwsError::circuit_open(operation, service));
            }
            attempts += 1;
            // The future of an SDK call is large, so it is boxed.
            let sent = Box::pin(send());
            let result = self.attempt(service, operation, sent).await;
            let again = match &result {
                Err(error) if error.is_rate_limited() => {
                    attempts < self.attempts.unwrap_or(THROTTLED_ATTEMPTS)
                }
                Err(error) if error.is_server_fault() => {
                    attempts < self.attempts.unwrap_or(FAILED_ATTEMPTS)
                }
                _ => false,
            };
            if !again {
                break result;
            }
            tokio::time::sleep(jittered(pause(self.pause, attempts))).await;
        };
        let status = result.as_ref().map_or_else(|e| e.status, |_| Some(200));
        self.telemetry
            .done(service, operation, status, attempts - 1, started.elapsed());
        result
    }
}

/// Returns the pause after this number of attempts.
fn pause(first: Duration, attempts: u32) -> Duration {
    first
        .saturating_mul(2_u32.saturating_pow(attempts.saturating_sub(1)))
        .min(LONGEST_PAUSE)
}

/// Returns between half and all of a pause, so that callers that failed together do not retry together.
pub(super) fn jittered(pause: Duration) -> Duration {
    let random = std::hash::RandomState::new().build_hasher().finish();
    pause.mul_f64(0.5 + (random % 1024) as f64 / 2048.0)
}

#[cfg(test)]
mod tests;
