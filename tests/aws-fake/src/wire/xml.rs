//! Rendering of values as XML: objects are elements with children, arrays are lists, null is absent.

use serde_json::Value;

/// Appends `text` with XML's special characters escaped; characters that are invalid in XML become `?`.
pub(crate) fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\r' => out.push_str("&#13;"),
            '\t' | '\n' => out.push(c),
            c if (c as u32) < 0x20 || c == '\u{fffe}' || c == '\u{ffff}' => out.push('?'),
            c => out.push(c),
        }
    }
}

/// Appends the members of `value` as elements; list elements are called `item` (`member` in IAM and STS).
pub(crate) fn write_members(value: &Value, item: &str, out: &mut String) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if !member.is_null() {
                    element(name, member, item, out);
                }
            }
        }
        Value::Array(elements) => write_list(elements, item, item, out),
        Value::String(text) => escape(text, out),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => out.push_str(&number.to_string()),
        Value::Null => {}
    }
}

fn write_list(elements: &[Value], called: &str, item: &str, out: &mut String) {
    for value in elements {
        element(called, value, item, out);
    }
}

/// Returns the element name of a list's elements. EC2's models have two lists whose elements are not named `item`.
fn called<'a>(list: &str, elements: &[Value], item: &'a str) -> &'a str {
    match list {
        "accelerators" => "member",
        "groupSet" if elements.iter().any(Value::is_string) => "groupId",
        _ => item,
    }
}

fn element(name: &str, value: &Value, item: &str, out: &mut String) {
    out.push('<');
    out.push_str(name);
    out.push('>');
    match value {
        Value::Array(elements) => write_list(elements, called(name, elements, item), item, out),
        value => write_members(value, item, out),
    }
    out.push_str("</");
    out.push_str(name);
    out.push('>');
}
