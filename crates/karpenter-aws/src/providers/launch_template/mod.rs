//! Launch templates: their content, creation in EC2, and deletion of unused ones.
//!
//! The name of a template is derived from its content, so that it is created once and found again. Templates that were
//! not used for a minute are deleted; at the start, templates of an earlier process are adopted.
//!
//! UPSTREAM: pkg/providers/launchtemplate/launchtemplate.go

pub mod request;
mod shared;
pub mod template;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_ec2::types::ResourceType;
use karpenter_core::instance_type::InstanceType;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use shared::SharedSettings;
pub use template::{
    ClusterSettings, Launch, Network, Reserved, Resolved, Target, Template, TemplateError, resolve,
};

use crate::api::labels;
use crate::api::labels::tags;
use crate::sdk::pages::list_all;
use crate::sdk::terms::filter;
use crate::sdk::{Aws, AwsError};
use crate::user_data::{UserDataError, WARNING_BYTES};

/// How long a template may be unused before it is deleted.
const UNUSED_TTL: Duration = Duration::from_secs(60);
/// Largest page of DescribeLaunchTemplates.
const PAGE: i32 = 200;

#[derive(Debug)]
struct CachedTemplate {
    id: String,
    until: Instant,
}

/// Creates and deletes the launch templates of a cluster.
#[derive(Clone, Debug)]
pub struct LaunchTemplates {
    aws: Aws,
    cluster: String,
    known: Arc<Mutex<HashMap<String, CachedTemplate>>>,
    /// Locks by template name, so that a template is created once.
    making: Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>,
}

impl LaunchTemplates {
    /// Creates the provider of launch templates for `cluster`.
    #[must_use]
    pub fn new(aws: Aws, cluster: &str) -> Self {
        Self {
            aws,
            cluster: cluster.to_owned(),
            known: Arc::default(),
            making: Arc::default(),
        }
    }

    /// Returns the templates for a launch, as [`resolve`] does, and exports the size of their user data, even if it is too
    /// large for a template.
    ///
    /// # Errors
    /// If the node class lacks something, or its user data is invalid.
    pub fn resolve(
        &self,
        launch: &Launch<'_>,
        cluster: &ClusterSettings,
        types: &[InstanceType],
        reserved_of: impl Fn(&InstanceType) -> Reserved,
    ) -> Result<Vec<Resolved>, TemplateError> {
        let resolved = resolve(launch, cluster, types, reserved_of);
        let bytes = match &resolved {
            Ok(all) => all.iter().map(|r| r.template.user_data_bytes()).max(),
            Err(TemplateError::UserData(UserDataError::TooLarge { bytes })) => Some(*bytes),
            Err(_) => None,
        };
        if let (Some(bytes), Some(name)) = (bytes, launch.class.metadata.name.as_deref()) {
            self.record_user_data(name, bytes);
        }
        resolved
    }

    /// Exports the size of the user data of a node class, and logs when it comes near the limit.
    fn record_user_data(&self, node_class: &str, bytes: usize) {
        let gauge = &self.aws.telemetry().user_data;
        let last = gauge.get(&[node_class]) as usize;
        gauge.set(&[node_class], bytes as f64);
        if bytes >= WARNING_BYTES && bytes != last {
            tracing::info!(
                logger = "launchtemplate",
                EC2NodeClass = node_class,
                bytes,
                "user data is near the limit of 16384 bytes"
            );
        }
    }

    /// Ends the export of the size of a deleted node class's user data.
    pub fn forget(&self, node_class: &str) {
        let gauge = &self.aws.telemetry().user_data;
        gauge.remove_matching(&[("nodeclass", node_class)]);
    }

    fn use_known(&self, name: &str) -> Option<String> {
        let mut known = self.known.lock();
        let entry = known.get_mut(name)?;
        entry.until = Instant::now() + UNUSED_TTL;
        Some(entry.id.clone())
    }

    fn remember(&self, name: &str, id: &str) {
        let entry = CachedTemplate {
            id: id.to_owned(),
            until: Instant::now() + UNUSED_TTL,
        };
        self.known.lock().insert(name.to_owned(), entry);
    }

    /// Ensures that the template exists; returns its ID.
    ///
    /// # Errors
    /// The error of EC2.
    pub async fn ensure(&self, template: &Template) -> Result<String, AwsError> {
        let name = template.name();
        if let Some(id) = self.use_known(&name) {
            return Ok(id);
        }
        let turn = {
            let mut making = self.making.lock();
            Arc::clone(making.entry(name.clone()).or_default())
        };
        let _turn = turn.lock().await;
        if let Some(id) = self.use_known(&name) {
            return Ok(id);
        }
        let made = match self.find(&name).await {
            Ok(Some(id)) => Ok(id),
            Ok(None) => self.create(&name, template).await,
            Err(error) => Err(error),
        };
        let mut making = self.making.lock();
        making.remove(&name);
        drop(making);
        let id = made?;
        self.remember(&name, &id);
        Ok(id)
    }

