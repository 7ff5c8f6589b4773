//! An index of rows by capacity: finds the rows with room for given resources in sorted columns, not row by row.
//!
//! For each resource, rows are sorted by their room, and the set of rows from every 64th rank on is kept. A lookup is a binary
//! search, one of those sets, and at most 63 more rows, for each resource in which some row is too small.

use index_vec::Idx;

use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::RowId;

const BLOCK: usize = 64;

/// Rows of one resource, smallest room first.
#[derive(Clone, Debug)]
struct Column {
    room: Vec<i64>,
    rows: Vec<RowId>,
    /// Rows whose rank is at least 64 times the index.
    from: Vec<Bits<RowId>>,
}

/// The capacity index of a template's rows.
#[derive(Clone, Debug)]
pub(crate) struct CapacityIndex {
    columns: Vec<Column>,
    all: Bits<RowId>,
}

impl CapacityIndex {
    /// Builds the index of `rows`; `room` has `width` numbers per row.
    pub(crate) fn new(rows: &Bits<RowId>, room: &[i64], width: usize) -> Self {
        let column = |place: usize| {
            let mut sorted: Vec<(i64, RowId)> = rows
                .iter()
                .map(|row| (room[row.index() * width + place], row))
                .collect();
            sorted.sort_unstable();
            let mut from = vec![Bits::default(); sorted.len().div_ceil(BLOCK)];
            let mut rows = Bits::default();
            for (index, block) in sorted.chunks(BLOCK).enumerate().rev() {
                block.iter().for_each(|(_, row)| rows.insert(*row));
                from[index] = rows.clone();
            }
            Column {
                room: sorted.iter().map(|(room, _)| *room).collect(),
                rows: sorted.iter().map(|(_, row)| *row).collect(),
                from,
            }
        };
        Self {
            columns: (0..width).map(column).collect(),
            all: rows.clone(),
        }
    }

    /// Returns the rows with room for `used`.
    pub(crate) fn rows_for(&self, used: &[i64]) -> Bits<RowId> {
        let mut rows = self.all.clone();
        for (column, used) in self.columns.iter().zip(used) {
            let rank = column.room.partition_point(|room| room < used);
            if rank == 0 {
                continue;
            }
            let block = rank.div_ceil(BLOCK);
            let mut roomy = column.from.get(block).cloned().unwrap_or_default();
            let end = (block * BLOCK).min(column.rows.len());
            for row in &column.rows[rank..end] {
                roomy.insert(*row);
            }
            rows.intersect(&roomy);
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_index_finds_the_same_rows_as_a_scan(
            room in prop::collection::vec(-3i64..40, 2..400),
            used in prop::collection::vec(-5i64..45, 2),
            left_out in 0usize..7,
        ) {
            let count = room.len() / 2;
            let kept = |row: &usize| left_out == 0 || row % 7 != left_out;
            let rows: Bits<RowId> = (0..count).filter(kept).map(RowId::from_usize).collect();
            let fits = |row: &RowId| room[row.index() * 2] >= used[0] && room[row.index() * 2 + 1] >= used[1];
            let expected: Bits<RowId> = rows.iter().filter(fits).collect();
            prop_assert_eq!(CapacityIndex::new(&rows, &room[..count * 2], 2).rows_for(&used), expected);
        }
    }
}
