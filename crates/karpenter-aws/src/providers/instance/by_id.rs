//! Batches of requests for single instances. An ID that EC2 refuses must not fail the others of its batch.
//!
//! UPSTREAM: pkg/batcher/describeinstances.go, terminateinstances.go

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures::future::{BoxFuture, join_all};

use super::types::{Instance, STATES};
use crate::sdk::pages::each_page;
use crate::sdk::terms::filter;
use crate::sdk::{Aws, AwsError};

/// Returns the ids among `ids` that an error names.
fn named(error: &AwsError, ids: &BTreeSet<String>) -> BTreeSet<String> {
    let words = error
        .message
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter_map(|word| ids.get(word).cloned()).collect()
}

/// The result for each ID; an ID without an entry is unknown to EC2.
type Each<T> = HashMap<String, Result<T, AwsError>>;

/// Up to this many IDs are tried one by one instead of by halves.
const MAX_SINGLY: usize = 8;

/// IDs that were refused together, and how they are retried.
#[derive(Clone, Debug)]
struct IdBatch {
    ids: BTreeSet<String>,
    /// Whether the IDs are the rest of a request whose error named one of them. Such a rest is halved: if each error
    /// named another ID, the number of calls would grow with the number of IDs.
    rest: bool,
}

impl IdBatch {
    fn new(ids: BTreeSet<String>) -> Self {
        Self { ids, rest: false }
    }

    /// Splits the IDs so that those that AWS refuses do not fail the others: the IDs that the error names are tried
    /// apart, else halves, and finally each ID alone.
    fn split(self, error: &AwsError) -> Vec<Self> {
        let bad = named(error, &self.ids);
        let several = !bad.is_empty() && bad.len() < self.ids.len();
        if several && (error.is_not_found() || !self.rest) {
            let (bad, good) = self.ids.into_iter().partition(|id| bad.contains(id));
            let rest = Self {
                ids: good,
                rest: true,
            };
            return vec![rest, Self::new(bad)];
        }
        let size = if self.ids.len() <= MAX_SINGLY {
            1
        } else {
            self.ids.len().div_ceil(2)
        };
        let ids: Vec<String> = self.ids.into_iter().collect();
        ids.chunks(size)
            .map(|ids| Self::new(ids.iter().cloned().collect()))
            .collect()
    }

    /// Returns the error for all of the IDs.
    fn all<T>(&self, error: &AwsError) -> Each<T> {
        let each = self.ids.iter().cloned();
        each.map(|id| (id, Err(error.clone()))).collect()
    }
}

/// Describes instances; those that EC2 does not know are missing in the result.
fn describe_some(
    aws: Aws,
    asked: IdBatch,
    reserved_capacity: bool,
) -> BoxFuture<'static, Each<Arc<Instance>>> {
    Box::pin(async move {
        let mut pages = Vec::new();
        let answer = {
            let (aws, ids) = (&aws, &asked.ids);
            let ask = |token: Option<String>| {
                aws.ec2("DescribeInstances", move |client| {
                    client
                        .describe_instances()
                        .set_instance_ids(Some(ids.iter().cloned().collect()))
                        .filters(filter("instance-state-name", STATES))
                        .set_next_token(token.clone())
                        .send()
                })
            };
            each_page(ask, |page| pages.push(page)).await
        };
        match answer {
            Ok(()) => {}
            // Permission to describe instances is granted for all instances or none.
            Err(error) if asked.ids.len() > 1 && error.is_refusal() && !error.is_forbidden() => {
                let parts = asked.split(&error).into_iter();
                let parts = parts.map(|part| describe_some(aws.clone(), part, reserved_capacity));
                return join_all(parts).await.into_iter().flatten().collect();
            }
            Err(error) if error.is_not_found() => return Each::new(),
            Err(error) => return asked.all(&error),
        }
        let all = pages.iter().flat_map(|page| page.reservations());
        let read = all.flat_map(|r| r.instances()).filter_map(|raw| {
            let id = raw.instance_id()?.to_owned();
            Some((id, Instance::read(raw, reserved_capacity).map(Arc::new)))
        });
        read.collect()
    })
}

