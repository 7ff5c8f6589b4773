//! Sets of small integers.

/// A growable bitset. Bits beyond the end are clear.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits {
    words: Vec<u64>,
}

impl PartialEq for Bits {
    fn eq(&self, other: &Self) -> bool {
        self.significant() == other.significant()
    }
}

impl Eq for Bits {}

impl std::hash::Hash for Bits {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.significant().hash(state);
    }
}

impl Bits {
    /// Returns the words up to the last that is not zero.
    fn significant(&self) -> &[u64] {
        let end = self
            .words
            .iter()
            .rposition(|word| *word != 0)
            .map_or(0, |last| last + 1);
        &self.words[..end]
    }

    /// Returns the set of all numbers below `len`.
    pub(crate) fn full(len: usize) -> Self {
        let mut words = vec![u64::MAX; len / 64];
        if !len.is_multiple_of(64) {
            words.push((1 << (len % 64)) - 1);
        }
        Self { words }
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    /// Returns the word at `index`, zero beyond the end.
    #[inline]
    pub(crate) fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    #[inline]
    pub(crate) fn contains(&self, bit: usize) -> bool {
        self.word(bit / 64) >> (bit % 64) & 1 == 1
    }

    #[inline]
    pub(crate) fn insert(&mut self, bit: usize) {
        let index = bit / 64;
        if index >= self.words.len() {
            self.words.resize(index + 1, 0);
        }
        self.words[index] |= 1 << (bit % 64);
    }

    #[inline]
    pub(crate) fn remove(&mut self, bit: usize) {
        if let Some(word) = self.words.get_mut(bit / 64) {
            *word &= !(1 << (bit % 64));
        }
    }

    pub(crate) fn intersect(&mut self, other: &Self) {
        for (index, word) in self.words.iter_mut().enumerate() {
            *word &= other.word(index);
        }
    }

    pub(crate) fn unite(&mut self, other: &Self) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
    }

    pub(crate) fn subtract(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= !other;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    pub(crate) fn len(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// Returns the only member, if there is exactly one.
    pub(crate) fn single(&self) -> Option<usize> {
        let mut members = self.iter();
        let first = members.next()?;
        members.next().is_none().then_some(first)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words
            .iter()
            .enumerate()
            .flat_map(|(index, word)| Ones(*word).map(move |bit| index * 64 + bit))
    }
}

impl FromIterator<usize> for Bits {
    fn from_iter<I: IntoIterator<Item = usize>>(members: I) -> Self {
        let mut bits = Self::default();
        members.into_iter().for_each(|bit| bits.insert(bit));
        bits
    }
}

/// The set bits of a word, ascending.
pub(crate) struct Ones(pub(crate) u64);

impl Iterator for Ones {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_contains_exactly_the_inserted_members() {
        let mut bits: Bits = [3, 64, 200].into_iter().collect();
        assert_eq!(bits.iter().collect::<Vec<_>>(), [3, 64, 200]);
        assert!(bits.contains(64) && !bits.contains(65) && !bits.contains(100_000));
        bits.remove(64);
        bits.intersect(&Bits::full(200));
        assert_eq!(bits.single(), Some(3));
        bits.unite(&Bits::full(65));
        assert_eq!(bits.len(), 65);
        bits.subtract(&Bits::full(65));
        assert!(bits.is_empty());
    }
}
