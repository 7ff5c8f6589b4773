//! Identifiers from a seed: the same calls in the same order give the same IDs.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// A source of identifiers.
#[derive(Debug)]
pub(crate) struct Ids(StdRng);

impl Ids {
    pub(crate) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    fn digits(&mut self, count: usize) -> String {
        let mut text = format!(
            "{:016x}{:016x}",
            self.0.random::<u64>(),
            self.0.random::<u64>()
        );
        text.truncate(count);
        text
    }

    /// Returns `prefix` and `count` hexadecimal digits, at most 32; as on EC2, long IDs begin with a zero.
    pub(crate) fn hex(&mut self, prefix: &str, count: usize) -> String {
        let digits = self.digits(count);
        if count == 17 {
            format!("{prefix}0{}", &digits[1..])
        } else {
            format!("{prefix}{digits}")
        }
    }

    pub(crate) fn uuid(&mut self) -> String {
        let d = self.digits(32);
        format!(
            "{}-{}-4{}-8{}-{}",
            &d[..8],
            &d[8..12],
            &d[13..16],
            &d[17..20],
            &d[20..]
        )
    }

    /// Returns an ID of IAM's form.
    pub(crate) fn upper(&mut self, prefix: &str) -> String {
        format!("{prefix}{}", self.digits(17).to_ascii_uppercase())
    }

    /// Returns a number from 1 to `most`; 1 if `most` is 0.
    pub(crate) fn up_to(&mut self, most: u32) -> u32 {
        self.0.random_range(1..=most.max(1))
    }
}
