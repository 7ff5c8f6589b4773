//! An index by capacity: finds the rows of a catalogue, or the nodes, with room for given resources in sorted columns, not one
//! by one.
//!
//! For each resource, members are sorted by their room, and the set of members from the first rank of every block on is kept. A
//! lookup is a binary search, one of those sets, and the rest of a block, for each resource in which some member is too small.

use index_vec::Idx;

use crate::schedule::compile::bits::Bits;

/// The fewest members of a block.
const SMALLEST_BLOCK: usize = 64;
/// The most blocks of a column, each with a set of up to all members.
const MOST_BLOCKS: usize = 64;

/// Members by one resource, smallest room first.
#[derive(Clone, Debug)]
struct Column<I: Idx> {
    room: Vec<i64>,
    members: Vec<I>,
    /// Members whose rank is at least the index times the size of a block.
    from: Vec<Bits<I>>,
}

/// The rows of a template, or the nodes of a cluster, by their room.
#[derive(Clone, Debug)]
pub(crate) struct CapacityIndex<I: Idx> {
    columns: Vec<Column<I>>,
    all: Bits<I>,
    /// The number of members of a block.
    block: usize,
}

impl<I: Idx> CapacityIndex<I> {
    /// Builds the index of `members`; `room` has `width` numbers per id.
    pub(crate) fn new(members: &Bits<I>, room: &[i64], width: usize) -> Self {
        let block = members.len().div_ceil(MOST_BLOCKS).max(SMALLEST_BLOCK);
        let column = |place: usize| {
            let mut sorted: Vec<(i64, I)> = members
                .iter()
                .map(|id| (room[id.index() * width + place], id))
                .collect();
            sorted.sort_unstable();
            let mut from = vec![Bits::default(); sorted.len().div_ceil(block)];
            let mut roomy = Bits::default();
            for (index, block) in sorted.chunks(block).enumerate().rev() {
                block.iter().for_each(|(_, id)| roomy.insert(*id));
                from[index] = roomy.clone();
            }
            Column {
                room: sorted.iter().map(|(room, _)| *room).collect(),
                members: sorted.iter().map(|(_, id)| *id).collect(),
                from,
            }
        };
        Self {
            columns: (0..width).map(column).collect(),
            all: members.clone(),
            block,
        }
    }

    /// Returns the members with room for `used`.
    pub(crate) fn with_room_for(&self, used: &[i64]) -> Bits<I> {
        let mut members = self.all.clone();
        for (column, used) in self.columns.iter().zip(used) {
            let rank = column.room.partition_point(|room| room < used);
            if rank == 0 {
                continue;
            }
            let block = rank.div_ceil(self.block);
            let mut roomy = column.from.get(block).cloned().unwrap_or_default();
            let end = (block * self.block).min(column.members.len());
            for id in &column.members[rank..end] {
                roomy.insert(*id);
            }
            members.intersect(&roomy);
        }
        members
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::schedule::compile::ids::RowId;

    proptest! {
        #[test]
        fn the_index_finds_the_same_members_as_a_scan(
            room in prop::collection::vec(-3i64..40, 2..400),
            copies in 1usize..60,
            used in prop::collection::vec(-5i64..45, 2),
            left_out in 0usize..7,
        ) {
            let room = room[..room.len() / 2 * 2].repeat(copies);
            let count = room.len() / 2;
            let kept = |row: &usize| left_out == 0 || row % 7 != left_out;
            let rows: Bits<RowId> = (0..count).filter(kept).map(RowId::from_usize).collect();
            let fits = |row: &RowId| room[row.index() * 2] >= used[0] && room[row.index() * 2 + 1] >= used[1];
            let expected: Bits<RowId> = rows.iter().filter(fits).collect();
            prop_assert_eq!(CapacityIndex::new(&rows, &room, 2).with_room_for(&used), expected);
        }
    }
}
