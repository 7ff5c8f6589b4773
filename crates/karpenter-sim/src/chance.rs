//! Chance that follows from a seed.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A source of choices.
#[derive(Debug)]
pub struct Chance(StdRng);

impl Chance {
    /// The choices of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// Whether something that happens this often happens.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.0.random::<f64>() < probability
    }

    /// A number of this range, its end included.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        self.0.random_range(from..=to)
    }

    /// One of these.
    pub fn of<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        (!all.is_empty()).then(|| all[self.0.random_range(0..all.len())].clone())
    }

    /// One of these, of which there is at least one.
    pub fn one<T: Copy, const N: usize>(&mut self, all: [T; N]) -> T {
        all[self.0.random_range(0..N)]
    }

    /// Seconds between `from` and `to`, short ones as often as long ones.
    pub fn seconds(&mut self, from: f64, to: f64) -> f64 {
        let share = self.0.random::<f64>();
        from * (to / from).powf(share)
    }
}
