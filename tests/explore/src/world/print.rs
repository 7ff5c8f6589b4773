//! What a part of the state looks like, apart from names and from the time that has passed.
//!
//! Two states that differ only in the numbers of generated names, in absolute time, or in what pods of one workload are called are
//! one state: a [`Print`] is the hash of a text without its names and times, and these as [`Token`]s, which are hashed relative to
//! the state.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};

use jiff::Timestamp;
use rustc_hash::FxHasher;

/// How old something may be and still tell states apart, in seconds: no rule asks for more than the time to register.
const OLDEST: i64 = 1200;

/// A part of a text that is hashed relative to the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Token {
    /// A time, in seconds since 1970.
    Time(i64),
    /// The number in the name of a NodeClaim, its Node and its instance.
    Claim(u32),
    /// The number in the name of a pod.
    Pod(u32),
    /// An epoch of the model.
    Epoch(u64),
}

/// What a text looks like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Print {
    /// The hash of the text with its names and times.
    pub exact: u64,
    shape: u64,
    tokens: Vec<Token>,
}

/// The names in a state, in their order there.
#[derive(Debug, Default)]
pub struct Ranks {
    /// The current time.
    pub now: i64,
    /// The epoch of the model.
    pub epoch: u64,
    /// The numbers of NodeClaims.
    pub claims: BTreeMap<u32, u32>,
    /// The numbers of pods.
    pub pods: BTreeMap<u32, u32>,
}

impl Ranks {
    pub fn claim(&self, name: &str) -> Option<u32> {
        self.claims.get(&number_of(name)).copied()
    }

    pub fn pod(&self, name: &str) -> Option<u32> {
        self.pods.get(&number_of(name)).copied()
    }
}

fn number(text: &str, width: usize) -> Option<u64> {
    let digits = text.get(..width)?;
    digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse().ok())?
}

/// Returns the token at the start of a text, and its length.
fn token(text: &str) -> Option<(Token, usize)> {
    let bytes = text.as_bytes();
    match bytes.first()? {
        b'n' if text.starts_with("nc-") => Some((
            Token::Claim(u32::try_from(number(text.get(3..)?, 4)?).ok()?),
            7,
        )),
        b'p' if text.starts_with("pd-") => Some((
            Token::Pod(u32::try_from(number(text.get(3..)?, 4)?).ok()?),
            7,
        )),
        b'U' => {
            let rest = text.strip_prefix("UnixSecond(")?;
            let end = rest.find(')')?;
            Some((Token::Time(rest.get(..end)?.parse().ok()?), end + 12))
        }
        b'2' if bytes.get(4) == Some(&b'-') && bytes.get(10) == Some(&b'T') => {
            let end = text.find('Z')? + 1;
            let time: Timestamp = text.get(..end)?.parse().ok()?;
            Some((Token::Time(time.as_second()), end))
        }
        b'0'..=b'9' => {
            let end = bytes
                .iter()
                .position(|byte| !byte.is_ascii_digit())
                .unwrap_or(bytes.len());
            (end >= 19).then(|| Some((Token::Epoch(text.get(..end)?.parse().ok()?), end)))?
        }
        _ => None,
    }
}

impl Print {
    /// Returns the print of a text.
    pub fn of_text(text: &str) -> Self {
        let (mut shape, mut exact) = (FxHasher::default(), FxHasher::default());
        exact.write(text.as_bytes());
        let (mut tokens, mut from, mut at) = (Vec::new(), 0, 0);
        let bytes = text.as_bytes();
        while at < bytes.len() {
            let starts = matches!(bytes[at], b'n' | b'p' | b'U' | b'0'..=b'9')
                && (at == 0 || !bytes[at - 1].is_ascii_alphanumeric());
            let found = starts.then(|| token(text.get(at..)?)).flatten();
            match found {
                Some((token, length)) => {
                    shape.write(&bytes[from..at]);
                    shape.write_u8(0xff);
                    tokens.push(token);
                    at += length;
                    from = at;
                }
                None => at += 1,
            }
        }
        shape.write(&bytes[from..]);
        Self {
            exact: exact.finish(),
            shape: shape.finish(),
            tokens,
        }
    }

    /// Returns the print of what [`Debug`] writes.
    pub fn of(value: &impl Debug) -> Self {
        Self::of_text(&format!("{value:?}"))
    }

    /// Returns the names of the pods in it.
    pub fn pods(&self) -> impl Iterator<Item = String> {
        self.tokens.iter().filter_map(|token| match token {
            Token::Pod(number) => Some(format!("pd-{number:04}")),
            _ => None,
        })
    }

    /// Hashes it relative to a state.
    pub fn hash_into(&self, ranks: &Ranks, hasher: &mut impl Hasher) {
        hasher.write_u64(self.shape);
        for token in &self.tokens {
            match token {
                Token::Time(time) => hasher.write_i64((ranks.now - time).min(OLDEST)),
                Token::Claim(claim) => {
                    hasher.write_u32(ranks.claims.get(claim).copied().unwrap_or(u32::MAX))
                }
                Token::Pod(pod) => {
                    hasher.write_u32(ranks.pods.get(pod).copied().unwrap_or(u32::MAX))
                }
                Token::Epoch(epoch) => hasher.write_u8(u8::from(*epoch == ranks.epoch)),
            }
        }
    }

    /// Returns what pods of one workload are ordered by: all but their names.
    pub fn rank(&self, ranks: &Ranks) -> u64 {
        let mut hasher = FxHasher::default();
        self.shape.hash(&mut hasher);
        for token in &self.tokens {
            if !matches!(token, Token::Pod(_)) {
                let alone = Self {
                    tokens: vec![*token],
                    ..Self::default()
                };
                alone.hash_into(ranks, &mut hasher);
            }
        }
        hasher.finish()
    }
}

/// Returns the number in the name of a NodeClaim or of a pod.
pub fn number_of(name: &str) -> u32 {
    name.get(3..7)
        .and_then(|digits| digits.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(print: &Print, ranks: &Ranks) -> u64 {
        let mut hasher = FxHasher::default();
        print.hash_into(ranks, &mut hasher);
        hasher.finish()
    }

    #[test]
    fn texts_that_differ_in_names_and_absolute_time_look_the_same() {
        let before = Print::of_text(
            "nc-0001 since 2026-01-01T00:00:10Z, UnixSecond(20), 9223372036854775809",
        );
        let after = Print::of_text(
            "nc-0007 since 2026-01-01T00:01:10Z, UnixSecond(80), 9223372036854775810",
        );
        let time: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
        let ranks = |shift: i64, claim: u32, epoch: u64| Ranks {
            now: time.as_second() + shift,
            epoch,
            claims: [(claim, 0)].into(),
            pods: BTreeMap::new(),
        };
        let epoch = 1 << 63;
        let first = hash(&before, &ranks(5, 1, epoch + 1));
        assert_eq!(first, hash(&after, &ranks(65, 7, epoch + 2)));
        assert_ne!(first, hash(&after, &ranks(66, 7, epoch + 2)), "another age");
        assert_ne!(first, hash(&after, &ranks(65, 7, epoch)), "another epoch");
        assert_ne!(before.exact, after.exact);
    }
}
