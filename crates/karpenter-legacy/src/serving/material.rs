//! Certificates: an authority that vouches for the webhook, as the Secret keeps them.
//!
//! The key of the authority is forgotten as soon as it has signed: a renewal makes another authority, and the bundle has both.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;

/// How long a certificate is good for.
const VALID_DAYS: i64 = 365;
/// How long before its end it is renewed.
pub const RENEWED_BEFORE: Duration = Duration::from_secs(90 * 24 * 3600);

/// Keys of the Secret, as upstream's.
mod keys {
    pub(super) const AUTHORITY: &str = "ca-cert.pem";
    pub(super) const CERTIFICATE: &str = "server-cert.pem";
    pub(super) const KEY: &str = "server-key.pem";
}

/// Why a certificate cannot be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MaterialError {
    /// It cannot be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// It cannot be used.
    #[error("cannot use the certificate: {0}")]
    Tls(#[from] rustls::Error),
    /// It is not PEM.
    #[error("the certificate is not PEM: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// The clock shows no date.
    #[error("there is no calendar day for {0}")]
    Time(Timestamp),
}

/// A certificate with its key, and the authorities to trust.
#[derive(Clone, PartialEq, Eq)]
pub struct Material {
    /// The authorities as PEM; the first one vouches for the certificate.
    pub authorities: String,
    /// The certificate as PEM.
    pub certificate: String,
    /// Its key as PEM.
    key: String,
}

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Material")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// The cryptography everything here uses.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

