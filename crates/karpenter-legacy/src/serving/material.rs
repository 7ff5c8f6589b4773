//! Certificates of the webhook and its authority, as stored in the Secret.
//!
//! The key of the authority is discarded after signing: a renewal creates another authority, and the bundle has both.

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

/// The validity of a certificate.
const VALID_DAYS: i64 = 365;
/// How long before its expiry a certificate is renewed.
pub const RENEWED_BEFORE: Duration = Duration::from_secs(90 * 24 * 3600);

/// Keys of the Secret, which are upstream's.
mod keys {
    pub(super) const AUTHORITY: &str = "ca-cert.pem";
    pub(super) const CERTIFICATE: &str = "server-cert.pem";
    pub(super) const KEY: &str = "server-key.pem";
}

/// The error of creating or using a certificate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MaterialError {
    /// The certificate cannot be created.
    #[error("cannot create certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The certificate cannot be used.
    #[error("cannot use certificate: {0}")]
    Tls(#[from] rustls::Error),
    /// The certificate is not PEM.
    #[error("invalid PEM of certificate: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// The time is outside of the calendar.
    #[error("cannot convert time {0} into a date")]
    Time(Timestamp),
}

/// A certificate with its key, and the authorities to trust.
#[derive(Clone, PartialEq, Eq)]
pub struct Material {
    /// The authorities as PEM; the first one has signed the certificate.
    pub authorities: String,
    /// The certificate of the webhook as PEM.
    pub certificate: String,
    /// The key of the certificate as PEM.
    key: String,
}

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Material")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// Returns the cryptography provider of the webhook.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

impl Material {
    /// Creates an authority and a certificate for `hosts` signed by it. The authority of `before` stays trusted.
    ///
    /// # Errors
    /// Returns an error if a host is not a DNS name, or if there is no source of randomness.
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
        // The validity begins earlier, as clocks differ.
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

    /// Parses the data of a Secret, or returns `None` if a key is missing.
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

    /// Returns whether a client that trusts the authorities accepts the certificate for `host` at a time.
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

    /// Returns the certificate for serving.
    ///
    /// # Errors
    /// Returns an error if certificate or key is invalid, or if they do not match.
    pub fn certified_key(&self) -> Result<CertifiedKey, MaterialError> {
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        Ok(CertifiedKey::from_der(chain, key, &provider())?)
    }

    /// Returns the authority that signed the certificate, if it is valid.
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
    fn a_certificate_is_valid_for_its_hosts_for_a_year() {
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
    fn a_certificate_is_read_back_from_its_secret() {
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
    fn the_previous_authority_stays_trusted_and_older_ones_do_not() {
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
            "a replica with the previous certificate"
        );
        assert!(served(&second, &second, "2026-12-01T12:00:00Z"));
        assert!(served(&second, &third, "2027-09-01T12:00:00Z"));
        assert!(!served(&first, &third, "2027-01-01T12:00:00Z"));
    }

    #[test]
    fn certificates_that_do_not_match_key_or_authority_are_rejected() {
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
            assert!(next.is_good(HOST, now), "an invalid authority is not kept");
        }
    }

    #[test]
    fn the_key_is_not_shown() {
        let material = made("2026-03-01T12:00:00Z", None);
        assert!(!format!("{material:?}").contains("PRIVATE"));
    }
}
