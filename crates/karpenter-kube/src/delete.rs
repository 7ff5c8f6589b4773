//! Deletes the object that was read, never another one that has its name by now.

use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::controller::is_not_found;

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
