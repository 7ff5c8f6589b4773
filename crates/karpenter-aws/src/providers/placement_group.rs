//! The placement group of a node class.
//!
//! UPSTREAM: pkg/providers/placementgroup/provider.go

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::api::PlacementGroupSelector;
pub use crate::providers::instance_type::PlacementGroup;
use crate::sdk::terms::filter;
use crate::sdk::{Aws, AwsError};

const REFRESH: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct CachedGroup {
    group: Option<PlacementGroup>,
    until: Instant,
}

/// Resolves and caches the placement groups of node classes.
#[derive(Clone, Debug)]
pub struct PlacementGroups {
    aws: Aws,
    known: Arc<Mutex<HashMap<(bool, String), CachedGroup>>>,
}

/// The call to EC2 failed; the last result may still be valid.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct LookupFailed {
    /// The result of the last successful call.
    pub last: Option<PlacementGroup>,
    #[source]
    pub error: AwsError,
}

impl PlacementGroups {
    /// Creates a resolver whose results expire after a minute.
    #[must_use]
    pub fn new(aws: Aws) -> Self {
        Self {
            aws,
            known: Arc::default(),
        }
    }

    /// Returns the group, if it exists and is available.
    ///
    /// # Errors
    /// If the call to EC2 fails; the error has the last result.
    pub async fn get(
        &self,
        selector: &PlacementGroupSelector,
    ) -> Result<Option<PlacementGroup>, LookupFailed> {
        let key = match (&selector.id, &selector.name) {
            (Some(id), _) => (true, id.clone()),
            (None, Some(name)) => (false, name.clone()),
            (None, None) => return Ok(None),
        };
        if let Some(known) = self
            .known
            .lock()
            .get(&key)
            .filter(|k| Instant::now() < k.until)
        {
            return Ok(known.group.clone());
        }
        let (by_id, wanted) = key.clone();
        let answer = self
            .aws
            .ec2("DescribePlacementGroups", |client| {
                let ask = client
                    .describe_placement_groups()
                    .filters(filter("state", ["available"]));
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
                let last = self.known.lock().get(&key).and_then(|k| k.group.clone());
                return Err(LookupFailed { last, error });
            }
        };
        let known = CachedGroup {
            group: group.clone(),
            until: Instant::now() + REFRESH,
        };
        self.known.lock().insert(key, known);
        Ok(group)
    }
}
