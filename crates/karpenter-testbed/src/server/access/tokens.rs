//! Tokens of service accounts: made by TokenRequest, examined by TokenReview.
//!
//! UPSTREAM: pkg/registry/core/serviceaccount/storage/token.go, pkg/serviceaccount (audiences)

use jiff::{SignedDuration, Timestamp};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::server::ApiServer;
use crate::server::access::authorization::{ServiceAccount, user_info};
use crate::server::catalog::Served;
use crate::server::wire::error::{ApiError, Cause};
use crate::server::wire::reply::Reply;
use crate::server::wire::request::Call;
use crate::server::write::context::timestamp;

/// The audience of tokens for the API server.
const AUDIENCE: &str = "https://kubernetes.default.svc.cluster.local";
/// Default validity of a token, in seconds.
const DEFAULT_SECONDS: i64 = 3600;
/// The shortest validity that can be requested, in seconds.
const MIN_SECONDS: i64 = 600;
/// The longest validity that can be requested, in seconds.
const MAX_SECONDS: i64 = 1 << 32;

/// The tokens that are valid.
pub(in crate::server) type Tokens = FxHashMap<String, Token>;

#[derive(Debug, Clone)]
pub(in crate::server) struct Token {
    /// Absent for the administrator's.
    account: Option<ServiceAccount>,
    audiences: Vec<String>,
    expires: Option<Timestamp>,
}

impl ApiServer {
    /// Makes a token for requests to this server that does not expire: the administrator's, without an account.
    pub(in crate::server) fn lasting_token(&self, account: Option<ServiceAccount>) -> String {
        self.store(Token {
            account,
            audiences: vec![AUDIENCE.to_owned()],
            expires: None,
        })
    }

    fn store(&self, token: Token) -> String {
        // Not real secrets: they prevent accidental requests of other processes on the same computer.
        let text = format!("{}.{}", self.identity.uid(), self.identity.uid());
        let now = self.clock.now();
        let mut tokens = self.tokens.write();
        tokens.retain(|_, token| token.expires.is_none_or(|expires| now < expires));
        tokens.insert(text.clone(), token);
        text
    }

    /// Returns the account of a token for requests to this server: `Some(None)` is the administrator.
    pub(in crate::server) fn account_of(&self, token: &str) -> Option<Option<ServiceAccount>> {
        let token = self.valid(token)?;
        let ours = token.audiences.iter().any(|audience| audience == AUDIENCE);
        ours.then_some(token.account)
    }

    fn valid(&self, token: &str) -> Option<Token> {
        let tokens = self.tokens.read();
        let token = tokens.get(token)?;
        let now = self.clock.now();
        let valid = token.expires.is_none_or(|expires| now < expires);
        valid.then(|| token.clone())
    }

    /// POST of `serviceaccounts/NAME/token`.
    pub(in crate::server) fn request_token(
        &self,
        served: &Served,
        call: &Call,
        name: &str,
    ) -> Result<Reply, ApiError> {
        let namespace = call.target.namespace.as_deref().unwrap_or_default();
        let key = served.key(Some(namespace), name);
        if served.collection.get(&key).is_none() {
            return Err(ApiError::not_found(served, name));
        }
        let mut request = call.object()?;
        let seconds = request["spec"]["expirationSeconds"].as_i64();
        let seconds = seconds.unwrap_or(DEFAULT_SECONDS);
        let invalid = |why: &str| {
            let cause = Cause::invalid("spec.expirationSeconds", &seconds.into(), why);
            let message = format!(
                "TokenRequest.authentication.k8s.io \"{name}\" is invalid: {}: {}",
                cause.field, cause.message
            );
            ApiError::new(422, "Invalid", message)
        };
        if seconds < MIN_SECONDS {
            return Err(invalid("may not specify a duration less than 10 minutes"));
        }
        if seconds > MAX_SECONDS {
            return Err(invalid(
                "may not specify a duration larger than 2^32 seconds",
            ));
        }
        let audiences = texts(&request["spec"]["audiences"]);
        let audiences = match audiences.is_empty() {
            true => vec![AUDIENCE.to_owned()],
            false => audiences,
        };
        let expires = self.clock.now() + SignedDuration::from_secs(seconds);
        let token = self.store(Token {
            account: Some(ServiceAccount {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            audiences: audiences.clone(),
            expires: Some(expires),
        });
        request["apiVersion"] = "authentication.k8s.io/v1".into();
        request["kind"] = "TokenRequest".into();
        request["metadata"] = json!({
            "name": name, "namespace": namespace, "creationTimestamp": timestamp(self.clock.now()),
        });
        request["spec"] = json!({
            "audiences": audiences, "expirationSeconds": seconds,
            "boundObjectRef": request["spec"]["boundObjectRef"],
        });
        request["status"] = json!({ "token": token, "expirationTimestamp": timestamp(expires) });
        Ok(Reply::json(201, &request))
    }

    /// Returns the status of a TokenReview.
    pub(in crate::server) fn review_token(&self, spec: &Value) -> Value {
        let token = spec["token"].as_str().unwrap_or_default();
        let asked = texts(&spec["audiences"]);
        let asked = match asked.is_empty() {
            true => vec![AUDIENCE.to_owned()],
            false => asked,
        };
        let Some(token) = self.valid(token) else {
            return json!({ "user": {}, "error": "[invalid bearer token, token lookup failed]" });
        };
        let shared: Vec<&String> = asked
            .iter()
            .filter(|audience| token.audiences.contains(audience))
            .collect();
        if shared.is_empty() {
            let error = format!(
                "[invalid bearer token, token audiences {:?} is invalid for the target audiences {asked:?}]",
                token.audiences
            );
            return json!({ "user": {}, "error": error });
        }
        let user = user_info(token.account.as_ref());
        json!({ "authenticated": true, "user": user, "audiences": shared })
    }

    /// Records the account of a request, if its bearer token is known.
    pub(in crate::server) fn identify<B>(&self, request: &mut http::Request<B>) -> bool {
        let header = request.headers().get(http::header::AUTHORIZATION);
        let header = header.and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer "));
        let Some(account) = token.and_then(|token| self.account_of(token)) else {
            return false;
        };
        if let Some(account) = account {
            request.extensions_mut().insert(account);
        }
        true
    }
}

fn texts(values: &Value) -> Vec<String> {
    let values = values.as_array().into_iter().flatten();
    let texts = values.filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}
