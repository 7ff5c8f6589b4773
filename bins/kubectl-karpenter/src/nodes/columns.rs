//! Columns of the overview, which are packed if they have many rows (`docs/dashboard.md`).

use serde_json::Value;

const DIGITS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";

/// Returns the values of a column, one for each row; `None` if it has no known form.
pub(super) fn unpack(column: &Value) -> Option<Vec<Value>> {
    if let Value::Array(rows) = column {
        return Some(rows.clone());
    }
    if let Some(values) = column["values"].as_array() {
        return chosen(values, column["rows"].as_str()?);
    }
    let rows = column["rows"].as_array()?;
    if let Some(base) = column["base"].as_i64() {
        let number = |row: &Value| match row.as_i64()? {
            0 => Some(0.into()),
            row => Some(row.checked_add(base)?.into()),
        };
        return rows.iter().map(number).collect();
    }
    texts(rows, column["suffix"].as_str()?)
}

fn digit(digit: u8) -> Option<usize> {
    DIGITS.iter().position(|it| *it == digit)
}

/// Each row is an index into the values, with as many digits as there may be needed.
fn chosen(values: &[Value], rows: &str) -> Option<Vec<Value>> {
    let mut width = 1;
    let mut room = DIGITS.len();
    while room < values.len() {
        room = room.checked_mul(DIGITS.len())?;
        width += 1;
    }
    let value = |row: &[u8]| {
        let mut index = 0;
        for byte in row {
            index = index * DIGITS.len() + digit(*byte)?;
        }
        values.get(index).cloned()
    };
    rows.as_bytes().chunks(width).map(value).collect()
}

/// The first digit of a row is the number of characters that are as in the row before.
fn texts(rows: &[Value], suffix: &str) -> Option<Vec<Value>> {
    let mut before = String::new();
    let text = |row: &Value| {
        let row = row.as_str()?;
        let Some(first) = row.bytes().next() else {
            return Some(String::new().into());
        };
        let shared = before.get(..digit(first)?)?;
        before = format!("{shared}{}", row.get(1..)?);
        Some(format!("{before}{suffix}").into())
    };
    rows.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_form_of_a_column_is_read() {
        for (column, expected) in [
            (json!([1, 2]), json!([1, 2])),
            (
                json!({ "values": ["a", "b"], "rows": "0110" }),
                json!(["a", "b", "b", "a"]),
            ),
            (
                json!({ "base": 1000, "rows": [0, 1, 7] }),
                json!([0, 1001, 1007]),
            ),
            (
                json!({ "suffix": ".internal", "rows": ["0ip-1", "42", "", "1d-0"] }),
                json!(["ip-1.internal", "ip-12.internal", "", "id-0.internal"]),
            ),
        ] {
            assert_eq!(unpack(&column).map(Value::from), Some(expected), "{column}");
        }
        let many: Vec<usize> = (0..65).collect();
        let column = json!({ "values": many, "rows": "0010" });
        assert_eq!(unpack(&column), Some(vec![json!(0), json!(64)]));
    }

    #[test]
    fn a_column_of_another_form_is_no_panic() {
        for column in [
            json!(null),
            json!(7),
            json!({}),
            json!({ "values": ["a"], "rows": "9" }),
            json!({ "values": ["a"], "rows": "ä" }),
            json!({ "base": i64::MAX, "rows": [1] }),
            json!({ "suffix": "", "rows": ["zab"] }),
            json!({ "suffix": "", "rows": ["ä"] }),
            json!({ "suffix": "", "rows": ["0ä", "1b"] }),
            json!({ "suffix": 1, "rows": ["0a"] }),
        ] {
            assert_eq!(unpack(&column), None, "{column}");
        }
    }
}
