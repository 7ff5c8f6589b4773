//! The server over HTTPS on loopback.

use std::fmt;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::Service as _;

use crate::server::wire::error::ApiError;
use crate::server::wire::reply::{Body, Reply};
use crate::server::{ApiServer, ServiceAccount};

/// The reason why the server cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on `{address}`: {source}")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    /// No certificate could be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// TLS refuses the certificate.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// A listening server. Dropping it stops listening and closes the connections.
pub struct Served {
    address: SocketAddr,
    ca: String,
    token: String,
    server: ApiServer,
    _stop: DropGuard,
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Served {
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns `https://ADDRESS`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Returns the CA certificate, as PEM.
    #[must_use]
    pub fn ca(&self) -> &str {
        &self.ca
    }

    /// Returns the bearer token of the administrator.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Returns a bearer token of a service account: its requests are allowed if the roles bound to it allow them. The account
    /// need not exist.
    #[must_use]
    pub fn service_account_token(&self, namespace: &str, name: &str) -> String {
        self.server.new_token(Some(ServiceAccount {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }))
    }

    /// Returns a kubeconfig of the administrator for this server.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        self.kubeconfig_with(&self.token)
    }

    /// Returns a kubeconfig for this server, with this bearer token.
    #[must_use]
    pub fn kubeconfig_with(&self, token: &str) -> String {
        use base64::Engine;
        let ca = base64::engine::general_purpose::STANDARD.encode(&self.ca);
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: testbed\nclusters:\n- name: testbed\n  cluster:\n    server: {url}\n    certificate-authority-data: {ca}\ncontexts:\n- name: testbed\n  context:\n    cluster: testbed\n    user: admin\n    namespace: default\nusers:\n- name: admin\n  user:\n    token: {token}\n",
            url = self.url(),
        )
    }

    /// Writes the kubeconfig, which has an administrator's token, to a file that only its owner can read.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_kubeconfig(&self, path: &Path) -> std::io::Result<()> {
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path)?;
        // An existing file keeps its mode when it is opened.
        #[cfg(unix)]
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        file.write_all(self.kubeconfig().as_bytes())
    }
}

impl ApiServer {
    /// Serves over HTTPS, HTTP/1.1 and HTTP/2, with a generated certificate; port 0 selects a free port.
    ///
    /// # Errors
    /// If the address cannot be listened on or TLS cannot be set up.
    pub async fn serve(&self, address: SocketAddr) -> Result<Served, ServeError> {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| ServeError::Listen { address, source })?;
        let address = listener
            .local_addr()
            .map_err(|source| ServeError::Listen { address, source })?;
        let (ca, config) = tls(address)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let token = self.new_token(None);
        let stop = CancellationToken::new();
        let server = self.clone();
        let stopped = stop.clone();
        tokio::spawn(async move {
            loop {
                let stream = tokio::select! {
                    () = stopped.cancelled() => return,
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => stream,
                        Err(error) => {
                            tracing::debug!(%error, "failed accepting connection");
                            tokio::task::yield_now().await;
                            continue;
                        }
                    },
                };
                let connection = connection(server.clone(), acceptor.clone(), stream);
                let stopped = stopped.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        () = stopped.cancelled() => {}
                        () = connection => {}
                    }
                });
            }
        });
        Ok(Served {
            address,
            ca,
            token,
            server: self.clone(),
            _stop: stop.drop_guard(),
        })
    }
}

async fn connection(server: ApiServer, acceptor: TlsAcceptor, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let stream = match acceptor.accept(stream).await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%error, "failed TLS handshake");
            return;
        }
    };
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let mut service = server.service(false);
        let is_known = server.identify(&mut request);
        async move {
            if !is_known {
                return Ok::<Response<Body>, std::convert::Infallible>(unauthorized());
            }
            service.call(request).await
        }
    });
    let served = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended early");
    }
}

fn unauthorized() -> Response<Body> {
    Reply::from(ApiError::new(401, "Unauthorized", "Unauthorized")).into_response()
}

/// Generates a CA and the TLS settings of a server with a certificate of it.
fn tls(address: SocketAddr) -> Result<(String, ServerConfig), ServeError> {
    let mut authority = CertificateParams::new(Vec::<String>::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    authority
        .distinguished_name
        .push(DnType::CommonName, "karpenter-testbed");
    let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let mut names = vec![
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
    ];
    let ip = address.ip().to_string();
    if !names.contains(&ip) {
        names.push(ip);
    }
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(names)?.signed_by(&key, &issuer)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
        )?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((issuer.pem(), config))
}
