//! The certificate that `/metrics` is served with.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Names of a Secret of the type `kubernetes.io/tls`.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Why a certificate cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// A file is missing, or not PEM.
    #[error("reading {path}, {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rustls::pki_types::pem::Error,
    },
    /// Certificate and key are no pair, or of a kind that is not known.
    #[error("using the certificate of {folder}, {source}", folder = folder.display())]
    Use {
        /// Where they are.
        folder: PathBuf,
        /// Why.
        source: rustls::Error,
    },
}

/// A certificate and its key in a folder, where they may be replaced: connections get what is there when they come.
#[derive(Debug)]
pub struct Certificate {
    folder: PathBuf,
    last: ArcSwap<ServerConfig>,
}

impl Certificate {
    /// The certificate in `tls.crt` with the key in `tls.key`.
    ///
    /// # Errors
    /// When they cannot be read or served.
    pub fn of_folder(folder: &Path) -> Result<Self, CertificateError> {
        Ok(Self {
            folder: folder.to_owned(),
            last: ArcSwap::from(read(folder)?),
        })
    }

    /// What is in the folder now; what was there before, while it cannot be read.
    fn current(&self) -> Arc<ServerConfig> {
        match read(&self.folder) {
            Ok(config) => self.last.store(config),
            Err(error) => {
                tracing::error!(logger = "metrics", error = %error, "keeping the certificate of before");
            }
        }
        self.last.load_full()
    }

    /// Does the handshake of a connection; none if it fails.
    pub(super) async fn accept(&self, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        let acceptor = TlsAcceptor::from(self.current());
        let handshake = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream));
        handshake.await.ok()?.ok()
    }
}

fn read(folder: &Path) -> Result<Arc<ServerConfig>, CertificateError> {
    let (certificate, key) = (folder.join(CERTIFICATE), folder.join(KEY));
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| CertificateError::Read { path, source }
    };
    let chain = CertificateDer::pem_file_iter(&certificate)
        .and_then(Iterator::collect)
        .map_err(unreadable(&certificate))?;
    let key = PrivateKeyDer::from_pem_file(&key).map_err(unreadable(&key))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map(Arc::new)
        .map_err(|source| CertificateError::Use {
            folder: folder.to_owned(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use rcgen::CertifiedKey;

    use super::*;

    fn put(folder: &Path, name: &str) -> Vec<u8> {
        let CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        std::fs::write(folder.join(CERTIFICATE), cert.pem()).unwrap();
        std::fs::write(folder.join(KEY), signing_key.serialize_pem()).unwrap();
        cert.der().to_vec()
    }

    /// What a client is shown.
    async fn shown(certificate: &Certificate, trusted: &[u8]) -> Option<Vec<u8>> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(trusted.to_vec().into()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let client = async {
            let stream = TcpStream::connect(address).await.unwrap();
            let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
            let stream = connector.connect("karpenter".try_into().unwrap(), stream);
            let stream = stream.await.ok()?;
            let (_, session) = stream.get_ref();
            Some(session.peer_certificates()?.first()?.to_vec())
        };
        let server = async {
            let (stream, _) = listener.accept().await.unwrap();
            certificate.accept(stream).await
        };
        tokio::join!(client, server).0
    }

    #[tokio::test]
    async fn a_renewed_certificate_counts_at_once_and_a_broken_one_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let first = put(folder.path(), "karpenter");
        let certificate = Certificate::of_folder(folder.path()).unwrap();
        assert_eq!(shown(&certificate, &first).await.as_ref(), Some(&first));
        let second = put(folder.path(), "karpenter");
        assert_eq!(shown(&certificate, &second).await.as_ref(), Some(&second));
        assert_eq!(
            shown(&certificate, &first).await,
            None,
            "the one before is not served any more"
        );
        std::fs::write(folder.path().join(KEY), "no key").unwrap();
        assert_eq!(shown(&certificate, &second).await, Some(second));
    }

    #[test]
    fn what_is_missing_or_no_pair_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let error = |folder: &Path| Certificate::of_folder(folder).unwrap_err().to_string();
        assert!(error(folder.path()).contains("tls.crt"));
        put(folder.path(), "karpenter");
        let other = tempfile::tempdir().unwrap();
        put(other.path(), "karpenter");
        std::fs::copy(other.path().join(KEY), folder.path().join(KEY)).unwrap();
        assert!(error(folder.path()).contains("using the certificate of"));
        std::fs::remove_file(folder.path().join(KEY)).unwrap();
        assert!(error(folder.path()).contains("tls.key"));
    }
}
