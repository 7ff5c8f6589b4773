//! Reviews of tokens and rights by the API server, with a short memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::attributes::{Attributes, GROUP};
use super::cache::Cache;
use crate::client::RateLimit;
use crate::decisions::server::status::Failure;

/// The audience that a token must have been made for.
const AUDIENCE: &str = "decisions.karpenter.sh";
/// The header of a token that has passed the API server's service proxy, which removes `Authorization`.
const TOKEN: &str = "x-karpenter-token";
/// The longest token that is reviewed.
const MAX_TOKEN: usize = 16 << 10;
/// How long a review is valid that allows.
const ALLOWED: Duration = Duration::from_secs(10);
/// How long a review is valid that refuses.
const REFUSED: Duration = Duration::from_secs(2);
/// The most reviews a second, and in one burst: tokens of strangers must not use up the controllers' share of the API server.
const RATE: u32 = 20;
const BURST: u32 = 100;
/// How long a review may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The number of locks of reviews.
const LOCKS: usize = 16;

/// SHA-256 of a token: tokens are not kept.
type Key = [u8; 32];

/// A user who was authenticated.
#[derive(Clone)]
pub(super) struct Review {
    key: Key,
    user: Arc<UserInfo>,
}

impl Review {
    /// Returns the name of the user.
    pub(super) fn user(&self) -> &str {
        self.user.username.as_deref().unwrap_or_default()
    }
}

/// Asks the API server who may see what.
pub(super) struct Reviewer {
    client: Client,
    limit: RateLimit,
    users: Mutex<Cache<Key, Option<Arc<UserInfo>>>>,
    rights: Mutex<Cache<(Key, Attributes), bool>>,
    /// Requests with one token wait for its first review.
    locks: [tokio::sync::Mutex<()>; LOCKS],
}

/// Returns the token of a request.
pub(super) fn token(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = || {
        let (scheme, token) = text(AUTHORIZATION.as_str())?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    };
    let token = text(TOKEN).map(str::trim).or_else(bearer);
    token.filter(|token| !token.is_empty() && token.len() <= MAX_TOKEN)
}

impl Reviewer {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            limit: RateLimit::new(RATE, BURST),
            users: Mutex::default(),
            rights: Mutex::default(),
            locks: Default::default(),
        }
    }

    /// Returns the user of a token.
    pub(super) async fn authenticate(&self, token: &str) -> Result<Review, Failure> {
        let key: Key = Sha256::digest(token).into();
        let known = || self.users.lock().get(&key);
        if let Some(user) = known() {
            return reviewed(key, user);
        }
        let _lock = self.lock(&key).await;
        if let Some(user) = known() {
            return reviewed(key, user);
        }
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                audiences: Some(vec![AUDIENCE.to_owned()]),
            },
            ..TokenReview::default()
        };
        let review = self.post(&review, "tokenreviews").await?;
        let status = review.status.unwrap_or_default();
        // Without audiences in the status, the API server has looked at its own only.
        let audiences = status.audiences.unwrap_or_default();
        let ours = audiences.iter().any(|audience| audience == AUDIENCE);
        let authenticated = status.authenticated == Some(true) && ours;
        let user = status.user.filter(|_| authenticated).map(Arc::new);
        let valid = if user.is_some() { ALLOWED } else { REFUSED };
        self.users.lock().put(key, user.clone(), valid);
        reviewed(key, user)
    }

    /// Returns whether a user may do something.
    pub(super) async fn allows(
        &self,
        review: &Review,
        asked: &Attributes,
    ) -> Result<bool, Failure> {
        let entry = (review.key, asked.clone());
        let known = || self.rights.lock().get(&entry);
        if let Some(allowed) = known() {
            return Ok(allowed);
        }
        let _lock = self.lock(&review.key).await;
        if let Some(allowed) = known() {
            return Ok(allowed);
        }
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let user = &review.user;
        let extra = user.extra.clone();
        let spec = SubjectAccessReviewSpec {
            user: user.username.clone(),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            extra: extra.map(|extra| extra.into_iter().collect::<BTreeMap<_, _>>()),
            resource_attributes: Some(ResourceAttributes {
                group: some(GROUP),
                verb: some(asked.verb),
                resource: some(asked.resource),
                subresource: some(asked.subresource),
                namespace: some(&asked.namespace),
                name: some(&asked.name),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview {
            spec,
            ..SubjectAccessReview::default()
        };
        let reviewed = self.post(&review, "subjectaccessreviews").await?;
        let allowed = reviewed.status.is_some_and(|status| status.allowed);
        let valid = if allowed { ALLOWED } else { REFUSED };
        self.rights.lock().put(entry, allowed, valid);
        Ok(allowed)
    }

    /// Fails unless a user may do something.
    pub(super) async fn require(&self, review: &Review, asked: &Attributes) -> Result<(), Failure> {
        if self.allows(review, asked).await? {
            return Ok(());
        }
        let message = format!(
            "{}.{GROUP} is forbidden: User \"{}\" {asked}",
            asked.resource,
            review.user()
        );
        Err(Failure::forbidden(&message))
    }

    async fn lock(&self, key: &Key) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let at = usize::from(key.first().copied().unwrap_or_default()) % LOCKS;
        Some(self.locks.get(at)?.lock().await)
    }

    async fn post<K>(&self, review: &K, resource: &'static str) -> Result<K, Failure>
    where
        K: kube::Resource<DynamicType = ()>
            + serde::Serialize
            + serde::de::DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        self.limit.acquire().await;
        let api: Api<K> = Api::all(self.client.clone());
        let how = PostParams::default();
        let answered = tokio::time::timeout(TIMEOUT, api.create(&how, review)).await;
        let error = match answered {
            Ok(Ok(review)) => return Ok(review),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {}s", TIMEOUT.as_secs()),
        };
        tracing::error!(
            logger = "decisions",
            resource,
            error,
            "failed creating review"
        );
        Err(Failure::unavailable(
            "cannot review the token: Karpenter's log says why",
        ))
    }
}

fn reviewed(key: Key, user: Option<Arc<UserInfo>>) -> Result<Review, Failure> {
    let user = user.ok_or_else(Failure::unauthorized)?;
    Ok(Review { key, user })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_token_is_in_one_of_two_headers() {
        let of = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
            token(&headers).map(str::to_owned)
        };
        let abc = Some("abc".to_owned());
        assert_eq!(of("authorization", "Bearer abc"), abc);
        assert_eq!(of("authorization", "bearer  abc"), abc);
        assert_eq!(of("x-karpenter-token", "abc"), abc);
        assert_eq!(of("authorization", "Basic abc"), None);
        assert_eq!(of("authorization", "abc"), None);
        assert_eq!(of("x-karpenter-token", ""), None);
        let long = "x".repeat(MAX_TOKEN + 1);
        assert_eq!(of("x-karpenter-token", &long), None);
        assert_eq!(token(&HeaderMap::new()), None);
    }
}
