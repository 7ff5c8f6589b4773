//! Sizes of volumes: older generations allowed any quantity, v1 allows whole Gi, G, Ti and T within EC2's bounds.

use karpenter_core::quantity::Quantity;
use serde_json::Value;

use crate::finding::Notebook;

const UNITS: [(&str, i64, i64); 4] = [
    ("Ti", 1 << 40, 58),
    ("T", 1_000_000_000_000, 64),
    ("Gi", 1 << 30, 59_000),
    ("G", 1_000_000_000, 64_000),
];

/// The result of converting a size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// The size is equal.
    Same(String),
    /// The size was rounded up.
    Rounded(String),
    /// The size is not valid in v1.
    Impossible,
}

/// Converts a size to the format of v1. The text of a valid one does not change.
pub(crate) fn convert(size: &Value) -> Size {
    let text = match size {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let taken = |digits: &str, most: i64| {
        digits.parse::<i64>().is_ok_and(|n| {
            (1..=most).contains(&n) && !digits.starts_with('0') && !digits.starts_with('+')
        })
    };
    let written = UNITS
        .iter()
        .any(|(unit, _, most)| text.strip_suffix(unit).is_some_and(|d| taken(d, *most)));
    if written {
        return Size::Same(text);
    }
    let Ok(quantity) = text.parse::<Quantity>() else {
        return Size::Impossible;
    };
    let bytes = quantity.units_ceil();
    if bytes <= 0 {
        return Size::Impossible;
    }
    for (unit, factor, most) in [UNITS[2], UNITS[3]] {
        if bytes % factor == 0 && bytes / factor <= most {
            return Size::Same(format!("{}{unit}", bytes / factor));
        }
    }
    let (unit, factor, most) = UNITS[2];
    let rounded = bytes / factor + i64::from(bytes % factor != 0);
    match rounded <= most {
        true => Size::Rounded(format!("{rounded}{unit}")),
        false => Size::Impossible,
    }
}

/// Converts a size and records findings about it.
pub(crate) fn noted(size: &Value, at: &str, notes: &mut Notebook) -> Option<String> {
    match convert(size) {
        Size::Same(text) => Some(text),
        Size::Rounded(text) => {
            let problem = format!("{size} is not a whole number of Gi and becomes {text}");
            notes.loss(at, problem, "write a whole number of Gi or G");
            Some(text)
        }
        Size::Impossible => {
            let problem = format!("{size} is not a valid volume size");
            notes.error(at, problem, "write a size such as 20Gi, at most 64T");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes_are_converted_to_the_format_of_v1() {
        let same = |text: &str| Size::Same(text.to_owned());
        assert_eq!(convert(&json!("20Gi")), same("20Gi"));
        assert_eq!(convert(&json!("64T")), same("64T"));
        assert_eq!(convert(&json!("102400Mi")), same("100Gi"));
        assert_eq!(convert(&json!(20_000_000_000_i64)), same("20G"));
        assert_eq!(convert(&json!("1.5Ti")), same("1536Gi"));
        assert_eq!(convert(&json!("59Ti")), Size::Impossible);
        assert_eq!(convert(&json!("500Mi")), Size::Rounded("1Gi".to_owned()));
        assert_eq!(convert(&json!("0")), Size::Impossible);
        assert_eq!(convert(&json!("lots")), Size::Impossible);
    }
}
