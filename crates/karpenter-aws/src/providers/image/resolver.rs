//! Resolution of a node class's AMIs with calls to Systems Manager and EC2.
//!
//! UPSTREAM: pkg/providers/amifamily/ami.go, pkg/providers/ssm, pkg/controllers/providers/ssm/invalidation

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_ec2::types as ec2;
use futures::future::try_join_all;
use jiff::Timestamp;
use karpenter_core::provider::CloudProviderError;
use karpenter_kube::clock::Clock;
use karpenter_kube::controller::{Doing, Periodic, ReconcileError};
use parking_lot::{Mutex, MutexGuard};

use super::{Image, ImageQuery, ParameterCache, UnsupportedAlias, choose, queries};
use crate::api::{Alias, Ami, EC2NodeClass, InvalidAlias};
use crate::providers::version::KubernetesVersion;
use crate::sdk::pages::list_all;
use crate::sdk::terms::{ClassVersion, TtlCache, class_version, filter};
use crate::sdk::{Aws, AwsError};

/// Largest page of DescribeImages.
const PAGE: i32 = 1000;
/// How often mutable SSM parameters are checked for deprecated AMIs.
const CHECK_INTERVAL: Duration = Duration::from_secs(30 * 60);

/// The AMIs of a node class cannot be resolved.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImagesError {
    /// The alias cannot be parsed.
    #[error(transparent)]
    Alias(#[from] InvalidAlias),
    /// The alias has no AMIs for the version of Kubernetes.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedAlias),
    /// None of the alias's SSM parameters exists.
    #[error(
        "alias `{alias}` has no image for Kubernetes {kubernetes}: check its version, or use `latest`"
    )]
    Unpublished {
        /// The alias without AMIs.
        alias: Alias,
        /// The cluster's version of Kubernetes.
        kubernetes: String,
    },
    /// A call to AWS failed.
    #[error(transparent)]
    Aws(#[from] AwsError),
}

/// Cache key: a node class at a generation, in a cluster of a version.
type CacheKey = (ClassVersion, String);

/// Resolves the AMIs of node classes, and caches them.
#[derive(Clone, Debug)]
pub struct Images {
    aws: Aws,
    kubernetes: KubernetesVersion,
    parameters: Arc<Mutex<ParameterCache>>,
    found: Arc<TtlCache<CacheKey, Arc<[Ami]>>>,
}

impl Images {
    /// Creates a resolver whose results expire after `refresh`.
    #[must_use]
    pub fn new(aws: Aws, kubernetes: KubernetesVersion, refresh: Duration) -> Self {
        Self {
            aws,
            kubernetes,
            parameters: Arc::default(),
            found: Arc::new(TtlCache::new(refresh)),
        }
    }

