//! Role-based access control for requests of service accounts. Requests without a service account are the administrator's.
//!
//! The rules are those of the stored Roles and ClusterRoles and their bindings, and of the two roles that every cluster binds to
//! all authenticated users: discovery, and reviews of their own permissions. Roles are not aggregated, and privilege escalation
//! is not prevented.

use std::borrow::Cow;

use http::request::Parts;
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::server::ApiServer;
use crate::server::catalog::Served;
use crate::server::wire::error::ApiError;
use crate::server::wire::request::Call;

/// Paths that all authenticated users may read: UPSTREAM: kubernetes bootstrappolicy/policy.go, `system:discovery`.
const DISCOVERY: [&str; 7] = [
    "/api", "/apis", "/healthz", "/livez", "/openapi", "/readyz", "/version",
];

/// A service account, whose requests are checked against the roles bound to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    pub namespace: String,
    pub name: String,
}

impl ServiceAccount {
    fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }

    fn is(&self, subject: &Subject) -> bool {
        match subject.kind.as_str() {
            "ServiceAccount" => {
                subject.name == self.name && subject.namespace.as_ref() == Some(&self.namespace)
            }
            "User" => subject.name == self.user(),
            "Group" => {
                let of_namespace = format!("system:serviceaccounts:{}", self.namespace);
                let all = ["system:serviceaccounts", "system:authenticated"];
                all.contains(&subject.name.as_str()) || subject.name == of_namespace
            }
            _ => false,
        }
    }
}

/// The attributes of a request.
#[derive(Debug)]
enum Wish<'a> {
    Resource {
        verb: &'a str,
        group: &'a str,
        /// `pods`, `pods/eviction`.
        resource: Cow<'a, str>,
        namespace: Option<&'a str>,
        name: Option<&'a str>,
    },
    Path {
        verb: &'a str,
        path: &'a str,
    },
}

impl<'a> Wish<'a> {
    fn resource(
        verb: &'a str,
        group: &'a str,
        plural: &'a str,
        subresource: Option<&str>,
        namespace: Option<&'a str>,
        name: Option<&'a str>,
    ) -> Self {
        Self::Resource {
            verb,
            group,
            resource: match subresource {
                None | Some("") => plural.into(),
                Some(subresource) => format!("{plural}/{subresource}").into(),
            },
            namespace,
            name,
        }
    }

    fn of(call: &'a Call, verb: &'a str) -> Self {
        let target = &call.target;
        // A list with a field selector for one name may be allowed to users who may not list other objects.
        let selected = matches!(verb, "list" | "watch")
            .then(|| selected_name(&call.options.field_selector))
            .flatten();
        let name = target.name.as_deref().or(selected);
        let namespace = match target.plural.as_str() {
            "namespaces" => name,
            _ => target.namespace.as_deref(),
        };
        Self::resource(
            verb,
            &target.group,
            &target.plural,
            target.subresource.as_deref(),
            namespace,
            name,
        )
    }

    fn is_allowed_by(&self, rule: &PolicyRule) -> bool {
        let holds = |values: &Option<Vec<String>>, wanted: &str| {
            let values = values.as_deref().unwrap_or_default();
            values.iter().any(|value| value == "*" || value == wanted)
        };
        match self {
            Self::Resource {
                verb,
                group,
                resource,
                name,
                ..
            } => {
                let names = rule.resource_names.as_deref().unwrap_or_default();
                rule.verbs.iter().any(|value| value == "*" || value == verb)
                    && holds(&rule.api_groups, group)
                    && (holds(&rule.resources, resource)
                        || holds_any_of_subresource(rule, resource))
                    && (names.is_empty()
                        || name.is_some_and(|name| names.iter().any(|known| known == name)))
            }
            Self::Path { verb, path } => {
                let paths = rule.non_resource_urls.as_deref().unwrap_or_default();
                rule.verbs.iter().any(|value| value == "*" || value == verb)
                    && paths.iter().any(|known| match known.strip_suffix('*') {
                        Some(beginning) => path.starts_with(beginning),
                        None => known == path,
                    })
            }
        }
    }

