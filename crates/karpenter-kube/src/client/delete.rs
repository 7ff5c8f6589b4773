//! Deletes the object that was read, never another one that has its name by now.

use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::error::is_not_found;

/// Returns parameters with which the API server deletes only the object of this uid, and otherwise answers with a conflict.
#[must_use]
pub fn only_uid(uid: Option<String>) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions {
        uid,
        resource_version: None,
    })
}

/// Deletes the object; returns false if it does not exist any more.
///
/// # Errors
/// The API server's; a conflict if another object has its name now.
pub async fn delete_object<K>(api: &Api<K>, object: &K) -> Result<bool, kube::Error>
where
    K: Resource + DeserializeOwned + Clone + std::fmt::Debug,
{
    let name = object.meta().name.as_deref().unwrap_or_default();
    let only_this = only_uid(object.meta().uid.clone());
    match api.delete(name, &only_this).await {
        Ok(_) => Ok(true),
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response, StatusCode};
    use http_body_util::BodyExt;
    use k8s_openapi::api::core::v1::Node;
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// Returns the answer to a delete of the Node `n` with uid `u` by an API server that has the Node with uid `stored`.
    async fn deleted(stored: Option<&'static str>) -> Result<bool, kube::Error> {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let wanted: Value = serde_json::from_slice(&body).unwrap();
            let code = match stored {
                None => StatusCode::NOT_FOUND,
                Some(uid) if wanted["preconditions"]["uid"] == uid => StatusCode::OK,
                Some(_) => StatusCode::CONFLICT,
            };
            let answer = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "message": "", "code": code.as_u16(),
                "status": if code == StatusCode::OK { "Success" } else { "Failure" },
                "reason": if code == StatusCode::NOT_FOUND { "NotFound" } else { "Conflict" }});
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            Ok::<_, Infallible>(Response::builder().status(code).body(answer).unwrap())
        });
        let node = json!({"metadata": {"name": "n", "uid": "u"}});
        let node: Node = serde_json::from_value(node).unwrap();
        delete_object(&Api::all(Client::new(service, "default")), &node).await
    }

    #[tokio::test]
    async fn only_the_object_that_was_read_is_deleted() {
        assert!(deleted(Some("u")).await.unwrap());
        assert!(!deleted(None).await.unwrap());
        let error = deleted(Some("another")).await.unwrap_err();
        assert!(matches!(error, kube::Error::Api(status) if status.code == 409));
    }
}
