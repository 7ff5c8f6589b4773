//! `/_admin`: changing the stand-in over HTTP, for a shell beside the playground.
//!
//! `POST` of `{"versions": {"CLUSTER": "1.34"}}` changes the Kubernetes versions of EKS clusters. Anything else is answered with 400.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;

use crate::AwsFake;
use crate::wire::set;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Command {
    versions: BTreeMap<String, String>,
}

impl AwsFake {
    /// Handles a request to `/_admin`.
    pub(crate) fn admin(&self, request: &Request<Bytes>) -> Response<Bytes> {
        let (status, body) = match serde_json::from_slice::<Command>(request.body()) {
            Ok(command) => {
                for (name, version) in command.versions {
                    self.upgrade(&name, &version);
                }
                (StatusCode::OK, json!({}))
            }
            Err(why) => (StatusCode::BAD_REQUEST, json!({"error": why.to_string()})),
        };
        let mut response = Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = status;
        set(&mut response, "content-type", "application/json");
        response
    }
}