/// Describes instances; `None` for those that EC2 does not know.
pub(super) async fn describe(
    aws: Aws,
    ids: Vec<String>,
    reserved_capacity: bool,
) -> Vec<Result<Option<Arc<Instance>>, AwsError>> {
    let unique: BTreeSet<String> = ids.iter().cloned().collect();
    let asked = IdBatch::new(unique.clone());
    let mut found = describe_some(aws.clone(), asked, reserved_capacity).await;
    // EC2 is eventually consistent: instances missing in the response are described once more.
    let absent: BTreeSet<String> = unique
        .into_iter()
        .filter(|id| !found.contains_key(id))
        .collect();
    let alone = ids.len() == absent.len() && absent.len() == 1;
    if !absent.is_empty() && !alone {
        found.extend(describe_some(aws, IdBatch::new(absent), reserved_capacity).await);
    }
    ids.iter()
        .map(|id| found.get(id).cloned().transpose())
        .collect()
}

/// Terminates instances. Returns the IDs whose termination EC2 confirms, and the errors of the others.
///
/// UPSTREAM: pkg/batcher/terminateinstances.go, which retries each ID alone after any failure.
fn terminate_some(aws: Aws, asked: IdBatch) -> BoxFuture<'static, Each<()>> {
    Box::pin(async move {
        let answer = aws
            .ec2("TerminateInstances", |client| {
                client
                    .terminate_instances()
                    .set_instance_ids(Some(asked.ids.iter().cloned().collect()))
                    .send()
            })
            .await;
        match answer {
            Ok(answer) => answer
                .terminating_instances()
                .iter()
                .filter(|change| {
                    let state = change.current_state().and_then(|s| s.name());
                    state.is_some_and(|s| matches!(s.as_str(), "shutting-down" | "terminated"))
                })
                .filter_map(|change| Some((change.instance_id()?.to_owned(), Ok(()))))
                .collect(),
            // An instance with termination protection, or one that a policy excludes, must not keep the others from
            // being terminated.
            Err(error) if asked.ids.len() > 1 && error.is_refusal() => {
                let parts = asked.split(&error).into_iter();
                let parts = parts.map(|part| terminate_some(aws.clone(), part));
                join_all(parts).await.into_iter().flatten().collect()
            }
            Err(error) if error.is_not_found() => Each::new(),
            Err(error) => asked.all(&error),
        }
    })
}

/// Terminates instances. Returns for each whether EC2 confirms its termination; `false` if EC2 does not know it.
pub(super) async fn terminate(aws: Aws, ids: Vec<String>) -> Vec<Result<bool, AwsError>> {
    let unique: BTreeSet<String> = ids.iter().cloned().collect();
    let several = unique.len() > 1;
    let asked = IdBatch::new(unique.clone());
    let mut ended = terminate_some(aws.clone(), asked).await;
    let left: BTreeSet<String> = unique
        .into_iter()
        .filter(|id| !ended.contains_key(id))
        .collect();
    if several && !left.is_empty() {
        ended.extend(terminate_some(aws, IdBatch::new(left)).await);
    }
    ids.iter()
        .map(|id| match ended.get(id) {
            Some(Ok(())) => Ok(true),
            Some(Err(error)) => Err(error.clone()),
            None => Ok(false),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_ec2_names_are_split_off_and_others_are_tried_by_halves() {
        let ids = |ids: &[&str]| IdBatch::new(ids.iter().map(|id| (*id).to_owned()).collect());
        let split = |together: IdBatch, code: &str, message: &str| -> Vec<Vec<String>> {
            let error = AwsError::refused("TerminateInstances", code, message);
            let parts = together.split(&error).into_iter();
            parts.map(|part| part.ids.into_iter().collect()).collect()
        };
        let few = || ids(&["i-1", "i-2", "i-3", "i-4"]);
        let (unknown, protected) = ("InvalidInstanceID.NotFound", "OperationNotPermitted");
        assert_eq!(
            split(few(), unknown, "The instance IDs 'i-2, i-4' do not exist"),
            [["i-1", "i-3"], ["i-2", "i-4"]]
        );
        assert_eq!(
            split(few(), unknown, "some do not exist"),
            [["i-1"], ["i-2"], ["i-3"], ["i-4"]]
        );
        let rest = IdBatch {
            rest: true,
            ..few()
        };
        assert_eq!(
            split(rest, protected, "'i-2' may not be terminated").len(),
            4,
            "no chain of names"
        );
        let many: BTreeSet<String> = (0..20).map(|n| format!("i-{n}")).collect();
        let halves = split(IdBatch::new(many), protected, "no name");
        assert_eq!((halves[0].len(), halves[1].len()), (10, 10));
    }
}
