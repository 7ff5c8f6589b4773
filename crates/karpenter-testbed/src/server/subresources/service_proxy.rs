//! The proxy of a Service: passes a request on to one of its endpoints.
//!
//! UPSTREAM: pkg/registry/core/service/storage, apimachinery util/proxy. As there, the caller's `Authorization` is removed, and
//! the certificate of an `https:` Service is not verified. Endpoints are those of the Service's EndpointSlices.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::server::ApiServer;
use crate::server::wire::error::ApiError;
use crate::server::wire::reply::Body;
use crate::server::wire::request::Target;
use crate::server::wire::selector::Selectors;
use crate::store::Query;

/// A Service in a path: `https:NAME:PORT`, `NAME:PORT` or `NAME`.
struct Wanted<'a> {
    tls: bool,
    name: &'a str,
    /// The name or the number of the port.
    port: &'a str,
}

impl<'a> Wanted<'a> {
    fn parse(segment: &'a str) -> Option<Self> {
        let parts: Vec<&str> = segment.split(':').collect();
        let (scheme, name, port) = match parts.as_slice() {
            [name] => ("", *name, ""),
            [name, port] => ("", *name, *port),
            [scheme, name, port] => (*scheme, *name, *port),
            _ => return None,
        };
        matches!(scheme, "" | "http" | "https").then_some(Self {
            tls: scheme == "https",
            name,
            port,
        })
    }
}

impl ApiServer {
    /// Passes a request on to an endpoint of a Service.
    pub(in crate::server) async fn proxy(
        &self,
        parts: &Parts,
        target: &Target,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Body>, ApiError> {
        let verb = match parts.method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "get",
        };
        self.authorize_proxy(parts, target, verb)?;
        let segment = target.name.as_deref().unwrap_or_default();
        let namespace = target.namespace.as_deref().unwrap_or_default();
        let wanted = Wanted::parse(segment).ok_or_else(|| {
            ApiError::bad_request(format!("invalid service request \"{segment}\""))
        })?;
        let address = self.endpoint(namespace, segment, &wanted)?;
        let failed = |error: &dyn std::fmt::Display| {
            let message = format!("error trying to reach service: {error}");
            ApiError::new(503, "ServiceUnavailable", message)
        };
        let stream = TcpStream::connect(address)
            .await
            .map_err(|error| failed(&error))?;
        let query = parts
            .uri
            .query()
            .map_or_else(String::new, |query| format!("?{query}"));
        let path = if path.is_empty() { "/" } else { path };
        let mut request = Request::builder()
            .method(&parts.method)
            .uri(format!("{path}{query}"))
            .body(Full::new(body))
            .map_err(|error| failed(&error))?;
        *request.headers_mut() = parts.headers.clone();
        request.headers_mut().remove(AUTHORIZATION);
        request.headers_mut().remove(CONNECTION);
        if let Ok(host) = HeaderValue::from_str(&address.to_string()) {
            request.headers_mut().insert(HOST, host);
        }
        if !wanted.tls {
            return send(stream, request).await.map_err(|error| failed(&error));
        }
        let name = ServerName::from(address.ip());
        let connector = TlsConnector::from(Arc::new(trusting().map_err(|error| failed(&error))?));
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(|error| failed(&error))?;
        send(stream, request).await.map_err(|error| failed(&error))
    }

    /// Returns an address behind a port of a Service.
    fn endpoint(
        &self,
        namespace: &str,
        segment: &str,
        wanted: &Wanted<'_>,
    ) -> Result<SocketAddr, ApiError> {
        let services = self.catalog.find("", "v1", "services");
        let services = services.ok_or_else(ApiError::no_such_path)?;
        let key = services.key(Some(namespace), wanted.name);
        let service = services.collection.get(&key);
        let service = service.ok_or_else(|| ApiError::not_found(&services, wanted.name))?;
        let service = service.value();
        let none = || {
            let message = format!("no endpoints available for service \"{segment}\"");
            ApiError::new(503, "ServiceUnavailable", message)
        };
        let ports = service["spec"]["ports"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let is_wanted = |port: &&Value| {
            wanted.port.is_empty()
                || port["name"] == wanted.port
                || port["port"]
                    .as_u64()
                    .map(|number| number.to_string())
                    .as_deref()
                    == Some(wanted.port)
        };
        let port = ports.iter().find(is_wanted).ok_or_else(|| {
            let message = format!(
                "no service port \"{}\" found for service \"{}\"",
                wanted.port, wanted.name
            );
            ApiError::new(503, "ServiceUnavailable", message)
        })?;
        let slices = self
            .catalog
            .find("discovery.k8s.io", "v1", "endpointslices");
        let slices = slices.ok_or_else(none)?;
        let page = slices
            .collection
            .list(&Query {
                namespace: Some(namespace),
                after: None,
                limit: 0,
                at: None,
                matcher: &Selectors::default(),
            })
            .map_err(|error| ApiError::expired(error.to_string()))?;
        for slice in page.items.iter().map(|slice| slice.value()) {
            if slice["metadata"]["labels"]["kubernetes.io/service-name"] != wanted.name {
                continue;
            }
            let named = slice["ports"].as_array().into_iter().flatten();
            let number = named
                .filter(|it| it["name"] == port["name"])
                .find_map(|it| u16::try_from(it["port"].as_u64()?).ok());
            let ready = slice["endpoints"].as_array().into_iter().flatten();
            let address = ready
                .filter(|it| it["conditions"]["ready"] != false)
                .find_map(|it| it["addresses"][0].as_str()?.parse().ok());
            if let (Some(address), Some(number)) = (address, number) {
                return Ok(SocketAddr::new(address, number));
            }
        }
        Err(none())
    }
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Response<Body>, hyper::Error> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    Ok(response.map(|body| {
        let frames = body.into_data_stream().into_stream();
        // A connection that breaks ends the body; the length, if there is one, tells the client.
        let frames = frames.take_while(|frame| std::future::ready(frame.is_ok()));
        Body::Stream(Box::pin(
            frames.filter_map(|frame| std::future::ready(frame.ok())),
        ))
    }))
}

/// Returns the settings of a client that trusts every certificate.
fn trusting() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = Arc::new(Trusting(Arc::clone(&provider)));
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(config)
}

/// Accepts every certificate, as the API server's proxy does.
#[derive(Debug)]
struct Trusting(Arc<CryptoProvider>);

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
