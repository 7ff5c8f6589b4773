//! The placement group of a node class.
//!
//! UPSTREAM: pkg/providers/placementgroup/provider.go

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::api::PlacementGroupSelector;
pub use crate::instance_types::PlacementGroup;
use crate::sdk::{Aws, AwsError};

const REFRESH: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Known {
    group: Option<PlacementGroup>,
    until: Instant,
}

/// The placement groups of node classes.
#[derive(Clone, Debug)]
pub struct PlacementGroups {
    aws: Aws,
    known: Arc<Mutex<HashMap<(bool, String), Known>>>,
}

/// EC2 could not be asked; what was known before may still be right.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unanswered {
    /// What it was at the last answer.
    pub last: Option<PlacementGroup>,
    /// Why there is no answer.
    #[source]
    pub error: AwsError,
}

impl PlacementGroups {
    /// Groups that are asked for anew every minute.
    #[must_use]
    pub fn new(aws: Aws) -> Self {
        Self {
            aws,
            known: Arc::default(),
        }
    }

    /// The group, if it exists and can be launched into.
    ///
    /// # Errors
    /// When EC2 cannot be asked; with what it said last.
    pub async fn get(
        &self,
        selector: &PlacementGroupSelector,
    ) -> Result<Option<PlacementGroup>, Unanswered> {
        let key = match (&selector.id, &selector.name) {
            (Some(id), _) => (true, id.clone()),
            (None, Some(name)) => (false, name.clone()),
            (None, None) => return Ok(None),
        };
        if let Some(known) = self.lock().get(&key).filter(|k| Instant::now() < k.until) {
            return Ok(known.group.clone());
        }
        let (by_id, wanted) = key.clone();
        let answer = self
            .aws
            .ec2("DescribePlacementGroups", |client| {
                let ask = client
                    .describe_placement_groups()
                    .filters(crate::instances::filter("state", ["available"]));
                let ask = if by_id {
                    ask.group_ids(&wanted)
                } else {
                    ask.group_names(&wanted)
                };
                ask.send()
            })
            .await;
        let group = match answer {
            Ok(answer) => answer.placement_groups().iter().find_map(|raw| {
                Some(PlacementGroup {
                    id: raw.group_id()?.to_owned(),
                    name: raw.group_name().unwrap_or_default().to_owned(),
                    strategy: raw.strategy()?.as_str().to_owned(),
                    partitions: u32::try_from(raw.partition_count().unwrap_or(0)).unwrap_or(0),
                })
            }),
            Err(error) if error.is_not_found() => None,
            Err(error) => {
                let last = self.lock().get(&key).and_then(|k| k.group.clone());
                return Err(Unanswered { last, error });
            }
        };
        let known = Known {
            group: group.clone(),
            until: Instant::now() + REFRESH,
        };
        self.lock().insert(key, known);
        Ok(group)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(bool, String), Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
