//! Parses requests: path, query, media types, body.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::request::Parts;
use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::faults::Fault;
use crate::present::protobuf;
use crate::registry::Registry;
use crate::server::wire::error::ApiError;

/// The largest accepted body, as in kube-apiserver.
pub const MAX_BODY: usize = 3 * 1024 * 1024;

/// The object, collection or subresource of a path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Target {
    /// The API group, empty for core.
    pub group: String,
    pub version: String,
    /// The namespace, when the path has one.
    pub namespace: Option<String>,
    pub plural: String,
    /// The object's name, when the path has one.
    pub name: Option<String>,
    /// The subresource, when the path has one.
    pub subresource: Option<String>,
}

impl Target {
    /// Parses `/api/V/…` and `/apis/G/V/…`.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        let mut segments = path.trim_matches('/').split('/').map(decode);
        let (group, version) = match segments.next()?.as_str() {
            "api" => (String::new(), segments.next()?),
            "apis" => (segments.next()?, segments.next()?),
            _ => return None,
        };
        let rest: Vec<String> = segments.collect();
        let mut target = Self {
            group,
            version,
            ..Self::default()
        };
        let rest = match rest.as_slice() {
            // A namespace's own status and finalize subresources are not resources inside it.
            [ns, name, sub] if ns == "namespaces" && (sub == "status" || sub == "finalize") => {
                target.plural = "namespaces".into();
                target.name = Some(name.clone());
                target.subresource = Some(sub.clone());
                return Some(target);
            }
            [ns, name, rest @ ..] if ns == "namespaces" && !rest.is_empty() => {
                target.namespace = Some(name.clone());
                rest
            }
            all => all,
        };
        match rest {
            [plural] => target.plural.clone_from(plural),
            [plural, name] => {
                target.plural.clone_from(plural);
                target.name = Some(name.clone());
            }
            [plural, name, sub @ ..] if !sub.is_empty() => {
                target.plural.clone_from(plural);
                target.name = Some(name.clone());
                target.subresource = Some(sub.join("/"));
            }
            _ => return None,
        }
        Some(target)
    }
}

fn decode(segment: &str) -> String {
    percent_decode_str(segment).decode_utf8_lossy().into_owned()
}

/// How unknown and duplicate fields are treated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    /// Dropped with a warning header.
    #[default]
    Warn,
    Strict,
}

/// The supported query parameters.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub watch: bool,
    pub label_selector: String,
    pub field_selector: String,
    pub resource_version: String,
    pub resource_version_match: String,
    pub limit: usize,
    pub continue_token: String,
    pub timeout_seconds: Option<u64>,
    /// `allowWatchBookmarks`.
    pub bookmarks: bool,
    /// `dryRun=All`.
    pub dry_run: bool,
    pub field_manager: String,
    pub field_validation: FieldValidation,
    pub force: bool,
    pub include_object: String,
    pub propagation_policy: Option<String>,
    pub grace_period_seconds: Option<i64>,
    pub orphan_dependents: Option<bool>,
}

impl Options {
    /// Parses a query string; unknown parameters are ignored.
    ///
    /// # Errors
    /// 400 or 422 for invalid values.
    pub fn parse(query: &str) -> Result<Self, ApiError> {
        let mut options = Self::default();
        for pair in query.split('&').filter(|p| !p.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(&value.replace('+', " "));
            let flag = || {
                matches!(
                    value.as_str(),
                    "true" | "1" | "t" | "T" | "TRUE" | "True" | ""
                )
            };
            match decode(key).as_str() {
                "watch" => options.watch = flag(),
                "labelSelector" => options.label_selector = value,
                "fieldSelector" => options.field_selector = value,
                "resourceVersion" => options.resource_version = value,
                "resourceVersionMatch" => options.resource_version_match = value,
                "limit" => options.limit = integer(key, &value)?.try_into().unwrap_or(0),
                "continue" => options.continue_token = value,
                "timeoutSeconds" => {
                    options.timeout_seconds = u64::try_from(integer(key, &value)?).ok();
                }
                "allowWatchBookmarks" => options.bookmarks = flag(),
                "dryRun" => match value.as_str() {
                    "All" => options.dry_run = true,
                    "" => {}
                    other => {
                        return Err(ApiError::bad_request(format!(
                            "dryRun: Unsupported value: \"{other}\": supported values: \"All\""
                        )));
                    }
                },
                "fieldManager" => options.field_manager = value,
                "fieldValidation" => {
                    options.field_validation = match value.as_str() {
                        "Ignore" => FieldValidation::Ignore,
                        "Warn" | "" => FieldValidation::Warn,
                        "Strict" => FieldValidation::Strict,
                        other => {
                            return Err(ApiError::bad_request(format!(
                                "fieldValidation: Unsupported value: \"{other}\": supported values: \"Ignore\", \"Strict\", \"Warn\""
                            )));
                        }
                    }
                }
                "force" => options.force = flag(),
                "includeObject" => options.include_object = value,
                "propagationPolicy" => options.propagation_policy = Some(value),
                "gracePeriodSeconds" => options.grace_period_seconds = Some(integer(key, &value)?),
                "orphanDependents" => options.orphan_dependents = Some(flag()),
                _ => {}
            }
        }
        Ok(options)
    }
}

