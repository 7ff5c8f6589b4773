//! Passes requests on to the leader, whose address and certificate stand in the lease.
//!
//! The token goes along. It goes to the holder of the certificate in the lease only, and only the replicas may write the lease.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HOST, HeaderName};
use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Body;
use crate::admin::fingerprint;
use crate::decisions::server::Server;
use crate::decisions::server::status::Failure;
use crate::lease::Endpoint;

/// The header of a request that a replica has passed on: it is not passed on again.
const FORWARDED: HeaderName = HeaderName::from_static("x-karpenter-forwarded");
/// How long the leader may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Passes a request on to the leader.
pub(super) async fn to_leader(
    server: &Server,
    request: Request<Incoming>,
) -> Result<Response<Body>, Failure> {
    let holder = server.leader();
    let endpoint = holder.endpoint.as_ref();
    let (Some(endpoint), false) = (endpoint, request.headers().contains_key(FORWARDED)) else {
        return Err(server.not_leading());
    };
    let sent = send(endpoint, request).await;
    sent.map_err(|why| {
        tracing::debug!(logger = "decisions", error = %why, "failed passing a request on");
        Failure::unavailable("the leader cannot be reached")
    })
}

/// Why a request cannot be passed on.
#[derive(Debug, thiserror::Error)]
enum ForwardError {
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    #[error("no connection within {}s", CONNECT.as_secs())]
    TimedOut,
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("no answer: {0}")]
    Http(#[from] hyper::Error),
}

async fn send(
    endpoint: &Endpoint,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, ForwardError> {
    let config = config(&endpoint.certificate)?;
    let connecting = async {
        let stream = TcpStream::connect(endpoint.address).await?;
        let name = ServerName::from(endpoint.address.ip());
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    };
    let connecting = tokio::time::timeout(CONNECT, connecting).await;
    let stream = connecting.map_err(|_| ForwardError::TimedOut)??;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the response, or with the client that reads it.
    tokio::spawn(connection);
    let headers = request.headers_mut();
    headers.remove(CONNECTION);
    headers.insert(FORWARDED, HeaderValue::from_static("1"));
    if let Ok(host) = HeaderValue::from_str(&endpoint.address.to_string()) {
        headers.insert(HOST, host);
    }
    let response = sender.send_request(request).await?;
    Ok(response.map(BodyExt::boxed_unsync))
}

/// Returns the settings of a client that trusts one certificate.
fn config(certificate: &str) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = Arc::new(Pinned {
        certificate: certificate.to_owned(),
        provider: Arc::clone(&provider),
    });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(config)
}

/// Accepts one certificate, by its fingerprint.
#[derive(Debug)]
struct Pinned {
    certificate: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if fingerprint(end_entity) == self.certificate {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
