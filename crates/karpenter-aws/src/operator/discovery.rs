//! Discovery at the start: whether EC2 can be called, the cluster's DNS address and its certificate authority.
//!
//! UPSTREAM: pkg/operator/operator.go

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Service;
use kube::config::Kubeconfig;
use kube::{Api, Client};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::providers::version::VersionError;
use crate::sdk::{Aws, AwsError};

/// A discovery that failed at the start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoveryError {
    /// EC2 cannot be reached, or the role may not call it.
    #[error(
        "cannot use EC2: {0}; the role needs `ec2:DescribeInstanceTypes`, see docs/getting-started/cloudformation.yaml"
    )]
    Ec2(#[source] AwsError),
    /// The endpoint of the cluster cannot be discovered.
    #[error(
        "cannot find the endpoint of cluster `{cluster}`: {source}; set --cluster-endpoint, or allow `eks:DescribeCluster`"
    )]
    Endpoint {
        cluster: String,
        #[source]
        source: AwsError,
    },
    /// The version of Kubernetes cannot be discovered.
    #[error(transparent)]
    Version(#[from] VersionError),
}

/// Checks with a dry run of DescribeInstanceTypes that EC2 can be called.
///
/// # Errors
/// The error of EC2, if it answers anything other than a successful dry run.
pub async fn self_test(aws: &Aws) -> Result<(), DiscoveryError> {
    let answer = aws
        .ec2("DescribeInstanceTypes", |client| {
            client.describe_instance_types().dry_run(true).send()
        })
        .await;
    match answer {
        Err(error) if !error.is_dry_run() => Err(DiscoveryError::Ec2(error)),
        _ => Ok(()),
    }
}

/// Returns the address of the service `kube-dns`, if the cluster has it.
pub async fn dns(client: &Client) -> Option<IpAddr> {
    let services: Api<Service> = Api::namespaced(client.clone(), "kube-system");
    let found = match services.get_opt("kube-dns").await {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(logger = "operator", error = %error, "unable to detect the IP of the kube-dns service");
            None
        }
    };
    found?.spec?.cluster_ip?.parse().ok()
}

/// Returns the certificate authority that is written into user data and covered by the hash of EC2NodeClasses: base64
/// of the exact bytes that the connection was configured with, comments and line ends included, as upstream does. Other
/// bytes would change the hash and let every node drift. `raw` are the candidates; the first that contains exactly the
/// certificates in `trusted` is used.
///
/// UPSTREAM: pkg/operator/operator.go GetCABundle
#[must_use]
pub fn authority(raw: impl IntoIterator<Item = Vec<u8>>, trusted: &[Vec<u8>]) -> Option<String> {
    let holds = |raw: &Vec<u8>| {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(raw).collect();
        read.is_ok_and(|read| read.iter().map(AsRef::as_ref).eq(trusted.iter()))
    };
    if trusted.is_empty() {
        return None;
    }
    let raw = raw.into_iter().find(holds);
    raw.map(|raw| STANDARD.encode(raw))
        .or_else(|| ca_bundle(trusted))
}

/// Returns the certificate authority files that the connection may be configured with: that of the kubeconfig's current
/// context, and that of the pod's service account.
#[must_use]
pub fn raw_authorities() -> Vec<Vec<u8>> {
    let of_pod = std::fs::read("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt");
    let kubeconfig = Kubeconfig::read().ok();
    let of_file = kubeconfig.as_ref().and_then(authority_of_context);
    of_file.into_iter().chain(of_pod.ok()).collect()
}

fn authority_of_context(all: &Kubeconfig) -> Option<Vec<u8>> {
    let name = all.current_context.as_deref()?;
    let context = all.contexts.iter().find(|context| context.name == name)?;
    let name = &context.context.as_ref()?.cluster;
    let cluster = all.clusters.iter().find(|cluster| &cluster.name == name)?;
    let cluster = cluster.cluster.as_ref()?;
    match (
        &cluster.certificate_authority_data,
        &cluster.certificate_authority,
    ) {
        (Some(data), _) => STANDARD.decode(data).ok(),
        (None, Some(path)) => std::fs::read(path).ok(),
        (None, None) => None,
    }
}

/// Encodes certificates in DER as user data carries them: base64 of their PEM.
#[must_use]
pub fn ca_bundle(certificates: &[Vec<u8>]) -> Option<String> {
    if certificates.is_empty() {
        return None;
    }
    let mut pem = String::new();
    for der in certificates {
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        let text = STANDARD.encode(der);
        for line in text.as_bytes().chunks(64) {
            pem.push_str(&String::from_utf8_lossy(line));
            pem.push('\n');
        }
        pem.push_str("-----END CERTIFICATE-----\n");
    }
    Some(STANDARD.encode(pem))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a certificate in PEM, as tools other than Go's write it.
    fn pem(comment: &str, end: &str) -> Vec<u8> {
        format!("{comment}-----BEGIN CERTIFICATE-----{end}AQID{end}-----END CERTIFICATE-----")
            .into()
    }

    #[test]
    fn the_authority_is_encoded_with_the_bytes_it_was_configured_with() {
        let trusted = [vec![1, 2, 3]];
        for raw in [
            pem("# the cluster's own\n", "\n"),
            pem("", "\r\n"),
            pem("", "\n"),
        ] {
            let encoded = authority([b"not PEM".to_vec(), raw.clone()], &trusted);
            assert_eq!(encoded, Some(STANDARD.encode(&raw)));
        }
        let elsewhere = b"-----BEGIN CERTIFICATE-----\nBAUG\n-----END CERTIFICATE-----\n";
        let encoded = authority([elsewhere.to_vec(), b"not PEM".to_vec()], &trusted);
        assert_eq!(encoded, ca_bundle(&trusted), "not that of this connection");
        assert_eq!(authority([pem("", "\n")], &[]), None, "nothing is trusted");
        assert_eq!(
            authority([Vec::new()], &[]),
            None,
            "no certificate is trusted"
        );
    }

    #[test]
    fn the_authority_of_a_kubeconfig_is_that_of_its_present_context() {
        let text = |data: &str| {
            format!(
                "{{current-context: b, contexts: [{{name: a, context: {{cluster: one}}}}, {{name: b, context: {{cluster: two}}}}], \
                 clusters: [{{name: one, cluster: {{certificate-authority-data: b25l}}}}, {{name: two, cluster: {{certificate-authority-data: {data}}}}}]}}"
            )
        };
        let of = |data: &str| authority_of_context(&Kubeconfig::from_yaml(&text(data)).unwrap());
        assert_eq!(of("dHdv"), Some(b"two".to_vec()));
        assert_eq!(of("'?'"), None);
    }

    #[test]
    fn certificates_are_encoded_as_base64_of_their_pem() {
        assert_eq!(ca_bundle(&[]), None);
        let bundle = ca_bundle(&[vec![1; 60]]).unwrap();
        let pem = String::from_utf8(STANDARD.decode(bundle).unwrap()).unwrap();
        let lines: Vec<&str> = pem.lines().collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[1].len(), 64);
        assert_eq!(lines[3], "-----END CERTIFICATE-----");
    }
}