fn integer(key: &str, value: &str) -> Result<i64, ApiError> {
    value.parse().map_err(|_| {
        ApiError::bad_request(format!(
            "strconv.ParseInt: parsing \"{value}\": invalid syntax (parameter `{key}`)"
        ))
    })
}

/// The representation of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    Plain,
    /// `as=Table`.
    Table,
    /// `as=PartialObjectMetadata` and its list.
    Metadata,
}

#[derive(Debug)]
pub struct Call {
    pub method: Method,
    pub target: Target,
    pub options: Options,
    /// The `Content-Type` without parameters, lower case; empty when absent.
    pub content_type: String,
    /// The representation of the response.
    pub view: View,
    /// `User-Agent` up to the first slash.
    pub agent: String,
    pub body: Bytes,
    /// The schemas for protobuf bodies.
    pub registry: Arc<Registry>,
    pub faults: Vec<Fault>,
}

impl Call {
    /// Parses all but the path.
    ///
    /// # Errors
    /// 400 for the query, 406 for the requested media type.
    pub fn new(
        parts: &Parts,
        target: Target,
        body: Bytes,
        registry: Arc<Registry>,
    ) -> Result<Self, ApiError> {
        let text = |name| {
            parts
                .headers
                .get(name)
                .and_then(|v| v.to_str().ok())
                .unwrap_or_default()
        };
        Ok(Self {
            method: parts.method.clone(),
            target,
            options: Options::parse(parts.uri.query().unwrap_or_default())?,
            content_type: media_type(text(CONTENT_TYPE)),
            view: view(text(ACCEPT))?,
            agent: text(USER_AGENT)
                .split('/')
                .next()
                .unwrap_or_default()
                .to_owned(),
            body,
            registry,
            faults: Vec::new(),
        })
    }

    /// Returns the body as JSON, from JSON, YAML or protobuf, with the strict decoder's messages about duplicate fields.
    ///
    /// # Errors
    /// 415 for other media types, 400 for invalid bodies.
    pub fn object(&self) -> Result<Value, ApiError> {
        decode_object(&self.content_type, &self.body, &self.registry)
    }

    /// Returns the body as a patch: YAML is allowed for apply only.
    ///
    /// # Errors
    /// 400 for invalid bodies.
    pub fn patch_body(&self) -> Result<Value, ApiError> {
        if self.content_type == "application/apply-patch+yaml" {
            return yaml(&self.body);
        }
        serde_json::from_slice(&self.body)
            .map_err(|e| ApiError::bad_request(format!("error decoding patch: {e}")))
    }

    /// Returns the writer, for managed fields.
    #[must_use]
    pub fn manager(&self) -> &str {
        if !self.options.field_manager.is_empty() {
            &self.options.field_manager
        } else if self.agent.is_empty() {
            "unknown"
        } else {
            &self.agent
        }
    }
}

/// Returns a media type without parameters, lower case.
pub fn media_type(header: &str) -> String {
    header
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}

/// Parses a body of this media type.
///
/// # Errors
/// 415 for other media types, 400 for invalid bodies.
pub fn decode_object(
    content_type: &str,
    body: &Bytes,
    registry: &Registry,
) -> Result<Value, ApiError> {
    match content_type {
        "" | "application/json" | "*/*" => json(body),
        "application/yaml" | "application/x-yaml" | "text/yaml" => yaml(body),
        "application/vnd.kubernetes.protobuf" => {
            protobuf::decode(body, registry).map_err(|e| ApiError::bad_request(e.to_string()))
        }
        _ => Err(ApiError::new(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}

fn json(body: &Bytes) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|e| {
        ApiError::bad_request(format!("couldn't get version/kind; json parse error: {e}"))
    })
}

/// Parses JSON or YAML, which are both allowed for apply patches.
///
/// # Errors
/// 400 for invalid bodies.
pub fn yaml(body: &Bytes) -> Result<Value, ApiError> {
    if let Ok(value) = serde_json::from_slice(body) {
        return Ok(value);
    }
    let text = std::str::from_utf8(body)
        .map_err(|e| ApiError::bad_request(format!("error decoding YAML: {e}")))?;
    serde_saphyr::from_str(text)
        .map_err(|e| ApiError::bad_request(format!("error decoding YAML: {e}")))
}

/// Selects the representation from an `Accept` header.
///
/// # Errors
/// 406 if no offered media type is supported.
pub fn view(accept: &str) -> Result<View, ApiError> {
    if accept.trim().is_empty() {
        return Ok(View::Plain);
    }
    for clause in accept.split(',') {
        let mut parts = clause.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        if !matches!(media.as_str(), "application/json" | "*/*" | "application/*") {
            continue;
        }
        match parts.find_map(|p| p.strip_prefix("as=")) {
            Some("Table") => return Ok(View::Table),
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") => {
                return Ok(View::Metadata);
            }
            Some(_) => {}
            None => return Ok(View::Plain),
        }
    }
    Err(ApiError::new(
        406,
        "NotAcceptable",
        "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf",
    )
    .with_details(serde_json::json!({})))
}
