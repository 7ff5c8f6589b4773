//! Canonical JSON of kubelet settings, as upstream hashes it.

use serde_json::{Map, Value};

/// Encodes the settings as Go's JSON encoder does, which is what the static hash covers: compact, keys sorted, `<`, `>`
/// and `&` escaped; `null` if there are none.
pub(super) fn canonical_json(object: Option<&Map<String, Value>>) -> String {
    let Some(object) = object.filter(|object| !object.is_empty()) else {
        return "null".to_owned();
    };
    let mut text = String::new();
    write_object(&mut text, object);
    text
}

fn write_object(text: &mut String, object: &Map<String, Value>) {
    let mut entries: Vec<(&String, &Value)> = object.iter().collect();
    entries.sort_by_key(|(key, _)| key.as_bytes());
    text.push('{');
    for (index, (key, value)) in entries.into_iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        write_text(text, key);
        text.push(':');
        write_value(text, value);
    }
    text.push('}');
}

fn write_value(text: &mut String, value: &Value) {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
        // Go decodes every number as a double, and encodes those without a fraction as integers.
        Value::Number(number) => match number.as_f64() {
            Some(double) if !number.is_i64() && double.fract() == 0.0 && double.abs() < 1e21 => {
                text.push_str(&format!("{double:.0}"));
            }
            _ => text.push_str(&number.to_string()),
        },
        Value::String(value) => write_text(text, value),
        Value::Array(values) => {
            text.push('[');
            for (index, value) in values.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_value(text, value);
            }
            text.push(']');
        }
        Value::Object(object) => write_object(text, object),
    }
}

fn write_text(text: &mut String, value: &str) {
    for character in Value::from(value).to_string().chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                text.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Conformance: AWS-hash-10
    #[test]
    fn the_canonical_form_is_go_s() {
        let object = json!({ "b": [1, 2.0, 0.5], "a": { "z": "1 < 2 && x", "y": null }, "c": "\u{2028}é\"" });
        assert_eq!(
            canonical_json(object.as_object()),
            r#"{"a":{"y":null,"z":"1 \u003c 2 \u0026\u0026 x"},"b":[1,2,0.5],"c":"\u2028é\""}"#
        );
        assert_eq!(canonical_json(None), "null");
    }
}
