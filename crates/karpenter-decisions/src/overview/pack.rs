//! Columns in few bytes.
//!
//! A column is one of these; short ones are plain arrays.
//!
//! | JSON | value of a row |
//! |---|---|
//! | an array | the element |
//! | `values`, `rows` | the element of `values` whose index the row has in the text `rows`: as many digits of [`DIGITS`] as `values` needs |
//! | `base`, `rows` | the number in `rows` plus `base`; 0 stays 0 |
//! | `suffix`, `rows` | a text: the first digit (of [`DIGITS`]) is the number of characters that are as in the row before, the others are written; then `suffix`. An empty text stays empty, and does not count as a row before |

use std::hash::Hash;

use rustc_hash::FxHashMap;
use serde::Serialize;

/// The digits of numbers to the base 64.
const DIGITS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
/// Columns with fewer rows are written as arrays.
const MIN_ROWS: usize = 16;

/// A column of texts or numbers.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Packed<'a, T> {
    Plain(&'a [T]),
    Dictionary { values: Vec<T>, rows: String },
    Offset { base: i64, rows: Vec<i64> },
    Front { suffix: &'a str, rows: Vec<String> },
}

/// Packs texts that differ from row to row.
pub(super) fn texts<'a>(texts: &'a [&'a str]) -> Packed<'a, &'a str> {
    if texts.len() < MIN_ROWS {
        return Packed::Plain(texts);
    }
    let mut written = texts.iter().filter(|text| !text.is_empty());
    let first = written.next().copied().unwrap_or_default();
    let mut suffix = first;
    for text in written {
        let shared = shared(suffix.bytes().rev(), text.bytes().rev());
        suffix = suffix.get(suffix.len() - shared..).unwrap_or_default();
    }
    let mut before = "";
    let rows = texts.iter().map(|text| {
        let Some(text) = text.strip_suffix(suffix).filter(|_| !text.is_empty()) else {
            return String::new();
        };
        let shared = shared(before.bytes(), text.bytes()).min(DIGITS.len() - 1);
        before = text;
        let mut row = String::with_capacity(1 + text.len() - shared);
        row.push(digit(shared));
        row.push_str(text.get(shared..).unwrap_or_default());
        row
    });
    let rows = rows.collect();
    Packed::Front { suffix, rows }
}

/// Packs texts that repeat.
pub(super) fn words<'a>(words: &'a [&'a str]) -> Packed<'a, &'a str> {
    if words.len() < MIN_ROWS {
        return Packed::Plain(words);
    }
    let (values, indices) = dictionary(words);
    let rows = written(&indices, values.len());
    Packed::Dictionary { values, rows }
}

/// Packs numbers: with a dictionary if they repeat, else with an offset if they are all large.
pub(super) fn numbers(numbers: &[i64]) -> Packed<'_, i64> {
    if numbers.len() < MIN_ROWS {
        return Packed::Plain(numbers);
    }
    let length = |number: &i64| {
        let sign = usize::from(*number < 0);
        let digits = number.unsigned_abs().checked_ilog10().unwrap_or_default();
        2 + sign + usize::try_from(digits).unwrap_or_default()
    };
    let sum = |numbers: &[i64]| numbers.iter().map(length).sum::<usize>();
    let least = numbers.iter().filter(|number| **number != 0).min();
    let base = least.map_or(0, |least| least.saturating_sub(1).max(0));
    let offset = |number: &i64| if *number == 0 { 0 } else { number - base };
    let rows: Vec<i64> = numbers.iter().map(offset).collect();
    let (values, indices) = dictionary(numbers);
    let of_dictionary = sum(&values) + numbers.len() * width(values.len());
    if of_dictionary < sum(&rows) {
        let rows = written(&indices, values.len());
        return Packed::Dictionary { values, rows };
    }
    match base {
        0 => Packed::Plain(numbers),
        _ => Packed::Offset { base, rows },
    }
}

/// Returns the number of leading bytes that two texts share. They are ASCII, so that a text is never cut within a character.
fn shared(a: impl Iterator<Item = u8>, b: impl Iterator<Item = u8>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b && a.is_ascii()).count()
}