    /// Returns the permissions of all authenticated users.
    fn is_allowed_to_all(&self) -> bool {
        match self {
            Self::Resource {
                verb,
                group,
                resource,
                ..
            } => {
                *verb == "create"
                    && *group == "authorization.k8s.io"
                    && resource == "selfsubjectaccessreviews"
            }
            Self::Path { verb, path } => {
                *verb == "get"
                    && DISCOVERY.iter().any(|known| {
                        let rest = path.strip_prefix(known);
                        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                    })
            }
        }
    }

    /// Returns the denial, with Kubernetes' message.
    fn refused(&self, account: &ServiceAccount) -> ApiError {
        let user = account.user();
        match self {
            Self::Path { verb, path } => {
                let message = format!("forbidden: User \"{user}\" cannot {verb} path \"{path}\"");
                ApiError::new(403, "Forbidden", message).with_details(json!({}))
            }
            Self::Resource {
                verb,
                group,
                resource,
                namespace,
                name,
            } => {
                let plural = resource.split('/').next().unwrap_or_default();
                let qualified = match *group {
                    "" => plural.to_owned(),
                    group => format!("{plural}.{group}"),
                };
                let named = name.map_or_else(String::new, |name| format!(" \"{name}\""));
                let place = match namespace {
                    Some(namespace) => format!("in the namespace \"{namespace}\""),
                    None => "at the cluster scope".to_owned(),
                };
                let message = format!(
                    "{qualified}{named} is forbidden: User \"{user}\" cannot {verb} resource \"{resource}\" in API group \"{group}\" {place}"
                );
                let mut details = json!({"kind": plural});
                if let Some(name) = name {
                    details["name"] = (*name).into();
                }
                if !group.is_empty() {
                    details["group"] = (*group).into();
                }
                ApiError::new(403, "Forbidden", message).with_details(details)
            }
        }
    }
}

/// Whether a rule grants this subresource of all resources, as `*/scale` does.
fn holds_any_of_subresource(rule: &PolicyRule, resource: &str) -> bool {
    let Some((_, subresource)) = resource.split_once('/') else {
        return false;
    };
    let resources = rule.resources.as_deref().unwrap_or_default();
    resources
        .iter()
        .any(|known| known.strip_prefix("*/") == Some(subresource))
}

/// Returns the name, if a field selector requires a single name.
fn selected_name(selector: &str) -> Option<&str> {
    selector.split(',').find_map(|term| {
        let (field, value) = term.split_once('=')?;
        (field == "metadata.name").then(|| value.trim_start_matches('='))
    })
}

impl ApiServer {
    /// Denies requests that the roles of the request's service account do not allow.
    ///
    /// # Errors
    /// 403, with the account and the missing permission.
    pub(in crate::server) fn authorize(
        &self,
        parts: &Parts,
        call: &Call,
        verb: &str,
        served: &Served,
    ) -> Result<(), ApiError> {
        let Some(account) = parts.extensions.get::<ServiceAccount>() else {
            return Ok(());
        };
        self.require(account, &Wish::of(call, verb))?;
        let creates = verb == "patch"
            && call.content_type.starts_with("application/apply-patch")
            && call.target.name.as_deref().is_some_and(|name| {
                let key = served.key(call.target.namespace.as_deref(), name);
                served.collection.get(&key).is_none()
            });
        if creates {
            self.require(account, &Wish::of(call, "create"))?;
        }
        Ok(())
    }

    /// Like `authorize`, for requests without a resource.
    ///
    /// # Errors
    /// 403.
    pub(in crate::server) fn authorize_path(&self, parts: &Parts) -> Result<(), ApiError> {
        let Some(account) = parts.extensions.get::<ServiceAccount>() else {
            return Ok(());
        };
        let verb = parts.method.as_str().to_ascii_lowercase();
        let path = parts.uri.path();
        self.require(account, &Wish::Path { verb: &verb, path })
    }

    /// Like `authorize`, for resources that are not stored.
    ///
    /// # Errors
    /// 403.
    pub(in crate::server) fn authorize_virtual(
        &self,
        parts: &Parts,
        group: &str,
        plural: &str,
    ) -> Result<(), ApiError> {
        let Some(account) = parts.extensions.get::<ServiceAccount>() else {
            return Ok(());
        };
        let wish = Wish::resource("create", group, plural, None, None, None);
        self.require(account, &wish)
    }

