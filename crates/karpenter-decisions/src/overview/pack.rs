//! Columns of values that repeat, in fewer bytes.
//!
//! | JSON | value of a row |
//! |---|---|
//! | an array | the element |
//! | `values`, `rows` | the element of `values` whose index the row has in `rows` |

use std::hash::Hash;

use rustc_hash::FxHashMap;
use serde::Serialize;

/// Columns with fewer rows are written as arrays.
const MIN_ROWS: usize = 16;

/// A column of texts or numbers.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Packed<'a, T> {
    Plain(&'a [T]),
    Dictionary { values: Vec<T>, rows: Vec<usize> },
}

/// Packs a column if its values repeat: then an index is shorter.
pub(super) fn packed<T: Copy + Eq + Hash>(column: &[T]) -> Packed<'_, T> {
    let mut values = Vec::new();
    let mut known: FxHashMap<T, usize> = FxHashMap::default();
    let index = |row: &T| {
        *known.entry(*row).or_insert_with(|| {
            values.push(*row);
            values.len() - 1
        })
    };
    let rows = column.iter().map(index).collect();
    if column.len() < MIN_ROWS || 2 * values.len() > column.len() {
        return Packed::Plain(column);
    }
    Packed::Dictionary { values, rows }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_column_whose_values_repeat_has_a_dictionary() {
        let zones: Vec<&str> = ["b", "a"].into_iter().cycle().take(16).collect();
        let expected = json!({ "values": ["b", "a"], "rows": [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1] });
        assert_eq!(json!(packed(&zones)), expected);
        assert_eq!(json!(packed(&zones[..3])), json!(["b", "a", "b"]));
        let different: Vec<i64> = (0..20).collect();
        assert_eq!(json!(packed(&different)), json!(different));
    }
}
