//! Random choices that are derived from a seed.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A seeded source of random choices.
#[derive(Debug)]
pub struct Chance(StdRng);

impl Chance {
    /// Creates the source of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// Returns true with this probability.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.0.random::<f64>() < probability
    }

    /// Returns a number of this range, including its end.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        self.0.random_range(from..=to)
    }

    /// Returns one of these values; `None` if there are none.
    pub fn of<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        (!all.is_empty()).then(|| all[self.0.random_range(0..all.len())].clone())
    }

    /// Returns one of these values, of which there is at least one.
    pub fn one<T: Copy, const N: usize>(&mut self, all: [T; N]) -> T {
        all[self.0.random_range(0..N)]
    }

    /// Returns one of these values, or none.
    pub fn some<const N: usize>(&mut self, all: [&str; N]) -> Option<String> {
        self.happens(0.5).then(|| self.one(all).to_owned())
    }

    /// Returns seconds between `from` and `to`, distributed over orders of magnitude.
    pub fn seconds(&mut self, from: f64, to: f64) -> f64 {
        let share = self.0.random::<f64>();
        from * (to / from).powf(share)
    }
}
