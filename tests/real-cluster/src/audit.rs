//! Requests of Karpenter to the API server, from the audit log.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use anyhow::Result;
use jiff::Timestamp;
use serde::Deserialize;

use crate::helm::Release;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request {
    pub(crate) verb: String,
    #[serde(default)]
    user: User,
    #[serde(default)]
    object_ref: Object,
    #[serde(default)]
    response_status: Answer,
    request_received_timestamp: Timestamp,
    #[serde(default)]
    request_uri: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Object {
    #[serde(rename = "apiGroup")]
    group: String,
    resource: String,
    subresource: String,
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    code: u16,
    message: String,
}

impl Request {
    /// Returns the verb and resource, such as `patch nodeclaims/status`.
    pub(crate) fn what(&self) -> String {
        let object = &self.object_ref;
        let slash = if object.subresource.is_empty() {
            ""
        } else {
            "/"
        };
        let resource = match object.resource.is_empty() {
            true => self.request_uri.split('?').next().unwrap_or_default(),
            false => &object.resource,
        };
        format!("{} {resource}{slash}{}", self.verb, object.subresource)
    }

    /// Returns the API group of the resource.
    pub(crate) fn group(&self) -> &str {
        &self.object_ref.group
    }

    /// Returns the name of the object that it created.
    pub(crate) fn created(&self) -> Option<&str> {
        (self.verb == "create" && self.code() == 201).then_some(&self.object_ref.name)
    }

    /// The HTTP status of the response.
    pub(crate) fn code(&self) -> u16 {
        self.response_status.code
    }

    /// Whether a permission was missing. The API server uses the same status for creating an object in a terminating namespace.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.code() == 403
            && !self
                .response_status
                .message
                .contains("it is being terminated")
    }

    /// Whether it changes nothing.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.verb.as_str(), "get" | "list" | "watch")
    }

    /// Describes the request with its response.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{} {}: {} {}",
            self.what(),
            self.object_ref.name,
            self.response_status.code,
            self.response_status.message
        )
    }
}

/// Returns the requests of a release's controller since a time, in the order of their completion.
pub(crate) fn requests(log: &Path, release: Release, since: Timestamp) -> Result<Vec<Request>> {
    let user = format!(
        "system:serviceaccount:{}:{}",
        release.namespace, release.name
    );
    let file = BufReader::new(std::fs::File::open(log)?);
    let mut requests = Vec::new();
    for line in file.lines() {
        // The last line may be incomplete.
        let Ok(request) = serde_json::from_str::<Request>(&line?) else {
            continue;
        };
        if request.user.username == user && request.request_received_timestamp >= since {
            requests.push(request);
        }
    }
    Ok(requests)
}

/// Counts the requests of each kind and their conflicts, the most frequent first.
pub(crate) fn counts(requests: &[Request]) -> Vec<(String, usize, usize)> {
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for request in requests {
        let (all, conflicts) = counts.entry(request.what()).or_default();
        *all += 1;
        *conflicts += usize::from(request.code() == 409);
    }
    let counts = counts
        .into_iter()
        .map(|(what, (all, bad))| (what, all, bad));
    let mut counts: Vec<_> = counts.collect();
    counts.sort_by_key(|(_, all, _)| std::cmp::Reverse(*all));
    counts
}

/// Returns the longest time in seconds between two successful writes of a resource.
pub(crate) fn longest_gap(requests: &[Request], resource: &str) -> f64 {
    let mut times: Vec<Timestamp> = requests
        .iter()
        .filter(|r| r.object_ref.resource == resource && r.code() < 300 && r.verb != "get")
        .map(|r| r.request_received_timestamp)
        .collect();
    times.sort();
    let gaps = times.windows(2).map(|pair| pair[1].duration_since(pair[0]));
    gaps.map(|gap| gap.as_secs_f64()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn requests_of_other_users_are_ignored_and_conflicts_counted() {
        let line = |user: &str, at: &str, code: u16| {
            format!(
                r#"{{"verb":"patch","user":{{"username":"{user}"}},"objectRef":{{"resource":"nodeclaims","subresource":"status","name":"a"}},"responseStatus":{{"code":{code}}},"requestReceivedTimestamp":"{at}","requestURI":"/apis"}}"#
            )
        };
        let karpenter = "system:serviceaccount:kube-system:karpenter";
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let (early, late) = ("2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:09.000000Z");
        for text in [
            line(karpenter, early, 200),
            line(karpenter, late, 200),
            line(karpenter, late, 409),
            line("other", late, 403),
            "{\"half".to_owned(),
        ] {
            writeln!(file, "{text}").unwrap();
        }
        let since: Timestamp = "2026-01-01T00:00:05Z".parse().unwrap();
        let found = requests(file.path(), crate::helm::KARPENTER, since).unwrap();
        assert_eq!(
            counts(&found),
            [("patch nodeclaims/status".to_owned(), 2, 1)]
        );
    }
}
