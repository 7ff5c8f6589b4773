//! User data of an instance, and why it cannot be generated.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::mime::MimeError;

/// EC2's limit on user data, in bytes before encoding.
pub const LIMIT_BYTES: usize = 16_384;

/// Size from which a warning is logged: 90 % of [`LIMIT_BYTES`].
pub const WARNING_BYTES: usize = LIMIT_BYTES * 9 / 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserData {
    /// The text before encoding.
    pub text: String,
    /// A message for each part of the user's text that was left out.
    pub ignored: Vec<String>,
}

impl UserData {
    pub(super) fn new(text: String) -> UserData {
        UserData {
            text,
            ignored: Vec::new(),
        }
    }

    /// Returns the user data in base64, as EC2's API expects it.
    #[must_use]
    pub fn encoded(&self) -> String {
        STANDARD.encode(&self.text)
    }

    /// Returns the size in bytes that EC2 limits.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Checks that the size does not exceed EC2's limit.
    ///
    /// # Errors
    /// If the text is larger than [`LIMIT_BYTES`].
    pub fn check_size(&self) -> Result<(), UserDataError> {
        let bytes = self.bytes();
        if bytes > LIMIT_BYTES {
            return Err(UserDataError::TooLarge { bytes });
        }
        Ok(())
    }
}

/// User data cannot be generated. All errors but [`Self::ServiceCidrUnknown`] need a change of the node class.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UserDataError {
    /// AL2023 needs the service CIDR, which has not been discovered yet.
    #[error("the service CIDR of the cluster is not known yet")]
    ServiceCidrUnknown,
    /// A multi-part document cannot be parsed.
    #[error("invalid MIME document in spec.userData: {0}")]
    Mime(#[from] MimeError),
    /// The user data of Bottlerocket is not TOML.
    #[error("invalid TOML in spec.userData: {0}")]
    Toml(Box<toml::de::Error>),
    /// A setting has the wrong type.
    #[error("setting `{setting}` of spec.userData must be {expected}")]
    Setting {
        setting: String,
        expected: &'static str,
    },
    /// Kubelet fields have the wrong types.
    #[error("invalid spec.kubelet: {0}")]
    Kubelet(String),
    /// The certificate authority is not base64.
    #[error("invalid certificate authority of the cluster, not base64: {0}")]
    CertificateAuthority(#[source] base64::DecodeError),
    /// The document cannot be rendered.
    #[error("cannot render user data: {0}")]
    Render(Box<toml::ser::Error>),
    /// The user data is larger than [`LIMIT_BYTES`].
    #[error(
        "user data has {bytes} bytes, and EC2 allows {LIMIT_BYTES}: shorten spec.userData or load parts of it at boot"
    )]
    TooLarge {
        /// Size of the user data.
        bytes: usize,
    },
}

impl UserDataError {
    /// Returns whether a retry may succeed without a change of the node class.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::ServiceCidrUnknown)
    }
}
