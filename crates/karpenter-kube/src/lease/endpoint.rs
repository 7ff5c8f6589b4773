//! The leader's TLS listener of decisions, in the annotations of its Lease.

use std::net::SocketAddr;

use k8s_openapi::api::coordination::v1::Lease;

/// Annotation of the Lease: address and port at which other replicas reach the leader's TLS listener of decisions.
pub const ADDRESS: &str = "decisions.karpenter.sh/address";
/// Annotation of the Lease: SHA-256 of that listener's certificate, in hexadecimal digits.
pub const CERTIFICATE: &str = "decisions.karpenter.sh/certificate";

/// A TLS listener of decisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Where other replicas reach it.
    pub address: SocketAddr,
    /// SHA-256 of its certificate, in hexadecimal digits: other replicas trust no other certificate.
    pub certificate: String,
}

impl Endpoint {
    /// Reads the endpoint from the annotations of a Lease.
    pub(super) fn of(lease: &Lease) -> Option<Self> {
        let annotations = lease.metadata.annotations.as_ref()?;
        Some(Self {
            address: annotations.get(ADDRESS)?.parse().ok()?,
            certificate: annotations.get(CERTIFICATE)?.clone(),
        })
    }

    /// Writes an endpoint into the annotations of a Lease, or removes that of an earlier holder.
    pub(super) fn annotate(endpoint: Option<&Self>, lease: &mut Lease) {
        let Some(endpoint) = endpoint else {
            if let Some(annotations) = &mut lease.metadata.annotations {
                annotations.remove(ADDRESS);
                annotations.remove(CERTIFICATE);
            }
            return;
        };
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(ADDRESS.to_owned(), endpoint.address.to_string());
        annotations.insert(CERTIFICATE.to_owned(), endpoint.certificate.clone());
    }
}
