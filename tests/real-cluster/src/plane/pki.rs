//! The certificates of a control plane, and the kubeconfigs of its clients.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use serde_json::json;

/// The files of a control plane's certificates.
#[derive(Debug)]
pub(crate) struct Pki {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    /// Creates a CA, the key of service accounts and the API server's certificate.
    pub(crate) fn create(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let mut authority = CertificateParams::new(Vec::<String>::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        authority
            .distinguished_name
            .push(DnType::CommonName, "real-cluster");
        let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let pki = Self {
            folder: folder.to_owned(),
            issuer,
        };
        fs::write(pki.file("ca.crt"), pki.issuer.pem())?;
        let accounts = KeyPair::generate()?;
        fs::write(pki.file("sa.key"), accounts.serialize_pem())?;
        fs::write(pki.file("sa.pub"), accounts.public_key_pem())?;
        let hosts = [
            "localhost",
            "127.0.0.1",
            "10.96.0.1",
            "kubernetes.default.svc",
        ];
        pki.certificate("apiserver", "kube-apiserver", None, &hosts)?;
        Ok(pki)
    }

    /// Returns the path of a file.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Creates a certificate and its key, and returns both.
    fn certificate(
        &self,
        file: &str,
        user: &str,
        group: Option<&str>,
        hosts: &[&str],
    ) -> Result<(String, String)> {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let mut params = CertificateParams::new(hosts)?;
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            let name = &mut params.distinguished_name;
            name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let (certificate, key) = (certificate.pem(), key.serialize_pem());
        fs::write(self.file(&format!("{file}.crt")), &certificate)?;
        fs::write(self.file(&format!("{file}.key")), &key)?;
        Ok((certificate, key))
    }

    /// Writes the kubeconfig of a user with a certificate.
    pub(crate) fn kubeconfig(
        &self,
        server: &str,
        name: &str,
        user: &str,
        group: Option<&str>,
    ) -> Result<PathBuf> {
        self.certificate(name, user, group, &[])?;
        let user = json!({
            "client-certificate": self.file(&format!("{name}.crt")),
            "client-key": self.file(&format!("{name}.key")),
        });
        self.write(server, name, &user)
    }

    /// Writes the kubeconfig of a user with a token.
    pub(crate) fn token_kubeconfig(
        &self,
        server: &str,
        name: &str,
        token: &str,
    ) -> Result<PathBuf> {
        self.write(server, name, &json!({ "token": token }))
    }

    fn write(&self, server: &str, name: &str, user: &serde_json::Value) -> Result<PathBuf> {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "real",
            "clusters": [{ "name": "real", "cluster": { "server": server, "certificate-authority": self.file("ca.crt") } }],
            "users": [{ "name": "real", "user": user }],
            "contexts": [{ "name": "real", "context": { "cluster": "real", "user": "real" } }],
        });
        let path = self.file(&format!("{name}.kubeconfig"));
        fs::write(&path, serde_json::to_string_pretty(&config)?)?;
        Ok(path)
    }
}