/// Returns the different values in the order in which they occur, and the index of each row's value.
fn dictionary<T: Copy + Eq + Hash>(rows: &[T]) -> (Vec<T>, Vec<usize>) {
    let mut values = Vec::new();
    let mut known: FxHashMap<T, usize> = FxHashMap::default();
    let index = |row: &T| {
        *known.entry(*row).or_insert_with(|| {
            values.push(*row);
            values.len() - 1
        })
    };
    let indices = rows.iter().map(index).collect();
    (values, indices)
}

/// Returns the number of digits of an index into so many values.
fn width(values: usize) -> usize {
    let mut width = 1;
    let mut room = DIGITS.len();
    while room < values {
        room = room.saturating_mul(DIGITS.len());
        width += 1;
    }
    width
}

fn digit(number: usize) -> char {
    DIGITS.get(number).copied().map_or('_', char::from)
}

/// Writes each index with as many digits as the largest needs, the highest digit first.
fn written(indices: &[usize], values: usize) -> String {
    let width = width(values);
    let mut text = String::with_capacity(indices.len() * width);
    for index in indices {
        for place in (0..width).rev() {
            text.push(digit((index >> (6 * place)) % DIGITS.len()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn at(digit: u8) -> usize {
        DIGITS.iter().position(|it| *it == digit).unwrap()
    }

    /// Reads a column in the documented format.
    fn read(column: &Value) -> Vec<Value> {
        if let Value::Array(rows) = column {
            return rows.clone();
        }
        if let Some(values) = column["values"].as_array() {
            let rows = column["rows"].as_str().unwrap().as_bytes();
            let rows = rows.chunks(width(values.len()));
            let index = |row: &[u8]| row.iter().fold(0, |index, digit| index * 64 + at(*digit));
            return rows.map(|row| values[index(row)].clone()).collect();
        }
        if let Some(base) = column["base"].as_i64() {
            let rows = column["rows"].as_array().unwrap().iter();
            let rows = rows.map(|row| row.as_i64().unwrap());
            return rows
                .map(|row| json!(if row == 0 { 0 } else { row + base }))
                .collect();
        }
        let suffix = column["suffix"].as_str().unwrap();
        let mut before = String::new();
        let mut texts = Vec::new();
        for row in column["rows"].as_array().unwrap() {
            let row = row.as_str().unwrap();
            if row.is_empty() {
                texts.push(json!(""));
                continue;
            }
            before.truncate(at(row.as_bytes()[0]));
            before.push_str(&row[1..]);
            texts.push(json!(format!("{before}{suffix}")));
        }
        texts
    }

    proptest! {
        #[test]
        fn what_was_packed_is_read_back(
            names in proptest::collection::vec("(|[a-c]{0,3}(-[a-z0-9]{1,70})?(ä)?(\\.x)?)", 0..80),
            large in proptest::collection::vec(prop_oneof![Just(0_i64), 1_700_000_000..1_700_900_000_i64, -5..5_i64], 0..80),
            seed in 0..5000_i64,
        ) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let same = |packed: Value, expected: Value| {
                prop_assert_eq!(read(&packed), expected.as_array().unwrap().clone());
                Ok(())
            };
            same(json!(texts(&names)), json!(names))?;
            same(json!(words(&names)), json!(names))?;
            same(json!(numbers(&large)), json!(large))?;
            let many: Vec<i64> = (0..300).map(|row| (row * seed) % 4999).collect();
            same(json!(numbers(&many)), json!(many))?;
        }
    }

    #[test]
    fn each_column_takes_the_form_that_suits_it() {
        let names: Vec<String> = (0..20).map(|i| format!("ip-10-0-{i}.internal")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let packed = json!(texts(&names));
        assert_eq!(packed["suffix"], ".internal");
        assert_eq!(packed["rows"][0], "0ip-10-0-0");
        assert_eq!(packed["rows"][1], "81");
        let zones: Vec<&str> = ["a", "b"].into_iter().cycle().take(20).collect();
        let expected = json!({ "values": ["a", "b"], "rows": "01010101010101010101" });
        assert_eq!(json!(words(&zones)), expected);
        let times: Vec<i64> = (0..20).map(|i| 1_700_000_000 + 997 * i).collect();
        assert_eq!(json!(numbers(&times))["base"], 1_699_999_999);
        assert_eq!(json!(numbers(&[1; 20]))["values"], json!([1]));
        assert_eq!(json!(numbers(&[7, 8])), json!([7, 8]));
    }
}