    /// Whether the request of a `SelfSubjectAccessReview` is allowed.
    pub(in crate::server) fn review(&self, parts: &Parts, spec: &Value) -> bool {
        let Some(account) = parts.extensions.get::<ServiceAccount>() else {
            return true;
        };
        let text = |at: &str| {
            let value = spec.pointer(at).and_then(Value::as_str);
            value.filter(|value| !value.is_empty())
        };
        let wish = match spec.get("resourceAttributes") {
            Some(_) => Wish::resource(
                text("/resourceAttributes/verb").unwrap_or_default(),
                text("/resourceAttributes/group").unwrap_or_default(),
                text("/resourceAttributes/resource").unwrap_or_default(),
                text("/resourceAttributes/subresource"),
                text("/resourceAttributes/namespace"),
                text("/resourceAttributes/name"),
            ),
            None => Wish::Path {
                verb: text("/nonResourceAttributes/verb").unwrap_or_default(),
                path: text("/nonResourceAttributes/path").unwrap_or_default(),
            },
        };
        self.is_allowed(account, &wish)
    }

    /// Returns the denied requests so far, each once, with the message of the response.
    #[must_use]
    pub fn refusals(&self) -> Vec<String> {
        self.refusals.lock().clone()
    }

    fn require(&self, account: &ServiceAccount, wish: &Wish<'_>) -> Result<(), ApiError> {
        if self.is_allowed(account, wish) {
            return Ok(());
        }
        let refused = wish.refused(account);
        let mut refusals = self.refusals.lock();
        if !refusals.contains(&refused.message) {
            refusals.push(refused.message.clone());
        }
        Err(refused)
    }

    fn is_allowed(&self, account: &ServiceAccount, wish: &Wish<'_>) -> bool {
        let binds = |subjects: &Option<Vec<Subject>>| {
            let subjects = subjects.as_deref().unwrap_or_default();
            subjects.iter().any(|subject| account.is(subject))
        };
        let of_cluster = self
            .all::<ClusterRoleBinding>("clusterrolebindings", None)
            .into_iter()
            .filter(|binding| binds(&binding.subjects))
            .flat_map(|binding| self.rules(&binding.role_ref, None));
        let namespace = match wish {
            Wish::Resource { namespace, .. } => *namespace,
            Wish::Path { .. } => None,
        };
        let of_namespace = namespace.into_iter().flat_map(|namespace| {
            self.all::<RoleBinding>("rolebindings", Some(namespace))
                .into_iter()
                .filter(|binding| binds(&binding.subjects))
                .flat_map(|binding| self.rules(&binding.role_ref, Some(namespace)))
                .collect::<Vec<_>>()
        });
        wish.is_allowed_to_all()
            || of_cluster
                .chain(of_namespace)
                .any(|rule| wish.is_allowed_by(&rule))
    }

    fn rules(&self, role: &RoleRef, namespace: Option<&str>) -> Vec<PolicyRule> {
        let rules = match role.kind.as_str() {
            "ClusterRole" => self
                .one::<ClusterRole>("clusterroles", None, &role.name)
                .and_then(|role| role.rules),
            _ => self
                .one::<Role>("roles", namespace, &role.name)
                .and_then(|role| role.rules),
        };
        rules.unwrap_or_default()
    }

    fn one<K: DeserializeOwned>(
        &self,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<K> {
        let served = self.catalog.find(GROUP, "v1", plural)?;
        let object = served.collection.get(&served.key(namespace, name))?;
        serde_json::from_slice(object.bytes()).ok()
    }

    fn all<K: DeserializeOwned>(&self, plural: &str, namespace: Option<&str>) -> Vec<K> {
        let Some(served) = self.catalog.find(GROUP, "v1", plural) else {
            return Vec::new();
        };
        let objects = served.collection.all(namespace);
        objects
            .iter()
            .filter_map(|object| serde_json::from_slice(object.bytes()).ok())
            .collect()
    }
}

const GROUP: &str = "rbac.authorization.k8s.io";
