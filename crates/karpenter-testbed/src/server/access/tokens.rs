//! Bearer tokens of the administrator and of service accounts.

use rustc_hash::FxHashMap;

use crate::server::ApiServer;
use crate::server::access::authorization::ServiceAccount;

/// The valid tokens. The administrator's has no account.
pub(in crate::server) type Tokens = FxHashMap<String, Option<ServiceAccount>>;

impl ApiServer {
    /// Makes a token of a service account, or of the administrator. It does not expire.
    pub(in crate::server) fn new_token(&self, account: Option<ServiceAccount>) -> String {
        // Not real secrets: they prevent accidental requests of other processes on the same computer.
        let text = format!("{}.{}", self.identity.uid(), self.identity.uid());
        self.tokens.write().insert(text.clone(), account);
        text
    }

    /// Records the account of a request, if its bearer token is known.
    pub(in crate::server) fn identify<B>(&self, request: &mut http::Request<B>) -> bool {
        let header = request.headers().get(http::header::AUTHORIZATION);
        let header = header.and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer "));
        let Some(account) = token.and_then(|token| self.tokens.read().get(token).cloned()) else {
            return false;
        };
        if let Some(account) = account {
            request.extensions_mut().insert(account);
        }
        true
    }
}
