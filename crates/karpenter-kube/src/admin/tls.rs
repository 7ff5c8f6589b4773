//! The TLS certificate of `/metrics`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use karpenter_listener::Tls;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Keys of a Secret of type `kubernetes.io/tls`.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// A file is missing, or is not PEM.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The parse or read error.
        source: rustls::pki_types::pem::Error,
    },
    /// The key does not match the certificate, or its type is not supported.
    #[error("cannot use the certificate in {folder}: {source}", folder = folder.display())]
    Use {
        /// Folder of the certificate.
        folder: PathBuf,
        /// The TLS error.
        source: rustls::Error,
    },
}

/// A certificate and its key in a folder. They may be replaced: each new connection uses the current ones.
#[derive(Debug)]
pub struct Certificate {
    folder: PathBuf,
    last: ArcSwap<ServerConfig>,
}

impl Certificate {
    /// Loads `tls.crt` and `tls.key` from a folder.
    ///
    /// # Errors
    /// When a file cannot be read or the certificate cannot be used.
    pub fn of_folder(folder: &Path) -> Result<Self, CertificateError> {
        Ok(Self {
            folder: folder.to_owned(),
            last: ArcSwap::from_pointee(read(folder)?),
        })
    }

    /// Returns the TLS settings of the next connection; the previous ones while the certificate in the folder cannot be read.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        match read(&self.folder) {
            Ok(loaded) => self.last.store(Arc::new(loaded)),
            Err(error) => {
                tracing::error!(logger = "controller", error = %error, "keeping the previous certificate");
            }
        }
        self.last.load_full()
    }
}

/// Returns the TLS settings of a listener with this certificate.
pub(super) fn settings(certificate: Arc<Certificate>) -> Tls {
    Arc::new(move || certificate.config())
}

fn read(folder: &Path) -> Result<ServerConfig, CertificateError> {
    let (certificate, key) = (folder.join(CERTIFICATE), folder.join(KEY));
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| CertificateError::Read { path, source }
    };
    let chain = CertificateDer::pem_file_iter(&certificate)
        .and_then(Iterator::collect)
        .map_err(unreadable(&certificate))?;
    let key = PrivateKeyDer::from_pem_file(&key).map_err(unreadable(&key))?;
    load(chain, key).map_err(|source| CertificateError::Use {
        folder: folder.to_owned(),
        source,
    })
}

fn load(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
}

#[cfg(test)]
mod tests {
    use rcgen::CertifiedKey;
    use tokio::net::TcpStream;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    fn put(folder: &Path, name: &str) -> Vec<u8> {
        let CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        std::fs::write(folder.join(CERTIFICATE), cert.pem()).unwrap();
        std::fs::write(folder.join(KEY), signing_key.serialize_pem()).unwrap();
        cert.der().to_vec()
    }

    /// Returns the certificate that a client receives.
    async fn served(certificate: &Certificate, trusted: &[u8]) -> Option<Vec<u8>> {
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
            let acceptor = TlsAcceptor::from(certificate.config());
            acceptor.accept(stream).await
        };
        tokio::join!(client, server).0
    }

    #[tokio::test]
    async fn a_renewed_certificate_is_served_at_once_and_a_broken_one_never() {
        let folder = tempfile::tempdir().unwrap();
        let first = put(folder.path(), "karpenter");
        let certificate = Certificate::of_folder(folder.path()).unwrap();
        assert_eq!(served(&certificate, &first).await.as_ref(), Some(&first));
        let second = put(folder.path(), "karpenter");
        assert_eq!(served(&certificate, &second).await.as_ref(), Some(&second));
        assert_eq!(
            served(&certificate, &first).await,
            None,
            "the previous one is not served any more"
        );
        std::fs::write(folder.path().join(KEY), "no key").unwrap();
        assert_eq!(served(&certificate, &second).await, Some(second));
    }

    #[test]
    fn a_missing_file_or_a_mismatched_key_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = |folder: &Path| Certificate::of_folder(folder).unwrap_err().to_string();
        assert!(error(folder.path()).contains("tls.crt"));
        put(folder.path(), "karpenter");
        let other = tempfile::tempdir().unwrap();
        put(other.path(), "karpenter");
        std::fs::copy(other.path().join(KEY), folder.path().join(KEY)).unwrap();
        assert!(error(folder.path()).contains("cannot use the certificate in"));
        std::fs::remove_file(folder.path().join(KEY)).unwrap();
        assert!(error(folder.path()).contains("tls.key"));
    }
}
