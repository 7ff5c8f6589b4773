//! Streams of YAML documents, split so that documents that are not converted are printed byte for byte.

use serde_json::Value;

/// A document of a stream.
#[derive(Debug, PartialEq, Eq)]
pub struct Document<'a> {
    /// The line with the marker that starts it; empty for a first document without a marker.
    pub marker: &'a str,
    /// Its text without the marker line.
    pub text: &'a str,
}

/// Splits a stream at its document markers: lines that are `---`, optionally with a comment.
///
/// A line `--- value` is also a marker in YAML; its value is part of the document, so it is left in the text.
pub fn documents(stream: &str) -> Vec<Document<'_>> {
    let mut documents = Vec::new();
    let (mut marker, mut start, mut at) = (&stream[..0], 0, 0);
    for line in stream.split_inclusive('\n') {
        let end = at + line.len();
        if starts_document(line) {
            if at > 0 {
                documents.push(Document {
                    marker,
                    text: &stream[start..at],
                });
            }
            let rest = line[3..].trim();
            let alone = rest.is_empty() || rest.starts_with('#');
            (marker, start) = if alone {
                (line, end)
            } else {
                (&stream[at..at], at)
            };
        }
        at = end;
    }
    documents.push(Document {
        marker,
        text: &stream[start..],
    });
    documents
}

fn starts_document(line: &str) -> bool {
    line.strip_prefix("---")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// Parses a document; drops fields that are `null`, as the API server does. Returns `None` for an empty document.
///
/// # Errors
/// If it is not YAML.
pub fn read(text: &str) -> Result<Option<Value>, serde_saphyr::Error> {
    let blank = |line: &str| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#') || line == "..."
    };
    if text.lines().all(blank) {
        return Ok(None);
    }
    let mut value: Value = serde_saphyr::from_str(text)?;
    drop_null(&mut value);
    Ok(Some(value))
}

fn drop_null(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_null);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_null),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(stream: &str) -> Vec<(&str, &str)> {
        let documents = documents(stream);
        let joined: String = documents.iter().flat_map(|d| [d.marker, d.text]).collect();
        assert_eq!(joined, stream, "no text is lost");
        documents.iter().map(|d| (d.marker, d.text)).collect()
    }

    #[test]
    fn streams_are_cut_at_markers() {
        assert_eq!(
            cut("a: 1\n---\nb: 2\n"),
            [("", "a: 1\n"), ("---\n", "b: 2\n")]
        );
        assert_eq!(cut("---\na: 1"), [("---\n", "a: 1")]);
        assert_eq!(
            cut("# head\n--- # two\r\nb: 2\n---"),
            [("", "# head\n"), ("--- # two\r\n", "b: 2\n"), ("---", "")]
        );
        assert_eq!(
            cut("--- {a: 1}\n---\n"),
            [("", "--- {a: 1}\n"), ("---\n", "")]
        );
        assert_eq!(cut("t: |\n  ---\n----\n"), [("", "t: |\n  ---\n----\n")]);
        assert_eq!(cut(""), [("", "")]);
    }

    #[test]
    fn null_is_as_good_as_absent() {
        let value = read("a:\nb: [{c: null, d: 1}]\n").unwrap().unwrap();
        assert_eq!(value, serde_json::json!({ "b": [{ "d": 1 }] }));
        assert_eq!(read("# nothing\n\n").unwrap(), None);
        assert!(read("a: [").is_err());
    }
}
