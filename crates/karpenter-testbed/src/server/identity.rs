//! UIDs and generated names, from a seed.

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The characters of generated names: no vowels and no look-alikes, so that no words appear.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Generates UIDs and name suffixes.
#[derive(Debug)]
pub struct Identity(Mutex<StdRng>);

impl Identity {
    /// Equal seeds give equal sequences.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }

    /// Returns a version 4 UUID.
    #[must_use]
    pub fn uid(&self) -> String {
        let mut bytes: [u8; 16] = self.0.lock().random();
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        let mut text = String::with_capacity(36);
        for (i, byte) in bytes.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            for half in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(half), 16).unwrap_or('0'));
            }
        }
        text
    }

    /// Returns the five characters after `generateName`.
    #[must_use]
    pub fn suffix(&self) -> String {
        let mut rng = self.0.lock();
        (0..5)
            .map(|_| char::from(ALPHABET[rng.random_range(0..ALPHABET.len())]))
            .collect()
    }
}
