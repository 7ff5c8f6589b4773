//! Sets of ids.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

use index_vec::Idx;

/// A growable set of ids, one bit each. Bits beyond the end are clear.
#[derive(Clone)]
pub(crate) struct Bits<I> {
    words: Vec<u64>,
    ids: PhantomData<fn() -> I>,
}

impl<I> Default for Bits<I> {
    fn default() -> Self {
        Self::of_words(Vec::new())
    }
}

impl<I: Idx> fmt::Debug for Bits<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl<I> PartialEq for Bits<I> {
    fn eq(&self, other: &Self) -> bool {
        self.significant() == other.significant()
    }
}

impl<I> Eq for Bits<I> {}

impl<I> Hash for Bits<I> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.significant().hash(state);
    }
}

impl<I> Bits<I> {
    fn of_words(words: Vec<u64>) -> Self {
        Self {
            words,
            ids: PhantomData,
        }
    }

    /// Returns the words up to the last that is not zero.
    fn significant(&self) -> &[u64] {
        let end = self
            .words
            .iter()
            .rposition(|word| *word != 0)
            .map_or(0, |last| last + 1);
        &self.words[..end]
    }

    /// Returns the set of the first `len` ids.
    pub(crate) fn full(len: usize) -> Self {
        let mut words = vec![u64::MAX; len / 64];
        if !len.is_multiple_of(64) {
            words.push((1 << (len % 64)) - 1);
        }
        Self::of_words(words)
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    /// Returns the word at `index`, zero beyond the end.
    #[inline]
    pub(crate) fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
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

    /// Reports whether some id is in all of the sets.
    pub(crate) fn meet(sets: &[&Self]) -> bool {
        let words = sets.iter().map(|set| set.words.len()).min().unwrap_or(0);
        (0..words).any(|index| {
            let all = sets
                .iter()
                .fold(u64::MAX, |word, set| word & set.words[index]);
            all != 0
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }
}

impl<I: Idx> Bits<I> {
    #[inline]
    pub(crate) fn contains(&self, id: I) -> bool {
        let bit = id.index();
        self.word(bit / 64) >> (bit % 64) & 1 == 1
    }

    #[inline]
    pub(crate) fn insert(&mut self, id: I) {
        let bit = id.index();
        let index = bit / 64;
        if index >= self.words.len() {
            self.words.resize(index + 1, 0);
        }
        self.words[index] |= 1 << (bit % 64);
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: I) {
        let bit = id.index();
        if let Some(word) = self.words.get_mut(bit / 64) {
            *word &= !(1 << (bit % 64));
        }
    }

    /// Returns the only member, if there is exactly one.
    pub(crate) fn single(&self) -> Option<I> {
        let mut members = self.iter();
        let first = members.next()?;
        members.next().is_none().then_some(first)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = I> + '_ {
        let words = self.words.iter().enumerate();
        words.flat_map(|(index, word)| members(index, *word))
    }
}

impl<I: Idx> FromIterator<I> for Bits<I> {
    fn from_iter<T: IntoIterator<Item = I>>(members: T) -> Self {
        let mut bits = Self::default();
        members.into_iter().for_each(|id| bits.insert(id));
        bits
    }
}

/// Returns the members that the word at `index` of a set stands for, ascending.
#[inline]
pub(crate) fn members<I: Idx>(index: usize, word: u64) -> impl Iterator<Item = I> {
    Ones(word).map(move |bit| I::from_usize(index * 64 + bit))
}

/// The set bits of a word, ascending.
struct Ones(u64);

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
    use crate::schedule::compile::ids::RowId;

    fn rows(rows: &[usize]) -> Bits<RowId> {
        rows.iter().copied().map(RowId::from_usize).collect()
    }

    #[test]
    fn a_set_contains_exactly_the_inserted_members() {
        let row = RowId::from_usize;
        let mut bits = rows(&[3, 64, 200]);
        assert_eq!(bits.iter().collect::<Vec<_>>(), [3, 64, 200].map(row));
        assert!(bits.contains(row(64)) && !bits.contains(row(65)) && !bits.contains(row(100_000)));
        bits.remove(row(64));
        bits.intersect(&Bits::full(200));
        assert_eq!(bits.single(), Some(row(3)));
        bits.unite(&Bits::full(65));
        assert_eq!(bits.len(), 65);
        bits.subtract(&Bits::full(65));
        assert!(bits.is_empty());
    }

    #[test]
    fn sets_meet_if_they_have_a_common_member() {
        let (first, second) = (rows(&[1, 70, 200]), rows(&[2, 70, 300]));
        assert!(Bits::meet(&[&first, &second]));
        assert!(Bits::meet(&[&first, &second, &rows(&[70])]));
        assert!(!Bits::meet(&[&first, &second, &rows(&[1, 2, 200, 300])]));
        assert!(!Bits::meet(&[&first, &rows(&[])]));
    }

    #[test]
    fn sets_with_the_same_members_are_equal_however_long_they_are() {
        let hash = |bits: &Bits<RowId>| {
            let mut hasher = rustc_hash::FxHasher::default();
            bits.hash(&mut hasher);
            hasher.finish()
        };
        let mut long = rows(&[3, 200]);
        let short = rows(&[3]);
        assert!(long != short);
        assert_ne!(hash(&long), hash(&short));
        long.remove(RowId(200));
        assert!(long == short);
        assert_eq!(hash(&long), hash(&short));
        assert!(Bits::<RowId>::default() == Bits::full(0));
    }
}
