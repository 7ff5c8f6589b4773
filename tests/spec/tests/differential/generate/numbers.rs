//! An object as small numbers, each of which decides one thing; zero is the plain case, to which failing clusters shrink.

/// The numbers of an object that are not read yet; behind the last one all are zero.
pub(super) struct Numbers<'a>(pub(super) &'a [u16]);

impl Numbers<'_> {
    /// Returns a number below `most`.
    pub(super) fn below(&mut self, most: usize) -> usize {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        usize::from(*first) % most
    }

    /// Returns one of the items, of which the first is the plain one.
    pub(super) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Returns true in one of `cases` cases.
    pub(super) fn one_in(&mut self, cases: usize) -> bool {
        self.below(cases) == cases - 1
    }

    /// Returns zero or, in one of `cases` cases, a number from 1 to `most`.
    pub(super) fn rarely(&mut self, cases: usize, most: usize) -> usize {
        let (is_so, number) = (self.one_in(cases), 1 + self.below(most));
        if is_so { number } else { 0 }
    }

    /// Returns [`Numbers::rarely`] if the clusters have the feature, and zero otherwise.
    pub(super) fn rarely_if(&mut self, has: bool, cases: usize, most: usize) -> usize {
        let number = self.rarely(cases, most);
        if has { number } else { 0 }
    }
}
