//! Kubernetes' rules for label keys and values.

use super::{Findings, Problem};

/// The most characters of the name part of a key, and of a value.
const MAX_NAME: usize = 63;
/// The most characters of the prefix of a key.
const MAX_PREFIX: usize = 253;

/// The error of an invalid label key or value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The text, or the part on one side of the slash, is empty.
    #[error("it has an empty part")]
    Empty,
    /// The key has more than one slash.
    #[error("it has more than one `/`")]
    Slashes,
    /// The prefix is not a DNS subdomain.
    #[error("its prefix is not a DNS subdomain of at most 253 characters")]
    Prefix,
    /// The name is too long.
    #[error("it has more than 63 characters")]
    TooLong,
    /// The name has an invalid character.
    #[error(
        "it must consist of letters, digits, `-`, `_` and `.`, and begin and end with a letter or digit"
    )]
    Characters,
}

/// Checks a key: an optional DNS subdomain and a slash, then a name.
pub fn qualified_name(text: &str) -> Result<(), InvalidName> {
    let name = match text.split_once('/') {
        Some((_, name)) if name.contains('/') => return Err(InvalidName::Slashes),
        Some(("", _)) => return Err(InvalidName::Empty),
        Some((prefix, name)) => {
            if prefix.len() > MAX_PREFIX || !prefix.split('.').all(is_dns_label) {
                return Err(InvalidName::Prefix);
            }
            name
        }
        None => text,
    };
    if name.is_empty() {
        return Err(InvalidName::Empty);
    }
    part(name)
}

/// Checks a label value: empty or a name.
pub fn label_value(text: &str) -> Result<(), InvalidName> {
    if text.is_empty() { Ok(()) } else { part(text) }
}

/// Adds a problem if the key is not a valid label key.
pub(super) fn check_key(key: &str, findings: &mut Findings) {
    if let Err(problem) = qualified_name(key) {
        findings.errors.push(Problem::Key {
            key: key.to_owned(),
            problem,
        });
    }
}

/// Adds a problem if the value is not a valid label value.
pub(super) fn check_value(key: &str, value: &str, findings: &mut Findings) {
    if let Err(problem) = label_value(value) {
        findings.errors.push(Problem::Value {
            key: key.to_owned(),
            value: value.to_owned(),
            problem,
        });
    }
}

fn part(name: &str) -> Result<(), InvalidName> {
    if name.len() > MAX_NAME {
        return Err(InvalidName::TooLong);
    }
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let outer = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    if bytes.iter().all(|byte| inner(*byte)) && outer(bytes.first()) && outer(bytes.last()) {
        Ok(())
    } else {
        Err(InvalidName::Characters)
    }
}

fn is_dns_label(label: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !label.is_empty()
        && label.bytes().all(inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_names_with_an_optional_dns_prefix() {
        for key in ["a", "A-b_c.d", "example.com/a", "a.b-c.d/E", "x/1"] {
            assert_eq!(qualified_name(key), Ok(()), "{key}");
        }
        for (key, problem) in [
            ("", InvalidName::Empty),
            ("/a", InvalidName::Empty),
            ("a/", InvalidName::Empty),
            ("a/b/c", InvalidName::Slashes),
            ("A.com/a", InvalidName::Prefix),
            ("a..b/a", InvalidName::Prefix),
            ("-a/a", InvalidName::Prefix),
            ("a b", InvalidName::Characters),
            ("_a", InvalidName::Characters),
            ("ä", InvalidName::Characters),
        ] {
            assert_eq!(qualified_name(key), Err(problem), "{key}");
        }
        assert_eq!(qualified_name(&"a".repeat(64)), Err(InvalidName::TooLong));
        assert_eq!(
            qualified_name(&format!("{}/a", "a".repeat(254))),
            Err(InvalidName::Prefix)
        );
    }

    #[test]
    fn values_are_names_or_empty() {
        assert_eq!(label_value(""), Ok(()));
        assert_eq!(label_value("a.B_1"), Ok(()));
        assert_eq!(label_value("a/b"), Err(InvalidName::Characters));
        assert_eq!(label_value(&"a".repeat(64)), Err(InvalidName::TooLong));
    }
}
