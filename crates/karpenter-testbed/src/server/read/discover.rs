//! Discovery, OpenAPI, version, health; and the resources that are not stored.

use bytes::Bytes;
use http::Method;
use http::header::HOST;
use http::request::Parts;
use serde_json::{Value, json};

use crate::present::{discovery, openapi};
use crate::server::ApiServer;
use crate::server::wire::error::ApiError;
use crate::server::wire::reply::Reply;
use crate::server::wire::request;
use crate::server::wire::request::Target;

impl ApiServer {
    /// Paths outside `/api/V/RESOURCE` and `/apis/G/V/RESOURCE`.
    pub(in crate::server) fn answer_other(&self, parts: &Parts) -> Result<Reply, ApiError> {
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            return Err(ApiError::method_not_allowed());
        }
        let registry = self.catalog.registry();
        let segments: Vec<&str> = parts
            .uri
            .path()
            .split('/')
            .filter(|s| !s.is_empty())
            .collect();
        let found = match segments.as_slice() {
            [] => Some(json!({"paths": [
                "/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version",
            ]})),
            ["api"] => {
                let host = parts.headers.get(HOST).and_then(|v| v.to_str().ok());
                Some(discovery::core(host.unwrap_or_default()))
            }
            ["apis"] => Some(discovery::groups(&registry)),
            ["api", version] => discovery::resources(&registry, "", version),
            ["apis", group] => discovery::group(&registry, group),
            ["apis", group, version] => discovery::resources(&registry, group, version),
            ["openapi", "v3"] => Some(openapi::index(&registry)),
            ["openapi", "v3", "api", version] => openapi::document(&registry, "", version),
            ["openapi", "v3", "apis", group, version] => {
                openapi::document(&registry, group, version)
            }
            ["version"] => Some(discovery::version(&self.version())),
            ["healthz" | "livez" | "readyz", ..] => return Ok(Reply::text(200, "ok")),
            _ => None,
        };
        found
            .map(|document| Reply::json(200, &document))
            .ok_or_else(ApiError::no_such_path)
    }

    /// Handles resources that are not stored: SelfSubjectAccessReview.
    pub(in crate::server) fn answer_virtual(
        &self,
        parts: &Parts,
        target: &Target,
        body: &Bytes,
    ) -> Result<Reply, ApiError> {
        let registry = self.catalog.registry();
        let resource = registry
            .find(&target.group, &target.version, &target.plural)
            .filter(|r| r.supports("create") && target.name.is_none())
            .ok_or_else(ApiError::no_such_path)?;
        if parts.method != Method::POST {
            return Err(ApiError::method_not_allowed());
        }
        self.authorize_virtual(parts, &target.group, &target.plural)?;
        let content_type = parts
            .headers
            .get(http::header::CONTENT_TYPE)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default();
        let mut review =
            request::decode_object(&request::media_type(content_type), body, &registry)?;
        if !review.is_object() {
            return Err(ApiError::bad_request("the body is not an object"));
        }
        review["apiVersion"] = resource.api_version().into();
        review["kind"] = resource.kind.as_str().into();
        review["metadata"] = json!({"creationTimestamp": Value::Null});
        review["status"] = json!({"allowed": self.review(parts, &review["spec"])});
        Ok(Reply::json(201, &review))
    }
}