    fn parameters(&self) -> MutexGuard<'_, ParameterCache> {
        self.parameters.lock()
    }

    /// Returns the AMIs of the node class, newest first, with the requirements on their instance types.
    ///
    /// # Errors
    /// If the alias has no AMIs, or a call to AWS fails.
    pub async fn list(
        &self,
        class: &EC2NodeClass,
        now: Timestamp,
    ) -> Result<Arc<[Ami]>, ImagesError> {
        let kubernetes = self.kubernetes.current();
        let key = (class_version(class), kubernetes.clone());
        if let Some(found) = self.found.get(&key) {
            return Ok(found);
        }
        let queries = self.queries(class, &kubernetes, now).await?;
        let answers = try_join_all(queries.iter().map(|query| self.describe(query))).await?;
        let answered = queries.iter().zip(answers.iter().map(Vec::as_slice));
        let amis: Arc<[Ami]> = choose(answered, now).into();
        self.found.put(key, Arc::clone(&amis));
        Ok(amis)
    }

    async fn queries(
        &self,
        class: &EC2NodeClass,
        kubernetes: &str,
        now: Timestamp,
    ) -> Result<Vec<ImageQuery>, ImagesError> {
        let terms = &class.spec.ami_selector_terms;
        let filled = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
        if let Some(text) = terms.iter().find_map(|term| filled(&term.alias)) {
            let alias = Alias::parse(&text)?;
            return self.queries_of_alias(alias, kubernetes, now).await;
        }
        let names: BTreeSet<String> = terms
            .iter()
            .filter(|term| filled(&term.id).is_none())
            .filter_map(|term| filled(&term.ssm_parameter))
            .collect();
        let read = names.into_iter().map(|name| async move {
            let value = self.parameter(&name, now, Lifetime::Custom).await?;
            if !value.as_ref().is_some_and(|v| v.starts_with("ami-")) {
                tracing::error!(
                    logger = "nodeclass",
                    EC2NodeClass = class.metadata.name,
                    parameter = name,
                    value,
                    "skipped an ssm parameter without an image id"
                );
            }
            Ok::<_, AwsError>((name, value))
        });
        let values: BTreeMap<String, Option<String>> =
            try_join_all(read).await?.into_iter().collect();
        let asked = queries(terms, |name| values.get(name).cloned().flatten());
        // A term without any selector would match every AMI.
        Ok(asked
            .into_iter()
            .filter(|q| !q.filters.is_empty())
            .collect())
    }

    async fn queries_of_alias(
        &self,
        alias: Alias,
        kubernetes: &str,
        now: Timestamp,
    ) -> Result<Vec<ImageQuery>, ImagesError> {
        alias.check_supported(kubernetes)?;
        let lifetime = Lifetime::Alias {
            mutable: alias.is_latest(),
        };
        let parameters = alias.parameters(kubernetes);
        let values = try_join_all(
            parameters
                .iter()
                .map(|parameter| self.parameter(&parameter.name, now, lifetime)),
        )
        .await?;
        let found = parameters
            .iter()
            .zip(values)
            .filter_map(|(parameter, value)| Some((parameter, value?)));
        match ImageQuery::of_parameters(found) {
            Some(query) => Ok(vec![query]),
            None => Err(ImagesError::Unpublished {
                alias,
                kubernetes: kubernetes.to_owned(),
            }),
        }
    }

    /// Returns the value of a parameter; `None` if the parameter does not exist.
    async fn parameter(
        &self,
        name: &str,
        now: Timestamp,
        lifetime: Lifetime,
    ) -> Result<Option<String>, AwsError> {
        let known = self.parameters().get(name, now).map(str::to_owned);
        if known.is_some() {
            return Ok(known);
        }
        let answer = self
            .aws
            .ssm("GetParameter", |client| {
                client.get_parameter().name(name).send()
            })
            .await;
        let value = match answer {
            Ok(answer) => answer
                .parameter()
                .and_then(|p| p.value())
                .map(str::to_owned),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        };
        if let Some(value) = &value {
            match lifetime {
                Lifetime::Alias { mutable } => {
                    self.parameters().insert_alias(name, value, mutable, now);
                }
                Lifetime::Custom => self.parameters().insert_custom(name, value, now),
            }
        }
        Ok(value)
    }

    async fn describe(&self, query: &ImageQuery) -> Result<Vec<Image>, AwsError> {
        let mut filters = query.filters.clone();
        filters.push(filter("state", ["available"]));
        let owners = (!query.owners.is_empty()).then(|| query.owners.clone());
        let (filters, owners) = (&filters, &owners);
        let ask = |token: Option<String>| {
            self.aws.ec2("DescribeImages", move |client| {
                client
                    .describe_images()
                    .set_filters(Some(filters.clone()))
                    .set_owners(owners.clone())
                    .include_deprecated(true)
                    .max_results(PAGE)
                    .set_next_token(token.clone())
                    .send()
            })
        };
        list_all(ask, |page| {
            let images = page.images.unwrap_or_default().into_iter();
            images.filter_map(|raw| read(&raw))
        })
        .await
    }

    /// Removes cached parameters of `latest` whose AMI is deprecated or deregistered: their values have changed.
    /// Returns their number.
    ///
    /// # Errors
    /// The error of EC2.
    // DIFFERS: upstream removes parameters of deprecated AMIs only, and uses a deregistered AMI for up to a day.
    pub async fn invalidate_deprecated(&self, now: Timestamp) -> Result<usize, AwsError> {
        let Some(query) = ImageQuery::of_ids(self.parameters().mutable_images()) else {
            return Ok(0);
        };
        let images = self.describe(&query).await?;
        let advised: BTreeSet<&str> = images
            .iter()
            .filter(|image| image.deprecated_from.is_none_or(|from| from > now))
            .map(|image| image.id.as_str())
            .collect();
        Ok(self
            .parameters()
            .invalidate_deprecated(|id| !advised.contains(id)))
    }

    /// Returns the controller that removes outdated parameters every half hour.
    #[must_use]
    pub fn invalidation(&self, clock: Clock) -> ParameterInvalidation {
        ParameterInvalidation {
            images: self.clone(),
            clock,
        }
    }
}

/// How long a parameter is cached.
#[derive(Clone, Copy)]
enum Lifetime {
    Alias { mutable: bool },
    Custom,
}

fn read(raw: &ec2::Image) -> Option<Image> {
    let time = |text: Option<&str>| text.and_then(|t| t.parse().ok());
    Some(Image {
        id: raw.image_id()?.to_owned(),
        name: raw.name().unwrap_or_default().to_owned(),
        architecture: raw.architecture()?.as_str().to_owned(),
        created: time(raw.creation_date()),
        deprecated_from: time(raw.deprecation_time()),
    })
}

/// Controller that removes cached SSM parameters whose AMI is deprecated.
#[derive(Debug)]
pub struct ParameterInvalidation {
    images: Images,
    clock: Clock,
}

impl Periodic for ParameterInvalidation {
    const NAME: &'static str = "providers.ssm.invalidation";

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        let removed = self.images.invalidate_deprecated(self.clock.now()).await;
        let removed = removed
            .map_err(CloudProviderError::other)
            .doing("describing images of ssm parameters")?;
        if removed > 0 {
            tracing::debug!(
                logger = "providers.ssm.invalidation",
                count = removed,
                "removed ssm parameters of deprecated images from the cache"
            );
        }
        Ok(CHECK_INTERVAL)
    }
}
