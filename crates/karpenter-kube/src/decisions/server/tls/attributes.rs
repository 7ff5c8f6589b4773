//! What a request asks, as the attributes of a review.

use std::fmt;

use http::Request;
use karpenter_dashboard::find;

use crate::decisions::server::query::{Ask, Subject, parse};
use crate::decisions::server::status::Failure;

/// The API group of all reviews.
pub(super) const GROUP: &str = "decisions.karpenter.sh";

/// The attributes of a SubjectAccessReview in the group [`GROUP`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Attributes {
    pub(super) verb: &'static str,
    pub(super) resource: &'static str,
    pub(super) subresource: &'static str,
    /// Empty for all namespaces, and for objects without one.
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Attributes {
    fn new(verb: &'static str, resource: &'static str) -> Self {
        Self {
            verb,
            resource,
            ..Self::default()
        }
    }

    /// The explanations of all pods in a namespace; in all namespaces, if it is empty.
    pub(super) fn pods_of(namespace: &str) -> Self {
        Self {
            subresource: "explanation",
            namespace: namespace.to_owned(),
            ..Self::new("get", "pods")
        }
    }

    /// Returns the namespace that is asked for; empty if it is all of them.
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Reports whether the right is one to all objects of its scope.
    pub(super) fn names_no_object(&self) -> bool {
        self.name.is_empty()
    }
}

impl fmt::Display for Attributes {
    /// As the API server describes a request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} resource \"{}", self.verb, self.resource)?;
        if !self.subresource.is_empty() {
            write!(f, "/{}", self.subresource)?;
        }
        write!(f, "\" in API group \"{GROUP}\"")?;
        if self.namespace.is_empty() {
            f.write_str(" at the cluster scope")
        } else {
            write!(f, " in the namespace \"{}\"", self.namespace)
        }
    }
}

/// Returns the attributes of a request and what it asks, which is nothing if it is for a file of the page: this says nothing about
/// the cluster.
///
/// # Errors
/// If it asks nothing that can be asked.
pub(super) fn of<B>(request: &Request<B>) -> Result<(Attributes, Option<Ask>), Failure> {
    if find(request.uri().path()).is_some() {
        return Ok((Attributes::new("get", "overviews"), None));
    }
    let ask = parse(request.uri().path(), request.uri().query())?;
    Ok((asked(&ask), Some(ask)))
}

fn asked(ask: &Ask) -> Attributes {
    let reading = |watch: bool, otherwise| if watch { "watch" } else { otherwise };
    match ask {
        Ask::Decisions(select) => Attributes::new(reading(select.watch, "list"), "decisions"),
        Ask::Overview { watch } => Attributes::new(reading(*watch, "get"), "overviews"),
        Ask::PodsByReason | Ask::NodesByReason => Attributes::new("list", "explanations"),
        Ask::Plan { .. } => Attributes::new("create", "plans"),
        Ask::Bundle { .. } => Attributes::new("get", "bundles"),
        Ask::Shadow { .. } => Attributes::new("get", "shadow"),
        Ask::Blockers { namespace } => Attributes {
            namespace: namespace.clone().unwrap_or_default(),
            ..Attributes::new("get", "blockers")
        },
        Ask::Explain { subject, .. } => {
            let (resource, namespace, name) = match subject {
                Subject::Pod { namespace, name } => ("pods", namespace.as_str(), name),
                Subject::Node(name) => ("nodes", "", name),
                Subject::NodeClaim(name) => ("nodeclaims", "", name),
                Subject::NodePool(name) => ("nodepools", "", name),
            };
            Attributes {
                subresource: "explanation",
                namespace: namespace.to_owned(),
                name: name.clone(),
                ..Attributes::new("get", resource)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(path: &str) -> String {
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/apis/decisions.karpenter.sh/v1alpha1/{path}")
        };
        let request = Request::builder().uri(path).body(()).unwrap();
        of(&request).map_or_else(|_| "unknown".to_owned(), |(it, _)| it.to_string())
    }

    #[test]
    fn each_question_has_a_resource_of_its_own() {
        let group = "in API group \"decisions.karpenter.sh\"";
        for (path, verb, resource, scope) in [
            ("/", "get", "overviews", ""),
            ("overview", "get", "overviews", ""),
            ("overview?watch=true", "watch", "overviews", ""),
            ("decisions", "list", "decisions", ""),
            ("decisions?watch=true", "watch", "decisions", ""),
            ("explanations?of=pods", "list", "explanations", ""),
            ("blockers", "get", "blockers", ""),
            ("blockers?namespace=shop", "get", "blockers", "shop"),
            (
                "namespaces/shop/pods/a/explanation",
                "get",
                "pods/explanation",
                "shop",
            ),
            ("nodes/a/explanation", "get", "nodes/explanation", ""),
            (
                "nodeclaims/a/explanation",
                "get",
                "nodeclaims/explanation",
                "",
            ),
            (
                "nodepools/a/explanation",
                "get",
                "nodepools/explanation",
                "",
            ),
        ] {
            let scope = match scope {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace \"{namespace}\""),
            };
            let expected = format!("cannot {verb} resource \"{resource}\" {group} {scope}");
            assert_eq!(described(path), expected, "{path}");
        }
        assert_eq!(described("secrets"), "unknown");
    }
}
