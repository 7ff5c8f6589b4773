//! get and list, in all representations; watches and discovery.

mod discover;
mod watch;

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};

use crate::present::table::{partial_metadata, partial_metadata_list};
use crate::server::ApiServer;
use crate::server::catalog::Served;
use crate::server::wire::error::ApiError;
use crate::server::wire::reply::Reply;
use crate::server::wire::request::{Call, View};
use crate::server::wire::selector::Selectors;
use crate::store::{Matcher, Object, Page, Query};

impl ApiServer {
    /// GET of one object.
    pub(in crate::server) async fn get(
        &self,
        served: &Served,
        call: &Call,
        name: &str,
    ) -> Result<Reply, ApiError> {
        let object = self.find(served, call, name)?;
        match call.view {
            View::Plain => Ok(Reply::bytes(200, self.present(served, &object).await?)),
            _ => {
                let value = self.read(served, &object).await?;
                Ok(self.show(served, call, 200, &value))
            }
        }
    }

    /// Returns the stored object of a call.
    pub(in crate::server) fn find(
        &self,
        served: &Served,
        call: &Call,
        name: &str,
    ) -> Result<Arc<Object>, ApiError> {
        let key = served.key(call.target.namespace.as_deref(), name);
        let found = match self.stale_reads(call) {
            Some(lag) => served.collection.get_stale(&key, lag),
            None => served.collection.get(&key),
        };
        found.ok_or_else(|| ApiError::not_found(served, name))
    }

    /// Returns an object in the served version, serialized.
    pub(in crate::server) async fn present(
        &self,
        served: &Served,
        object: &Object,
    ) -> Result<Bytes, ApiError> {
        if !served.converts() && object.edition == served.edition {
            return Ok(object.bytes().clone());
        }
        let value = self.read(served, object).await?;
        Ok(serde_json::to_vec(&value).unwrap_or_default().into())
    }

    /// Returns an object in the served version.
    pub(in crate::server) async fn read(
        &self,
        served: &Served,
        object: &Object,
    ) -> Result<Value, ApiError> {
        let mut value = object.value();
        if served.converts() {
            value = self.convert(served, value, &served.version).await?;
        }
        if object.edition != served.edition
            && let Some(definition) = &served.definition
        {
            definition.default(&mut value);
        }
        Ok(value)
    }

    /// Returns an object in the requested representation.
    pub(in crate::server) fn show(
        &self,
        served: &Served,
        call: &Call,
        code: u16,
        value: &Value,
    ) -> Reply {
        match call.view {
            View::Plain => Reply::json(code, value),
            View::Metadata => Reply::json(code, &partial_metadata(value)),
            View::Table => {
                let metadata = json!({"resourceVersion": value["metadata"]["resourceVersion"]});
                let table = self.table(served, call, std::slice::from_ref(value), &metadata, true);
                Reply::json(code, &table)
            }
        }
    }

    /// GET of a collection.
    pub(in crate::server) async fn list(
        &self,
        served: &Served,
        call: &Call,
    ) -> Result<Reply, ApiError> {
        let options = &call.options;
        let selectors = self.selectors(served, call)?;
        let (mut at, mut after) = (None, None);
        if !options.continue_token.is_empty() {
            let (revision, start) = parse_token(&options.continue_token)?;
            after = Some(start);
            at = revision;
        } else if !options.resource_version.is_empty() {
            let wanted = self.revision(&options.resource_version)?;
            match options.resource_version_match.as_str() {
                "Exact" => at = Some(wanted),
                _ => self.fresh_enough(wanted)?,
            }
        }
        if at.is_none()
            && let Some(lag) = self.stale_reads(call)
        {
            at = Some(self.store.revision().saturating_sub(lag));
        }
        // A read from the cache ignores the limit.
        let cached = options.resource_version == "0" && options.continue_token.is_empty();
        let query = Query {
            namespace: call.target.namespace.as_deref(),
            after: after.as_deref(),
            limit: if cached { 0 } else { options.limit },
            at,
            matcher: &selectors,
        };
        let page = served.collection.list(&query).or_else(|expired| {
            if options.continue_token.is_empty() && options.resource_version_match != "Exact" {
                // A stale read beyond the history returns the current state.
                return served
                    .collection
                    .list(&Query { at: None, ..query })
                    .map_err(|e| ApiError::expired(e.to_string()));
            }
            Err(ApiError::expired(if options.continue_token.is_empty() {
                expired.to_string()
            } else {
                "The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter.".to_owned()
            }))
        })?;
        self.page(served, call, &page, selectors.is_everything())
            .await
    }

