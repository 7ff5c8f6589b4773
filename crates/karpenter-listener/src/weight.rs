//! The weight of JSON.

/// Returns how many values a JSON text has, give or take the first one of each list and object: keys count, too.
///
/// Each becomes up to 250 bytes of a `serde_json::Value`, besides the text of strings: an object with one field has a node of a
/// tree with room for eleven. So a text of `{"":0}` becomes a hundred times as long, and its length limits nothing.
#[must_use]
pub fn weight(json: &[u8]) -> usize {
    let (mut in_string, mut is_escaped) = (false, false);
    let mut weight = 1;
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            b'{' | b'[' | b',' | b':' if !in_string => weight += 1,
            _ => {}
        }
    }
    weight
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_strings_weighs_nothing() {
        for (json, expected) in [
            ("", 1),
            ("0", 1),
            ("[0,0]", 3),
            (r#"{"":0}"#, 3),
            (r#"{"a,b":"{[:\",\\"}"#, 3),
            (r#"[{"a":["x"]},null]"#, 6),
        ] {
            assert_eq!(weight(json.as_bytes()), expected, "{json}");
        }
    }
}
