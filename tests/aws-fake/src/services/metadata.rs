//! Instance metadata (IMDSv2) of the instance that the controller runs on, and the Pod Identity credentials endpoint.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use jiff::Timestamp;
use serde_json::json;

use crate::clock::{later, rfc3339};
use crate::ids::Ids;
use crate::services::sts;
use crate::wire::set;

/// Content of the instance metadata.
#[derive(Debug, Clone)]
pub(crate) struct Metadata {
    pub(crate) region: String,
    pub(crate) zone: String,
    pub(crate) zone_id: String,
    pub(crate) account: String,
    pub(crate) role: String,
    token: String,
}

impl Metadata {
    pub(crate) fn new(region: &str, zone: &(String, String), account: &str, ids: &mut Ids) -> Self {
        Self {
            region: region.to_owned(),
            zone: zone.0.clone(),
            zone_id: zone.1.clone(),
            account: account.to_owned(),
            role: "KarpenterControllerRole".to_owned(),
            token: ids.hex("AQAE", 32),
        }
    }

    /// Handles paths of the metadata and Pod Identity endpoints; `None` for others.
    pub(crate) fn answer(
        &self,
        request: &Request<Bytes>,
        ids: &mut Ids,
        now: Timestamp,
    ) -> Option<Response<Bytes>> {
        let path = request.uri().path();
        let header = |name: &str| request.headers().get(name).and_then(|v| v.to_str().ok());
        if path == "/v1/credentials" {
            return Some(match header("authorization") {
                None | Some("") => plain(
                    StatusCode::BAD_REQUEST,
                    "Service account token cannot be empty",
                ),
                Some(_) => {
                    let (key, secret, token) = sts::credentials(ids);
                    json(&json!({
                        "AccessKeyId": key,
                        "SecretAccessKey": secret,
                        "Token": token,
                        "AccountId": self.account,
                        "Expiration": rfc3339(later(now, LIFETIME)),
                    }))
                }
            });
        }
        if !path.starts_with("/latest/") {
            return None;
        }
        if path == "/latest/api/token" {
            let ttl = header("x-aws-ec2-metadata-token-ttl-seconds")
                .and_then(|t| t.parse::<u32>().ok())
                .filter(|t| (1..=21_600).contains(t));
            return Some(match (request.method(), ttl) {
                (&Method::PUT, Some(ttl)) => {
                    let mut response = plain(StatusCode::OK, &self.token);
                    set(
                        &mut response,
                        "x-aws-ec2-metadata-token-ttl-seconds",
                        &ttl.to_string(),
                    );
                    response
                }
                (&Method::PUT, None) => plain(StatusCode::BAD_REQUEST, ""),
                _ => plain(StatusCode::METHOD_NOT_ALLOWED, ""),
            });
        }
        if request.method() != Method::GET {
            return Some(plain(StatusCode::METHOD_NOT_ALLOWED, ""));
        }
        if header("x-aws-ec2-metadata-token") != Some(self.token.as_str()) {
            return Some(plain(StatusCode::UNAUTHORIZED, ""));
        }
        Some(self.item(path, ids, now))
    }

    fn item(&self, path: &str, ids: &mut Ids, now: Timestamp) -> Response<Bytes> {
        let instance = "i-00000000000000000";
        let text = match path.trim_start_matches("/latest/").trim_end_matches('/') {
            "meta-data/placement/region" => &self.region,
            "meta-data/placement/availability-zone" => &self.zone,
            "meta-data/placement/availability-zone-id" => &self.zone_id,
            "meta-data/instance-id" => instance,
            "meta-data/instance-type" => "m5.large",
            "meta-data/local-ipv4" => "10.0.0.4",
            "meta-data/services/domain" => "amazonaws.com",
            "meta-data/services/partition" => "aws",
            "meta-data/iam/security-credentials" => &self.role,
            "dynamic/instance-identity/document" => {
                return json(&json!({
                    "accountId": self.account,
                    "region": self.region,
                    "availabilityZone": self.zone,
                    "instanceId": instance,
                    "instanceType": "m5.large",
                    "architecture": "x86_64",
                    "privateIp": "10.0.0.4",
                    "version": "2017-09-30",
                }));
            }
            other => {
                let role = other.strip_prefix("meta-data/iam/security-credentials/");
                if role != Some(self.role.as_str()) {
                    return plain(StatusCode::NOT_FOUND, "");
                }
                let (key, secret, token) = sts::credentials(ids);
                return json(&json!({
                    "Code": "Success",
                    "LastUpdated": rfc3339(now),
                    "Type": "AWS-HMAC",
                    "AccessKeyId": key,
                    "SecretAccessKey": secret,
                    "Token": token,
                    "Expiration": rfc3339(later(now, LIFETIME)),
                }));
            }
        };
        plain(StatusCode::OK, text)
    }
}

const LIFETIME: Duration = Duration::from_secs(6 * 3600);

fn plain(status: StatusCode, text: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::copy_from_slice(text.as_bytes()));
    *response.status_mut() = status;
    set(&mut response, "content-type", "text/plain");
    response
}

fn json(value: &serde_json::Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(value.to_string()));
    set(&mut response, "content-type", "application/json");
    response
}
