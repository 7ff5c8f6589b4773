//! Security groups of a node class.
//!
//! UPSTREAM: pkg/providers/securitygroup/securitygroup.go

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_ec2::types::Filter;

use crate::api::{EC2NodeClass, SecurityGroup};
use crate::sdk::pages::list_all;
use crate::sdk::terms::{ClassVersion, TtlCache, class_version, filter, tag_filters};
use crate::sdk::{Aws, AwsError};

const REFRESH: Duration = Duration::from_secs(60);
const PAGE: i32 = 500;

/// Resolves and caches the security groups of node classes.
#[derive(Clone, Debug)]
pub struct SecurityGroups {
    aws: Aws,
    found: Arc<TtlCache<ClassVersion, Arc<[SecurityGroup]>>>,
}

impl SecurityGroups {
    /// Creates a resolver whose results expire after a minute.
    #[must_use]
    pub fn new(aws: Aws) -> Self {
        Self {
            aws,
            found: Arc::new(TtlCache::new(REFRESH)),
        }
    }

    /// Returns the groups the node class selects, ordered by ID.
    ///
    /// # Errors
    /// If a call to EC2 fails.
    pub async fn list(&self, class: &EC2NodeClass) -> Result<Arc<[SecurityGroup]>, AwsError> {
        let version = class_version(class);
        if let Some(found) = self.found.get(&version) {
            return Ok(found);
        }
        let terms = &class.spec.security_group_selector_terms;
        let named = |name: &str, values: Vec<&str>| {
            (!values.is_empty()).then(|| vec![filter(name, values)])
        };
        let ids = terms.iter().filter_map(|t| t.id.as_deref()).collect();
        let names = terms
            .iter()
            .filter(|t| t.id.is_none())
            .filter_map(|t| t.name.as_deref())
            .collect();
        let tagged = terms
            .iter()
            .filter(|t| t.id.is_none() && t.name.is_none())
            .filter_map(|t| t.tags.as_ref().map(tag_filters));
        let questions = named("group-id", ids)
            .into_iter()
            .chain(named("group-name", names))
            .chain(tagged);
        let answers = questions.map(|filters| self.describe(filters));
        let mut groups: BTreeMap<String, SecurityGroup> = BTreeMap::new();
        for answer in futures::future::join_all(answers).await {
            groups.extend(answer?.into_iter().map(|g| (g.id.clone(), g)));
        }
        let groups: Arc<[SecurityGroup]> = groups.into_values().collect();
        self.found.put(version, Arc::clone(&groups));
        Ok(groups)
    }

    async fn describe(&self, filters: Vec<Filter>) -> Result<Vec<SecurityGroup>, AwsError> {
        let filters = &filters;
        let ask = |token: Option<String>| {
            self.aws.ec2("DescribeSecurityGroups", move |client| {
                client
                    .describe_security_groups()
                    .set_filters(Some(filters.clone()))
                    .max_results(PAGE)
                    .set_next_token(token.clone())
                    .send()
            })
        };
        list_all(ask, |page| {
            let groups = page.security_groups.unwrap_or_default().into_iter();
            groups.filter_map(|raw| {
                let (id, name) = (raw.group_id?, raw.group_name);
                Some(SecurityGroup { id, name })
            })
        })
        .await
    }
}
