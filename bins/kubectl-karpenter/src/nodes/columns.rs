//! Columns of the overview, which are packed if they have many rows (`docs/dashboard.md`).

use serde_json::Value;

/// Returns the values of a column, one for each row; `None` if it has no known form.
pub(super) fn unpack(column: &Value) -> Option<Vec<Value>> {
    if let Value::Array(rows) = column {
        return Some(rows.clone());
    }
    let (values, rows) = (column["values"].as_array()?, column["rows"].as_array()?);
    let value = |row: &Value| values.get(usize::try_from(row.as_u64()?).ok()?).cloned();
    rows.iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_form_of_a_column_is_read() {
        for column in [
            json!(["a", "b", "b"]),
            json!({ "values": ["a", "b"], "rows": [0, 1, 1] }),
        ] {
            let expected = json!(["a", "b", "b"]);
            assert_eq!(unpack(&column).map(Value::from), Some(expected), "{column}");
        }
    }

    #[test]
    fn a_column_of_another_form_is_no_panic() {
        for column in [
            json!(null),
            json!(7),
            json!({}),
            json!({ "values": ["a"], "rows": [1] }),
            json!({ "values": ["a"], "rows": [-1] }),
            json!({ "values": ["a"], "rows": "0" }),
        ] {
            assert_eq!(unpack(&column), None, "{column}");
        }
    }
}