    async fn page(
        &self,
        served: &Served,
        call: &Call,
        page: &Page,
        everything: bool,
    ) -> Result<Reply, ApiError> {
        let mut metadata = json!({"resourceVersion": page.revision.to_string()});
        if page.remaining > 0
            && let Some(last) = page.items.last()
        {
            metadata["continue"] = token(page.revision, &last.key).into();
            // The field may be omitted.
            if everything {
                metadata["remainingItemCount"] = page.remaining.into();
            }
        }
        if call.view != View::Plain {
            let mut values = Vec::with_capacity(page.items.len());
            for object in &page.items {
                values.push(self.read(served, object).await?);
            }
            return Ok(match call.view {
                View::Table => {
                    Reply::json(200, &self.table(served, call, &values, &metadata, true))
                }
                _ => Reply::json(200, &partial_metadata_list(&values, metadata)),
            });
        }
        let size: usize = page.items.iter().map(|o| o.bytes().len() + 1).sum();
        let mut out = BytesMut::with_capacity(size + 256);
        let head = format!(
            "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{metadata},\"items\":[",
            Value::from(served.list_kind.as_str()),
            Value::from(served.api_version()),
        );
        out.put_slice(head.as_bytes());
        for (i, object) in page.items.iter().enumerate() {
            if i > 0 {
                out.put_u8(b',');
            }
            out.put_slice(&self.present(served, object).await?);
        }
        out.put_slice(b"]}");
        Ok(Reply::bytes(200, out.freeze()))
    }

    /// Parses the selectors of a call.
    pub(in crate::server) fn selectors(
        &self,
        served: &Served,
        call: &Call,
    ) -> Result<Selectors, ApiError> {
        let mut selectors = Selectors::parse(
            &call.options.label_selector,
            &call.options.field_selector,
            served.collection.fields(),
        )?;
        if let Some(name) = &call.target.name {
            selectors.only_name(name);
        }
        Ok(selectors)
    }

    /// Parses a resource version of a list or watch.
    pub(in crate::server) fn revision(&self, text: &str) -> Result<u64, ApiError> {
        text.parse().map_err(|_| {
            ApiError::new(
                422,
                "Invalid",
                format!(
                    "resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"
                ),
            )
        })
    }

    /// Rejects a resource version in the future.
    pub(in crate::server) fn fresh_enough(&self, wanted: u64) -> Result<(), ApiError> {
        let current = self.store.revision();
        if wanted <= current {
            return Ok(());
        }
        let mut error = ApiError::new(
            504,
            "Timeout",
            format!("Timeout: Too large resource version: {wanted}, current: {current}"),
        )
        .with_details(json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        }));
        error.retry_after = Some(1);
        Err(error)
    }
}

fn token(revision: u64, last: &str) -> String {
    let json = json!({"v": "meta.k8s.io/v1", "rv": revision, "start": format!("{last}\0")});
    URL_SAFE_NO_PAD.encode(json.to_string())
}

fn parse_token(token: &str) -> Result<(Option<u64>, String), ApiError> {
    let bad = |why: String| {
        ApiError::bad_request(format!(
            "invalid continue token: continue key is not valid: {why}"
        ))
    };
    let bytes = URL_SAFE_NO_PAD
        .decode(token.trim_end_matches('='))
        .map_err(|_| bad("illegal base64 data at input byte 0".to_owned()))?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| match bytes.first() {
        Some(b) if !b"{[\"tfn-0123456789 \t\r\n".contains(b) => bad(format!(
            "invalid character '{}' looking for beginning of value",
            char::from(*b)
        )),
        _ => bad(e.to_string()),
    })?;
    let start = value["start"].as_str().unwrap_or_default();
    let rv = value["rv"].as_i64().unwrap_or_default();
    if start.is_empty() || rv == 0 {
        return Err(bad("missing start key or resource version".to_owned()));
    }
    // A negative revision requests the newest state; the key ends in the zero byte that makes it exclusive.
    Ok((
        u64::try_from(rv).ok(),
        start.trim_end_matches('\0').to_owned(),
    ))
}