impl Material {
    /// A new authority, and a certificate of it for `hosts`. The authority of `before` is trusted on.
    ///
    /// # Errors
    /// When a host is no DNS name, or there is no randomness.
    pub fn new(
        hosts: &[String],
        now: Timestamp,
        before: Option<&Self>,
    ) -> Result<Self, MaterialError> {
        let date = |days: i64| -> Result<_, MaterialError> {
            let time = now
                .checked_add(jiff::SignedDuration::from_hours(24 * days))
                .map_err(|_| MaterialError::Time(now))?;
            let date: Date = time.to_zoned(TimeZone::UTC).date();
            let part = |part: i8| u8::try_from(part).map_err(|_| MaterialError::Time(now));
            Ok(rcgen::date_time_ymd(
                date.year().into(),
                part(date.month())?,
                part(date.day())?,
            ))
        };
        // Clocks differ.
        let (from, to) = (date(-1)?, date(VALID_DAYS)?);

        let mut authority = CertificateParams::new(Vec::<String>::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        authority
            .distinguished_name
            .push(DnType::CommonName, "karpenter-webhook-ca");
        (authority.not_before, authority.not_after) = (from, to);
        let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;

        let mut params = CertificateParams::new(hosts)?;
        params
            .distinguished_name
            .push(DnType::CommonName, "karpenter-webhook");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = (from, to);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;

        let trusted_on = before.and_then(|before| before.authority());
        Ok(Self {
            authorities: issuer.pem() + trusted_on.as_deref().unwrap_or_default(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// What a Secret holds, if it holds everything.
    #[must_use]
    pub fn from_secret(data: &BTreeMap<String, ByteString>) -> Option<Self> {
        let text = |key: &str| {
            let bytes = &data.get(key)?.0;
            String::from_utf8(bytes.clone()).ok()
        };
        Some(Self {
            authorities: text(keys::AUTHORITY)?,
            certificate: text(keys::CERTIFICATE)?,
            key: text(keys::KEY)?,
        })
    }

    /// What a Secret is to hold.
    #[must_use]
    pub fn to_secret(&self) -> BTreeMap<String, ByteString> {
        [
            (keys::AUTHORITY, &self.authorities),
            (keys::CERTIFICATE, &self.certificate),
            (keys::KEY, &self.key),
        ]
        .map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes())))
        .into()
    }

    /// Whether a client that trusts the authorities takes the certificate for `host` at a time.
    #[must_use]
    pub fn is_good(&self, host: &str, at: Timestamp) -> bool {
        self.check(host, at).is_some() && self.certified_key().is_ok()
    }

    fn check(&self, host: &str, at: Timestamp) -> Option<()> {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(self.authorities.as_bytes()) {
            roots.add(authority.ok()?).ok()?;
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider());
        let verifier = verifier.build().ok()?;
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes()).ok()?;
        let host = ServerName::try_from(host).ok()?;
        let since_epoch = u64::try_from(at.as_second()).ok()?;
        let at = UnixTime::since_unix_epoch(Duration::from_secs(since_epoch));
        verifier
            .verify_server_cert(&certificate, &[], &host, &[], at)
            .ok()?;
        Some(())
    }

    /// The certificate for serving.
    ///
    /// # Errors
    /// When certificate or key cannot be read, or do not belong together.
    pub fn certified_key(&self) -> Result<CertifiedKey, MaterialError> {
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        Ok(CertifiedKey::from_der(chain, key, &provider())?)
    }

    /// The authority that vouches for the certificate, if it can be read.
    fn authority(&self) -> Option<String> {
        const END: &str = "-----END CERTIFICATE-----";
        let end = self.authorities.find(END)? + END.len();
        let first = &self.authorities[..end];
        let read = CertificateDer::from_pem_slice(first.as_bytes()).ok()?;
        RootCertStore::empty().add(read).ok()?;
        Some(format!("{first}\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "karpenter.kube-system.svc";

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn made(when: &str, before: Option<&Material>) -> Material {
        Material::new(&[HOST.to_owned()], at(when), before).unwrap()
    }

    #[test]
    fn a_certificate_is_good_for_its_hosts_for_a_year() {
        let material = made("2026-03-01T12:00:00Z", None);
        assert!(material.is_good(HOST, at("2026-03-01T12:00:00Z")));
        assert!(material.is_good(HOST, at("2027-02-28T12:00:00Z")));
        assert!(!material.is_good(HOST, at("2027-03-02T12:00:00Z")), "over");
        assert!(
            !material.is_good(HOST, at("2026-02-27T12:00:00Z")),
            "too early"
        );
        assert!(!material.is_good("karpenter.default.svc", at("2026-03-02T12:00:00Z")));
    }

    #[test]
    fn a_secret_gives_back_what_was_put_in() {
        let material = made("2026-03-01T12:00:00Z", None);
        let mut secret = material.to_secret();
        assert_eq!(
            secret.keys().collect::<Vec<_>>(),
            ["ca-cert.pem", "server-cert.pem", "server-key.pem"]
        );
        assert_eq!(Material::from_secret(&secret), Some(material));
        secret.remove("server-key.pem");
        assert_eq!(Material::from_secret(&secret), None);
    }

    #[test]
    fn the_authority_before_is_trusted_on_and_the_one_before_that_is_not() {
        let first = made("2026-03-01T12:00:00Z", None);
        let second = made("2026-12-01T12:00:00Z", Some(&first));
        let third = made("2027-09-01T12:00:00Z", Some(&second));
        let served = |certificate: &Material, trusting: &Material, when: &str| {
            let mixed = Material {
                authorities: trusting.authorities.clone(),
                ..certificate.clone()
            };
            mixed.is_good(HOST, at(when))
        };
        assert!(
            served(&first, &second, "2026-12-01T12:00:00Z"),
            "a replica that has not changed over"
        );
        assert!(served(&second, &second, "2026-12-01T12:00:00Z"));
        assert!(served(&second, &third, "2027-09-01T12:00:00Z"));
        assert!(!served(&first, &third, "2027-01-01T12:00:00Z"));
    }

    #[test]
    fn what_does_not_belong_together_is_no_good() {
        let (one, other) = (
            made("2026-03-01T12:00:00Z", None),
            made("2026-03-01T12:00:00Z", None),
        );
        let now = at("2026-03-02T12:00:00Z");
        let stranger = Material {
            authorities: other.authorities.clone(),
            ..one.clone()
        };
        assert!(!stranger.is_good(HOST, now));
        let locked_out = Material {
            key: other.key.clone(),
            ..one.clone()
        };
        assert!(!locked_out.is_good(HOST, now));
        for broken in [
            "",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            let broken = Material {
                authorities: broken.to_owned(),
                ..one.clone()
            };
            assert!(!broken.is_good(HOST, now));
            let next = made("2026-03-02T12:00:00Z", Some(&broken));
            assert!(next.is_good(HOST, now), "what is broken is not taken over");
        }
    }

    #[test]
    fn the_key_is_not_shown() {
        let material = made("2026-03-01T12:00:00Z", None);
        assert!(!format!("{material:?}").contains("PRIVATE"));
    }
}
