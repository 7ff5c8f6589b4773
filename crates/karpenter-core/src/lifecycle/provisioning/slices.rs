//! How many pods a plan may have, so that the process stays below a memory limit.
//!
//! A burst of pods near the limit is planned in slices: the pods of a slice are nominated, and the next slice is planned on what is
//! left. Otherwise the container is killed, starts again, and plans the same pods with the same memory.

use super::nominations::{Standing, Turn};

/// Memory that a plan and its NodeClaims need for each pod: a burst of 5,000 pods, planned at once, raises the peak of the
/// controller by 5 KiB each.
const POD_BYTES: u64 = 6 << 10;
/// The smallest slice, so that all pods are planned at some time.
const MIN_SLICE: usize = 200;

/// Memory of the process, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// What it may use.
    pub limit: u64,
    /// What it uses.
    pub resident: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Slices {
    size: Option<usize>,
    turn: Option<Turn>,
}

impl Slices {
    /// Defers the pods that there is no memory to plan now; returns whether some of them have not been planned for that reason alone.
    pub(super) fn cut(&mut self, memory: Option<Memory>, standing: &mut Standing) -> bool {
        let waiting = standing.unplaced.len();
        self.size = memory.and_then(|memory| size(memory, waiting, self.size));
        self.turn = self
            .size
            .and_then(|most| standing.defer_beyond(most, self.turn.as_ref()));
        self.turn.is_some()
    }
}

/// Returns the size of the slice; `None`: all pods. `last` is that of the plan before.
///
/// The allocator keeps memory that a plan has freed, and the next plan uses it again: while the process stays within nine tenths
/// of the limit the size stays, even if no memory seems to be left for it, and beyond it is halved.
fn size(Memory { limit, resident }: Memory, waiting: usize, last: Option<usize>) -> Option<usize> {
    let usable = limit / 10 * 9;
    let left = usize::try_from(usable.saturating_sub(resident) / POD_BYTES).unwrap_or(usize::MAX);
    let again = match last {
        Some(last) if resident <= usable => last,
        Some(last) => last / 2,
        None => 0,
    };
    let most = left.max(again).max(MIN_SLICE);
    (most < waiting).then_some(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn size(limit: u64, resident: u64, waiting: usize, last: Option<usize>) -> Option<usize> {
        super::size(Memory { limit, resident }, waiting, last)
    }

    #[test]
    fn pods_are_planned_together_while_there_is_memory_for_them() {
        assert_eq!(size(1024 * MIB, 100 * MIB, 20_000, None), None);
        assert_eq!(size(1, MIB, MIN_SLICE, None), None);
    }

    #[test]
    fn near_the_limit_a_slice_has_as_many_pods_as_fit_below_nine_tenths_of_it() {
        let most = size(128 * MIB, 67 * MIB, 20_000, None).unwrap();
        let needed = 67 * MIB + most as u64 * POD_BYTES;
        assert!((114 * MIB..=116 * MIB).contains(&needed), "{most}");
    }

    #[test]
    fn beyond_the_limit_some_pods_are_planned_all_the_same() {
        assert_eq!(size(128 * MIB, 500 * MIB, 20_000, None), Some(MIN_SLICE));
        assert_eq!(size(1, MIB, 1_000, None), Some(MIN_SLICE));
    }

    #[test]
    fn memory_that_the_last_slice_left_behind_is_used_again() {
        assert_eq!(size(128 * MIB, 114 * MIB, 20_000, Some(8_000)), Some(8_000));
    }

    #[test]
    fn a_slice_that_took_more_than_nine_tenths_of_the_limit_is_halved() {
        assert_eq!(size(128 * MIB, 120 * MIB, 20_000, Some(8_000)), Some(4_000));
    }
}
