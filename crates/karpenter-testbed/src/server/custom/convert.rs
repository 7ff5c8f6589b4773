//! Conversion between the versions of a kind: none, or by webhook.

use kube::{Client, Config};
use serde_json::{Value, json};

use super::super::ApiServer;
use super::super::catalog::Served;
use super::super::value::map_of;
use crate::registry::{CustomResource, api_version};
use crate::server::wire::error::ApiError;

impl ApiServer {
    /// Converts an object between the versions of its kind.
    ///
    /// # Errors
    /// 500 if a conversion webhook fails.
    pub(crate) async fn convert(
        &self,
        served: &Served,
        mut value: Value,
        version: &str,
    ) -> Result<Value, ApiError> {
        if let Some(custom) = &served.custom {
            let wanted = api_version(&served.group, version);
            if value["apiVersion"] == wanted.as_str() {
                return Ok(value);
            }
            if custom.conversion["strategy"] == "Webhook" {
                return self.ask_webhook(served, custom, value, &wanted).await;
            }
            value["apiVersion"] = wanted.into();
            return Ok(value);
        }
        value["apiVersion"] = api_version(&served.group, version).into();
        Ok(value)
    }

    /// Returns the webhook's URL. A Service is resolved through its EndpointSlices, because there is no pod network.
    fn webhook_address(&self, client: &Value) -> Result<Address, String> {
        if let Some(url) = client["url"].as_str() {
            return Ok(Address {
                url: url.to_owned(),
                tls_name: None,
            });
        }
        let service = &client["service"];
        let (Some(name), Some(namespace)) =
            (service["name"].as_str(), service["namespace"].as_str())
        else {
            return Err("the webhook has neither a url nor a service".to_owned());
        };
        let endpoint = self
            .catalog
            .find("discovery.k8s.io", "v1", "endpointslices")
            .and_then(|slices| {
                let slices = slices.collection.all(Some(namespace));
                slices
                    .iter()
                    .map(|slice| slice.value())
                    .filter(|slice| {
                        slice["metadata"]["labels"]["kubernetes.io/service-name"] == name
                    })
                    .find_map(|slice| endpoint(&slice))
            })
            .ok_or_else(|| format!("no endpoints available for service \"{name}\""))?;
        let path = service["path"].as_str().unwrap_or("/");
        Ok(Address {
            url: format!("https://{endpoint}{path}"),
            tls_name: Some(format!("{name}.{namespace}.svc")),
        })
    }

    async fn ask_webhook(
        &self,
        served: &Served,
        custom: &CustomResource,
        value: Value,
        wanted: &str,
    ) -> Result<Value, ApiError> {
        let failed = |why: String| {
            ApiError::internal(format!(
                "conversion webhook for {}, Kind={} failed: {why}",
                value["apiVersion"].as_str().unwrap_or_default(),
                served.kind
            ))
        };
        let hook = &custom.conversion["webhook"]["clientConfig"];
        let address = self.webhook_address(hook).map_err(failed)?;
        let uid = self.identity.uid();
        let review = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "ConversionReview",
            "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": [value]},
        });
        let response = post(&address, hook["caBundle"].as_str(), &review)
            .await
            .map_err(|e| failed(e.to_string()))?;
        let answer = &response["response"];
        if answer["uid"] != uid.as_str() {
            return Err(failed("the answer's uid is not the request's".to_owned()));
        }
        if answer["result"]["status"] != "Success" {
            let why = answer["result"]["message"].as_str().unwrap_or("no message");
            return Err(failed(why.to_owned()));
        }
        let mut converted = answer["convertedObjects"][0].clone();
        if converted["apiVersion"] != wanted {
            return Err(failed(format!(
                "the converted object is not of version {wanted}"
            )));
        }
        // A webhook may change labels and annotations, no other metadata.
        let mut metadata = value["metadata"].clone();
        for key in ["labels", "annotations"] {
            match converted["metadata"].get(key) {
                Some(changed) => metadata[key] = changed.clone(),
                None => {
                    map_of(&mut metadata).remove(key);
                }
            }
        }
        converted["metadata"] = metadata;
        Ok(converted)
    }
}

/// Returns the first ready endpoint of a slice, as `address:port`.
fn endpoint(slice: &Value) -> Option<String> {
    let address = slice["endpoints"].as_array()?.iter().find_map(|endpoint| {
        (endpoint["conditions"]["ready"] != false)
            .then(|| endpoint["addresses"][0].as_str())
            .flatten()
    })?;
    let port = slice["ports"][0]["port"].as_u64()?;
    Some(match slice["addressType"].as_str() {
        Some("IPv6") => format!("[{address}]:{port}"),
        _ => format!("{address}:{port}"),
    })
}

/// The address of a webhook, and the name in its certificate if it differs from the host.
struct Address {
    url: String,
    tls_name: Option<String>,
}

async fn post(
    address: &Address,
    ca_bundle: Option<&str>,
    review: &Value,
) -> Result<Value, kube::Error> {
    use base64::Engine;
    let url: http::Uri = address
        .url
        .parse()
        .map_err(|e| kube::Error::HttpError(http::Error::from(e)))?;
    let path = url.path_and_query().map_or("/", |p| p.as_str()).to_owned();
    let mut parts = url.into_parts();
    parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    let server =
        http::Uri::from_parts(parts).map_err(|e| kube::Error::HttpError(http::Error::from(e)))?;
    let mut config = Config::new(server);
    config.default_retry = false;
    config.tls_server_name.clone_from(&address.tls_name);
    config.read_timeout = Some(std::time::Duration::from_secs(30));
    if let Some(pem) =
        ca_bundle.and_then(|b| base64::engine::general_purpose::STANDARD.decode(b).ok())
    {
        use rustls::pki_types::pem::PemObject;
        config.root_cert = Some(
            rustls::pki_types::CertificateDer::pem_slice_iter(&pem)
                .filter_map(Result::ok)
                .map(|c| c.to_vec())
                .collect(),
        );
    }
    let client = Client::try_from(config)?;
    let body = serde_json::to_vec(review).map_err(kube::Error::SerdeError)?;
    let request = http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body)
        .map_err(kube::Error::HttpError)?;
    client.request(request).await
}