    async fn find(&self, name: &str) -> Result<Option<String>, AwsError> {
        let answer = self
            .aws
            .ec2("DescribeLaunchTemplates", |client| {
                client
                    .describe_launch_templates()
                    .launch_template_names(name)
                    .send()
            })
            .await;
        match answer {
            Ok(answer) => Ok(answer
                .launch_templates()
                .first()
                .and_then(|t| t.launch_template_id())
                .map(str::to_owned)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, name: &str, template: &Template) -> Result<String, AwsError> {
        let data = request::data(template);
        let own = request::tag_specification(ResourceType::LaunchTemplate, &template.tags);
        let answer = self
            .aws
            .ec2("CreateLaunchTemplate", |client| {
                client
                    .create_launch_template()
                    .launch_template_name(name)
                    .launch_template_data(data.clone())
                    .tag_specifications(own.clone())
                    .send()
            })
            .await;
        let missing = || {
            AwsError::unreadable(
                "CreateLaunchTemplate",
                "the response lacks the template's id",
            )
        };
        match answer {
            Ok(answer) => {
                let id = answer
                    .launch_template()
                    .and_then(|t| t.launch_template_id());
                let id = id.ok_or_else(missing)?.to_owned();
                tracing::debug!(
                    logger = "launchtemplate",
                    "launch-template-name" = name,
                    id,
                    "created launch template"
                );
                Ok(id)
            }
            // Another process created it, or an earlier attempt succeeded and its response was lost.
            Err(error) if error.is_already_exists() => self.find(name).await?.ok_or_else(missing),
            Err(error) => Err(error),
        }
    }

    /// Removes a template from the cache because it does not exist any more.
    pub fn invalidate(&self, name: &str) {
        tracing::debug!(
            logger = "launchtemplate",
            "launch-template-name" = name,
            "invalidating launch template in the cache because it no longer exists"
        );
        self.known.lock().remove(name);
    }

    /// Adopts the templates of an earlier process.
    ///
    /// # Errors
    /// The error of EC2.
    pub async fn hydrate(&self) -> Result<usize, AwsError> {
        let found = self
            .list(&[(
                format!("tag:{}", tags::EKS_CLUSTER_NAME),
                self.cluster.clone(),
            )])
            .await?;
        for (name, id) in &found {
            if self.use_known(name).is_none() {
                self.remember(name, id);
            }
        }
        Ok(found.len())
    }

    async fn list(&self, filters: &[(String, String)]) -> Result<Vec<(String, String)>, AwsError> {
        let filters: Vec<_> = filters
            .iter()
            .map(|(name, value)| filter(name, [value.as_str()]))
            .collect();
        let filters = &filters;
        let ask = |token: Option<String>| {
            self.aws.ec2("DescribeLaunchTemplates", move |client| {
                client
                    .describe_launch_templates()
                    .set_filters(Some(filters.clone()))
                    .max_results(PAGE)
                    .set_next_token(token.clone())
                    .send()
            })
        };
        list_all(ask, |page| {
            let templates = page.launch_templates.unwrap_or_default().into_iter();
            templates.filter_map(|t| t.launch_template_name.zip(t.launch_template_id))
        })
        .await
    }

    /// Deletes the templates of a node class.
    ///
    /// # Errors
    /// The error of EC2; the other templates are deleted all the same.
    pub async fn delete_all(&self, node_class: &str) -> Result<(), AwsError> {
        let filters = [
            (
                format!("tag:{}", tags::EKS_CLUSTER_NAME),
                self.cluster.clone(),
            ),
            (format!("tag:{}", labels::NODE_CLASS), node_class.to_owned()),
        ];
        let found = self.list(&filters).await?;
        let deleted = found.iter().map(|(name, id)| async move {
            self.known.lock().remove(name);
            self.delete(id).await
        });
        let results = futures::future::join_all(deleted).await;
        results.into_iter().collect()
    }

    async fn delete(&self, id: &str) -> Result<(), AwsError> {
        let answer = self
            .aws
            .ec2("DeleteLaunchTemplate", |client| {
                client
                    .delete_launch_template()
                    .launch_template_id(id)
                    .send()
            })
            .await;
        match answer {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes templates that are no longer used.
    pub async fn sweep(&self) {
        let now = Instant::now();
        let mut unused = Vec::new();
        self.known.lock().retain(|name, known| {
            if now >= known.until {
                unused.push((name.clone(), known.id.clone()));
            }
            now < known.until
        });
        for (name, id) in unused {
            match self.delete(&id).await {
                Ok(()) => tracing::debug!(
                    logger = "launchtemplate",
                    "launch-template-name" = name,
                    id,
                    "deleted launch template"
                ),
                Err(error) => {
                    tracing::error!(logger = "launchtemplate", "launch-template-name" = name, error = %error, "aws-error-code" = error.code.as_deref(), "failed to delete launch template");
                    // It is retried after another minute, unless the template is used again by then.
                    let mut known = self.known.lock();
                    known.entry(name).or_insert(CachedTemplate {
                        id,
                        until: now + UNUSED_TTL,
                    });
                }
            }
        }
    }

    /// Adopts templates of an earlier process, then deletes unused ones until `stop` is cancelled.
    pub async fn run(self, every: Duration, stop: CancellationToken) {
        if let Err(error) = self.hydrate().await {
            tracing::error!(logger = "launchtemplate", error = %error, "aws-error-code" = error.code.as_deref(), "unable to hydrate the AWS launch template cache");
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(every) => self.sweep().await,
            }
        }
    }
}
