//! The images of a node class, asked of Systems Manager and EC2.
//!
//! UPSTREAM: pkg/providers/amifamily/ami.go, pkg/providers/ssm, pkg/controllers/providers/ssm/invalidation

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_ec2::types as ec2;
use futures::future::try_join_all;
use jiff::Timestamp;
use karpenter_core::provider::CloudProviderError;
use karpenter_kube::clock::Clock;
use karpenter_kube::controller::{Doing, Periodic, ReconcileError};

use super::{Filter, Image, ImageQuery, ParameterCache, UnsupportedAlias, choose, queries};
use crate::api::{Alias, Ami, EC2NodeClass, InvalidAlias};
use crate::kubernetes_version::KubernetesVersion;
use crate::sdk::pages::each_page;
use crate::sdk::terms::{ClassVersion, Remembered, class_version};
use crate::sdk::{Aws, AwsError};

/// Largest page of DescribeImages.
const PAGE: i32 = 1000;
/// How often parameters are looked at that may name an image which is no longer advised.
const LOOK: Duration = Duration::from_secs(30 * 60);

/// Why a node class has no images.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImagesError {
    /// The alias cannot be read.
    #[error(transparent)]
    Alias(#[from] InvalidAlias),
    /// There are no images for this version of Kubernetes.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedAlias),
    /// No parameter of the alias exists.
    #[error(
        "alias `{alias}` names no image for Kubernetes {kubernetes}: check its version, or use `latest`"
    )]
    Unpublished {
        /// The alias.
        alias: Alias,
        /// The cluster's version.
        kubernetes: String,
    },
    /// AWS could not be asked.
    #[error(transparent)]
    Aws(#[from] AwsError),
}

/// Whose answer it is: a class as specified, in a cluster of a version.
type Question = (ClassVersion, String);

/// The images of node classes.
#[derive(Clone, Debug)]
pub struct Images {
    aws: Aws,
    kubernetes: KubernetesVersion,
    parameters: Arc<Mutex<ParameterCache>>,
    found: Arc<Remembered<Question, Arc<[Ami]>>>,
}

impl Images {
    /// Images that are asked for anew after `refresh`.
    #[must_use]
    pub fn new(aws: Aws, kubernetes: KubernetesVersion, refresh: Duration) -> Self {
        Self {
            aws,
            kubernetes,
            parameters: Arc::default(),
            found: Arc::new(Remembered::for_(refresh)),
        }
    }

    fn parameters(&self) -> MutexGuard<'_, ParameterCache> {
        self.parameters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The images the node class means, newest first, with the machines each is for.
    ///
    /// # Errors
    /// When the alias has no images, or AWS cannot be asked.
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
        let amis: Arc<[Ami]> = choose(answered, now).into_iter().map(Ami::from).collect();
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
            let value = self.parameter(&name, now, Kept::Custom).await?;
            if !value.as_ref().is_some_and(|v| v.starts_with("ami-")) {
                tracing::error!(
                    logger = "nodeclass",
                    EC2NodeClass = class.metadata.name,
                    parameter = name,
                    value,
                    "ssm parameter names no image"
                );
            }
            Ok::<_, AwsError>((name, value))
        });
        let values: BTreeMap<String, Option<String>> =
            try_join_all(read).await?.into_iter().collect();
        let asked = queries(terms, |name| values.get(name).cloned().flatten());
        // A term that selects by nothing would select every image there is.
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
        let kept = Kept::Alias {
            mutable: alias.is_latest(),
        };
        let parameters = alias.parameters(kubernetes);
        let values = try_join_all(
            parameters
                .iter()
                .map(|parameter| self.parameter(&parameter.name, now, kept)),
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

    /// The value of a parameter; none if there is no such parameter.
    async fn parameter(
        &self,
        name: &str,
        now: Timestamp,
        kept: Kept,
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
            match kept {
                Kept::Alias { mutable } => {
                    self.parameters().insert_alias(name, value, mutable, now);
                }
                Kept::Custom => self.parameters().insert_custom(name, value, now),
            }
        }
        Ok(value)
    }

    async fn describe(&self, query: &ImageQuery) -> Result<Vec<Image>, AwsError> {
        let sdk = |filter: &Filter| {
            ec2::Filter::builder()
                .name(&filter.name)
                .set_values(Some(filter.values.clone()))
                .build()
        };
        let filters: Vec<ec2::Filter> = query
            .filters
            .iter()
            .map(sdk)
            .chain([crate::instances::filter("state", ["available"])])
            .collect();
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
        let mut found = Vec::new();
        each_page(ask, |page| {
            found.extend(page.images().iter().filter_map(read));
        })
        .await?;
        Ok(found)
    }

    /// Forgets parameters of `latest` whose image is deprecated or gone: they name a newer one by now. Says how many.
    ///
    /// # Errors
    /// EC2's.
    // DIFFERS: upstream forgets those of deprecated images only, and serves one that is gone for up to a day.
    pub async fn forget_deprecated(&self, now: Timestamp) -> Result<usize, AwsError> {
        let ids: BTreeSet<String> = self
            .parameters()
            .mutable_images()
            .into_iter()
            .map(str::to_owned)
            .collect();
        if ids.is_empty() {
            return Ok(0);
        }
        let query = ImageQuery {
            filters: vec![Filter {
                name: "image-id".to_owned(),
                values: ids.into_iter().collect(),
            }],
            ..ImageQuery::default()
        };
        let images = self.describe(&query).await?;
        let advised: BTreeSet<&str> = images
            .iter()
            .filter(|image| image.deprecated_from.is_none_or(|from| from > now))
            .map(|image| image.id.as_str())
            .collect();
        Ok(self
            .parameters()
            .forget_deprecated(|id| !advised.contains(id)))
    }

    /// What looks every half hour for parameters to forget.
    #[must_use]
    pub fn forgetting(&self, clock: Clock) -> Forgetting {
        Forgetting {
            images: self.clone(),
            clock,
        }
    }
}

/// For how long a parameter is remembered.
#[derive(Clone, Copy)]
enum Kept {
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

/// Looks for parameters that name an image which is no longer advised.
#[derive(Debug)]
pub struct Forgetting {
    images: Images,
    clock: Clock,
}

impl Periodic for Forgetting {
    fn name(&self) -> &'static str {
        "providers.ssm.invalidation"
    }

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        let forgotten = self.images.forget_deprecated(self.clock.now()).await;
        let forgotten = forgotten
            .map_err(|error| CloudProviderError::Other(Box::new(error)))
            .doing("describing images of ssm parameters")?;
        if forgotten > 0 {
            tracing::debug!(
                logger = "providers.ssm.invalidation",
                count = forgotten,
                "forgot ssm parameters of deprecated images"
            );
        }
        Ok(LOOK)
    }
}
