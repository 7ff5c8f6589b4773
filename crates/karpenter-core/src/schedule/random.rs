//! A pseudo-random sequence with a fixed seed: the search draws from it, and equal inputs give equal plans.

/// The step between the states of the sequence (splitmix64).
const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;

/// A pseudo-random sequence.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_RATIO);
        mixed(self.0)
    }

    /// Returns a number below `end`, or 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Returns the place of `id` in the pseudo-random order of a seed.
    pub(crate) fn rank(seed: u64, id: u64) -> u64 {
        mixed(seed.wrapping_add(id.wrapping_mul(GOLDEN_RATIO)))
    }
}

fn mixed(state: u64) -> u64 {
    let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_splitmix64() {
        let mut random = Random::new(0);
        let drawn = [random.next(), random.next(), random.next()];
        let known = [
            0xE220_A839_7B1D_CDAF,
            0x6E78_9E6A_A1B9_65F4,
            0x06C4_5D18_8009_454F,
        ];
        assert_eq!(drawn, known);
        assert_eq!([1, 2, 3].map(|id| Random::rank(0, id)), known);
    }

    #[test]
    fn numbers_are_below_their_end() {
        let mut random = Random::new(7);
        let below: Vec<usize> = (0..100).map(|_| random.below(3)).collect();
        assert!([0, 1, 2].iter().all(|number| below.contains(number)));
        assert!(below.iter().all(|number| *number < 3));
        assert_eq!(random.below(0), 0);
    }
}
